"""Kernels of order, index and movement on the cpu: sizes, strides and values that the samples of every op do not have."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_graphs import RNG, bits, indexing, orders
from samples import assert_same

from rlxpy import Builder, CompileOptions, compile, sym
from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import IndexOutOfRange, InputError
from rlxpy.ir.dtypes import Array

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
DEBUG = CompileOptions(debug=True)


def agree(make: Callable[..., Any], *arrays: Array, shapes: Mapping[int, Any] = {}) -> None:
    """The graph `make` gives the same on cpu, twice, with one thread and with two, as on the reference; every output on its own."""
    b = Builder("case")
    made = make(*(b.input(f"x{k}", shapes.get(k, a.shape), str(a.dtype)) for k, a in enumerate(arrays)))
    outputs = made if isinstance(made, (tuple, list)) else (made,)
    graph = b.finish(*outputs)
    want = compile(graph, device="reference").run(*arrays)
    f = compile(graph, device="cpu", options=DEBUG)
    assert {row["tier"] for row in f.dispatch()} == {"kernel"}, f.dispatch()
    try:
        for count in (1, 2, 2):
            threads.set_threads(count)
            got = f.run(*arrays)
            for k, (a, w) in enumerate(zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True)):
                assert_same(a, w, f"output {k}, {count} threads")
    finally:
        threads.set_threads(None)


REAL = ("float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: np.dtype(d).name)
def test_order_of_any_bits_along_every_axis(dtype: Any) -> None:
    agree(lambda x, y: [*orders(x), *orders(y)], bits((5, 67, 3), dtype), bits((3, 300), dtype))


def test_order_of_views_and_of_long_lines() -> None:
    agree(lambda x, y, z: [*orders(x.T), *orders(x.reverse(axes=(0, 1))[::2, 1:]), *y.top_k(k=40), y.argmax(axis=0), *y.sort(axis=0), *z.sort(axis=0), z.argmin(axis=0)],
          bits((41, 70), "float32"), bits((40_000,), "float32"), bits((9_000, 2), "int64"))


def test_order_without_elements_and_without_rest() -> None:
    agree(lambda x, y: [*x.sort(axis=1), *x.sort(axis=0), *x.top_k(k=0, axis=0), x.argmax(axis=0), *y.sort(axis=0), *y.top_k(k=1), y.argmin(axis=0)],
          np.empty((3, 0), np.float32), np.ones((1,), np.float32))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"], ids=lambda d: np.dtype(d).name)
def test_softmax_along_any_axis(dtype: Any) -> None:
    """Against float64, to a unit of the result's type; with NaN, infinities, and a column of -inf."""
    x = RNG.normal(size=(3, 70, 130)).astype(np.float32).astype(dtype)
    x[0, :, 5], x[1, 3, 7], x[2, 4, 8] = -np.inf, np.nan, np.inf
    b = Builder("softmax")
    v = b.input("x", x.shape, str(x.dtype))
    made = [*(v.apply(op, (v,), {"axis": axis}) for op in ("softmax", "log_softmax") for axis in (0, 1, 2)), v.T.softmax(axis=1), v.T.softmax(axis=2)]
    f = compile(b.finish(*made), device="cpu", options=DEBUG)
    assert {row["tier"] for row in f.dispatch()} == {"kernel"}
    assert not any(row["op"] == "fused reduce" for row in f.dispatch()), "these are kernels, not lowerings"
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        e = [np.exp(wide - wide.max(axis, keepdims=True)) for axis in (0, 1, 2)]
        soft = [a / a.sum(axis, keepdims=True) for axis, a in enumerate(e)]
        logs = [wide - wide.max(axis, keepdims=True) - np.log(a.sum(axis, keepdims=True)) for axis, a in enumerate(e)]
        unit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-13}[x.dtype.name]
        for _ in range(2):
            for got, want in zip(f.run(x), [*soft, *logs, soft[2].swapaxes(1, 2), soft[1].swapaxes(1, 2)], strict=True):
                np.testing.assert_allclose(got.astype(np.float64), want, rtol=unit, atol=unit)


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: np.dtype(d).name)
def test_running_sums(dtype: Any) -> None:
    small = RNG.integers(-3, 4, (3, 70, 5)).astype(dtype)  # sums that every type holds exactly
    agree(lambda x: [x.cumsum(axis=0), x.cumsum(axis=1), x.cumsum(axis=2), x.T.cumsum(axis=1), x.reverse(axes=(2,)).cumsum(axis=-1)], small)


