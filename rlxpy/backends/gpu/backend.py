"""The GPU backends: a plan becomes one module of source, the vendor's compiler makes code of it, the device runs it."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from hashlib import blake2b
from importlib import import_module
from json import dumps
from typing import TYPE_CHECKING, Any

from rlxpy.backends.cache import kept
from rlxpy.backends.gpu.api import GpuApi, GpuTarget, Held, same_process
from rlxpy.backends.gpu.arch import target as amd_target
from rlxpy.backends.gpu.vendor import CUDA, Vendor, missing
from rlxpy.backends.host import FUSED_KINDS, with_host
from rlxpy.errors import BackendMissing, DeviceError, InputError
from rlxpy.extend.backend import BackendSpec, Device, Emitted, ExecutableGraph, Launched
from rlxpy.extend.kernels import Choice, KernelSearchPath, Refusal
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node

if TYPE_CHECKING:
    from rlxpy.backends.gpu.kernel import Emitter
    from rlxpy.backends.gpu.launch import GpuLaunch
    from rlxpy.backends.gpu.program import Program

ALIGN_NBYTES = 256
SM = re.compile(r"sm_\d{2,3}[af]?")
USUAL = {"cuda": GpuTarget("nvidia", "sm_90", 32, 227 << 10), "rocm": GpuTarget("amd", "gfx942", 64)}  # written for where there is no device


@cache
def spec_of(device: str, target: GpuTarget) -> BackendSpec:
    """What a backend promises of a device like `target`, be it here or not."""
    from rlxpy.backends.cpu.control import refusal
    from rlxpy.backends.gpu import gemm
    from rlxpy.backends.gpu.library import DOMAIN, LOOPS, library

    facts = {"vendor": target.vendor, "arch": target.arch, "wave": target.wave, "shared_nbytes": target.shared_nbytes, "threads": target.threads, "gemm": target.gemm}
    path = KernelSearchPath((gemm.library(target, DOMAIN), library(target)))
    return with_host(BackendSpec(Device(device), path, refusal, LOOPS, inlines=True, fuses=frozenset({*FUSED_KINDS, "attention"}), domain=DOMAIN, align_nbytes=ALIGN_NBYTES,
                                 extensions=partial(_own_kernel, device, facts), facts=facts, bands=True, launched=_launched))


def target_of(device: str, arch: str) -> GpuTarget:
    """What code for a chip is written for, be it here or not.  Raises InputError for what is no chip."""
    if device == CUDA.device:
        if not SM.fullmatch(arch):
            raise InputError(f"no NVIDIA chip {arch!r}", why="chips are sm_ and their compute capability", fix="sm_90, as in 9.0")
        return replace(USUAL[device], arch=arch)
    chip = amd_target(arch)
    return GpuTarget("amd", chip.arch, chip.wave, chip.lds_nbytes)


@dataclass(frozen=True)
class Gpu:
    """target: what to write code for, be it this machine's device or not; None is the device here, or a usual one where there is none."""

    vendor: Vendor
    target: GpuTarget | None = None

    def api(self) -> GpuApi:
        """Opens the device at the first call.  Raises BackendMissing; in a forked process DeviceError."""
        try:
            found: GpuApi = import_module(f"rlxpy.backends.gpu.{'cuda' if self.vendor is CUDA else 'hip'}").api()
        except (DeviceError, RuntimeError, ImportError) as e:
            raise BackendMissing(f"device {self.vendor.device} cannot run here", why=f"{type(e).__name__}: {e}", fix="rlx doctor says what is missing") from None
        same_process(found)
        return found

    @property
    def spec(self) -> BackendSpec:
        target = self.target or (USUAL[self.vendor.device] if missing(self.vendor) else self.api().target)
        return spec_of(self.vendor.device, target)

    def missing(self) -> str | None:
        why = missing(self.vendor)
        if why or self.vendor.device == CUDA.device:
            return why
        try:
            self.api()  # whether the card's compiler knows the card
        except (BackendMissing, DeviceError) as e:
            return e.why
        return None

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph:
        from rlxpy.backends.gpu.execute import GpuGraph, Loaded

        if why := self.missing():
            raise BackendMissing(f"device {self.vendor.device} cannot run here", why=why, fix="device='cpu'")
        api, program = self.api(), self.program(plan)
        module = loaded(api, program.source) if program.functions else None
        raw = {code: api.load(raw_code(api, p.launch)) for code, p in {p.launch.code: p for p in program.raw}.items()}
        functions = {name: api.function(module, name) for name in program.functions} if module else {}
        modules = (*([module] if module else []), *raw.values())
        return GpuGraph(plan, program, api, Loaded(modules, functions, {code: api.function(m, code[1]) for code, m in raw.items()}), params, debug)

    def program(self, plan: Plan) -> Program:
        from rlxpy.backends.gpu.program import write

        return write(plan, emitter_of)

    def emit(self, plan: Plan) -> Emitted:
        program = self.program(plan)
        return Emitted(program.source, program.functions, tuple((p.step, p.function) for p in program.launches))


def emitter_of(step: Step) -> Emitter | None:
    """A step's emitter; None for the host tier."""
    row = step.choice.row
    made: Any = row.launch if step.choice.tier == "kernel" and row is not None and row.domain != "host" else None
    return made if callable(made) else None


def _launched(plan: Plan, step: Step) -> Launched:
    from rlxpy.backends.gpu.program import shapes_of

    return Launched(shapes_of(plan, step, emitter_of), step.choice.tier == "kernel")


def loaded(api: GpuApi, source: str, options: Sequence[str] | None = None) -> Held:
    """A module on the device.  Raises CompileError."""
    return api.load(compiled(api, source, options))


def raw_code(api: GpuApi, launch: GpuLaunch) -> bytes:
    """A raw kernel's code, held to what its launch relies on.  Raises CompileError, CodeObjectError with all that stands against it."""
    from rlxpy.backends.gpu.assembly import RocmAsmKernel
    from rlxpy.backends.gpu.codeobject import is_code_object, read
    from rlxpy.backends.gpu.contract import contract_of, hold, hold_cuda
    from rlxpy.backends.gpu.cudaobject import is_cubin, read_cuda
    from rlxpy.backends.gpu.launch import largest
    from rlxpy.backends.gpu.offline import assemble

    code = assemble(launch.source, api.target.arch) if isinstance(launch.kernel, RocmAsmKernel) else compiled(api, launch.source)
    name, contract = f"{launch.kernel.name} ({launch.kernel.where})", contract_of(launch, largest(launch.operands, launch.attrs), api.target.shared_nbytes)
    if is_code_object(code):
        hold(read(code, name), launch.symbol, contract)
    elif is_cubin(code):  # else a simulated device has code for the host
        hold_cuda(read_cuda(code, name), launch.symbol, contract)
    return code


def compiled(api: GpuApi, source: str, options: Sequence[str] | None = None) -> bytes:
    """Code for the device, from the cache when it was compiled before.  Raises CompileError."""
    options = tuple(options) if options is not None else api.options
    facts = dumps([api.target.vendor, api.target.arch, api.compiler, options, source])
    key = blake2b(facts.encode(), digest_size=20).hexdigest()

    def make(path: Any) -> None:
        path.write_bytes(api.compile(source, options))

    return kept("gpu", key, ".bin", make).read_bytes()


def _own_kernel(device: str, facts: Mapping[str, Any], graph: Graph, node: Node) -> Choice | Refusal | None:
    from rlxpy.backends.gpu.raw import own_gpu_kernel  # at first use: it loads what writes source

    return own_gpu_kernel(device, facts, graph, node)
