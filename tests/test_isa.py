"""AMD machine code executed in simulation: whole kernels on every chip, what is found in wrong ones, and what a launch sets up."""
from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from isa_device import CHIPS, WAVE64, module, run
from sim_device import needs_clang

from rlxpy.backends.gpu.offline import compile_hiprtc, hiprtc_library
from rlxpy.backends.gpu.sim.isa import Module, load
from rlxpy.errors import InputError, KernelFault, LoadError

pytestmark = needs_clang
chips = pytest.mark.parametrize("chip", CHIPS)
needs_hiprtc = pytest.mark.skipif(hiprtc_library() is None, reason="not run, because AMD's hipRTC (libamdhip64.so.5) is not installed")

KERNELS = """
extern "C" __global__ void vadd(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void softmax(const float* x, float* y, int n) {
  __shared__ float red[256];
  const float* in = x + (size_t)blockIdx.x * n;
  float* out = y + (size_t)blockIdx.x * n;
  int t = threadIdx.x;
  float m = -3.402823466e38f;
  for (int j = t; j < n; j += blockDim.x) m = fmaxf(m, in[j]);
  red[t] = m; __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) { if (t < s) red[t] = fmaxf(red[t], red[t + s]); __syncthreads(); }
  m = red[0]; __syncthreads();
  float sum = 0.f;
  for (int j = t; j < n; j += blockDim.x) { float e = expf(in[j] - m); out[j] = e; sum += e; }
  red[t] = sum; __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) { if (t < s) red[t] += red[t + s]; __syncthreads(); }
  float scale = 1.0f / red[0];
  for (int j = t; j < n; j += blockDim.x) out[j] *= scale;
}
extern "C" __global__ void __launch_bounds__(256) sgemm(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float as[16][68], bs[16][68];
  int tx = threadIdx.x, ty = threadIdx.y, tid = ty * 16 + tx, bm = blockIdx.y * 64, bn = blockIdx.x * 64;
  float acc[4][4] = {};
  for (int k0 = 0; k0 < K; k0 += 16) {
    for (int l = tid; l < 1024; l += 256) {
      as[l % 16][l / 16] = A[(size_t)(bm + l / 16) * K + k0 + l % 16];
      bs[l / 64][l % 64] = B[(size_t)(k0 + l / 64) * N + bn + l % 64];
    }
    __syncthreads();
    for (int k = 0; k < 16; k++)
      for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) acc[i][j] = fmaf(as[k][ty * 4 + i], bs[k][tx * 4 + j], acc[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) C[(size_t)(bm + ty * 4 + i) * N + bn + tx * 4 + j] = acc[i][j];
}
extern "C" __global__ void rmsnorm(const float* x, const float* w, float* y, int n, float eps) {
  __shared__ float part[32];
  const float* in = x + (size_t)blockIdx.x * n;
  float s = 0.f;
  for (int j = threadIdx.x; j < n; j += blockDim.x) s = fmaf(in[j], in[j], s);
  for (int o = warpSize / 2; o > 0; o >>= 1) s += __shfl_xor(s, o);
  if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = s;
  __syncthreads();
  float total = 0.f;
  for (int i = 0; i < (int)(blockDim.x / warpSize); i++) total += part[i];
  for (int j = threadIdx.x; j < n; j += blockDim.x) y[(size_t)blockIdx.x * n + j] = in[j] * (1.0f / sqrtf(total / n + eps)) * w[j];
}
extern "C" __global__ void histogram(const int* v, int* counts, float* total, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { atomicAdd(&counts[v[i] & 15], 1); atomicAdd(total, 0.5f); }
}
"""
RNG = np.random.default_rng(5)


def vadd(m: Module) -> None:
    a, b, c = RNG.standard_normal(300).astype("f4"), RNG.standard_normal(300).astype("f4"), np.full(300, np.nan, "f4")
    run(m, "vadd", 3, 128, a, b, c, 300)
    assert np.array_equal(c, a + b)


def softmax(m: Module) -> None:
    x, y = (RNG.standard_normal((3, 301)) * 4).astype("f4"), np.full((3, 301), np.nan, "f4")
    run(m, "softmax", 3, 256, x, y, 301)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


def sgemm(m: Module) -> None:
    a, b, c = RNG.standard_normal((64, 48)).astype("f4"), RNG.standard_normal((48, 128)).astype("f4"), np.full((64, 128), np.nan, "f4")
    run(m, "sgemm", (2, 1, 1), (16, 16, 1), a, b, c, 64, 128, 48)
    np.testing.assert_allclose(c, a.astype("f8") @ b, atol=2e-5)


