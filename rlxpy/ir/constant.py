"""An array as an immutable, hashable value: equal means bit for bit, so NaN equals NaN and -0.0 differs from 0.0."""
from __future__ import annotations

from typing import Any

import numpy as np

from rlxpy.ir.dtypes import Array, DType, dtype


class Constant:
    """Owns a read-only copy in C order."""

    __slots__ = ("_hash", "array")
    array: Array

    def __init__(self, value: Any, dt: DType | None = None) -> None:
        array = np.array(value, dtype=dt.numpy if dt is not None else None, order="C", copy=True)
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
