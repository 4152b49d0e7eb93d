"""From a disassembled program to the records that the executor runs."""
from __future__ import annotations

from rlxpy.backends.gpu.sim.isa.build import Context, instruction
from rlxpy.backends.gpu.sim.isa.matrix import is_matrix, matrix
from rlxpy.backends.gpu.sim.isa.memory import lds, scalar_memory, vector_memory
from rlxpy.backends.gpu.sim.isa.model import Model
from rlxpy.backends.gpu.sim.isa.permute import Table
from rlxpy.backends.gpu.sim.isa.records import Instruction
from rlxpy.backends.gpu.sim.isa.scalars import is_nothing, scalar
from rlxpy.backends.gpu.sim.isa.text import Line, split
from rlxpy.backends.gpu.sim.isa.vectors import dual, vector
from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class Program:
    """index_of: places of instructions in `code` by pc.  unknown: those that cannot be run, with the reason."""

    lines: tuple[Line, ...]
    code: tuple[Instruction, ...]
    index_of: dict[int, int]
    tables: tuple[Table, ...]
    unknown: dict[int, str]


def decode(lines: tuple[Line, ...], model: Model) -> Program:
    """What is not known is kept as an instruction that ends the wave with an error."""
    index_of: dict[int, int] = {}
    at = 0
    for line in lines:
        index_of[line.pc] = at
        at += 2 if "::" in line.text else 1
    context, code, unknown = Context(model, index_of), list[Instruction](), dict[int, str]()
    for line in lines:
        try:
            made = _decoded(line, context)
        except (KeyError, ValueError, IndexError) as e:
            unknown[line.pc] = "it is not simulated" if isinstance(e, KeyError) else str(e)
            made = [instruction("unknown") for _ in range(2 if "::" in line.text else 1)]
        for one in made:
            one.pc = line.pc
        code += made
    code.append(instruction("unknown"))  # what runs off the end stops here
    return Program(lines, tuple(code), index_of, tuple(context.tables.rows), unknown)


def _decoded(line: Line, context: Context) -> list[Instruction]:
    if "::" in line.text:
        return dual(line.text, context)
    parsed = split(line.text)
    if is_nothing(parsed):
        return [instruction("nop")]
    if is_matrix(parsed.name):
        return [matrix(parsed, context)]
    if parsed.name.startswith("v_") and not parsed.name.startswith("v_s_"):
        return vector(parsed, context)
    if parsed.name.startswith(("global_", "flat_", "scratch_", "buffer_")):
        return [vector_memory(parsed, context)]
    if parsed.name.startswith("ds_"):
        return [lds(parsed, context)]
    if parsed.name.startswith(("s_load_", "s_buffer_load_")):
        return [scalar_memory(parsed)]
    return [scalar(parsed, line.pc, line.nbytes, context)]
