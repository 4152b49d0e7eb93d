"""AMD machine code on the simulated device: the runtime asks here, and the executor of `isa` runs it."""
from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from importlib import import_module
from typing import Any, Protocol, cast

from rlxpy.backends.gpu import codeobject
from rlxpy.backends.gpu.offline import HEADER, HIPRTC_ARCHS, compile_hip, compile_hiprtc, device_compiler, hiprtc_library
from rlxpy.backends.templates import read

DEFAULT = "-O3"  # as hipRTC optimises where nobody says how
INVALID_IMAGE, NOT_FOUND, LAUNCH_FAILURE = 200, 500, 719  # hipError_t



class Runner(Protocol):
    """A loaded code object."""

    def launch(self, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int], kernargs: bytes, shared_nbytes: int = 0,
               ranges: Sequence[tuple[int, int]] = ()) -> object:
        """ranges: address and size of the memory that it may touch.  Raises for what a kernel does wrong."""


Load = Callable[[bytes], Runner]
Ranges = Callable[[], list[tuple[int, int]]]


def executor(code: bytes) -> Runner:
    """Of AMD's instructions."""
    return cast(Runner, import_module("rlxpy.backends.gpu.sim.isa").load(code))


def compile_machine(source: str, arch: str, options: Sequence[str]) -> bytes:
    """By AMD's own hipRTC where that is here and knows the arch, else by clang."""
    options = (DEFAULT, *options)
    return compile_hiprtc(source, arch, options) if _by_amd(arch) else compile_hip(source, arch, options)


def machine_toolchain(arch: str) -> str:
    """What makes machine code of kernels, beside their text."""
    if library := _by_amd(arch):
        return f"hipRTC of {library}"
    clang = device_compiler()
    return clang if isinstance(clang, str) else f"{clang.version} {hashlib.blake2b(read(HEADER).encode(), digest_size=20).hexdigest()}"


def _by_amd(arch: str) -> str | None:
    return hiprtc_library() if arch in HIPRTC_ARCHS else None


LOAD = CFUNCTYPE(c_int, c_void_p, c_size_t, POINTER(c_uint64), POINTER(c_char), c_size_t)
DESCRIBE = CFUNCTYPE(c_int, c_uint64, c_char_p, POINTER(c_uint32), POINTER(c_uint32), POINTER(c_uint32), POINTER(c_uint32), POINTER(c_char), c_size_t)
LAUNCH = CFUNCTYPE(c_int, c_uint64, c_char_p, POINTER(c_uint32), POINTER(c_uint32), c_size_t, c_void_p, c_size_t, POINTER(c_char), c_size_t)
UNLOAD = CFUNCTYPE(None, c_uint64)


class Functions(ctypes.Structure):
    """What the runtime calls: `Machine` of templates/gpu/sim/runtime.h."""

    _fields_ = (("load", LOAD), ("describe", DESCRIBE), ("launch", LAUNCH), ("unload", UNLOAD))


class Machine:
    """Loaded code objects by handle.  load: an executor, which a test may replace; ranges: what memory there is."""

    def __init__(self, ranges: Ranges) -> None:
        self.load: Load = executor
        self._ranges = ranges
        self._loaded: dict[int, tuple[codeobject.CodeObject, Runner]] = {}
        self._last = 0
        self.functions = Functions(LOAD(self._load), DESCRIBE(self._describe), LAUNCH(self._launch), UNLOAD(self._unload))

    def _load(self, image: int, nbytes: int, handle: Any, text: Any, room: int) -> int:
        code = ctypes.string_at(image, nbytes)
        try:
            loaded = codeobject.read(code), self.load(code)
        except Exception as e:  # whatever it is, C cannot pass it on
            return _say(e, INVALID_IMAGE, text, room)
        self._last += 1
        self._loaded[self._last] = loaded
        handle[0] = self._last
        return 0

    def _describe(self, handle: int, name: bytes, pairs: Any, count: Any, threads: Any, shared: Any, text: Any, room: int) -> int:
        try:
            kernel = self._loaded[handle][0].kernel(name.decode())
            if len(kernel.explicit) > count[0]:
                raise ValueError(f"{kernel.name} has {len(kernel.explicit)} arguments, the simulated runtime passes {count[0]}")
        except Exception as e:
            return _say(e, NOT_FOUND, text, room)
        for i, arg in enumerate(kernel.explicit):
            pairs[2 * i], pairs[2 * i + 1] = arg.offset, arg.nbytes
        count[0], threads[0], shared[0] = len(kernel.explicit), kernel.max_threads, kernel.lds_nbytes
        return 0

    def _launch(self, handle: int, name: bytes, grid: Any, block: Any, shared_nbytes: int, arguments: int, nbytes: int, text: Any, room: int) -> int:
        kernargs = ctypes.string_at(arguments, nbytes) if nbytes else b""
        try:
            self._loaded[handle][1].launch(name.decode(), tuple(grid[:3]), tuple(block[:3]), kernargs, shared_nbytes, self._ranges())
        except Exception as e:
            return _say(e, LAUNCH_FAILURE, text, room)
        return 0

    def _unload(self, handle: int) -> None:
        self._loaded.pop(handle, None)


def _say(error: Exception, status: int, text: Any, room: int) -> int:
    """Leave what an error says where C reads it.  Cut between characters."""
    said = str(error).encode()[: room - 1].decode(errors="ignore").encode() + b"\0"
    ctypes.memmove(text, said, len(said))
    return status
