"""compile() and Session: graph and weights in, a CompiledGraph out."""
from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlxpy import settings
from rlxpy.compiler.arrays import check_param, kept
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.devices import choose
from rlxpy.compiler.hoist import Hoisted, UnpackPlanes, fits_dense, hoist, unpack_weights, unpacked
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.relayout import Relaid, lay_out
from rlxpy.compiler.tuned import state as tuned_state, tuned
from rlxpy.errors import CompileError, InputError, RlxError
from rlxpy.extend.backend import BackendSpec, ExecutableGraph, Tiered, remembering
from rlxpy.extend.libraries import registered_libraries
from rlxpy.extend.passes import Watch, registered
from rlxpy.extend.plan import Plan
from rlxpy.fusion.check_plan import check_plan
from rlxpy.fusion.pipeline import Report, Settled, assert_fusion_clean, run, standard, tidied
from rlxpy.fusion.plan import plan as make_plan
from rlxpy.ir.dtypes import Array
from rlxpy.ir.encoding import registered_encodings
from rlxpy.ir.extension import registered_ops
from rlxpy.ir.graph import Graph
from rlxpy.ir.place import placed
from rlxpy.ir.text import show
from rlxpy.notes import note, note_once

KEPT_PLANS = 64  # the oldest goes: a session may live as long as a server
Lowered = tuple[Plan, tuple[Hoisted | Relaid, ...], Report]


def compile(graph: Graph, params: Mapping[str, Any] | None = None, *, device: str | Sequence[str] | None = None,
            options: CompileOptions | None = None, watch: Watch | None = None, wait: bool | None = None) -> CompiledGraph:
    """Compile for `device`: a name, names in order, or "auto"; None follows RLX_DEVICE.

    params: an array for every PARAM leaf (a BuiltModel's `params`); read-only ones, as a memory-mapped file gives, are used where
    they lie, others are copied.  watch(pass name, graph) sees every step.
    wait: whether to return only when compiled code is there; otherwise (RLX_WAIT unset) a device that compiles runs on the reference
    until it is, and its last digits may change then.
    Raises InputError, LegaliseError, BackendMissing, FusionError; with `wait`, or by a backend of somebody else, CompileError."""
    return Session(device, options).compile(graph, params, watch=watch, wait=wait)


class Session:
    """A device and options, and the plans made with them: the same graph is planned once, whatever its weights.  Threads may share it."""

    @placed
    def __init__(self, device: str | Sequence[str] | None = None, options: CompileOptions | None = None) -> None:
        self._chosen = choose(settings.setting("device") if device is None else device)
        if options is not None and not isinstance(options, CompileOptions):
            raise InputError(f"options={options!r}", why=f"{type(options).__name__} is not CompileOptions",
                             fix="options=CompileOptions(...)")
        self.options = options or CompileOptions()
        self.plans_made = 0
        self._plans: dict[Any, tuple[Lowered, BackendSpec]] = {}
        self._lock = threading.RLock()  # a watcher may compile

    @property
    def device(self) -> str:
        return self._chosen.backend.spec.device.name

    @placed
    def compile(self, graph: Graph, params: Mapping[str, Any] | None = None, *, watch: Watch | None = None, wait: bool | None = None) -> CompiledGraph:
        """Weights are checked before anything is planned; names that the graph does not have are ignored."""
        if not isinstance(graph, Graph):
            raise InputError(f"compile takes a Graph, not {type(graph).__name__}", fix="builder.finish(y) and model.graph are graphs")
        weights = weights_of(graph, {} if params is None else params)
        (plan, hoisted, report), spec = self._lowered(graph, watch)
        checks = self.options.checks
        runtime = dict(weights) | {h.name: h.compute(weights) for h in hoisted}
        executable = self._load(plan, {n.name: runtime[n.name] for n in plan.graph.params}, checks)
        if isinstance(executable, Tiered):
            wait = settings.setting("wait") if wait is None else wait
            executable.wait() if wait else executable.start()
        made = CompiledGraph(graph, plan, executable, weights, hoisted, report, self.options, spec, self._chosen.passed_over)
        if level := settings.setting("debug"):
            note(f"compiled {graph.name}\n{made.explain(level)}")
        return made

    def _load(self, plan: Plan, params: Mapping[str, Array], checks: bool) -> ExecutableGraph:
        """Raises CompileError where a backend of somebody else fails."""
        mend = f"mend `load` of {type(self._chosen.backend).__name__}; `rlx conform {self.device}` holds it to what is promised"
        try:
            made: Any = self._chosen.backend.load(plan, params, debug=checks)
        except RlxError:
            raise
        except Exception as e:
            raise CompileError(f"device {self.device} cannot load the plan", why=f"{type(e).__name__}: {e}", fix=mend) from e
        if not isinstance(made, ExecutableGraph):
            raise CompileError(f"device {self.device} gave no ExecutableGraph", why=f"{type(made).__name__} lacks set_params, new_state or run", fix=mend)
        return made

    def _lowered(self, graph: Graph, watch: Watch | None) -> tuple[Lowered, BackendSpec]:
        registries = registered(), tuple(registered_ops().values()), registered_libraries(), tuple(registered_encodings().values())
        key = (graph, tuple(n.loc for n in graph), self.options, self.options.checks, registries, tuned_state())
        with self._lock:
            if key in self._plans and watch is None and settings.setting("dump") is None:
                return self._plans[key]
            spec = self._spec()
            made = lower(graph, spec, self.options, watch), spec
            self.plans_made += 1
            while len(self._plans) >= KEPT_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = made
            return made

    def _spec(self) -> BackendSpec:
        return served(self._chosen.backend.spec, self.options)


