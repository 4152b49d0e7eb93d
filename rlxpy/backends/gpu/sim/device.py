"""`simulated(...)`: puts the simulated runtime under hip-python, and says which device it is."""
from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, CFUNCTYPE, POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rlxpy.backends.gpu.arch import Target, target
from rlxpy.backends.gpu.sim.build import cxx, library, toolchain
from rlxpy.backends.gpu.sim.host import compile_host
from rlxpy.backends.gpu.sim.machine import Functions, Machine, compile_machine, machine_toolchain
from rlxpy.errors import BackendMissing, CompileError, DeviceError, InputError
from rlxpy.frozen import dataclass
from rlxpy.settings import setting

By = Literal["host", "isa"]
MEMORY_NBYTES = 16 << 30
PATIENCE_S = 30.0
COMPILATION, INVALID_OPTION = 6, 5  # hiprtcResult
ARCH_OPTIONS = ("--offload-arch=", "--gpu-architecture=")


@dataclass(frozen=True)
class Alive:
    """How many of each the runtime holds; of programs hipRTC."""

    allocations: int
    pinned: int
    streams: int
    events: int
    modules: int
    graphs: int
    executables: int
    programs: int


@dataclass(frozen=True)
class Simulation:
    """by: "host" runs kernels as the processor's own code, "isa" as AMD's machine code.  lazy: nothing runs before somebody waits for it.
    patience_s: of the processor's time, in which some thread of a kernel must end, else it counts as waiting for what never comes; of host code alone,
    for machine code is counted by its instructions.  blaslt: it has a hipBLASLt, which computes on the processor in any case."""

    arch: str
    by: By = "host"
    lazy: bool = True
    memory_nbytes: int = MEMORY_NBYTES
    patience_s: float = PATIENCE_S
    blaslt: bool = False

    def __post_init__(self) -> None:
        if self.by not in ("host", "isa"):
            raise InputError(f"no way {self.by!r} to simulate a GPU", why="kernels run as host code or as machine code", fix='by="host" or by="isa"')
        if not self.patience_s > 0:
            raise InputError(f"no patience of {self.patience_s} s", why="it is the time in which some thread of a kernel must end", fix=f"{PATIENCE_S} is the usual one")
        _ = self.target

    @property
    def target(self) -> Target:
        return target(self.arch)

    @property
    def wave(self) -> int:
        return self.target.wave

    @property
    def gemm(self) -> str:
        """The file of its hipBLASLt; "" where it has none."""
        return str(library("libhipblaslt.so")) if self.blaslt else ""

    @property
    def compiler(self) -> str:
        """Who compiles for it, for cache keys."""
        return f"simulated ({self.by}): {toolchain() if self.by == 'host' else machine_toolchain(self.arch)}"

    def alive(self) -> Alive:
        return _runtime().alive()


@contextmanager
def simulated(arch: str = "gfx1100", *, by: By = "host", lazy: bool = True, memory_nbytes: int = MEMORY_NBYTES, patience_s: float = PATIENCE_S,
              blaslt: bool = False) -> Iterator[Simulation]:
    """Inside, hip-python finds one simulated AMD GPU.  For the whole process; the innermost counts.  Around it there is no device.

    Raises BackendMissing where there is no C++ compiler or no hip-python, or where hip-python already talks to another runtime."""
    chosen = Simulation(arch, by, lazy, memory_nbytes, patience_s, blaslt)
    runtime = _runtime()
    runtime.enter(chosen)
    try:
        yield chosen
    except BaseException:
        runtime.leave(chosen)
        raise
    if failed := runtime.leave(chosen):
        raise DeviceError("work that nobody waited for failed", why=failed, fix="wait for it: hipStreamSynchronize, hipDeviceSynchronize")


def missing() -> str:
    """Why no GPU can be simulated here; "" where one can."""
    if sys.platform != "linux":
        return f"the simulated runtime is for Linux, this is {sys.platform}"
    if find_spec("rocm") is None:
        return "hip-python is not installed; pip install 'rlxpy[rocm]'"
    try:
        cxx()
    except BackendMissing as e:
        return e.why
    return ""


def current() -> Simulation | None:
    """The innermost `simulated`, else what RLX_ROCM_SIM asks for, which is there from the first call on; None where nothing is simulated."""
    asked = setting("rocm_sim")
    if asked is None and _made is None:
        return None
    runtime = _runtime()
    runtime.settle(Simulation(*asked) if asked else None)
    return runtime.now


class _Device(ctypes.Structure):
    """`RlxDevice` of templates/gpu/sim/control.cpp."""

    _fields_ = (("arch", c_char_p), ("present", c_int), ("machine_code", c_int), ("lazy", c_int), ("wave", c_int), ("shared_nbytes", c_uint64), ("memory_nbytes", c_uint64),
                ("patience_s", c_double))


COMPILE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_char_p, c_int, POINTER(c_char_p))


