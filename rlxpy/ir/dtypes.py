"""Element types: their text, NumPy type, bits and C spelling."""
from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from rlxpy.errors import BuildError, nearest

Array: TypeAlias = "np.ndarray[Any, Any]"


class DType(Enum):
    """Members are (text, NumPy or ml_dtypes name, bits, kind, C type).  kind: b bool, i signed, u unsigned, f float, c complex."""

    BOOL = ("bool", "bool", 8, "b", "uint8_t")
    I4 = ("i4", "int4", 4, "i", "int8_t")
    I8 = ("i8", "int8", 8, "i", "int8_t")
    I16 = ("i16", "int16", 16, "i", "int16_t")
    I32 = ("i32", "int32", 32, "i", "int32_t")
    I64 = ("i64", "int64", 64, "i", "int64_t")
    U4 = ("u4", "uint4", 4, "u", "uint8_t")
    U8 = ("u8", "uint8", 8, "u", "uint8_t")
    U16 = ("u16", "uint16", 16, "u", "uint16_t")
    U32 = ("u32", "uint32", 32, "u", "uint32_t")
    U64 = ("u64", "uint64", 64, "u", "uint64_t")
    F4E2M1 = ("f4e2m1", "float4_e2m1fn", 4, "f", "uint8_t")
    F8E4M3FN = ("f8e4m3fn", "float8_e4m3fn", 8, "f", "uint8_t")
    F8E5M2 = ("f8e5m2", "float8_e5m2", 8, "f", "uint8_t")
    F16 = ("f16", "float16", 16, "f", "_Float16")
    BF16 = ("bf16", "bfloat16", 16, "f", "uint16_t")
    F32 = ("f32", "float32", 32, "f", "float")
    F64 = ("f64", "float64", 64, "f", "double")
    C64 = ("c64", "complex64", 64, "c", "float _Complex")
    C128 = ("c128", "complex128", 128, "c", "double _Complex")

    def __init__(self, text: str, numpy_name: str, bits: int, kind: str, c: str) -> None:
        self.text, self.numpy_name, self.bits, self.kind, self.c = text, numpy_name, bits, kind, c

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python call, met millions of times

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type; ml_dtypes is imported only for the types NumPy lacks."""
        if self.bits >= 8 and not self.numpy_name.startswith(("bfloat", "float8")):
            return np.dtype(self.numpy_name)
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy_name))
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of one element in an array; sub-byte types take a whole byte outside packed encodings."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def accumulator(self) -> DType:
        """The type sums are kept in: f32 for narrower floats, otherwise the type itself."""
        return DType.F32 if self.is_float and self.bits < 32 else self

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value of an integer or bool type."""
        if self.kind == "b":
            return 0, 1
        return (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1) if self.kind == "i" else (0, (1 << self.bits) - 1)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"DType.{self.name}"


_BY_TEXT = {d.text: d for d in DType}
_BY_NUMPY = {d.numpy_name: d for d in DType}


def dtype(spec: DType | str | np.dtype[Any] | type) -> DType:
    """DType of "f32", "float32", a NumPy dtype, or a DType.  Raises BuildError naming the known types.

    NumPy's short names are not read: its "i8" has 8 bytes, ours 8 bits."""
    if isinstance(spec, DType):
        return spec
    try:
        name = spec if isinstance(spec, str) else np.dtype(spec).name if spec is not None else ""
        return _BY_TEXT.get(name) or _BY_NUMPY[name]
    except (TypeError, KeyError):
        raise BuildError(f"no dtype {spec!r}", why=f"near it: {nearest(str(spec), [*_BY_TEXT, *_BY_NUMPY])}", fix=f"one of: {', '.join(_BY_TEXT)}") from None
