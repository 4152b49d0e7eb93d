"""Raw GPU kernels of downstream packages: checked, laid out, preferred, compiled for two vendors, and run one thread after another."""
from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_shims import amd_arguments, assembly, clang, simulate
from sim_device import needs_simulation

from rlxpy import Builder, CompileOptions, DType, Graph, Op, RlxError, compile, sym
from rlxpy.backends.cpu.ctext import size_name
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.launch import GpuLaunch
from rlxpy.backends.gpu.raw import CudaGpuKernel, GpuKernel, RocmGpuKernel, own_gpu_kernel, register_gpu_kernel
from rlxpy.backends.gpu.sim import simulated
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.compiler.session import lower
from rlxpy.errors import HookMismatch, InputError, NotRegistered
from rlxpy.extend import OpExtension, TensorType, declare_op, op, register_cpu_kernel, registry
from rlxpy.extend.kernels import Choice, Refusal
from rlxpy.ir.extension import extension
from rlxpy.ir.refs import evaluate
from rlxpy.ir.types import bind

KERNELS: tuple[type[GpuKernel], ...] = (RocmGpuKernel, CudaGpuKernel)
SEED = """extern "C" __global__ void rlx_custom(float* arena, unsigned out_off, unsigned out_len, unsigned n_inputs,
        unsigned in0_off, unsigned in0_len, unsigned in1_off, unsigned in1_len, unsigned in2_off, unsigned in2_len, unsigned in3_off, unsigned in3_len) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < out_len) arena[out_off + i] = arena[in0_off + i] * 2.0f + (n_inputs > 1 ? arena[in1_off + i % in1_len] : 0.5f);
}
"""
CAP = """__device__ void rlx_custom(const x_t *x, out_t *out, i64 out_numel, f64 cap) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < out_numel) out[i] = x[i] < -cap ? (out_t)-cap : x[i] > cap ? (out_t)cap : x[i];
}
"""
DOUBLE = """__device__ void rlx_custom(const x_t *x, out_t *out, i64 out_numel) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < out_numel) out[i] = (out_t)(x[i] + x[i]);
}
"""
ROWS = """__device__ void largest(const float *x, const i64 *x_shape, float *out0, i64 *out1, char *scratch) {  // a block for each row
    if (threadIdx.x) return;
    const float *row = x + (i64)blockIdx.x * x_shape[1];
    i64 best = 0;
    for (i64 j = 1; j < x_shape[1]; j++) if (row[j] > row[best]) best = j;
    *(i64 *)(scratch + 8 * blockIdx.x) = best;
    out0[blockIdx.x] = row[best]; out1[blockIdx.x] = *(const i64 *)(scratch + 8 * blockIdx.x);
}
"""


@contextmanager
def acme() -> Iterator[None]:
    """The ops that these kernels are for."""
    with registry():
        @op("acme.axpb")
        def axpb(x, y=None): return x * 2.0 + (0.5 if y is None else y)  # type: ignore[no-untyped-def]

        @op("acme.cap")
        def cap(x, cap: float = 30.0): return x.clamp(-cap, cap)  # type: ignore[no-untyped-def]

        @op("acme.double")
        def double(x): return x + x  # type: ignore[no-untyped-def]

        @op("acme.largest")
        def largest(x): return x.max(axes=(1,)), x.argmax(axis=1)  # type: ignore[no-untyped-def]

        @declare_op("acme.five")
        def five(a, b, c, d, e): return a  # type: ignore[no-untyped-def]
        yield


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with acme():
        yield


def graph(name: str, *inputs: tuple[tuple[Any, ...], str], **params: Any) -> Graph:
    b = Builder()
    made = b.custom_op(name, *(b.input(f"i{k}", shape, dtype) for k, (shape, dtype) in enumerate(inputs)), **params)
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def answer(g: Graph, device: str = "rocm", **facts: Any) -> Choice | Refusal | None:
    return own_gpu_kernel(device, facts, g, next(n for n in g if n.op is Op.CUSTOM))


def launch_of(g: Graph, device: str = "rocm") -> GpuLaunch:
    choice = answer(g, device)
    assert isinstance(choice, Choice), choice
    assert choice.row is not None
    assert isinstance(choice.row.launch, GpuLaunch)
    return choice.row.launch


