"""A small driver over the real hip-python, kernels for it, and why it cannot run here."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from rlxpy.backends.gpu.offline import device_compiler
from rlxpy.backends.gpu.sim import Simulation, missing, simulated
from rlxpy.ir.dtypes import Array

VADD = """extern "C" __global__ void vadd(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""
SOFTMAX = """extern "C" __global__ void softmax(const float* x, float* y, int n) {
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
    for (int j = t; j < n; j += blockDim.x) out[j] /= red[0];
}
"""
RMSNORM = """extern "C" __global__ void rmsnorm(const float* x, const float* w, float* y, int n, float eps) {
    __shared__ float part[32];
    const float* in = x + (size_t)blockIdx.x * n;
    float s = 0.f;
    for (int j = threadIdx.x; j < n; j += blockDim.x) s = fmaf(in[j], in[j], s);
    for (int o = warpSize / 2; o > 0; o >>= 1) s += __shfl_xor(s, o);
    if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = s;
    __syncthreads();
    float total = 0.f;
    for (int i = 0; i < (int)(blockDim.x / warpSize); i++) total += part[i];
    for (int j = threadIdx.x; j < n; j += blockDim.x) y[(size_t)blockIdx.x * n + j] = in[j] * rsqrtf(total / n + eps) * w[j];
}
"""
MATMUL = """extern "C" __global__ void __launch_bounds__(64) matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[8][9], bs[8][9];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
    float sum = 0.f;
    for (int k0 = 0; k0 < k; k0 += 8) {
        as[y][x] = row < m && k0 + x < k ? a[row * k + k0 + x] : 0.f;
        bs[y][x] = column < n && k0 + y < k ? b[(k0 + y) * n + column] : 0.f;
        __syncthreads();
        for (int i = 0; i < 8; i++) sum = fmaf(as[y][i], bs[i][x], sum);
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
"""
Ask = Callable[[], Any]
rng = np.random.default_rng(5)


def floats(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


lacking = cache(missing)


def no_device_compiler() -> str:
    found = device_compiler()
    return found if isinstance(found, str) else ""


needs_simulation = pytest.mark.skipif(bool(lacking()), reason=f"not run, because {lacking()}")
needs_clang = pytest.mark.skipif(bool(no_device_compiler()), reason=f"not run, because {no_device_compiler()}")


class HipError(Exception):
    """number: a hipError_t."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Hip:
    """Calls of hip-python that raise what the runtime refuses."""

    def __init__(self) -> None:
        from rocm.bindings import hip, hiprtc

        self.hip: Any = hip
        self.rtc: Any = hiprtc

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """`malloc` calls hipMalloc."""
        call = getattr(self.hip, f"hip{name[0].upper()}{name[1:]}")
        return lambda *args: self.ask(call(*args))

    def ask(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if int(status):
            text = self.hip.hipGetErrorString(status)[1]
            raise HipError(int(status), text.decode() if isinstance(text, bytes) else str(text))
        return values[0] if len(values) == 1 else tuple(values)

    def compile(self, source: str, *options: str) -> bytes:
        """Raises HipError with the log."""
        status, program = self.rtc.hiprtcCreateProgram(source.encode(), b"test.hip", 0, None, None)
        assert int(status) == 0
        try:
            words = [o.encode() for o in options]
            status = int(self.rtc.hiprtcCompileProgram(program, len(words), words)[0])
            if status:
                log = bytearray(self.rtc.hiprtcGetProgramLogSize(program)[1])
                self.rtc.hiprtcGetProgramLog(program, log)
                raise HipError(status, log.rstrip(b"\0").decode())
            code = bytearray(self.rtc.hiprtcGetCodeSize(program)[1])
            self.rtc.hiprtcGetCode(program, code)
            return bytes(code)
        finally:
            self.rtc.hiprtcDestroyProgram(program.createRef())

    def kernel(self, source: str, name: str, *options: str) -> tuple[Any, Any]:
        """The module, which whoever asks unloads, and one function of it."""
        module = self.moduleLoadData(bytearray(self.compile(source, *options)))
        return module, self.moduleGetFunction(module, name.encode())

    def put(self, a: Array) -> int:
        at = int(self.malloc(a.nbytes))
        self.memcpy(at, a, a.nbytes, self.hip.hipMemcpyKind.hipMemcpyHostToDevice)
        return at

    def get(self, at: int, like: Array) -> Array:
        out = np.zeros_like(like)
        self.memcpy(out, at, out.nbytes, self.hip.hipMemcpyKind.hipMemcpyDeviceToHost)
        return out

    def launch(self, function: Any, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], *, shared: int = 0, stream: Any = None) -> None:
        self.moduleLaunchKernel(function, *_three(grid), *_three(block), shared, stream, None, tuple(map(_typed, args)))

    def run(self, source: str, name: str, grid: int | Sequence[int], block: int | Sequence[int], arrays: Sequence[Array], *numbers: float, shared: int = 0) -> list[Array]:
        """All arrays after one launch over them; nothing is left behind."""
        module, function = self.kernel(source, name)
        places = [self.put(a) for a in arrays]
        try:
            self.launch(function, grid, block, (*map(ctypes.c_void_p, places), *numbers), shared=shared)
            return [self.get(p, a) for p, a in zip(places, arrays, strict=True)]
        finally:
            for p in places:
                self.free(p)
            self.moduleUnload(module)


def _three(n: int | Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*((n,) if isinstance(n, int) else n), 1, 1)[:3]
    return x, y, z


def _typed(value: Any) -> Any:
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int(value) if isinstance(value, int) else value


@pytest.fixture(params=["gfx1100", "gfx942"])
def device(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Waves of 32 and of 64 lanes; nothing may be left behind."""
    with simulated(request.param) as s:
        before = s.alive()
        yield s
        assert s.alive() == before


@pytest.fixture
def hip() -> Hip:
    return Hip()
