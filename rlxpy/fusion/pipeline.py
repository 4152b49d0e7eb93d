"""The passes in their order, and the loop that runs, verifies, watches and notes them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from rlxpy.errors import FusionError, HookMismatch, InputError, LegaliseError, RegistryError, RlxError, VerifyError, nearest
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.passes import Note, NotingPass, Pass, Watch, passes_along, registered_passes
from rlxpy.frozen import dataclass
from rlxpy.fusion.append import FuseAppend
from rlxpy.fusion.attention import FuseAttention
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.chains import FuseChains
from rlxpy.fusion.composites import FindComposites
from rlxpy.fusion.legalise import Legalise, LowerExtensions
from rlxpy.fusion.products import FuseProducts
from rlxpy.fusion.rebuild import rebuild
from rlxpy.fusion.regions import Fuse
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import APPEND, Graph, Node, Ref
from rlxpy.ir.op import CONTROL
from rlxpy.ir.types import TensorType
from rlxpy.ir.verify import verify


@dataclass(frozen=True)
class PassRun:
    """One pass's part in a compile."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Report:
    """What happened between the user's graph and the legal one."""

    runs: tuple[PassRun, ...] = ()

    @property
    def notes(self) -> tuple[Note, ...]:
        return tuple(n for r in self.runs for n in r.notes)

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
    """canonicalise -> extension lowering -> legalise -> fuse -> registered passes -> legalise what they added.

    A registered pass that wishes to run before a built-in one stands in front of it."""
    legal, tidy = Legalise(spec), Canonicalise()
    if not optimise:
        return LowerExtensions(spec), legal
    apart = spec.apart if spec.guests or spec.kernels.forced else None
    # legalise once more after composites: one that the backend refuses must be plain ops again before they fuse
    chains = FuseChains(spec)  # as they were written, before anything is rewritten
    road: tuple[Pass, ...] = (*((chains,) if chains.rows else ()), tidy, LowerExtensions(spec), legal, tidy, FindComposites(), legal, tidy, FuseAttention(apart), FuseAppend(apart),
                              Fuse(spec.fuses, apart), FuseProducts(apart))
    kinds = (("fuse-attention", "attention"), ("fuse-append", APPEND), ("fuse-products", "products"))
    idle = {name for name, has_work in (*((name, kind in spec.fuses) for name, kind in kinds), ("fuse", bool(spec.fuses))) if not has_work}
    *early, late = passes_along([p.name for p in road])
    return (*(p for mine, built_in in zip(early, road, strict=True) for p in (*mine, built_in) if p.name not in idle), *late, legal)


def tidied(spec: BackendSpec) -> tuple[Pass, ...]:
    """The first passes of `standard`: after them everything is a built-in op, where it can be, and has one form."""
    passes = standard(spec)
    return passes[:[p.name for p in passes].index(LowerExtensions.name) + 1]


Settled = dict[str, tuple[Pass, Graph]]  # by name of an idempotent pass: what it left last


def run(graph: Graph, passes: Sequence[Pass], watch: Watch = lambda name, graph: None, settled: Settled | None = None) -> tuple[Graph, Report]:
    """Apply every pass in turn, verifying after each: the pass that breaks a graph is the one named.

    settled: shared by runs that go on with one another's graphs, so that none repeats what is done."""
    verify(graph)
    watch("input", graph)
    runs, settled = list[PassRun](), {} if settled is None else settled
    for p in passes:
        done = settled.get(p.name)
        if done and done[0] == p and done[1] is graph:  # an idempotent pass has nothing to add to its own result
            continue
        start = perf_counter()
        after, said = _apply(p, graph)
        runs.append(PassRun(p.name, perf_counter() - start, len(graph), len(after), said))
        graph = after
        if getattr(p, "idempotent", False):
            settled[p.name] = p, graph
        watch(p.name, graph)
    return graph, Report(tuple(runs))


