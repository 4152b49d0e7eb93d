"""Decoding of matrix instructions: sizes and types by their names, blocks by how many values a lane brings."""
from __future__ import annotations

import re

from rlxpy.backends.gpu.sim.isa.build import Context, instruction
from rlxpy.backends.gpu.sim.isa.operands import register, source
from rlxpy.backends.gpu.sim.isa.records import Instruction, names
from rlxpy.backends.gpu.sim.isa.text import Parsed, operand
from rlxpy.backends.gpu.sim.isa.vectors import listed

_NAME = re.compile(r"v_(mfma|wmma)_(f32|f16|bf16|i32|f64)_(\d+)x(\d+)x(\d+)_?(?:\d+b_)?(f32|f16|bf16|f64|iu?8|iu?4|(?:fp8|bf8)_(?:fp8|bf8))(?:_1k)?")
_TYPES = {"f32": "M_F32", "f16": "M_F16", "bf16": "M_BF16", "f64": "M_F64", "i8": "M_I8", "i32": "M_I32"}
BITS = {"f32": 32, "f16": 16, "bf16": 16, "f64": 64, "i8": 8}


def is_matrix(name: str) -> bool:
    return name.startswith(("v_mfma_", "v_wmma_"))


def matrix(parsed: Parsed, context: Context) -> Instruction:
    """Raises ValueError for what is not simulated: sparse forms, broadcasts (cbsz, abid, blgp), wave64 of gfx12."""
    k, model, mods = names(), context.model, parsed.mods
    m = _NAME.fullmatch(parsed.name)
    if m is None:
        raise ValueError("this matrix instruction is not simulated")
    family, out, rows, columns, depth, kind = m[1], m[2], int(m[3]), int(m[4]), int(m[5]), m[6]
    known = {"neg_lo", "clamp", "op_sel"} if family == "wmma" else set()
    if unknown := mods.keys() - known:
        raise ValueError(f"modifier {', '.join(sorted(unknown))} is not simulated")
    if family == "wmma" and model.major >= 12 and model.wave == 64:
        raise ValueError("matrix instructions of gfx12 in waves of 64 are not simulated")
    signed = listed(mods, "neg_lo", 2, 0)
    if not kind.startswith("iu") and any(listed(mods, "neg_lo", 3, 0)):
        raise ValueError("negated operands of matrix instructions are not simulated")
    dst, a, b, c = parsed.operands
    left, right = (_type(kind, at, signed[at], model.fnuz) for at in (0, 1))
    blocks = 1 if family == "wmma" else model.wave * operand(a).count * 32 // BITS.get(kind, 8) // (rows * depth)
    mode = k["MFMA"] if family == "mfma" else k["WMMA12" if model.major >= 12 else "WMMA11"]
    flags = (k["M_CLAMP"] if "clamp" in mods else 0) | (k["M_HIGH"] if model.major < 12 and listed(mods, "op_sel", 3, 0)[2] else 0)
    letter = {"f64": "d", "i32": "u", "f16": "h", "bf16": "b"}.get(out, "f")
    args = (mode, rows, columns, depth, blocks, k[left], k[right], k[_TYPES[out]], flags)
    return instruction("matrix", [source(a, "u"), source(b, "u"), source(c, letter)], args, dst=register(dst, "v"))


def _type(kind: str, side: int, signed: int, fnuz: bool) -> str:
    if kind in ("iu8", "iu4"):
        return f"M_{'I' if signed else 'U'}{kind[2:]}"
    if "_" in kind:
        return f"M_{kind.split('_')[side].upper()}{'Z' if fnuz else ''}"
    return _TYPES[kind]
