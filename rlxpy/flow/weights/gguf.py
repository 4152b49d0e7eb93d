"""GGUF files, versions 2 and 3, whole or split: header, metadata and tensors.  Format: ggml/docs/gguf.md."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from struct import Struct
from typing import Any

from rlxpy.errors import GgufError
from rlxpy.flow.weights.mapped import MappedFile
from rlxpy.flow.weights.source import Source, Weight
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import encoding
from rlxpy.pages import release

MAGIC = b"GGUF"
MAX_DIMS = 4            # GGML_MAX_DIMS
MAX_ELEMENTS = 2**59    # more would overflow NumPy's byte counts
DEFAULT_ALIGNMENT = 32  # GGUF_DEFAULT_ALIGNMENT
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # value type: struct code
U32, U64 = Struct("<I"), Struct("<Q")
# ggml_type: a dtype, or the name of an encoding
TENSOR_TYPES: dict[int, DType | str] = {
    0: DType.F32, 1: DType.F16, 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k",
    14: "q6_k", 20: "iq4_nl", 23: "iq4_xs", 24: DType.I8, 25: DType.I16, 26: DType.I32, 27: DType.I64, 28: DType.F64, 30: DType.BF16,
    35: "tq2_0", 39: "mxfp4", 40: "nvfp4_ggml",
}
UNREAD_TYPES = {
    9: "q8_1", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 21: "iq3_s", 22: "iq2_s", 29: "iq1_m", 34: "tq1_0",
    41: "q1_0",
}
LEAST_PAIR_NBYTES = 8 + 4 + 1          # key length, value type, value
LEAST_TENSOR_NBYTES = 8 + 4 + 4 + 8    # name length, dim count, type, offset
CUT_SHORT = "the file is cut short or damaged: fetch it again"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table.  shape: outermost dim first; kind: ggml_type; offset: from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def nbytes(self) -> int | None:
        """None when the type's size is not known here."""
        form = TENSOR_TYPES.get(self.kind)
        if form is None:
            return None
        if isinstance(form, DType):
            return prod(self.shape) * form.nbytes
        return prod(self.shape[:-1]) * encoding(form).row_nbytes(self.shape[-1])


@dataclass(frozen=True)
class Part:
    """One file, its header read and checked."""

    file: MappedFile
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    data: int  # where tensor data starts in the file

    def weight(self, name: str) -> Weight:
        t = self.tensors[name]
        form = TENSOR_TYPES.get(t.kind)
        if form is None or t.nbytes is None:
            kind = UNREAD_TYPES.get(t.kind, "unknown")
            raise GgufError(
                f"{name} has tensor type {t.kind} ({kind})", where=str(self.file.path),
                why=f"readable are {', '.join(str(f) for f in TENSOR_TYPES.values())}", fix="quantise the model to one of these",
            )
        start = self.data + t.offset
        if isinstance(form, DType):
            return Weight(name, t.shape, form, None, t.nbytes, partial(self.file.tensor, start, t.shape, form))
        stored = (*t.shape[:-1], encoding(form).row_nbytes(t.shape[-1]))
        return Weight(name, t.shape, DType.F32, form, t.nbytes, partial(self.file.tensor, start, stored, DType.U8))


class Cursor:
    """Reads a header front to back; every step is checked against the end of the file, in Python integers."""

    def __init__(self, file: MappedFile) -> None:
        self.file, self.position, self.end, self.bytes = file, 0, file.size, file.window(0, file.size).data

    def fail(self, what: str, why: str = "", fix: str = "") -> GgufError:
        return GgufError(what, where=f"{self.file.path}, byte {self.position}", why=why, fix=fix)

    def need(self, nbytes: int, what: str) -> None:
        left = self.end - self.position
        if nbytes > left:
            raise self.fail(f"{what} is cut off", f"it needs {nbytes} bytes, {left} are left", CUT_SHORT)

    def numbers(self, form: Struct, what: str) -> tuple[Any, ...]:
        self.need(form.size, what)
        self.position += form.size
        return form.unpack_from(self.bytes, self.position - form.size)

    def number(self, form: Struct, what: str) -> Any:
        return self.numbers(form, what)[0]

    def text(self, what: str, errors: str = "strict") -> str:
        length = self.number(U64, what)
        self.need(length, what)
        self.position += length
        try:
            return str(self.bytes[self.position - length : self.position], "utf-8", errors)
        except UnicodeDecodeError as e:
            raise self.fail(f"{what} is not UTF-8", str(e)) from None

    def value(self, kind: int, what: str) -> Any:
        """A number, bool, str or list.  Bytes of a string that are no UTF-8 become lone surrogates (errors="surrogateescape")."""
        if kind == STRING:
            return self.text(what, "surrogateescape")
        if kind != ARRAY:
            return self.number(Struct(f"<{self.scalar(kind, what)}"), what)
        kind, count = self.number(U32, what), self.number(U64, what)
        if kind == STRING:
            self.need(U64.size * count, what)
            return [self.text(what, "surrogateescape") for _ in range(count)]
        code = self.scalar(kind, what)
        self.need(Struct(f"<{code}").size * count, what)
        return list(self.numbers(Struct(f"<{count}{code}"), what))

    def scalar(self, kind: int, what: str) -> str:
        if kind == ARRAY:
            raise self.fail(f"{what} is an array of arrays", "ggml defines none", "flatten it")
        if kind not in SCALARS:
            raise self.fail(f"{what} has value type {kind}", f"known are {', '.join(map(str, sorted((*SCALARS, STRING, ARRAY))))}")
        return SCALARS[kind]


