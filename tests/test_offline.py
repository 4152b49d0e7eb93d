"""HIP source to AMD code objects with no AMD machine: by clang and our device header, by AMD's hipRTC, and what each says of bad source."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sim_device import VADD, needs_clang, needs_simulation

from rlxpy import settings
from rlxpy.backends.cpu import compilers
from rlxpy.backends.gpu import offline
from rlxpy.backends.gpu.codeobject import read
from rlxpy.backends.gpu.offline import ARCHS, HIPRTC_ARCHS, compile_hip, compile_hiprtc, hiprtc_library
from rlxpy.backends.gpu.sim.host import compile_host
from rlxpy.errors import BackendMissing, CompileError

needs_hiprtc = pytest.mark.skipif(hiprtc_library() is None, reason="not run, because AMD's hipRTC (libamdhip64-5) is not installed")
# Everything that the device header offers, once.
ALL = """extern "C" __global__ void __launch_bounds__(256) all(double* d, float* f, int* n, unsigned long long* u, float4* v) {
    extern __shared__ float dynamic[];
    __shared__ double fixed[64];
    const int i = threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x * blockDim.x + blockIdx.y * blockDim.y + blockIdx.z * blockDim.z + gridDim.x + gridDim.y + gridDim.z;
    dynamic[i % 64] = f[i]; fixed[i % 64] = d[i];
    __syncthreads();
    d[i] = __shfl(d[i], 5) + __shfl_xor(d[i], 3) + __shfl_down(d[i], 2) + __shfl_up(d[i], 1, 16) + fixed[(i + 1) % 64];
    f[i] = __shfl(f[i], 5, 16) + __shfl_xor(f[i], 3) + __shfl_down(f[i], 2) + __shfl_up(f[i], 1) + dynamic[(i + 1) % 64];
    n[i] = __shfl_xor(n[i], 1) + __any(n[i]) + __all(n[i]) + __popc(n[i]) + __clz(n[i]) + __ffs(n[i]) + abs(n[i]) + warpSize + __lane_id();
    u[i] = __ballot(n[i] > 3) + __popcll(u[i]) + __clzll(u[i]) + __umul64hi(u[i], u[1]) + __umulhi(n[0], n[1]);
    n[i] += atomicAdd(n, 1) + atomicMax(n, 2) + atomicMin(n, 3) + atomicCAS(n, 4, 5) + atomicExch(n, 6) + atomicAnd(n, 7) + atomicOr(n, 8) + atomicXor(n, 9) + atomicSub(n, 1);
    f[i] += atomicAdd(f, 1.0f) + atomicMax(f + 1, 2.0f); d[i] += atomicAdd(d, 1.0); u[i] += atomicAdd(u, 1ull) + atomicMax(u, 2ull);
    __threadfence(); __threadfence_block(); __threadfence_system();
    f[i] += expf(f[i]) + exp2f(f[i]) + logf(f[i]) + log2f(f[i]) + log10f(f[i]) + sqrtf(f[i]) + rsqrtf(f[i]) + sinf(f[i]) + cosf(f[i]) + fmaf(f[i], f[1], f[2]) + ldexpf(f[i], 3);
    f[i] += fabsf(f[i]) + floorf(f[i]) + ceilf(f[i]) + truncf(f[i]) + rintf(f[i]) + roundf(f[i]) + fmaxf(f[i], f[1]) + fminf(f[i], f[1]) + copysignf(f[i], f[1]) + sqrt(f[i]) + max(f[i], f[1]);
    d[i] += sqrt(d[i]) + fabs(d[i]) + floor(d[i]) + fma(d[i], d[1], d[2]) + fmax(d[i], d[1]) + ldexp(d[i], 2) + __longlong_as_double(__double_as_longlong(d[i]) + 1);
    f[i] += isnan(f[i]) + isinf(f[i]) + isfinite(d[i]) + __int_as_float(__float_as_int(f[i]) + 1) + __uint_as_float(__float_as_uint(f[i]) + 1) + __expf(f[i]) + __logf(f[i]) + __fdividef(f[i], f[1]);
    v[i] = make_float4(v[i].x, v[i].y, v[i].z, v[i].w + min(n[i], 3));
}
"""


@needs_clang
@pytest.mark.parametrize("arch", ARCHS)
def test_the_device_header_serves_every_chip(arch: str) -> None:
    code = read(compile_hip(ALL, arch))
    kernel = code.kernel("all")
    assert code.target.arch == arch
    assert kernel.wave == (64 if arch.startswith("gfx9") else 32)
    assert (kernel.lds_nbytes, kernel.max_threads, [a.nbytes for a in kernel.explicit]) == (512, 256, [8] * 5)


@needs_hiprtc
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1030"])
def test_amds_own_compiler_takes_what_the_device_header_offers(arch: str) -> None:
    code = read(compile_hiprtc(ALL, arch))
    assert code.target.arch == arch
    assert [a.nbytes for a in code.kernel("all").explicit] == [8] * 5


@needs_simulation
@pytest.mark.parametrize(("arch", "wave"), [("gfx90a", 64), ("gfx1030", 32)])
def test_so_does_the_host(arch: str, wave: int) -> None:
    assert compile_host(ALL, "all.hip", arch, wave, ())[:4] == b"\x7fELF"


@needs_hiprtc
def test_an_arch_that_ends_amds_compiler_is_an_error() -> None:
    assert "gfx1151" not in HIPRTC_ARCHS
    with pytest.raises(CompileError, match=r"(?s)died while it compiled for gfx1151.*signal 6.*compile_hip"):
        compile_hiprtc(VADD, "gfx1151")


@pytest.mark.parametrize("compile_one", [pytest.param(compile_hip, marks=needs_clang, id="clang"), pytest.param(compile_hiprtc, marks=needs_hiprtc, id="hipRTC")])
def test_bad_source_is_shown_with_its_number(compile_one: Callable[[str, str], bytes]) -> None:
    with pytest.raises(CompileError, match=r"(?s)line 3 of the GPU source.*>     3     c\[0\] = lost;.*because: use of undeclared identifier 'lost'") as e:
        compile_one('extern "C" __global__ void f(float* c)\n{\n    c[0] = lost;\n}\n', "gfx90a")
    assert "error: use of undeclared identifier 'lost'" in e.value.log


@needs_clang
def test_shared_memory_that_no_chip_has_is_refused() -> None:
    with pytest.raises(CompileError, match="exceeds"):
        compile_hip('extern "C" __global__ void f(float* x) { __shared__ float s[20000]; s[threadIdx.x] = x[0]; __syncthreads(); x[0] = s[threadIdx.x ^ 1]; }', "gfx1100")


@needs_clang
def test_the_same_source_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.override(cache=tmp_path):
        first = compile_hip(VADD, "gfx1100")
        monkeypatch.setattr(offline, "run", None)  # nobody may compile any more
        assert compile_hip(VADD, "gfx1100") == first
        assert len(list(tmp_path.rglob("*.hsaco"))) == 1
        with pytest.raises(TypeError):
            compile_hip(VADD, "gfx1201")


def test_where_nothing_compiles_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(compilers, "zig", lambda: None)
    with pytest.raises(BackendMissing, match="apt-get install clang-22"):
        compile_hip(VADD, "gfx1100")
    monkeypatch.setattr(offline, "hiprtc_library", lambda: None)
    with pytest.raises(BackendMissing, match="libamdhip64-5"):
        compile_hiprtc(VADD, "gfx90a")
