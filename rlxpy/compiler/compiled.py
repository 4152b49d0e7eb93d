"""What compile() gives: a graph that runs, and everything one may ask about it."""
from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.compiler.arrays import check_outputs, check_param, each_call, gather_inputs
from rlxpy.compiler.counting import COUNTING
from rlxpy.compiler.hoist import Hoisted
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.relayout import Relaid
from rlxpy.errors import InputError, nearest
from rlxpy.extend.backend import BackendSpec, ExecutableGraph, Lanes, Profiles, Span, Tiered
from rlxpy.extend.plan import Plan, Space
from rlxpy.extend.selection import SelectionReport, selection
from rlxpy.fusion.pipeline import FusionReport, Report, fusion_report
from rlxpy.ir.dims import Symbol, at, lower
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.ir.place import placed
from rlxpy.ir.types import bind
from rlxpy.pages import keep


class CompiledGraph:
    """Calls may come from several threads.  Results belong to the caller; inputs are only read.

    A graph with persistent state keeps one state of its own; `new_state()` gives others, one for each conversation.  A run that
    raises leaves its state as it was; one that is interrupted (Ctrl-C) when all is computed may leave what it made."""

    def __init__(self, source: Graph, plan: Plan, executable: ExecutableGraph, params: Mapping[str, Array], hoisted: tuple[Hoisted | Relaid, ...],
                 report: Report, options: CompileOptions, spec: BackendSpec, passed_over: tuple[str, ...]) -> None:
        self.source, self.plan, self.options, self.spec, self.report = source, plan, options, spec, report
        self.passed_over = passed_over  # devices asked for before this one, and why they cannot run
        self._executable, self._hoisted = executable, hoisted
        self._params = dict(params)
        self._declared = {n.name: n for n in source.params}
        self._runtime_params = {n.name for n in plan.graph.params}
        self._state = executable.new_state()
        self._results = tuple((t.shape, t.dtype.numpy) for t in source.output_types)
        self._params_lock = threading.Lock()
        self._extremes = tuple((n, a, n_shape[a]) for n in source if n.op in (Op.MAX, Op.MIN, Op.ARGMAX, Op.ARGMIN)
                               for n_shape in (source.type(n.inputs[0]).shape,) for a in getattr(n.attrs, "axes", (getattr(n.attrs, "axis", 0),)) if lower(n_shape[a]) == 0)

    # ---- running
    @placed
    def run(self, /, *inputs: Any, sizes: Mapping[str, int] | None = None, state: Any = None, **named: Any) -> Any:
        """Inputs by position, by name, or as one dict (for names such as "sizes").  One output gives an array, several a tuple; the
        caller owns them.

        sizes: symbols that no input's shape tells.  Raises InputError for anything that does not fit."""
        arrays, known = gather_inputs(self.source, inputs, named, {} if sizes is None else sizes)
        self._refuse_empty(known)
        outputs = tuple([np.empty(bind(shape, known), dtype) for shape, dtype in self._results])
        if len(outputs) > 1:
            keep(sum([a.nbytes for a in outputs]))
        self._run(arrays, known, outputs, state)
        return outputs[0] if len(outputs) == 1 else outputs

    __call__ = run

    @placed
    def run_into(self, outputs: Sequence[Array] | Array, /, *inputs: Any, sizes: Mapping[str, int] | None = None, state: Any = None,
                 **named: Any) -> None:
        """Like run, writing into the caller's arrays.  Nothing is written when an input or an output does not fit."""
        arrays, known = gather_inputs(self.source, inputs, named, {} if sizes is None else sizes)
        checked = check_outputs(self.source, outputs, known)
        self._refuse_empty(known)
        overlap = any(np.may_share_memory(a, b) for a in checked for b in arrays)
        self._run([a.copy() for a in arrays] if overlap else arrays, known, checked, state)

    @placed
    def run_each(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """run(*inputs) for each of the calls, which must not depend on one another.

        On the cpu as many run at once as there are threads, each by one thread, so that nothing waits between launches and what a call makes stays near
        its core: the quicker way to do much that comes in pieces.  Elsewhere they follow one another.  Raises InputError for anything that does not fit,
        before anything runs, and for a graph with state."""
        if self.plan.nbytes[Space.STATE]:
            raise InputError("calls of a graph with state follow one another", why=f"{self.source.name} keeps {self.plan.nbytes[Space.STATE]:,} bytes from run to run", fix="run, once for each")
        ready = []
        for inputs in each_call(calls):
            arrays, known = gather_inputs(self.source, inputs, {}, {})
            self._refuse_empty(known)
            ready.append((arrays, known, tuple([np.empty(bind(shape, known), dtype) for shape, dtype in self._results])))
        if isinstance(self._executable, Lanes):
            counting = COUNTING.get()
            waiting = counting is not None and self.tier != self.device
            self._executable.run_each(ready)
            for _, known, _ in ready if counting is not None else ():
                counting.add(self.plan, known, waiting=waiting)  # type: ignore[union-attr]  # there is one
        else:
            for arrays, known, outputs in ready:
                self._run(arrays, known, outputs, None)
        return [outputs[0] if len(outputs) == 1 else outputs for _, _, outputs in ready]

    @property
    def lanes(self) -> int:
        """How many calls of run_each are at work at once; 0 where one call should do as much as it can, as on GPUs."""
        return self._executable.lanes if isinstance(self._executable, Lanes) else 0

    def _run(self, arrays: list[Array], sizes: Mapping[str, int], outputs: Sequence[Array], state: Any) -> None:
        counting = COUNTING.get()
        waiting = counting is not None and self.tier != self.device
        self._executable.run(arrays, sizes, outputs, self._state if state is None else state)
        if counting is not None:
            counting.add(self.plan, sizes, waiting=waiting)

    @placed
    def profile(self, /, *inputs: Any, sizes: Mapping[str, int] | None = None, state: Any = None, **named: Any) -> tuple[Span, ...]:
        """Which thread was in which launch, and when, in one run of these inputs; the results are dropped.

        `rlxpy.tools.profile` makes tables and pictures of it.  Raises InputError where the backend cannot tell."""
        if not isinstance(self._executable, Profiles):
            raise InputError(f"device {self.device} has no profile", why=f"{type(self._executable).__name__} cannot tell the time of a launch", fix="device='cpu' or 'reference'")
        arrays, known = gather_inputs(self.source, inputs, named, {} if sizes is None else sizes)
        self._refuse_empty(known)
        outputs = tuple([np.empty(bind(shape, known), dtype) for shape, dtype in self._results])
        return self._executable.profile(arrays, known, outputs, self._state if state is None else state)

    def _refuse_empty(self, sizes: Mapping[str, int]) -> None:
        """Before any memory is touched, and on every device: generated code has no way to say it."""
        for node, axis, size in self._extremes:
            if at(size, sizes) == 0:
                raise InputError("no greatest or least of nothing", where=node.where, why=f"axis {axis} has size 0", fix="guard the empty case before reducing")

    def new_state(self) -> Any:
        """Fresh persistent memory: KV caches empty, counters zero."""
        return self._executable.new_state()

    def reset(self) -> None:
        """Forget the graph's own state."""
        self._state = self._executable.new_state()

    # ---- tiers
    @property
    def tier(self) -> str:
        """What the next call runs on: the device, or "reference" while code for it is being compiled or cannot be."""
        return self._executable.tier if isinstance(self._executable, Tiered) else self.device

    def wait(self) -> None:
        """Until compiled code runs.  Raises what kept it from being made, such as CompileError."""
        if isinstance(self._executable, Tiered):
            self._executable.wait()

    # ---- weights
    @property
    def param_names(self) -> tuple[str, ...]:
        return tuple(self._declared)

    @placed
    def set_param(self, name: str, value: Any) -> None:
        """Replace a weight; everything computed from it at load is computed again.  Raises InputError, and then nothing changed.

        Calls that are running keep the old weights, later ones see the new: none sees some of each."""
        if not isinstance(name, str) or name not in self._declared:
            raise InputError(f"no param {name!r}", why=f"there are {len(self._declared)}",
                             fix=f"near it: {nearest(str(name), list(self._declared))}")
        with self._params_lock:
            params = {**self._params, name: check_param(self._declared[name], value).copy()}
            fresh = {h.name: h.compute(params) for h in self._hoisted if name in h.params}
            if name in self._runtime_params:
                fresh[name] = params[name]
            self._executable.set_params(fresh)
            self._params = params

    def save(self, path: str | Path) -> None:
        """One file with graph, weights as they are now, options and extension ops, for `rlxpy.load`; no state.  Raises LoadError."""
        from rlxpy.compiler.saved import save

        save(self.source, self._params, self.options, path)

    # ---- asking
    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.source.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.source.output_names

    @property
    def symbols(self) -> dict[str, Symbol]:
        return self.source.symbols

    @property
    def fusion(self) -> FusionReport:
        return fusion_report(self.report)

    def memory(self) -> dict[str, int]:
        """Bytes needed, known before the first run: arena_nbytes at the largest sizes, weights, state, inputs; on a device that lays weights
        out anew also packed_nbytes, once its code is there."""
        packed = {"packed_nbytes": self._executable.packed_nbytes} if isinstance(self._executable, Tiered) else {}
        return {f"{s.value}_nbytes": self.plan.nbytes[s] for s in (Space.ARENA, Space.INPUT, Space.STATE, Space.PARAM, Space.CONST)} | packed

    @property
    def device(self) -> str:
        return self.spec.device.name

    def selection(self) -> SelectionReport:
        """For each node and band of sizes the kernel row that won, and why no other did."""
        return selection(self.plan, self.spec)

    def dispatch(self) -> list[dict[str, object]]:
        """One row a launch: node, op, kernel, tier, place, user's line."""
        return self.plan.table()

    def explain(self, level: int = 5) -> str:
        """For a person: 1 device, passes and their times, 2 fusion too, 3 kernels, 4 why these, 5 memory."""
        tier = [f"tier {self._executable.tier_text}"] if isinstance(self._executable, Tiered) else []
        lines = [f"device {self.device}", *(f"  passed over {p}" for p in self.passed_over), *tier, "passes"]
        lines += [f"  {r.name}: {r.nodes_before} -> {r.nodes_after} nodes, {r.seconds * 1e3:.1f} ms" for r in self.report.runs]
        if level >= 2:
            lines += ["notes", *(f"  {n}" for n in self.report.notes)]
        if level >= 3:
            lines += ["launches", *(f"  {row['node']} {row['op']} : {row['type']} by {row['kernel']}" for row in self.dispatch())]
        if level >= 4:
            lines += ["selection", *(f"  {line}" for line in str(self.selection()).splitlines())]
        if level >= 5:
            lines += ["memory", *(f"  {k} {v}" for k, v in self.memory().items())]
        return "\n".join(lines)