def open_gguf(path: Path) -> Source:
    """One GGUF file, or all parts of a split one when given any of them.  Values of metadata are Python numbers, strings and lists.

    Raises GgufError, naming key or tensor and byte, before any tensor is touched; a tensor of an unreadable type raises when asked for."""
    parts = [read_part(path)]
    count = parts[0].metadata.get("split.count", 1)
    if not isinstance(count, int):
        raise GgufError(f"split.count is {count!r}", where=str(path), fix="a whole number")
    if count > 1:
        parts = _all_parts(path, parts[0], count)
    loaders: dict[str, Callable[[], Weight]] = {}
    for part in parts:
        for name in part.tensors:
            if name in loaders:
                raise GgufError(f"tensor {name!r} is in two parts", where=str(part.file.path))
            loaders[name] = partial(part.weight, name)
    expected = parts[0].metadata.get("split.tensors.count", len(loaders))
    if expected != len(loaders):
        raise GgufError(f"{path}: tensors are missing", why=f"split.tensors.count is {expected}, the parts hold {len(loaders)}")
    return Source(path, parts[0].metadata, loaders, tuple(p.file.close for p in parts))


def _all_parts(path: Path, given: Part, count: int) -> list[Part]:
    match = PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        name = f"NAME-00001-of-{count:05}.gguf"
        raise GgufError(f"{path} is one part of {count}", why="the other parts are found by name", fix=f"name the parts {name} and so on")
    parts = []
    for number in range(1, count + 1):
        sibling = path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf")
        if not sibling.exists():
            raise GgufError(f"part {number} of {count} is missing", where=str(sibling), fix="fetch all parts into one folder")
        part = given if sibling.name == path.name else read_part(sibling)
        found = part.metadata.get("split.no"), part.metadata.get("split.count")
        if found != (number - 1, count):
            raise GgufError(f"{sibling} is another part", why=f"split.no, split.count are {found}, its name says {(number - 1, count)}")
        parts.append(part)
    return parts


def read_part(path: Path) -> Part:
    """Read one file's header."""
    file = MappedFile(path, GgufError)
    c = Cursor(file)
    if file.size < 4 or bytes(c.bytes[:4]) != MAGIC:
        raise c.fail("not a GGUF file", f"it starts with {bytes(c.bytes[:4])!r}, not {MAGIC!r}")
    c.position = 4
    version = c.number(U32, "the version")
    if version not in (2, 3):
        big = version & 0xFFFF == 0
        raise c.fail(
            f"GGUF version {version}", "big-endian files are not read" if big else "versions 2 and 3 are read", "convert the model again"
        )
    tensor_count, pair_count = c.number(U64, "the tensor count"), c.number(U64, "the metadata count")
    c.need(LEAST_PAIR_NBYTES * pair_count + LEAST_TENSOR_NBYTES * tensor_count, f"a header of {pair_count} keys and {tensor_count} tensors")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = c.text("a metadata key")
        if key in metadata:
            raise c.fail(f"key {key!r} appears twice")
        metadata[key] = c.value(c.number(U32, key), key)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise c.fail(f"general.alignment is {alignment!r}", "it is a power of two")
    tensors: dict[str, Tensor] = {}
    for _ in range(tensor_count):
        tensor = _tensor(c, alignment)
        if tensor.name in tensors:
            raise c.fail(f"tensor {tensor.name!r} appears twice")
        tensors[tensor.name] = tensor
    data = c.position + -c.position % alignment
    _check_extents(c, tensors, data)
    release(file.window(0, min(data, file.size)))  # a vocabulary takes megabytes
    return Part(file, metadata, tensors, data)


def _tensor(c: Cursor, alignment: int) -> Tensor:
    name = c.text("a tensor name")
    what = f"tensor {name!r}"
    dim_count = c.number(U32, what)
    if dim_count > MAX_DIMS:
        raise c.fail(f"{what} has {dim_count} dims", f"ggml allows {MAX_DIMS}")
    dims = [c.number(U64, what) for _ in range(dim_count)]
    if prod(max(d, 1) for d in dims) > MAX_ELEMENTS:
        raise c.fail(f"{what} has dims {dims}", f"their product exceeds {MAX_ELEMENTS}")
    tensor = Tensor(name, tuple(reversed(dims)), c.number(U32, what), c.number(U64, what))
    if tensor.offset % alignment:
        raise c.fail(f"{what} is misaligned", f"its offset {tensor.offset} is no multiple of {alignment}")
    form = TENSOR_TYPES.get(tensor.kind)
    block = encoding(form).block if isinstance(form, str) else 1
    if (dims[0] if dims else 1) % block:
        raise c.fail(f"{what} has rows of {dims[0] if dims else 1}", f"{form} stores blocks of {block}")
    return tensor


def _check_extents(c: Cursor, tensors: Mapping[str, Tensor], data: int) -> None:
    """Every tensor lies in the file and no two share a byte."""
    end, last = 0, ""
    for t in sorted(tensors.values(), key=lambda t: t.offset):
        nbytes = t.nbytes or 0
        if data + t.offset + nbytes > c.file.size:
            why = f"it takes bytes {data + t.offset} to {data + t.offset + nbytes} of {c.file.size}"
            raise c.fail(f"tensor {t.name!r} {t.shape} ends after the file", why, CUT_SHORT)
        if nbytes and t.offset < end:
            raise c.fail(f"tensors {last!r} and {t.name!r} overlap", f"one ends at {end} of the data, the other starts at {t.offset}")
        end, last = max(end, t.offset + nbytes), t.name
