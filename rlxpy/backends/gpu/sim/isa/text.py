"""Instructions as llvm-objdump prints them: lines, operands and modifiers."""
from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rlxpy.backends.gpu.sim.isa.records import names
from rlxpy.errors import BackendMissing, CompileError
from rlxpy.frozen import dataclass

PROGRAMS = ("llvm-objdump-22", "llvm-objdump-23", "llvm-objdump-21", "llvm-objdump-20", "llvm-objdump")
_LINE = re.compile(r"^\t(\S.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+?)(?: ?<.*>)?$", re.MULTILINE)
_REGISTER = re.compile(r"([vas]|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])(?:\.([lh]))?")
_SPECIAL = {"vcc": 106, "vcc_lo": 106, "vcc_hi": 107, "exec": 126, "exec_lo": 126, "exec_hi": 127, "m0": 125, "null": 124,
            "flat_scratch": 102, "flat_scratch_lo": 102, "flat_scratch_hi": 103, "xnack_mask": 104, "xnack_mask_lo": 104, "xnack_mask_hi": 105}
_STATE = {"scc": "scc", "src_scc": "scc", "vccz": "vccz", "src_vccz": "vccz", "execz": "execz", "src_execz": "execz"}
_APERTURES = {f"src_{name}_{end}": (f"{name.upper()}_APERTURE", low) for name in ("shared", "private") for end, low in (("base", 0), ("limit", 0xffffffff))}
_HALVES = {None: "", "l": "low", "h": "high"}


@dataclass(frozen=True)
class Line:
    pc: int
    text: str
    nbytes: int


@dataclass(frozen=True)
class Operand:
    """kind: v, s, number, scc, vccz, execz or none.  Accumulation registers are v256 and on, ttmp0 is s108.  half: low or high 16 bits.
    value: a literal's text."""

    kind: str
    reg: int = 0
    count: int = 1
    value: str = ""
    neg: bool = False
    abs: bool = False
    sext: bool = False
    half: str = ""


@dataclass(frozen=True)
class Parsed:
    name: str
    operands: tuple[str, ...]
    mods: dict[str, str]


@cache
def objdump() -> str:
    """Raises BackendMissing."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise BackendMissing("AMD machine code cannot be read", why=f"none of {', '.join(PROGRAMS)} is on PATH", fix="apt-get install llvm-22")
    return found


def disassemble(code: bytes) -> tuple[Line, ...]:
    """Every instruction of a code object, ascending."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.hsaco"
        file.write_bytes(code)
        done = subprocess.run([objdump(), "-d", str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError("llvm-objdump cannot read a code object", why=done.stderr.strip()[-300:], fix="a newer llvm-objdump")
    return tuple(Line(int(pc, 16), text.strip(), 4 * len(words.split())) for text, pc, words in _LINE.findall(done.stdout))


def split(text: str) -> Parsed:
    """`v_add_f32_e64 v0, -v1, |v2| clamp` as its name, three operands, and {"clamp": ""}."""
    name, _, rest = text.partition(" ")
    parts = list(_by_comma(rest))
    mods: dict[str, str] = {}
    if parts:
        parts[-1], *more = _words(parts[-1])
        for word in more:
            key, _, value = word.partition(":")
            mods[key] = value
    return Parsed(name, tuple(parts), mods)


def _by_comma(text: str) -> Iterator[str]:
    depth = begin = 0
    for at, sign in enumerate(text):
        depth += (sign in "[(") - (sign in "])")
        if sign == "," and not depth:
            yield text[begin:at].strip()
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:].strip()


def _words(text: str) -> list[str]:
    """At spaces outside of brackets."""
    return re.findall(r"(?:\[[^\]]*\]|\([^)]*\)|\S)+", text)


@cache
def operand(text: str) -> Operand:
    """Raises ValueError for what no operand looks like."""
    if text.startswith("sext("):
        inner = operand(text[5:-1])
        return Operand(inner.kind, inner.reg, inner.count, sext=True)
    if (text.startswith("-") and not re.match(r"-\d", text)) or text.startswith("neg("):
        inner = operand(text[4:-1] if text.startswith("neg(") else text[1:])
        return Operand(inner.kind, inner.reg, inner.count, inner.value, True, inner.abs, half=inner.half)
    if text.startswith("lit("):  # a number that could have been inline and is not
        return operand(text[4:-1])
    if text.startswith("|"):
        inner = operand(text[1:-1])
        return Operand(inner.kind, inner.reg, inner.count, inner.value, inner.neg, True, half=inner.half)
    if text in _SPECIAL:
        return Operand("s", _SPECIAL[text], 2 if text in ("vcc", "exec") else 1)
    if text in _STATE:
        return Operand(_STATE[text])
    if text in _APERTURES:
        name, low = _APERTURES[text]
        return Operand("number", value=str(names()[name] << 32 | low))
    if text == "off":
        return Operand("none")
    if m := _REGISTER.fullmatch(text):
        first, last = int(m[2] or m[3]), int(m[4] or m[2] or m[3])
        base = {"v": 0, "a": 256, "s": 0, "ttmp": 108}[m[1]]
        return Operand("v" if m[1] in "va" else "s", first + base, last - first + 1, half=_HALVES[m[5]])
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+(\.\d+(e[+-]?\d+)?)?)", text):
        return Operand("number", value=text)
    raise ValueError(f"{text!r} is no operand that is known")
