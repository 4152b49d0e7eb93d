"""The passes in their order, and the loop that runs, verifies, watches and notes them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from rlxpy.errors import FusionError, InputError, RlxError, VerifyError, nearest
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.passes import Note, NotingPass, Pass, Watch, registered_passes
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.composites import FindComposites
from rlxpy.fusion.legalise import Legalise, LowerExtensions
from rlxpy.fusion.regions import Fuse
from rlxpy.ir.graph import Graph
from rlxpy.ir.verify import verify


@dataclass(frozen=True)
class PassRun:
    """One pass's part in a compile."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int


@dataclass(frozen=True)
class Report:
    """What happened between the user's graph and the legal one."""

    runs: tuple[PassRun, ...] = ()
    notes: tuple[Note, ...] = ()

    def of(self, *kinds: str) -> tuple[Note, ...]:
        return tuple(n for n in self.notes if n.kind in kinds)


@dataclass(frozen=True)
class FusionReport:
    """Hits and near misses, each with the user's line and the reason."""

    hits: tuple[Note, ...]
    near_misses: tuple[Note, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.hits, *self.near_misses))) or "nothing to fuse"


def fusion_report(report: Report) -> FusionReport:
    return FusionReport(report.of("fused"), report.of("near miss"))


def assert_fusion_clean(report: Report) -> None:
    """Raise FusionError when anything looked like a composite and was not fused."""
    missed = fusion_report(report).near_misses
    if missed:
        raise FusionError(f"{len(missed)} near misses", where=missed[0].where, why="\n    ".join(map(str, missed)), fix="change the graph as the reasons say, or do not assert")


def standard(spec: BackendSpec, *, optimise: bool = True) -> tuple[Pass, ...]:
    """canonicalise -> extension lowering -> legalise -> fuse -> registered passes -> legalise what they added."""
    if not optimise:
        return LowerExtensions(spec), Legalise(spec)
    fuse = (Fuse(spec.fuses),) if spec.fuses else ()
    tidy = Canonicalise()
    return (tidy, LowerExtensions(spec), Legalise(spec), tidy, FindComposites(), tidy, *fuse, *registered_passes(), Legalise(spec))


def run(graph: Graph, passes: Sequence[Pass], watch: Watch = lambda name, graph: None) -> tuple[Graph, Report]:
    """Apply every pass in turn, verifying after each: the pass that breaks a graph is the one named."""
    verify(graph)
    watch("input", graph)
    runs, notes, settled = list[PassRun](), list[Note](), dict[str, Graph]()
    for p in passes:
        if settled.get(p.name) is graph:  # an idempotent pass has nothing to add to its own result
            continue
        start = perf_counter()
        after, said = _apply(p, graph)
        if after is not graph:
            verify(after, after=p.name)
        runs.append(PassRun(p.name, perf_counter() - start, len(graph), len(after)))
        notes += said
        graph = after
        if getattr(p, "idempotent", False):
            settled[p.name] = graph
        watch(p.name, graph)
    return graph, Report(tuple(runs), tuple(notes))


def _apply(p: Pass, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
    try:
        after, notes = p.noted(graph) if isinstance(p, NotingPass) else (p(graph), ())
    except RlxError:
        raise
    except Exception as e:
        raise VerifyError(f"pass {p.name!r} failed", why=f"{type(e).__name__}: {e}", fix="debug the pass on this graph: rlx opt shows it") from e
    if not isinstance(after, Graph):
        raise VerifyError(f"pass {p.name!r} gave {type(after).__name__}, not a Graph", fix="return the graph, changed or not")
    same = len(after.outputs) == len(graph.outputs) and after.output_types == graph.output_types and [n.name for n in after.inputs] == [n.name for n in graph.inputs]
    if not same:
        raise VerifyError(f"pass {p.name!r} changed the signature", why=f"outputs {', '.join(map(str, graph.output_types))} became {', '.join(map(str, after.output_types))}",
                          fix="keep inputs, outputs and their types")
    return after, notes


BUILT_IN: tuple[Pass, ...] = (Canonicalise(), FindComposites(), Fuse())


def passes_named(names: Sequence[str], spec: BackendSpec) -> tuple[Pass, ...]:
    """Passes by name, for `rlx opt` and golden files.  Raises InputError."""
    passes: tuple[Pass, ...] = (*BUILT_IN, LowerExtensions(spec), Legalise(spec), *registered_passes())
    known = {p.name: p for p in passes}
    for n in names:
        if n not in known:
            raise InputError(f"no pass {n!r}", why=f"there are {', '.join(known)}", fix=f"near it: {nearest(n, list(known))}")
    return tuple(known[n] for n in names)
