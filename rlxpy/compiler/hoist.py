"""Work that depends on weights alone is done once, at load: the graph is split into a prologue and the part that runs."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from math import inf, prod
from typing import ClassVar

import numpy as np

from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.kernels import Refusal
from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import SymDim
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.parts import part
from rlxpy.ir.refs import evaluate

FIXED = frozenset({Op.PARAM, Op.CONST})


@dataclass(frozen=True)
class Hoisted:
    """A value computed from `params` by `graph`, which the main graph reads as the param `name`."""

    name: str
    params: tuple[str, ...]
    graph: Graph

    def compute(self, params: Mapping[str, Array]) -> Array:
        given = {n.id: np.asarray(params[n.name]) for n in self.graph.params}
        with np.errstate(all="ignore"):
            return np.asarray(evaluate(self.graph, given)[0], order="C")


def unpack_weights(graph: Graph, concerned: Callable[[Node], bool] = lambda n: True) -> Graph:
    """qmatmul becomes dequantize and matmul, so that the dequantised weights can be hoisted."""
    return rebuild(graph, lambda b, n, xs, new: n.row.lower(*xs, **n.attrs.params()) if n.op is Op.QMATMUL and concerned(n) else None, "unpack-weights")  # type: ignore[misc, operator]


@dataclass(frozen=True)
class UnpackPlanes(NotingPass):
    """Weights of several arrays, codes and scales, stay packed where a kernel reads them: elsewhere they are decoded once, at load, and not in each run."""

    spec: BackendSpec
    name: ClassVar[str] = "unpack-planes"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        refused = {n.id: v for n in graph if _has_planes(n) and isinstance(v := self.spec.verdict(graph, n), Refusal)}
        return unpack_weights(graph, lambda n: n.id in refused), tuple(note(self.name, "lowered", graph[i].label, graph[i], "; ".join(v.reasons)) for i, v in refused.items())


def unpacked(graph: Graph, spec: BackendSpec) -> tuple[UnpackPlanes, ...]:
    """The pass, for a graph that has such weights."""
    return (UnpackPlanes(spec),) if any(_has_planes(n) for n in graph) else ()


def _has_planes(n: Node) -> bool:
    return n.op is Op.QMATMUL and len(n.inputs) > 2


def fits_dense(graph: Graph) -> bool:
    """Whether a quarter of the machine's memory holds the packed weights as f32."""
    shapes: list[tuple[int, ...]] = [n.attrs.shape for n in graph if n.op is Op.QMATMUL]  # type: ignore[attr-defined]
    return 4 * sum(4 * prod(s) for s in shapes) <= memory_nbytes()


def memory_nbytes() -> float:
    """Of the machine; unlimited where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return inf


def hoist(graph: Graph, *, may_grow: bool) -> tuple[Graph, tuple[Hoisted, ...]]:
    """The graph without what its weights alone decide.  Unless it `may_grow`, only values no larger than their weights are kept."""
    fixed: dict[int, frozenset[str]] = {}  # node -> names of the params it depends on, when it depends on nothing else
    for n in graph:
        if n.op is Op.PARAM:
            fixed[n.id] = frozenset({n.name})
        elif n.op is Op.CONST:
            fixed[n.id] = frozenset()
        elif n.inputs and all(r.node in fixed for r in n.inputs) and _is_computable(n):
            fixed[n.id] = frozenset().union(*(fixed[r.node] for r in n.inputs))
    sizes = {n.name: n.type.max_nbytes for n in graph.params}
    names = (name for k in count() if (name := f"hoisted.{k}") not in sizes)
    wanted: dict[int, Hoisted] = {}
    for n in graph:
        leaves = n.id in fixed and (n.id in graph.escaping or any(u not in fixed for u in graph.users[n.id]))
        if not leaves or not fixed[n.id] or len(n.types) > 1 or _only_views(graph, n) or n.id in graph.escaping:
            continue
        if may_grow or n.type.max_nbytes <= sum(sizes[p] for p in fixed[n.id]):
            wanted[n.id] = Hoisted(next(names), tuple(sorted(fixed[n.id])), part(graph, n.refs, "prologue"))

    def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Value | None:
        return b.param(wanted[n.id].name, n.type.shape, n.type.dtype) if n.id in wanted else None

    return (rebuild(graph, replace, "hoist") if wanted else graph), tuple(wanted.values())


def _is_computable(n: Node) -> bool:
    """Whether `ref` can compute it now, and again in set_param: no run-time size decides it, and no extension that may be gone by then."""
    if n.op is Op.CUSTOM or not callable(n.row.ref):
        return False
    sizes = (d for t in n.types for d in t.shape if isinstance(d, SymDim))
    return not any(chain(sizes, n.attrs.symbolic(), (s for _, g in n.attrs.graphs() for s in g.symbols)))


def _only_views(graph: Graph, n: Node) -> bool:
    """A chain of views on one param costs nothing at run time."""
    while n.row.view is not None:
        n = graph[n.inputs[0]]
    return n.op in FIXED
