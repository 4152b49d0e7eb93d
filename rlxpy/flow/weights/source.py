"""What a weight is and what a source of weights offers, whatever file it comes from."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from rlxpy.errors import LoadError, nearest
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import Encoding, encoding


@dataclass(frozen=True)
class Weight:
    """One named tensor, read when asked for.  shape: the tensor's, outermost dim first; dtype: its elements' (f32 when packed).

    encoding: a name in ENCODINGS when the stored bytes are packed, else None.  nbytes: what is stored.
    beside: the further arrays of an encoding of several, scales beside codes, each a weight of its own; `array` gives the first."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    encoding: str | None
    nbytes: int
    read: Callable[[], Array] = field(repr=False, compare=False)
    beside: tuple[Weight, ...] = ()

    @property
    def stored(self) -> tuple[tuple[int, ...], DType]:
        """Shape and type of what `array` gives, known without reading it."""
        if self.encoding is None:
            return self.shape, self.dtype
        _, shape, dtype = encoding(self.encoding).planes(self.shape)[0]
        return shape, dtype

    def array(self) -> Array:
        """The tensor in its dtype, or as its encoding stores it when packed: uint8 [..., row_nbytes], or the first of several arrays; read-only, a view of the mapped file where there is one."""
        array = self.read().view()
        array.flags.writeable = False
        return array


class WeightSource(Protocol):
    """Names and weights of one model.  `source[name]` raises LoadError for a name it lacks or a tensor it cannot read."""

    @property
    def path(self) -> Path | None: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    def names(self) -> list[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, name: str) -> Weight: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Source:
    """A source as data: one loader per name.  Loaders of unreadable tensors raise, so the rest of a file stays usable."""

    path: Path | None
    metadata: Mapping[str, Any]
    loaders: Mapping[str, Callable[[], Weight]] = field(repr=False)
    closers: tuple[Callable[[], None], ...] = field(default=(), repr=False)

    def names(self) -> list[str]:
        return list(self.loaders)

    def __contains__(self, name: object) -> bool:
        return name in self.loaders

    def __getitem__(self, name: str) -> Weight:
        if name not in self.loaders:
            raise unknown_name(name, self)
        return self.loaders[name]()

    def close(self) -> None:
        """Let go of the files.  Arrays already handed out stay valid; reading others raises LoadError."""
        for close in self.closers:
            close()


def unknown_name(name: str, source: WeightSource) -> LoadError:
    known = source.names()
    return LoadError(
        f"no weight {name!r}", where=str(source.path or "the mapping"), why=f"of {len(known)} the nearest are: {nearest(name, known)}",
        fix="`source.names()` lists them",
    )


def packed(name: str, shape: tuple[int, ...], to: Encoding | str, data: Array) -> Weight:
    """A weight from bytes that are already packed, as `quantize` makes them.  data: uint8 [..., row_nbytes].

    Raises BuildError for columns that the encoding's block does not divide, LoadError for any other mismatch."""
    enc = encoding(to) if isinstance(to, str) else to
    want = (*shape[:-1], enc.row_nbytes(shape[-1]))
    if len(enc.stored) != 1 or data.dtype != "uint8" or data.shape != want:
        raise LoadError(f"{name}: {data.dtype} {data.shape}", why=f"{enc.name} stores {shape} in {len(enc.stored)} plane as uint8 {want}")
    return Weight(name, shape, DType.F32, enc.name, data.nbytes, lambda: data)
