"""A compiled plan: memory for it, weights laid out for its kernels, and the call into C."""
from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.kernel import Packed, results
from rlxpy.backends.cpu.program import Program
from rlxpy.backends.memory import view as place
from rlxpy.errors import InputError, RlxError
from rlxpy.extend.plan import Plan, Space
from rlxpy.ir import refs
from rlxpy.ir.dims import Sizes, at
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Ref
from rlxpy.ir.op import Op

ALIGN_NBYTES = 64
COUNTER_NBYTES = 64  # of the C struct rlx_counter; the pool has its own line before them
ERROR_WORDS = 3     # after the sizes: failed node + 1, index, bound


def aligned_bytes(nbytes: int, make: Any = np.empty) -> Array:
    """uint8 [nbytes] starting on a cache line."""
    raw = make(nbytes + ALIGN_NBYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_NBYTES
    return np.asarray(raw[start:start + nbytes])


@dataclass(frozen=True)
class Weights:
    """One set of weights: arrays kept alive, and their addresses in the order that the program reads."""

    by_buffer: Mapping[int, Array]
    packed: tuple[Array, ...]
    table: Any  # ctypes array of void *


class State:
    """Persistent memory of one conversation, and the lock that keeps its calls apart."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.memory, self.lock = plan, aligned_bytes(plan.nbytes[Space.STATE], np.zeros), threading.Lock()
        self.half_done = ""  # the error that ended a run in the middle: what the memory holds then is neither old nor new


@dataclass(frozen=True)
class Arena:
    arena: Array
    input: Array
    pool: Array


class CpuGraph:
    """Calls may come from several threads: each has an arena of its own."""

    def __init__(self, plan: Plan, program: Program, library: Path, params: Mapping[str, Array], debug: bool) -> None:
        self.plan, self.program, self.debug = plan, program, debug
        self._library = ctypes.CDLL(str(library))
        self._run = self._library.rlx_run
        self._run.restype = None
        self._buffers = {n.name: plan.places[n.refs[0]].buffer for n in plan.graph.params}
        consts = {plan.places[n.refs[0]].buffer: n.attrs.value.array for n in plan.graph if n.op is Op.CONST}  # type: ignore[attr-defined]
        self._arrays: dict[int, Array] = {**consts, **{self._buffers[k]: np.asarray(a, order="C") for k, a in params.items()}}
        self._weights = self._lay_out(self._arrays, None)
        self._results = results(plan)
        self._idle: deque[Arena] = deque()
        self._pool_nbytes = COUNTER_NBYTES * (1 + max((s.hi - s.lo for s in program.segments), default=0))

    # ---- weights
    def set_params(self, arrays: Mapping[str, Array]) -> None:
        """Everything that a run reads is replaced at once; a run under way keeps the old set."""
        old = self._arrays
        self._arrays = {**old, **{self._buffers[name]: np.asarray(a, order="C") for name, a in arrays.items()}}
        self._weights = self._lay_out(self._arrays, {self._buffers[n] for n in arrays})

    def _lay_out(self, arrays: Mapping[int, Array], changed: set[int] | None) -> Weights:
        packed = tuple(self._weights.packed[i] if changed is not None and p.buffer not in changed else pack(arrays[p.buffer], p)
                       for i, p in enumerate(self.program.packs))
        addresses = [arrays[i].ctypes.data if i in arrays else 0 for i in range(len(self.plan.buffers))]
        table = (ctypes.c_void_p * (len(addresses) + len(packed)))(*addresses, *(a.ctypes.data for a in packed))
        return Weights(arrays, packed, table)

    def new_state(self) -> State:
        return State(self.plan)

    # ---- running
    def run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> None:
        weights, lent = self._weights, self._lent(inputs, outputs)
        fixed = {**weights.by_buffer, **lent}
        with self._memory() as m, self._locked(state) as kept:
            if self.debug:
                for memory in (m.arena, *(lent[b].reshape(-1).view(np.uint8) for b in self._results if b in lent)):
                    memory.fill(0xFF)  # NaN in every float type: a read of unwritten memory shows
            spaces = {Space.ARENA: m.arena, Space.INPUT: m.input, Space.STATE: kept}
            for node, buffer, given in zip(self.plan.graph.inputs, self.program.lent, inputs, strict=False):
                if buffer not in lent:
                    self.view(spaces, fixed, node.refs[0], sizes)[...] = given
            self._segments(m, kept, spaces, fixed, lent, weights, sizes)
            for out, r, buffer in zip(outputs, self.plan.graph.outputs, self._results, strict=True):
                if lent.get(buffer) is not out:
                    out[...] = self.view(spaces, fixed, r, sizes)
            moved = [(self.view(spaces, fixed, new, sizes).copy(), old) for new, old in self.plan.commits]
            for value, old in moved:
                self.view(spaces, fixed, old, sizes)[...] = value

    def _lent(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> dict[int, Array]:
        """The caller's arrays that stand for whole buffers: inputs laid out in order, and outputs too when no run can stop half-way."""
        found = {b: _read_only(a) for b, a in zip(self.program.lent, inputs, strict=False) if a.flags.c_contiguous and a.flags.aligned}
        if not self.program.fallible:
            found |= {b: a for b, a in zip(self._results, outputs, strict=True) if b >= 0 and a.flags.carray}
        return found

    def _addresses(self, m: Arena, lent: Mapping[int, Array]) -> Any:
        """Where each buffer of program.lent is in this run, as a ctypes array."""
        memory, buffers = {Space.INPUT: m.input.ctypes.data, Space.ARENA: m.arena.ctypes.data}, self.plan.buffers
        return (ctypes.c_void_p * len(self.program.lent))(*(lent[b].ctypes.data if b in lent else memory[buffers[b].space] + buffers[b].offset for b in self.program.lent))

    def _segments(self, m: Arena, kept: Array, spaces: Mapping[Space, Array], fixed: Mapping[int, Array], lent: Mapping[int, Array], weights: Weights, sizes: Sizes) -> None:
        words = (ctypes.c_int64 * (len(self.program.symbols) + ERROR_WORDS))(*(sizes[s] for s in self.program.symbols))
        args = (m.arena.ctypes.data, self._addresses(m, lent), kept.ctypes.data, weights.table, words)
        for s in self.program.segments:
            if s.host is None:
                m.pool[:] = 0
                threads.run(lambda count, s=s: self._run(ctypes.c_void_p(m.pool.ctypes.data), count, *map(_pointer, args), ctypes.c_int64(s.lo), ctypes.c_int64(s.hi)),  # type: ignore[misc]
                            threads.threads())
                self._check(words, sizes)
            else:
                node = s.host.node
                row = s.host.choice.row
                assert row is not None, "the host tier is made of rows"
                assert callable(row.launch), "of NumPy functions"
                with np.errstate(all="ignore"):
                    try:
                        row.launch([self.view(spaces, fixed, r, sizes) for r in node.inputs], [self.view(spaces, fixed, r, sizes) for r in node.refs],
                                   node.attrs.bind(sizes).params())
                    except RlxError as e:
                        raise e.at(node.where) from None

    def _check(self, words: Any, sizes: Sizes) -> None:
        failed, index, bound = words[len(self.program.symbols):]
        if failed:
            node = self.plan.graph[int(failed) - 1]
            axis, reads = node.attrs.axis, self.plan.graph.type(node.inputs[1])  # type: ignore[attr-defined]
            if node.op is Op.KV_APPEND:
                raise refs.append_error(axis, index, at(reads.shape[axis], sizes), bound).at(node.where)
            raise refs.index_error(node.label, axis, index % 2**64 if reads.dtype is DType.U64 else index, bound).at(node.where)

    @contextmanager
    def _memory(self) -> Iterator[Arena]:
        try:
            m = self._idle.pop()
        except IndexError:
            m = Arena(aligned_bytes(self.plan.nbytes[Space.ARENA]), aligned_bytes(self.plan.nbytes[Space.INPUT]), aligned_bytes(self._pool_nbytes))
        try:
            yield m
        finally:
            self._idle.append(m)

    @contextmanager
    def _locked(self, state: State | None) -> Iterator[Array]:
        if state is None:
            yield np.empty(0, np.uint8)
            return
        if not isinstance(state, State) or state.plan is not self.plan:
            raise InputError(f"state {state!r} is not one of this graph", why="memory of another graph has another layout", fix="make it with new_state() of the graph that runs")
        with state.lock:
            if state.half_done:
                raise InputError("the state is half updated", why=f"a run with it failed: {state.half_done}", fix="start again with new_state() or reset()")
            try:
                yield state.memory
            except BaseException as e:
                state.half_done = getattr(e, "what", type(e).__name__) if self.plan.nbytes[Space.STATE] else ""
                raise

    def view(self, spaces: Mapping[Space, Array], fixed: Mapping[int, Array], r: Ref, sizes: Sizes) -> Array:
        """A value where the plan, or the caller, put it."""
        return place(self.plan, r, sizes, spaces, fixed)


def _read_only(array: Array) -> Array:
    """A view that no kernel of the host tier can write through."""
    shown = array.view()
    shown.flags.writeable = False
    return shown


def _pointer(value: Any) -> Any:
    return ctypes.c_void_p(value) if isinstance(value, int) else value


def pack(array: Array, p: Packed) -> Array:
    """[columns / width][depth][width] f32, the last panel filled with zeros."""
    flat, item = array.reshape(-1), array.itemsize
    matrix: Array = np.ndarray((p.depth, p.columns), flat.dtype, flat, p.offset * item, (p.strides[0] * item, p.strides[1] * item))
    panels = -(-p.columns // p.width)
    out = aligned_bytes(panels * p.depth * p.width * 4).view(np.float32).reshape(panels, p.depth, p.width)
    whole = p.columns // p.width
    out[:whole] = matrix[:, :whole * p.width].reshape(p.depth, whole, p.width).swapaxes(0, 1)
    if whole < panels:
        out[whole] = 0
        out[whole, :, :p.columns - whole * p.width] = matrix[:, whole * p.width:]
    return out
