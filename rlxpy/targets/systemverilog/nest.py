"""Loop nests: for every op of the subset, which axes it loops over and how a place in the nest becomes an address."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import Layout
from rlxpy.ir.op import Op
from rlxpy.ir.shapes import axis_of
from rlxpy.ir.types import TensorType

SPACE = ("d", "h", "w")


@dataclass(frozen=True)
class Axis:
    """One loop.  It walks `share` elements a turn along axis `of` of the result, or reduces when `of` is None."""

    name: str
    size: int
    of: int | None = None
    share: int = 1


@dataclass(frozen=True)
class Walk:
    """Address `offset` + the sum of each loop's index times its stride."""

    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Bound:
    """A place along an axis of the operand, which is there when 0 <= place < size."""

    name: str
    place: Walk
    size: int


@dataclass(frozen=True)
class Nest:
    """Loops from the outermost, those of the result before those that reduce: results come in the order of memory."""

    axes: tuple[Axis, ...]
    bounds: tuple[Bound, ...] = ()

    @property
    def cycles(self) -> int:
        """From start to done: one for each element, and one for the last to arrive."""
        turns = 1
        for axis in self.axes:
            turns *= axis.size
        return turns + 1

    @property
    def reduces(self) -> bool:
        return any(axis.of is None for axis in self.axes)

    def over_result(self, layout: Layout, shape: Sequence[int], rank: int) -> Walk:
        """How an operand of `shape`, broadcast to the result, is walked."""
        lead = rank - len(shape)
        return self.walk({lead + a: _int(s) for a, (d, s) in enumerate(zip(shape, layout.strides, strict=True)) if d != 1}, layout)

    def walk(self, by_axis: dict[int, int], layout: Layout, by_name: dict[str, int] | None = None, offset: int = 0) -> Walk:
        """Strides by axis of the result, and by name of a loop where that says more."""
        named = by_name or {}
        return Walk(tuple(named.get(a.name, 0 if a.of is None else by_axis.get(a.of, 0) * a.share) for a in self.axes), _int(layout.offset) + offset)


def elementwise(t: TensorType) -> Nest:
    return Nest(tuple(Axis(f"i{k}", _int(d), k) for k, d in enumerate(t.shape)))


def of_fold(graph: Graph, n: Node) -> Nest:
    """The nest of an op with terms."""
    x, out = graph.type(n.inputs[0]), n.type
    a: Any = n.attrs
    if n.op is Op.MATMUL:
        return Nest((*_result(out, ("m", "n")), Axis("k", _int(x.shape[-1]))))
    if n.op is Op.PAD:
        axes = _result(out, ())
        padded = ((k, _int(low)) for k, (low, high) in enumerate(zip(a.low, a.high, strict=True)) if low or high)
        return Nest(axes, tuple(Bound(axes[k].name, _unit(axes, axes[k].name, offset=-low), _int(x.shape[k])) for k, low in padded))
    if n.op in (Op.CONV, Op.MAX_POOL):
        return _windows(graph, n, x)
    reduced = {axis_of(k, x.rank) for k in a.axes}
    kept = [k for k in range(x.rank) if k not in reduced or a.keep]
    return Nest((*(Axis(f"i{k}", _int(d), at) for at, (k, d) in enumerate(zip(kept, out.shape, strict=True))), *(Axis(f"r{k}", _int(x.shape[k])) for k in sorted(reduced))))


