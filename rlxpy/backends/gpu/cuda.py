"""NVIDIA's runtime through cuda-core's bindings: the first device, one stream, NVRTC."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from rlxpy.backends.gpu.api import Arguments, GpuTarget, Held, Launchable, Recorded, answer
from rlxpy.backends.gpu.blaslt import CUBLASLT, BlasLt, Prepared, Problem, found
from rlxpy.backends.gpu.listing import numbered
from rlxpy.errors import CompileError, DeviceError
from rlxpy.ir.dtypes import Array

OPTIONS = ("--std=c++17", "--fmad=false", "--diag-suppress=177,186")  # a function that nobody calls; an unsigned number compared with zero
DEFAULT_SHARED_NBYTES = 48 << 10  # of a block; a kernel that wants more must ask for it


class CudaApi:
    """Calls come from one thread at a time or from several: the stream keeps their order."""

    options = OPTIONS

    def __init__(self) -> None:
        self.process = os.getpid()
        driver: Any = import_module("cuda.bindings.driver")
        nvrtc: Any = import_module("cuda.bindings.nvrtc")
        self._cu = driver
        self._ask(driver.cuInit(0))
        device = self._ask(driver.cuDeviceGet(0))
        self._context = self._ask(driver.cuDevicePrimaryCtxRetain(device))
        self._ask(driver.cuCtxSetCurrent(self._context))
        self.name = self._ask(driver.cuDeviceGetName(256, device)).partition(b"\0")[0].decode().strip()
        which = driver.CUdevice_attribute

        def fact(name: str) -> int:
            return int(self._ask(driver.cuDeviceGetAttribute(getattr(which, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

        arch = f"sm_{fact('COMPUTE_CAPABILITY_MAJOR')}{fact('COMPUTE_CAPABILITY_MINOR')}"
        self._gemm = found(CUBLASLT)
        self.target = GpuTarget("nvidia", arch, fact("WARP_SIZE"), fact("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), fact("MAX_THREADS_PER_BLOCK"), CUBLASLT.name if self._gemm else "none")
        major, minor = self._ask(nvrtc.nvrtcVersion())
        self.compiler = f"NVRTC {major}.{minor}"
        self._stream = self._ask(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._lock = threading.RLock()  # of the stream: whoever captures has it alone
        self._seen = threading.local()

    def _ask(self, said: tuple[Any, ...]) -> Any:
        return answer(said, getattr(self, "name", "the device"))

    def _here(self) -> None:
        """A thread's first call makes the context its own."""
        if not getattr(self._seen, "done", False):
            self._ask(self._cu.cuCtxSetCurrent(self._context))
            self._seen.done = True

    # ---- memory
    def alloc(self, nbytes: int) -> int:
        self._here()
        try:
            return int(self._ask(self._cu.cuMemAlloc(nbytes)))
        except (DeviceError, OverflowError) as e:
            raise DeviceError(f"no {nbytes:,} bytes on {self.name}", why=getattr(e, "what", str(e)), fix="narrow the ranges of sizes, pack the weights, or free other graphs") from None

    def free(self, address: int) -> None:
        self._here()
        self._cu.cuMemFree(address)

    def write(self, address: int, array: Array) -> None:
        self._here()
        with self._lock:
            self._ask(self._cu.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._stream))
            self.sync()

    def read(self, address: int, array: Array) -> None:
        self._here()
        with self._lock:
            self._ask(self._cu.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._stream))
            self.sync()

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        self._here()
        if nbytes:
            with self._lock:
                self._ask(self._cu.cuMemsetD8Async(address, byte, nbytes, self._stream))

    # ---- code
    def compile(self, source: str, options: Sequence[str]) -> bytes:
        return compile_offline(source, self.target.arch, options)

    def load(self, code: bytes) -> Held:
        self._here()
        return Held(self._ask(self._cu.cuModuleLoadData(code)), self._unload)

    def _unload(self, module: Any) -> None:
        self._here()
        self._cu.cuModuleUnload(module)

    def function(self, module: Held, name: str) -> Any:
        try:
            return self._ask(self._cu.cuModuleGetFunction(module.handle, name.encode()))
        except DeviceError as e:
            raise CompileError(f"the compiled module has no kernel {name!r}", why=e.what, fix='declare it extern "C" __global__') from None

    def launch(self, function: Any, grid: tuple[int, int, int], threads: int, shared_nbytes: int, arguments: Arguments) -> None:
        self._here()
        self._make_room(function, shared_nbytes)
        with self._lock:
            self._ask(self._cu.cuLaunchKernel(function, *grid, threads, 1, 1, shared_nbytes, self._stream, arguments.address, 0))

    @cached_property
    def _blaslt(self) -> BlasLt:
        return BlasLt(CUBLASLT, self._gemm)

    def prepare(self, problem: Problem, workspace: int, nbytes: int) -> Prepared | str:
        self._here()
        return self._blaslt.prepare(problem, workspace, nbytes)

    def multiply(self, prepared: Prepared) -> None:
        self._here()
        with self._lock:
            prepared(int(self._stream))

    def sync(self) -> None:
        self._here()
        with self._lock:
            self._ask(self._cu.cuStreamSynchronize(self._stream))

    # ---- time
    def mark(self) -> Held:
        self._here()
        event = Held(self._ask(self._cu.cuEventCreate(0)), self._cu.cuEventDestroy)
        with self._lock:
            self._ask(self._cu.cuEventRecord(event.handle, self._stream))
        return event

    def elapsed_ns(self, since: Held, until: Held) -> int:
        return int(self._ask(self._cu.cuEventElapsedTime(since.handle, until.handle)) * 1e6)  # milliseconds

    # ---- replay
    def capture(self, launches: Callable[[], None], needs: Any = None) -> Held:
        self._here()
        with self._lock:
            self._ask(self._cu.cuStreamBeginCapture(self._stream, self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))  # garbage may be collected meanwhile
            try:
                launches()
            except BaseException:
                with suppress(DeviceError):  # what is void by now
                    self._end_capture()
                raise
            noted = self._end_capture()
        return Held(self._ask(self._cu.cuGraphInstantiate(noted.handle, 0)), self._cu.cuGraphExecDestroy, needs)

    def _end_capture(self) -> Held:
        return Held(self._ask(self._cu.cuStreamEndCapture(self._stream)), self._cu.cuGraphDestroy)

    def record(self, launches: Sequence[Launchable], needs: Any = None) -> Recorded:
        self._here()
        graph, nodes = Held(self._ask(self._cu.cuGraphCreate(0)), self._cu.cuGraphDestroy), list[Any]()
        for one in launches:
            nodes.append(self._ask(self._cu.cuGraphAddKernelNode(graph.handle, nodes[-1:], len(nodes[-1:]), self._node(one))))
        return Recorded(self._ask(self._cu.cuGraphInstantiate(graph.handle, 0)), self._cu.cuGraphExecDestroy, nodes, (graph, needs))

    def patch(self, recorded: Recorded, place: int, launch: Launchable) -> None:
        self._here()
        self._ask(self._cu.cuGraphExecKernelNodeSetParams(recorded.handle, recorded.nodes[place], self._node(launch)))

    def _node(self, launch: Launchable) -> Any:
        self._make_room(launch.function, launch.shared_nbytes)
        node = self._cu.CUDA_KERNEL_NODE_PARAMS()
        node.func, node.kernelParams, node.sharedMemBytes = launch.function, launch.arguments.address, launch.shared_nbytes
        node.gridDimX, node.gridDimY, node.gridDimZ = launch.grid
        node.blockDimX, node.blockDimY, node.blockDimZ = launch.threads, 1, 1
        return node

    def _make_room(self, function: Any, shared_nbytes: int) -> None:
        if shared_nbytes > DEFAULT_SHARED_NBYTES:
            self._ask(self._cu.cuFuncSetAttribute(function, self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_nbytes))

    def replay(self, graph: Held) -> None:
        self._here()
        with self._lock:
            self._ask(self._cu.cuGraphLaunch(graph.handle, self._stream))


def compile_offline(source: str, arch: str, options: Sequence[str] = OPTIONS) -> bytes:
    """A cubin, on a machine with or without a device.  Raises CompileError, with everything that NVRTC said as `log`."""
    rtc: Any = import_module("cuda.bindings.nvrtc")
    program = answer(rtc.nvrtcCreateProgram(source.encode(), b"rlxpy.cu", 0, [], []), "NVRTC")
    try:
        words = (*options, f"--gpu-architecture={arch}")
        status = rtc.nvrtcCompileProgram(program, len(words), [w.encode() for w in words])[0]
        if int(status) != 0:
            log = bytes(answer(rtc.nvrtcGetProgramLogSize(program), "NVRTC"))
            answer(rtc.nvrtcGetProgramLog(program, log), "NVRTC")
            raise numbered(source, log.rstrip(b"\0").decode(errors="replace"), "NVRTC", arch, words)
        code = bytes(answer(rtc.nvrtcGetCUBINSize(program), "NVRTC"))
        answer(rtc.nvrtcGetCUBIN(program, code), "NVRTC")
        return code
    finally:
        rtc.nvrtcDestroyProgram(program)


@cache
def api() -> CudaApi:
    """Of this process.  Raises DeviceError."""
    return CudaApi()
