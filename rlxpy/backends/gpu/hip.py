"""AMD's runtime through hip-python: the current device, one stream, hipRTC."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from typing import Any

from rlxpy.backends.gpu.api import Arguments, GpuTarget, Held, Launchable, Recorded, answer
from rlxpy.backends.gpu.blaslt import HIPBLASLT, BlasLt, Prepared, Problem, found
from rlxpy.backends.gpu.listing import numbered
from rlxpy.backends.gpu.offline import hiprtc_refusal, mapped_library
from rlxpy.backends.gpu.sim import Simulation, current
from rlxpy.errors import CompileError, DeviceError
from rlxpy.ir.dtypes import Array

OPTIONS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing")


class HipApi:
    """Calls come from one thread at a time or from several: the stream keeps their order."""

    options = OPTIONS

    def __init__(self, simulation: Simulation | None = None) -> None:
        self.process = os.getpid()
        hip: Any = import_module("rocm.bindings.hip")
        hiprtc: Any = import_module("rocm.bindings.hiprtc")
        self._hip, self._rtc = hip, hiprtc
        device = self._ask(hip.hipGetDevice())
        props = self._ask(hip.hipGetDeviceProperties(device))
        self.name = _text(props.name)
        self._chip = _text(props.gcnArchName)  # with its modes, as gfx90a:sramecc+:xnack-
        self._gemm = simulation.gemm if simulation else found(HIPBLASLT)
        self.target = GpuTarget("amd", self._chip.partition(":")[0], int(props.warpSize), int(props.sharedMemPerBlock), int(props.maxThreadsPerBlock), HIPBLASLT.name if self._gemm else "none")
        major, minor = self._ask(hiprtc.hiprtcVersion())
        self._rtc_name = f"simulated hipRTC ({simulation.by})" if simulation else f"hipRTC {major}.{minor}"
        self.compiler = f"{simulation.compiler if simulation else self._rtc_name} for {self._chip}"
        if simulation is None:
            self._know_the_chip()
        self._stream = self._ask(hip.hipStreamCreateWithFlags(hip.hipStreamNonBlocking))
        self._lock = threading.RLock()  # of the stream: whoever captures has it alone

    def _know_the_chip(self) -> None:
        """A hipRTC that is older than the card ends the process that asks it: another process asks first."""
        library = mapped_library("libhiprtc.so") or mapped_library("libamdhip64.so")  # and not the binding, which is named after them
        if library and (why := hiprtc_refusal(library, self._chip)):
            raise DeviceError(f"{self.compiler} does not know {self.name}", why=why, fix="install a ROCm that is as new as the card")

    def _ask(self, said: tuple[Any, ...]) -> Any:
        return answer(said, getattr(self, "name", "the device"), self._meaning)

    def _meaning(self, status: Any) -> str:
        return _text(self._hip.hipGetErrorString(status)[1]) if isinstance(status, self._hip.hipError_t) else ""

    # ---- memory
    def alloc(self, nbytes: int) -> int:
        try:
            return int(self._ask(self._hip.hipMalloc(nbytes)))
        except (DeviceError, OverflowError) as e:
            raise DeviceError(f"no {nbytes:,} bytes on {self.name}", why=getattr(e, "what", str(e)), fix="narrow the ranges of sizes, pack the weights, or free other graphs") from None

    def free(self, address: int) -> None:
        self._hip.hipFree(address)

    def write(self, address: int, array: Array) -> None:
        with self._lock:
            self._ask(self._hip.hipMemcpyAsync(address, array.reshape(-1).view("u1"), array.nbytes, self._hip.hipMemcpyKind.hipMemcpyHostToDevice, self._stream))
            self.sync()

    def read(self, address: int, array: Array) -> None:
        with self._lock:
            self._ask(self._hip.hipMemcpyAsync(array, address, array.nbytes, self._hip.hipMemcpyKind.hipMemcpyDeviceToHost, self._stream))
            self.sync()

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        if nbytes:
            with self._lock:
                self._ask(self._hip.hipMemsetAsync(address, byte, nbytes, self._stream))

    # ---- code
    def compile(self, source: str, options: Sequence[str]) -> bytes:
        rtc = self._rtc
        program = self._ask(rtc.hiprtcCreateProgram(source.encode(), b"rlxpy.hip", 0, None, None))
        try:
            words = (*options, f"--offload-arch={self._chip}")
            status = rtc.hiprtcCompileProgram(program, len(words), [w.encode() for w in words])[0]
            if int(status) != 0:
                log = bytearray(self._ask(rtc.hiprtcGetProgramLogSize(program)))
                self._ask(rtc.hiprtcGetProgramLog(program, log))
                raise numbered(source, log.rstrip(b"\0").decode(errors="replace"), self._rtc_name, self._chip, words)
            code = bytearray(self._ask(rtc.hiprtcGetCodeSize(program)))
            self._ask(rtc.hiprtcGetCode(program, code))
            return bytes(code)
        finally:
            rtc.hiprtcDestroyProgram(program.createRef())

    def load(self, code: bytes) -> Held:
        return Held(self._ask(self._hip.hipModuleLoadData(bytearray(code))), self._hip.hipModuleUnload)

    def function(self, module: Held, name: str) -> Any:
        try:
            return self._ask(self._hip.hipModuleGetFunction(module.handle, name.encode()))
        except DeviceError as e:
            raise CompileError(f"the compiled module has no kernel {name!r}", why=e.what, fix='declare it extern "C" __global__') from None

    def launch(self, function: Any, grid: tuple[int, int, int], threads: int, shared_nbytes: int, arguments: Arguments) -> None:
        with self._lock:
            self._ask(self._hip.hipModuleLaunchKernel(function, *grid, threads, 1, 1, shared_nbytes, self._stream, list(arguments.pointers), None))

    @cached_property
    def _blaslt(self) -> BlasLt:
        return BlasLt(HIPBLASLT, self._gemm)

    def prepare(self, problem: Problem, workspace: int, nbytes: int) -> Prepared | str:
        return self._blaslt.prepare(problem, workspace, nbytes)

    def multiply(self, prepared: Prepared) -> None:
        with self._lock:
            prepared(int(self._stream))

    def sync(self) -> None:
        with self._lock:
            self._ask(self._hip.hipStreamSynchronize(self._stream))

    # ---- time
    def mark(self) -> Held:
        event = Held(self._ask(self._hip.hipEventCreate()), self._hip.hipEventDestroy)
        with self._lock:
            self._ask(self._hip.hipEventRecord(event.handle, self._stream))
        return event

    def elapsed_ns(self, since: Held, until: Held) -> int:
        return int(self._ask(self._hip.hipEventElapsedTime(since.handle, until.handle)) * 1e6)  # milliseconds

    # ---- replay
    def capture(self, launches: Callable[[], None], needs: Any = None) -> Held:
        with self._lock:
            self._ask(self._hip.hipStreamBeginCapture(self._stream, self._hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed))  # garbage may be collected meanwhile
            try:
                launches()
            except BaseException:
                with suppress(DeviceError):  # what is void by now
                    self._end_capture()
                raise
            noted = self._end_capture()
        return Held(self._ask(self._hip.hipGraphInstantiateWithFlags(noted.handle, 0)), self._hip.hipGraphExecDestroy, needs)

    def _end_capture(self) -> Held:
        return Held(self._ask(self._hip.hipStreamEndCapture(self._stream)), self._hip.hipGraphDestroy)

    def record(self, launches: Sequence[Launchable], needs: Any = None) -> Recorded:
        graph, nodes = Held(self._ask(self._hip.hipGraphCreate(0)), self._hip.hipGraphDestroy), list[Any]()
        for one in launches:
            before = nodes[-1].createRef() if nodes else None
            nodes.append(self._ask(self._hip.hipGraphAddKernelNode(graph.handle, before, len(nodes[-1:]), self._node(one))))
        return Recorded(self._ask(self._hip.hipGraphInstantiateWithFlags(graph.handle, 0)), self._hip.hipGraphExecDestroy, nodes, (graph, needs))

    def patch(self, recorded: Recorded, place: int, launch: Launchable) -> None:
        self._ask(self._hip.hipGraphExecKernelNodeSetParams(recorded.handle, recorded.nodes[place], self._node(launch)))

    def _node(self, launch: Launchable) -> Any:
        node = self._hip.hipKernelNodeParams(func=launch.function, kernelParams=launch.arguments.pointers, sharedMemBytes=launch.shared_nbytes)
        node.gridDim.x, node.gridDim.y, node.gridDim.z = launch.grid
        node.blockDim.x, node.blockDim.y, node.blockDim.z = launch.threads, 1, 1
        return node

    def replay(self, graph: Held) -> None:
        with self._lock:
            self._ask(self._hip.hipGraphLaunch(graph.handle, self._stream))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def api() -> HipApi:
    """Of this process: one for its card, or one for each device that it simulates.  Raises DeviceError, or RuntimeError where there is no library."""
    return _opened(current())


@cache
def _opened(simulation: Simulation | None) -> HipApi:
    return HipApi(simulation)
