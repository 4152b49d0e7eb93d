"""Decoding of memory instructions: widths, parts of registers, addresses and atomics by their names."""
from __future__ import annotations

import re

from rlxpy.backends.gpu.sim.isa.build import Context, instruction
from rlxpy.backends.gpu.sim.isa.operands import register, source
from rlxpy.backends.gpu.sim.isa.permute import swizzle
from rlxpy.backends.gpu.sim.isa.records import NO_VGPR, Instruction, Source, names
from rlxpy.backends.gpu.sim.isa.scalar import ATOMICS
from rlxpy.backends.gpu.sim.isa.text import Parsed, operand
from rlxpy.backends.gpu.sim.isa.vectors import lane_move

SIMPLE = {  # bytes, sign extension
    "dword": (4, 0), "b32": (4, 0), "dwordx2": (8, 0), "b64": (8, 0), "dwordx3": (12, 0), "b96": (12, 0), "dwordx4": (16, 0), "b128": (16, 0),
    "dwordx8": (32, 0), "b256": (32, 0), "dwordx16": (64, 0), "b512": (64, 0),
    "ubyte": (1, 0), "u8": (1, 0), "byte": (1, 0), "b8": (1, 0), "sbyte": (1, 1), "i8": (1, 1),
    "ushort": (2, 0), "u16": (2, 0), "short": (2, 0), "b16": (2, 0), "sshort": (2, 1), "i16": (2, 1),
}
_ATOMIC_INDEX = {row.name: k for k, row in enumerate(ATOMICS)}
_ATOMIC_ALIASES = (
    (r"_x2$", "_u64"), (r"^(s|u)(min|max)(_u64)?$", lambda m: f"{m[2]}_{'i' if m[1] == 's' else 'u'}{'64' if m[3] else '32'}"),
    (r"^(and|or|xor|swap|cmpswap|wrxchg|storexchg|cmpst|cmpstore)(?:_u(64))?$", lambda m: f"{m[1]}_b{m[2] or '32'}"), (r"^(add|sub|rsub|inc|dec)$", r"\1_u32"),
    (r"^f(min|max)$", r"\1_f32"), (r"^f(min|max)_u64$", r"\1_f64"), (r"^(min|max)_num_", r"\1_"), (r"^(wrxchg|storexchg)_", "swap_"), (r"^(cmpst|cmpstore)_", "cmpswap_"),
    (r"^add_(u32|u64|f32|f64)$", r"add_\1"),
)
_HINTS = {"glc", "slc", "dlc", "sc0", "sc1", "nt", "scope", "th"}  # of caches, which nothing here has
_SPACES = {"global": "SPACE_GLOBAL", "flat": "SPACE_FLAT", "scratch": "SPACE_SCRATCH", "buffer": "SPACE_BUFFER"}


def _check(mods: dict[str, str], known: set[str]) -> None:
    if unknown := mods.keys() - known - _HINTS - {"offset"}:
        raise ValueError(f"modifier {', '.join(sorted(unknown))} is not simulated")


def access(kind: str) -> tuple[int, int, str]:
    """Bytes, sign extension and part of the register of `u8`, `ubyte_d16_hi`, `d16_hi_b16`.  Raises KeyError."""
    if "d16" not in kind:
        return (*SIMPLE[kind], "WHOLE")
    part = "WORD_1" if "d16_hi" in kind else "WORD_0"
    return (*SIMPLE[re.sub(r"_?d16(_hi)?_?", "", kind)], part)


def atomic(name: str) -> tuple[int, int]:
    """Index and bytes of an atomic by what its instruction calls it.  Raises KeyError."""
    for pattern, new in _ATOMIC_ALIASES:
        name = re.sub(pattern, new, name)
    return _ATOMIC_INDEX[name], 8 if name.endswith("64") else 4


def vector_memory(parsed: Parsed, context: Context) -> Instruction:
    """global_, flat_, scratch_ and buffer_ loads, stores and atomics."""
    k, (space, what, kind) = names(), parsed.name.split("_", 2)
    ops, mods = list(parsed.operands), parsed.mods
    _check(mods, {"offen", "idxen"} if space == "buffer" else set())
    returns = what == "atomic" and ("glc" in mods or "sc0" in mods or "ATOMIC_RETURN" in mods.get("th", ""))
    if what == "atomic":
        function, nbytes = atomic(kind)
        extends, part = 0, "WHOLE"
    else:
        function, (nbytes, extends, part) = 0, access(kind)
    old = register(ops.pop(0), "v") if returns and space != "buffer" else NO_VGPR
    data_first = what == "load" or space == "buffer"
    data = register(ops.pop(0 if data_first else 1), "v")
    address, *rest = ops
    sources = [_address(address), _base(rest[0], space) if rest else Source()]
    if space == "buffer":
        sources.append(source(rest[1], "u"))
        old = data if returns else NO_VGPR  # the one register is read and then written
    addressing = (k["OFFEN"] if "offen" in mods else 0) | (k["IDXEN"] if "idxen" in mods else 0)
    mode = {"load": "ACCESS_LOAD", "store": "ACCESS_STORE", "atomic": "ACCESS_ATOMIC"}[what]
    compared = data + nbytes // 4 if "cmp" in kind else NO_VGPR
    args = (k[_SPACES[space]], k[mode], nbytes, extends, k[part], data, function, old, addressing, compared)
    return instruction("vector_memory", sources, args, offset=int(mods.get("offset", "0"), 0))


