"""From operands as printed to sources as the executor's C reads them."""
from __future__ import annotations

import struct
from dataclasses import replace

from rlxpy.backends.gpu.sim.isa.records import Source, names
from rlxpy.backends.gpu.sim.isa.table import SHORT, WIDE
from rlxpy.backends.gpu.sim.isa.text import Operand, operand

_FORMATS = {"h": "<e", "m": "<e", "s": "<e", "t": "<e", "p": "<e", "d": "<d"}
_KINDS = {"v": "SRC_VGPR", "s": "SRC_SGPR", "number": "SRC_CONST", "scc": "SRC_SCC", "vccz": "SRC_VCCZ", "execz": "SRC_EXECZ", "none": "SRC_NONE"}
_INVERSE_2PI = {"h": 0x3118, "m": 0x3118, "p": 0x3118, "b": 0x3e22, "d": 0x3fc45f306dc9c882}


def constant(text: str, letter: str) -> int:
    """The bits of a literal for an operand of a type.  Floats inline are of the operand's type; a hexadecimal literal has the bits themselves,
    of which a double takes its upper half, when they are no more than 32."""
    if "." in text or ("e" in text and "x" not in text):
        value = float(text)
        if text.startswith("0.159154"):
            return _INVERSE_2PI.get(letter, 0x3e22f983)
        if letter == "b":
            return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
        packed = struct.pack(_FORMATS.get(letter, "<f"), value)
        if letter in "UI":  # moved as 64 bits
            packed = struct.pack("<d", value)
        return int.from_bytes(packed, "little")
    number = int(text, 0)
    if letter == "d" and text.startswith("0x") and number < 1 << 32:
        return number << 32
    return number & 0xffff_ffff_ffff_ffff


def selected(name: str) -> int:
    """WORD_1 and its kin, as types.h numbers them."""
    return names()["WHOLE" if name == "DWORD" else name]


def source(text: str | Operand, letter: str) -> Source:
    """An operand of a type letter of table.py.  A 16-bit one is the low half where its text does not say another."""
    o = operand(text) if isinstance(text, str) else text
    k = names()
    if o.kind == "v" and letter not in WIDE and letter != "p" and o.count > 1:
        o = replace(o, count=1)
    sel = k["WORD_1"] if o.half == "high" else k["WORD_0"] if letter in SHORT else k["WHOLE"]
    flags = (k["NEG"] if o.neg else 0) | (k["ABS"] if o.abs else 0) | (k["SEXT"] if o.sext else 0)
    value = constant(o.value, letter) if o.kind == "number" else 0
    return Source(k[_KINDS[o.kind]], o.reg, sel, sel, flags, ord(letter), value)


def register(text: str, kind: str) -> int:
    """The number of a register of a kind, v or s.  Raises ValueError for anything else."""
    o = operand(text)
    if o.kind != kind:
        raise ValueError(f"{text!r} is no {kind} register")
    return o.reg
