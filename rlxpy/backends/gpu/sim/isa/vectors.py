"""Decoding of vector instructions: operands by the row's signature, and every modifier accounted for."""
from __future__ import annotations

import re
import struct
from functools import cache

from rlxpy.backends.gpu.sim.isa.build import LANE_MOVES, Context, instruction
from rlxpy.backends.gpu.sim.isa.operands import register, selected, source
from rlxpy.backends.gpu.sim.isa.permute import CONTROLS, dpp, writable
from rlxpy.backends.gpu.sim.isa.records import NO_REG, Instruction, Source, names
from rlxpy.backends.gpu.sim.isa.table import SHORT, Row
from rlxpy.backends.gpu.sim.isa.text import Parsed, operand, split
from rlxpy.backends.gpu.sim.isa.vector import ALIASES, KEEPS_OTHER_HALF, ROWS

INDEX = {row.name: k for k, row in enumerate(ROWS)}
_ENCODING = re.compile(r"_(e32|e64|dpp|sdwa|e64_dpp)$")
_OMOD = {("mul", "2"): 1, ("mul", "4"): 2, ("div", "2"): 3}
_REST = {"UNUSED_PAD": "ZERO", "UNUSED_SEXT": "SIGN", "UNUSED_PRESERVE": "KEEP"}
_KNOWN = CONTROLS | {"clamp", "mul", "div", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "dst_sel", "dst_unused", "src0_sel", "src1_sel", "row_mask", "bank_mask",
                     "bound_ctrl", "fi", "byte_sel", "bitop3"}


@cache
def canonical(name: str, aliases: tuple[tuple[str, str], ...]) -> str:
    for pattern, new in aliases:
        name = re.sub(pattern, new, name)
    return name


def listed(mods: dict[str, str], key: str, count: int, default: int) -> list[int]:
    """`op_sel:[0,1,0]` as numbers, as many as asked for."""
    found = [int(n) for n in re.findall(r"\d+", mods.get(key, ""))]
    return (found + [default] * count)[:count]


def vector(parsed: Parsed, context: Context) -> list[Instruction]:
    """The records of one v_ instruction.  Raises KeyError for a name that no row has, ValueError for what a row cannot say."""
    base = _ENCODING.sub("", parsed.name.removeprefix("v_"))
    if base in _MOVES:
        return [_move(base, parsed, context)]
    exec_too = base.startswith("cmpx_")
    base = canonical(base.replace("cmpx_", "cmp_"), ALIASES)
    packed = base.startswith("pk_") and base not in INDEX
    if packed:
        base = canonical(base.removeprefix("pk_"), ALIASES)
    if "clamp" in parsed.mods and f"{base}+clamp" in INDEX:
        base += "+clamp"
    elif "clamp" in parsed.mods and ROWS[INDEX[base]].type not in ("f", "h", "d"):
        raise ValueError("saturation of this instruction is not simulated")
    if unknown := parsed.mods.keys() - _KNOWN:
        raise ValueError(f"modifier {', '.join(sorted(unknown))} is not simulated")
    return [_from_row(ROWS[INDEX[base]], parsed, context, packed, exec_too)]


def dual(text: str, context: Context) -> list[Instruction]:
    """`v_dual_mul_f32 v0, v1, v2 :: v_dual_mov_b32 v3, v4`: both read before either writes."""
    first, second = (vector(split(part.strip().replace("v_dual_", "v_", 1)), context)[0] for part in text.split("::"))
    first.flags |= names()["PAIRED"]
    return [first, second]


