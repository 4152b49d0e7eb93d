"""One kernel as waves of two sizes: whether both leave the same memory behind."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from operator import eq
from typing import TYPE_CHECKING

from rlxpy.backends.gpu.sim.isa.launch import Dim3
from rlxpy.frozen import dataclass

if TYPE_CHECKING:
    from rlxpy.backends.gpu.sim.isa import Module


@dataclass(frozen=True)
class Difference:
    """A range that two runs left unlike.  at: its first byte that differs; first, second: what each wrote, whole."""

    range: int
    at: int
    first: bytes
    second: bytes


def runs_alike(modules: tuple[Module, Module], kernel: str, grid: Dim3, block: Dim3, kernargs: bytes, ranges: Sequence[tuple[int, int]], shared_nbytes: int = 0,
               same: Callable[[bytes, bytes], bool] = eq) -> tuple[Difference, ...]:
    """Run a kernel of both modules, say one compiled for waves of 32 and one for 64, from the same memory, and say which ranges differ.

    same: whether two contents of a range count as one; sums in another order differ in their last bits.  The memory is left as the second
    run wrote it.  Raises what a launch raises."""
    before = [ctypes.string_at(a, n) for a, n in ranges]
    after: list[list[bytes]] = []
    for module in modules:
        for (a, _), content in zip(ranges, before, strict=True):
            ctypes.memmove(a, content, len(content))
        module.launch(kernel, grid, block, kernargs, shared_nbytes, ranges)
        after.append([ctypes.string_at(a, n) for a, n in ranges])
    return tuple(Difference(k, _first(a, b), a, b) for k, (a, b) in enumerate(zip(*after, strict=True)) if a != b and not same(a, b))


def _first(a: bytes, b: bytes) -> int:
    return next(k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
