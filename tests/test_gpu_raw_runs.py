"""Raw kernels of downstream packages on devices: on the arena, between generated kernels, as host code, as machine code, on a card."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from gpu_device import gpu, simulation
from sim_device import no_device_compiler
from test_gpu_kernels import SEED, acme, calls, registered

import rlxpy
from rlxpy import Builder, CompileOptions, Graph, sym
from rlxpy.backends.gpu.raw import CudaGpuKernel, GpuKernel, RocmGpuKernel, register_gpu_kernel
from rlxpy.errors import CompileError, HookMismatch
from rlxpy.extend import declare_op, op, register_cpu_kernel
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.op import Op
from rlxpy.ir.types import bind

__all__ = ["gpu"]
KINDS: dict[str, type[GpuKernel]] = {"rocm": RocmGpuKernel, "cuda": CudaGpuKernel}
FOUR = """extern "C" __global__ void rlx_custom(float* arena, unsigned out_off, unsigned out_len, unsigned n_inputs,
    unsigned in0_off, unsigned in0_len, unsigned in1_off, unsigned in1_len, unsigned in2_off, unsigned in2_len, unsigned in3_off, unsigned in3_len) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= out_len) return;
  arena[out_off + i] = arena[in0_off + i] * arena[in1_off + i % in1_len] + arena[in2_off] - arena[in3_off + i % in3_len] * (float)n_inputs;
}
"""
TRIPLES = """__device__ void rlx_custom(const float *x, const i64 *x_shape, double by, float *out) {  // a block for each row, through shared memory
  extern __shared__ float row[];
  const i64 n = x_shape[1];
  for (i64 j = threadIdx.x; j < n; j += blockDim.x) row[j] = x[blockIdx.x * n + j];
  __syncthreads();
  for (i64 j = threadIdx.x; j < n; j += blockDim.x) out[blockIdx.x * n + j] = row[n - 1 - j] * (float)by;
}
"""


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with acme():
        @op("acme.backwards")
        def backwards(x, by: float = 3.0): return x.reverse(axes=(1,)) * by  # type: ignore[no-untyped-def]

        @declare_op("acme.four")
        def four(a, b, c, d): return a  # type: ignore[no-untyped-def]

        @register_cpu_kernel("acme.four")
        def four_in_numpy(a: Any, b: Any, c: Any, d: Any) -> Any: return (a * b + c[0] - d * np.float32(4)).astype("f4")
        yield


def arrays(g: Graph, sizes: dict[str, int], seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.uniform(-12, 12, bind(x.type.shape, sizes)) + 12 * (x.type.dtype is DType.U8)).astype(x.type.dtype.numpy) for x in g.inputs]


def outputs(f: Any, given: Sequence[Array]) -> tuple[Array, ...]:
    got = f(*given)
    return got if isinstance(got, tuple) else (got,)


def ran_raw(f: Any, device: str) -> bool:
    return any(s.choice.name.endswith(f".{device}") and s.choice.tier == "kernel" for s in f.plan.steps)


@calls
def test_it_gives_what_the_lowering_gives(call: str, gpu: str) -> None:
    g = registered(call, KINDS[gpu])
    f, plain = rlxpy.compile(g, device=gpu), rlxpy.compile(g, device="reference")
    assert ran_raw(f, gpu), f.explain()
    for n in (7, 1, 1001, 7):
        given = arrays(g, dict.fromkeys(g.symbols, n), n)
        for got, want in zip(outputs(f, given), outputs(plain, given), strict=True):
            np.testing.assert_array_equal(got, want)


def chain(device: str) -> Graph:
    """A raw kernel of ABI 1 between generated ones: four inputs, of which one is a strided view, one a weight, one a constant."""
    register_gpu_kernel(KINDS[device]("acme.four", FOUR))
    b = Builder("between")
    x, w = b.input("x", (5, 7)), b.param("w", (5,))
    made = b.custom_op("acme.four", (x + 1.0).transpose(perm=(1, 0)), w, b.const(np.array([2.5], "f4")), x.slice(start=(0, 1), stop=(1, 6), step=(1, 1)).reshape(shape=(5,)))
    return b.finish(made * 2.0, made.sum(axes=(0,)))


def expected(x: Array, w: Array) -> tuple[Array, Array]:
    made = ((x + np.float32(1)).T * w + np.float32(2.5) - x[0, 1:6] * np.float32(4)).astype("f4")
    return made * np.float32(2), made.sum(0)


def check_chain(device: str, **options: Any) -> None:
    w = np.linspace(-2, 3, 5).astype("f4")
    f = rlxpy.compile(chain(device), {"w": w}, device=device, **options)
    assert ran_raw(f, device), f.explain()
    for k in range(3):
        x = np.random.default_rng(k).standard_normal((5, 7)).astype("f4")
        for got, want in zip(f(x), expected(x, w), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("debug", [False, True])
def test_the_seeds_form_runs_between_generated_kernels_without_leaving_the_device(gpu: str, debug: bool) -> None:
    check_chain(gpu, options=CompileOptions(debug=debug))
    assert all(s.choice.tier != "host" for s in rlxpy.compile(chain(gpu), {"w": np.zeros(5, "f4")}, device=gpu).plan.steps if s.node.op is Op.CUSTOM)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1151"])
def test_the_same_text_runs_as_machine_code(arch: str) -> None:
    if why := no_device_compiler():
        pytest.skip(f"not run, because {why}")
    with simulation(arch, "isa"):
        check_chain("rocm")


def test_shared_memory_and_a_grid_of_its_own(gpu: str) -> None:
    register_gpu_kernel(KINDS[gpu]("acme.backwards", TRIPLES, block_size=64, grid=lambda shapes: shapes["x"][0], shared_nbytes=lambda shapes: 4 * shapes["x"][1]))
    b = Builder("rows")
    f = rlxpy.compile(b.finish(b.custom_op("acme.backwards", b.input("x", (3, 131)), by=1.5)), device=gpu)
    x = np.random.default_rng(0).standard_normal((3, 131)).astype("f4")
    assert ran_raw(f, gpu)
    np.testing.assert_array_equal(f(x), x[:, ::-1] * np.float32(1.5))


def test_a_device_does_not_take_the_other_vendors_kernel(gpu: str) -> None:
    other = next(k for name, k in KINDS.items() if name != gpu)
    register_gpu_kernel(other("acme.axpb", SEED))
    b = Builder("other")
    f = rlxpy.compile(b.finish(b.custom_op("acme.axpb", b.input("x", (3,)))), device=gpu)
    assert not ran_raw(f, gpu)
    np.testing.assert_array_equal(f(np.arange(3, dtype="f4")), np.arange(3) * 2 + np.float32(0.5))


def test_text_that_does_not_compile_is_shown_with_its_line(gpu: str) -> None:
    register_gpu_kernel(KINDS[gpu]("acme.axpb", SEED.replace("arena[in0_off + i]", "aerna[in0_off + i]")))
    b = Builder("broken")
    with pytest.raises(CompileError, match="aerna") as caught:
        rlxpy.compile(b.finish(b.custom_op("acme.axpb", b.input("x", (3,)))), device=gpu)
    assert ">" in caught.value.where
    assert "aerna" in caught.value.log
    assert "\n" not in caught.value.what



def test_a_grid_that_is_empty_at_some_sizes_is_refused_at_those(gpu: str) -> None:
    """What nobody writes would be whatever lay there."""
    register_gpu_kernel(KINDS[gpu]("acme.backwards", TRIPLES, block_size=32, grid=lambda shapes: shapes["x"][0] // 2, shared_nbytes=64))
    b = Builder("empty")
    f = rlxpy.compile(b.finish(b.custom_op("acme.backwards", b.input("x", (sym("N", 0, 4), 5)))), device=gpu)
    assert f(np.ones((0, 5), "f4")).shape == (0, 5)
    with pytest.raises(HookMismatch, match=r"nobody would write out, which is \[1,5\]"):
        f(np.ones((1, 5), "f4"))


def test_a_loop_launches_it_every_round(gpu: str) -> None:
    """It has no lowering: without its kernel the whole loop would run in NumPy."""
    register_gpu_kernel(KINDS[gpu]("acme.four", FOUR))
    b = Builder("looped")
    x, start, w = b.input("x", (sym("N", 0, 4), 5, 7)), b.input("start", (5,)), b.param("w", (5,))

    def step(c: Any, part: Any) -> tuple[Any, Any]:
        made = part.builder.custom_op("acme.four", (part + 1.0).T, c, w[:1], w)
        return made.sum(axes=(0,)) * 0.01, made.T

    weights = np.linspace(-2, 3, 5).astype("f4")
    f = rlxpy.compile(b.finish(*rlxpy.scan(step, start, x)), {"w": weights}, device=gpu, options=CompileOptions(debug=True))
    assert {row["tier"] for row in f.dispatch()} <= {"native", "kernel"}, f.explain()
    for n in (4, 0, 1, 4):
        given, c, want = np.random.default_rng(n).standard_normal((n, 5, 7)).astype("f4"), np.ones(5, "f4"), np.zeros((n, 5, 7), "f4")
        got = f(given, c)
        for k, part in enumerate(given):
            four = (part.T + 1) * c + weights[0] - weights * 4
            want[k], c = four.T, four.sum(0) * np.float32(0.01)
        np.testing.assert_allclose(got[0], c, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[1], want, rtol=1e-4, atol=1e-4)
