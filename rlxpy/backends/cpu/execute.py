"""A compiled plan: memory for it, weights laid out for its kernels, and the call into C."""
from __future__ import annotations

import ctypes
import struct
from collections import ChainMap, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.kernel import results
from rlxpy.backends.cpu.packing import pack
from rlxpy.backends.cpu.program import Program
from rlxpy.backends.faults import index_fault
from rlxpy.backends.host import failure, host_launch
from rlxpy.backends.memory import Spot, address, aligned_bytes, locate, read_only, space_bytes
from rlxpy.backends.state import State, own
from rlxpy.errors import CompileError, RlxError
from rlxpy.extend.backend import Call, Span
from rlxpy.extend.kernels import HostLaunch
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes, symbols, upper
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node, Ref, root
from rlxpy.ir.op import Op

KEPT_SIZES = 64
KEPT_SPOTS = 1024
POOL = struct.Struct("@8xQqqqqQQQQQ")   # of C's rlx_pool: workers, workers_count, lo, hi, first, arena, state, lent, fixed, size; then int32s, the second `users`
TAIL = struct.Struct("@qqqQq")          # C's rlx_tail
LINE_NBYTES = 64
HEAD_LINES, COUNTER_LINES = 2, 5        # of rlx_pool and of each rlx_counter
NOTE_NBYTES = 31                        # what the undo log adds to an element's bytes, at most: where and how many, and rounding up


class _Block:
    """One run's rlx_pool; after its counters where the lent buffers are, sizes, and rlx_tail."""

    def __init__(self, steps: int, symbols: int, lent: int) -> None:
        self._lent_at = LINE_NBYTES * (HEAD_LINES + COUNTER_LINES * steps)
        self._sizes_at = self._lent_at + 8 * lent
        self._tail_at = self._sizes_at + 8 * symbols
        memory: Any = aligned_bytes(self._tail_at + TAIL.size, np.zeros)
        self._bytes = memoryview(memory)  # keeps it alive
        self._numbers = struct.Struct(f"@{lent}Q{symbols}q")
        self._users = ctypes.c_int32.from_buffer(memory, POOL.size + 4)
        self.address = memory.ctypes.data
        self.tail_address = self.address + self._tail_at

    @property
    def free(self) -> bool:
        """Whether no worker may look into it any more."""
        return self._users.value == 0

    def begin(self, lent: Sequence[int], sizes: Sequence[int], log: int, used: int) -> None:
        self._numbers.pack_into(self._bytes, self._lent_at, *lent, *sizes)
        TAIL.pack_into(self._bytes, self._tail_at, 0, 0, 0, log, used)

    def point(self, crew: tuple[int, int], lo: int, hi: int, arena: int, state: int, fixed: int) -> None:
        POOL.pack_into(self._bytes, 0, *crew, lo, hi, 0, arena, state, self.address + self._lent_at, fixed, self.address + self._sizes_at)

    @property
    def tail(self) -> tuple[int, int, int, int, int]:
        """Failed node + 1, index, bound; the undo log, and how much of it is used."""
        return TAIL.unpack_from(self._bytes, self._tail_at)


# Blocks of all graphs by their sizes: they outlive their graph, because a worker that was put aside may still look into one.
_blocks: dict[tuple[int, int, int], deque[_Block]] = {}


@dataclass(frozen=True)
class Weights:
    """One set of weights: arrays kept alive, and their addresses in the order that the program reads."""

    by_buffer: Mapping[int, Array]
    packed: tuple[Array, ...]
    table: Any  # ctypes array of void *
    address: int


