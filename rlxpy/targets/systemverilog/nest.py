"""Loop nests: for every op of the subset, which axes it loops over and how a place in the nest becomes an address."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

from rlxpy.frozen import dataclass
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
        return prod(a.size for a in self.axes) + 1

    @property
    def reduces(self) -> bool:
        return any(axis.of is None for axis in self.axes)

    def over_result(self, layout: Layout, shape: Sequence[int], rank: int) -> Walk:
        """How an operand of `shape`, broadcast to the result, is walked."""
        lead = rank - len(shape)
        return self.walk({lead + a: _int(s) for a, (d, s) in enumerate(zip(shape, layout.strides, strict=True)) if d != 1}, layout)

    def walk(self, by_axis: Mapping[int, int], layout: Layout, by_name: Mapping[str, int] = MappingProxyType({}), offset: int = 0) -> Walk:
        """Strides by axis of the result, and by name of a loop where that says more."""
        return Walk(tuple(by_name.get(a.name, 0 if a.of is None else by_axis.get(a.of, 0) * a.share) for a in self.axes), _int(layout.offset) + offset)


Made: TypeAlias = tuple[Nest, tuple[Walk, ...]]


def elementwise(t: TensorType) -> Nest:
    return Nest(tuple(Axis(f"i{k}", _int(d), k) for k, d in enumerate(t.shape)))


def of_fold(graph: Graph, n: Node, layouts: Sequence[Layout]) -> Made:
    """The nest of an op with terms, and how it walks each operand, which lies in a layout."""
    return NESTS[n.op](n.type, [graph.type(r) for r in n.inputs], layouts, n.attrs)


def _matmul(out: TensorType, ts: Sequence[TensorType], layouts: Sequence[Layout], a: Any) -> Made:
    nest = Nest((*_result(out, ("m", "n")), Axis("k", _int(ts[0].shape[-1]))))

    def walk(which: int, own: int, shared: int) -> Walk:
        t, s = ts[which], _strides(layouts[which])
        lead = {out.rank - t.rank + k: s[k] for k in range(t.rank - 2) if t.shape[k] != 1}
        return nest.walk(lead | {out.rank + own: s[own]}, layouts[which], {"k": s[shared]})

    return nest, (walk(0, -2, -1), walk(1, -1, -2))


def _pad(out: TensorType, ts: Sequence[TensorType], layouts: Sequence[Layout], a: Any) -> Made:
    axes, s = _result(out, ()), _strides(layouts[0])
    padded = [(axes[k].name, _int(low), _int(ts[0].shape[k])) for k, (low, high) in enumerate(zip(a.low, a.high, strict=True)) if low or high]
    nest = Nest(axes, tuple(Bound(name, _along(axes, {name: 1}, -low), size) for name, low, size in padded))
    return nest, (nest.walk(dict(enumerate(s)), layouts[0], offset=-sum(_int(low) * stride for low, stride in zip(a.low, s, strict=True))),)


def _reduction(out: TensorType, ts: Sequence[TensorType], layouts: Sequence[Layout], a: Any) -> Made:
    x, s = ts[0], _strides(layouts[0])
    reduced = sorted({axis_of(k, x.rank) for k in a.axes})
    kept = [k for k in range(x.rank) if a.keep or k not in reduced]
    nest = Nest((*(Axis(f"i{k}", _int(d), at) for at, (k, d) in enumerate(zip(kept, out.shape, strict=True))), *(Axis(f"r{k}", _int(x.shape[k])) for k in reduced)))
    return nest, (nest.walk({at: s[k] for at, k in enumerate(kept) if k not in reduced}, layouts[0], {f"r{k}": s[k] for k in reduced}),)


def _max_pool(out: TensorType, ts: Sequence[TensorType], layouts: Sequence[Layout], a: Any) -> Made:
    nest = _windows(out, ts[0], (Axis("c", _int(out.shape[1]), 1),), (), a.size, a)
    return nest, (_in_windows(nest, layouts[0], {}, a),)


def _conv(out: TensorType, ts: Sequence[TensorType], layouts: Sequence[Layout], a: Any) -> Made:
    """Groups are a loop of their own around the channels of one: the place of a channel among all is a sum then."""
    w, shared, (s, sw) = ts[1], _int(out.shape[1]) // a.groups, map(_strides, layouts)
    groups = (Axis("g", a.groups, 1, shared),) if a.groups > 1 else ()
    nest = _windows(out, ts[0], (*groups, Axis("o", shared, 1)), (Axis("c", _int(w.shape[1])),), tuple(map(_int, w.shape[2:])), a)
    x = _in_windows(nest, layouts[0], {"o": 0, "g": s[1] * _int(w.shape[1]), "c": s[1]}, a)
    return nest, (x, nest.walk({1: sw[0]}, layouts[1], {"c": sw[1]} | {f"k{name}": sw[2 + k] for k, name in enumerate(_space(a))}))


def _windows(out: TensorType, x: TensorType, channels: Sequence[Axis], reduced: Sequence[Axis], size: Sequence[int], a: Any) -> Nest:
    """Batch, channels, places of windows; then what reduces, and the places in a window."""
    space = _space(a)
    axes = (Axis("n", _int(out.shape[0]), 0), *channels, *(Axis(name, _int(out.shape[2 + k]), 2 + k) for k, name in enumerate(space)),
            *reduced, *(Axis(f"k{name}", k) for name, k in zip(space, size, strict=True)))
    padded = [(k, name) for k, name in enumerate(space) if a.low[k] or a.high[k]]
    return Nest(axes, tuple(Bound(name, _along(axes, {name: a.strides[k], f"k{name}": a.dilation[k]}, -a.low[k]), _int(x.shape[2 + k])) for k, name in padded))


def _in_windows(nest: Nest, layout: Layout, channels: Mapping[str, int], a: Any) -> Walk:
    s, space = _strides(layout), list(enumerate(_space(a), 2))
    within = {name: s[k] * a.strides[k - 2] for k, name in space} | {f"k{name}": s[k] * a.dilation[k - 2] for k, name in space}
    return nest.walk({0: s[0], 1: s[1]}, layout, {**within, **channels}, -sum(low * s[k] for k, low in enumerate(a.low, 2)))


NESTS: Mapping[Op, Callable[[TensorType, Sequence[TensorType], Sequence[Layout], Any], Made]] = {
    Op.MATMUL: _matmul, Op.CONV: _conv, Op.MAX_POOL: _max_pool, Op.PAD: _pad, Op.SUM: _reduction, Op.MAX: _reduction, Op.MIN: _reduction,
}


def _along(axes: Sequence[Axis], steps: Mapping[str, int], offset: int) -> Walk:
    """A place along one axis of an operand, by steps of loops."""
    return Walk(tuple(steps.get(a.name, 0) for a in axes), offset)


def _result(t: TensorType, last: Sequence[str]) -> tuple[Axis, ...]:
    """Loops over the result, the last ones with names of their own."""
    lead = t.rank - len(last)
    return tuple(Axis(f"i{k}" if k < lead else last[k - lead], _int(d), k) for k, d in enumerate(t.shape))


def _space(a: Any) -> tuple[str, ...]: return SPACE[-len(a.strides):]
def _strides(layout: Layout) -> tuple[int, ...]: return tuple(map(_int, layout.strides))
def _int(d: Any) -> int: return int(d)  # sizes of the subset are not symbolic
