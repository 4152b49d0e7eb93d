"""What a launch sets up as hardware and driver do: ids, hidden arguments, registers, modes; waves of two sizes compared; the executor on other processors."""
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from isa_device import CHIPS, WAVE64, module, packed, run
from sim_device import needs_clang

from rlxpy.backends.gpu.offline import FLAGS, compile_hip
from rlxpy.backends.gpu.sim.isa import load, machine, records, runs_alike
from rlxpy.backends.gpu.sim.isa.records import names
from rlxpy.backends.gpu.sim.isa.scalar import ATOMICS, SCALAR_ALIASES, SCALARS
from rlxpy.backends.gpu.sim.isa.vector import ALIASES, ROWS
from rlxpy.backends.gpu.sim.isa.vectors import canonical

pytestmark = needs_clang
KERNELS = """
#define KERNEL extern "C" __global__ void
KERNEL ids(int* out, int nx, int ny) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z * blockDim.z + threadIdx.z;
  int at = (z * ny + y) * nx + x;
  out[at] = x + 1000 * y + 1000000 * z + 100000000 * (int)(gridDim.x == 3 && gridDim.y == 2 && gridDim.z == 2 && blockDim.x == 5 && blockDim.y == 3 && blockDim.z == 2);
}
KERNEL many(int* out, char a, short b, int c, long long d, float e, double f, int* g) {
  if (threadIdx.x == 0) { out[0] = a; out[1] = b; out[2] = c; out[3] = (int)(d >> 32); out[4] = (int)e; out[5] = (int)f; out[6] = g[0]; }
}
KERNEL small(const float* a, float* out) { out[threadIdx.x] = a[threadIdx.x] * 0.5f; }
KERNEL count(int* out) { atomicAdd(out, 1); if (threadIdx.x == 0) atomicAdd(out + 1, (int)warpSize); }
KERNEL sum(const float* a, float* out) {
  float s = a[threadIdx.x];
  for (int o = STEP; o > 0; o >>= 1) s += __shfl_xor(s, o);
  __shared__ float part[8];
  if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = s;
  __syncthreads();
  s = 0;
  for (int k = 0; k < (int)(blockDim.x / warpSize); k++) s += part[k];
  out[threadIdx.x] = s;
}
"""
RIGHT, WRONG = (KERNELS.replace("STEP", step) for step in ("(int)warpSize / 2", "16"))


