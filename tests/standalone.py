"""A generated unit as a program of its own: for sanitizers, and for machines that are only emulated."""
from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlxpy import CompileOptions, Graph, Op
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.build import flags_of
from rlxpy.backends.cpu.compilers import Compiler
from rlxpy.backends.cpu.program import Program
from rlxpy.backends.memory import view
from rlxpy.compiler.session import lower
from rlxpy.extend.plan import Plan, Space
from rlxpy.ir.dtypes import Array
from rlxpy.ir.types import bind

SECONDS = 400.0
# A program that ends frees nothing; and gcc 13's stack of freed frames lays 64-byte vectors at addresses of 32.
SANITIZING = "detect_leaks=0:detect_stack_use_after_return=0"
NO_LIBRARY = {"-shared", "-nostdlib"}  # this is a program, with a C library


@dataclass(frozen=True)
class Standalone:
    """A graph of fixed shapes, planned and written in C for a backend's instruction set."""

    plan: Plan
    program: Program
    cpu: Cpu

    def source(self) -> str:
        plan, program = self.plan, self.program
        runs = [(s.lo, s.hi) for s in program.segments if s.host is None]
        lists = {"LENT": [str(plan.buffers[b].nbytes) for b in program.lent], "FIXED": [str(a.nbytes) for a in self._constants()],
                 "SIZES": [], "SEGMENTS": [f"{{{lo}, {hi}}}" for lo, hi in runs]}
        numbers = {"INPUTS": len(plan.graph.inputs), "ARENA": plan.nbytes[Space.ARENA], "STATE": plan.nbytes[Space.STATE], "STEPS": max(hi for _, hi in runs)}
        defines = [f"#define {name} {{{', '.join([*values, '{0}' if name == 'SEGMENTS' else '0'])}}}" for name, values in lists.items()]
        return "\n".join([program.source, *defines, *(f"#define {name} {value}" for name, value in numbers.items()), (Path(__file__).parent / "standalone.c").read_text()])

    def _constants(self) -> list[Array]:
        """What each buffer of the plan holds before a run, empty for those that the run fills."""
        values = {self.plan.places[n.refs[0]].buffer: n.attrs.value.array for n in self.plan.graph if n.op is Op.CONST}  # type: ignore[attr-defined]
        return [np.ascontiguousarray(values[k]) if k in values else np.empty(0, np.uint8) for k in range(len(self.plan.buffers))]

    def compile(self, compiler: Compiler, folder: Path, *options: str) -> Path:
        unit, out = folder / "unit.c", folder / "unit"
        unit.write_text(self.source())
        flags = [f for f in flags_of(self.cpu.isa, compiler) if f not in NO_LIBRARY]
        made = subprocess.run([*compiler.argv, *flags, *options, "-o", str(out), str(unit)], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert made.returncode == 0, made.stderr[-3000:]
        return out

    def run(self, command: Sequence[str], arrays: Sequence[Array], folder: Path) -> tuple[Array, ...]:
        """The outputs.  `command` runs the program; what it says to stderr is a failure."""
        constants = self._constants()
        given, left = folder / "given", folder / "left"
        given.write_bytes(b"".join(np.ascontiguousarray(a).tobytes() for a in (*arrays, *constants)))
        ran = subprocess.run([*command, str(given), str(left)], capture_output=True, text=True, timeout=SECONDS, check=False,
                             env={**os.environ, "ASAN_OPTIONS": SANITIZING})
        assert (ran.returncode, ran.stderr) == (0, ""), f"{ran.returncode}: {ran.stderr[:6000]}"
        memory = np.frombuffer(left.read_bytes(), np.uint8)
        lent: dict[int, Array] = {}
        for b in self.program.lent:
            lent[b], memory = np.split(memory, [self.plan.buffers[b].nbytes])
        fixed = {k: a for k, a in enumerate(constants) if a.size}
        for n in self.plan.graph:
            for r in n.refs:
                if (b := self.plan.places[r].buffer) in lent and lent[b].dtype == np.uint8 and b not in fixed:
                    t = self.plan.graph.type(r)
                    fixed[b] = lent[b].view(t.dtype.numpy).reshape(bind(t.shape, {}))
        return tuple(view(self.plan, r, {}, {Space.ARENA: memory}, fixed) for r in self.plan.graph.outputs)


def standalone(graph: Graph, cpu: Cpu, options: CompileOptions = CompileOptions(debug=True, numerics="highest")) -> Standalone:  # noqa: B008 (it is frozen)
    spec = replace(cpu.spec, facts={**cpu.spec.facts, "numerics": options.numerics})
    plan = lower(graph, spec, options)[0]
    assert all(s.choice.tier == "kernel" for s in plan.steps), "a program has no NumPy"
    program = cpu.program(plan, cpu.isa)
    assert not program.packs, "nor weights"
    return Standalone(plan, program, cpu)
