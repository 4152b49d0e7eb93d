"""Kernels compiled for AMD's chips and run as machine code: NumPy arrays are their memory."""
from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Union

import numpy as np

from rlxpy.backends.gpu.offline import FLAGS, compile_hip
from rlxpy.backends.gpu.sim.isa import Module, Report, load
from rlxpy.ir.dtypes import Array

CHIPS = ("gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
WAVE64 = ("-mwavefrontsize64",)  # on a chip that has both
Argument = Union["Array", int, float]  # Array is a name for type checkers


@cache
def module(source: str, arch: str, *options: str) -> Module:
    return load(compile_hip(source, arch, (*FLAGS, *options)), arch)


def packed(arguments: Sequence[Argument]) -> bytes:
    """As a launch packs them: pointers, ints and floats, each at a multiple of its size."""
    out = b""
    for a in arguments:
        raw = struct.pack("<Q", a.ctypes.data) if isinstance(a, np.ndarray) else struct.pack("<f" if isinstance(a, float) else "<i", a)
        out += b"\0" * (-len(out) % len(raw)) + raw
    return out


def run(m: Module, kernel: str, grid: tuple[int, int, int] | int, block: tuple[int, int, int] | int, *arguments: Argument, shared_nbytes: int = 0, budget: int = 1 << 26) -> Report:
    """The arrays are all the memory that the kernel may touch."""
    ranges = [(a.ctypes.data, a.nbytes) for a in arguments if isinstance(a, np.ndarray) and a.nbytes]
    whole = [n if isinstance(n, tuple) else (n, 1, 1) for n in (grid, block)]
    return m.launch(kernel, whole[0], whole[1], packed(arguments), shared_nbytes, ranges, budget)
