"""Kernels as host code: what HIP source must become before a C++ compiler takes it, and which kernels are in it."""
from __future__ import annotations

import re
from collections.abc import Sequence

from rlxpy.backends.gpu import codeobject
from rlxpy.backends.gpu.offline import compile_hip, device_compiler
from rlxpy.backends.gpu.sim.build import kernels
from rlxpy.frozen import dataclass
from rlxpy.notes import note_once

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DYNAMIC = re.compile(r"extern\s+__shared__\s+((?:alignas|__align__)\s*\([^)]*\)\s*)?([\w:\s]*?\w)\s+(\w+)\s*\[\s*\]\s*;")
BOUNDS = re.compile(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)")
ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
KERNEL = re.compile(r'(extern\s+"C"\s+)?__global__\b([^{;]*)')
NAME = re.compile(r"\bvoid\s+(\w+)\s*\(")
MOST_THREADS = "1024"
IGNORED = ("-O", "-ffp-contract=", "-fwrapv", "-fno-strict-aliasing", "-std=", "-mcode-object-version=")  # host code has them its own way


@dataclass(frozen=True)
class Found:
    """A kernel in a text.  most_threads: an expression.  shared_nbytes: of its __shared__ variables, 0 where nobody counted."""

    name: str
    most_threads: str
    shared_nbytes: int = 0


def compile_host(source: str, name: str, arch: str, wave: int, options: Sequence[str]) -> bytes:
    """A shared object that the simulated runtime loads.  name: of the text, for messages.

    Where a device compiler is there, it reads the text first: what a card would not take, the simulated one does not take either.
    Raises CompileError with the log of whoever refused."""
    found = _checked(source, arch, options)
    defines = (f"RLX_SIM_WAVE={wave}",)
    return kernels(host_text(source, name, arch, found), defines, [o for o in options if not o.startswith(IGNORED)]).read_bytes()


def _checked(source: str, arch: str, options: Sequence[str]) -> list[Found]:
    """The kernels that a module of this source lets one find by name."""
    found = find_kernels(source)
    compiler = device_compiler()
    if isinstance(compiler, str):
        note_once(f"simulated GPU: kernels are not checked by a device compiler: {compiler}")
        return found
    seen = {k.name: k for k in codeobject.read(compile_hip(source, arch, ("-O1", *options))).kernels}
    return [Found(f.name, f.most_threads, seen[f.name].lds_nbytes) for f in found if f.name in seen]


def find_kernels(source: str) -> list[Found]:
    """Those with C names; of templates and C++ names a module shows none by the plain name."""
    text = COMMENT.sub(" ", source)
    inside_c = 'extern "C" {' in text
    found = {}
    for match in KERNEL.finditer(text):
        head = match[2]
        bounds = BOUNDS.search(head)
        name = NAME.search(ATTRIBUTE.sub(" ", BOUNDS.sub(" ", head)))
        if name and (match[1] or inside_c):
            found[name[1]] = Found(name[1], bounds[1].split(",")[0].strip() if bounds else MOST_THREADS)
    return list(found.values())


def host_text(source: str, name: str, arch: str, found: Sequence[Found]) -> str:
    """The text between the shim and what the module tells the runtime.  Inside an unnamed namespace its inline functions are its own, and so is their shared memory."""
    body = DYNAMIC.sub(lambda m: f"SIM_DYNAMIC_SHARED({m[2]}, {m[3]});", source)
    exports = "".join(f"SIM_KERNEL({k.name}, ({k.most_threads}), {k.shared_nbytes})\n" for k in found)
    return f'#include "shim.h"\nnamespace {{\n#line 1 "{name}"\n{body}\n}}\nSIM_MODULE("{arch}")\n{exports}'
