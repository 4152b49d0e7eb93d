"""The HIP project: it compiles without ROCm's headers, and runs on a simulated device as the reference does."""
from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_device import lacking

import rlxpy
from rlxpy import Builder, Graph, sym
from rlxpy.backends.gpu.assembly import RocmAsmKernel
from rlxpy.backends.gpu.sim import simulated
from rlxpy.backends.gpu.sim.build import library
from rlxpy.errors import LegaliseError
from rlxpy.extend import Constraint, RocmGpuKernel, declare_op, op, register_gpu_kernel, registry
from rlxpy.ir.dtypes import Array
from rlxpy.targets import projects
from rlxpy.targets.hip.project import PIECE

N = sym("N", 1, 9)
STRICT = "-O1 -Wall -Wextra -pedantic -Werror"


@pytest.fixture(params=["gfx1100", "gfx942"])
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    if why := lacking() or ("" if shutil.which("make") else "there is no make"):
        pytest.skip(f"not run, because {why}")
    with simulated(request.param):
        yield request.param


class Project:
    """A project that was written and made, called through its C interface."""

    def __init__(self, graph: Graph, params: Mapping[str, Any], folder: Path) -> None:
        projects.write(graph, params, projects.target("hip"), folder)
        home = folder / "rocm"
        (home / "lib").mkdir(parents=True)
        for name in ("libamdhip64.so", "libhiprtc.so"):
            (home / "lib" / name).symlink_to(library(name))
        made = subprocess.run(["make", "--no-print-directory", f"lib{graph.name}.so", f"ROCM_PATH={home}", f"CXXFLAGS={STRICT}"], cwd=folder, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        self.graph, self.folder = graph, folder
        self._c = ctypes.CDLL(str(folder / f"lib{graph.name}.so"))
        self._model = ctypes.create_string_buffer(1 << 16)
        self.opened = self("open", str(folder / f"{graph.name}.weights").encode())

    def __call__(self, what: str, *args: Any) -> int:
        """Of close, which returns nothing, some number."""
        return int(getattr(self._c, f"{self.graph.name}_{what}")(self._model, *args))

    def message(self, code: int) -> str:
        said = getattr(self._c, f"{self.graph.name}_message")
        said.restype = ctypes.c_char_p
        return str(said(code).decode())

    def run(self, *inputs: Array, **sizes: int) -> tuple[int, list[Array]]:
        held = [np.ascontiguousarray(a) for a in inputs]
        outs = [np.full([d if isinstance(d, int) else d.at(sizes) for d in t.shape], 1, t.dtype.numpy) for t in self.graph.output_types]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*held, *outs)]
        return self("run", *(ctypes.c_int64(sizes[s]) for s in sorted(sizes)), *pointers), outs


def chain() -> tuple[Graph, dict[str, Array]]:
    b = Builder("demo")
    x, w = b.input("x", (N, 5, 70)), b.param("w", (70,))
    y = (x * w + 1.0).abs().log1p()
    return b.finish(y, (y * 2.0).sum(axes=(2,)), x.max(axes=(1,)), y.cast(to="f16").sin()), {"w": np.linspace(-1, 1, 70, dtype="f4")}


def test_it_runs_as_the_reference_for_every_size(arch: str, tmp_path: Path) -> None:
    graph, params = chain()
    made, plain = Project(graph, params, tmp_path), rlxpy.compile(graph, params, device="reference")
    assert made.opened == 0, made.message(made.opened)
    for n in (3, 1, 9, 3):
        x = np.random.default_rng(n).standard_normal((n, 5, 70)).astype("f4")
        code, got = made.run(x, N=n)
        assert code == 0, made.message(code)
        for g, w in zip(got, plain(x), strict=True):
            np.testing.assert_allclose(g.astype("f8"), w.astype("f8"), rtol=1e-5, atol=2e-3 if w.dtype == np.float16 else 2e-5)
    assert "N is outside 1..9" in made.message(made.run(np.zeros((10, 5, 70), "f4"), N=10)[0]).replace("dim_", "")


