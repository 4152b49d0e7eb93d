"""Loops and branches written as Python functions on Values: each function is run once, on the inputs of a graph of its own."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir.builder import INSIDE, Builder, Value
from rlxpy.ir.dims import Dim
from rlxpy.ir.graph import Graph, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.place import placed

Tree = Any  # a Value, None, or a tuple, list or dict of trees


class Body(Builder):
    """The graph of one function.  A value of a graph around it becomes an input when it is used: `captured` lists those, in order."""

    def __init__(self, name: str, parent: Builder) -> None:
        super().__init__(name)
        self.parent: Builder = parent
        self.scope_path = parent.scope_path
        self.captured: list[Value] = []
        self._taken: dict[Ref, Value] = {}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        token = INSIDE.set(self)
        try:
            yield
        finally:
            INSIDE.reset(token)

    def adopt(self, x: Any) -> Value:
        if isinstance(x, Value) and x.builder is not self and x.builder in self.around():
            outer = self.parent.adopt(x)
            if outer.node.op is Op.CONST:
                return Value(self, Ref(self.put(outer.node, ())))
            if outer.ref not in self._taken:
                self._taken[outer.ref] = self.input(f"captured{len(self.captured)}", *outer.type)
                self.captured.append(outer)
            return self._taken[outer.ref]
        return super().adopt(x)

    def closed(self, outputs: Sequence[Value], operands: Sequence[Value]) -> Graph:
        """The graph with all `operands`, in their order, behind the function's own inputs: those that it captured, and those it has no use for."""
        graph = self.finish(*map(self.adopt, outputs))
        b, own = Builder(self.name), len(graph.inputs) - len(self.captured)
        xs = [b.input(n.name, *n.type) for n in graph.inputs[:own]]
        more = {v.ref: b.input(f"captured{k}", *v.type) for k, v in enumerate(operands)}
        made = b.inline(graph, [*xs, *(more[v.ref] for v in self.captured)])
        return b.finish(*(made if isinstance(made, tuple) else (made,)))


@placed
def scan(f: Callable[[Tree, Tree], tuple[Tree, Tree]], init: Tree, xs: Tree = None, length: Dim | None = None, *, reverse: bool = False) -> tuple[Tree, Tree]:
    """`carry, ys = scan(f, init, xs)`: f(carry, x) -> (carry, y) for every slice x of xs along axis 0, beginning with `init`; ys are the y, stacked.

    Without xs say how many steps: `length`.  f may use any value from around it.  Raises BuildError."""
    carry, mapped = leaves(init, "init"), leaves(xs, "xs")
    owner = _owner((*carry, *mapped), "scan")
    if mapped and not mapped[0].shape:
        raise BuildError(f"scan over {mapped[0].type}", why="a scalar has no slices", fix="map over an axis, or give length=")
    steps = length if length is not None else mapped[0].shape[0] if mapped else None
    if steps is None:
        raise BuildError("scan without a length", why="there is nothing to map over", fix="give length=")
    body = Body("body", owner)
    with body.tracing():
        args = [body.input(f"carry{k}", *v.type) for k, v in enumerate(carry)]
        parts = [body.input(f"x{k}", v.shape[1:], v.dtype) for k, v in enumerate(mapped)]
        made = f(like(init, args), like(xs, parts))
    if not isinstance(made, tuple) or len(made) != 2:
        raise BuildError(f"the function of a scan gives {type(made).__name__}", why="a pair is wanted", fix="return carry, y; y may be None")
    _same_tree(made[0], init, "the carry that the function returns", "init")
    results = [*leaves(made[0], "carry"), *(y := leaves(made[1], "y"))]
    graph = body.closed(results, body.captured)
    out = _emitted(owner, Op.SCAN, (*carry, *mapped, *body.captured), body=graph, carries=len(carry), mapped=len(mapped), length=steps, reverse=reverse)
    return like(init, out[:len(carry)]), like(made[1], out[len(out) - len(y):])