class _Arena:
    """One call's memory; calls at the same time have one each."""

    def __init__(self, plan: Plan, log_nbytes: int, lent: Sequence[int]) -> None:
        self.spaces = {space: space_bytes(plan, space) for space in (Space.ARENA, Space.INPUT)}
        self.log = aligned_bytes(log_nbytes)
        self.address, self.log_address = self.spaces[Space.ARENA].ctypes.data, self.log.ctypes.data if log_nbytes else 0
        starts = {space: memory.ctypes.data for space, memory in self.spaces.items()}
        self.lent = tuple(starts[plan.buffers[b].space] + plan.buffers[b].offset for b in lent)  # where these are when nobody lends them


@dataclass(frozen=True)
class Library:
    """A program's compiled code, and a way to compile it with further flags."""

    path: Path
    again: Callable[..., Path]


@dataclass(frozen=True)
class _Bound:
    """A plan at one set of sizes.  host: operands, results and attributes of each host step, by node."""

    sizes: tuple[int, ...]
    inputs: tuple[Spot, ...]
    outputs: tuple[Spot, ...]
    commits: tuple[tuple[Spot, Spot], ...]
    host: Mapping[int, tuple[tuple[Spot, ...], tuple[Spot, ...], dict[str, Any]]]


class CpuGraph:
    """Calls may come from several threads: each has an arena of its own."""

    def __init__(self, plan: Plan, program: Program, library: Callable[[], Library], params: Mapping[str, Array], debug: bool) -> None:
        """library() is asked last: it may be compiled while weights are laid out."""
        self.plan, self.program, self.debug = plan, program, debug
        self._buffers = {n.name: plan.places[n.refs[0]].buffer for n in plan.graph.params}
        consts = {plan.places[n.refs[0]].buffer: n.attrs.value.array for n in plan.graph if n.op is Op.CONST}  # type: ignore[attr-defined]
        self._arrays: dict[int, Array] = {**consts, **{self._buffers[k]: np.asarray(a, order="C") for k, a in params.items()}}
        self._weights = self._lay_out(self._arrays, None)
        self._launches = {(s.host.node.id, s.host.when): host_launch(plan.graph, s.host, debug=debug) for s in program.segments if s.host}
        self._idle: deque[_Arena] = deque()
        self._bound: dict[tuple[int, ...], _Bound] = {}
        self._mentioned: dict[Ref, tuple[str, ...]] = {}
        self._spots: dict[tuple[Any, ...], Spot] = {}
        self._log_nbytes = sum(_undo_nbytes(plan.graph, s.node) for s in plan.steps) if program.undoes else 0
        longest = max((s.hi - s.lo for s in program.segments), default=0)
        self._shape = 1 << longest.bit_length(), len(program.symbols), len(program.lent)
        self._results = results(plan)
        self._blocks = _blocks.setdefault(self._shape, deque())
        self.library = library()
        self._run, self._undo, self._work = functions(self.library.path)

    # ---- weights
    def set_params(self, arrays: Mapping[str, Array]) -> None:
        """Everything that a run reads is replaced at once; a run under way keeps the old set."""
        old = self._arrays
        self._arrays = {**old, **{self._buffers[name]: np.asarray(a, order="C") for name, a in arrays.items()}}
        self._weights = self._lay_out(self._arrays, {self._buffers[n] for n in arrays})

    def _lay_out(self, arrays: Mapping[int, Array], changed: set[int] | None) -> Weights:
        old = self._weights.packed if changed is not None else ()
        packed = pack(arrays, self.program.packs, [None if changed is None or p.buffer in changed else old[i] for i, p in enumerate(self.program.packs)])
        addresses = [arrays[i].ctypes.data if i in arrays else 0 for i in range(len(self.plan.buffers))]
        table = (ctypes.c_void_p * (len(addresses) + len(packed)))(*addresses, *(a.ctypes.data for a in packed))
        return Weights(arrays, packed, table, ctypes.addressof(table))

    @property
    def packed_nbytes(self) -> int:
        """Of weights laid out anew for their kernels, beside the arrays they came from."""
        return sum(a.nbytes for a in self._weights.packed)

    def new_state(self) -> State:
        return State(self.plan)

    # ---- running
    def profile(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> tuple[Span, ...]:
        """A run like any other, by code that looks at the clock."""
        from rlxpy.backends.cpu.profile import ProfiledGraph  # at first use: few graphs are ever profiled

        return ProfiledGraph(self).profile(inputs, sizes, outputs, state)

    def run(self, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array], state: State | None) -> None:
        try:
            m = self._idle.pop()
        except IndexError:
            m = _Arena(self.plan, self._log_nbytes, self.program.lent)
        try:
            if state is None or not self.plan.nbytes[Space.STATE]:
                self._call(m, m.spaces, 0, inputs, sizes, outputs)
            else:
                with own(state, self.plan).lock:
                    self._call(m, {**m.spaces, Space.STATE: state.memory}, state.address, inputs, sizes, outputs)
        finally:
            self._idle.append(m)

    @property
    def lanes(self) -> int:
        return threads.threads()

    def run_each(self, calls: Sequence[Call]) -> None:
        threads.share([partial(self.run, *call, None) for call in calls])

    def _call(self, m: _Arena, spaces: Mapping[Space, Array], state: int, inputs: Sequence[Array], sizes: Sizes, outputs: Sequence[Array]) -> None:
        bound, weights, lent = self._bind(sizes), self._weights, self._lent(inputs, outputs)
        fixed: Any = ChainMap(lent, weights.by_buffer)  # type: ignore[arg-type]  # it is only read
        if self.debug:
            for memory in (spaces[Space.ARENA], *(lent[b].reshape(-1).view(np.uint8) for b in self._results if b in lent)):
                memory.fill(0xFF)  # NaN in every float type: a read of unwritten memory shows
        for spot, buffer, given in zip(bound.inputs, self.program.lent, inputs, strict=False):
            if buffer not in lent:
                spot.view(spaces, fixed)[...] = given
        places = [address(lent[b]) if b in lent else own for b, own in zip(self.program.lent, m.lent, strict=True)]
        block = self._block()
        block.begin(places, bound.sizes, m.log_address, 0)
        try:
            for s in self.program.segments:
                if s.host is not None:
                    if s.host.applies(sizes):
                        self._host(s.host, *_operands(bound, s.host, spaces, fixed))
                    continue
                if not block.free:  # a worker is still leaving the segment before
                    self._blocks.append(block)
                    used, block = block.tail[-1], self._block()
                    block.begin(places, bound.sizes, m.log_address, used)
                block.point(threads.workers(self._work), s.lo, s.hi, m.address, state, weights.address)
                self._run(block.address)
                failed, index, bad, _, _ = block.tail
                if failed:
                    raise self._error(failed - 1, index, bad, sizes)
            for out, spot, buffer in zip(outputs, bound.outputs, self._results, strict=True):
                if lent.get(buffer) is not out:
                    out[...] = spot.view(spaces, fixed)
            moved = [(new.view(spaces, fixed).copy(), old) for new, old in bound.commits]
            for value, old in moved:
                old.view(spaces, fixed)[...] = value
        except BaseException:
            self._undo(block.tail_address)
            raise
        finally:
            self._blocks.append(block)

    def _host(self, step: Step, ins: list[Array], outs: Sequence[Array], attrs: dict[str, Any]) -> None:
        _run_on_host(step, self._launches[step.node.id, step.when], ins, outs, attrs)

    def _lent(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> dict[int, Array]:
        """The caller's arrays that stand for whole buffers: inputs laid out in order, and outputs too when no run can stop half-way."""
        found = {b: a for b, a in zip(self.program.lent, inputs, strict=False) if (f := a.flags).c_contiguous and f.aligned}
        if not self.program.fallible:
            found |= {b: a for b, a in zip(self._results, outputs, strict=True) if b >= 0 and a.flags.carray and a.dtype.isnative}
        return found

    def _block(self) -> _Block:
        """One that nobody looks into."""
        for _ in range(len(self._blocks)):
            try:
                block = self._blocks.popleft()
            except IndexError:  # another thread took the last
                break
            if block.free:
                return block
            self._blocks.append(block)
        return _Block(*self._shape)

    def _bind(self, sizes: Sizes) -> _Bound:
        key = tuple([sizes[s] for s in self.program.symbols])
        bound = self._bound.get(key)
        if bound is None:
            def spots(found: Sequence[Ref]) -> tuple[Spot, ...]:
                return tuple([self._spot(r, sizes) for r in found])

            graph = self.plan.graph
            host = {n.id: (spots(n.inputs), spots(n.refs), n.attrs.bind(sizes).params()) for s in self.program.segments if s.host for n in (s.host.node,)}
            commits = zip(spots([new for new, _ in self.plan.commits]), spots([old for _, old in self.plan.commits]), strict=True)
            bound = _Bound(key, spots([n.refs[0] for n in graph.inputs]), spots(graph.outputs), tuple(commits), host)
            if len(self._bound) >= KEPT_SIZES:
                self._bound = {}  # another thread may be reading the old one
            self._bound[key] = bound
        return bound

    def _spot(self, r: Ref, sizes: Sizes) -> Spot:
        """Most places depend on few of the sizes: with every token of a conversation one size is another."""
        names = self._mentioned.get(r)
        if names is None:
            layout = self.plan.places[r].layout
            names = self._mentioned[r] = tuple(symbols((*self.plan.graph.type(r).shape, *layout.strides, layout.offset)))
        key = (r, *[sizes[s] for s in names])
        spot = self._spots.get(key)
        if spot is None:
            if len(self._spots) >= KEPT_SPOTS:
                self._spots = {}
            spot = self._spots[key] = locate(self.plan, r, sizes)
        return spot

    def _error(self, number: int, index: int, bound: int, sizes: Sizes) -> RlxError:
        own = len(self.plan.graph)
        graph, node = (self.plan.graph, self.plan.graph[number]) if number < own else self.program.inner[number - own]
        return index_fault(graph, node, index, bound, sizes)


def functions(library: Path, more: Sequence[str] = ()) -> tuple[Any, ...]:
    """Of a compiled program: rlx_run, rlx_undo, rlx_work, and `more` by name.  Raises CompileError for what is none; then it is no longer kept."""
    try:
        loaded = ctypes.CDLL(str(library))
        found = tuple([getattr(loaded, name) for name in ("rlx_run", "rlx_undo", "rlx_work", *more)])
    except (OSError, AttributeError) as e:
        with suppress(OSError):
            library.unlink()
        raise CompileError("the compiler made a library that does not load", why=str(e), fix="a compiler for this machine and its system in RLX_CC") from None
    for f in found:
        f.argtypes, f.restype = (ctypes.c_void_p,), None
    return found


def _undo_nbytes(graph: Graph, node: Node) -> int:
    """The most that the undo log takes for the rows that a node appends."""
    inside, last = root(graph, node)
    if last.op is not Op.KV_APPEND:
        return 0
    rows = inside.type(last.inputs[1])
    return upper(rows.numel) * (rows.dtype.nbytes + NOTE_NBYTES)


def _operands(bound: _Bound, step: Step, spaces: Mapping[Space, Array], fixed: Mapping[int, Array]) -> tuple[list[Array], tuple[Array, ...], dict[str, Any]]:
    ins, outs, attrs = bound.host[step.node.id]
    return [read_only(s.view(spaces, fixed)) for s in ins], tuple([s.view(spaces, fixed) for s in outs]), attrs


def _run_on_host(step: Step, launch: HostLaunch, ins: list[Array], outs: Sequence[Array], attrs: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        try:
            launch(ins, outs, attrs)
        except Exception as e:
            raise failure(step, e) from (None if isinstance(e, RlxError) else e)