def _apply(p: Pass, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
    """The graphs of its loops and branches first: what stands around them may depend on what they became."""
    graph, inner = _in_bodies(p, graph)
    after, notes = _apply_here(p, graph)
    return after, (*inner, *notes)


def _in_bodies(p: Pass, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
    if not any(n.op in CONTROL for n in graph):
        return graph, ()
    notes: list[Note] = []

    def replaced(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> tuple[Value, ...] | None:
        if n.op not in CONTROL:
            return None
        made = {field: _apply(getattr(p, "inside", p), body) for field, body in n.attrs.graphs()}
        notes.extend(said for _, some in made.values() for said in some)
        return b.add(n.op, xs, replace(n.attrs, **{field: body for field, (body, _) in made.items()}))

    return rebuild(graph, replaced, p.name), tuple(notes)


DEBUG = "debug the pass on this graph: rlx opt shows it"


def _apply_here(p: Pass, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
    try:
        after, notes = _noted(p, graph) if isinstance(p, NotingPass) else (p(graph), ())
    except (LegaliseError, HookMismatch, RegistryError):  # of an op or a backend, not of the pass
        raise
    except RlxError as e:
        raise VerifyError(f"pass {p.name!r} failed", where=e.where, why=f"{type(e).__name__}: {'; '.join(filter(None, (e.what, e.why)))}", fix=e.fix or DEBUG) from e
    except Exception as e:
        raise VerifyError(f"pass {p.name!r} failed", why=f"{type(e).__name__}: {e}", fix=DEBUG) from e
    if not isinstance(after, Graph):
        raise VerifyError(f"pass {p.name!r} gave {type(after).__name__}, not a Graph", fix="return the graph, changed or not")
    if after is graph:
        return graph, notes
    verify(after, after=p.name)
    for what, was, now in zip(("inputs", "outputs", "states"), _signature(graph), _signature(after), strict=True):
        if was != now:
            raise VerifyError(f"pass {p.name!r} changed the signature", why=f"{what} {_listed(was)} became {_listed(now)}", fix="keep inputs, outputs and states, their names and types")
    if new := sorted({n.name for n in after.params} - {n.name for n in graph.params}):
        raise VerifyError(f"pass {p.name!r} added params", why=f"nobody has weights for {', '.join(new)}", fix="write a constant, or compute it from the params there are")
    return after, notes


def _noted(p: NotingPass, graph: Graph) -> tuple[Any, tuple[Note, ...]]:
    """Raises TypeError for what is no graph with its notes."""
    made: Any = p.noted(graph)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], tuple) or not all(isinstance(n, Note) for n in made[1]):
        said = ", ".join(type(m).__name__ for m in made) if isinstance(made, tuple) else type(made).__name__
        raise TypeError(f"`noted` gave {said}, where a Graph and a tuple of Notes are wanted")
    return made


Signature = tuple[tuple[str, TensorType], ...]  # names and types


def _signature(graph: Graph) -> tuple[Signature, Signature, Signature]:
    """What callers rely on: inputs, outputs, and the states that a run changes."""
    return (tuple((n.name, n.type) for n in graph.inputs), tuple(zip(graph.output_names, graph.output_types, strict=True)),
            tuple(sorted(((graph[s].name, graph[s].type) for s, _ in graph.updates), key=lambda state: state[0])))


def _listed(signature: Signature) -> str:
    return ", ".join(f"{name!r}: {t}" for name, t in signature) or "none"


BUILT_IN: tuple[Pass, ...] = (Canonicalise(), FindComposites(), FuseAttention(), FuseAppend(), Fuse(), FuseProducts())


def passes_known(spec: BackendSpec) -> tuple[Pass, ...]:
    """Every pass that can be named."""
    return (*BUILT_IN, LowerExtensions(spec), Legalise(spec), *registered_passes())


def passes_named(names: Sequence[str], spec: BackendSpec) -> tuple[Pass, ...]:
    """Passes by name, for `rlx opt` and golden files.  Raises InputError."""
    known = {p.name: p for p in passes_known(spec)}
    for n in names:
        if n not in known:
            raise InputError(f"no pass {n!r}", why=f"there are {', '.join(known)}", fix=f"near it: {nearest(n, list(known))}")
    return tuple(known[n] for n in names)
