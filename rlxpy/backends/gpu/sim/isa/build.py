"""Instruction records under construction: what every decoder starts from."""
from __future__ import annotations

from collections.abc import Sequence

from rlxpy.backends.gpu.sim.isa.model import Model
from rlxpy.backends.gpu.sim.isa.permute import Table
from rlxpy.backends.gpu.sim.isa.records import LANES, NO_REG, Instruction, Source

# One C function step_<name> each; an instruction's `unit` is its place here.
UNITS = ("nop", "unknown", "trap", "valu", "lane", "vector_memory", "lds", "scalar_memory", "matrix", "salu", "branch", "jump", "mode", "index", "relative", "clock", "end", "sleep", "barrier")
LANE_MOVES = ("READFIRST", "READ", "WRITE", "SWAP", "SWAP16", "SWAP32", "MOVRELS", "MOVRELD", "BPERMUTE", "PERMUTE", "ROW", "ROW_X", "HALVES", "TABLE")
CONDITIONS = ("ALWAYS", "SCC0", "SCC1", "VCCZ", "VCCNZ", "EXECZ", "EXECNZ")
MODE_READ, MODE_WRITE = 0, 1
ALL = (1 << LANES) - 1


class Tables:
    """Lane tables of one program, each kept once."""

    def __init__(self) -> None:
        self.rows: list[Table] = []

    def place(self, table: Table) -> int:
        if table not in self.rows:
            self.rows.append(table)
        return self.rows.index(table)


class Context:
    """What decoders need beside the instruction: the chip's rules, lane tables, and where instructions are."""

    def __init__(self, model: Model, index_of: dict[int, int]) -> None:
        self.model, self.index_of, self.tables = model, index_of, Tables()


def instruction(unit: str, sources: Sequence[Source] = (), args: Sequence[int] = (), *, op: int = 0, dst: int = 0, flags: int = 0, offset: int = 0,
                mask_out: int = NO_REG, mask_in: int = NO_REG) -> Instruction:
    made = Instruction(unit=UNITS.index(unit), op=op, flags=flags, dst=dst, mask_out=mask_out, mask_in=mask_in, writable=ALL, offset=offset)
    for k, s in enumerate(sources):
        made.src[k] = s
    for k, a in enumerate(args):
        made.args[k] = a
    return made