def _address(text: str) -> Source:
    return source(text, "u") if text != "off" else Source()


def _base(text: str, space: str) -> Source:
    if text in ("off", "null"):
        return Source()
    return source(text, "u" if space == "scratch" else "U")


def scalar_memory(parsed: Parsed) -> Instruction:
    """s_load and s_buffer_load."""
    buffer = parsed.name.startswith("s_buffer_")
    nbytes, extends, _ = access(parsed.name.removeprefix("s_buffer_").removeprefix("s_").removeprefix("load_"))
    dst, base, *offsets = parsed.operands
    _check(parsed.mods, set())
    immediate, scalar = int(parsed.mods.get("offset", "0"), 0), Source()
    for text in offsets:
        if operand(text).kind == "number":
            immediate += int(text, 0)
        else:
            scalar = source(text, "u")
    return instruction("scalar_memory", [source(base, "U"), scalar], (int(buffer), 0, nbytes, extends), dst=register(dst, "s"), offset=immediate)


def lds(parsed: Parsed, context: Context) -> Instruction:
    """ds_ loads, stores, atomics, and moves between lanes."""
    name, ops, mods = parsed.name.removeprefix("ds_"), list(parsed.operands), parsed.mods
    if name in ("bpermute_b32", "permute_b32", "swizzle_b32", "bpermute_fi_b32"):
        return _between_lanes(name, parsed, context)
    _check(mods, {"offset0", "offset1"})
    if m := re.fullmatch(r"(?:read|load|write|store)_?(2(?:addr)?)(_?st64|_stride64)?_(b32|b64)", name):
        return _two(name, m[3], 64 if m[2] else 1, ops, mods)
    k, offset = names(), int(mods.get("offset", "0"), 0)
    if m := re.fullmatch(r"(read|load|write|store)_(\w+)", name):
        nbytes, extends, part = access(m[2])
        load = m[1] in ("read", "load")
        address, data = (ops[1], ops[0]) if load else (ops[0], ops[1])
        args = (0, k["ACCESS_LOAD" if load else "ACCESS_STORE"], nbytes, extends, k[part], register(data, "v"), 0, NO_VGPR, 1, NO_VGPR, offset)
        return instruction("lds", [source(address, "u")], args)
    returns = "_rtn" in name
    name = name.replace("_rtn", "")
    function, nbytes = atomic(name)
    old = register(ops.pop(0), "v") if returns else NO_VGPR
    address, *values = ops
    given = [register(v, "v") for v in values]
    if name.startswith("cmpst_"):  # until gfx10 what is compared with comes first
        given.reverse()
    args = (0, k["ACCESS_ATOMIC"], nbytes, 0, k["WHOLE"], given[0], function, old, 1, given[1] if len(given) > 1 else NO_VGPR, offset)
    return instruction("lds", [source(address, "u")], args)


def _two(name: str, kind: str, stride: int, ops: list[str], mods: dict[str, str]) -> Instruction:
    k, nbytes = names(), SIMPLE[kind][0]
    first, second = (int(mods.get(f"offset{n}", "0"), 0) * nbytes * stride for n in (0, 1))
    load = name.startswith(("read", "load"))
    address = ops[1] if load else ops[0]
    data, other = (register(ops[0], "v"), NO_VGPR) if load else (register(ops[1], "v"), register(ops[2], "v"))
    args = (0, k["ACCESS_LOAD" if load else "ACCESS_STORE"], nbytes, 0, k["WHOLE"], data, 0, NO_VGPR, 2, other, first, second)
    return instruction("lds", [source(address, "u")], args)


def _between_lanes(name: str, parsed: Parsed, context: Context) -> Instruction:
    dst, mods = register(parsed.operands[0], "v"), parsed.mods
    _check(mods, set())
    if name == "swizzle_b32":
        return lane_move("TABLE", [source(parsed.operands[1], "u")], dst, arg=context.tables.place(swizzle(mods["offset"], context.model.wave)))
    address, data = parsed.operands[1:3]
    flags = names()["FETCH_INACTIVE"] if "_fi_" in name else 0
    return lane_move("PERMUTE" if name == "permute_b32" else "BPERMUTE", [source(data, "u"), source(address, "u")], dst, flags=flags,
                     offset=int(mods.get("offset", "0"), 0), arg=context.model.permuted)
