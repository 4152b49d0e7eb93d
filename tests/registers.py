"""What code that ran in this thread left in the processor's floating-point registers, as glibc tells on x86-64."""
from __future__ import annotations

import ctypes
import platform
import struct

HERE = platform.system() == "Linux" and platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
ENVIRONMENT = struct.Struct("<HxxHxxHxx16xI")  # fenv_t: x87's control, status and tags, then the control of SSE
WITHOUT_FLAGS = ~0x3f                          # of what happened in SSE, which nobody clears
_libm = ctypes.CDLL("libm.so.6") if HERE else None


def left_behind() -> str:
    """How they differ from what a process starts with and every call must leave; "" for not at all, or where nobody tells."""
    if _libm is None:
        return ""
    memory = ctypes.create_string_buffer(ENVIRONMENT.size)
    _libm.fegetenv(memory)
    control, _, tags, sse = ENVIRONMENT.unpack(memory)
    found = {"tags of x87 (MMX without emms?)": (tags, 0xffff), "control of x87": (control, 0x37f), "control of SSE": (sse & WITHOUT_FLAGS, 0x1f80)}
    return ", ".join(f"{name} are {held:#x}, not {usual:#x}" for name, (held, usual) in found.items() if held != usual)