@pytest.mark.parametrize("chip", CHIPS)
def test_ids_sizes_and_hidden_arguments_in_three_dimensions(chip: str) -> None:
    out = np.full((4, 6, 15), -1, "i4")
    report = run(module(RIGHT, chip), "ids", (3, 2, 2), (5, 3, 2), out, 15, 6)
    z, y, x = np.indices(out.shape)
    assert np.array_equal(out, x + 1000 * y + 1000000 * z + 100000000)
    assert (report.blocks, report.waves, report.wave) == (12, 12, module(RIGHT, chip).wave)
    assert report.target.startswith(chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_arguments_of_every_size_at_their_offsets(chip: str) -> None:
    out, g = np.zeros(7, "i4"), np.array([77], "i4")
    kernargs = bytearray(56)
    for at, value in ((0, np.uint64(out.ctypes.data)), (8, np.int8(-3)), (10, np.int16(-300)), (12, np.int32(-70000)), (16, np.int64(-5 << 32)), (24, np.float32(2.5)), (32, np.float64(-8.0)),
                      (40, np.uint64(g.ctypes.data))):
        kernargs[at:at + value.nbytes] = value.tobytes()
    module(RIGHT, chip).launch("many", (1, 1, 1), (64, 1, 1), bytes(kernargs), ranges=((out.ctypes.data, out.nbytes), (g.ctypes.data, g.nbytes)))
    assert out.tolist() == [-3, -300, -70000, -5, 2, -8, 77]


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_arguments_come_in_registers_where_the_descriptor_says_so(chip: str) -> None:
    m = load(compile_hip(RIGHT, chip, (*FLAGS, "-mllvm", "-amdgpu-kernarg-preload-count=8")))
    kernel = m.object.kernel("small")
    assert kernel.descriptor.bits("user_sgpr_kernarg_preload_length") > 0
    assert m.image.entry(kernel) == kernel.descriptor.entry + 256
    a, out = np.arange(64, dtype="f4"), np.zeros(64, "f4")
    run(m, "small", 1, 64, a, out)
    assert np.array_equal(out, a / 2)
    out3 = np.full((4, 6, 15), -1, "i4")
    run(m, "ids", (3, 2, 2), (5, 3, 2), out3, 15, 6)
    assert out3[3, 5, 14] == 14 + 5000 + 3000000 + 100000000


@pytest.mark.parametrize("chip", CHIPS)
def test_denormals_are_kept_or_flushed_as_the_descriptor_says(chip: str) -> None:
    a = np.array([1e-38, 3e-38, -1e-40, 1e-45, 1.0, -0.0] + [0] * 58, "f4")
    kept, flushed = np.zeros(64, "f4"), np.zeros(64, "f4")
    run(module(RIGHT, chip), "small", 1, 64, a, kept)
    assert np.array_equal(kept, a / 2)
    run(module(RIGHT, chip, "-fgpu-flush-denormals-to-zero"), "small", 1, 64, a, flushed)
    assert np.array_equal(flushed, np.where(abs(a / 2) < np.float32(2.0**-126), np.copysign(np.float32(0), a), a / 2))


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1030", "gfx1201"])
@pytest.mark.parametrize("threads", [1, 31, 33, 65, 1000])
def test_the_last_wave_is_as_full_as_the_block_asks(chip: str, threads: int) -> None:
    out = np.zeros(2, "i4")
    report = run(module(RIGHT.replace("KERNEL count", "KERNEL __launch_bounds__(1024) count"), chip), "count", 2, threads, out)
    assert out.tolist() == [2 * threads, 2 * report.wave]
    assert report.waves == 2 * -(-threads // report.wave)


@pytest.mark.parametrize("chip", ["gfx1030", "gfx1100", "gfx1201"])
def test_a_kernel_that_takes_32_lanes_for_granted_does_not_run_alike_in_waves_of_64(chip: str) -> None:
    a, out = np.random.default_rng(3).standard_normal(128).astype("f4"), np.zeros(128, "f4")
    ranges = [(x.ctypes.data, x.nbytes) for x in (a, out)]

    def near(x: bytes, y: bytes) -> bool: return bool(np.allclose(np.frombuffer(x, "f4"), np.frombuffer(y, "f4"), rtol=1e-4, atol=1e-5))

    for source, same in ((RIGHT, True), (WRONG, False)):
        modules = module(source, chip), module(source, chip, *WAVE64)
        found = runs_alike(modules, "sum", (1, 1, 1), (128, 1, 1), packed((a, out)), ranges, same=near)
        assert [d.range for d in found] == ([] if same else [1])
    assert np.allclose(np.frombuffer(found[0].first, "f4"), a.astype("f8").sum(), atol=1e-5)
    assert found[0].first[found[0].at] != found[0].second[found[0].at]


def test_registers_start_as_poison_so_that_nothing_leans_on_zeros() -> None:
    source = 'extern "C" __global__ void stale(unsigned* out) { unsigned r; asm volatile("v_mov_b32 %0, v99" : "=v"(r) :: "v99"); out[threadIdx.x] = r; }'
    out = np.zeros(64, "u4")
    run(module(source, "gfx90a"), "stale", 1, 64, out)
    assert np.isnan(out.view("f4")).all()
    assert (out > 1 << 30).all()


def test_every_row_has_a_name_of_its_own_that_instructions_lead_to_and_numbers_are_those_of_the_c() -> None:
    for rows, aliases in ((ROWS, ALIASES), (SCALARS, SCALAR_ALIASES), (ATOMICS, ())):
        plain = [row.name.removesuffix("+clamp") for row in rows]
        assert len({row.name for row in rows}) == len(rows)
        assert [name for name in plain if canonical(name, aliases) != name] == []
    assert all(names()[name] == getattr(records, name) for name in ("LANES", "SGPRS", "VGPRS", "NO_REG", "NO_VGPR"))


@pytest.mark.parametrize("processor", ["aarch64-linux-gnu", "riscv64-linux-gnu"])
def test_the_executor_is_plain_c_for_other_processors_too(processor: str, tmp_path: Path) -> None:
    clang = shutil.which("clang-22")
    if clang is None:
        pytest.skip("not run, because clang-22 is not installed")
    unit = tmp_path / "unit.c"
    unit.write_text(machine.source())
    flags = ("-std=gnu11", "-ffreestanding", "-fwrapv", "-fno-strict-aliasing", "-w", "-fsyntax-only")
    done = subprocess.run([clang, f"--target={processor}", *flags, str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
