"""Weights laid out anew at load, once, as the kernel that reads them wants them."""
from __future__ import annotations

from typing import Protocol

import numpy as np

from rlxpy.backends.cpu import ctext
from rlxpy.backends.memory import aligned_bytes
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType


class Form(Protocol):
    """A layout for weights; equal forms of one weight are one packed copy."""

    @property
    def c(self) -> str:
        """C type of an element."""

    def pack(self, weights: Array) -> Array:
        """weights [batch, depth, columns], of any strides."""


@dataclass(frozen=True)
class Packed:
    """A weight [batch, depth, columns], which is a view of the param buffer `buffer`, in another form.  Strides and offset count elements."""

    buffer: int
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    offset: int
    form: Form


@dataclass(frozen=True)
class Panels:
    """[batch][columns / width][depth][width], zeros after the last column.  f16 is kept as f32."""

    dtype: DType
    width: int

    @property
    def kept(self) -> DType:
        return DType.F32 if self.dtype is DType.F16 else self.dtype

    @property
    def c(self) -> str:
        return ctext.storage(self.kept)

    def pack(self, weights: Array) -> Array:
        batch, depth, columns = weights.shape
        tiles, whole = -(-columns // self.width), columns // self.width
        kept = np.dtype(self.kept.numpy)
        out = aligned_bytes(batch * tiles * depth * self.width * kept.itemsize).view(kept).reshape(batch, tiles, depth, self.width)
        out[:, :whole] = weights[:, :, :whole * self.width].reshape(batch, depth, whole, self.width).swapaxes(1, 2)
        if whole < tiles:
            out[:, whole] = 0
            out[:, whole, :, :columns - whole * self.width] = weights[:, :, whole * self.width:]
        return out


def pack(array: Array, p: Packed) -> Array:
    """`array` is all of the param's buffer."""
    flat, item = array.reshape(-1), array.itemsize
    batch, row, column = p.strides
    return p.form.pack(np.ndarray(p.shape, flat.dtype, flat.view(np.uint8), p.offset * item, (batch * item, row * item, column * item)))