class Runtime:
    """The two libraries of this process, and which simulations it is in."""

    def __init__(self, hip: Path, rtc: Path) -> None:
        self.hip, self.rtc = CDLL(str(hip)), CDLL(str(rtc))
        self.hip.rlx_sim_ranges.restype = c_size_t
        self.hip.hipGetErrorString.restype = c_char_p
        self.rtc.rlx_rtc_alive.restype = ctypes.c_long
        self.rtc.rlx_rtc_result.argtypes = (c_void_p, c_char_p, c_size_t, c_char_p)
        self.rtc.rlx_rtc_result.restype = None
        self.machine = Machine(self._ranges)
        self.hip.rlx_sim_connect(byref(self.machine.functions))
        self._compile = COMPILE(self._compile_program)  # held, for C only borrows it
        self.rtc.rlx_rtc_connect(self._compile)
        atexit.register(self._disconnect)
        self._lock = threading.Lock()
        self._settled: Simulation | None = None
        self._entered: list[Simulation] = []

    def _disconnect(self) -> None:
        """The libraries outlive the interpreter, which must not be called any more."""
        self.hip.rlx_sim_connect(byref(Functions()))
        self.rtc.rlx_rtc_connect(COMPILE())

    @property
    def now(self) -> Simulation | None:
        return self._entered[-1] if self._entered else self._settled

    def enter(self, s: Simulation) -> None:
        with self._lock:
            self._entered.append(s)
            self._configure()

    def leave(self, s: Simulation) -> str:
        """What was still to be done is done; what was wrong with it, "" when nothing was."""
        with self._lock:
            self._entered.remove(s)
            return self._configure()

    def settle(self, s: Simulation | None) -> None:
        """What is there around all that are entered."""
        with self._lock:
            if s != self._settled:
                self._settled = s
                self._configure()

    def alive(self) -> Alive:
        n = (c_int64 * 7)()
        self.hip.rlx_sim_alive(n)
        return Alive(n[0], n[1], n[2], n[3], n[4], n[5], n[6], programs=self.rtc.rlx_rtc_alive())

    def _configure(self) -> str:
        s = self.now
        t = s.target if s else target("gfx1100")
        lazy, memory, patience = (s.lazy, s.memory_nbytes, s.patience_s) if s else (True, 0, 0.0)
        status = self.hip.rlx_sim_configure(byref(_Device(t.arch.encode(), s is not None, bool(s and s.by == "isa"), lazy, t.wave, t.lds_nbytes, memory, patience)))
        return self.hip.hipGetErrorString(status).decode() if status else ""

    def _ranges(self) -> list[tuple[int, int]]:
        room = (c_uint64 * (2 * self.hip.rlx_sim_ranges(None, 0)))()
        self.hip.rlx_sim_ranges(room, len(room) // 2)
        return list(zip(room[::2], room[1::2], strict=True))

    def _compile_program(self, program: int, source: bytes, name: bytes, count: int, options: Any) -> int:
        """What hiprtcCompileProgram does."""
        words = [options[i].decode() for i in range(count)]
        if odd := [w for w in words if not w.startswith("-")]:
            return self._result(program, INVALID_OPTION, b"", f"no option: {' '.join(odd)}")
        s = self.now
        if s is None:
            return self._result(program, COMPILATION, b"", "no device is simulated now")
        archs = [w.partition("=")[2] for w in words if w.startswith(ARCH_OPTIONS)]
        rest = [w for w in words if not w.startswith(ARCH_OPTIONS)]
        try:
            code = _compiled(s, source.decode(), name.decode(), archs[-1] if archs else s.arch, rest)
        except CompileError as e:
            return self._result(program, COMPILATION, b"", e.log or str(e))
        except Exception as e:  # whatever it is, C cannot pass it on
            return self._result(program, COMPILATION, b"", str(e))
        return self._result(program, 0, code, "")

    def _result(self, program: int, status: int, code: bytes, log: str) -> int:
        self.rtc.rlx_rtc_result(program, code, len(code), log.encode())
        return status


def _compiled(s: Simulation, source: str, name: str, arch: str, options: list[str]) -> bytes:
    return compile_machine(source, arch, options) if s.by == "isa" else compile_host(source, name, arch, target(arch).wave, options)


_once = threading.Lock()
_made: Runtime | None = None


def _runtime() -> Runtime:
    """The one of this process.  It stays, for hip-python holds its libraries."""
    global _made
    with _once:
        if _made is None:
            paths = library("libamdhip64.so"), library("libhiprtc.so")
            runtime = Runtime(*paths)
            _bind(paths[0].parent)
            _made = runtime
        return _made


def _bind(folder: Path) -> None:
    """Let hip-python open what is open already.  It looks below ROCM_PATH first, where nothing is to be found, and asks the system's loader
    for the plain name then: the loader gives it the library of that name that this process has."""
    before = os.environ.get("ROCM_PATH")  # ROCm's own variable
    os.environ["ROCM_PATH"] = str(folder)  # ROCm's own variable
    try:
        bound = {symbol: _has(module, symbol) for module, symbol in (("hip", b"rlx_sim_configure"), ("hiprtc", b"rlx_rtc_connect"))}
    finally:
        if before is None:
            del os.environ["ROCM_PATH"]  # ROCm's own variable
        else:
            os.environ["ROCM_PATH"] = before  # ROCm's own variable
    if not all(bound.values()):
        raise BackendMissing("hip-python already talks to another HIP runtime", why="it keeps the library of its first call for as long as the process lives",
                             fix="enter the simulation before the first call of hip-python, or in a process of its own")


def _has(module: str, symbol: bytes) -> bool:
    try:
        ask: Callable[[bytes], bool] = import_module(f"rocm.bindings.{module}").has_symbol
    except ImportError as e:
        raise BackendMissing("no AMD GPU can be simulated without hip-python", why=str(e), fix="pip install 'rlxpy[rocm]'") from None
    return bool(ask(symbol))
