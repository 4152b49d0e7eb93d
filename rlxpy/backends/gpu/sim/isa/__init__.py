"""AMD machine code executed in simulation: code objects loaded, launched, and watched for what hardware would not tell.

Results are those of the instructions' definitions; v_rcp, v_rsq, v_sqrt, v_exp, v_log, v_sin and v_cos, which hardware approximates to about one
unit in the last place, are rounded correctly here, and matrix instructions sum in one order.  Nothing of this is a measurement of a card."""
from __future__ import annotations

from dataclasses import field

from rlxpy.backends.gpu.arch import target
from rlxpy.backends.gpu.codeobject import CodeObject, read
from rlxpy.backends.gpu.sim.isa.alike import Difference, runs_alike
from rlxpy.backends.gpu.sim.isa.image import Image, placed
from rlxpy.backends.gpu.sim.isa.launch import BUDGET, Dim3, Ranges, Report, Shape, execute
from rlxpy.errors import LoadError
from rlxpy.frozen import dataclass

__all__ = ["Difference", "Module", "Report", "load", "runs_alike"]


@dataclass(frozen=True)
class Module:
    """A loaded code object."""

    image: Image = field(repr=False)

    @property
    def object(self) -> CodeObject:
        return self.image.object

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.object.kernels)

    @property
    def wave(self) -> int:
        return self.image.model.wave

    @property
    def unknown(self) -> dict[int, str]:
        """Instructions that cannot be executed, by pc: their text and the reason.  A kernel that reaches one ends with an error."""
        return {pc: f"{self.image.text_at(pc)}: {why}" for pc, why in self.image.program.unknown.items()}

    def launch(self, kernel: str, grid: Dim3, block: Dim3, kernargs: bytes, shared_nbytes: int = 0, ranges: Ranges = (), budget: int = BUDGET) -> Report:
        """Run a kernel to its end.

        kernargs: the explicit arguments at their offsets; hidden ones are filled in.  shared_nbytes: of dynamic shared memory.  ranges: all the
        memory that it may touch, as (address, bytes).  budget: instructions of waves after which it counts as endless.  Raises InputError for
        a launch that no driver would take, KernelFault, with kernel, pc, block, wave and lane, for what the kernel does wrong."""
        return execute(self.image, self.object.kernel(kernel), Shape(grid, block, shared_nbytes), kernargs, ranges, budget)


def load(code: bytes, arch: str | None = None) -> Module:
    """A code object, as hipRTC, clang or an assembler wrote it.  arch: the card's, "gfx90a:sramecc+"; LoadError where the code is not for it."""
    found = read(code)
    if arch is not None and (refusal := found.target.refusal(target(arch))):
        raise LoadError(f"this code object cannot be loaded on {arch}", why=refusal, fix=f"compile it for {arch}")
    return Module(placed(found))
