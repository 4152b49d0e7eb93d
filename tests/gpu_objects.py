"""Code objects for tests: one that is stored, and what clang makes where it is installed."""
from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

STORED = (Path(__file__).parent / "golden" / "vadd_gfx1151.hsaco").read_bytes()  # four arguments: a, b, c, n; wave 32; by clang 22
TOOLS = ("clang-22", "llvm-readelf-22", "llvm-objdump-22")
MISSING = [t for t in TOOLS if not shutil.which(t)]
needs_llvm = pytest.mark.skipif(bool(MISSING), reason=f"not run, because this machine lacks {', '.join(MISSING)}: apt-get install clang-22 lld-22 llvm-22")

KERNELS = """
#define GLOBAL extern "C" __attribute__((global))
#define SHARED __attribute__((shared))
#define X __builtin_amdgcn_workitem_id_x()
extern "C" __attribute__((device)) void *malloc_like(int);
GLOBAL void plain(const float *x, float *out, unsigned n) { unsigned i = __builtin_amdgcn_workgroup_id_x() * 256 + X; if (i < n) out[i] = x[i] * 2; }
GLOBAL __attribute__((amdgpu_flat_work_group_size(1, 128))) void tiled(float *out, short a, double b) {
    SHARED static float tile[600]; tile[X] = out[X]; __builtin_amdgcn_s_barrier(); out[X] = tile[127 - X] + a + b; }
GLOBAL void scratch(int *out, const int *at) { int local[64]; for (int i = 0; i < 64; i++) local[i] = at[i]; for (int i = 0; i < 64; i++) out[i] = local[at[i + X] & 63]; }
GLOBAL void hidden(int *out) { out[X] = ((const unsigned *)__builtin_amdgcn_implicitarg_ptr())[0]; }
struct Many { float v[220]; };
GLOBAL void many(Many m, float *out) { out[X] = m.v[X % 220]; }
"""


def tool(*words: str | Path) -> str:
    """What it prints.  Raises CalledProcessError, with what it said in `stderr`."""
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout


@cache
def compiled(arch: str, source: str = KERNELS, *options: str) -> bytes:
    """HIP C++ without any header, as a linked code object."""
    with TemporaryDirectory() as folder:
        (at := Path(folder) / "k.hip").write_text(source)
        tool("clang-22", "-x", "hip", "--cuda-device-only", f"--offload-arch={arch}", "-nogpulib", "-nogpuinc", "-O2", "--no-gpu-bundle-output", *options, at, "-o", out := Path(folder) / "k.hsaco")
        return out.read_bytes()


@cache
def descriptors(data: bytes) -> dict[str, dict[str, int]]:
    """By kernel and field, as LLVM's disassembler writes descriptors out as directives."""
    with TemporaryDirectory() as folder:
        (at := Path(folder) / "k.hsaco").write_bytes(data)
        text = tool("llvm-objdump-22", "-D", "-j", ".rodata", at)
    blocks = re.findall(r"^\.amdhsa_kernel (\w+)$(.*?)^\.end_amdhsa_kernel", text, re.M | re.S)
    return {name: {k: int(v) for k, v in re.findall(r"\.amdhsa_(\w+) (\d+)", body)} for name, body in blocks}


def bundled(parts: Mapping[str, bytes]) -> bytes:
    """As clang documents its offload bundles: by the names of their parts."""
    begin = 32 + sum(24 + len(name) for name in parts)
    begin += -begin % 4096
    head, body = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(parts)), b""
    for name, data in parts.items():
        head += struct.pack("<QQQ", begin + len(body), len(data), len(name)) + name.encode()
        body += data + bytes(-len(data) % 4096)
    return head.ljust(begin, b"\0") + body
