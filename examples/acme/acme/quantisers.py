"""A quantiser: lets the greatest numbers of a block go, as far as the block as a whole comes nearer to what it was."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlxpy.extend import *


@dataclass(frozen=True)
class Search:
    """Options: how much of a block's range is kept at least, and how many ranges are tried."""

    least: float = 0.7
    steps: int = 7
    name: str = "acme.search"
    doc: str = "round to nearest in the range of each block that loses least"
    row_block: int = 1

    def refusal(self, to):
        return Rtn().refusal(to) or ("" if len(to.stored) == 1 else f"its blocks lie in {len(to.stored)} arrays")

    def __call__(self, values, to, weight):
        blocks = values.reshape(len(values), -1, to.block)
        most, tried = np.abs(blocks).max(-1, keepdims=True), []
        for share in np.linspace(self.least, 1, self.steps, dtype=np.float32):
            (data,) = quantize(blocks.clip(-share * most, share * most).reshape(values.shape), to)
            lost = np.square(to.decode((data,), values.shape[1]) - values).reshape(blocks.shape).sum(-1)
            tried.append((lost, data.reshape(*lost.shape, -1)))
        best = np.argmin([lost for lost, _ in tried], 0)
        chosen = np.take_along_axis(np.stack([data for _, data in tried]), best[None, ..., None], 0)
        return (chosen.reshape(len(values), -1),)
