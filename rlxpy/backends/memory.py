"""Planned values as NumPy arrays over the memory that the plan put them in."""
from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlxpy.errors import InputError
from rlxpy.extend.plan import Plan, Space
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes, at
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Ref
from rlxpy.ir.types import bind

ALIGN_NBYTES = 64  # a cache line, and the widest vector
_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def aligned_bytes(nbytes: int, make: Callable[..., Array] = np.empty) -> Array:
    """uint8 [nbytes] starting on a cache line.  Large ones are given huge pages by NumPy, where the system has them."""
    raw: Array = make(nbytes + ALIGN_NBYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_NBYTES
    return raw[start:start + nbytes]


def address(array: Array) -> int:
    """Where its first element is: array.ctypes.data in a third of the time, where Python's buffers know such arrays."""
    try:
        return ctypes.addressof(_byte(array))
    except (TypeError, ValueError, BufferError):  # only read, without elements, not in order, of a type of ml_dtypes
        return int(array.__array_interface__["data"][0])


def zero_pages(nbytes: int, dtype: Any) -> Array:
    """[nbytes] of zeros that take memory page by page, as they are written: a cache is made for the longest conversation, and most are short.
    NumPy would ask for huge pages, of which each head's first row takes one."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # a fork's writes are its own
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1), **private), dtype)[:nbytes]


def space_bytes(plan: Plan, space: Space, make: Callable[..., Array] = np.empty) -> Array:
    """Memory of one space.  Raises InputError when the largest sizes need more than there is."""
    try:
        return aligned_bytes(plan.nbytes[space], make)
    except (MemoryError, ValueError, OSError, OverflowError):  # mmap's and NumPy's words for it; ValueError when there is no such address
        sizes = ", ".join(f"{s} up to {s.hi}" for s in plan.graph.symbols.values()) or "fixed shapes"
        raise InputError(f"no memory for {plan.nbytes[space]} bytes of {space.value}", why=f"that is what {sizes} may need",
                         fix="narrow the ranges, as in sym('S', 1, 512)") from None


@dataclass(frozen=True)
class Spot:
    """Where a value lies at one set of sizes, in bytes: `offset` into its buffer, which starts at `start` of its space."""

    space: Space
    buffer: int
    start: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    row_major: bool

    def view(self, spaces: Mapping[Space, Array], fixed: Mapping[int, Array]) -> Array:
        """`spaces` are bytes; `fixed` has arrays that are a buffer by themselves, row-major: params, constants, what a caller lent.  A view
        of those cannot be written."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        base = fixed.get(self.buffer)
        if base is None:
            return np.ndarray(self.shape, self.dtype, spaces[self.space], self.start + self.offset, self.strides)
        if self.row_major and self.shape == base.shape:
            return base
        shown: Array = np.ndarray(self.shape, self.dtype, base.reshape(-1).view(np.uint8), self.offset, self.strides)
        shown.flags.writeable = False
        return shown


def locate(plan: Plan, r: Ref, sizes: Sizes) -> Spot:
    place, t = plan.places[r], plan.graph.type(r)
    buffer, item = plan.buffers[place.buffer], t.dtype.nbytes
    return Spot(buffer.space, place.buffer, buffer.offset, at(place.layout.offset, sizes) * item, t.dtype.numpy, bind(t.shape, sizes),
                tuple(s * item for s in bind(place.layout.strides, sizes)), place.layout.is_contiguous(t.shape))


def view(plan: Plan, r: Ref, sizes: Sizes, spaces: Mapping[Space, Array], fixed: Mapping[int, Array]) -> Array:
    return locate(plan, r, sizes).view(spaces, fixed)


def read_only(array: Array) -> Array:
    """A view that a kernel cannot write through."""
    shown = array.view()
    shown.flags.writeable = False
    return shown
