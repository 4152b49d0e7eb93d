"""Weights from arrays in memory and from .npz archives."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlxpy.errors import BuildError, LoadError
from rlxpy.flow.weights.source import Source, Weight
from rlxpy.ir.dtypes import Array, DType, dtype

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

DEFLATE_MAX_RATIO = 1032  # a deflate stream cannot grow more than this; zlib's technical notes


def open_arrays(arrays: Mapping[str, Any]) -> Source:
    """Arrays by name, not copied; a Weight among the values (see `packed`) is taken as it is."""
    weights = {str(name): value if isinstance(value, Weight) else _plain(str(name), value) for name, value in arrays.items()}
    return Source(None, {}, {name: partial(_same, w) for name, w in weights.items()})


def _same(weight: Weight) -> Weight:
    return weight


def _plain(name: str, value: Any) -> Weight:
    array = np.asarray(value)
    return Weight(name, array.shape, _element_type(name, array.dtype), None, array.nbytes, lambda: array)


def _element_type(where: str, found: np.dtype[Any]) -> DType:
    try:
        return dtype(found)
    except BuildError as e:
        what = "Python objects, which could only be read by unpickling" if found.hasobject else f"elements of type {found}"
        raise LoadError(f"{where} holds {what}", fix=e.fix) from None


def open_npz(path: Path) -> Source:
    """An archive that numpy.savez or savez_compressed wrote.  Nothing is unpickled; arrays are read when asked for."""
    from zipfile import ZipFile

    with _damage_named(f"the .npz archive {path}"):
        archive = ZipFile(path)
    entries = archive.infolist()
    foreign = [e.filename for e in entries if not e.filename.endswith(".npy")]
    names = [e.filename.removesuffix(".npy") for e in entries]
    if foreign or len(set(names)) < len(names):
        archive.close()
        why = f"it holds {foreign[0]!r}" if foreign else "two arrays have one name"
        raise LoadError(f"{path} is no .npz archive of arrays", why=why, fix="PyTorch files are pickles: convert them to safetensors")
    loaders: dict[str, Callable[[], Weight]] = {n: partial(_entry, archive, e, n) for n, e in zip(names, entries, strict=True)}
    return Source(path, {}, loaders, (archive.close,))


def _entry(archive: ZipFile, entry: ZipInfo, name: str) -> Weight:
    where = f"{name} in {archive.filename}"
    with _damage_named(where), archive.open(entry) as stream:
        shape, fortran, found = _npy_header(stream)
        element = _element_type(where, found)
        nbytes = prod(shape) * found.itemsize
        if stream.tell() + nbytes != entry.file_size or entry.file_size > DEFLATE_MAX_RATIO * (entry.compress_size + 1):
            raise LoadError(f"{where} is damaged", why=f"{shape} of {found} are {nbytes} bytes, the entry has {entry.file_size}")
        start = stream.tell()

    def read() -> Array:
        with _damage_named(where), archive.open(entry) as stream:
            stream.seek(start)
            flat = np.frombuffer(stream.read(nbytes), found).astype(element.numpy, copy=False)
        return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)

    return Weight(name, shape, element, None, nbytes, read)


@contextmanager
def _damage_named(where: str) -> Iterator[None]:
    try:
        yield
    except LoadError:
        raise
    except Exception as e:  # zipfile, zlib and NumPy's header parser let a dozen kinds through
        raise LoadError(f"{where} cannot be read", why=str(e), fix="write it with numpy.savez") from None


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(stream)
    if version not in readers:
        raise ValueError(f"its .npy version is {version}")
    shape, fortran, found = readers[version](stream)
    if any(n < 0 for n in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, fortran, found
