"""Operands between fences: a compiled function that reads or writes where it must not is seen, and named."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlxpy.backends.memory import aligned_bytes
from rlxpy.errors import RlxError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array

FENCE_NBYTES = 256
UNWRITTEN = 0xFF  # NaN in every float type: what was read and never written shows in the result
MARK = 0xA5       # beside results, where writing is what goes wrong


@dataclass(frozen=True)
class Fenced:
    """A host function run on copies of its operands.  function, inputs, outputs: what errors call them.  prepare: of the function itself.

    Raises RlxError when bytes beside an operand, or of an input, are other than before."""

    launch: Callable[..., None]
    function: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    prepare: Callable[[], object]

    def __call__(self, ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        given, made = [_fenced(a, UNWRITTEN) for a in ins], [_fenced(o, MARK) for o in outs]
        for (_, copy), a in zip(given, ins, strict=True):
            copy[...] = a
        before = [memory.copy() for memory, _ in given]
        self.launch([a for _, a in given], [a for _, a in made], attrs)
        for name, (memory, a), was in zip(self.inputs, given, before, strict=True):
            self._compare(name, a, np.flatnonzero(memory != was) - FENCE_NBYTES)
        for name, (memory, a) in zip(self.outputs, made, strict=True):
            beside = memory != MARK
            beside[FENCE_NBYTES:FENCE_NBYTES + a.nbytes] = False
            self._compare(name, a, np.flatnonzero(beside) - FENCE_NBYTES)
        for o, (_, a) in zip(outs, made, strict=True):
            o[...] = a

    def _compare(self, name: str, a: Array, changed: Array) -> None:
        """changed: byte positions, from where the operand begins."""
        if not changed.size:
            return
        first = int(changed[0])
        place = f"{-first} bytes before" if first < 0 else f"{first - a.nbytes} bytes behind the end of" if first >= a.nbytes else f"byte {first} of"
        raise RlxError(f"{self.function} writes where it must not", why=f"{changed.size} bytes are changed, the first {place} {name}, which is {a.dtype}{list(a.shape)}",
                       fix="inputs are only read, and results end at their NAME_numel")


def _fenced(like: Array, mark: int) -> tuple[Array, Array]:
    """The bytes, and between two fences an array, row-major, of which nothing is written."""
    memory = aligned_bytes(like.nbytes + 2 * FENCE_NBYTES)
    memory.fill(mark)
    inner = memory[FENCE_NBYTES:FENCE_NBYTES + like.nbytes]
    inner.fill(UNWRITTEN)
    return memory, np.ndarray(like.shape, like.dtype, inner)