def test_states_trade_places_and_are_forgotten(arch: str, tmp_path: Path) -> None:
    b = Builder("swap")
    x, one, two = b.input("x", (3,)), b.state("one", (3,)), b.state("two", (3,))
    b.update(one, two + x)
    b.update(two, one * 2.0)
    graph = b.finish(one + two)
    made, plain = Project(graph, {}, tmp_path), rlxpy.compile(graph, {}, device="reference")
    for k in range(4):
        x_now = np.arange(3, dtype="f4") + k
        code, (got,) = made.run(x_now)
        assert code == 0
        np.testing.assert_array_equal(got, plain(x_now))
    assert made("reset") == 0
    plain.reset()
    np.testing.assert_array_equal(made.run(x_now)[1][0], plain(x_now))


def test_a_weights_file_that_is_short_leaves_nothing_allocated(arch: str, tmp_path: Path) -> None:
    graph, params = chain()
    with simulated(arch) as device:
        before = device.alive().allocations
        made = Project(graph, params, tmp_path)
        made("close")
        (tmp_path / "demo.weights").write_bytes(b"short")
        assert "weights" in made.message(made("open", str(tmp_path / "demo.weights").encode()))
        assert device.alive().allocations == before


def test_what_it_has_no_type_for_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    b = Builder("cplx")
    x = b.input("x", (3, 3))
    with pytest.raises(LegaliseError, match="hip has no type for 1 values"):
        projects.write(b.finish(x.cast(to="c64")), {}, projects.target("hip"), tmp_path)
    assert not any(tmp_path.iterdir())


DOUBLE = """extern "C" __global__ void rlx_custom(float* arena, unsigned out_off, unsigned out_len, unsigned n_inputs,
    unsigned in0_off, unsigned in0_len, unsigned in1_off, unsigned in1_len, unsigned in2_off, unsigned in2_len, unsigned in3_off, unsigned in3_len) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < out_len) arena[out_off + i] = 2.0f * arena[in0_off + i];
}
"""


ROWS = """__device__ void rlx_custom(const float *x, const i64 *x_shape, double by, char *scratch, float *out) {  // a block for each row, through shared memory and scratch
  extern __shared__ float row[];
  float *const kept = (float *)scratch;
  const i64 n = x_shape[1];
  for (i64 j = threadIdx.x; j < n; j += blockDim.x) row[j] = x[blockIdx.x * n + j];
  __syncthreads();
  for (i64 j = threadIdx.x; j < n; j += blockDim.x) kept[blockIdx.x * n + j] = row[n - 1 - j] * (float)by;
  __syncthreads();
  for (i64 j = threadIdx.x; j < n; j += blockDim.x) out[blockIdx.x * n + j] = kept[blockIdx.x * n + j];
}
"""
ASSEMBLY = """
scale:
  s_endpgm
.amdhsa_kernel scale
.end_amdhsa_kernel
.amdgpu_metadata
  - .name: scale
.end_amdgpu_metadata
"""
ENDS = "__device__ void rlx_custom(const unsigned char *x, i64 x_numel, float *out0, i64 *out1) { out0[0] = x[0]; out1[0] = x_numel; }"
FIRST = "__device__ void rlx_custom(const float *x, float *out, i64 out_numel) { i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; if (i < out_numel) out[i] = x[i]; }"


@pytest.fixture
def acme() -> Iterator[None]:
    """Ops with raw kernels of both ABIs."""
    with registry():
        @op("acme.double")
        def double(x): return x + x  # type: ignore[no-untyped-def]

        @op("acme.backwards")
        def backwards(x, by: float = 3.0): return x.reverse(axes=(1,)) * by  # type: ignore[no-untyped-def]

        @op("acme.ends")
        def ends(x): return x[0].cast(to="f32"), (x.cast(to="i64") * 0 + 1).sum(axes=(0,))  # type: ignore[no-untyped-def]

        @declare_op("acme.bare")
        def bare(x): return x  # type: ignore[no-untyped-def]

        @declare_op("acme.opaque")
        def opaque(x): return x  # type: ignore[no-untyped-def]

        register_gpu_kernel(RocmGpuKernel("acme.double", DOUBLE))
        register_gpu_kernel(RocmGpuKernel("acme.backwards", ROWS, block_size=64, grid=lambda shapes: shapes["x"][0], shared_nbytes=lambda shapes: 4 * shapes["x"][1],
                                          scratch_nbytes=lambda shapes: 4 * shapes["x"][0] * shapes["x"][1]))
        register_gpu_kernel(RocmGpuKernel("acme.ends", ENDS, block_size=32, grid=1))
        yield


