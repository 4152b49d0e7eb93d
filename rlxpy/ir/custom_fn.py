"""Functions with derivatives of their own: the op `rlx.fn`, whose graphs are the function and, where given, its derivatives."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlxpy.errors import BuildError, HookMismatch
from rlxpy.frozen import dataclass
from rlxpy.ir import hooks
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.control import run_graph, takes
from rlxpy.ir.differentiate import V, filled, pull, push, replay, smooth, spread, together, tupled
from rlxpy.ir.place import placed
from rlxpy.ir.row import OpRow
from rlxpy.ir.types import TensorType

if TYPE_CHECKING:
    from rlxpy.ir.graph import Graph

NAME = "rlx.fn"


@dataclass(frozen=True)
class Fn(Attrs):
    """`vjp` takes the cotangents of the smooth results, the results, the inputs, and gives cotangents of the smooth inputs; `jvp` takes
    tangents of the smooth inputs, the results, the inputs, and gives tangents of the smooth results."""

    body: Graph
    vjp: Graph | None = None
    jvp: Graph | None = None


# ---- the row -------------------------------------------------------------------------------------------------------
def fn_types(*ts: TensorType, body: Any, vjp: Any, jvp: Any) -> tuple[TensorType, ...]:
    if not body.outputs:
        raise BuildError("a function without a result", why="its body gives 0 values", fix="return one or more")
    takes(body, "body", ts)
    results = body.output_types
    for graph, field, moving, given in ((vjp, "vjp", results, ts), (jvp, "jvp", ts, results)):
        if graph is not None:
            takes(graph, field, (*filter(smooth, moving), *results, *ts))
            if graph.output_types != (wanted := tuple(filter(smooth, given))):
                raise BuildError(f"graph {field!r} gives {', '.join(map(str, graph.output_types)) or 'nothing'}", why=f"{', '.join(map(str, wanted)) or 'nothing'} is wanted",
                                 fix="a derivative for each that can have one")
    return tuple(results)


def fn_vjp(dy: Any, y: Any, *xs: V, body: Any, vjp: Any, jvp: Any) -> tuple[V | None, ...]:
    dys, ys = tupled(dy), tupled(y)
    return spread(pull(body, xs, dys) if vjp is None else replay(vjp, together(*filled(dys, ys), *ys, *xs)), xs)


def fn_jvp(dxs: Sequence[V | None], y: Any, *xs: V, body: Any, vjp: Any, jvp: Any) -> Any:
    ys = tupled(y)
    made = spread(push(body, xs, dxs)[1] if jvp is None else replay(jvp, together(*filled(dxs, xs), *ys, *xs)), ys)
    return made if isinstance(y, tuple) else made[0]


def _one(made: tuple[Any, ...]) -> Any: return made if len(made) > 1 else made[0]


ROW = OpRow((1, None), fn_types, None, ref=lambda *arrays, body, vjp, jvp: _one(run_graph(body, arrays)), lower=lambda *xs, body, vjp, jvp: _one(replay(body, together(*xs))),
            vjp=fn_vjp, jvp=fn_jvp, attrs=Fn, doc="a function with derivatives of its own")


# ---- how one writes it ---------------------------------------------------------------------------------------------
@placed
def custom_fn(body: Callable[..., Any], vjp: Callable[..., Any] | None = None, jvp: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`body`, a function of Values, with derivatives of its own where they are given: vjp(dy, y, *xs) and jvp(dxs, y, *xs), as in ir/row.py.

    It is given everything it depends on: a value from around it would have no derivative, and is refused.  Raises BuildError."""
    for name, f in (("body", body), ("vjp", vjp), ("jvp", jvp)):
        if f is not None and not callable(f):
            raise HookMismatch(f"custom_fn with {name}={f!r:.60}", why=f"{type(f).__name__} is no function", fix="give a function of Values")

    @placed
    def call(*xs: Any) -> Any:
        from rlxpy.ir.builder import Value

        owner = next((x.builder.home(xs) for x in xs if isinstance(x, Value)), None)
        if owner is None:
            raise BuildError("a function without a Value", why=f"it is given {', '.join(map(repr, xs))[:80] or 'nothing'}", fix="give Values of a graph")
        given = [x if isinstance(x, Value) else owner.lift(x, xs) for x in xs]
        return owner.emit("custom", *given, name=NAME, given=_traced([x.type for x in given], body, vjp, jvp))

    return call


def _traced(types: Sequence[TensorType], body: Callable[..., Any], vjp: Callable[..., Any] | None, jvp: Callable[..., Any] | None) -> Fn:
    """The three as graphs.  Raises HookMismatch where a derivative does not fit the body."""
    from rlxpy.ir.builder import Builder

    hooks.check_signature("the function", "body", body, len(types), (), ())
    b = Builder("body")
    graph = b.finish(*tupled(body(*_inputs(b, "x", types))))
    results = graph.output_types

    def derivative(name: str, f: Callable[..., Any] | None, moving: Sequence[TensorType], given: Sequence[TensorType], single: bool) -> Graph | None:
        if f is None:
            return None
        hooks.check_signature("the function", name, f, len(types), (), ())
        b = Builder(name)
        ds = spread(_inputs(b, "d", [t for t in moving if smooth(t)]), moving)
        ys, xs = tuple(_inputs(b, "y", results)), _inputs(b, "x", types)
        made = f(ds[0] if single else ds, _one(ys), *xs)
        hooks.check_results("the function", name, made, types, results)
        wanted = xs if name == "vjp" else ys
        return b.finish(*filled(tupled(made), wanted))

    return Fn(graph, derivative("vjp", vjp, results, types, len(results) == 1), derivative("jvp", jvp, types, results, False))


def _inputs(b: Any, name: str, types: Sequence[TensorType]) -> list[Any]:
    return [b.input(f"{name}{k}", *t) for k, t in enumerate(types)]
