"""C text of what the compiler knows: sizes, types, literals and names."""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlxpy.extend.kernels import When
from rlxpy.ir.dims import Dim, Quotient, Shape, SymDim
from rlxpy.ir.dtypes import DType

# storage types of the prelude; floats of 16 bits and fewer are stored as integers and computed in f32, and of a 4-bit integer's byte only the lower half counts
STORAGE = {DType.BOOL: "u8", DType.I4: "i8", DType.U4: "u8", DType.F4E2M1: "u8", DType.F8E4M3FN: "u8", DType.F8E5M2: "u8", DType.F16: "u16", DType.BF16: "u16"}
VALUE = {DType.I4: "i8", DType.U4: "u8", DType.F16: "f32", DType.BF16: "f32", DType.F8E4M3FN: "f32", DType.F8E5M2: "f32", DType.F4E2M1: "f32", DType.BOOL: "_Bool"}


def storage(d: DType) -> str:
    """C type of an element in memory."""
    return STORAGE.get(d, d.text)


def value(d: DType) -> str:
    """C type that arithmetic on the element uses."""
    return VALUE.get(d, d.text)


def dim(d: Dim) -> str:
    """A size as a C expression over the symbols' names, fit for any place in a larger one."""
    if isinstance(d, int):
        return str(d)
    terms = []
    for monomial, c in d.terms:
        factors = [_atom(a) for a in monomial]
        if c != 1 or not factors:
            factors.insert(0, str(c))
        terms.append("*".join(factors))
    text = " + ".join(terms)
    return text if text.isidentifier() else f"({text})"  # it may stand behind % or /


def walk(strides: Shape, index: tuple[str, ...]) -> str:
    """An offset as a C expression: indices times their strides."""
    return " + ".join(f"{i}*{dim(s)}" for i, s in zip(index, strides, strict=True) if s != 0) or "0"


def size_name(symbol: str) -> str:
    """C name of a symbol: it cannot meet a name of ours, nor of C itself, as size_t would."""
    return f"dim_{symbol}"


def _atom(a: Any) -> str:
    return f"rlx_floor_quotient({dim(a.num)}, {a.den})" if isinstance(a, Quotient) else size_name(a.name)


def names(*dims: Dim) -> set[str]:
    """Symbols that sizes mention."""
    return {s.name for d in dims if isinstance(d, SymDim) for s in d.symbols()}


def literal(v: Any, d: DType) -> str:
    """One constant, bit for bit: hexadecimal floats, and integers with their suffix; negative ones in parentheses, for two signs side by side are C's --."""
    if d is DType.BOOL:
        return f"(_Bool){int(v)}"
    if d.is_integer:
        low = int(v) == d.range[0] and d.kind == "i"
        cast = {"i64": "(i64)", "u64": "(u64)"}.get(d.text, "")  # _Generic, which chooses by the first operand, tells long long from long
        suffix = {"i64": "LL", "u64": "ULL", "u32": "U"}.get(d.text, "")
        return f"{cast}({int(v) + 1}{suffix}-1)" if low else f"{cast}{_signed(f'{int(v)}{suffix}')}"
    if d.is_complex:
        part = DType.F64 if d is DType.C128 else DType.F32
        return f"rlx_parts_{d.text}({literal(np.real(v), part)}, {literal(np.imag(v), part)})"
    x = float(v)
    if np.isnan(x):
        return "((f64)__builtin_nan(\"\"))" if d is DType.F64 else "((f32)__builtin_nanf(\"\"))"
    if np.isinf(x):
        return f"({'-' if x < 0 else ''}(f64)__builtin_inf())" if d is DType.F64 else f"({'-' if x < 0 else ''}(f32)__builtin_inff())"
    return _signed(x.hex() if d is DType.F64 else f"{x.hex()}f")


def _signed(number: str) -> str:
    return f"({number})" if number.startswith("-") else number


def comment(text: str) -> str:
    """Text that cannot end a C comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("*/", "* /")


def condition(when: When, unless: Sequence[When]) -> str:
    """C for whether sizes are those of `when` and of none of `unless`; "" where every size is."""
    def inside(band: When) -> str:
        return "(" + " && ".join(f"{size_name(n)} >= {lo} && {size_name(n)} <= {hi}" for n, lo, hi in band) + ")"
    return " && ".join([*([inside(when)] if when else []), *(f"!{inside(band)}" for band in unless)])
