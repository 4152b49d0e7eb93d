"""Derivatives of scan, while and cond: their graphs replayed node by node through the cells of the ops inside."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlxpy.errors import NonDifferentiableError
from rlxpy.ir.derivatives import zeros
from rlxpy.ir.dims import Dim

V = Any  # a Value (see ir/lowerings.py)


def _smooth(v: V) -> bool: return bool(v.dtype.is_float or v.dtype.is_complex)
def _tuple(made: Any) -> tuple[Any, ...]: return made if isinstance(made, tuple) else (made,)
def _filled(ds: Sequence[V | None], like: Sequence[V]) -> list[V]: return [zeros(v) if d is None else d for d, v in zip(ds, like, strict=True) if _smooth(v)]


def _spread(ds: Sequence[V], like: Sequence[V]) -> tuple[V | None, ...]:
    """What stands for the smooth ones among `like`, None for the others."""
    rest = iter(ds)
    return tuple(next(rest) if _smooth(v) else None for v in like)


# ---- one graph -----------------------------------------------------------------------------------------------------
def replay(graph: Any, xs: Sequence[V], visit: Callable[[Any, list[V], tuple[V, ...]], None] = lambda node, xs, ys: None) -> tuple[V, ...]:
    """The graph's outputs on other inputs.  visit: (node, its inputs, its outputs), in order."""
    home = xs[0].builder
    new = {n.refs[0]: x for n, x in zip(graph.inputs, xs, strict=True)}
    for n in graph:
        if n.refs[0] not in new:
            ins = [new[r] for r in n.inputs]
            outs = home.copy(n, ins)
            new |= zip(n.refs, outs, strict=True)
            visit(n, ins, outs)
    return tuple(new[r] for r in graph.outputs)


def _together(*vs: V | None) -> list[Any]:
    """All as values of the innermost graph among theirs."""
    there = [v for v in vs if v is not None]
    home = there[0].builder.home(there)
    return [None if v is None else home.adopt(v) for v in vs]


def _cell(node: Any, name: str) -> Callable[..., Any]:
    cell = getattr(node.row, name)
    if not callable(cell):
        raise NonDifferentiableError(f"no {name} goes through {node.label}", where=node.where, why=getattr(cell, "reason", f"its {name} is not written"))
    return cell  # type: ignore[no-any-return]


def pull(graph: Any, xs: Sequence[V], dys: Sequence[V | None]) -> list[V]:
    """Cotangents of the smooth inputs, from those of the outputs."""
    every = _together(*xs, *dys)
    xs, dys = every[:len(xs)], every[len(xs):]
    seen: list[tuple[Any, list[V], tuple[V, ...]]] = []
    outs = replay(graph, xs, lambda *step: seen.append(step))
    found: dict[Any, V] = {}

    def add(vs: Sequence[V], ds: Sequence[V | None]) -> None:
        for v, d in zip(vs, ds, strict=True):
            if d is not None and _smooth(v):
                found[v.ref] = found[v.ref] + d if v.ref in found else d

    add(outs, dys)
    for node, ins, made in reversed(seen):
        ds = tuple(found.get(v.ref) for v in made)
        if ins and any(d is not None for d in ds):
            one = len(made) == 1
            add(ins, _cell(node, "vjp")(ds[0] if one else ds, made[0] if one else made, *ins, **node.attrs.params()))
    return _filled([found.pop(x.ref, None) for x in xs], xs)


def push(graph: Any, xs: Sequence[V], dxs: Sequence[V | None]) -> tuple[tuple[V, ...], list[V]]:
    """The outputs, and the tangents of those that are smooth."""
    every = _together(*xs, *dxs)
    xs, dxs = every[:len(xs)], every[len(xs):]
    found = {x.ref: d for x, d in zip(xs, dxs, strict=True) if d is not None}

    def visit(node: Any, ins: list[V], made: tuple[V, ...]) -> None:
        ds = tuple(found.get(v.ref) for v in ins)
        if any(d is not None for d in ds) and any(map(_smooth, made)):
            moved = _cell(node, "jvp")(ds, made[0] if len(made) == 1 else made, *ins, **node.attrs.params())
            found.update((v.ref, d) for v, d in zip(made, _tuple(moved), strict=True) if d is not None)

    outs = replay(graph, xs, visit)
    return outs, _filled([found.get(v.ref) for v in outs], outs)