def rmsnorm(m: Module) -> None:
    x, w, y = RNG.standard_normal((2, 333)).astype("f4"), RNG.standard_normal(333).astype("f4"), np.full((2, 333), np.nan, "f4")
    run(m, "rmsnorm", 2, 256, x, w, y, 333, 1e-5)
    np.testing.assert_allclose(y, x / np.sqrt((x.astype("f8") ** 2).mean(1, keepdims=True) + 1e-5) * w, rtol=1e-5)


def histogram(m: Module) -> None:
    v, counts, total = RNG.integers(0, 1000, 777).astype("i4"), np.zeros(16, "i4"), np.zeros(1, "f4")
    run(m, "histogram", 7, 128, v, counts, total, 777)
    assert np.array_equal(counts, np.bincount(v & 15, minlength=16))
    assert total[0] == 777 / 2


CHECKS: tuple[Callable[[Module], None], ...] = (vadd, softmax, sgemm, rmsnorm, histogram)


@chips
def test_whole_kernels_compute_what_numpy_does_twice_over(chip: str) -> None:
    m = module(KERNELS, chip)
    assert not m.unknown
    for check in CHECKS * 2:
        check(m)


@pytest.mark.parametrize("chip", ["gfx1030", "gfx1100", "gfx1201"])
def test_chips_of_32_lanes_run_waves_of_64_too(chip: str) -> None:
    m = module(KERNELS, chip, *WAVE64)
    assert m.wave == 64
    for check in CHECKS:
        check(m)


@needs_hiprtc
@pytest.mark.parametrize("chip", ["gfx90a", "gfx1030"])
def test_what_amds_own_hiprtc_writes_runs_alike(chip: str) -> None:
    m = load(compile_hiprtc(KERNELS, chip), chip)
    assert not m.unknown
    for check in CHECKS:
        check(m)


def planted(old: str, new: str) -> str:
    assert old in KERNELS
    return KERNELS.replace(old, new, 1)


FIRST_BARRIER = planted("red[t] = m; __syncthreads();", "red[t] = m;")
LOOP_BARRIER = planted("red[t] = fmaxf(red[t], red[t + s]); __syncthreads(); }", "red[t] = fmaxf(red[t], red[t + s]); }")
LAST_BARRIER = planted("acc[i][j]);\n    __syncthreads();", "acc[i][j]);")
OFF_BY_ONE = planted("if (i < n) c[i]", "if (i <= n) c[i]")
ONLY_32_LANES = planted("for (int o = warpSize / 2;", "for (int o = 16;")


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("source", "check", "kind"), [
    (FIRST_BARRIER, softmax, "uninitialised"), (LOOP_BARRIER, softmax, "race"), (LAST_BARRIER, sgemm, "race"), (OFF_BY_ONE, vadd, "out of range"),
], ids=["first barrier", "barrier in a loop", "last barrier", "off by one"])
def test_a_planted_bug_is_found_with_its_place(source: str, check: Callable[[Module], None], kind: str, chip: str) -> None:
    m = module(source, chip)
    with pytest.raises(KernelFault) as caught:
        check(m)
    error = caught.value
    assert error.kind == kind
    assert error.kernel == check.__name__
    assert m.image.text_at(error.pc).split()[0] in str(error)
    assert re.search(rf"pc {error.pc:#x} .* block \(\d+, 0, 0\), wave \d+, lane \d+ \({chip}.*simulated\)", str(error))


def test_a_wave_of_32_taken_for_granted_is_wrong_only_where_waves_have_64() -> None:
    rmsnorm(module(ONLY_32_LANES, "gfx1100"))
    with pytest.raises(AssertionError):
        rmsnorm(module(ONLY_32_LANES, "gfx942"))
    with pytest.raises(AssertionError):
        rmsnorm(module(ONLY_32_LANES, "gfx1100", *WAVE64))


def test_code_for_another_chip_and_launches_that_no_driver_takes_are_refused() -> None:
    m = module(KERNELS, "gfx1100")
    with pytest.raises(LoadError, match=r"gfx1100.*gfx942|gfx942.*gfx1100"):
        load(m.object.elf.b.data, "gfx942")
    x = np.zeros(4, "f4")
    for grid, block, arguments, said in (((1, 1, 1), (2048, 1, 1), (x, x, x, 4), "1024 threads"), ((0, 1, 1), (32, 1, 1), (x, x, x, 4), "no size may be 0"),
                                         ((1, 1, 1), (32, 1, 1), (x, x), "too few arguments")):
        with pytest.raises(InputError, match=said):
            run(m, "vadd", grid, block, *arguments)
    with pytest.raises(InputError, match="asks for 65540 bytes, this chip has 65536"):
        run(m, "vadd", 1, 32, x, x, x, 4, shared_nbytes=(64 << 10) + 4)
    with pytest.raises(LoadError, match="no kernel 'nope'"):
        run(m, "nope", 1, 32)
