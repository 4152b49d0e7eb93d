"""A code object in memory: its segments at an address, its relocations applied, its instructions decoded for that place."""
from __future__ import annotations

import ctypes
import mmap
import struct
from functools import cached_property

from rlxpy.backends.gpu.codeobject import CodeObject, Kernel
from rlxpy.backends.gpu.elf import LOADED
from rlxpy.backends.gpu.sim.isa.decode import Program, decode
from rlxpy.backends.gpu.sim.isa.model import Model, model_of
from rlxpy.backends.gpu.sim.isa.records import LANES, Instruction
from rlxpy.backends.gpu.sim.isa.text import disassemble
from rlxpy.errors import LoadError
from rlxpy.frozen import dataclass

_RELOCATIONS = 4  # sh_type of tables with addends
_ABSOLUTE, _RELATIVE = 3, 13  # R_AMDGPU_ABS64, R_AMDGPU_RELATIVE64


@dataclass(frozen=True, eq=False)
class Image:
    """One loaded code object.  memory: its bytes, from address `base` on."""

    object: CodeObject
    memory: mmap.mmap

    @cached_property
    def base(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @property
    def range(self) -> tuple[int, int]:
        return self.base, self.base + len(self.memory)

    @cached_property
    def model(self) -> Model:
        """Raises LoadError where kernels disagree about the wave."""
        waves = {k.wave for k in self.object.kernels} or {self.object.target.wave}
        if len(waves) > 1:
            raise LoadError("kernels of one code object have waves of two sizes", why=f"{sorted(waves)} lanes", fix="compile them apart")
        return model_of(self.object.target.arch, waves.pop())

    @cached_property
    def program(self) -> Program:
        return decode(disassemble(self.object.elf.b.data), self.model)

    @cached_property
    def code(self) -> ctypes.Array[Instruction]:
        """The program's records, their pcs where they lie in memory."""
        code = (Instruction * len(self.program.code))(*self.program.code)
        for one in code:
            one.pc += self.base
        return code

    @cached_property
    def tables(self) -> ctypes.Array[ctypes.c_int8]:
        flat = [lane for table in self.program.tables for lane in table]
        return (ctypes.c_int8 * max(len(flat), LANES))(*flat)

    @cached_property
    def index_of_word(self) -> ctypes.Array[ctypes.c_int32]:
        first, last = self.program.lines[0].pc, self.program.lines[-1].pc
        found = (ctypes.c_int32 * ((last - first) // 4 + 1))(*[-1] * ((last - first) // 4 + 1))
        for pc, at in self.program.index_of.items():
            found[(pc - first) // 4] = at
        return found

    def entry(self, kernel: Kernel) -> int:
        """The address of a kernel's first instruction in the file."""
        preloaded = kernel.descriptor.bits("user_sgpr_kernarg_preload_length") and self.model.preloads
        return kernel.descriptor.entry + (256 if preloaded else 0)  # hardware that preloads skips the loads for that which does not

    def text_at(self, pc: int) -> str:
        return next((line.text for line in self.program.lines if line.pc == pc), "the end of the code")


def placed(found: CodeObject) -> Image:
    """Raises LoadError for a relocation that is not known."""
    elf = found.elf
    size = max((s.address + s.memory_nbytes for s in elf.segments if s.type == LOADED), default=1)
    memory = mmap.mmap(-1, size)
    made = Image(found, memory)
    for s in elf.segments:
        if s.type == LOADED:
            memory[s.address:s.address + s.nbytes] = elf.b.data[s.at:s.at + s.nbytes]
    for table in elf.sections:
        if table.type == _RELOCATIONS:
            _relocate(made, table.name, elf.content(table).data)
    return made


def _relocate(made: Image, name: str, rows: bytes) -> None:
    symbols = [s for table in made.object.elf.sections if table.name == ".dynsym" for s in made.object.elf.symbols_of(table)]
    for place, info, addend in struct.iter_unpack("<QQq", rows):
        kind, symbol = info & 0xffffffff, info >> 32
        if kind == _RELATIVE:
            value = made.base + addend
        elif kind == _ABSOLUTE and symbol < len(symbols):
            value = made.base + symbols[symbol].address + addend
        else:
            raise LoadError(f"{name} has a relocation that is not known", why=f"its type is {kind}, known are {_ABSOLUTE} and {_RELATIVE}", fix="link the code object with ld.lld")
        struct.pack_into("<Q", made.memory, place, value)
