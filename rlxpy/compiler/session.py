"""compile() and Session: graph and weights in, a CompiledGraph out."""
from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlxpy import settings
from rlxpy.compiler.arrays import check_param
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.devices import choose
from rlxpy.compiler.hoist import Hoisted, fits_dense, hoist, unpack_weights
from rlxpy.compiler.options import CompileOptions
from rlxpy.errors import InputError
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.passes import Watch, registered
from rlxpy.extend.plan import Plan
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.check_plan import check_plan
from rlxpy.fusion.pipeline import Report, assert_fusion_clean, run, standard
from rlxpy.fusion.plan import plan as make_plan
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph
from rlxpy.ir.text import show

Lowered = tuple[Plan, tuple[Hoisted, ...], Report]


def compile(graph: Graph, params: Mapping[str, Any] | None = None, *, device: str | Sequence[str] | None = None,
            options: CompileOptions | None = None, watch: Watch | None = None) -> CompiledGraph:
    """Compile for `device`: a name, names in order, or "auto"; None follows RLX_DEVICE.

    params: an array for every PARAM leaf (a BuiltModel's `params`).  watch(pass name, graph) sees every step.
    Raises InputError, LegaliseError, BackendMissing, FusionError."""
    return Session(device, options).compile(graph, params, watch=watch)


class Session:
    """A device and options, and the plans made with them: the same graph is planned once, whatever its weights."""

    def __init__(self, device: str | Sequence[str] | None = None, options: CompileOptions | None = None) -> None:
        self._chosen = choose(settings.setting("device") if device is None else device)
        self.options = options or CompileOptions(kernels=settings.setting("kernels"))
        self.plans_made = 0
        self._plans: dict[Any, Lowered] = {}
        self._lock = threading.Lock()

    @property
    def device(self) -> str:
        return self._chosen.backend.spec.device.name

    def compile(self, graph: Graph, params: Mapping[str, Any] | None = None, *, watch: Watch | None = None) -> CompiledGraph:
        """Weights are checked before anything is planned; a missing or foreign one is named."""
        weights = _weights(graph, params or {})
        plan, hoisted, report = self._lowered(graph, watch)
        checks = self.options.checks
        runtime = dict(weights) | {h.name: h.compute(weights) for h in hoisted}
        executable = self._chosen.backend.load(plan, {n.name: runtime[n.name] for n in plan.graph.params}, debug=checks)
        return CompiledGraph(graph, plan, executable, weights, hoisted, report, self.options, self.device, self._chosen.passed_over)

    def _lowered(self, graph: Graph, watch: Watch | None) -> Lowered:
        key = (graph, self.options, registered())
        with self._lock:
            if key in self._plans and watch is None and settings.setting("dump") is None:
                return self._plans[key]
        made = lower(graph, self._spec(), self.options, watch)
        with self._lock:
            self.plans_made += 1
            self._plans[key] = made
        return made

    def _spec(self) -> BackendSpec:
        spec = self._chosen.backend.spec
        return replace(spec, kernels=spec.kernels.prefer(self.options.kernels)) if self.options.kernels else spec


def lower(graph: Graph, spec: BackendSpec, options: CompileOptions, watch: Watch | None = None) -> Lowered:
    """The road from a user's graph to a plan."""
    watch = _watching(watch)
    report, hoisted = Report(), tuple[Hoisted, ...]()
    if options.optimise:
        dense = options.weights == "dense" or (options.weights == "auto" and spec.dense and fits_dense(graph))
        graph, report = run(unpack_weights(graph) if dense else graph, (Canonicalise(),), watch)
        graph, hoisted = hoist(graph, may_grow=dense)
    graph, more = run(graph, standard(spec, optimise=options.optimise), watch)
    report = Report((*report.runs, *more.runs), (*report.notes, *more.notes))
    if options.assert_fusion_clean:
        assert_fusion_clean(report)
    plan = make_plan(graph, spec)
    return (check_plan(plan, spec.align_nbytes) if options.checks else plan), hoisted, report


def _weights(graph: Graph, params: Mapping[str, Any]) -> dict[str, Array]:
    missing = [n.name for n in graph.params if n.name not in params]
    if missing:
        raise InputError(f"{len(missing)} of {len(graph.params)} params are missing", why=f"first: {', '.join(missing[:3])}; given: {len(params)}",
                         fix="compile(model.graph, model.params)")
    return {n.name: check_param(n, params[n.name]) for n in graph.params}


def _watching(watch: Watch | None) -> Watch:
    """The caller's watcher, and RLX_DUMP's: the graph after every pass as DIR/NN-pass.rlx."""
    folder: Path | None = settings.setting("dump")
    if folder is None:
        return watch or (lambda name, graph: None)
    folder.mkdir(parents=True, exist_ok=True)
    count = len(list(folder.glob("*.rlx")))

    def both(name: str, graph: Graph) -> None:
        nonlocal count
        (folder / f"{count:03d}-{name}.rlx").write_text(show(graph, locs=True) + "\n")
        count += 1
        if watch is not None:
            watch(name, graph)

    return both