N = sym("N", 1, 5000)
ROW_KERNEL: dict[str, Any] = {"entry_point": "largest", "block_size": 64, "grid": lambda shapes: shapes["x"][0], "scratch_nbytes": lambda shapes: 8 * shapes["x"][0]}
CALLS: dict[str, tuple[str, str, dict[str, Any], tuple[tuple[tuple[Any, ...], str], ...], dict[str, Any]]] = {
    "abi 1, one input": ("acme.axpb", SEED, {}, (((3, 7), "f32"),), {}),
    "abi 1, two inputs, more than a block": ("acme.axpb", SEED, {"block_size": 64}, (((5, 67), "f32"), ((67,), "f32")), {}),
    "abi 1, any size": ("acme.axpb", SEED, {}, (((N,), "f32"),), {}),
    "abi 2, f32": ("acme.cap", CAP, {}, (((3, 5, 7), "f32"),), {"cap": 0.75}),
    "abi 2, f64": ("acme.cap", CAP, {"block_size": 32}, (((N, 3), "f64"),), {"cap": 0.1}),
    "abi 2, i32": ("acme.double", DOUBLE, {}, (((2 * N + 1,), "i32"),), {}),
    "abi 2, u8": ("acme.double", DOUBLE, {}, (((3, N), "u8"),), {}),
    "abi 2, nothing": ("acme.cap", CAP, {}, (((0, 4), "f32"),), {"cap": 1.0}),
    "abi 2, a scalar": ("acme.cap", CAP, {}, (((), "f32"),), {"cap": 1.0}),
    "abi 2, two outputs, grid, scratch": ("acme.largest", ROWS, ROW_KERNEL, (((N, 9), "f32"),), {}),
}
calls = pytest.mark.parametrize("call", CALLS)
kinds = pytest.mark.parametrize("kind", KERNELS, ids=lambda k: k.device)


def registered(call: str, kind: type[GpuKernel]) -> Graph:
    name, source, more, inputs, params = CALLS[call]
    register_gpu_kernel(kind(name, source, **more))
    return graph(name, *inputs, **params)


# ---- what it computes ----------------------------------------------------------------------------------------------
@calls
@kinds
@pytest.mark.parametrize("n", [1, 6, 1001])
def test_run_one_thread_after_another_it_gives_what_the_lowering_gives(call: str, kind: type[GpuKernel], n: int) -> None:
    g = registered(call, kind)
    sizes = dict.fromkeys(g.symbols, n)
    rng = np.random.default_rng(n)
    given = [np.asarray(rng.uniform(-12, 12, bind(x.type.shape, sizes)) + 12 * (x.type.dtype is DType.U8)).astype(x.type.dtype.numpy) for x in g.inputs]
    bound = graph(CALLS[call][0], *((a.shape, x.type.dtype.text) for a, x in zip(given, g.inputs, strict=True)), **CALLS[call][4])
    row = next(m for m in bound if m.op is Op.CUSTOM)
    want = row.row.ref(*given, **row.attrs.params())  # type: ignore[operator, misc]
    for _ in range(2):
        got = simulate(launch_of(g, kind.device), given, sizes)
        for a, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            np.testing.assert_array_equal(a, w)


@calls
@pytest.mark.parametrize(("kind", "language", "arch"), [(RocmGpuKernel, "hip", "gfx90a"), (RocmGpuKernel, "hip", "gfx1100"), (CudaGpuKernel, "cuda", "sm_70")])
def test_clang_compiles_it_and_agrees_where_arguments_lie(call: str, kind: type[GpuKernel], language: str, arch: str, tmp_path: Path) -> None:
    if clang() is None:
        pytest.skip("no clang on this machine compiles for GPUs: apt-get install clang-16")
    made = launch_of(registered(call, kind), kind.device)
    text = assembly(made.source, language, arch, tmp_path)
    assert made.symbol in text
    if language == "hip":
        assert amd_arguments(text) == [(a.offset, a.nbytes) for a in made.args]
        assert made.kernel.abi == 1 or f".max_flat_workgroup_size: {made.kernel.block_size}\n" in text
    else:
        sizes = [line for line in text.splitlines() if ".param" in line and f"{made.symbol}_param_" in line]
        assert len([s for s in sizes if s.strip().startswith(".param")]) == len(made.args)


