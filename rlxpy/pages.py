"""Memory that goes back to the system before its owner ends, and memory that does not."""
from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import numpy as np

MOST_KEPT_NBYTES = 32 << 20  # glibc's DEFAULT_MMAP_THRESHOLD_MAX: the system always gets back what is larger
_kept_nbytes = 0


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


def keep(nbytes: int) -> None:
    """Have blocks of together `nbytes` stay with the process when they are dropped, for the next call to take.  glibc hands the end of its heap back,
    to be mapped and zeroed anew, once more than twice the largest block that it ever mapped and freed lies there: so one of this size is."""
    global _kept_nbytes
    if _kept_nbytes < nbytes <= MOST_KEPT_NBYTES:
        _kept_nbytes = nbytes
        np.empty(nbytes, np.uint8)
