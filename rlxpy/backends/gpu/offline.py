"""HIP-C and assembly to AMD code objects on any machine: by clang with our own device header, and by AMD's hipRTC in a process of its own."""
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from functools import cache
from pathlib import Path

from rlxpy.backends.cache import kept
from rlxpy.backends.cpu.compilers import Compiler, first, run
from rlxpy.backends.gpu.arch import FAMILIES
from rlxpy.backends.gpu.listing import numbered
from rlxpy.backends.templates import folder, read
from rlxpy.errors import BackendMissing, CompileError

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201")  # what kernels are compiled for where no card says more
CLANGS = ("clang-22", "clang-21", "clang-20", "clang-19", "amdclang", "/opt/rocm/llvm/bin/clang")
HIPRTC_ARCHS = frozenset({"gfx900", "gfx906", "gfx908", "gfx90a", "gfx1010", *(f"gfx103{n}" for n in range(7))})  # that hipRTC 5.2, which Debian has, knows
HIPRTC_LIBRARIES = ("libamdhip64.so.5", "libhiprtc.so.5")  # 5.2 keeps hipRTC inside of the runtime's library
BARE = ("-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-std=c++17")
FLAGS = ("-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv")
OLDEST, FOR_FAMILIES = ("-mcode-object-version=5",), ("-mcode-object-version=6",)  # what drivers before ROCm 6.3 load; what code for families needs
COMPILE_SECONDS = 300.0
HEADER = "gpu/device.h"
SUFFIX = ".hsaco"
NOTHING = 'extern "C" __global__ void nothing() {}\n'


def device_compiler() -> Compiler | str:
    """A clang that writes AMD's machine code, or why there is none.  One search for each value of PATH in a process."""
    return _find(os.environ.get("PATH", ""))  # PATH is where compilers are looked for


@cache
def _find(path: str) -> Compiler | str:
    return first(CLANGS, path, "clang") or f"no clang that compiles for AMD's GPUs ({', '.join(CLANGS)}): apt-get install clang-22 lld-22, or pip install 'rlxpy[cc]'"


def compile_hip(source: str, arch: str, options: Sequence[str] = FLAGS) -> bytes:
    """The code object that clang makes of it, kept in the cache.

    Raises CompileError, with the numbered source and everything the compiler said as `log`; BackendMissing where there is no such clang."""
    compiler = device_compiler()
    if isinstance(compiler, str):
        raise BackendMissing("HIP source cannot be compiled here", why=compiler)
    key = _key([compiler.argv, compiler.version, read(HEADER), arch, list(options), source])
    return kept("code", key, SUFFIX, lambda out: _clang(compiler, source, arch, options, out)).read_bytes()


def assemble(source: str, arch: str) -> bytes:
    """The code object of a text in AMD's assembly, kept in the cache.  Raises CompileError and BackendMissing as compile_hip does."""
    compiler = device_compiler()
    if isinstance(compiler, str):
        raise BackendMissing("AMD's assembly cannot be assembled here", why=compiler)

    def make(out: Path) -> None:
        (text := out.with_name("kernel.s")).write_text(source, "utf-8", "replace")
        for command in _assembling(compiler, arch, text, out):
            _step(command, source, arch, compiler.text)

    return kept("code", _key([compiler.argv, compiler.version, "assembly", arch, source]), SUFFIX, make).read_bytes()


