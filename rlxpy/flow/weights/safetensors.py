"""safetensors files: read by memory map, written whole or not at all.  Format: huggingface.co/docs/safetensors."""
from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any, TypeGuard
from uuid import uuid4

import numpy as np

from rlxpy.errors import BuildError, SafetensorsError
from rlxpy.flow.weights.mapped import MappedFile
from rlxpy.flow.weights.source import Source, Weight
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType, dtype

DTYPES = {
    "BOOL": DType.BOOL, "U8": DType.U8, "I8": DType.I8, "F8_E4M3": DType.F8E4M3FN, "F8_E5M2": DType.F8E5M2, "I16": DType.I16,
    "U16": DType.U16, "F16": DType.F16, "BF16": DType.BF16, "I32": DType.I32, "U32": DType.U32, "F32": DType.F32, "F64": DType.F64,
    "I64": DType.I64, "U64": DType.U64, "C64": DType.C64,
}
NAMES = {d: name for name, d in DTYPES.items()}
METADATA = "__metadata__"
LENGTH_NBYTES = 8
MAX_HEADER_NBYTES = 100_000_000  # the reference implementation's limit
MAX_DIMS = 64                    # NumPy's limit
MAX_ELEMENTS = 2**59             # more would overflow NumPy's byte counts


@dataclass(frozen=True)
class Entry:
    """One tensor of a header.  begin, end: bytes of the data section."""

    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


def open_safetensors(path: Path) -> Source:
    """One file.  Raises SafetensorsError before any tensor is touched; a tensor of an unknown dtype raises when asked for."""
    file = MappedFile(path, SafetensorsError)
    header, data = _header(file)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict):
        raise _bad(file, f"{METADATA} is {_short(metadata)}", "it is an object of strings")
    entries = [_entry(file, name, value) for name, value in header.items()]
    _check_extents(file, entries, file.size - data)
    return Source(path, metadata, {e.name: partial(_weight, file, data, e) for e in entries}, (file.close,))


def _bad(file: MappedFile, what: str, why: str) -> SafetensorsError:
    return SafetensorsError(what, where=str(file.path), why=why, fix="the file is cut short or damaged: fetch it again")


def _header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """The parsed header and where data starts."""
    if file.size < LENGTH_NBYTES:
        raise _bad(file, "not a safetensors file", f"it has {file.size} bytes, the header's length alone takes {LENGTH_NBYTES}")
    length = int.from_bytes(file.window(0, LENGTH_NBYTES).tobytes(), "little")
    if length > min(file.size - LENGTH_NBYTES, MAX_HEADER_NBYTES):
        raise _bad(file, f"a header of {length} bytes", f"the file has {file.size} bytes, and headers at most {MAX_HEADER_NBYTES}")
    try:
        header = json.loads(file.window(LENGTH_NBYTES, length).tobytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise _bad(file, "its header is no JSON", str(e)) from None
    if not isinstance(header, dict):
        raise _bad(file, f"its header is {_short(header)}", "it is an object of tensors by name")
    return header, LENGTH_NBYTES + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"{_short(name)} appears twice")
        out[name] = value
    return out


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _entry(file: MappedFile, name: str, value: Any) -> Entry:
    where = f"tensor {name!r}"
    if not isinstance(value, dict):
        raise _bad(file, f"{where} is {_short(value)}", "it is an object with dtype, shape and data_offsets")
    kind, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str):
        raise _bad(file, f"{where} has dtype {_short(kind)}", "it is a string")
    if not _is_counts(shape, MAX_DIMS) or prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
        raise _bad(file, f"{where} has shape {_short(shape)}", f"up to {MAX_DIMS} whole numbers with a product up to {MAX_ELEMENTS}")
    if not _is_counts(offsets, 2) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(file, f"{where} has data_offsets {_short(offsets)}", "they are two whole numbers, the first no greater than the second")
    begin, end = offsets
    if kind in DTYPES and prod(shape) * DTYPES[kind].nbytes != end - begin:
        needed = prod(shape) * DTYPES[kind].nbytes
        raise _bad(file, f"{where}: {kind} {shape} in {end - begin} bytes", f"{needed} bytes are needed, data_offsets are {offsets}")
    return Entry(name, kind, tuple(shape), begin, end)


def _is_counts(value: Any, most: int) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) <= most and all(type(n) is int and n >= 0 for n in value)


def _check_extents(file: MappedFile, entries: list[Entry], data_nbytes: int) -> None:
    """Tensors tile the data section: no overlap, no hole, nothing beyond."""
    end, last = 0, "the header"
    for e in sorted(entries, key=lambda e: (e.begin, e.end)):
        if e.end > data_nbytes:
            raise _bad(file, f"tensor {e.name!r} ends after the file", f"its data ends at {e.end} of {data_nbytes}")
        if e.begin != end:
            how = "overlap" if e.begin < end else "leave a hole"
            raise _bad(file, f"tensor {e.name!r} and {last} {how}", f"one ends at {end} of the data, the other starts at {e.begin}")
        end, last = e.end, f"tensor {e.name!r}"
    if end != data_nbytes:
        raise _bad(file, f"bytes after {last}", f"tensors end at {end} of {data_nbytes} bytes of data")


def _weight(file: MappedFile, data: int, e: Entry) -> Weight:
    if e.kind not in DTYPES:
        raise SafetensorsError(f"{e.name} has dtype {e.kind!r}", where=str(file.path), why=f"readable are {', '.join(DTYPES)}")
    element = DTYPES[e.kind]
    return Weight(e.name, e.shape, element, None, e.end - e.begin, partial(file.tensor, data + e.begin, e.shape, element))


def save_safetensors(path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays of any strides in C order; `path` appears complete or stays as it was.

    Raises SafetensorsError for a dtype the format lacks, for a name or metadata that is no text, and when the disk refuses."""
    path = Path(path)
    checked = {name: _writable(name, array) for name, array in arrays.items()}
    ordered = sorted(checked.items(), key=lambda item: (-item[1][1].nbytes, item[0]))  # widest first keeps every tensor aligned
    if any(not isinstance(text, str) for pair in (metadata or {}).items() for text in pair):
        raise SafetensorsError("metadata is not text", why=_short(metadata), fix="turn keys and values into strings")
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, (array, element) in ordered:
        header[name] = {"dtype": NAMES[element], "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = path.parent / f".{path.name}.{uuid4().hex}.part"
    try:
        with part.open("xb") as out:
            out.write(len(text).to_bytes(LENGTH_NBYTES, "little") + text)
            for _, (array, element) in ordered:
                _write(out, array, element)
        part.replace(path)
    except OSError as e:
        raise SafetensorsError(f"cannot write {path}", why=e.strerror or str(e)) from None
    finally:
        part.unlink(missing_ok=True)


def _writable(name: Any, value: Any) -> tuple[Array, DType]:
    if not isinstance(name, str) or name == METADATA:
        raise SafetensorsError(f"a tensor named {name!r}", fix=f"names are strings other than {METADATA}")
    array = np.asarray(value)
    try:
        element = dtype(array.dtype)
    except BuildError as e:
        raise SafetensorsError(f"{name} has elements of type {array.dtype}", fix=e.fix) from None
    if element not in NAMES:
        raise SafetensorsError(f"{name} has dtype {element}", why=f"the format has {', '.join(d.text for d in NAMES)}", fix="cast it")
    return array, element


def _write(out: IO[bytes], array: Array, element: DType) -> None:
    out.write(np.asarray(array, element.numpy, order="C").reshape(-1).view(np.uint8).data)
