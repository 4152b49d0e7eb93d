"""cuBLASLt and hipBLASLt through ctypes: where the library is, which algorithm it has for a product, and the call of it.

Both have one interface under two prefixes; what differs are numbers, and those are a `Dialect`'s.  Structures are made and filled by the
library's own functions, so that none of their layouts is known here but one thing: a heuristic's result begins with the algorithm."""
from __future__ import annotations

import sys
from collections.abc import Mapping
from ctypes import CDLL, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, create_string_buffer, sizeof
from functools import cached_property
from pathlib import Path
from typing import Any

from rlxpy.backends.gpu.api import Held
from rlxpy.errors import DeviceError
from rlxpy.frozen import dataclass

RESULT_NBYTES = 512  # more than any library's result of its heuristic
ALIGNMENT = 256      # beyond this no library asks
TYPES = {"f32": 0, "f16": 2, "bf16": 14}  # of cudaDataType_t and hipDataType
PLAIN, BIAS = 1, 4  # epilogues of both


@dataclass(frozen=True)
class Dialect:
    """name: of the kernel library that it serves.  files: for the system's loader, any of which will do; folders: below those of Python packages.

    layout, desc, wanted: numbers of the attributes of matrices, of products and of what is asked of the heuristic; fixed: such as are always asked,
    as attribute and u32.  unsupported: the status of a product for which it has nothing."""

    name: str
    title: str
    prefix: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    install: str
    computes: Mapping[str, int]
    operations: tuple[int, int]  # as it lies, transposed
    layout: Mapping[str, int]
    desc: Mapping[str, int]
    wanted: Mapping[str, int]
    fixed: Mapping[int, int]
    statuses: Mapping[int, str]
    unsupported: int


CUBLASLT = Dialect(
    "cublaslt", "cuBLASLt", "cublasLt", ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll"),
    ("nvidia/*/lib/libcublasLt.so.*", "nvidia/*/bin/**/cublasLt64_*.dll"), "pip install 'rlxpy[cublas]'",
    computes={"f32": 68, "tf32": 77}, operations=(0, 1), layout={"count": 5, "stride": 6}, desc={"a": 3, "b": 4, "epilogue": 7, "bias": 8},
    wanted={"workspace": 1, "a": 5, "b": 6, "c": 7, "d": 8},
    fixed={3: 0},  # no sums in parts: two runs give the same bits, and what is summed in f32 is rounded once
    statuses={1: "not initialised", 3: "no memory", 7: "invalid value", 8: "not for this chip", 11: "mapping failed", 13: "execution failed", 14: "internal error", 15: "not supported"},
    unsupported=15)
HIPBLASLT = Dialect(
    "hipblaslt", "hipBLASLt", "hipblasLt", ("libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0", "/opt/rocm/lib/libhipblaslt.so"),
    ("_rocm_sdk_libraries*/lib/libhipblaslt.so*",), "install AMD's hipBLASLt, a part of ROCm",
    computes={"f32": 2, "tf32": 6}, operations=(111, 112), layout={"count": 0, "stride": 1}, desc={"a": 0, "b": 1, "epilogue": 2, "bias": 3},
    wanted={"workspace": 1}, fixed={},
    statuses={1: "not initialised", 2: "no memory", 3: "invalid value", 4: "mapping failed", 5: "execution failed", 6: "internal error", 7: "not supported", 8: "not for this chip",
              9: "no handle", 10: "invalid enumeration"},
    unsupported=7)
DIALECTS = {"nvidia": CUBLASLT, "amd": HIPBLASLT}

_P, _I, _N = c_void_p, c_int, c_size_t
SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "Create": (_P,), "Destroy": (_P,),
    "MatmulDescCreate": (_P, _I, _I), "MatmulDescDestroy": (_P,), "MatmulDescSetAttribute": (_P, _I, _P, _N),
    "MatrixLayoutCreate": (_P, _I, c_uint64, c_uint64, c_int64), "MatrixLayoutDestroy": (_P,), "MatrixLayoutSetAttribute": (_P, _I, _P, _N),
    "MatmulPreferenceCreate": (_P,), "MatmulPreferenceDestroy": (_P,), "MatmulPreferenceSetAttribute": (_P, _I, _P, _N),
    "MatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, _I, _P, _P),
    "Matmul": (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _N, _P),
}


@dataclass(frozen=True)
class Matrix:
    """By columns, as these libraries count: `step` elements from one to the next, `stride` from one matrix of a batch to the next.

    transposed: it is the other way round in memory, by rows."""

    address: int
    step: int
    stride: int = 0
    transposed: bool = False


@dataclass(frozen=True)
class Problem:
    """`count` times d[m, n] = a[m, k] b[k, n] + c + bias, of one type, summed in f32.  bias: an address, m numbers for every column; 0 for none."""

    dtype: str
    compute: str
    m: int
    n: int
    k: int
    count: int
    a: Matrix
    b: Matrix
    d: Matrix
    c: Matrix | None = None
    bias: int = 0


@dataclass(frozen=True)
class Prepared:
    """A product with nothing left to decide but the stream: the same algorithm at every call."""

    name: str
    library: BlasLt
    arguments: tuple[Any, ...]
    needs: tuple[Any, ...]

    def __call__(self, stream: int) -> None:
        self.library.call("Matmul", *self.arguments, stream)


