"""Doubts about the text of GPU kernels: each rule on its own bug, and every bundled kernel against all of them, and against the limits of launches."""
from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from sim_device import needs_clang

from rlxpy import CompileOptions
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.codeobject import read
from rlxpy.backends.gpu.contract import KernelContract, breaches
from rlxpy.backends.gpu.launch import grid_refusal
from rlxpy.backends.gpu.lint import RULES, bare, findings
from rlxpy.backends.gpu.offline import compile_hip
from rlxpy.backends.gpu.raw import CudaGpuKernel, GpuKernel, RocmGpuKernel, own_gpu_kernel, register_gpu_kernel
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.backends.templates import flat
from rlxpy.compiler.session import lower
from rlxpy.extend import Builder, Constraint, op, registry
from rlxpy.extend.kernels import Refusal
from rlxpy.ir.extension import extension
from rlxpy.notes import note_once
from rlxpy.tools.cases import OPS, samples

BOTH, AMD = ("rocm", "cuda"), ("rocm",)
GOOD = 'extern "C" __global__ void k(float *x, int n) { %s }'
SHUFFLED = GOOD % "float v = x[threadIdx.x]; %s"
BAD: dict[str, tuple[str, str, tuple[str, ...]]] = {  # the rule, the text, devices that it concerns
    "a header": ("include", f"#include <hip/hip_runtime.h>\n{GOOD % ''}", BOTH),
    "a header, spaced": ("include", f"int a;\n  #  include <cmath>\n{GOOD % ''}", BOTH),
    "a C++ name": ("extern-c", "__global__ void k(float *x) { }", BOTH),
    "a C++ name behind another kernel": ("extern-c", f"{GOOD % ''}\n__global__ void l(float *x) {{ }}", BOTH),
    "a C++ name behind a block of C": ("extern-c", 'extern "C" { __global__ void k(float *x) { } }\n__global__ void l(float *x) { }', BOTH),
    "a template": ("template", 'template <int N> __global__ void k(float *x) { }\nextern "C" { }', BOTH),
    "printf": ("host-service", GOOD % 'printf("%f", x[0]);', BOTH),
    "assert": ("host-service", GOOD % "assert(n > 0);", BOTH),
    "malloc": ("host-service", GOOD % "void *p = malloc(4);", BOTH),
    "a mask of 32 lanes": ("mask", SHUFFLED % "v += __shfl_xor_sync(0xffffffff, v, 1);", AMD),
    "a mask in other words": ("mask", SHUFFLED % "v += __shfl_down_sync(0xFFFFFFFFu, v, 1);", AMD),
    "a vote in 32 bits": ("mask", SHUFFLED % "unsigned m = __ballot(v > 0); x[0] = m;", AMD),
    "a wait of lanes": ("sync-lanes", SHUFFLED % "__syncwarp();", AMD),
    "the number of a lane": ("wave-size", SHUFFLED % "v += __shfl_xor(v, 1); if (threadIdx.x % 32 == 0) x[0] = v;", AMD),
    "the number of a lane, by bits": ("wave-size", SHUFFLED % "v += __shfl_xor(v, 1); if ((threadIdx.x & 31) == 0) x[0] = v;", AMD),
    "the number of a wave": ("wave-size", SHUFFLED % "v += __shfl_xor(v, 1); x[threadIdx.x / 64] = v;", AMD),
    "the number of a wave, by bits": ("wave-size", SHUFFLED % "v += __shfl_xor(v, 1); x[threadIdx.x >> 5] = v;", AMD),
    "32 lanes summed": ("wave-loop", SHUFFLED % "for (int o = 16; o > 0; o >>= 1) v += __shfl_xor(v, o); x[0] = v;", AMD),
    "64 lanes summed, in a block": ("wave-loop", SHUFFLED % "for (unsigned o = 32; o; o /= 2) { float w = __shfl_down(v, o); v += w; } x[0] = v;", AMD),
    "the sum of a helper": ("wave-loop", SHUFFLED % "for (int o = 16; o > 0; o >>= 1) v += rlx_xor_lane(v, o); x[0] = v;", AMD),
    "2^31 threads": ("index", GOOD % "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = 0;", BOTH),
}
FINE = {
    "a kernel": GOOD % "long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = 0;",
    "a block of C": 'extern "C" {\n__global__ void k(float *x) { if (x) { x[0] = 1; } }\n__global__ void l(float *x) { }\n}',
    "in a comment": f"// #include <x>, printf(1), threadIdx.x % 32, __shfl_xor_sync(0xffffffff, v, 1)\n/* __global__ void k() */ {GOOD % ''}",
    "in quotes": GOOD % 'const char *s = "printf(1) __global__ \\" assert(0)"; x[0] = s[0];',
    "the wave asked for": SHUFFLED % "for (int o = warpSize / 2; o > 0; o >>= 1) v += __shfl_xor(v, o); if (threadIdx.x % warpSize == 0) x[threadIdx.x / warpSize] = v;",
    "groups of 32, by their width": SHUFFLED % "for (int o = 16; o > 0; o >>= 1) v += __shfl_xor(v, o, 32); x[0] = v;",
    "a width behind commas": SHUFFLED % "for (int o = 16; o > 0; o >>= 1) v += __shfl_xor(fmaxf(v, x[1]), o, 32); x[0] = v;",
    "tiles without shuffles": GOOD % "x[threadIdx.x / 32 * 33 + threadIdx.x % 32] = 0;",
    "a vote in 64 bits": SHUFFLED % "unsigned long long m = __ballot(v > 0); x[0] = m;",
    "a method of that name": GOOD % "x[0] = log.printf(1) + my_assert(2);",
    "a macro": "#define KERNEL __global__ void\n" + GOOD % "",
    "unsigned": GOOD % "unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = 0;",
}


