"""What a process of its own does: hands one file to hipRTC and writes the code object to another.  It needs nothing of rlxpy."""
from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def main(library: str, arch: str, source: str, out: str, *options: str) -> int:
    """Status 1, and what hipRTC said on stderr, when it refuses."""
    rtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    text = Path(source).read_bytes()
    if status := rtc.hiprtcCreateProgram(ctypes.byref(program), text, b"kernel.hip", 0, None, None):
        sys.stderr.write(f"hiprtcCreateProgram gives {status}\n")
        return 1
    flags = [o.encode() for o in (f"--offload-arch={arch}", *options)]
    if status := rtc.hiprtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags)):
        sys.stderr.write(_sized(rtc.hiprtcGetProgramLogSize, rtc.hiprtcGetProgramLog, program).rstrip(b"\0").decode(errors="replace") or f"hiprtcCompileProgram gives {status}\n")
        return 1
    Path(out).write_bytes(_sized(rtc.hiprtcGetCodeSize, rtc.hiprtcGetCode, program))
    return 0


def _sized(size: ctypes._NamedFuncPointer, content: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    nbytes = ctypes.c_size_t()
    size(program, ctypes.byref(nbytes))
    buffer = ctypes.create_string_buffer(nbytes.value)
    content(program, buffer)
    return buffer.raw


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
