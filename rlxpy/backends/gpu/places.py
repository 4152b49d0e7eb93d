"""Where values are on a device: in the memory of a plan, or of a round of a loop."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlxpy.backends.memory import Spot
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Ref


@dataclass(frozen=True)
class Placed:
    """A value on the device: the address of its first element, and its strides in bytes."""

    address: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, int]:
        """Bytes from the first element to the least, and past the greatest, that it touches."""
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + self.dtype.itemsize


@dataclass(frozen=True)
class Scope:
    """The memory of a plan, for a run or for a round of a loop: where its buffers begin.  owner: the step of the whole plan that it is part of."""

    plan: Plan
    base: Mapping[int, int]
    spot: Callable[[Plan, Ref], Spot]
    owner: Step | None = None

    def at(self, ref: Ref) -> int:
        """Address of the first element."""
        s = self.spot(self.plan, ref)
        return self.base[s.buffer] + s.offset

    def placed(self, ref: Ref) -> Placed:
        s = self.spot(self.plan, ref)
        return Placed(self.base[s.buffer] + s.offset, s.dtype, s.shape, s.strides)

    def scratch(self, step: Step) -> int:
        return self.base[step.scratch] if step.scratch >= 0 else 0