@placed
def while_loop(cond: Callable[[Tree], Value], body: Callable[[Tree], Tree], init: Tree) -> Tree:
    """init, body(init), body(body(init)), ..: the first of which cond does not hold."""
    values = leaves(init, "init")
    owner = _owner(values, "while_loop")
    asks, does = Body("cond", owner), Body("body", owner)
    with asks.tracing():
        verdict = cond(like(init, [asks.input(f"carry{k}", *v.type) for k, v in enumerate(values)]))
    with does.tracing():
        made = body(like(init, [does.input(f"carry{k}", *v.type) for k, v in enumerate(values)]))
    _same_tree(made, init, "what the body returns", "init")
    asked, results = leaves(verdict, "cond"), leaves(made, "body")
    asked, results = [asks.adopt(v) for v in asked], [does.adopt(v) for v in results]
    others = _union(asks, does)
    return like(init, _emitted(owner, Op.WHILE, (*values, *others), cond=asks.closed(asked, others), body=does.closed(results, others)))


@placed
def cond(p: Value, then: Callable[..., Tree], otherwise: Callable[..., Tree], *args: Tree) -> Tree:
    """then(*args) where the scalar p is true, otherwise(*args) where it is not; only that one runs."""
    given = leaves(args, "args")
    owner = _owner((p, *given), "cond")
    made: list[tuple[Body, Tree, list[Value]]] = []
    for name, f in (("then", then), ("otherwise", otherwise)):
        side = Body(name, owner)
        with side.tracing():
            tree = f(*like(args, [side.input(f"x{k}", *v.type) for k, v in enumerate(given)]))
        made.append((side, tree, [side.adopt(v) for v in leaves(tree, name)]))
    (yes, tree, _), (no, other, _) = made
    _same_tree(other, tree, "what `otherwise` returns", "what `then` returns")
    others = _union(yes, no)
    graphs = {side.name: side.closed(results, others) for side, _, results in made}
    return like(tree, _emitted(owner, Op.COND, (p, *given, *others), **graphs))


# ---- trees ---------------------------------------------------------------------------------------------------------
def leaves(tree: Tree, what: str) -> list[Value]:
    """Its Values, in order.  Raises BuildError for a leaf that is none."""
    if tree is None:
        return []
    if isinstance(tree, (tuple, list)):
        return [v for part in tree for v in leaves(part, what)]
    if isinstance(tree, dict):
        return [v for part in tree.values() for v in leaves(part, what)]
    if not isinstance(tree, Value):
        raise BuildError(f"{what} holds {tree!r:.80}", why=f"{type(tree).__name__} is not a value of a graph", fix="wrap it: builder.const(...)")
    return [tree]


def like(tree: Tree, values: Sequence[Value]) -> Tree:
    """The tree with other values at its leaves."""
    rest = iter(values)

    def rebuilt(part: Tree) -> Tree:
        if part is None:
            return None
        if isinstance(part, dict):
            return {k: rebuilt(v) for k, v in part.items()}
        if isinstance(part, (tuple, list)):
            made = [rebuilt(v) for v in part]
            return made if isinstance(part, list) else type(part)(*made) if hasattr(part, "_fields") else tuple(made)
        return next(rest)

    return rebuilt(tree)


def _outline(tree: Tree) -> Any:
    if isinstance(tree, dict):
        return {k: _outline(v) for k, v in tree.items()}
    return tuple(map(_outline, tree)) if isinstance(tree, (tuple, list)) else None if tree is None else "*"


def _same_tree(tree: Tree, wanted: Tree, what: str, other: str) -> None:
    if _outline(tree) != _outline(wanted):
        raise BuildError(f"{what} is built as {_outline(tree)}", why=f"{other} is built as {_outline(wanted)}", fix="return the same tuples in the same order")


# ---- graphs --------------------------------------------------------------------------------------------------------
def _owner(values: Sequence[Value], what: str) -> Builder:
    """The graph that a loop belongs to."""
    if not values:
        raise BuildError(f"{what} of nothing", why="0 values are given", fix="give one value or more")
    return values[0].builder.home(values)


def _union(*bodies: Body) -> list[Value]:
    """What any of them captured, once each."""
    return list({v.ref: v for b in bodies for v in b.captured}.values())


def _emitted(owner: Builder, op: Op, xs: Sequence[Value], **attrs: Any) -> tuple[Value, ...]:
    made = owner.emit(op, *xs, **attrs)
    return made if isinstance(made, tuple) else (made,)
