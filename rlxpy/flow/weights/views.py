"""Views of a source: other names, rows in another order, packed matrices; nothing is copied until a changed tensor is read."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy import settings
from rlxpy.errors import InputError, LoadError
from rlxpy.extend.quantisers import Quantiser, pack, packing, quantiser
from rlxpy.flow.weights.source import Weight, WeightSource, unknown_name
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import Encoding


@dataclass(frozen=True)
class Renamed:
    """The tensors of `source` under new names: exactly those of `mapping` (new name: old name).

    changed: by new name, what happens to a stored array when it is read.  Raises LoadError when `source` lacks an old name."""

    source: WeightSource
    mapping: Mapping[str, str]
    changed: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for old in self.mapping.values():
            if old not in self.source:
                raise unknown_name(old, self.source)

    @property
    def path(self) -> Path | None:
        return self.source.path

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.source.metadata

    def names(self) -> list[str]:
        return list(self.mapping)

    def __contains__(self, name: object) -> bool:
        return name in self.mapping

    def __getitem__(self, name: str) -> Weight:
        if name not in self.mapping:
            raise unknown_name(name, self)
        weight = self.source[self.mapping[name]]
        if name not in self.changed:
            return replace(weight, name=name)
        change = self.changed[name]
        return replace(weight, name=name, read=lambda: change(weight.array()), beside=tuple(replace(o, read=partial(lambda o: change(o.array()), o)) for o in weight.beside))

    def close(self) -> None:
        self.source.close()


@dataclass(frozen=True)
class Rounded:
    """The tensors of `source`, matrices of floats packed in the encoding `to`; others, and rows that its blocks do not divide, as they are.

    quantiser: who chooses the numbers, as `extend.quantisers.quantiser` reads it; None given, RLX_QUANTISER.  Each weight is packed when it is
    read, by blocks of rows where the quantiser allows it, into one array or, with scales in one of their own, into several (`name.scale`).  Raises
    InputError for a quantiser that is not there or cannot write the encoding, and for an encoding whose rows share numbers; BuildError for an unknown one."""

    source: WeightSource
    to: str
    quantiser: str = field(default_factory=lambda: str(settings.setting("quantiser")))
    _chosen: tuple[Quantiser, Encoding] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        chosen = quantiser(self.quantiser)
        enc = packing(chosen, self.to)
        if shared := [name for name, shape, _ in enc.planes((SEVERAL, enc.block)) if shape[:1] != (SEVERAL,)]:
            raise InputError(f"weights cannot be packed in {enc.name}", why=f"rows share what {shared[0]} stores, and a weight is packed by blocks of rows",
                             fix="use an encoding of rows: docs/add_an_encoding.md")
        object.__setattr__(self, "_chosen", (chosen, enc))

    @property
    def path(self) -> Path | None:
        return self.source.path

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.source.metadata

    def names(self) -> list[str]:
        return self.source.names()

    def __contains__(self, name: object) -> bool:
        return name in self.source

    def __getitem__(self, name: str) -> Weight:
        weight, (chosen, enc) = self.source[name], self._chosen
        if weight.encoding is not None or not weight.dtype.is_float or len(weight.shape) != 2 or weight.shape[1] % enc.block:
            return weight
        (_, shape, dtype), *more = enc.planes(weight.shape)
        choose = partial(_packed, weight, chosen, enc)
        made = cache(choose) if more else choose  # several arrays, of one choice
        beside = tuple(Weight(f"{weight.name}.{plane}", size, dt, None, prod(size) * dt.nbytes, partial(lambda k: made()[k], k)) for k, (plane, size, dt) in enumerate(more, 1))
        return replace(weight, dtype=DType.F32, encoding=self.to, nbytes=prod(shape) * dtype.nbytes, beside=beside, read=lambda: made()[0])

    def close(self) -> None:
        self.source.close()


SEVERAL = 97  # rows, to ask an encoding which of its arrays have one entry each
BLOCK_NUMEL = 1 << 22  # of a weight that is packed by blocks of rows: its f32 copy takes 16 MiB


def _packed(weight: Weight, chosen: Quantiser, enc: Encoding) -> tuple[Array, ...]:
    """What the encoding stores: u8 [rows, row_nbytes], or arrays of so many rows."""
    array, (rows, columns) = weight.array(), weight.shape
    step = max(1, BLOCK_NUMEL // max(1, columns) // chosen.row_block) * chosen.row_block if chosen.row_block else max(1, rows)
    out = tuple(np.empty(shape, dtype.numpy) for _, shape, dtype in enc.planes((rows, columns)))
    for lo in range(0, rows, step):
        for whole, part in zip(out, pack(chosen, array[lo:lo + step].astype(np.float32), enc, weight.name), strict=True):
            whole[lo:lo + step] = part
    return out


def unpermute_rope_rows(array: Array, heads: int) -> Array:
    """Rows of a query or key projection from neighbour pairs (GGUF's llama) to halves (Hugging Face), per head.  Copies.

    array: [heads * head_dim, ...], plain or packed; heads: those of this tensor, so the key/value count for keys.  Raises LoadError
    unless heads of an even size divide the rows.  Su et al. 2021, arXiv:2104.09864; llama.cpp's LlamaModel.permute is the inverse."""
    rows = array.shape[0] if array.ndim else 0
    if heads < 1 or rows % (2 * heads):
        raise LoadError(f"{rows} rows for {heads} heads of rotated pairs", why=f"{rows} is no multiple of {2 * heads}")
    pairs = array.reshape(heads, rows // (2 * heads), 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)