def _from_row(row: Row, parsed: Parsed, context: Context, packed: bool, exec_too: bool) -> Instruction:
    k, mods, ops = names(), parsed.mods, list(parsed.operands)
    sdwa = any(m in mods for m in ("dst_sel", "src0_sel", "src1_sel"))
    dst = ops.pop(0) if row.type else ""
    wanted = len(row.operands)
    mask_out = register(ops.pop(0), "s") if row.sets_mask and len(ops) > wanted + row.takes_mask else NO_REG
    mask_in = NO_REG
    if row.takes_mask:
        mask_in = register(ops.pop(), "s") if len(ops) > wanted else k["VCC"]  # v_div_fmas and dual cndmask do not name it
    if len(ops) != wanted:
        raise ValueError(f"{wanted} sources are wanted, there are {len(ops)}")
    sources = [source(text, letter) for text, letter in zip(ops, row.operands, strict=True)]
    flags = (k["WRITES_EXEC"] if exec_too else 0) | (0 if row.type else k["NO_DST"])
    if "clamp" in mods and not row.name.endswith("+clamp"):
        flags |= k["CLAMP"]
    _halves(row, sources, mods, packed)
    if row.reads_old:
        sources += [Source()] * (3 - len(sources)) + [source(dst, row.type)]
    made = instruction("valu", sources, _args(row, mods, context), op=INDEX[row.name], flags=flags, mask_out=mask_out, mask_in=mask_in)
    made.omod = next((n for (key, value), n in _OMOD.items() if mods.get(key) == value), 0)
    if packed:
        made.flags |= k["PACKED" if row.type in SHORT else "PACKED_F32"]
    if sdwa:
        for name, s in zip(("src0_sel", "src1_sel"), made.src, strict=False):
            if mods.get(name, "DWORD") != "DWORD":
                s.sel = selected(mods[name])
    if (lanes := dpp(mods, context.model.wave)) is not None:
        made.perm = 1 + context.tables.place(lanes)
        made.writable = writable(mods)
        made.flags |= (k["BOUND_CTRL"] if "bound_ctrl" in mods else 0) | (k["FETCH_INACTIVE"] if mods.get("fi") == "1" else 0)
        if made.src[0].kind != k["SRC_VGPR"]:
            raise ValueError("DPP of a scalar is not simulated")
    if row.type:
        _destination(made, row, dst, mods, context, packed, sdwa)
    return made


def _args(row: Row, mods: dict[str, str], context: Context) -> list[int]:
    if row.name.startswith("bitop3"):
        return [int(mods.get("bitop3", "0"), 0)]
    if "iu" in row.name:
        return listed(mods, "neg_lo", 2, 0)
    return [int(context.model.fnuz)]


def _halves(row: Row, sources: list[Source], mods: dict[str, str], packed: bool) -> None:
    """op_sel, op_sel_hi, neg_lo, neg_hi and byte_sel, each as this row means them."""
    k, n = names(), len(sources)
    low, high = listed(mods, "op_sel", n, 0), listed(mods, "op_sel_hi", n, 1)
    mix = "_mix" in row.name
    for at, s in enumerate(sources):
        letter = chr(s.type)
        if mix:
            if listed(mods, "op_sel_hi", n, 0)[at]:
                s.flags |= k["WIDEN"]
                s.sel = k["WORD_1" if low[at] else "WORD_0"]
                s.value = _half_constant(s)
        elif packed and row.type not in SHORT:
            s.sel, s.sel_hi = k["DWORD_1" if low[at] else "DWORD_0"], k["DWORD_1" if high[at] else "DWORD_0"]
            if s.kind == k["SRC_CONST"]:
                s.sel = s.sel_hi = k["WHOLE"]
        elif packed or letter == "p":
            s.sel, s.sel_hi = k["WORD_1" if low[at] else "WORD_0"], k["WORD_1" if high[at] else "WORD_0"]
        elif row.name == "pk_mov_b32":
            s.sel = k["DWORD_1" if low[at] else "DWORD_0"]
        elif letter in SHORT and low[at]:
            s.sel = k["WORD_1"]
        elif "fp8" in row.name or "bf8" in row.name:
            byte = int(mods.get("byte_sel", "0")) or (2 * low[0] + low[1] if n > 1 else 2 * low[0])
            if row.sources == "u" and byte:
                s.sel = k["WORD_1"] if row.name.startswith("cvt_pk_f32") else k[f"BYTE_{byte}"]
        elif low[at] and "op_sel" in mods:
            raise ValueError("op_sel of this instruction is not simulated")
        if (packed or letter == "p") and "iu" not in row.name:
            s.flags ^= (k["NEG"] if listed(mods, "neg_lo", n, 0)[at] else 0) | (k["NEG_HI"] if listed(mods, "neg_hi", n, 0)[at] else 0)