@pytest.mark.parametrize("what", BAD)
def test_each_bug_is_found_by_its_rule_where_it_is_one(what: str) -> None:
    rule, text, devices = BAD[what]
    for device in BOTH:
        found = [f for f in findings(text, device) if f.rule == rule]
        assert bool(found) == (device in devices)
        for f in found:
            assert f.text == text.splitlines()[f.line - 1]
            assert f"line {f.line} `{f.text.strip()}`: {f.why}; {f.fix}" == str(f)


def test_every_rule_has_a_bug() -> None:
    assert {rule for rule, _, _ in BAD.values()} == {r.name for r in RULES}
    assert all(r.devices == next(d for name, _, d in BAD.values() if name == r.name) for r in RULES)


@pytest.mark.parametrize("what", FINE)
def test_what_is_fine_is_left_alone(what: str) -> None:
    assert [str(f) for device in BOTH for f in findings(FINE[what], device)] == []


def test_what_is_meant_is_said_on_its_line() -> None:
    text = BAD["32 lanes summed"][1]
    assert not findings(f"{text} // half a wave.  lint: wave-loop, mask", "rocm")
    assert findings(f"{text} // lint: mask", "rocm")
    assert findings(f"// lint: wave-loop\n{text}", "rocm")


MASK = "float f(float v) { return __shfl_xor_sync(0xffffffffu, v, 1); }"


@pytest.mark.parametrize(("text", "seen"), [
    (f"#if defined(__CUDACC__)\n{MASK}\n#else\n#endif", False), (f"#ifdef __CUDACC__  // NVIDIA\n{MASK}\n#endif", False), (f"#ifndef __CUDACC__\n{MASK}\n#endif", True),
    (f"#if !defined(__CUDACC__)\n{MASK}\n#endif", True), (f"#if defined(__HIP__)\n{MASK}\n#endif", True), (f"#ifdef __CUDACC__\n#if N\n{MASK}\n#endif\n#endif", False),
    (f"#if N == 3\n{MASK}\n#else\n#endif", True), (f"#if N\n#else\n{MASK}\n#endif", True), (f"#ifdef __HIP__\n#elif defined(__CUDACC__)\n{MASK}\n#endif", False),
    (f"#ifdef __CUDACC__\n#endif\n{MASK}", True), (f"#endif\n{MASK}", True)])
def test_text_for_the_other_vendor_is_not_looked_at(text: str, seen: bool) -> None:
    assert any(f.rule == "mask" for f in findings(text, "rocm")) == seen
    assert len(bare(text, "rocm")) == len(text)
    assert bare(text, "rocm").count("\n") == text.count("\n")


# ---- what bundled kernels are made of ------------------------------------------------------------------------------
@cache
def bundled() -> tuple[str, tuple[str, ...]]:
    """What stands before, and each distinct kernel that a sample of each op is served by."""
    spec = (gpu := Gpu(VENDORS["rocm"], GpuTarget("amd", "gfx90a", 64))).spec
    heads, bodies = dict[str, None](), dict[str, None]()
    for one in OPS:
        sample = next((s for s in samples(one) if 0 not in sum(s.case.shapes, ())), None)
        program = gpu.program(lower(sample.graph(), spec, CompileOptions())[0]) if sample else None
        if program and program.functions:
            heads[program.source[:min(map(program.source.index, program.functions.values()))].removeprefix(flat("gpu/prelude.h"))] = None
            bodies |= {re.sub(r"^//[^\n]*\n", "", text).replace(name, "NAME"): None for name, text in program.functions.items()}
    return "\n".join([flat("gpu/prelude.h"), *heads]), tuple(body.replace("NAME", f"kernel_{k}") for k, body in enumerate(bodies))


