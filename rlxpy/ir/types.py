"""What a value is: shape and element type."""
from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from rlxpy.errors import BuildError
from rlxpy.ir.dims import Dim, Shape, Sizes, at, product, shape_text, upper
from rlxpy.ir.dtypes import DType


class TensorType(NamedTuple):
    """A tuple, so that hashing and comparing cost what C tuples cost."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        return product(self.shape)

    @property
    def max_nbytes(self) -> int:
        """Bytes at the upper bound of every symbol."""
        total = self.dtype.nbytes
        for d in self.shape:
            total *= upper(d)
        return total

    def __str__(self) -> str:
        return f"{self.dtype}{shape_text(self.shape)}"


def bind(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """Concrete shape once every symbol has a size."""
    return tuple([d if isinstance(d, int) else at(d, sizes) for d in shape])


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """NumPy broadcasting, decided by shape alone: dims are provably equal, or one of them is 1."""
    def meet(x: Dim, y: Dim) -> Dim:
        if x == y or y == 1:
            return x
        if x == 1:
            return y
        raise BuildError(f"shapes {fmt(shapes)} do not broadcast", why=f"{x} and {y} differ and neither is 1",
                         fix="reshape or expand one side so that the dims line up from the right")

    def pair(a: Shape, b: Shape) -> Shape:
        if a == b:
            return a
        rank = max(len(a), len(b))
        a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
        return tuple(map(meet, a, b))

    return reduce(pair, shapes, ())


def promote(dtypes: Sequence[DType]) -> DType:
    """The one dtype of all operands.  Mixing is an error: a cast must be visible."""
    if any(d is not dtypes[0] for d in dtypes):
        raise BuildError(f"mixed dtypes {', '.join(map(str, dtypes))}", why="rlxpy never converts on its own",
                         fix=f"cast one side, as in x.cast(to={dtypes[0].text!r})")
    return dtypes[0]


def fmt(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(shape_text, shapes))
