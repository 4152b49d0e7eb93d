"""The CPU backend: a plan becomes C, C becomes a library, the library runs on this machine's threads.

Whether it can run here is asked by every process: what writes C and runs it is imported by those that go on."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import Isa, detect, processor
from rlxpy.backends.custom import extension_row, own_kernel
from rlxpy.backends.host import FUSED_KINDS, LIBRARY
from rlxpy.backends.templates import read, render
from rlxpy.errors import BackendMissing
from rlxpy.extend.backend import BackendSpec, Device, Emitted
from rlxpy.extend.kernels import KernelSearchPath
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import APPEND

if TYPE_CHECKING:
    from rlxpy.backends.cpu.execute import Library
    from rlxpy.backends.cpu.kernel import Emitter
    from rlxpy.backends.cpu.program import Program
    from rlxpy.backends.cpu.tiers import TieredGraph


FUSES = frozenset({*FUSED_KINDS, "attention", "products", APPEND})


@cache
def _spec(isa: Isa, compiler: str) -> BackendSpec:
    from rlxpy.backends.cpu.control import refusal
    from rlxpy.backends.cpu.library import library

    kernels = KernelSearchPath((library(isa),))
    facts = {"isa": isa.name, "features": tuple(sorted(isa.features)), "processor": processor(), "compiler": compiler}
    return BackendSpec(Device("cpu"), kernels, refusal, fuses=FUSES, host=KernelSearchPath((LIBRARY,)), staged=extension_row, extensions=own_kernel,
                       facts=facts, domain="cpu", bands=True)


@dataclass(frozen=True)
class Cpu:
    """target: an instruction set to write code for, be it this machine's or not; None is the best of this machine."""

    target: Isa | None = None

    @property
    def isa(self) -> Isa:
        """Asked anew each time: the setting may have changed."""
        return self.target or detect()

    @property
    def spec(self) -> BackendSpec:
        compiler = find_compiler()
        return _spec(self.isa, compiler.text if isinstance(compiler, Compiler) else "none")

    def missing(self) -> str | None:
        found = find_compiler()
        return found if isinstance(found, str) else None

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> TieredGraph:
        from rlxpy.backends.cpu.build import build
        from rlxpy.backends.cpu.execute import Library
        from rlxpy.backends.cpu.tiers import TieredGraph, meanwhile

        compiler = find_compiler()
        if not isinstance(compiler, Compiler):
            raise BackendMissing("the cpu backend needs a C compiler", why=compiler, fix="pip install 'rlxpy[cc]', or use device='reference'")
        isa = self.isa

        def made() -> tuple[Program, Callable[[], Library]]:
            program = self.program(plan, isa)
            return program, meanwhile(lambda: Library(build(program.source, isa, compiler), lambda *flags: build(program.source, isa, compiler, flags)))

        return TieredGraph(plan, params, debug, made)

    def emit(self, plan: Plan) -> Emitted:
        program = self.program(plan, self.isa)
        return Emitted(program.source, program.functions, tuple((launch.step, launch.function) for launch in program.launches))

    def program(self, plan: Plan, isa: Isa) -> Program:
        """The C of a plan that was made for this instruction set."""
        from rlxpy.backends.cpu.build import prelude
        from rlxpy.backends.cpu.program import write

        head = "\n".join([prelude(), f"enum {{ RLX_SYMBOLS = {len(plan.graph.symbols)} }};", read("cpu/runtime.h"), render("cpu/order.h.j2"), read("cpu/attention.h")])
        return write(plan, head, emitter_of)


def emitter_of(step: Step) -> Emitter | None:
    """A step's emitter; None for the host tier."""
    row = step.choice.row
    return row.launch if step.choice.tier == "kernel" and row is not None and callable(row.launch) else None