@pytest.mark.parametrize("device", BOTH)
def test_no_bundled_kernel_raises_a_doubt(device: str) -> None:
    head, kernels = bundled()
    assert len(kernels) > 60
    assert [str(f) for f in findings(head, device)] == []
    assert [str(f) for text in kernels for f in findings(text, device)] == []


@needs_clang
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1151"])
def test_no_bundled_kernel_needs_what_no_launch_gives(arch: str) -> None:
    """Compiled, for a chip of each wave size: arguments, LDS, stack, services of the host, spills, registers."""
    head, kernels = bundled()
    code = read(compile_hip("\n".join([head, *kernels]), arch))
    assert len(code.kernels) == len(kernels)
    assert [why for k in code.kernels for why in breaches(k, code.target, KernelContract(threads=k.max_threads, wave=code.target.wave))] == []


# ---- raw kernels ---------------------------------------------------------------------------------------------------
@pytest.fixture
def _op() -> Iterator[None]:
    note_once.cache_clear()
    with registry():
        @op("acme.twice")
        def twice(x): return x + x  # type: ignore[no-untyped-def]
        yield


HALF = """__device__ void rlx_custom(const float *x, float *out, i64 x_numel) {
    float v = x[threadIdx.x];
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor(v, o);%s
    if (threadIdx.x == 0) out[0] = v;
}"""


@pytest.mark.usefixtures("_op")
def test_who_registers_a_kernel_is_told_of_doubts_and_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    register_gpu_kernel(RocmGpuKernel("acme.twice", HALF % ""))
    said = capsys.readouterr().err
    assert re.search(rf"the rocm kernel of acme.twice \({re.escape(__file__)}:\d+\), line 3 `for \(int o = 16.*`: waves have 32 lanes on some chips and 64 on others; .*lint: wave-loop", said)
    assert "rocm" in extension("acme.twice").kernels


@pytest.mark.usefixtures("_op")
@pytest.mark.parametrize("kernel", [
    lambda: RocmGpuKernel("acme.twice", HALF % "  // lint: wave-loop"), lambda: CudaGpuKernel("acme.twice", HALF % ""),
    lambda: RocmGpuKernel("acme.twice", HALF % "", constraints=(Constraint("device.wave", "EQ", 32),))])
def test_nothing_is_said_of_what_is_meant(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    register_gpu_kernel(kernel())
    assert capsys.readouterr().err == ""


# ---- grids ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("grid", "threads", "says"), [
    ((2**31 - 1, 1, 1), 1, ""), ((2**31, 1, 1), 1, "a grid has at most 2147483647 x 65535 x 65535"), ((2**24, 1, 1), 256, "a grid has at most 16777215 x 65535"), ((2**24 - 1, 1, 1), 256, ""),
    ((1, 65535, 65535), 64, ""), ((1, 65536, 1), 64, "it needs a grid of 1 x 65536 x 1 blocks"), ((1, 1, 65536), 64, "it needs a grid of 1 x 1 x 65536 blocks"), ((0, 1, 1), 64, "")])
def test_grids_have_limits(grid: tuple[int, int, int], threads: int, says: str) -> None:
    why = grid_refusal(grid, threads)
    assert says in why
    assert bool(says) == bool(why)


@pytest.mark.usefixtures("_op")
@pytest.mark.parametrize(("grid", "says"), [(lambda shapes: (1, shapes["x"][0]), "it needs a grid of 1 x 70000 x 1 blocks"), (lambda shapes: shapes["x"][0], "")])
def test_a_raw_kernel_with_too_many_blocks_is_refused_before_it_runs(grid: Any, says: str) -> None:
    kernel: GpuKernel = RocmGpuKernel("acme.twice", "__device__ void rlx_custom(const float *x, float *out) { out[blockIdx.x] = x[blockIdx.x]; }", grid=grid)
    register_gpu_kernel(kernel)
    b = Builder()
    g = b.finish(b.custom_op("acme.twice", b.input("x", (70_000,))))
    answer = own_gpu_kernel("rocm", {}, g, next(n for n in g if n.kind == "acme.twice"))
    if says:
        assert isinstance(answer, Refusal)
        assert says in answer.reasons[0]
    else:
        assert not isinstance(answer, Refusal)


def test_text_that_is_no_kernel_has_no_doubts() -> None:
    for text in ("", "\n", "}{)(", '"', "/*", "#if", "extern \"C\" {", "for (int o = 16; o > 0; o >>= 1) {"):
        assert isinstance(findings(text, "rocm"), tuple)