# ---- how arguments are laid out ------------------------------------------------------------------------------------
class Seed(ctypes.Structure):
    """ABI 1 as the C compiler of this machine lays it out."""

    _fields_ = [("arena", ctypes.c_uint64), *((n, ctypes.c_uint32) for n in ("out_off", "out_len", "n_inputs", *(f"in{k}_{w}" for k in range(4) for w in ("off", "len"))))]


def test_abi_1_is_packed_as_its_signature_in_elements() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.axpb", SEED))
    made = launch_of(graph("acme.axpb", ((3, 7), "f32"), ((7,), "f32")))
    geometry, packed = made(1 << 40, {"out": 4096, "x": 256, "y": 640}, {})
    seen = Seed.from_buffer_copy(packed.ljust(ctypes.sizeof(Seed), b"\0"))
    assert [getattr(seen, f[0]) for f in Seed._fields_] == [1 << 40, 1024, 21, 2, 64, 21, 160, 7, 0, 0, 0, 0]
    assert len(packed) == 8 + 11 * 4 == made.args_nbytes
    assert (geometry.grid, geometry.block, geometry.shared_nbytes) == ((1, 1, 1), 256, 0)
    assert made.source == SEED


def test_abi_1_says_what_its_numbers_cannot_hold() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.axpb", SEED))
    made = launch_of(graph("acme.axpb", ((3,), "f32")))
    at = {"out": 0, "x": 2**34 - 4}
    assert struct.unpack_from("<I", made.pack(0, at, {}), made.args[4].offset) == (2**32 - 1,)
    with pytest.raises(InputError, match=r"in0_off of acme.axpb is 4294967296\n.*32 bits.*\n.*ABI 2"):
        made.pack(0, {**at, "x": 2**34}, {})
    with pytest.raises(InputError, match=r"x of acme.axpb lies at byte 6"):
        made.pack(0, {**at, "x": 6}, {})


def test_abi_2_has_offsets_of_64_bits_in_bytes_and_sizes_as_arguments() -> None:
    register_gpu_kernel(CudaGpuKernel("acme.cap", CAP, block_size=128))
    made = launch_of(graph("acme.cap", ((N, 3), "f64")), "cuda")
    assert [(a.name, a.what, a.offset) for a in made.args] == [("arena", "arena", 0), ("x_at", "offset", 8), ("out_at", "offset", 16), (size_name("N"), "size", 24)]
    geometry, packed = made(7, {"x": 2**35 + 1, "out": 2**40}, {"N": 100})
    assert struct.unpack("<QQQq", packed) == (7, 2**35 + 1, 2**40, 100)
    assert geometry.grid == (3, 1, 1)


@pytest.mark.parametrize(("grid", "want"), [(None, (0, 1, 1)), (lambda shapes: shapes["x"][0], (0, 1, 1)), (lambda shapes: (2, shapes["x"][0]), (2, 0, 1)), (5, (5, 1, 1))])
def test_an_empty_grid_stays_empty(grid: Any, want: tuple[int, ...]) -> None:
    register_gpu_kernel(RocmGpuKernel("acme.cap", CAP, grid=grid))
    assert launch_of(graph("acme.cap", ((0, 4), "f32"))).geometry({}).grid == want


def test_sizes_beyond_32_bits_are_written_whole() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.cap", CAP, grid=1024))
    assert "4900000000LL" in launch_of(graph("acme.cap", ((70_000, 70_000), "f32"))).source


def test_every_kind_of_parameter_reaches_the_kernel() -> None:
    @declare_op("acme.all")
    def every(x, i: int, f: float, b: bool, s: str, t: tuple[int, ...], u: tuple[float, ...]): return TensorType((7,), x.dtype)  # type: ignore[no-untyped-def]

    register_gpu_kernel(RocmGpuKernel("acme.all", """__device__ void rlx_custom(double *out, i64 i, double f, bool b, const char *s, const i64 *t, i64 t_count, const double *u) {
        if (threadIdx.x) return;
        out[0] = i; out[1] = f; out[2] = b; out[3] = s[1]; out[4] = t[t_count - 1]; out[5] = u[0]; out[6] = t_count; }"""))
    g = graph("acme.all", ((2,), "f64"), i=-2**40, f=0.1, b=True, s='"a\\', t=(3, -9), u=(float("inf"), 1.0))
    (got,) = simulate(launch_of(g), [np.zeros(2)], {})
    assert got.tolist() == [-2**40, 0.1, 1, ord("a"), -9, np.inf, 2]


