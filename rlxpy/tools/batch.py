"""Many sample calls as one graph, so that one compile serves them all, with operands that are views; and how far results are from what is meant."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph
from rlxpy.tools.equivalence import SLACK, distance
from rlxpy.tools.samples import Sample, plain

NARROW_SLACK = 4  # roundings of a type whose ops calculate in f32
STORED = frozenset({DType.F32, DType.BF16, DType.BOOL})  # one of each way to lie in memory


@dataclass(frozen=True)
class View:
    """An operand as a walk over other memory.  feed: the array that lies there; see: the operand, seen in the graph; means: its value."""

    name: str
    feed: Callable[[Array], Array]
    see: Callable[[Value, tuple[int, ...]], Value]
    means: Callable[[Array], Array] = lambda a: a


def _stepped(a: Array) -> Array:
    """Every second element of the last axis; what lies between must not be read."""
    wide = np.repeat(a, 2, -1)
    wide[..., 1::2] = np.ones((), a.dtype)
    return wide


AS_MADE = View("as made", lambda a: a, lambda x, shape: x)
VIEWS = (
    View("transposed", lambda a: a.T, lambda x, shape: x.transpose(perm=tuple(reversed(range(len(shape)))))),
    View("reversed", np.flip, lambda x, shape: x.reverse(axes=tuple(range(len(shape))))),
    View("stepped", _stepped, lambda x, shape: x[..., ::2]),
    View("stride 0", lambda a: a[:1], lambda x, shape: x.expand(shape=shape), lambda a: np.repeat(a[:1], a.shape[0], 0)),
)


@dataclass(frozen=True)
class Call:
    """A sample, and how its operands lie."""

    sample: Sample
    view: View = AS_MADE

    def __str__(self) -> str:
        return str(self.sample) if self.view is AS_MADE else f"{self.sample} (operands {self.view.name})"

    def _seen(self, i: int, shape: tuple[int, ...]) -> View:
        """Planes of packed weights lie as they are packed; a scalar lies only one way."""
        return self.view if i < len(self.sample.case.shapes) and shape and shape[0] else AS_MADE

    def emit(self, b: Builder, prefix: str) -> tuple[Value, ...]:
        xs = []
        for i, (shape, dt) in enumerate(self.sample.input_types()):
            view = self._seen(i, shape)
            x = b.input(f"{prefix}x{i}", view.feed(np.zeros(shape, np.int8)).shape, dt)
            xs.append(view.see(x, shape))
        return self.sample.call(b, xs)

    def arrays(self, seed: int) -> tuple[list[Array], tuple[Array, ...]]:
        """What to feed, and what it means to the op."""
        made = self.sample.arrays(seed)
        views = [self._seen(i, a.shape) for i, a in enumerate(made)]
        return [v.feed(a) for v, a in zip(views, made, strict=True)], tuple(v.means(a) for v, a in zip(views, made, strict=True))

    def wrong(self, got: Sequence[Array], means: tuple[Array, ...]) -> str:
        """How results differ from what the op means; "" when they do not."""
        for k, (g, w) in enumerate(zip(got, self.sample.reference(means), strict=True)):
            if said := difference(g, np.asarray(w)):
                return f"{self}: output {k} {said}" if len(got) > 1 else f"{self}: {said}"
        return ""


def calls(samples: Sequence[Sample]) -> tuple[Call, ...]:
    """Every sample as made, and those of a few types also with operands that are views, by turns."""
    strided = [s for s in samples if s.dtype in STORED and s.case.shapes]
    return (*map(Call, samples), *(Call(s, VIEWS[k % len(VIEWS)]) for k, s in enumerate(strided)))


def together(batch: Sequence[Call]) -> Graph:
    b, outputs = Builder("check"), list[Value]()
    for k, c in enumerate(batch):
        outputs += c.emit(b, f"s{k}")
    return b.finish(*outputs)


def differences(batch: Sequence[Call], run: Callable[..., Any], seed: int, lay: Callable[[Array], Array]) -> Iterator[str]:
    """One run of the graph of `together`, on arrays that `lay` puts into memory; what went wrong, call by call."""
    fed, means = zip(*(c.arrays(seed) for c in batch), strict=True)
    given = [lay(a) for arrays in fed for a in arrays]
    before = [np.array(a) for a in given]
    got = run(*given)
    rest = list(got if isinstance(got, tuple) else (got,))
    for c, meant in zip(batch, means, strict=True):
        count = len(c.sample.reference(meant))
        mine, rest = rest[:count], rest[count:]
        if said := c.wrong(mine, meant):
            yield said
    if any(not np.array_equal(plain(a), plain(b), equal_nan=a.dtype.kind in "fcV") for a, b in zip(given, before, strict=True)):
        yield "the caller's inputs were written to"


def difference(got: Array, want: Array) -> str:
    """Where two arrays differ most, with both values; "" within rounding."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"gives {got.dtype}{list(got.shape)}, meant is {want.dtype}{list(want.shape)}"
    dt = next(d for d in DType if d.numpy == want.dtype)
    error, allowed = distance(want, got, dt, SLACK if want.dtype.itemsize >= 4 else NARROW_SLACK)
    if error <= allowed:
        return ""
    a, b = (plain(x).astype(np.complex128 if dt.is_complex else np.float64) for x in (got, want))
    with np.errstate(all="ignore"):
        apart = np.where(np.isnan(a) & np.isnan(b) | (a == b), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    at = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
    return f"at {list(at)} gives {got[at]}, meant is {want[at]} ({error:.2g} apart where {allowed:.2g} is rounding)"
