"""AMD's chips by name: their number in ELF files, their family, their wave, and which code runs on which card."""
from __future__ import annotations

import re
from dataclasses import replace

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass

# e_flags & 0xff of an ELF file, by chip; as LLVM's AMDGPU pages list them.
NUMBERS = {
    0x20: "gfx600", 0x21: "gfx601", 0x3a: "gfx602", 0x22: "gfx700", 0x23: "gfx701", 0x24: "gfx702", 0x25: "gfx703", 0x26: "gfx704", 0x3b: "gfx705",
    0x28: "gfx801", 0x29: "gfx802", 0x2a: "gfx803", 0x3c: "gfx805", 0x2b: "gfx810",
    0x2c: "gfx900", 0x2d: "gfx902", 0x2e: "gfx904", 0x2f: "gfx906", 0x30: "gfx908", 0x31: "gfx909", 0x32: "gfx90c", 0x3f: "gfx90a", 0x40: "gfx940", 0x4b: "gfx941", 0x4c: "gfx942",
    0x4f: "gfx950", 0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x42: "gfx1013", 0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3e: "gfx1034",
    0x3d: "gfx1035", 0x45: "gfx1036", 0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x44: "gfx1103", 0x43: "gfx1150", 0x4a: "gfx1151", 0x55: "gfx1152", 0x58: "gfx1153",
    0x48: "gfx1200", 0x4e: "gfx1201", 0x49: "gfx1250", 0x5a: "gfx1251",
    0x51: "gfx9-generic", 0x5f: "gfx9-4-generic", 0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic", 0x54: "gfx11-generic", 0x59: "gfx12-generic",
}
FAMILIES = {  # code for a family runs on each of its chips
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": tuple(f"gfx103{k}" for k in range(7)),
    "gfx11-generic": ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}
FAMILY = {chip: family for family, chips in FAMILIES.items() for chip in chips}
LDS_NBYTES = {"gfx950": 160 << 10}  # of a block, where it is more than
USUAL_LDS_NBYTES = 64 << 10
MODES = ("sramecc", "xnack")  # in the order in which names have them
GENERATION = re.compile(r"gfx(\d+?)(?:-|[0-9a-f]{2}$)")
NAME = re.compile(r"(gfx[0-9a-z-]+)((?::(?:sramecc|xnack)[+-])*)")


@dataclass(frozen=True)
class Target:
    """A chip or family, and the modes that are fixed: "+" or "-", "" for both (in code) or not there (in a card)."""

    arch: str
    sramecc: str = ""
    xnack: str = ""

    def __str__(self) -> str:
        return ":".join([self.arch, *(f"{m}{getattr(self, m)}" for m in MODES if getattr(self, m))])

    @property
    def wave(self) -> int:
        """Lanes of a wave where nobody asks for another: 32 from gfx10 on."""
        major = GENERATION.match(self.arch)
        return 32 if major and int(major[1]) >= 10 else 64

    @property
    def lds_nbytes(self) -> int:
        return LDS_NBYTES.get(self.arch, USUAL_LDS_NBYTES)

    def refusal(self, card: Target) -> str:
        """Why code for this target cannot run on a card; "" where it can."""
        if self.arch not in names(card):
            return f"it is for {self.arch}, the card runs {' and '.join(names(card))}"
        odd = next((m for m in MODES if getattr(self, m) not in ("", getattr(card, m))), None)
        return f"it is for {odd}{getattr(self, odd)}, the card has {odd + getattr(card, odd) if getattr(card, odd) else f'no {odd}'}" if odd else ""


def names(card: Target) -> tuple[str, ...]:
    """What code may be called that a card runs, the best first."""
    family = FAMILY.get(card.arch)
    return (card.arch, family) if family else (card.arch,)


def target(text: str) -> Target:
    """"gfx90a:sramecc+:xnack-" as drivers and compilers write it.  Raises InputError."""
    found = NAME.fullmatch(text)
    modes = re.findall(r"(sramecc|xnack)([+-])", found[2]) if found else []
    if not found or found[1] not in NUMBERS.values() or len(dict(modes)) < len(modes):
        raise InputError(f"no AMD target {text!r}", why="a target is a chip or a family, and modes that are fixed", fix="as in gfx1100, gfx11-generic, gfx90a:sramecc+:xnack-")
    return replace(Target(found[1]), **dict(modes))


def best(carried: tuple[Target, ...], card: Target) -> int | None:
    """Which code runs on a card: the chip's own before its family's, fixed modes before those for both.  None where none does."""
    fit = [k for k, t in enumerate(carried) if not t.refusal(card)]
    return min(fit, key=lambda k: (names(card).index(carried[k].arch), -str(carried[k]).count(":"))) if fit else None
