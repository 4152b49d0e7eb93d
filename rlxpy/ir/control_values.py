"""Derivatives of scan, while and cond: their graphs replayed node by node through the cells of the ops inside."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlxpy.ir.differentiate import V, filled, pull, push, replay, smooth, spread, together, tupled
from rlxpy.ir.dims import Dim


# ---- scan ----------------------------------------------------------------------------------------------------------
def scan_vjp(dy: Any, y: Any, *xs: V, body: Any, carries: int, mapped: int, length: Dim, reverse: bool) -> tuple[V | None, ...]:
    """Forwards once more, keeping what every step begins with; then the steps backwards."""
    from rlxpy.ir.trace import scan

    dys, ys = tupled(dy), tupled(y)
    init, parts, others = xs[:carries], xs[carries:carries + mapped], xs[carries + mapped:]
    ends, slices = ys[:carries], ys[carries:]

    def forward(c: tuple[V, ...], x: tuple[V, ...]) -> tuple[tuple[V, ...], tuple[V, ...]]:
        return replay(body, together(*c, *x, *others))[:carries], c

    def backward(state: tuple[list[V], list[V]], at: tuple[tuple[V, ...], tuple[V, ...], list[V]]) -> tuple[tuple[list[V], list[V]], list[V]]:
        (dc, dw), (c, x, given) = state, at
        made = pull(body, (*c, *x, *others), (*spread(dc, ends), *spread(given, slices)))
        first, middle = len(dc), len([v for v in x if smooth(v)])
        return (made[:first], [a + b for a, b in zip(dw, made[first + middle:], strict=True)]), made[first:first + middle]

    kept = scan(forward, init, parts, length, reverse=reverse)[1] if carries else ()
    start = filled(dys[:carries], ends), filled([None] * len(others), others)
    if not any(start) and not parts:
        return (None,) * len(xs)
    (dc, dw), dx = scan(backward, start, (kept, parts, filled(dys[carries:], slices)), length, reverse=not reverse)
    return (*spread(dc, init), *spread(dx, parts), *spread(dw, others))


def scan_jvp(dxs: Sequence[V | None], y: Any, *xs: V, body: Any, carries: int, mapped: int, length: Dim, reverse: bool) -> Any:
    """Values and tangents side by side."""
    from rlxpy.ir.trace import scan

    init, parts, others = xs[:carries], xs[carries:carries + mapped], xs[carries + mapped:]
    dw = dxs[carries + mapped:]

    def step(c: tuple[tuple[V, ...], list[V]], x: tuple[tuple[V, ...], list[V]]) -> tuple[tuple[tuple[V, ...], list[V]], list[V]]:
        outs, moved = push(body, (*c[0], *x[0], *others), (*spread(c[1], c[0]), *spread(x[1], x[0]), *dw))
        first = len(c[1])
        return (outs[:carries], moved[:first]), moved[first:]

    start, along = (init, filled(dxs[:carries], init)), (parts, filled(dxs[carries:carries + mapped], parts))
    (_, dc), dslices = scan(step, start, along, length, reverse=reverse)
    made = spread([*dc, *dslices], tupled(y))
    return made if isinstance(y, tuple) else made[0]


# ---- while and cond ------------------------------------------------------------------------------------------------
def while_jvp(dxs: Sequence[V | None], y: Any, *xs: V, cond: Any, body: Any) -> Any:
    from rlxpy.ir.trace import while_loop

    count = len(tupled(y))
    values, others, dw = xs[:count], xs[count:], dxs[count:]

    def step(s: tuple[tuple[V, ...], list[V]]) -> tuple[tuple[V, ...], list[V]]:
        return push(body, (*s[0], *others), (*spread(s[1], s[0]), *dw))

    _, moved = while_loop(lambda s: replay(cond, together(*s[0], *others))[0], step, (values, filled(dxs[:count], values)))
    made = spread(moved, tupled(y))
    return made if isinstance(y, tuple) else made[0]


def cond_vjp(dy: Any, y: Any, p: V, *xs: V, then: Any, otherwise: Any) -> tuple[V | None, ...]:
    from rlxpy.ir.trace import cond

    dys, count = filled(tupled(dy), tupled(y)), len(xs)
    if not any(map(smooth, xs)):
        return (None,) * (1 + count)

    def side(graph: Any) -> Callable[..., list[V]]:
        return lambda *given: pull(graph, given[:count], spread(given[count:], tupled(y)))

    return (None, *spread(cond(p, side(then), side(otherwise), *xs, *dys), xs))


def cond_jvp(dxs: Sequence[V | None], y: Any, p: V, *xs: V, then: Any, otherwise: Any) -> Any:
    from rlxpy.ir.trace import cond

    moving, count = filled(dxs[1:], xs), len(xs)

    def side(graph: Any) -> Callable[..., list[V]]:
        return lambda *given: push(graph, given[:count], spread(given[count:], xs))[1]

    made = spread(cond(p, side(then), side(otherwise), *xs, *moving) if any(map(smooth, tupled(y))) else [], tupled(y))
    return made if isinstance(y, tuple) else made[0]