# ---- scan ----------------------------------------------------------------------------------------------------------
def scan_vjp(dy: Any, y: Any, *xs: V, body: Any, carries: int, mapped: int, length: Dim, reverse: bool) -> tuple[V | None, ...]:
    """Forwards once more, keeping what every step begins with; then the steps backwards."""
    from rlxpy.ir.trace import scan

    dys, ys = _tuple(dy), _tuple(y)
    init, parts, others = xs[:carries], xs[carries:carries + mapped], xs[carries + mapped:]
    ends, slices = ys[:carries], ys[carries:]

    def forward(c: tuple[V, ...], x: tuple[V, ...]) -> tuple[tuple[V, ...], tuple[V, ...]]:
        return replay(body, _together(*c, *x, *others))[:carries], c

    def backward(state: tuple[list[V], list[V]], at: tuple[tuple[V, ...], tuple[V, ...], list[V]]) -> tuple[tuple[list[V], list[V]], list[V]]:
        (dc, dw), (c, x, given) = state, at
        made = pull(body, (*c, *x, *others), (*_spread(dc, ends), *_spread(given, slices)))
        first, middle = len(dc), len([v for v in x if _smooth(v)])
        return (made[:first], [a + b for a, b in zip(dw, made[first + middle:], strict=True)]), made[first:first + middle]

    kept = scan(forward, init, parts, length, reverse=reverse)[1] if carries else ()
    start = _filled(dys[:carries], ends), _filled([None] * len(others), others)
    if not any(start) and not parts:
        return (None,) * len(xs)
    (dc, dw), dx = scan(backward, start, (kept, parts, _filled(dys[carries:], slices)), length, reverse=not reverse)
    return (*_spread(dc, init), *_spread(dx, parts), *_spread(dw, others))


def scan_jvp(dxs: Sequence[V | None], y: Any, *xs: V, body: Any, carries: int, mapped: int, length: Dim, reverse: bool) -> Any:
    """Values and tangents side by side."""
    from rlxpy.ir.trace import scan

    init, parts, others = xs[:carries], xs[carries:carries + mapped], xs[carries + mapped:]
    dw = dxs[carries + mapped:]

    def step(c: tuple[tuple[V, ...], list[V]], x: tuple[tuple[V, ...], list[V]]) -> tuple[tuple[tuple[V, ...], list[V]], list[V]]:
        outs, moved = push(body, (*c[0], *x[0], *others), (*_spread(c[1], c[0]), *_spread(x[1], x[0]), *dw))
        first = len(c[1])
        return (outs[:carries], moved[:first]), moved[first:]

    start, along = (init, _filled(dxs[:carries], init)), (parts, _filled(dxs[carries:carries + mapped], parts))
    (_, dc), dslices = scan(step, start, along, length, reverse=reverse)
    made = _spread([*dc, *dslices], _tuple(y))
    return made if isinstance(y, tuple) else made[0]


# ---- while and cond ------------------------------------------------------------------------------------------------
def while_jvp(dxs: Sequence[V | None], y: Any, *xs: V, cond: Any, body: Any) -> Any:
    from rlxpy.ir.trace import while_loop

    count = len(_tuple(y))
    values, others, dw = xs[:count], xs[count:], dxs[count:]

    def step(s: tuple[tuple[V, ...], list[V]]) -> tuple[tuple[V, ...], list[V]]:
        return push(body, (*s[0], *others), (*_spread(s[1], s[0]), *dw))

    _, moved = while_loop(lambda s: replay(cond, _together(*s[0], *others))[0], step, (values, _filled(dxs[:count], values)))
    made = _spread(moved, _tuple(y))
    return made if isinstance(y, tuple) else made[0]


def cond_vjp(dy: Any, y: Any, p: V, *xs: V, then: Any, otherwise: Any) -> tuple[V | None, ...]:
    from rlxpy.ir.trace import cond

    dys, count = _filled(_tuple(dy), _tuple(y)), len(xs)
    if not any(map(_smooth, xs)):
        return (None,) * (1 + count)

    def side(graph: Any) -> Callable[..., list[V]]:
        return lambda *given: pull(graph, given[:count], _spread(given[count:], _tuple(y)))

    return (None, *_spread(cond(p, side(then), side(otherwise), *xs, *dys), xs))


def cond_jvp(dxs: Sequence[V | None], y: Any, p: V, *xs: V, then: Any, otherwise: Any) -> Any:
    from rlxpy.ir.trace import cond

    moving, count = _filled(dxs[1:], xs), len(xs)

    def side(graph: Any) -> Callable[..., list[V]]:
        return lambda *given: push(graph, given[:count], _spread(given[count:], xs))[1]

    made = _spread(cond(p, side(then), side(otherwise), *xs, *moving) if any(map(_smooth, _tuple(y))) else [], _tuple(y))
    return made if isinstance(y, tuple) else made[0]
