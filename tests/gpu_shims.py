"""GPU source without a GPU: what clang needs to compile it for a device, and what g++ needs to run it one thread after another."""
from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from ctypes import CDLL, c_char_p
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.backends.cache import kept
from rlxpy.backends.gpu.launch import GpuLaunch
from rlxpy.ir.dtypes import Array

CLANGS = ("clang-22", "clang-19", "clang-16", "clang")
ATTRIBUTES = "".join(f"#define __{a}__ __attribute__(({a}))\n" for a in ("global", "device", "shared"))
INDEX = "struct {place} {{ __declspec(property(get = fx)) unsigned x; __device__ static unsigned fx() {{ return {x}; }} }}; static const __device__ {place} {name};\n"
BOUNDS = {"hip": "amdgpu_flat_work_group_size(1, n)", "cuda": "launch_bounds(n)"}  # what the vendors' own headers make of __launch_bounds__
BUILT_IN = {
    "hip": {"threadIdx": "__builtin_amdgcn_workitem_id_x()", "blockIdx": "__builtin_amdgcn_workgroup_id_x()", "blockDim": "__builtin_amdgcn_workgroup_size_x()"},
    "cuda": {"threadIdx": "__nvvm_read_ptx_sreg_tid_x()", "blockIdx": "__nvvm_read_ptx_sreg_ctaid_x()", "blockDim": "__nvvm_read_ptx_sreg_ntid_x()"},
}
ONE_BY_ONE = """#include <cmath>
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(n)
struct rlx_place { unsigned x, y, z; };
static rlx_place threadIdx, blockIdx, blockDim, gridDim;
"""


def clang() -> str | None:
    return next((c for c in CLANGS if shutil.which(c)), None)


def assembly(source: str, language: str, arch: str, folder: Path) -> str:
    """What clang makes of it for a device.  Raises CalledProcessError, with what it said in `stderr`."""
    found = clang()
    assert found
    places = "".join(INDEX.format(place=f"rlx_{name}", name=name, x=x) for name, x in BUILT_IN[language].items())
    (folder / "device.h").write_text(f"{ATTRIBUTES}#define __launch_bounds__(n) __attribute__(({BOUNDS[language]}))\n{places}")
    (folder / "kernel.cpp").write_text(source)
    bare = ["-nogpulib", "-nogpuinc"] if language == "hip" else ["-nocudalib", "-nocudainc"]
    subprocess.run([found, "-x", language, "--cuda-device-only", f"--offload-arch={arch}", *bare, "-fdeclspec", "-O3", "-std=c++17", "-Wall", "-Werror", "-Wno-unused-const-variable",
                    "-Wno-unknown-cuda-version", "-include", str(folder / "device.h"), "-S", "-o", str(folder / "kernel.s"), str(folder / "kernel.cpp")],
                   check=True, capture_output=True, text=True)
    return (folder / "kernel.s").read_text()


def amd_arguments(text: str) -> list[tuple[int, int]]:
    """(offset, size) of each argument that the kernel itself declares, as its metadata says."""
    args = text[text.index(".args:"):text.index(".group_segment_fixed_size")]
    found = []
    for one in re.split(r"^\s+- ", args, flags=re.M)[1:]:
        fields = dict(re.findall(r"\.(\w+):\s*(\S+)", one))
        if not fields["value_kind"].startswith("hidden_"):
            found.append((int(fields["offset"]), int(fields["size"])))
    return found


@cache
def _compiled(text: str) -> CDLL:
    """By content: most launches differ in their sizes alone."""
    def make(out: Path) -> None:
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-x", "c++", "-o", str(out), "-"], input=text, check=True, capture_output=True, text=True)

    return CDLL(str(kept("code", blake2b(text.encode(), digest_size=20).hexdigest(), ".so", make, runs=True)))


def simulate(launch: GpuLaunch, inputs: Sequence[Array], sizes: Mapping[str, int]) -> tuple[Array, ...]:
    """Outputs of one launch on a poisoned arena, where nothing beside the outputs may change."""
    values = ", ".join(f"*({a.c.replace('*', ' *')} const *)(packed + {a.offset})" for a in launch.args)
    run = f"""extern "C" void simulate(const char *packed, unsigned gx, unsigned gy, unsigned gz, unsigned block) {{
    gridDim = {{gx, gy, gz}}; blockDim = {{block, 1, 1}};
    for (unsigned z = 0; z < gz; z++) for (unsigned y = 0; y < gy; y++) for (unsigned x = 0; x < gx; x++) for (unsigned t = 0; t < block; t++)
        {{ blockIdx = {{x, y, z}}; threadIdx = {{t, 0, 0}}; {launch.symbol}({values}); }}
}}"""
    library = _compiled(f"{ONE_BY_ONE}{launch.source}\n{run}\n")
    shapes = launch.shapes(sizes)
    offsets, end = dict[str, int](), 64
    for name, t in launch.operands:
        offsets[name] = end
        end += -(-int(np.prod(shapes[name])) * t.dtype.numpy.itemsize // 64) * 64 + 64
    offsets["scratch"] = end
    arena = np.full(end + launch.scratch_nbytes(sizes) + 64, 0xA5, np.uint8)

    def at(name: str, dtype: Any) -> Array:
        return np.ndarray(shapes[name], dtype, arena, offsets[name])

    for (name, t), a in zip(launch.operands[:launch.inputs], inputs, strict=True):
        at(name, t.dtype.numpy)[...] = a
    before = arena.copy()
    geometry, packed = launch(arena.ctypes.data, offsets, sizes)
    library.simulate(c_char_p(packed), *geometry.grid, geometry.block)
    outs = tuple(at(name, t.dtype.numpy).copy() for name, t in launch.operands[launch.inputs:])
    for name, t in launch.operands[launch.inputs:]:
        at(name, t.dtype.numpy)[...] = np.ndarray(shapes[name], t.dtype.numpy, before, offsets[name])
    arena[offsets["scratch"]:offsets["scratch"] + launch.scratch_nbytes(sizes)] = 0xA5
    np.testing.assert_array_equal(arena, before, "it wrote outside its outputs and scratch")
    return outs
