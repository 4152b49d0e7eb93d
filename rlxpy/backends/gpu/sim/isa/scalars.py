"""Decoding of scalar instructions and of those that steer a wave."""
from __future__ import annotations

import re
from collections.abc import Callable

from rlxpy.backends.gpu.sim.isa.build import CONDITIONS, MODE_READ, MODE_WRITE, Context, instruction
from rlxpy.backends.gpu.sim.isa.operands import register, source
from rlxpy.backends.gpu.sim.isa.records import Instruction, Source, names
from rlxpy.backends.gpu.sim.isa.scalar import SCALAR_ALIASES, SCALARS
from rlxpy.backends.gpu.sim.isa.text import Parsed
from rlxpy.backends.gpu.sim.isa.vectors import canonical

INDEX = {row.name: k for k, row in enumerate(SCALARS)}
# What orders memory, feeds caches or hints: one instruction at a time, nothing is left for these to do.
_NOTHING = re.compile(
    r"s_nop|s_waitcnt\w*|s_wait_(?!event)\w+|s_delay_alu|s_clause|s_(set_)?inst_prefetch\w*|s_code_end|s_icache_inv|s_setprio\w*|s_dcache_\w+|s_gl1_inv|s_ttracedata\w*|s_version"
    r"|s_(inc|dec)perflevel|s_prefetch_\w+|s_singleuse_vdst|v_nop|buffer_(gl[01]_inv|wbl2|inv|wbinvl1(_vol)?|gl1_inv)|global_(inv|wb|wbinv)|global_prefetch_b8|v_pipeflush")
_FREES_REGISTERS = "sendmsg(MSG_DEALLOC_VGPRS)"
_HWREG = re.compile(r"hwreg\((\w+)(?:, (\d+), (\d+))?\)")
_FLAT_SCRATCH = ("HW_REG_FLAT_SCR_LO", "HW_REG_FLAT_SCR_HI")  # where flat scratch begins: the executor knows
_ALL_BARRIER = ("-1", "0xffff")  # the block's own; others are named barriers


def is_nothing(parsed: Parsed) -> bool:
    return bool(_NOTHING.fullmatch(parsed.name)) or (parsed.name == "s_sendmsg" and parsed.operands == (_FREES_REGISTERS,))


def scalar(parsed: Parsed, pc: int, nbytes: int, context: Context) -> Instruction:
    """Raises KeyError or ValueError for what is not known."""
    if parsed.name in _STEERING:
        return _STEERING[parsed.name](parsed, pc, nbytes, context)
    if parsed.name.startswith("s_cbranch_") or parsed.name == "s_branch":
        condition = parsed.name.removeprefix("s_cbranch_").upper() if parsed.name != "s_branch" else "ALWAYS"
        return instruction("branch", args=(CONDITIONS.index(condition), _label(parsed.operands[0], pc, context)))
    row = SCALARS[INDEX[canonical(parsed.name.removeprefix("v_").removeprefix("s_"), SCALAR_ALIASES)]]
    if parsed.mods:
        raise ValueError(f"modifier {', '.join(sorted(parsed.mods))} is not simulated")
    ops = list(parsed.operands)
    dst = ops.pop(0) if row.type else ""
    if len(ops) != len(row.operands):
        raise ValueError(f"{len(row.operands)} sources are wanted, there are {len(ops)}")
    sources = [source(text, letter) for text, letter in zip(ops, row.operands, strict=True)]
    for s in sources:
        s.sel = names()["WHOLE"]
    if row.reads_old:
        sources += [Source()] * (2 - len(sources)) + [source(dst, row.type)]
    return instruction("salu", sources, op=INDEX[row.name], dst=register(dst, "s") if dst else 0, flags=0 if row.type else names()["NO_DST"])


def _label(text: str, pc: int, context: Context) -> int:
    words = int(text, 0)
    target = pc + 4 + 4 * (words - 0x10000 if words >= 0x8000 else words)
    if target not in context.index_of:
        raise ValueError(f"it jumps to {target:#x}, where no instruction begins")
    return context.index_of[target]