def test_narrow_floats_arrive_as_their_bits() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.cap", "__device__ void rlx_custom(const u16 *x, u16 *out, i64 x_numel) { i64 i = threadIdx.x; if (i < x_numel) out[i] = x[i] ^ 0x8000; }"))
    x = np.array([1.5, -2, 0], ml_dtypes.bfloat16)
    (got,) = simulate(launch_of(graph("acme.cap", ((3,), "bf16"))), [x], {})
    np.testing.assert_array_equal(got.view(np.uint16), (-x).view(np.uint16))


# ---- cache keys ----------------------------------------------------------------------------------------------------
def test_the_cache_key_is_source_arch_options_device_and_compiler_and_never_the_name() -> None:
    @op("acme.other")
    def other(x, cap: float = 30.0): return x.clamp(-cap, cap)  # type: ignore[no-untyped-def]

    def key(kernel: GpuKernel, arch: str = "gfx942", options: tuple[str, ...] = ("-O3",), compiler: str = "hiprtc 7.0", cap: float = 2.0) -> str:
        register_gpu_kernel(kernel)
        return launch_of(graph(kernel.name, ((3,), "f32"), cap=cap), kernel.device).key(arch, options, compiler)

    mine = RocmGpuKernel("acme.cap", CAP)
    first = key(mine)
    assert first == key(mine) == key(replace(mine, name="acme.other"))
    others = [key(replace(mine, source=CAP.replace("> cap", ">= cap"))), key(CudaGpuKernel("acme.cap", CAP)), key(mine, arch="gfx90a"), key(mine, options=("-O3", "-g")),
              key(mine, options=("-O3 -g",)), key(mine, compiler="hiprtc 7.1"), key(mine, cap=3.0), key(replace(mine, block_size=128))]
    assert len({first, *others}) == 9


# ---- who runs it ---------------------------------------------------------------------------------------------------
def plan_of(g: Graph, device: str) -> list[tuple[str, str]]:
    plan, _, _ = lower(g, Gpu(VENDORS[device]).spec, CompileOptions())
    return [(s.choice.name, s.choice.tier) for s in plan.steps]


@kinds
def test_a_raw_kernel_comes_before_a_host_kernel_and_before_the_lowering(kind: type[GpuKernel]) -> None:
    g = graph("acme.cap", ((3, 5), "f32"), cap=2.0)
    lowered = plan_of(g, kind.device)
    assert {name.split("/")[0] for name, _ in lowered} == {"gpu"}
    assert "acme" not in str(lowered)
    register_cpu_kernel("acme.cap", lambda x, cap: np.clip(x, -cap, cap))
    register_gpu_kernel(kind("acme.cap", CAP))
    assert plan_of(g, kind.device) == [(f"extension/acme.cap.{kind.device}", "kernel")]
    other = next(k.device for k in KERNELS if k is not kind)
    assert plan_of(g, other) == lowered
    assert set(extension("acme.cap").kernels) == {"cpu", kind.device}


def test_scratch_is_planned() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.largest", ROWS, **ROW_KERNEL))
    plan, _, _ = lower(graph("acme.largest", ((N, 9), "f32")), Gpu(VENDORS["rocm"]).spec, CompileOptions())
    assert plan.buffers[plan.steps[0].scratch].nbytes >= 8 * 5000