def test_running_sums_of_long_lines_come_in_blocks() -> None:
    whole = RNG.integers(-3, 4, (2, 50_001)).astype(np.float32)
    agree(lambda x, y: [x.cumsum(axis=1), x.reverse(axes=(1,)).cumsum(axis=1), y.cumsum(axis=0)], whole, RNG.integers(-9, 9, (40_000,)).astype(np.int8))
    b, x = Builder("line"), np.random.default_rng(6).normal(size=60_000).astype(np.float32)
    got = compile(b.finish(b.input("x", x.shape).cumsum(axis=0)), device="cpu").run(x)
    np.testing.assert_allclose(got, np.cumsum(x.astype(np.float64)), rtol=0, atol=0.02)  # ten times what roundings make of partial sums up to 250


N = sym("N", 0, 90_000)


@pytest.mark.parametrize("n", [0, 1, 7, 40_000])
def test_symbolic_lines(n: int) -> None:
    x = bits((n, 2), "float32")
    agree(lambda x, at: [*x.sort(axis=0), *x.sort(axis=1), x.argmax(axis=1), x.T.take_along(at.T, axis=1), x.T.reshape(shape=(2 * N,))],
          x, RNG.integers(-n, max(n, 1), (n, 2)), shapes={0: (N, 2), 1: (N, 2)})
    agree(lambda y: y.cumsum(axis=0), RNG.integers(-3, 4, (n, 2)).astype(np.float32), shapes={0: (N, 2)})


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_nothing_has_no_first_greatest(device: str) -> None:
    b = Builder("empty")
    f = compile(b.finish(b.input("x", (3, sym("M", 0, 8))).argmax(axis=1)), device=device)
    with pytest.raises(InputError, match="greatest"):
        f.run(np.ones((3, 0), np.float32))


