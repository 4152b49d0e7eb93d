"""A memory-mapped file whose windows are checked before they are touched."""
from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from rlxpy.errors import LoadError
from rlxpy.ir.dtypes import Array, DType


class MappedFile:
    """Read-only bytes of a regular file.  `error` is the class of what goes wrong in it.

    A file that another process shortens while it is mapped ends this one (SIGBUS), so replace model files by rename."""

    def __init__(self, path: Path, error: type[LoadError]) -> None:
        self.path, self.error = path, error
        try:
            self.size = path.stat().st_size
            self._bytes: Array | None = np.memmap(path, np.uint8, "r") if self.size else np.zeros(0, np.uint8)
        except OSError as e:
            raise error(f"cannot open {path}", why=e.strerror or str(e)) from None

    def window(self, start: int, nbytes: int) -> Array:
        """uint8 [nbytes] of the file, no copy.  Raises when the file ends before, or is closed."""
        if self._bytes is None:
            raise self.error(f"{self.path} is closed", fix="read weights before `source.close()`")
        if start < 0 or nbytes < 0 or start + nbytes > self.size:
            why = f"bytes {start} to {start + nbytes} of {self.size} are asked for"
            raise self.error(f"{self.path} ends too early", why=why, fix="the file is cut short: fetch it again")
        return np.asarray(self._bytes[start : start + nbytes])

    def tensor(self, start: int, shape: tuple[int, ...], dtype: DType) -> Array:
        """A view of the file; a copy only when the file put it at an address that the dtype cannot be read from."""
        raw = self.window(start, prod(shape) * dtype.nbytes)
        aligned = raw if raw.ctypes.data % dtype.numpy.alignment == 0 else raw.copy()
        return aligned.view(dtype.numpy).reshape(shape)

    def close(self) -> None:
        """Drop the map; it goes away with the last array that views it."""
        self._bytes = None
