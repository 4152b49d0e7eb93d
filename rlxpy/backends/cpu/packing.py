"""Weights laid out anew at load, once, as the kernel that reads them wants them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from rlxpy.backends.cpu import ctext
from rlxpy.backends.memory import ALIGN_NBYTES, aligned_bytes
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType
from rlxpy.pages import release, trim

CHUNK_NBYTES = 32 << 20       # weights that a step reads one after the other lie together, where NumPy asks for huge pages:
LEAST_CHUNK_NBYTES = 4 << 20  # which it does from here on; they save a third of the time that reading takes
LARGE_NBYTES = CHUNK_NBYTES // 4
Take = Callable[[int], Array]  # nbytes to u8 [nbytes] of memory to write to


class Form(Protocol):
    """A layout for weights; equal forms of one weight are one packed copy."""

    @property
    def c(self) -> str:
        """C type of an element."""

    def pack(self, weights: Array, take: Take) -> Array:
        """weights [batch, depth, columns], of any strides."""


@dataclass(frozen=True)
class Packed:
    """A weight [batch, depth, columns], which is a view of the param buffer `buffer`, in another form.  Strides and offset count elements."""

    buffer: int
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    offset: int
    form: Form


@dataclass(frozen=True)
class Panels:
    """[batch][columns / width][depth][width], zeros after the last column.  f16 is kept as f32."""

    dtype: DType
    width: int

    @property
    def kept(self) -> DType:
        return DType.F32 if self.dtype is DType.F16 else self.dtype

    @property
    def c(self) -> str:
        return ctext.storage(self.kept)

    def pack(self, weights: Array, take: Take) -> Array:
        batch, depth, columns = weights.shape
        tiles, whole = -(-columns // self.width), columns // self.width
        kept = np.dtype(self.kept.numpy)
        out = take(batch * tiles * depth * self.width * kept.itemsize).view(kept).reshape(batch, tiles, depth, self.width)
        out[:, :whole] = weights[:, :, :whole * self.width].reshape(batch, depth, whole, self.width).swapaxes(1, 2)
        if whole < tiles:
            out[:, whole] = 0
            out[:, whole, :, :columns - whole * self.width] = weights[:, :, whole * self.width:]
        return out


def pack(arrays: Mapping[int, Array], packs: Sequence[Packed], kept: Sequence[Array | None]) -> tuple[Array, ...]:
    """Each of the weights `packs` of the param buffers `arrays` in its form; what is already `kept` stays.  Pages of a mapped file go back to the system
    when they have been packed: the file gives them again to whoever asks."""
    wanted = [i for i, old in enumerate(kept) if old is None]
    nbytes = {i: arrays[packs[i].buffer].nbytes for i in wanted}
    room, made = _Room(sum(nbytes.values())), dict(enumerate(kept))
    for i in sorted(wanted, key=lambda i: nbytes[i] < LARGE_NBYTES):  # large ones first: while one is packed it is there twice, and nothing else is yet
        made[i] = _pack(arrays[packs[i].buffer], packs[i], room.take)
        release(arrays[packs[i].buffer])
    if sum(nbytes.values()) >= LEAST_CHUNK_NBYTES:
        trim()  # reading the model left a few MB behind
    return tuple(made[i] for i in range(len(packs)))  # type: ignore[misc]  # all are made


def _pack(array: Array, p: Packed, take: Take) -> Array:
    flat, item = array.reshape(-1), array.itemsize
    batch, row, column = p.strides
    return p.form.pack(np.ndarray(p.shape, flat.dtype, flat.view(np.uint8), p.offset * item, (batch * item, row * item, column * item)), take)


class _Room:
    """Memory handed out piece by piece, from chunks when much is `expected`."""

    def __init__(self, expected: int) -> None:
        self._chunk_nbytes = min(expected + expected // 8, CHUNK_NBYTES) if expected >= LEAST_CHUNK_NBYTES else 0  # forms may fill up rows
        self._free: Array = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Array:
        """Starts on a cache line."""
        room = -(-nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
        if room > self._free.nbytes:
            if room >= self._chunk_nbytes:
                return aligned_bytes(nbytes)
            self._free = aligned_bytes(self._chunk_nbytes)
        piece, self._free = self._free[:nbytes], self._free[room:]
        return piece