# ---- by index ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("index", ["int8", "uint16", "int32", "int64"])
def test_take_along_and_scatter_add_with_every_kind_of_index(index: str) -> None:
    low = 0 if index[0] == "u" else -7
    at = RNG.integers(low, 7, (7, 90)).astype(index)
    agree(lambda x, at, few, u: [x.take_along(at, axis=0), x.T.take_along(at.T, axis=-1), x.scatter_add(few, u, axis=0), x.T.scatter_add(few, u.transpose(perm=(2, 0, 1)), axis=1)],
          bits((7, 90), "float32"), at, RNG.integers(low, 7, (5, 3)).astype(index), RNG.integers(-3, 4, (5, 3, 90)).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64", "int8", "uint64"], ids=lambda d: np.dtype(d).name)
def test_scatter_add_sums_in_order_whatever_the_threads(dtype: Any) -> None:
    """In f32 and narrower the order shows in the bits."""
    x, u = (RNG.normal(size=s).astype(dtype) if np.dtype(dtype).kind not in "iu" else bits(s, dtype) for s in ((2, 4, 700), (2, 900, 700)))
    agree(lambda x, at, u: x.scatter_add(at, u, axis=1), x, RNG.integers(-4, 4, (900,)), u)


@pytest.mark.parametrize("op", ["take_along", "scatter_add", "gather"])
@pytest.mark.parametrize("index", [4, -5, 2**62])
def test_an_index_out_of_range_is_named_as_the_reference_names_it(op: str, index: int) -> None:
    graph = indexing(op)
    at = np.full(graph.inputs[1].type.shape, 1)
    at.flat[1] = index
    given = [np.ones((4, 3), np.float32), at, np.ones((2, 3), np.float32)][:len(graph.inputs)]
    said = []
    for device in ("cpu", "reference"):
        with pytest.raises(IndexOutOfRange) as caught:
            compile(graph, device=device).run(*given)
        said.append((caught.value.what, caught.value.why, caught.value.fix))
    assert said[0] == said[1]


@pytest.mark.parametrize("op", ["take_along", "scatter_add", "gather"])
def test_an_axis_without_elements_has_no_index(op: str) -> None:
    b = Builder(op)
    x, at = b.input("x", (sym("Z", 0, 4), 3)), b.input("at", (1, 3) if op == "take_along" else (1,), "i64")
    f = compile(b.finish(x.scatter_add(at, b.input("u", (1, 3)), axis=0) if op == "scatter_add" else x.apply(op, (x, at), {"axis": 0})), device="cpu")
    with pytest.raises(IndexOutOfRange, match="0 elements"):
        f.run(*[np.ones((0, 3), np.float32), np.zeros(at.shape, np.int64), np.ones((1, 3), np.float32)][:len(f.inputs)])


# ---- movement ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "int64", "complex64", "complex128", ml_dtypes.float8_e5m2], ids=lambda d: np.dtype(d).name)
def test_copies_of_every_width(dtype: Any) -> None:
    x = (RNG.integers(0, 2, (3, 37, 50)) if dtype == "bool" else RNG.integers(0, 100, (3, 37, 50))).astype(dtype)
    agree(lambda x: [x.T.reshape(shape=(3 * 50 * 37,)), x.transpose(perm=(2, 1, 0)).reshape(shape=(50, 111)), x.transpose(perm=(1, 0, 2)).reshape(shape=(37, 150)),
                     x.reverse(axes=(2,)).reshape(shape=(5550,)), x[:, 1:, ::3].reshape(shape=(3 * 36 * 17,)), x.apply("concat", (x.T, x.T), {"axis": -1}),
                     x.expand(shape=(2, 3, 37, 50)).reshape(shape=(11_100,)), x.T.transpose(perm=(1, 0, 2)).reshape(shape=(1850, 3)), x.T.gather(x.builder.const([2, 0, -1]), axis=1)], x)


def test_large_copies_are_dealt_out() -> None:
    x = RNG.normal(size=(300, 257)).astype(np.float32)
    agree(lambda x: [x.T.reshape(shape=(300 * 257,)), x.T.pad(low=(1, 2), high=(0, 3), value=7.0), x.apply("concat", (x, x.reverse(axes=(0,)), x.reverse(axes=(1,))), {"axis": 0})], x)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_put_into_caches_that_lie_in_any_order(axis: int) -> None:
    """A cache that is a view is copied as it is walked, not as it lies."""
    x, y = RNG.normal(size=(5, 4, 3)).astype(np.float32), RNG.normal(size=(1, 9, 10)).astype(np.float32)
    new = RNG.normal(size=[2 if a == axis else d for a, d in enumerate((3, 4, 5))]).astype(np.float32)
    agree(lambda x, y, new: [cache.kv_append(new, new.builder.const(1), axis=axis)
                             for cache in (x.transpose(perm=(2, 1, 0)), y[:, 1::2, ::2].expand(shape=(3, 4, 5)), x.transpose(perm=(2, 1, 0)).reverse(axes=(1,)))], x, y, new)


# ---- constants -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_a_constant_may_be_the_first_operand_in_a_chain(dtype: str) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    x = np.array([0, 1, 2, 3, 7, 8, 63, 64, low, low + 1, high - 1, high]).astype(dtype) if high < 2**63 else np.array([0, 1, 7, 63, 64, high], np.uint64)

    def chains(x: Any) -> list[Any]:
        numbers = [x.builder.const(k, str(x.dtype)) for k in (0, 7, low, high)]
        return [made.bit_xor(x) for c in numbers for made in (c.floor_div(x), c.mod(x), c.maximum(x), c.minimum(x), c - x, c * x, c.shift_left(x), c.shift_right(x))]

    agree(chains, x)
