"""The small C functions that kernels call: only those that a text needs."""
from __future__ import annotations

import re
from functools import cache

from rlxpy.backends.templates import trimmed

RANGES = [(f"{s}{bits}", -(1 << (bits - 1)) if s == "i" else 0, 1 << (bits - (s == "i")), f"INT{bits}_MIN" if s == "i" else "0", f"{'U' * (s == 'u')}INT{bits}_MAX")
          for s in "iu" for bits in (8, 16, 32, 64)]
# type, its C type, bits, explicit bits of the mantissa, exponent bias; codes from the next on are beyond the greatest value, and become the one after; NaN
NARROW = [("f16", "u16", 16, 10, 15, 0x7c00, 0x7c00, 0x7e00), ("f8e5m2", "u8", 8, 2, 15, 0x7c, 0x7c, 0x7e), ("f8e4m3fn", "u8", 8, 3, 7, 0x7f, 0x7f, 0x7f), ("f4e2m1", "u8", 4, 1, 1, 8, 7, 8)]
IEEE = [("f16", "u16", 16, 10, 0x7c00), ("f8e5m2", "u8", 8, 2, 0x7c)]
_DEFINES = re.compile(r"^static inline \w+ (\w+)\(", re.MULTILINE)


@cache
def _blocks() -> tuple[tuple[str, str], ...]:
    """Names and texts; each calls only those before it."""
    text = trimmed("c99/prelude.h.j2", ranges=RANGES, narrow=NARROW, ieee=IEEE)
    return tuple((m[1], block.strip()) for block in text.split("\n\n") if (m := _DEFINES.search(block)))


def names() -> frozenset[str]:
    return frozenset(name for name, _ in _blocks())


def prelude(text: str) -> str:
    """The functions that `text` calls, and those that they call, in order."""
    needed: list[str] = []
    names = set(re.findall(r"\brlx_\w+", text))
    for name, block in reversed(_blocks()):
        if name in names:
            needed.append(block)
            names |= set(re.findall(r"\brlx_\w+", block))
    return "".join(f"{block}\n\n" for block in reversed(needed))