def _jump(keeps: int, jumps: int) -> Callable[[Parsed, int, int, Context], Instruction]:
    def decode(parsed: Parsed, pc: int, nbytes: int, context: Context) -> Instruction:
        ops = list(parsed.operands)
        dst = register(ops.pop(0), "s") if keeps else 0
        known = 1 + _label(ops.pop(), pc, context) if parsed.name == "s_call_b64" else 0
        return instruction("jump", [source(ops[0], "U")] if ops else [], (keeps, jumps, known, nbytes), dst=dst)
    return decode


def _mode(parsed: Parsed, pc: int, nbytes: int, context: Context) -> Instruction:
    write = parsed.name.startswith("s_set")
    text, other = (parsed.operands[0], parsed.operands[1]) if write else (parsed.operands[1], parsed.operands[0])
    m = _HWREG.fullmatch(text)
    if m and write and m[1] in _FLAT_SCRATCH:
        return instruction("nop")
    if m is None or m[1] not in ("HW_REG_MODE", "HW_REG_WAVE_MODE"):
        raise ValueError(f"{text} is not simulated")
    first, count = int(m[2] or 0), int(m[3] or 32)
    if write:
        return instruction("mode", [source(other, "u")], (MODE_WRITE, first, count))
    return instruction("mode", [], (MODE_READ, first, count), dst=register(other, "s"))


def _mode_part(first: int) -> Callable[[Parsed, int, int, Context], Instruction]:
    return lambda parsed, pc, nbytes, context: instruction("mode", [source(parsed.operands[0], "u")], (MODE_WRITE, first, 4))


def _index(what: int, on: int) -> Callable[[Parsed, int, int, Context], Instruction]:
    """what: 1 sets the distance, 2 which operands it moves.  on: 0, 1, or 2 for as it was."""
    def decode(parsed: Parsed, pc: int, nbytes: int, context: Context) -> Instruction:
        moved = re.findall(r"SRC[012]|DST", parsed.operands[-1]) if what & 2 else []
        mode = sum(1 << ("SRC0", "SRC1", "SRC2", "DST").index(m) for m in moved)
        return instruction("index", [source(parsed.operands[0], "u")] if what & 1 else [], (what, on, mode))
    return decode


def _relative(result: int, words: int) -> Callable[[Parsed, int, int, Context], Instruction]:
    return lambda parsed, pc, nbytes, context: instruction("relative", [source(parsed.operands[1], "u")], (result, words), dst=register(parsed.operands[0], "s"))


def _plain(unit: str, *args: int) -> Callable[[Parsed, int, int, Context], Instruction]:
    return lambda parsed, pc, nbytes, context: instruction(unit, args=args)


def _barrier(signals: int, waits: int) -> Callable[[Parsed, int, int, Context], Instruction]:
    def decode(parsed: Parsed, pc: int, nbytes: int, context: Context) -> Instruction:
        if parsed.operands and parsed.operands[0] not in _ALL_BARRIER:
            raise ValueError("named barriers are not simulated")
        return instruction("barrier", args=(signals, waits))
    return decode


_STEERING: dict[str, Callable[[Parsed, int, int, Context], Instruction]] = {
    "s_endpgm": _plain("end"), "s_endpgm_saved": _plain("end"), "s_sleep": _plain("sleep"),
    "s_trap": lambda parsed, pc, nbytes, context: instruction("trap", args=(int(parsed.operands[0], 0),)),
    "s_barrier": _barrier(1, 1), "s_barrier_signal": _barrier(1, 0), "s_barrier_wait": _barrier(0, 1),
    "s_getpc_b64": _jump(1, 0), "s_setpc_b64": _jump(0, 1), "s_swappc_b64": _jump(1, 1), "s_call_b64": _jump(1, 1),
    "s_getreg_b32": _mode, "s_setreg_b32": _mode, "s_setreg_imm32_b32": _mode, "s_denorm_mode": _mode_part(4), "s_round_mode": _mode_part(0),
    "s_set_gpr_idx_on": _index(3, 1), "s_set_gpr_idx_off": _index(0, 0), "s_set_gpr_idx_idx": _index(1, 2), "s_set_gpr_idx_mode": _index(2, 2),
    "s_movrels_b32": _relative(0, 1), "s_movrels_b64": _relative(0, 2), "s_movreld_b32": _relative(1, 1), "s_movreld_b64": _relative(1, 2),
    **{name: lambda parsed, pc, nbytes, context: instruction("clock", args=(8,), dst=register(parsed.operands[0], "s")) for name in ("s_memtime", "s_memrealtime")},
}
