"""What the ops mean, against oracles that share nothing with them: plain loops, exact sums, and values worked out by hand."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_graphs import LARGE, norms_of_constant_rows
from numpy.testing import assert_allclose, assert_array_equal
from samples import plain

from rlxpy import Builder, CompileOptions, DType, Op, compile
from rlxpy.errors import IndexOutOfRange, InputError
from rlxpy.ir import functions as F
from rlxpy.ir.dtypes import Array, dtype

NAN, INF = np.nan, np.inf


def each_way(f: Callable[..., Any], *arrays: Any) -> list[Any]:
    """Results of f over graph values: as inputs and as constants (folded), optimised and as written, on a poisoned arena, twice."""
    got = []
    for optimise, constant in itertools.product((True, False), (True, False)):
        b = Builder()
        given = [np.asarray(a) for a in arrays]
        xs = [b.const(a) if constant else b.input(f"x{i}", a.shape, dtype(a.dtype)) for i, a in enumerate(given)]
        made = f(*xs)
        run = compile(b.finish(*(made if isinstance(made, tuple) else (made,))), options=CompileOptions(optimise=optimise, debug=True)).run
        got += [run(*([] if constant else given)) for _ in range(2)]
    return got


def holds(f: Callable[..., Any], *arrays: Any, equals: Any, rtol: float = 0, atol: float = 0) -> None:
    """Every way gives the value expected, NaN where NaN is expected, and the sign of zeros."""
    for got in each_way(f, *arrays):
        want = np.asarray(equals, dtype=plain(got).dtype)
        assert_allclose(plain(got), want, rtol=rtol, atol=atol, strict=True)
        if want.dtype.kind == "f":
            zero = want == 0
            assert_array_equal(np.signbit(plain(got)[zero]), np.signbit(want[zero]))


def f32(*values: float) -> Array: return np.array(values, np.float32)
def i32(*values: int) -> Array: return np.array(values, np.int32)


# K1 IEEE algebra
def test_a_product_with_zero_keeps_nan_inf_and_sign() -> None:  # A01
    x, want = f32(1, NAN, INF, -INF, -2), [0, NAN, NAN, NAN, -0.0]
    holds(lambda v: v * 0.0, x, equals=want)
    holds(lambda v: 0.0 * v, x, equals=want)
    holds(lambda v, z: v * z, x, np.zeros(5, np.float32), equals=want)
    holds(lambda v: v * 0, i32(3, -4), equals=[0, 0])
    holds(lambda v: v - v, x, equals=[0, NAN, NAN, NAN, 0])
    holds(lambda v: v / v, f32(0, INF, 2), equals=[NAN, NAN, 1])
    holds(lambda v: v + 0.0, f32(-0.0, 1), equals=[0.0, 1])
    holds(lambda v: v + -0.0, f32(-0.0, 1), equals=[-0.0, 1])
    holds(lambda v: v.neg().neg(), f32(-0.0, NAN), equals=[-0.0, NAN])
    holds(lambda v: (v - 0.0) / 1.0 * 1.0, f32(-0.0, INF), equals=[-0.0, INF])


def test_comparisons_with_nan_are_false_and_not_equal_is_true() -> None:
    holds(lambda v: v.eq(v), f32(NAN, 1), equals=[False, True])
    holds(lambda v: v.ne(v), f32(NAN, 1), equals=[True, False])
    holds(lambda v: v <= v, f32(NAN, 1), equals=[False, True])
    holds(lambda v: v > 0.0, f32(NAN, INF), equals=[False, True])


# K2 NaN in max and min
@pytest.mark.parametrize("n", [3, 8, 9, 33])
def test_max_and_min_are_nan_wherever_the_nan_stands(n: int) -> None:  # A02
    for at in (0, n // 2, n - 1):
        for dt in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
            x = np.arange(n).astype(dt)
            x[at] = NAN
            holds(lambda v: v.max(axes=(0,)), x, equals=NAN)
            holds(lambda v: v.min(axes=(0,)), x, equals=NAN)
            holds(lambda v: v.argmax(axis=0), x, equals=at)
            holds(lambda v: v.argmin(axis=0), x, equals=at)


def test_maximum_minimum_relu_and_clamp_keep_nan() -> None:
    holds(lambda a, b: a.maximum(b), f32(5, NAN, NAN), f32(NAN, 5, NAN), equals=[NAN] * 3)
    holds(lambda a, b: a.minimum(b), f32(5, NAN, NAN), f32(NAN, 5, NAN), equals=[NAN] * 3)
    holds(lambda v: v.relu(), f32(NAN, -1, 2), equals=[NAN, 0, 2])
    holds(lambda v: v.clamp(-1.0, 1.0), f32(NAN, -3, 3, 0.5), equals=[NAN, -1, 1, 0.5])


# K3 masked attention
def attend(**attrs: Any) -> Callable[..., Any]:
    return lambda q, k, v, *m: Op.ATTENTION(q, k, v, *m, **{"scale": 1.0, **attrs})


def test_a_row_that_sees_nothing_gives_zeros_in_attention_and_nan_in_softmax() -> None:  # A03
    zero, v = np.zeros((1, 1, 2, 2), np.float32), f32(1, 2, 3, 4).reshape(1, 1, 2, 2)
    holds(attend(), zero, zero, v, np.array([[False, False], [True, True]]), equals=[[[[0, 0], [2, 3]]]])
    holds(attend(), zero, zero, v, f32(-INF, -INF, 0, 0).reshape(2, 2), equals=[[[[0, 0], [2, 3]]]])
    holds(lambda s: s.softmax(axis=0), f32(-INF, -INF), equals=[NAN, NAN])


def test_attention_by_plain_loops() -> None:
    rng = np.random.default_rng(5)
    b, h, g, t, s, d, e = 2, 6, 2, 3, 5, 4, 3
    q, k, v = (rng.normal(size=shape) for shape in ((b, h, t, d), (b, g, s, d), (b, g, s, e)))
    bias = rng.normal(size=(h, 1, s))
    for kind, window, cap in (("none", 0, 0.0), ("causal", 0, 0.0), ("window", 2, 0.0), ("causal", 0, 1.5)):
        want = np.zeros((b, h, t, e))
        for i, j, r in np.ndindex(b, h, t):
            seen = [c for c in range(s) if kind == "none" or 0 <= r + s - t - c < (window or s)]
            scores = [(c, math.fsum(q[i, j, r] * k[i, j // (h // g), c]) * 0.3) for c in seen]
            scores = [(c, (math.tanh(x / cap) * cap if cap else x) + bias[j, 0, c]) for c, x in scores]
            weights = [math.exp(x) for _, x in scores]
            want[i, j, r] = sum(w * v[i, j // (h // g), c] for w, (c, _) in zip(weights, scores, strict=True)) / math.fsum(weights)
        holds(attend(scale=0.3, mask=kind, window=window, softcap=cap), q, k, v, bias, equals=want, rtol=1e-12)


@pytest.mark.parametrize(("window", "want"), [(1, [1, 2, 4, 8]), (2, [1, 1.5, 3, 6]), (4, [1, 1.5, 7 / 3, 3.75]), (9, [1, 1.5, 7 / 3, 3.75])])
def test_a_window_counts_the_query_itself_in_one_go_and_token_by_token(window: int, want: list[float]) -> None:  # A33
    v = np.array([1.0, 2, 4, 8]).reshape(1, 1, 4, 1)
    zero, kind = np.zeros((1, 1, 4, 1)), {"mask": "window", "window": window}
    holds(attend(**kind), zero, zero, v, equals=np.reshape(want, v.shape), rtol=1e-15)
    for t in range(4):
        holds(attend(**kind), zero[:, :, :1], zero[:, :, :t + 1], v[:, :, :t + 1], equals=np.reshape(want[t], (1, 1, 1, 1)), rtol=1e-15)


# K4 extreme activations
def test_activations_stay_finite() -> None:  # A04
    holds(lambda x: x.softplus(), f32(-200, -100, -20, 0, 20, 89, 100),
          equals=[0, 3.78e-44, 2.0611537e-9, 0.6931472, 20, 89, 100], rtol=1e-6, atol=2e-45)
    holds(lambda x: x.silu(), f32(-1000, -88, 0, 88, 1000), equals=[-0.0, -88 / (1 + math.exp(88)), 0, 88, 1000], rtol=1e-6)
    holds(lambda x: x.gelu_tanh(), f32(-1e20, -10, 0, 10, 1e20), equals=[-0.0, -0.0, 0, 10, 1e20], rtol=1e-6)
    holds(lambda x: x.gelu(), f32(-1e20, -20, 0, 20, 1e20), equals=[-0.0, -0.0, 0, 20, 1e20], rtol=1e-6)
    holds(lambda x: x.sigmoid(), f32(-1000, -88, 0, 88, 1000), equals=[0, 1 / (1 + math.exp(88)), 0.5, 1, 1], rtol=1e-6)
    for f in ("silu", "gelu", "gelu_tanh", "softplus", "sigmoid"):
        ends = [0.0 if f in ("softplus", "sigmoid") else -0.0, 1 if f == "sigmoid" else INF, NAN]
        holds(lambda x, f=f: x.apply(f, (x,), {}), f32(-INF, INF, NAN), equals=ends)


def test_softmax_of_large_and_small_numbers() -> None:
    holds(lambda x: x.softmax(axis=-1), f32(1e30, 1e30, -1e30), equals=[0.5, 0.5, 0])
    holds(lambda x: x.log_softmax(axis=-1), np.array([1000.0, 0.0]), equals=[0, -1000])
    holds(lambda x: x.softmax(axis=0), np.array([[0.0], [math.log(3)]]), equals=[[0.25], [0.75]], rtol=1e-15)
    holds(lambda x: x.softmax(axis=1), np.zeros((2, 0), np.float32), equals=np.zeros((2, 0)))


# K5 variance
def test_a_constant_row_has_no_variance() -> None:  # A05
    for shape in ((256,), (3, 256)):
        x, one = np.full(shape, 1234.0, np.float32), np.ones(256, np.float32)
        holds(lambda x, g, b: x.layer_norm(g, b, eps=1e-5), x, one, one * 0.25, equals=np.full(shape, 0.25))
        holds(lambda x, g, b: x.layer_norm(g, b, eps=1e-5), x, one, one * 0, equals=np.zeros(shape))
    holds(lambda x: x.rms_norm(eps=1e-6), np.zeros((2, 8), np.float32), equals=np.zeros((2, 8)))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16, DType.F64], ids=lambda d: d.text)
@pytest.mark.parametrize("width", [1, 37, 771])
def test_constant_rows_whose_sums_are_rounded_normalise_to_their_bias(dtype: DType, width: int) -> None:
    graph, given, wants = norms_of_constant_rows(dtype, width)
    for got, want in zip(compile(graph, device="reference")(*given), wants, strict=True):
        assert_array_equal(got, want)


def test_the_variance_of_a_constant_is_zero_and_large_rows_stay_finite() -> None:
    x = np.repeat(f32(0.1, 1234.1, -100000.1)[:, None], 37, axis=1)
    holds(lambda x: F.var(x, (1,)), x, equals=np.zeros(3))
    holds(lambda x: F.var(x, (0, 1), keep=True), np.full((5, 7), 0.1), equals=[[0]])
    large = np.concatenate((LARGE, f32(-1.1e38, -1.1e38, -1.1e38, 2e38, 2e38, 2e38, 0)[None]))  # no sum of it in order overflows, one of what its mean leaves does
    b = Builder()
    with np.errstate(over="ignore"):
        assert_array_equal(compile(b.finish(b.input("x", large.shape).layer_norm(eps=1e-5)), device="reference")(large), np.zeros_like(large))


def test_norms_by_the_formula() -> None:
    x = np.array([[1.0, 2, 4], [0, 0, 3]])
    gain, bias = np.array([1.0, 2, 3]), np.array([0.5, 0, -1])
    centred = [[v - sum(r) / 3 for v in r] for r in x]
    want = [[v / math.sqrt(sum(w * w for w in r) / 3 + 0.1) * g + c for v, g, c in zip(r, gain, bias, strict=True)] for r in centred]
    holds(lambda x, g, c: x.layer_norm(g, c, eps=0.1), x, gain, bias, equals=want, rtol=1e-14)
    want = [[v / math.sqrt(sum(w * w for w in r) / 3 + 0.1) * g for v, g in zip(r, gain, strict=True)] for r in x]
    holds(lambda x, g: x.rms_norm(g, eps=0.1), x, gain, equals=want, rtol=1e-14)


# K6 narrow floats
@pytest.mark.parametrize("dt", [np.float16, ml_dtypes.bfloat16])
def test_narrow_sums_do_not_overflow_or_stall(dt: Any) -> None:  # A06
    swing, ones = np.array([32000] * 4 + [-32000] * 4, dt), np.ones(4096, dt)
    full = np.full(4096, 60000, dt)
    holds(lambda x: x.sum(axes=(0,)), swing, equals=0.0)
    holds(lambda x: x.sum(axes=(0,)), ones, equals=4096.0)
    holds(lambda x: x.mean(axes=(0,)), full, equals=float(full[0]))
    holds(lambda x, w: x @ w, swing[None], np.ones((8, 1), dt), equals=[[0.0]])
    holds(lambda x, w: x @ w, ones[None], ones[:, None], equals=[[4096.0]])
    holds(lambda x: x.cumsum(axis=0).slice(start=(4095,), stop=(4096,), step=(1,)), ones, equals=[4096.0])
    assert {got.dtype for got in each_way(lambda x: x.sum(axes=(0,)), ones)} == {np.dtype(dt)}


@pytest.mark.parametrize("dt", [np.float16, ml_dtypes.bfloat16])
def test_narrow_norms_square_in_f32(dt: Any) -> None:
    x = np.array([[300, -300, 300, 900]], dt)  # 900 ** 2 is no f16
    for lowered in (False, True):
        def norm(x: Any, lowered: bool = lowered) -> Any:
            return Op.RMS_NORM.row.lower(x, eps=0.0) if lowered else x.rms_norm(eps=0.0)  # type: ignore[operator, misc]
        holds(norm, x, equals=(np.array([[1, -1, 1, 3]]) / math.sqrt(3)).astype(dt).astype(np.float64))


# K7 integers
def test_integer_division_rounds_down_and_survives_zero() -> None:  # A07
    a, b = i32(-7, 7, -7, 7, -2147483648, 5, -5, 0), i32(2, -2, -2, 2, -1, 0, 0, 0)
    holds(lambda a, b: a // b, a, b, equals=[-4, -4, 3, 3, -2147483648, 0, 0, 0])
    holds(lambda a, b: a % b, a, b, equals=[1, -1, -1, 1, 0, 0, 0, 0])
    holds(lambda a, b: a // b, np.array([200, 7], np.uint8), np.array([7, 0], np.uint8), equals=[28, 0])
    holds(lambda a, b: a // b, f32(-7, 7, 1, 0), f32(2, -2, 0, 0), equals=[-4, -4, INF, NAN])


def test_integers_wrap() -> None:
    top = np.array([127, -128], np.int8)
    holds(lambda x: x + 1, top, equals=[-128, -127])
    holds(lambda x: -x, top, equals=[-127, -128])
    holds(lambda x: x.abs(), top, equals=[127, -128])
    holds(lambda x: x * x, top, equals=[1, 0])
    holds(lambda x: x.sum(axes=(0,)), np.full(3, 100, np.int8), equals=44)
    holds(lambda x: x.prod(axes=(0,)), np.full(3, 100, np.uint8), equals=64)
    holds(lambda x: x.cumsum(axis=0), np.full(3, 100, np.int8), equals=[100, -56, 44])
    holds(lambda x, y: x @ y, np.full((1, 3), 100, np.int8), np.ones((3, 1), np.int8), equals=[[44]])
    holds(lambda x: x + 1, np.array([2 ** 63 - 1]), equals=[-(2 ** 63)])


def test_shifts_beyond_the_width_are_defined() -> None:
    holds(lambda x, n: x << n, i32(1, -1, 5, 5), i32(31, 32, 33, 100), equals=[-2147483648, 0, 0, 0])
    holds(lambda x, n: x >> n, i32(-8, -8, 8, -1), i32(1, 32, 32, 100), equals=[-4, -1, 0, -1])
    holds(lambda x, n: x >> n, np.array([200, 200], np.uint8), np.array([3, 8], np.uint8), equals=[25, 0])


# K8 casts
@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_casts_to_integers_truncate_saturate_and_turn_nan_to_0(source: Any) -> None:  # A08
    x = np.array([NAN, INF, -INF, 300, -300, 2.9, -2.9, 127, -128, -0.0], source)
    holds(lambda x: x.cast(to="i8"), x, equals=[0, 127, -128, 127, -128, 2, -2, 127, -128, 0])
    holds(lambda x: x.cast(to="i32"), x, equals=[0, 2147483647, -2147483648, 300, -300, 2, -2, 127, -128, 0])
    holds(lambda x: x.cast(to="u8"), x, equals=[0, 255, 0, 255, 0, 2, 0, 127, 0, 0])
    holds(lambda x: x.cast(to="i64"), x, equals=[0, 2 ** 63 - 1, -(2 ** 63), 300, -300, 2, -2, 127, -128, 0])
    holds(lambda x: x.cast(to="bool"), x, equals=[True] * 9 + [False])
    for got in each_way(lambda x: x.cast(to="u64"), x):
        assert got.tolist() == [0, 2 ** 64 - 1, 0, 300, 0, 2, 0, 127, 0, 0]


def test_casts_at_the_edges_of_wide_integers() -> None:
    edge = np.array([2.0 ** 63, np.nextafter(2.0 ** 63, 0), -(2.0 ** 63), 2.0 ** 31, 2.0 ** 31 - 0.5, -(2.0 ** 31) - 0.5, -(2.0 ** 31) - 1])
    for got in each_way(lambda x: x.cast(to="i64"), edge):
        assert got.tolist()[:3] == [2 ** 63 - 1, 2 ** 63 - 1024, -(2 ** 63)]
    holds(lambda x: x.cast(to="i32"), edge[3:], equals=[2 ** 31 - 1, 2 ** 31 - 1, -(2 ** 31), -(2 ** 31)])


def test_other_casts() -> None:
    holds(lambda x: x.cast(to="i8"), i32(128, -129, 300), equals=[-128, 127, 44])
    holds(lambda x: x.cast(to="u8"), i32(-1, 256), equals=[255, 0])
    holds(lambda x: x.cast(to="f32"), np.array([True, False]), equals=[1, 0])
    holds(lambda x: x.cast(to="bf16"), f32(1.00390625, 1.01171875, NAN), equals=[1.0, 1.015625, NAN])  # halfway goes to even
    holds(lambda x: x.cast(to="f16"), f32(65504, 65520, 1e-8), equals=[65504, INF, 0])
    holds(lambda x: x.cast(to="f32"), np.array([3 - 4j], np.complex64), equals=[3])
    holds(lambda x: x.cast(to="i8"), np.array([300 - 4j, NAN], np.complex64), equals=[127, 0])
    holds(lambda x: x.cast(to="i8").cast(to="f32"), f32(2.7, 300), equals=[2, 127])  # a cast that loses something is never removed
    holds(lambda x: x.cast(to="f16").cast(to="f32"), f32(1e-8, 70000), equals=[0, INF])


# K9 nothing, and scalars
def test_products_with_nothing_are_zeros() -> None:  # A09
    a, b, bias = np.zeros((4, 0), np.float32), np.zeros((0, 3), np.float32), f32(1, 2, 3)
    holds(lambda a, b: a @ b, a, b, equals=np.zeros((4, 3)))
    holds(lambda a, b, c: (a @ b + c).relu(), a, b, bias, equals=np.tile(bias, (4, 1)))
    holds(lambda a, b, c: (a @ b + c).relu(), np.zeros((0, 2), np.float32), np.ones((2, 3), np.float32), bias, equals=np.zeros((0, 3)))
    holds(lambda a, b: a @ b, np.ones((4, 2), np.float32), np.zeros((2, 0), np.float32), equals=np.zeros((4, 0)))


def test_reductions_of_nothing_and_of_scalars() -> None:
    nothing = np.zeros((2, 0), np.float32)
    holds(lambda x: x.sum(axes=(1,)), nothing, equals=[0, 0])
    holds(lambda x: x.prod(axes=(1,)), nothing, equals=[1, 1])
    holds(lambda x: x.mean(axes=(1,)), nothing, equals=[NAN, NAN])
    holds(lambda x: x.all(axes=(1,)), nothing.astype(bool), equals=[True, True])
    holds(lambda x: x.max(axes=(0,)), nothing, equals=np.zeros(0))
    holds(lambda x: x.sum(axes=()), np.float32(2.5), equals=2.5)
    holds(lambda x: (x * x).reshape(shape=(1, 1)), np.float32(3), equals=[[9]])


def test_a_symbolic_axis_that_turns_out_empty_has_no_greatest() -> None:
    from rlxpy import sym

    b = Builder()
    run = compile(b.finish(b.input("x", (2, sym("S", 0, 4))).max(axes=(1,)))).run
    assert_array_equal(run(f32(1, 5, 2, 0).reshape(2, 2)), [5, 2])
    with pytest.raises(InputError, match=r"no greatest or least of nothing[\s\S]*axis 1 has size 0"):
        run(np.zeros((2, 0), np.float32))


# K10 broadcasting and views
def test_an_axis_of_one_in_the_middle() -> None:  # A10
    a, b = np.arange(24, dtype=np.float32).reshape(2, 4, 3), f32(100, 200, 300, 1000, 2000, 3000).reshape(2, 1, 3)
    want = [[[a[i, j, k] + b[i, 0, k] for k in range(3)] for j in range(4)] for i in range(2)]
    assert want[0][1] == [103, 204, 305]
    assert want[1][0] == [1012, 2013, 3014]
    holds(lambda a, b: (a + b).relu(), a, b, equals=want)
    holds(lambda a, b: (b * 1.0 + a).relu(), a, b, equals=want)


def test_views_as_inputs() -> None:  # A11
    frozen = np.arange(6.0)
    frozen.setflags(write=False)
    for x in (np.arange(6.0)[::-1], np.arange(12.0)[::2], np.broadcast_to(2.5, (2, 3)), frozen,
              np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(24.0).reshape(2, 3, 4).T[1:, ::2]):
        b, before = Builder(), x.copy()
        run = compile(b.finish((b.input("x", x.shape, "f64") + 1.0) * 2.0), options=CompileOptions(debug=True)).run
        for _ in range(2):
            assert_array_equal(run(x), (before + 1) * 2)
        assert_array_equal(x, before)


# K14 indices
def test_indices_wrap_once_and_are_refused_beyond() -> None:  # A16
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    holds(lambda t, i: t.gather(i, axis=0), table, np.array([0, 4, -1, -5]), equals=[[0, 1], [8, 9], [8, 9], [0, 1]])
    holds(lambda t, i: t.gather(i, axis=0), table, np.zeros(0, np.int64), equals=np.zeros((0, 2)))
    holds(lambda t, i: t.gather(i, axis=1), table, np.array([[1], [0]]), equals=[[[r * 2 + 1], [r * 2]] for r in range(5)])
    holds(lambda t, i: t.take_along(i, axis=0), table, np.array([[4, -5], [-1, 0]]), equals=[[8, 1], [8, 1]])
    holds(lambda t, i, u: t.scatter_add(i, u, axis=0), table, np.array([1, 1, -5]), np.full((3, 2), 10, np.float32),
          equals=table + np.array([[10], [20], [0], [0], [0]]))
    for bad in (5, -6):
        at = np.array([0, bad])
        for op, f in {
            "gather": lambda t, i: t.gather(i, axis=0), "take_along": lambda t, i: t.take_along(i.reshape(shape=(1, 2)), axis=0),
            "scatter_add": lambda t, i: t.scatter_add(i, t.slice(start=(0, 0), stop=(2, 2), step=(1, 1)), axis=0),
        }.items():
            with pytest.raises(IndexOutOfRange, match=rf"{op}: index {bad} on axis 0[\s\S]*5 elements.*-5\.\.4"):
                each_way(f, table, at)


def test_kv_append_lands_at_its_position_and_refuses_a_full_cache() -> None:
    cache, new = np.zeros((1, 4, 2), np.float32), np.ones((1, 2, 2), np.float32)
    holds(lambda c, n, p: c.kv_append(n, p, axis=1), cache, new, np.int64(1), equals=[[[0, 0], [1, 1], [1, 1], [0, 0]]])
    for bad in (3, -1):
        with pytest.raises(IndexOutOfRange, match=rf"kv_append: rows {bad}\.\.{bad + 2} on axis 1[\s\S]*holds 4"):
            each_way(lambda c, n, p: c.kv_append(n, p, axis=1), cache, new, np.int64(bad))


# K15 ties and the order of NaN
def test_ties_go_to_the_lower_index() -> None:  # A17
    def order(x: Any, **attrs: Any) -> Any: return x.sort(axis=0, **attrs)[1]

    holds(order, np.array([1000.0] * 6 + [0, 1000]), equals=[6, 0, 1, 2, 3, 4, 5, 7])
    holds(order, np.array([0.0, -0.0]), equals=[0, 1])
    holds(lambda x: order(x, descending=True), np.array([-0.0, 0.0, 1, 0.0]), equals=[2, 0, 1, 3])
    holds(lambda x: x.top_k(k=3)[1], np.array([5.0, 5, 5, 5, 1]), equals=[0, 1, 2])
    holds(lambda x: x.argmax(axis=0), np.array([1, 3, 3, 2]), equals=1)
    holds(lambda x: x.argmin(axis=0), f32(0.0, -0.0, 1), equals=0)
    for n in (8, 17, 1000):
        x = np.random.default_rng(n).integers(0, 5, n)
        stable = sorted(range(n), key=lambda i: x[i])
        falling = sorted(range(n), key=lambda i: -x[i])
        for dt in (np.int64, np.int8, np.uint8, np.float32, np.float16, ml_dtypes.bfloat16):
            holds(order, x.astype(dt), equals=stable)
            holds(lambda x: order(x, descending=True), x.astype(dt), equals=falling)
            holds(lambda x: x.top_k(k=7)[1], x.astype(dt), equals=falling[:7])


def test_nan_sorts_last_and_extremes_of_integers_do_not_overflow() -> None:
    holds(lambda x: x.sort(axis=0)[0], f32(NAN, 2, -INF, NAN, 1), equals=[-INF, 1, 2, NAN, NAN])
    holds(lambda x: x.sort(axis=0, descending=True)[0], f32(NAN, 2, -INF, NAN, 1), equals=[2, 1, -INF, NAN, NAN])
    holds(lambda x: x.sort(axis=0, descending=True)[0], np.array([-128, 127, 0], np.int8), equals=[127, 0, -128])
    holds(lambda x: x.sort(axis=0, descending=True)[0], np.array([0, 255, 7], np.uint8), equals=[255, 7, 0])


# K27 rope
@pytest.mark.parametrize(("style", "want"), [
    ("half", [-1.984111, 1.959901, 2.462378, 4.019800]), ("interleaved", [-1.142640, 1.922076, 2.959851, 4.029800])])
def test_rope_pairs_halves_or_neighbours(style: str, want: list[float]) -> None:  # A32
    x = np.array([[1.0, 2, 3, 4]] * 2)
    holds(lambda x, p: x.rope(p, style=style), x, np.array([1, 0]), equals=[want, [1, 2, 3, 4]], rtol=1e-6)


def test_rope_is_a_turn_of_the_complex_plane() -> None:
    rng = np.random.default_rng(8)
    x, at, own = rng.normal(size=(2, 3, 5, 8)), np.array([0, 1, 7, 100, 4000]), np.array([0.5, 0.01])
    pairs = {"half": ([0, 1], [2, 3]), "interleaved": ([0, 2], [1, 3])}
    for style, (real, imaginary) in pairs.items():
        for freq in (None, own):
            turn = np.exp(1j * at[:, None] * (100.0 ** (-np.arange(2) / 2) if freq is None else freq))
            turned = (x[..., real] + 1j * x[..., imaginary]) * turn
            want = x.copy()
            want[..., real], want[..., imaginary] = turned.real, turned.imag
            holds(lambda x, p, *f, style=style: x.rope(p, *f, style=style, theta=100.0, dims=4), x, at, *(() if freq is None else (freq,)),
                  equals=want, rtol=1e-12, atol=1e-12)


# Movement and order by plain Python
def test_movement_by_index_lists() -> None:
    x = np.arange(60.0).reshape(3, 4, 5)
    pick: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "slice": (lambda v: v.slice(start=(1, 0, 1), stop=(3, 4, 5), step=(1, 2, 3)),
                  [[[x[i, j, k] for k in (1, 4)] for j in (0, 2)] for i in (1, 2)]),
        "reverse": (lambda v: v.reverse(axes=(0, -1)), [[[x[2 - i, j, 4 - k] for k in range(5)] for j in range(4)] for i in range(3)]),
        "transpose": (lambda v: v.transpose(perm=(2, 0, 1)), [[[x[i, j, k] for j in range(4)] for i in range(3)] for k in range(5)]),
        "reshape": (lambda v: v.reshape(shape=(5, 12)), [[float(12 * i + j) for j in range(12)] for i in range(5)]),
        "pad": (lambda v: v.pad(low=(0, 1, 0), high=(0, 0, 1), value=-1.0),
                [[[x[i, j - 1, k] if j and k < 5 else -1 for k in range(6)] for j in range(5)] for i in range(3)]),
        "concat": (lambda v: v.apply("concat", (v, v), {"axis": 1}), [[list(x[i, j % 4]) for j in range(8)] for i in range(3)]),
        "cumsum": (lambda v: v.cumsum(axis=2), [[list(itertools.accumulate(x[i, j])) for j in range(4)] for i in range(3)]),
    }
    for f, want in pick.values():
        holds(f, x, equals=want)


def test_matmul_by_exact_sums() -> None:
    rng = np.random.default_rng(9)
    a, b = rng.normal(size=(2, 1, 3, 7)), rng.normal(size=(4, 7, 5))
    want = [[[[math.fsum(a[i, 0, r] * b[j, :, c]) for c in range(5)] for r in range(3)] for j in range(4)] for i in range(2)]
    holds(lambda a, b: a @ b, a, b, equals=want, rtol=1e-12, atol=1e-13)


def test_reductions_by_exact_sums() -> None:
    x = np.random.default_rng(10).normal(size=(3, 4, 5))
    lanes = [x[:, j, :].reshape(-1) for j in range(4)]
    holds(lambda v: v.sum(axes=(0, 2)), x, equals=[math.fsum(lane) for lane in lanes], rtol=1e-13)
    holds(lambda v: v.mean(axes=(-1, 0), keep=True), x, equals=[[[math.fsum(lane) / 15] for lane in lanes]], rtol=1e-13)
    holds(lambda v: v.prod(axes=(0, 2)), x, equals=[math.prod(lane) for lane in lanes], rtol=1e-13)
    holds(lambda v: v.max(axes=(0, 2)), x, equals=[max(lane) for lane in lanes])
    holds(lambda v: v.min(axes=(0, 2)), x, equals=[min(lane) for lane in lanes])
