"""A small driver over the real hip-python, and why it cannot run here."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from rlxpy.backends.gpu.offline import device_compiler
from rlxpy.backends.gpu.sim.build import cxx
from rlxpy.errors import BackendMissing
from rlxpy.ir.dtypes import Array

VADD = """extern "C" __global__ void vadd(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""


@cache
def lacking() -> str:
    """What the simulated device needs and this machine has not."""
    if find_spec("rocm") is None:
        return "hip-python is not installed"
    try:
        cxx()
    except BackendMissing as e:
        return e.why
    return ""


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
