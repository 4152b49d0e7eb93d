"""Derivatives of whole graphs, node by node: an op's own rule, else the derivatives of what it is made of, else an error that names it."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlxpy.errors import HookMismatch, NonDifferentiableError
from rlxpy.ir import hooks
from rlxpy.ir.derivatives import zeros
from rlxpy.ir.row import Why

V = Any  # a Value (see ir/lowerings.py)


def smooth(v: V) -> bool:
    """Whether a value (or a type) can have a derivative."""
    return bool(v.dtype.is_float or v.dtype.is_complex)


def tupled(made: Any) -> tuple[Any, ...]: return made if isinstance(made, tuple) else (made,)
def filled(ds: Sequence[V | None], like: Sequence[V]) -> list[V]: return [zeros(v) if d is None else d for d, v in zip(ds, like, strict=True) if smooth(v)]


def spread(ds: Sequence[V], like: Sequence[V]) -> tuple[V | None, ...]:
    """What stands for the smooth ones among `like`, None for the others."""
    rest = iter(ds)
    return tuple(next(rest) if smooth(v) else None for v in like)


def values(graph: Any, xs: Sequence[V]) -> dict[Any, V]:
    """Every value of the graph on other inputs, by its place in the graph."""
    home = xs[0].builder
    new = {n.refs[0]: x for n, x in zip(graph.inputs, xs, strict=True)}
    for n in graph:
        if n.refs[0] not in new:
            new |= zip(n.refs, home.copy(n, [new[r] for r in n.inputs]), strict=True)
    return new


def replay(graph: Any, xs: Sequence[V]) -> tuple[V, ...]:
    """The graph's outputs on other inputs."""
    new = values(graph, xs)
    return tuple(new[r] for r in graph.outputs)


def together(*vs: V | None) -> list[Any]:
    """All as values of the innermost graph among theirs."""
    there = [v for v in vs if v is not None]
    home = there[0].builder.home(there)
    return [None if v is None else home.adopt(v) for v in vs]


# ---- one node ------------------------------------------------------------------------------------------------------
def vjp(node: Any, dys: Sequence[V | None], ys: Sequence[V], xs: Sequence[V]) -> tuple[V | None, ...]:
    """Cotangents of a node's inputs; at least one of dys is not None.  Raises NonDifferentiableError."""
    if cell := _rule(node, "vjp"):
        one = len(ys) == 1
        return tupled(_checked(node, "vjp", cell(dys[0] if one else tuple(dys), ys[0] if one else tuple(ys), *xs, **node.attrs.params()), xs))
    return spread(pull(_lowered(node, xs), xs, dys), xs)


def jvp(node: Any, dxs: Sequence[V | None], ys: Sequence[V], xs: Sequence[V]) -> tuple[V | None, ...]:
    """Tangents of a node's outputs; at least one of dxs is not None.  Raises NonDifferentiableError."""
    if cell := _rule(node, "jvp"):
        return tupled(_checked(node, "jvp", cell(tuple(dxs), ys[0] if len(ys) == 1 else tuple(ys), *xs, **node.attrs.params()), xs))
    return spread(push(_lowered(node, xs), xs, dxs)[1], ys)


def _rule(node: Any, name: str) -> Callable[..., Any] | None:
    """The op's own rule; None where its lowering can be differentiated instead."""
    cell = getattr(node.row, name)
    if callable(cell):
        return cell  # type: ignore[no-any-return]
    if isinstance(cell, Why) or not callable(node.row.lower):
        raise NonDifferentiableError(f"no {name} goes through {node.label}", where=node.where,
                                     why=cell.reason if isinstance(cell, Why) else f"it has no {name} rule, and no lowering to differentiate instead",
                                     fix="give the op a rule, or keep what has a derivative away from it")
    return None


def _checked(node: Any, name: str, made: Any, xs: Sequence[V]) -> Any:
    """Rules of extensions are others' code."""
    try:
        hooks.check_results(node.label, name, made, [x.type for x in xs], node.types)
    except HookMismatch as e:
        raise e.at(node.where) from None
    return made


def _lowered(node: Any, xs: Sequence[V]) -> Any:
    """What the node is made of, as a graph of its own."""
    from rlxpy.ir.builder import Builder

    b = Builder(node.label)
    made = node.row.lower(*(b.input(f"x{k}", *x.type) for k, x in enumerate(xs)), **node.attrs.params())
    return b.finish(*tupled(made))


# ---- one graph -----------------------------------------------------------------------------------------------------
# What is found is kept by place in the graph: values would not do, since one inside may equal an input, and is then the same node.
def pull(graph: Any, xs: Sequence[V], dys: Sequence[V | None]) -> list[V]:
    """Cotangents of the smooth inputs, from those of the outputs."""
    every = together(*xs, *dys)
    new, found = values(graph, every[:len(xs)]), dict[Any, V]()

    def add(refs: Sequence[Any], ds: Sequence[V | None]) -> None:
        for r, d in zip(refs, ds, strict=True):
            if d is not None and smooth(new[r]):
                found[r] = found[r] + d if r in found else d

    add(graph.outputs, every[len(xs):])
    for n in reversed(graph.nodes):
        ds = tuple(found.get(r) for r in n.refs)
        if n.inputs and any(d is not None for d in ds):
            add(n.inputs, vjp(n, ds, [new[r] for r in n.refs], [new[r] for r in n.inputs]))
    return filled([found.get(n.refs[0]) for n in graph.inputs], every[:len(xs)])


def push(graph: Any, xs: Sequence[V], dxs: Sequence[V | None]) -> tuple[tuple[V, ...], list[V]]:
    """The outputs, and the tangents of those that are smooth."""
    every = together(*xs, *dxs)
    new = values(graph, every[:len(xs)])
    found: dict[Any, V | None] = dict(zip((n.refs[0] for n in graph.inputs), every[len(xs):], strict=True))
    for n in graph:
        ds, made = tuple(found.get(r) for r in n.inputs), [new[r] for r in n.refs]
        if any(d is not None for d in ds) and any(map(smooth, made)):
            found |= zip(n.refs, jvp(n, ds, made, [new[r] for r in n.inputs]), strict=True)
    outs = tuple(new[r] for r in graph.outputs)
    return outs, filled([found.get(r) for r in graph.outputs], outs)
