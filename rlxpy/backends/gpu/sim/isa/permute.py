"""From which lane each lane reads: DPP controls and swizzles as tables of 64 entries, -1 where there is no lane."""
from __future__ import annotations

import re
from collections.abc import Callable

from rlxpy.backends.gpu.sim.isa.records import LANES

Table = tuple[int, ...]
ROW = 16


def table(source: Callable[[int], int], lanes: int) -> Table:
    found = [source(lane) if lane < lanes else -1 for lane in range(LANES)]
    return tuple(lane if 0 <= lane < lanes else -1 for lane in found)


def _in_row(place: Callable[[int], int]) -> Callable[[int], int]:
    """place: from a place in a row of 16 to another; outside of 0..15 is no lane."""
    return lambda lane: lane - lane % ROW + p if 0 <= (p := place(lane % ROW)) < ROW else -1


def _numbers(text: str) -> list[int]:
    return [int(n, 0) for n in re.findall(r"\d+", text)]


# What each control says, by its name in assembly: from its value and the wave's size to the lane read.
_CONTROLS: dict[str, Callable[[str, int], Callable[[int], int]]] = {
    "quad_perm": lambda v, _: lambda lane: lane - lane % 4 + _numbers(v)[lane % 4],
    "dpp8": lambda v, _: lambda lane: lane - lane % 8 + _numbers(v)[lane % 8],
    "row_shl": lambda v, _: _in_row(lambda p: p + int(v)),
    "row_shr": lambda v, _: _in_row(lambda p: p - int(v)),
    "row_ror": lambda v, _: _in_row(lambda p: (p - int(v)) % ROW),
    "row_mirror": lambda v, _: _in_row(lambda p: ROW - 1 - p),
    "row_half_mirror": lambda v, _: lambda lane: lane - lane % 8 + 7 - lane % 8,
    "row_share": lambda v, _: _in_row(lambda p: int(v)),
    "row_newbcast": lambda v, _: _in_row(lambda p: int(v)),
    "row_xmask": lambda v, _: _in_row(lambda p: p ^ int(v)),
    "row_bcast": lambda v, _: lambda lane: lane - lane % ROW - 1 if int(v) == 15 else 31 if lane >= 32 else -1,
    "wave_shl": lambda v, n: lambda lane: lane + 1,
    "wave_shr": lambda v, n: lambda lane: lane - 1,
    "wave_rol": lambda v, n: lambda lane: (lane + 1) % n,
    "wave_ror": lambda v, n: lambda lane: (lane - 1) % n,
}


def dpp(mods: dict[str, str], lanes: int) -> Table | None:
    """The table of an instruction's DPP control; None where it has none."""
    for name in mods:
        if name in _CONTROLS:
            return table(_CONTROLS[name](mods[name], lanes), lanes)
    return None


CONTROLS = frozenset(_CONTROLS)


def writable(mods: dict[str, str]) -> int:
    """Lanes that the masks of rows (16 lanes) and banks (4 lanes of each row) let through."""
    rows, banks = int(mods.get("row_mask", "0xf"), 0), int(mods.get("bank_mask", "0xf"), 0)
    return sum(1 << lane for lane in range(LANES) if rows >> lane // ROW & 1 and banks >> lane % ROW // 4 & 1)


def swizzle(text: str, lanes: int) -> Table:
    """ds_swizzle_b32's offset: `swizzle(QUAD_PERM,1,0,3,2)` and its kin, or the number itself.  Raises ValueError for others."""
    mode, *values = [part.strip() for part in text.removeprefix("swizzle(").removesuffix(")").split(",")]
    numbers = [int(v, 0) for v in values if not v.startswith('"')]
    if mode == "QUAD_PERM":
        return table(lambda lane: lane - lane % 4 + numbers[lane % 4], lanes)
    if mode == "BITMASK_PERM":  # five letters, the highest bit first: 0, 1, p as it is, i inverted
        bits = list(enumerate(reversed(values[0].strip('"'))))
        return table(lambda lane: lane & ~31 | sum((lane >> k & 1 if s == "p" else ~lane >> k & 1 if s == "i" else int(s)) << k for k, s in bits), lanes)
    if mode == "BROADCAST":
        size, at = numbers
        return table(lambda lane: lane - lane % size + at, lanes)
    if mode == "SWAP":
        return table(lambda lane: lane ^ numbers[0], lanes)
    if mode == "REVERSE":
        return table(lambda lane: lane - lane % numbers[0] + numbers[0] - 1 - lane % numbers[0], lanes)
    offset = int(mode, 0)
    if offset & 0x8000:
        raise ValueError(f"swizzle {offset:#x} is not simulated")
    return table(lambda lane: lane & ~31 | (lane & offset & 31 | offset >> 5 & 31) ^ offset >> 10 & 31, lanes)
