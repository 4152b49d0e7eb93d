"""Memory that goes back to the system before its owner ends."""
from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import numpy as np


def release(array: np.ndarray[Any, Any]) -> None:
    """Let the system have back the whole pages of a file mapped for reading that hold an array; to read it is to fetch them again.  Other memory stays."""
    base: Any = array
    read = False
    while isinstance(base, np.ndarray):
        read = read or (isinstance(base, np.memmap) and base.mode == "r")  # only such pages are what the file says
        base = base.base
    if not read or not isinstance(base, mmap.mmap) or not array.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        base.madvise(mmap.MADV_DONTNEED, first, last - first)


def trim() -> None:
    """Let the system have back what was freed and lies between what is in use, where the C library can tell it."""
    with suppress(AttributeError, OSError, TypeError):  # TypeError: a system whose programs have no symbols of their own
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
