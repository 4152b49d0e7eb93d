"""What was done to a row before its numbers were chosen, and how decoding undoes it."""
from __future__ import annotations

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array


@dataclass(frozen=True)
class Hadamard:
    """Groups of `size` columns were multiplied by the Sylvester matrix of +1 and -1, its own inverse up to 1/size.

    That 1/size lives in the stored scale, so undoing is additions alone.  size: a power of two that divides the columns."""

    size: int

    def undo(self, values: Array) -> Array:
        """values: f32 [rows, columns]."""
        if self.size < 1 or self.size & (self.size - 1) or values.shape[-1] % self.size:
            raise BuildError(f"a Hadamard matrix of {self.size} on rows of {values.shape[-1]}", fix="take a power of two that divides them")
        half, out = 1, values
        while half < self.size:
            pairs = out.reshape(-1, 2, half)
            out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            half *= 2
        return out.reshape(values.shape)


@dataclass(frozen=True)
class Permutation:
    """Stored column j is column perm[j] of the tensor.  The table is one more plane, i32 [columns], which every slice carries whole."""

    def undo(self, values: Array, perm: Array) -> Array:
        """values: f32 [rows, columns]."""
        columns = values.shape[-1]
        if perm.shape != (columns,) or perm.dtype.kind not in "iu" or not np.array_equal(np.sort(perm), np.arange(columns)):
            raise BuildError(f"perm is no permutation of {columns} columns", why=f"its shape is {perm.shape}, its dtype {perm.dtype}")
        out = np.empty_like(values)
        out[:, perm] = values
        return out