def served(spec: BackendSpec, options: CompileOptions) -> BackendSpec:
    """A backend with the registered kernel libraries, under the caller's options.  Raises InputError for a library or a row that is not there."""
    return replace(spec.serving(registered_libraries(), options.kernels, options.force_row), facts={**spec.facts, "numerics": options.numerics})


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for reference cycles meanwhile: a large graph is millions of small objects, none of them in a cycle, and looking for
    some takes a third of the time.  Threads that compile at once may end each other's pause, which costs that time and no more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_paused()
def lower(graph: Graph, spec: BackendSpec, options: CompileOptions, watch: Watch | None = None) -> Lowered:
    """The road from a user's graph to a plan."""
    watch, spec = _watching(watch), remembering(spec)
    report, hoisted, passes, settled = Report(), tuple[Hoisted, ...](), standard(spec, optimise=options.optimise), Settled()
    if options.optimise:
        dense = options.weights == "dense" or (options.weights == "auto" and spec.dense and fits_dense(graph))
        graph, report = run(unpack_weights(graph) if dense else graph, (*unpacked(graph, spec), *tidied(spec)), watch, settled)
        graph, hoisted = hoist(graph, may_grow=dense or bool([n for n in report.notes if n.pass_name == UnpackPlanes.name]))
        passes = passes[len(tidied(spec)):]
    graph, more = run(graph, passes, watch, settled)
    report = Report((*report.runs, *more.runs))
    if options.assert_fusion_clean:
        assert_fusion_clean(report)
    graph, relaid = lay_out(graph, spec, hoisted)
    weights: tuple[Hoisted | Relaid, ...] = (*hoisted, *relaid)
    plan, read = tuned(make_plan(graph, spec), spec, options.tune), {n.name for n in graph.params}
    for row in set(options.force_row) - {c.name for s in plan.every_step for c in s.choice.every}:
        note_once(f"{row} is asked for and runs nothing of graph {graph.name}")
    return (check_plan(plan, spec.align_nbytes) if options.checks else plan), tuple(h for h in weights if h.name in read), report


def weights_of(graph: Graph, params: Mapping[str, Any]) -> dict[str, Array]:
    """An array for every PARAM leaf.  Raises InputError for what is missing or does not fit."""
    if not isinstance(params, Mapping):
        raise InputError(f"params given as {type(params).__name__}", why="a mapping from name to array is wanted",
                         fix="compile(graph, {'w': array})")
    missing = [n.name for n in graph.params if n.name not in params]
    if missing:
        raise InputError(f"{len(missing)} of {len(graph.params)} params are missing",
                         why=f"first: {', '.join(map(repr, missing[:3]))}; given: {len(params)}",
                         fix=f"compile(graph, params) with a params[{missing[0]!r}], as in compile(model.graph, model.params); `rlx emit` takes them from --params FILE")
    return {n.name: kept(check_param(n, params[n.name])) for n in graph.params}


def _watching(watch: Watch | None) -> Watch:
    """The caller's watcher, and RLX_DUMP's: the graph after every pass as DIR/NN-pass.rlx."""
    folder: Path | None = settings.setting("dump")
    if folder is None:
        return watch or (lambda name, graph: None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InputError(f"RLX_DUMP={folder} cannot be made", why=e.strerror or str(e), fix="name a folder that you may write to") from None
    count = len(list(folder.glob("*.rlx")))

    def both(name: str, graph: Graph) -> None:
        nonlocal count
        (folder / f"{count:03d}-{name}.rlx").write_text(show(graph, locs=True) + "\n")
        count += 1
        if watch is not None:
            watch(name, graph)

    return both