def found(d: Dialect) -> str:
    """The library's file, or a name by which the system's loader has it; "" where it is not."""
    for folder in map(Path, sys.path):
        if files := sorted(f for pattern in d.folders for f in folder.glob(pattern)):
            return str(files[-1])
    return next((name for name in d.files if _opened(name) is not None), "")


def _opened(name: str) -> CDLL | None:
    try:
        return CDLL(name)
    except OSError:
        return None


class BlasLt:
    """One loaded library, and its handle on the device that is current.  Raises DeviceError where it cannot be used."""

    def __init__(self, dialect: Dialect, path: str) -> None:
        self.dialect = dialect
        library = _opened(path)
        if library is None:
            raise DeviceError(f"{dialect.title} cannot be loaded", why=f"{path or 'it'} is not here", fix=dialect.install)
        try:
            self._functions = {name: getattr(library, dialect.prefix + name) for name in SIGNATURES}
        except AttributeError as e:
            raise DeviceError(f"{path} is not the {dialect.title} it is named for", why=str(e), fix=dialect.install) from None
        for name, f in self._functions.items():
            f.argtypes, f.restype = SIGNATURES[name], c_int
        self._one, self._zero = c_float(1), c_float(0)

    def call(self, name: str, *arguments: Any) -> None:
        """Raises DeviceError."""
        if status := self._functions[name](*arguments):
            raise self._refusal(name, status)

    def _refusal(self, name: str, status: int) -> DeviceError:
        d = self.dialect
        return DeviceError(f"{d.title} refuses {d.prefix}{name}", why=f"status {status}: {d.statuses.get(status, 'unknown')}", fix="--kernels gpu does without it")

    def _made(self, kind: str, *arguments: Any) -> Held:
        handle = c_void_p()
        self.call(f"{kind}Create", byref(handle), *arguments)
        return Held(handle, self._functions[f"{kind}Destroy"])

    @cached_property
    def _handle(self) -> Held:
        return self._made("")

    def _set(self, kind: str, thing: Held, attribute: int, value: Any) -> None:
        self.call(f"{kind}SetAttribute", thing.handle, attribute, byref(value), sizeof(value))

    def _layout(self, p: Problem, m: Matrix, rows: int, columns: int) -> Held:
        """Of a matrix as it lies in memory."""
        made = self._made("MatrixLayout", TYPES[p.dtype], *((columns, rows) if m.transposed else (rows, columns)), m.step)
        if p.count > 1:
            self._set("MatrixLayout", made, self.dialect.layout["count"], c_int32(p.count))
            self._set("MatrixLayout", made, self.dialect.layout["stride"], c_int64(m.stride))
        return made

    def _description(self, p: Problem) -> Held:
        number, d = self.dialect.desc, self.dialect
        made = self._made("MatmulDesc", d.computes[p.compute], TYPES["f32"])
        for which, m in (("a", p.a), ("b", p.b)):
            self._set("MatmulDesc", made, number[which], c_int32(d.operations[m.transposed]))
        self._set("MatmulDesc", made, number["epilogue"], c_uint32(BIAS if p.bias else PLAIN))
        if p.bias:
            self._set("MatmulDesc", made, number["bias"], c_void_p(p.bias))
        return made

    def _wanted(self, matrices: tuple[Matrix, ...], nbytes: int) -> Held:
        """What an algorithm may rely on: the workspace, and the alignment of a, b, c and d where the library asks for it."""
        made, number = self._made("MatmulPreference"), self.dialect.wanted
        self._set("MatmulPreference", made, number["workspace"], c_uint64(nbytes))
        aligned = {number[which]: min(m.address & -m.address, ALIGNMENT) for which, m in zip("abcd", matrices, strict=True) if which in number}
        for attribute, value in {**aligned, **self.dialect.fixed}.items():
            self._set("MatmulPreference", made, attribute, c_uint32(value))
        return made

    def prepare(self, p: Problem, workspace: int, nbytes: int) -> Prepared | str:
        """workspace: `nbytes` of device memory that the call alone uses.  A text says why the library has nothing for the product.  Raises DeviceError."""
        try:
            handle = self._handle.handle
        except DeviceError as e:  # as on a chip that it does not know
            return f"{e.what}: {e.why}"
        matrices = (p.a, p.b, p.c or p.d, p.d)  # where nothing is added, c is not read
        layouts = [self._layout(p, m, *size) for m, size in zip(matrices, ((p.m, p.k), (p.k, p.n), (p.m, p.n), (p.m, p.n)), strict=True)]
        description, wanted = self._description(p), self._wanted(matrices, nbytes)
        algorithm, count = create_string_buffer(RESULT_NBYTES), c_int()
        status = self._functions["MatmulAlgoGetHeuristic"](handle, description.handle, *(m.handle for m in layouts), wanted.handle, 1, algorithm, byref(count))
        if status not in (0, self.dialect.unsupported):
            raise self._refusal("MatmulAlgoGetHeuristic", status)
        if status or count.value < 1:
            return f"{self.dialect.title} has no algorithm for {p.count} of {p.m}x{p.k} by {p.k}x{p.n} in {p.dtype}, computed in {p.compute}"
        a, b, c, d = ((m.address, layout.handle) for m, layout in zip(matrices, layouts, strict=True))
        call = (handle, description.handle, byref(self._one), *a, *b, byref(self._one if p.c else self._zero), *c, *d, algorithm, workspace, nbytes)
        return Prepared(f"{self.dialect.prefix}Matmul", self, call, (description, *layouts))
