"""An array as an immutable, hashable value: equal means bit for bit, so NaN equals NaN and -0.0 differs from 0.0."""
from __future__ import annotations

from math import copysign, isnan
from typing import Any

import numpy as np

from rlxpy.errors import BuildError, RlxError
from rlxpy.ir.dtypes import Array, DType, dtype

HOLDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc"}  # by kind of dtype: NumPy's kinds of numbers that become one
NATURAL = {"b": DType.BOOL, "i": DType.I64, "u": DType.I64, "f": DType.F32, "c": DType.C64}  # Python's numbers, unless a dtype is named


def fitted(value: Any, want: DType | None, what: str, error: type[RlxError]) -> Array:
    """Numbers as an array of `want` (None: their natural type).  Raises `error` when they are of another kind or beyond its range."""
    try:
        array = np.asarray(value)
    except Exception as e:  # rows of unequal length, or whatever an object of the caller's raises when it is read
        raise error(f"{what} is not an array", why=f"{type(e).__name__}: {e}", fix="rows of a list must have equal lengths") from None
    kind = array.dtype.kind
    if want is not None and want.is_integer and kind in "fO":  # NumPy reads [2**64 - 1, 0] as floats
        exact = np.asarray(value, object)
        array, kind = (exact, "i") if all(type(v) is int for v in exact.flat) else (array, kind)
    want = want or NATURAL.get(kind, DType.F32)
    if array.size == 0 or array.dtype == want.numpy:
        return array.astype(want.numpy)
    if kind not in HOLDS[want.kind]:
        raise error(f"{what} cannot be {want}", why=f"{type(value).__name__} holds {array.dtype.name}",
                    fix=f"give numbers that {want} can hold, or an array of {want}")
    least, most = array.min(), array.max()
    if want.is_integer and not want.range[0] <= least <= most <= want.range[1]:
        raise error(f"{what} does not fit {want}", why=f"its values are {least}..{most}, {want} holds {want.range[0]}..{want.range[1]}",
                    fix="use a wider type")
    try:
        with np.errstate(over="raise"):
            return array.astype(want.numpy)
    except FloatingPointError:
        raise error(f"{what} does not fit {want}", why=f"its values are {least}..{most}",
                    fix="use a wider type, or write inf where it is meant") from None


def native(array: Array) -> Array:
    """The same numbers in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class Real(float):
    """A float that compares as constants do: NaN equals NaN, and 0.0 differs from -0.0."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, float)):
            return NotImplemented
        if isnan(self):
            return isinstance(other, float) and isnan(other)
        return float.__eq__(self, other) and copysign(1, self) == copysign(1, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return 0 if isnan(self) else float.__hash__(self)


class Constant:
    """Owns a read-only copy in C order."""

    __slots__ = ("_hash", "array")
    array: Array

    def __init__(self, value: Any, dt: DType | None = None) -> None:
        """Raises BuildError when the value is no array, or is not one of `dt`."""
        typed = isinstance(value, (np.ndarray, np.generic)) and (dt is None or value.dtype == dt.numpy)
        array = np.array(native(np.asarray(value)) if typed else fitted(value, dt, "constant", BuildError), order="C", copy=True)
        array.setflags(write=False)
        self.array = array
        self._hash = hash((array.shape, array.dtype.name, array.tobytes()))

    @property
    def dtype(self) -> DType:
        return dtype(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Constant) and self._hash == other._hash and self.shape == other.shape
                and self.dtype is other.dtype and self.array.tobytes() == other.array.tobytes())

    def filled_with(self) -> Any | None:
        """The one value every element has, as a Python scalar; None when they differ or there are none."""
        if self.array.size == 0:
            return None
        first = self.array.flat[0]
        same = self.array.size == 1 or bool(np.all(self.array.reshape(-1).view(np.uint8).reshape(self.array.size, -1)
                                                   == np.asarray(first, self.array.dtype).reshape(1).view(np.uint8)))
        return first.item() if same else None

    def __repr__(self) -> str:
        return f"Constant({self.array.tolist()!r}, {self.dtype.text})" if self.array.size <= 8 else f"Constant({self.dtype.text}{list(self.shape)})"