def of_operand(graph: Graph, n: Node, nest: Nest, which: int, layout: Layout) -> Walk:
    """How a fold walks one of its operands."""
    t, out = graph.type(n.inputs[which]), n.type
    a: Any = n.attrs
    s = tuple(map(_int, layout.strides))
    if n.op is Op.MATMUL:
        lead = {out.rank - t.rank + k: s[k] for k in range(t.rank - 2) if t.shape[k] != 1}
        return nest.walk(lead | ({out.rank - 2: s[-2]} if which == 0 else {out.rank - 1: s[-1]}), layout, {"k": s[-1] if which == 0 else s[-2]})
    if n.op is Op.PAD:
        return nest.walk(dict(enumerate(s)), layout, offset=-sum(_int(low) * stride for low, stride in zip(a.low, s, strict=True)))
    if n.op in (Op.CONV, Op.MAX_POOL):
        return _in_windows(n, nest, which, layout, s)
    reduced = [axis_of(k, t.rank) for k in a.axes]
    kept = [k for k in range(t.rank) if a.keep or k not in reduced]
    return nest.walk({at: 0 if k in reduced else s[k] for at, k in enumerate(kept)}, layout, {f"r{k}": s[k] for k in reduced})


def _windows(graph: Graph, n: Node, x: TensorType) -> Nest:
    a: Any = n.attrs
    space = SPACE[-len(a.strides):]
    size, channels, reduced = _channels(graph, n)
    axes = (Axis("n", _int(n.type.shape[0]), 0), *channels, *(Axis(name, _int(d), 2 + k) for k, (name, d) in enumerate(zip(space, n.type.shape[2:], strict=True))),
            *reduced, *(Axis(f"k{name}", k) for name, k in zip(space, size, strict=True)))
    padded = ((k, name) for k, name in enumerate(space) if a.low[k] or a.high[k])
    return Nest(axes, tuple(Bound(name, _unit(axes, name, a.strides[k], f"k{name}", a.dilation[k], -a.low[k]), _int(x.shape[2 + k])) for k, name in padded))


def _channels(graph: Graph, n: Node) -> tuple[tuple[int, ...], tuple[Axis, ...], tuple[Axis, ...]]:
    """The window's size, and the loops over channels: of the result, and those that reduce."""
    a: Any = n.attrs
    if n.op is Op.MAX_POOL:
        return a.size, (Axis("c", _int(n.type.shape[1]), 1),), ()
    w, shared = graph.type(n.inputs[1]), _int(n.type.shape[1]) // a.groups
    groups = (Axis("g", a.groups, 1, shared),) if a.groups > 1 else ()
    return tuple(map(_int, w.shape[2:])), (*groups, Axis("o", shared, 1)), (Axis("c", _int(w.shape[1])),)


def _in_windows(n: Node, nest: Nest, which: int, layout: Layout, s: tuple[int, ...]) -> Walk:
    """x is walked by windows, the weights of a convolution by what lies in one."""
    a: Any = n.attrs
    space = SPACE[-len(a.strides):]
    sizes = {axis.name: axis.size for axis in nest.axes}
    if which == 1:
        inside = {f"k{name}": s[2 + k] for k, name in enumerate(space)}
        return nest.walk({1: s[0]}, layout, inside | {"c": s[1]})
    names = {name: s[2 + k] * a.strides[k] for k, name in enumerate(space)} | {f"k{name}": s[2 + k] * a.dilation[k] for k, name in enumerate(space)}
    channels = {"o": 0, "g": s[1] * sizes["c"], "c": s[1]} if n.op is Op.CONV else {}
    return nest.walk({0: s[0], 1: s[1]}, layout, names | channels, -sum(low * s[2 + k] for k, low in enumerate(a.low)))


def _unit(axes: Sequence[Axis], name: str, stride: int = 1, inner: str = "", step: int = 0, offset: int = 0) -> Walk:
    """A place along one axis: that of the result's loop, and within a window."""
    return Walk(tuple(stride if a.name == name else step if a.name == inner else 0 for a in axes), offset)


def _result(t: TensorType, last: Sequence[str]) -> tuple[Axis, ...]:
    """Loops over the result, the last ones with names of their own."""
    lead = t.rank - len(last)
    return tuple(Axis(f"i{k}" if k < lead else last[k - lead], _int(d), k) for k, d in enumerate(t.shape))


def _int(d: Any) -> int: return int(d)  # sizes of the subset are not symbolic
