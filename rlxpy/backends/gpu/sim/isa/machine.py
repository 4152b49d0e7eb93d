"""The executor's C: its templates with a function for each row of the tables, compiled once for all code objects."""
from __future__ import annotations

import ctypes
from functools import cache

from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import ISAS
from rlxpy.backends.gpu.sim.isa.build import CONDITIONS, LANE_MOVES, MODE_READ, MODE_WRITE, UNITS
from rlxpy.backends.gpu.sim.isa.records import FOLDER, SHARED
from rlxpy.backends.gpu.sim.isa.scalar import ATOMICS, SCALARS
from rlxpy.backends.gpu.sim.isa.table import atomic_function, lane_function, scalar_function
from rlxpy.backends.gpu.sim.isa.vector import ROWS
from rlxpy.backends.templates import read
from rlxpy.errors import BackendMissing, CompileError

_LANE_OP = "typedef struct { void (*run)(int, const u64*, const u64*, const u64*, const u64*, u64, u64*, u64*, const u32*); u32 type; } LaneOp;\n"
_SCALAR_OP = "typedef struct { u64 (*run)(u64, u64, u64, u32*, u64*, u32); u32 type; } ScalarOp;\n"
_OPTIONS = ("-O2", "-w")


def source() -> str:
    """One C translation unit, the same for the same tables and templates."""
    part = {name: read(f"{FOLDER}/{name}.h") for name in ("types", "floats", "lanes", "memory", "matrix", "control", "grid")}
    enums = (f"enum {{ {', '.join(f'LANE_{n}' for n in LANE_MOVES)} }};\nenum {{ {', '.join(f'IF_{n}' for n in CONDITIONS)} }};\n"
             f"enum {{ MODE_READ = {MODE_READ}, MODE_WRITE = {MODE_WRITE} }};\n")
    functions = "".join([*map(lane_function, ROWS), *map(scalar_function, SCALARS), *map(atomic_function, ATOMICS)])
    tables = (_LANE_OP + f"static const LaneOp LANE_OPS[] = {{ {', '.join(f'{{v_{r.function}, {_letter(r.type)}}}' for r in ROWS)} }};\n"
              + _SCALAR_OP + f"static const ScalarOp SCALAR_OPS[] = {{ {', '.join(f'{{s_{r.function}, {_letter(r.type)}}}' for r in SCALARS)} }};\n"
              + f"static u64 (*const ATOMIC_OPS[])(u64, u64, u64) = {{ {', '.join(f'atomic_{r.function}' for r in ATOMICS)} }};\n")
    steps = f"static int (*const STEPS[])(Wave*, const Ins*) = {{ {', '.join(f'step_{n}' for n in UNITS)} }};\n"
    return "\n".join([part["types"], enums, part["floats"], functions, tables, part["lanes"], part["memory"], part["matrix"], part["control"], steps, part["grid"]])


def _letter(type_: str) -> str:
    return f"'{type_}'" if type_ else "0"


@cache
def machine() -> ctypes.CDLL:
    """Raises BackendMissing without a C compiler, CompileError."""
    compiler = find_compiler()
    if not isinstance(compiler, Compiler):
        raise BackendMissing("AMD machine code cannot be executed in simulation", why=compiler, fix="install a C compiler")
    portable = next(isa for isa in ISAS if isa.name == "portable")
    library = ctypes.CDLL(str(build(source(), portable, compiler, _OPTIONS)))
    library.rlx_sizes.restype = library.rlx_launch.restype = ctypes.c_uint32
    library.rlx_sizes.argtypes, library.rlx_launch.argtypes = [ctypes.c_uint32], [ctypes.c_void_p]
    for k, shared in enumerate(SHARED):
        if library.rlx_sizes(k) != ctypes.sizeof(shared):
            raise CompileError(f"the executor's {shared.__name__} has two sizes", why=f"{library.rlx_sizes(k)} bytes in C, {ctypes.sizeof(shared)} in Python",
                               fix="records.py and types.h must say the same")
    return library