def _half_constant(s: Source) -> int:
    """An inline float, read as f16."""
    if s.kind != names()["SRC_CONST"] or s.value <= 0xffff:
        return int(s.value)
    return int.from_bytes(struct.pack("<e", struct.unpack("<f", int(s.value).to_bytes(4, "little"))[0]), "little")


def _destination(made: Instruction, row: Row, dst: str, mods: dict[str, str], context: Context, packed: bool, sdwa: bool) -> None:
    k, d = names(), operand(dst)
    if d.kind != "v":
        raise ValueError(f"a result in {dst} is not simulated")
    made.dst = d.reg
    if sdwa:
        made.dst_sel, made.dst_rest = selected(mods.get("dst_sel", "DWORD")), k[_REST[mods.get("dst_unused", "UNUSED_PRESERVE")]]
        if row.type in SHORT and made.dst_sel == k["WHOLE"]:
            made.dst_sel, made.dst_rest = k["WORD_0"], k["ZERO"]
    elif row.type in SHORT and not packed:
        high = d.half == "high" or listed(mods, "op_sel", len(row.operands) + 1, 0)[-1] or "mixhi" in row.name
        clears = context.model.clears_half and row.name not in KEEPS_OTHER_HALF and not high
        made.dst_sel, made.dst_rest = k["WORD_1" if high else "WORD_0"], k["ZERO" if clears else "KEEP"]
    if row.reads_old and made.dst_sel == k["WORD_1"]:
        made.src[3].sel = k["WORD_1"]
    if row.reads_old and packed:
        made.src[3].sel, made.src[3].sel_hi = k["WORD_0"], k["WORD_1"]


# Moves between lanes, by name: which, and the order in which step_lane takes their operands.
_MOVES = {
    "readfirstlane_b32": ("READFIRST", "0"), "readlane_b32": ("READ", "01"), "writelane_b32": ("WRITE", "01"), "swap_b32": ("SWAP", "0"),
    "permlane16_swap_b32": ("SWAP16", "0"), "permlane32_swap_b32": ("SWAP32", "0"), "movrels_b32": ("MOVRELS", "0"), "movreld_b32": ("MOVRELD", "0"),
    "permlane16_b32": ("ROW", "012"), "permlanex16_b32": ("ROW_X", "012"), "permlane16_var_b32": ("ROW", "01"), "permlanex16_var_b32": ("ROW_X", "01"),
    "permlane64_b32": ("HALVES", "0"),
}


def lane_move(kind: str, sources: list[Source], dst: int, *, flags: int = 0, offset: int = 0, arg: int = 0) -> Instruction:
    return instruction("lane", sources, (LANE_MOVES.index(kind), arg), dst=dst, flags=flags, offset=offset)


def _move(base: str, parsed: Parsed, context: Context) -> Instruction:
    k, (kind, order), mods = names(), _MOVES[base], parsed.mods
    if unknown := mods.keys() - {"op_sel"}:
        raise ValueError(f"modifier {', '.join(sorted(unknown))} is not simulated")
    fetch_inactive, bound = listed(mods, "op_sel", 2, 0)
    flags = (k["FETCH_INACTIVE"] if fetch_inactive else 0) | (k["BOUND_CTRL"] if bound else 0)
    sources = [source(parsed.operands[1 + int(at)], "u") for at in order]
    to_scalar = kind in ("READFIRST", "READ")
    return lane_move(kind, sources, register(parsed.operands[0], "s" if to_scalar else "v"), flags=flags, arg=k["M0"])
