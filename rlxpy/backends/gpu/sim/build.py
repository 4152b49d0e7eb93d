"""The simulated runtime's libraries and kernels as host code: compiled by a C++ compiler, kept by content."""
from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rlxpy.backends.cache import kept
from rlxpy.backends.cpu.compilers import Compiler, first, run
from rlxpy.backends.cpu.isa import NO_MMX, detect, this_machine
from rlxpy.backends.gpu.offline import HEADER, device_compiler
from rlxpy.backends.templates import folder, read
from rlxpy.errors import BackendMissing, CompileError

HERE = "gpu/sim"
SHIM = ("kernel.h", "shim.h")
CXX = ("g++", "clang++", "clang++-22", "clang++-19", "clang++-16", "c++")
COMPILE_SECONDS = 1200.0  # zig first builds a C++ library of its own
PLAIN = {"zig": ("-fno-sanitize=undefined", "-mcpu=baseline")}  # what takes its own checks and this very processor out of a compiler
LIBRARY = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
KERNELS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions")
LIBRARIES = {"libamdhip64.so": "runtime.cpp", "libhiprtc.so": "rtc.cpp", "libhipblaslt.so": "blaslt.cpp"}


def cxx() -> Compiler:
    """Raises BackendMissing."""
    found = _find(os.environ.get("PATH", ""))  # PATH is where compilers are looked for
    if isinstance(found, str):
        raise BackendMissing("no GPU can be simulated here", why=found)
    return found


@cache
def _find(path: str) -> Compiler | str:
    return first(CXX, path, "c++") or f"no C++ compiler ({', '.join(CXX)}): install g++ or clang, or pip install 'rlxpy[cc]'"


def library(name: str) -> Path:
    """One of LIBRARIES.  Its name inside is the one that hip-python asks the system's loader for."""
    flags = (*LIBRARY, f"-Wl,-soname,{name}")
    return _built(flags, LIBRARIES[name], {f.name: f.read_text("utf-8") for f in sorted((folder() / HERE).glob("*.*"))})


def toolchain() -> str:
    """What makes host code of kernels, beside their text: compilers, instruction set, shim."""
    device = device_compiler()
    texts = "".join(read(f"{HERE}/{name}") for name in SHIM) + read(HEADER)
    return " | ".join([cxx().version, detect().name, " ".join(KERNELS), device if isinstance(device, str) else device.version, hashlib.blake2b(texts.encode(), digest_size=20).hexdigest()])


def kernels(source: str, defines: Sequence[str], options: Sequence[str]) -> Path:
    """A shared object of kernels, whose text stands ready for the shim.  Raises CompileError, with what the compiler said as `log`."""
    isa = detect()
    flags = (*KERNELS, *(isa.flags if isa.machine else ()), *options, *(f"-D{d}" for d in defines))
    return _built(flags, "kernels.cpp", {name: read(f"{HERE}/{name}") for name in SHIM} | {"kernels.cpp": source})


def _built(flags: tuple[str, ...], file: str, texts: dict[str, str]) -> Path:
    """texts: by name, the file to compile and what it includes."""
    compiler = cxx()
    flags = (*PLAIN.get(compiler.family, ()), *NO_MMX.get(this_machine(), ()), *flags)
    facts = json.dumps([platform.machine(), compiler.argv, compiler.version, flags, file, texts])
    key = hashlib.blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return kept("code", key, ".so", lambda out: _compile((*compiler.argv, *flags), file, texts, out), runs=True)


def _compile(command: tuple[str, ...], file: str, texts: dict[str, str], out: Path) -> None:
    for name, text in texts.items():
        out.with_name(name).write_text(text, "utf-8", "replace")
    try:
        status, said, more = run((*command, "-o", str(out), file, "-ldl", "-lrt"), COMPILE_SECONDS, out.parent)
    except OSError as e:
        raise _refusal(command[0], f"it cannot be run: {e.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _refusal(command[0], f"no result in {COMPILE_SECONDS:.0f} s") from None
    if status != 0:
        raise _refusal(command[0], (said + more).strip())


def _refusal(compiler: str, log: str) -> CompileError:
    error = CompileError(f"{compiler} does not compile for the simulated GPU", why=log[-500:] or "it says nothing", fix="`log` of this error has all it said")
    error.log = log
    return error