REFUSALS: dict[str, tuple[GpuKernel, tuple[tuple[tuple[Any, ...], str], ...], dict[str, Any], str]] = {
    "a dtype of abi 1": (RocmGpuKernel("acme.axpb", SEED), (((3,), "f64"),), {}, "ABI 1 has f32 alone, this has x f64[3], out f64[3]"),
    "outputs of abi 1": (RocmGpuKernel("acme.largest", SEED), (((3, 4), "f32"),), {}, "one output and up to 4 inputs, this has 2 and 1"),
    "shared memory": (RocmGpuKernel("acme.cap", CAP, shared_nbytes=65_792), (((3,), "f32"),), {}, "it needs shared_nbytes 65792 in a block, the device has 65536"),
    "threads": (RocmGpuKernel("acme.cap", CAP, block_size=1024), (((3,), "f32"),), {"threads": 512}, "it needs threads 1024 in a block, the device has 512"),
    "an output of another name": (RocmGpuKernel("acme.largest", DOUBLE), (((3, 4), "f32"),), {}, "asks for out, out_numel: this call has x, out0, out1"),
    "a grid that fails": (RocmGpuKernel("acme.cap", CAP, grid=lambda shapes: shapes["y"]), (((3,), "f32"),), {}, "KeyError: 'y'; shapes are"),
    "a grid of nothing": (RocmGpuKernel("acme.cap", CAP, grid=0), (((3,), "f32"),), {}, "nobody would write out, which is"),
    "a grid of reals": (RocmGpuKernel("acme.cap", CAP, grid=lambda shapes: 1.5), (((3,), "f32"),), {}, "grid of the rocm kernel of acme.cap is 1.5"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_it_cannot_serve_is_refused_with_the_reason_and_lowered(what: str) -> None:
    kernel, inputs, facts, says = REFUSALS[what]
    register_gpu_kernel(kernel)
    g = graph(kernel.name, *inputs)
    refusal = answer(g, **facts)
    assert isinstance(refusal, Refusal)
    assert says in refusal.reasons[0]
    if not facts:
        _, _, report = lower(g, Gpu(VENDORS["rocm"]).spec, CompileOptions())
        assert any(says in note.text for note in report.of("lowered"))


@pytest.mark.parametrize(("device", "inputs", "taken"), [("rocm", 62, True), ("rocm", 63, False), ("cuda", 63, True)])
def test_more_arguments_than_amd_takes_are_refused_before_anything_is_compiled(device: str, inputs: int, taken: bool) -> None:
    @op("acme.total")
    def total(*xs): return sum(xs[1:], xs[0])  # type: ignore[no-untyped-def]

    kind = next(k for k in KERNELS if k.device == device)
    register_gpu_kernel(kind("acme.total", "__device__ void rlx_custom(const void *const *inputs, i64 inputs_count, float *out) { }"))
    found = answer(graph("acme.total", *[((3,), "f32")] * inputs), device)
    assert isinstance(found, Choice) == taken
    if isinstance(found, Refusal):
        assert "its arguments and hidden ones take 776 bytes, at most 768 are handed over" in found.reasons[0]


def test_what_just_fits_is_taken() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.cap", CAP, shared_nbytes=lambda shapes: 65_536))
    assert launch_of(graph("acme.cap", ((3,), "f32"))).geometry({}).shared_nbytes == 65_536


# ---- registration --------------------------------------------------------------------------------------------------
def abi1(*types: str) -> str:
    return f'extern "C" __global__ void rlx_custom({", ".join(types)}) {{ }}'


NUMBERS = ["unsigned n"] * 11
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no such op": (lambda: RocmGpuKernel("acme.nowhere", CAP), "op 'acme.nowhere' is not registered"),
    "no such function": (lambda: RocmGpuKernel("acme.cap", CAP, "other"), "has no function 'other' for the device"),
    "only in a comment": (lambda: RocmGpuKernel("acme.cap", "// __device__ void rlx_custom() {\n"), "has no function 'rlx_custom'"),
    "not for the device": (lambda: RocmGpuKernel("acme.cap", "void rlx_custom(float *out) { }"), "has no function 'rlx_custom' for the device"),
    "only called": (lambda: RocmGpuKernel("acme.cap", "__device__ void other() { rlx_custom(); }"), "has no function 'rlx_custom'"),
    "a C++ name": (lambda: RocmGpuKernel("acme.axpb", SEED.replace('extern "C" ', "")), 'is not extern "C"'),
    "too few": (lambda: RocmGpuKernel("acme.axpb", abi1("float* arena", *NUMBERS[1:])), "takes .*ABI 1 gives"),
    "another arena": (lambda: RocmGpuKernel("acme.axpb", abi1("double* arena", *NUMBERS)), r"takes \(double\*"),
    "wider offsets": (lambda: RocmGpuKernel("acme.axpb", abi1("float* arena", *["unsigned long n"] * 11)), "takes .*unsigned long"),
    "a grid in abi 1": (lambda: RocmGpuKernel("acme.axpb", SEED, grid=3), "sets grid"),
    "parameters in abi 1": (lambda: RocmGpuKernel("acme.cap", SEED), "ABI 1 gives no parameters, acme.cap has cap"),
    "inputs in abi 1": (lambda: RocmGpuKernel("acme.five", SEED), "up to 4 inputs, acme.five takes 5"),
    "an unknown wish": (lambda: RocmGpuKernel("acme.cap", "__device__ void rlx_custom(float *z, float *out) { }"), "it asks for z; names are x, out, cap"),
    "scratch of no size": (lambda: RocmGpuKernel("acme.cap", "__device__ void rlx_custom(char *scratch) { }"), "asks for scratch and sets no scratch_nbytes"),
    "no threads": (lambda: RocmGpuKernel("acme.cap", CAP, block_size=0), "block_size=0"),
    "too many threads": (lambda: RocmGpuKernel("acme.cap", CAP, block_size=2048), "block_size=2048"),
    "no text": (lambda: RocmGpuKernel("acme.cap", b"void"), "source=b'void'"),  # type: ignore[arg-type]
    "no name": (lambda: RocmGpuKernel("acme.cap", CAP, "a b"), "entry_point='a b'"),
    "no vendor": (lambda: GpuKernel("acme.cap", CAP), "GpuKernel is no GPU kernel"),
    "a function": (lambda: (lambda x: x), "function is no GPU kernel"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_could_never_run_is_refused_at_registration_and_changes_nothing(what: str) -> None:
    before = {name: extension(name) for name in ("acme.axpb", "acme.cap", "acme.five", "acme.largest")}
    make, says = WRONG[what]
    with pytest.raises(RlxError, match=f"(?s){says}") as caught:
        register_gpu_kernel(make())
    assert isinstance(caught.value, (HookMismatch, NotRegistered))
    assert __file__ in caught.value.where
    assert {name: extension(name) for name in before} == before


@pytest.mark.parametrize("words", ["unsigned int", "uint32_t", "const unsigned"])
def test_abi_1_may_be_spelled_in_other_words(words: str) -> None:
    source = re.sub(r"unsigned (?=\w+_)", f"{words}\n ", SEED).replace("float* arena", "float *__restrict__ arena")
    assert isinstance(register_gpu_kernel(RocmGpuKernel("acme.axpb", source)), OpExtension)


def test_an_optional_input_that_is_left_out_is_a_null_pointer() -> None:
    register_gpu_kernel(RocmGpuKernel("acme.axpb", """__device__ void rlx_custom(const float *x, const float *y, i64 y_numel, float *out, i64 out_numel) {
        i64 i = threadIdx.x; if (i < out_numel) out[i] = x[i] * 2 + (y ? y[i % y_numel] : 0.5f); }"""))
    x, y = np.arange(5, dtype=np.float32), np.array([3], np.float32)
    for given in ([x], [x, y]):
        g = graph("acme.axpb", *((a.shape, "f32") for a in given))
        (want,) = evaluate(lower(g, Gpu(VENDORS["cuda"]).spec, CompileOptions())[0].graph, dict(enumerate(given)))
        np.testing.assert_array_equal(simulate(launch_of(g), given, {})[0], want)


@needs_simulation
def test_two_kernels_of_one_text_are_two() -> None:
    @op("acme.thrice")
    def thrice(x): return x + x + x  # type: ignore[no-untyped-def]

    text = "".join(SEED.replace("rlx_custom", name).replace("* 2.0f + (n_inputs > 1 ? arena[in1_off + i % in1_len] : 0.5f)", f"* {factor}.0f") for name, factor in (("twice", 2), ("thrice", 3)))
    register_gpu_kernel(RocmGpuKernel("acme.double", text, "twice"))
    register_gpu_kernel(RocmGpuKernel("acme.thrice", text, "thrice"))
    b = Builder()
    x = b.input("x", (5,))
    with simulated("gfx1100"):
        f = compile(b.finish(b.custom_op("acme.double", x), b.custom_op("acme.thrice", x)), device="rocm")
        assert {row["kernel"] for row in f.dispatch()} == {"extension/acme.double.rocm", "extension/acme.thrice.rocm"}
        for _ in range(3):
            two, three = f.run(given := np.arange(5, dtype=np.float32))
            np.testing.assert_array_equal(two, 2 * given)
            np.testing.assert_array_equal(three, 3 * given)