def _key(facts: list[object]) -> str:
    return hashlib.blake2b(json.dumps(facts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _clang(compiler: Compiler, source: str, arch: str, options: Sequence[str], out: Path) -> None:
    text = out.with_name("kernel.hip")
    text.write_text(source, "utf-8", "replace")
    front = (*compiler.argv, *BARE, f"--offload-arch={arch}", "-include", str(folder() / HEADER), *_format(arch), *options)
    for command in _steps(compiler, front, arch, text, out):
        _step(command, source, arch, compiler.text)


def _format(arch: str) -> tuple[str, ...]:
    return FOR_FAMILIES if arch in FAMILIES else OLDEST


def _steps(compiler: Compiler, front: tuple[str, ...], arch: str, text: Path, out: Path) -> list[tuple[str, ...]]:
    """One command, or three of zig's: its clang cannot start the linker."""
    if compiler.family != "zig":
        return [(*front, "--no-gpu-bundle-output", "-o", str(out), str(text))]
    assembly = text.with_suffix(".s")
    return [(*front, "-S", "-o", str(assembly), str(text)), *_assembling(compiler, arch, assembly, out)]


def _assembling(compiler: Compiler, arch: str, text: Path, out: Path) -> list[tuple[str, ...]]:
    front = (*compiler.argv, "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", *_format(arch), "-x", "assembler", str(text))
    if compiler.family != "zig":
        return [(*front, "-o", str(out))]
    unlinked = text.with_suffix(".o")
    return [(*front, "-c", "-o", str(unlinked)), (compiler.argv[0], "ld.lld", "-shared", str(unlinked), "-o", str(out))]


def _step(command: tuple[str, ...], source: str, arch: str, compiler: str) -> None:
    try:
        status, said, more = run(command, COMPILE_SECONDS)
    except OSError as e:
        raise numbered(source, f"it cannot be run: {e.strerror}", compiler, arch, command) from None
    except subprocess.TimeoutExpired:
        raise numbered(source, f"no result in {COMPILE_SECONDS:.0f} s", compiler, arch, command) from None
    if status != 0:
        raise numbered(source, (said + more).strip() or f"it ends with {status}", compiler, arch, command)


# ---- AMD's hipRTC
@cache
def hiprtc_library() -> str | None:
    """A library with AMD's own hipRTC that can be opened here, if there is one."""
    for name in HIPRTC_LIBRARIES:
        try:
            return name if hasattr(ctypes.CDLL(name), "hiprtcCompileProgram") else None
        except OSError:
            continue
    return None


def compile_hiprtc(source: str, arch: str, options: Sequence[str] = FLAGS, library: str | None = None) -> bytes:
    """The code object that AMD's hipRTC makes of it, kept in the cache.  A child process compiles, for hipRTC aborts it at an arch newer than itself.

    Raises CompileError and BackendMissing as compile_hip does."""
    library = library or hiprtc_library()
    if library is None:
        raise BackendMissing("AMD's hipRTC cannot be used here", why=f"none of {', '.join(HIPRTC_LIBRARIES)} can be opened", fix="apt-get install libamdhip64-5 libamd-comgr2")
    key = _key([library, find_library("amdhip64") or "", arch, list(options), source])
    return kept("code", key, SUFFIX, lambda out: _hiprtc(library, source, arch, options, out)).read_bytes()


def hiprtc_refusal(library: str, arch: str) -> str:
    """Why a hipRTC cannot compile for a chip, as one that is older than the chip; "" where it can, which is asked once and kept."""
    try:
        compile_hiprtc(NOTHING, arch, library=library)
    except CompileError as e:
        return f"{e.what}: {e.why}"
    return ""


def mapped_library(part: str) -> str | None:
    """The file of a library that this process has open, by a part of its name; where the system tells."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return next((fields[5] for line in lines if len(fields := line.split(None, 5)) == 6 and part in Path(fields[5]).name), None)


def _hiprtc(library: str, source: str, arch: str, options: Sequence[str], out: Path) -> None:
    text = out.with_name("kernel.hip")
    text.write_text(source, "utf-8", "replace")
    child = (sys.executable, str(Path(__file__).with_name("hiprtc_child.py")), library, arch, str(text), str(out), *options)
    compiler = f"hipRTC in {library}"
    try:
        status, _, said = run(child, COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        raise numbered(source, f"no result in {COMPILE_SECONDS:.0f} s", compiler, arch, options) from None
    if status < 0:
        known = ", ".join(sorted(HIPRTC_ARCHS))
        raise CompileError(f"{compiler} died while it compiled for {arch}", why=f"signal {-status}; version 5.2 knows only {known}", fix="compile for this arch with clang: compile_hip")
    if status != 0:
        raise numbered(source, said.strip() or f"it ends with {status}", compiler, arch, options)