@pytest.mark.parametrize("arch", ["gfx942"], indirect=True)
def test_raw_kernels_of_both_kinds_go_with_it(arch: str, tmp_path: Path, acme: None) -> None:
    """At every size; of a view, which lies in another order, of a weight, of another kernel's result; each source is a module of its own."""
    b, m = Builder("demo"), sym("M", 0, 70, 7)
    x, z, w = b.input("x", (N, m)), b.input("z", (N,), "u8"), b.param("w", (5, 3))
    turned = b.custom_op("acme.backwards", x.T, by=0.5)
    graph = b.finish(b.custom_op("acme.double", turned + 1.0), b.custom_op("acme.double", x), b.custom_op("acme.backwards", w), *b.custom_op("acme.ends", z), turned.sum(axes=(0,)))
    params = {"w": np.arange(15, dtype="f4").reshape(5, 3)}
    made, plain = Project(graph, params, tmp_path), rlxpy.compile(graph, params, device="reference")
    assert made.opened == 0, made.message(made.opened)
    for n, k in ((3, 7), (9, 70), (1, 0), (3, 7)):
        given = np.random.default_rng(n).standard_normal((n, k)).astype("f4"), np.arange(n, dtype="u1") + 40
        code, got = made.run(*given, N=n, M=k)
        assert code == 0, made.message(code)
        for g, want in zip(got, plain(*given), strict=True):
            np.testing.assert_allclose(g, want, rtol=1e-6, atol=1e-6)
    assert sorted(f.name for f in tmp_path.glob("*.inc")) == ["demo_acme_backwards.inc", "demo_acme_backwards_2.inc", "demo_acme_double.inc", "demo_acme_ends.inc", "demo_kernels.inc"]


def one(name: str, *shape: Any) -> Graph:
    b = Builder("demo")
    return b.finish(b.custom_op(name, b.input("x", shape)))


@pytest.mark.parametrize("arch", ["gfx942"], indirect=True)
def test_a_graph_of_nothing_but_a_raw_kernel(arch: str, tmp_path: Path, acme: None) -> None:
    made = Project(one("acme.double", 3), {}, tmp_path)
    code, (got,) = made.run(np.arange(3, dtype="f4"))
    assert (code, got.tolist()) == (0, [0, 2, 4])


def test_a_raw_kernel_that_cannot_go_with_it_is_lowered_and_without_a_lowering_refused_by_its_name(tmp_path: Path, acme: None) -> None:
    hip = projects.target("hip")
    asm = RocmAsmKernel("acme.double", ASSEMBLY, "scale", 64, signature="const float *x, float *out", archs=("gfx1100",), wave=32)
    for kernel in (asm, replace(RocmGpuKernel("acme.double", DOUBLE), constraints=(Constraint("device.wave", "EQ", 64),))):
        register_gpu_kernel(kernel)
        projects.write(one("acme.double", 3), {}, hip, tmp_path / f"lowered{kernel.abi}")
        assert [f.name for f in (tmp_path / f"lowered{kernel.abi}").glob("*.inc")] == ["demo_kernels.inc"]
    for kernel, shape, said in (
        (replace(asm, name="acme.opaque"), (3,), "does not carry kernels in assembly, as this one for gfx1100"),
        (RocmGpuKernel("acme.opaque", FIRST, grid=lambda shapes: 2), (sym("N", 1, 5000),), "its grid of 5,000 sizes would be a table"),
    ):
        register_gpu_kernel(kernel)
        with pytest.raises(LegaliseError, match=rf"hip cannot run(?s:.*)acme\.opaque\.rocm \({__file__}:\d+\): (?s:.*){said}"):
            projects.write(one("acme.opaque", *shape), {}, hip, tmp_path / "refused")
    with pytest.raises(LegaliseError) as caught:
        projects.write(one("acme.bare", 3), {}, hip, tmp_path / "refused")
    assert "carry" not in str(caught.value)
    assert not (tmp_path / "refused").exists()


def test_the_kernels_are_string_literals_of_a_bearable_length(tmp_path: Path) -> None:
    graph, params = chain()
    projects.write(graph, params, projects.target("hip"), tmp_path)
    pieces = (tmp_path / "demo_kernels.inc").read_text().split('R"rlx(')[1:]
    assert len(pieces) > 1
    assert max(map(len, pieces)) < PIECE + 10
    whole = "".join(p[:p.rindex(')rlx"')] for p in pieces)
    assert whole.count('extern "C" __global__') >= 4
