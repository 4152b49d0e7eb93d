"""Every bundled kernel compiles for every chip, and what its code needs is what chips have."""
from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from itertools import chain

import pytest
from sim_device import no_device_compiler

from rlxpy.backends.gpu.backend import Gpu, target_of
from rlxpy.backends.gpu.codeobject import read
from rlxpy.backends.gpu.contract import KernelContract, hold
from rlxpy.backends.gpu.cuda import compile_offline
from rlxpy.backends.gpu.kernel import THREADS
from rlxpy.backends.gpu.offline import ARCHS, compile_hip
from rlxpy.backends.gpu.program import Loop, Program
from rlxpy.backends.gpu.vendor import CUDA, ROCM, VENDORS
from rlxpy.ir.dtypes import DType
from rlxpy.tools.cases import OPS
from rlxpy.tools.evidence import by_dtype, graph_of, kernel_of, plan_of
from rlxpy.tools.samples import Sample

TYPES = (DType.F32, DType.BF16, DType.I32, DType.C64)  # computed with as they lie, computed wider, whole, of two parts
EVERY = ("gfx942", "gfx1100", "sm_90")  # chips of each wave and vendor for which all of them are compiled here; of the others the first, all in the recorded evidence


@cache
def cases(types: tuple[DType, ...]) -> list[Sample]:
    """Of every op that has kernels, in these types: each in f32; in the others the first, where one row serves them all."""
    usual, found = Gpu(ROCM, target_of(ROCM.device, "gfx942")), list[Sample]()
    for name in (op.text for op in OPS):
        for d, some in by_dtype(name).items():
            if d in types and kernel_of(plan := plan_of(usual, graph_of(some)), name) != "host":
                found += some if d is DType.F32 or len({s.choice.name for s in plan.steps}) > 1 else some[:1]
    return found


@cache
def everything(device: str, arch: str) -> Program:
    """All of them as one module."""
    backend = Gpu(VENDORS[device], target_of(device, arch))
    return backend.program(plan_of(backend, graph_of(cases(TYPES if arch in EVERY else TYPES[:1]))))


@pytest.mark.parametrize("arch", ARCHS)
def test_amds_compiler_takes_every_kernel(arch: str) -> None:
    if why := no_device_compiler():
        pytest.skip(f"not run, because {why}")
    program = everything(ROCM.device, arch)
    assert len(program.functions) > (300 if arch in EVERY else 100)
    code = read(compile_hip(program.source, arch), f"all kernels, {arch}")
    copies = [c for p in program.every if isinstance(p, Loop) for c in (*p.enters, *p.leaves, *p.moves.values(), *chain(*p.gives))]
    threads = {p.function: p.kernel.threads for p in program.launches} | {c.function: c.kernel.threads for c in copies}
    for name in program.functions:
        made = hold(code, name, KernelContract(threads=threads[name], wave=target_of(ROCM.device, arch).wave))
        assert made.kernarg_nbytes <= 768


def test_nvidias_compiler_takes_every_kernel() -> None:
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        pytest.skip("not run, because cuda-core is not installed: pip install 'rlxpy[cuda]'")
    assert len(compile_offline(everything(CUDA.device, "sm_90").source, "sm_90")) > 100_000


def test_no_kernel_wants_more_threads_than_a_block_has() -> None:
    assert {p.kernel.threads % 64 for p in everything(ROCM.device, "gfx942").launches} == {0}
    assert max(p.kernel.threads for p in everything(ROCM.device, "gfx942").launches) <= 4 * THREADS
