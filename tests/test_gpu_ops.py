"""Kernels of GPUs in simulation, waves of 32 and of 64: samples of every op against their meaning, then what samples do not have."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_device import WAVES, agree, gpu as gpu, running, simulation
from kernel_graphs import LARGE, RNG, bits, blocks, indexing, norms_of_constant_rows, orders, row_arrays, row_shapes
from samples import OPS, assert_same, cases, samples
from sim_device import needs_clang

from rlxpy import Builder, CompileOptions, DType, Op, compile, sym
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.order import RUN
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.errors import IndexOutOfRange
from rlxpy.extend.kernels import Refusal
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import ELEMENTWISE
from rlxpy.tools.behaviour import same
from rlxpy.tools.samples import Sample

PRODUCTS = frozenset({Op.MATMUL, Op.QMATMUL, Op.DEQUANTIZE, Op.ATTENTION})  # have files of their own
MINE = tuple(op for op in OPS if op not in PRODUCTS)
DEBUG = CompileOptions(debug=True)


# ---- every op ------------------------------------------------------------------------------------------------------
def test_no_op_of_the_table_runs_on_the_host_tier() -> None:
    """Each has a kernel for every type that it takes, or is lowered to ops that have, or is a loop of their launches."""
    spec = Gpu(VENDORS["rocm"], GpuTarget("amd", "gfx942", 64)).spec
    found = {(op.text, s.dtype.text) for op in OPS for s in samples(op) for graph in (s.graph(),)
             for n in graph if n.op is op and not callable(n.row.lower) and isinstance(spec.verdict(graph, n), Refusal)}
    assert not found, f"write a kernel: {sorted(found)}"


TYPES = {32: ("f32", "c64", "bool"), 64: ("bf16", "i8")}
ORDERED = {32: "float32", 64: ml_dtypes.bfloat16}
ROWS = {32: (DType.F32, 300), 64: (DType.BF16, 37)}  # and how wide they are


def wave(device: str) -> int:
    return Gpu(VENDORS[device]).api().target.wave


def some(types: Collection[str], ops: Iterable[Op], most: int) -> Iterator[Sample]:
    """Cases of the ops that are more than their scalar text, up to so many, and one that broadcasts of the others, in f32 alone."""
    for op in ops:
        dtypes = frozenset(d for d in DType if d.text in types and (op not in ELEMENTWISE or d.text in ("f32", "bool")))
        yield from samples(op, dtypes, cases(op)[1:2] if op in ELEMENTWISE else cases(op)[:most])


def check(device: str, which: Iterable[Sample]) -> None:
    """All in one graph: what each means, twice."""
    b, given, want, outputs = Builder("samples"), list[Array](), list[tuple[str, Array]](), list[Any]()
    for k, s in enumerate(which):
        arrays = s.arrays(k)
        outputs += s.call(b, s.inputs(b, f"s{k}_"))
        given += arrays
        want += [(str(s), w) for w in s.reference(arrays)]
    f = compile(b.finish(*outputs), device=device, options=DEBUG)
    for turn in range(2):
        for got, (name, w) in zip(f.run(*given), want, strict=True):
            same(got, w, f"{name}, run {turn}")


def test_every_op_gives_what_it_means(gpu: str) -> None:
    check(gpu, some(TYPES[wave(gpu)], MINE, most=6))


@needs_clang
@pytest.mark.parametrize("arch", WAVES)
def test_as_machine_code_they_give_the_same_within_their_memory_and_without_races(arch: str) -> None:
    with simulation(arch, by="isa"):
        check("rocm", some(("f32",), (op for op in MINE if op not in ELEMENTWISE), most=2))
        agree("rocm", lambda x: [x.sort(axis=0)[0], (x * 2.0).softmax(axis=1), x.cumsum(axis=0), x.argmax(axis=0)], [bits((RUN + 70, 2), "float32")])


# ---- rows ----------------------------------------------------------------------------------------------------------
def test_fused_rows_and_reductions_are_their_chain(gpu: str) -> None:
    dtype, width = ROWS[wave(gpu)]
    sizes = (row_arrays(dtype, width, batch) for batch in (1, 3))
    f = agree(gpu, lambda *xs: list(blocks(*xs)), row_arrays(dtype, width, 2), *sizes, shapes=row_shapes(sym("B", 1, 3), width))
    assert {"rows", "reduce"} <= {n.kind for n in f.plan.graph}


def test_softmax_and_norms_of_special_values_and_of_nothing(gpu: str) -> None:
    x = RNG.normal(size=(70, 3)).astype(np.float32)
    x[3, 0], x[:, 1], x[9, 2] = np.nan, -np.inf, np.inf

    def make(x: Any) -> list[Any]:
        return [*(v.apply(op, (v,), {"axis": axis}) for v in (x, x.T) for op in ("softmax", "log_softmax") for axis in (0, 1)), x.layer_norm(eps=1e-5), x.T.rms_norm(eps=1e-5)]

    agree(gpu, make, [x], [x[:0]], [x[:1]], shapes=[(sym("N", 0, 80), 3)])


def test_constant_rows_normalise_to_their_bias_and_large_ones_stay_finite(gpu: str) -> None:
    dtype, width = ROWS[wave(gpu)]
    graph, given, wants = norms_of_constant_rows(dtype, width)
    f = compile(graph, device=gpu, options=DEBUG)
    for _ in range(2):
        for got, want in zip(f(*given), wants, strict=True):
            np.testing.assert_array_equal(got, want)
    agree(gpu, lambda x: x.layer_norm(eps=1e-5), [LARGE])


# ---- order ---------------------------------------------------------------------------------------------------------
def test_order_of_any_bits_along_every_axis_and_of_views(gpu: str) -> None:
    agree(gpu, lambda *xs: [y for x in xs for y in orders(x)] + orders(xs[0].T[:, 1:].reverse(axes=(2,))), [bits(s, ORDERED[wave(gpu)]) for s in ((5, 67, 4), (3, 130))])


def test_lines_longer_than_a_run_are_merged(gpu: str) -> None:
    """Of any length up to three merges: whole runs, one item more, one line and several, ties across runs."""
    n = sym("N", 0, 5*RUN)
    makes = lambda x, y: [*x.sort(axis=0), *x.sort(axis=0, descending=True), *y.sort(axis=1), *x.top_k(k=0, axis=0), y.argmax(axis=0), y.cumsum(axis=1)]  # noqa: E731
    sizes = [[bits((k, 2), "float32"), RNG.integers(-9, 9, (2, k)).astype(np.int32)] for k in (4*RUN + 3, 2*RUN, RUN + 1, 700, 1, 0)]
    agree(gpu, makes, *sizes, shapes=[(n, 2), (2, n)])
    agree(gpu, lambda x: [*x.top_k(k=40), x.argmax(axis=0), x.argmin(axis=0)], [bits((3000,), "float16")])


def test_long_columns_many_and_few(gpu: str) -> None:
    """A thread goes along each of many, a block along each of few."""
    agree(gpu, lambda *xs: [y for x in xs for y in (*(x.apply(op, (x,), {"axis": 0}) for op in ("softmax", "log_softmax", "argmax", "argmin")), (x * 0.5).mean(axes=(0,)),
                                                    x.max(axes=(0,)), x.round().cumsum(axis=0))], [RNG.normal(size=(90, columns)).astype(np.float32) for columns in (70, 3)])


def test_running_sums_of_lines_and_of_columns(gpu: str) -> None:
    agree(gpu, lambda *xs: [y for x in xs for y in (x.cumsum(axis=0), x.cumsum(axis=1), x.T.cumsum(axis=0), x.reverse(axes=(1,)).cumsum(axis=-1))],
          [RNG.integers(-3, 4, (3, 700)).astype(d) for d in ("float32", "int8")])


# ---- by index ------------------------------------------------------------------------------------------------------
def test_every_kind_of_index_and_views_of_what_it_points_into(gpu: str) -> None:
    def make(x: Any, u: Any, *indices: Any) -> list[Any]:
        return [y for at, few in zip(indices[::2], indices[1::2], strict=True) for y in (
            x.take_along(at, axis=0), x.T.take_along(at.T, axis=-1), x.T.gather(few.T, axis=1), x[:, ::2].gather(few, axis=0), x.scatter_add(few, u, axis=0),
            x.T.scatter_add(few, u.transpose(perm=(2, 0, 1)), axis=1))]

    kinds = (("int8", -7), ("uint16", 0), ("int64", -7))
    agree(gpu, make, [bits((7, 90), "float32"), RNG.integers(-3, 4, (5, 3, 90)).astype(np.float32),
                      *(RNG.integers(low, 7, shape).astype(kind) for kind, low in kinds for shape in ((7, 90), (5, 3)))])


def test_scatter_add_sums_in_order(gpu: str) -> None:
    """Bit for bit, where a thread has a stretch of an axis and where it has all of it."""
    given = [RNG.normal(size=s).astype(t) for s, t in (((9,), "float32"), ((300,), "float32"), ((2, 5, 40), ml_dtypes.bfloat16), ((2, 60, 40), ml_dtypes.bfloat16))]
    at, rows = RNG.integers(-9, 9, (300,)), RNG.integers(-5, 5, (60,))
    b = Builder("order")
    x, u, wide, v = (b.input(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(given))
    graph = b.finish(x.scatter_add(b.const(at), u, axis=0), wide.scatter_add(b.const(rows), v, axis=1))
    want = compile(graph, device="reference").run(*given)
    f = compile(graph, device=gpu, options=DEBUG)
    for _ in range(2):
        for a, w in zip(f.run(*given), want, strict=True):
            assert_same(a, w)


@pytest.mark.parametrize("op", ["take_along", "scatter_add", "gather"])
def test_an_index_out_of_range_is_named_as_the_reference_names_it(gpu: str, op: str) -> None:
    graph = indexing(op)
    runs = [compile(graph, device=device) for device in (gpu, "reference")]
    for index in (4, -5, 2**62):
        at = np.full(graph.inputs[1].type.shape, 1)
        at.flat[1] = index
        given = dict(zip(("x", "at", "u"), (np.ones((4, 3), np.float32), at, np.ones((2, 3), np.float32))[:len(graph.inputs)], strict=False))
        said = [outcome(f, given) for f in runs]
        assert isinstance(said[0], tuple)
        assert said[0] == said[1]
        at.flat[1] = -4
        assert_same(runs[0].run(given), runs[1].run(given))


def of_several(op: str) -> tuple[Graph, dict[str, Any]]:
    """Indices that several blocks read, four of which are bad, of two operations."""
    b = Builder("several")
    x, at = b.input("x", (4, 3)), b.input("at", (700,), "i64")
    given: dict[str, Any] = {"x": np.ones((4, 3), np.float32), "at": np.resize(np.arange(-4, 4), 700)}
    given["at"][[699, 80, 10, 512]] = 7, -6, 5, 4
    if op == "gather":
        return b.finish(x.gather(at, axis=0), x.gather(at + 1, axis=0)), given
    if op == "take_along":
        return b.finish(x[:, :1].expand(shape=(4, 175)).take_along(at.reshape(shape=(4, 175)), axis=0)), given
    return b.finish(x.scatter_add(at, b.input("u", (700, 3)), axis=0)), {**given, "u": np.ones((700, 3), np.float32)}


@pytest.mark.parametrize("op", ["take_along", "scatter_add", "gather"])
@pytest.mark.parametrize("device", ["rocm gfx1100", "rocm gfx942", "isa gfx942", "isa gfx1030", "cuda"])
def test_of_several_bad_indices_the_first_is_named(device: str, op: str) -> None:
    graph, given = of_several(op)
    with running(device) as name:
        f = compile(graph, device=name)
        for _ in range(3):  # the last of them replayed
            assert outcome(f, given) == outcome(compile(graph, device="reference"), given)
            assert "index 5" in outcome(f, given)[0]


def outcome(f: Any, given: dict[str, Any]) -> Any:
    """All outputs, or the words of the error."""
    try:
        return [a.tolist() for a in f.run(given)]
    except IndexOutOfRange as e:
        return e.what, e.why, e.fix


# ---- movement and caches -------------------------------------------------------------------------------------------
def test_copies_of_every_width(gpu: str) -> None:
    def make(*xs: Any) -> list[Any]:
        return [y for x in xs for y in (
            x.T.reshape(shape=(3 * 5 * 7,)), x.transpose(perm=(2, 1, 0)).reshape(shape=(5, 21)), x.reverse(axes=(2,)).reshape(shape=(105,)), x[:, 1:, ::3].reshape(shape=(3 * 6 * 2,)),
            x.apply("concat", (x.T, x.T.reverse(axes=(1,)), x.T), {"axis": -1}), x.expand(shape=(2, 3, 7, 5)).reshape(shape=(210,)))]

    values = RNG.integers(0, 100, (3, 7, 5))
    agree(gpu, make, [(values % 2 if d == "bool" else values).astype(d) for d in ("bool", "int8", "float16", "float32", "int64", "complex64", "complex128", ml_dtypes.float8_e5m2)])


def test_sizes_and_padding_of_symbolic_shapes(gpu: str) -> None:
    n = sym("N", 0, 9)

    def make(x: Any) -> list[Any]:
        size = x.builder.emit(Op.SIZE, dim=n * 3 + 1)
        return [size * 2, x.pad(low=(1, 0), high=(n, 2), value=7.0), x.T.pad(low=(0, n), high=(1, 0), value=-1.0), x.builder.emit(Op.IOTA, shape=(n, 3), axis=0, to=DType.F16),
                x.apply("concat", (x, x.reverse(axes=(0,)), x), {"axis": 0})]

    agree(gpu, make, [np.ones((4, 3), np.float32)], [np.ones((0, 3), np.float32)], [np.ones((9, 3), np.float32)], shapes=[(n, 3)])


def test_rows_are_put_into_caches_that_lie_in_any_order(gpu: str) -> None:
    """A cache that is a view is copied as it is walked, not as it lies."""
    x, y = RNG.normal(size=(5, 4, 3)).astype(np.float32), RNG.normal(size=(1, 9, 10)).astype(np.float32)
    new = [RNG.normal(size=[2 if a == axis else d for a, d in enumerate((3, 4, 5))]).astype(np.float32) for axis in range(3)]
    agree(gpu, lambda x, y, *new: [cache.kv_append(rows, x.builder.const(1), axis=axis) for axis, rows in enumerate(new) for cache in (
        x.transpose(perm=(2, 1, 0)), y[:, 1::2, ::2].expand(shape=(3, 4, 5)), x.transpose(perm=(2, 1, 0)).reverse(axes=(1,)))], [x, y, *new])


def test_a_failed_run_leaves_every_cache_as_it_was(gpu: str) -> None:
    """Along each axis rows are appended twice, over each other, in place; then an index may be out of range."""
    b = Builder("undo")
    shape, count = (3, 4, 5), sym("N", 1, 3)
    p, q, i = b.input("p", (), "i64"), b.input("q", (), "i64"), b.input("i", (1,), "i64")
    outputs: list[Any] = []
    for axis in range(3):
        s, x = b.state(f"s{axis}", shape), b.input(f"x{axis}", tuple(count if k == axis else d for k, d in enumerate(shape)))
        n = s.kv_append(x, p, axis=axis).kv_append(x * 2.0, q, axis=axis)
        b.update(s, n)
        outputs += [n * 1.0, n.gather(i, axis=0)]
    graph = b.finish(*outputs)
    runs = [compile(graph, device=device) for device in (gpu, "reference")]

    def step(n: int, p: int, q: int, i: int) -> dict[str, Any]:
        return {"p": p, "q": q, "i": [i], **{f"x{axis}": RNG.normal(size=[n if k == axis else d for k, d in enumerate(shape)]).astype(np.float32) for axis in range(3)}}

    steps = (step(2, 0, 1, 0), step(2, 0, 1, 9), step(1, 0, 2, -4), step(1, 0, 3, 0), step(1, 2, -1, 0), step(1, 2, 2, 2), step(1, 1, 1, -3))
    for k, given in enumerate(steps):
        got, want = (outcome(f, given) for f in runs)
        assert got == want, f"step {k}"
        assert isinstance(got, tuple) is (k in (1, 2, 3, 4)), f"step {k}: {got}"


# ---- the rest ------------------------------------------------------------------------------------------------------
def test_rotations_far_out_and_of_views(gpu: str) -> None:
    x, at = RNG.normal(size=(2, 6, 3, 8)).astype(np.float32), np.array([0, 1, 511, 2**21 + 1, 2**30, 7])
    agree(gpu, lambda x, at: [x.transpose(perm=(0, 2, 1, 3)).rope(at), x.transpose(perm=(0, 2, 1, 3)).rope(at, style="interleaved", theta=100.0, dims=6),
                         x.reverse(axes=(3,)).transpose(perm=(0, 2, 1, 3)).rope(at.cast(to="i32"))], [x, at])


def test_convolutions_with_their_epilogue_of_views_and_of_symbolic_sizes(gpu: str) -> None:
    n = sym("N", 1, 12)
    x, w, bias = RNG.normal(size=(2, 7, 5, 4)).astype(np.float32), RNG.normal(size=(6, 2, 3, 3)).astype(np.float32), RNG.normal(size=(6, 1, 1)).astype(np.float32)

    def make(x: Any, w: Any, bias: Any) -> list[Any]:
        seen = x.transpose(perm=(0, 3, 1, 2))  # [2, 4, N, 5]
        made = (seen.conv(w, strides=(1, 1), low=(1, 1), high=(1, 1), dilation=(1, 1), groups=2) + bias).gelu()
        return [made, seen.max_pool(size=(1, 2), strides=(1, 2), low=(0, 1), high=(0, 0), dilation=(1, 1)),
                seen.reverse(axes=(3,)).avg_pool(size=(1, 3), strides=(1, 1), low=(0, 1), high=(0, 1), dilation=(1, 1), count_pad=False)]

    f = agree(gpu, make, [x, w, bias], [x[:, :1], w, bias], shapes=[(2, n, 5, 4), w.shape, bias.shape])
    assert "conv" in {k.kind for k in f.plan.graph}
