"""vjp and jvp of every row against finite differences and against each other; vmap against a loop; singular points by hand."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from samples import OPS, accepted, assert_close, samples

from rlxpy import Builder, DType, Op, Value, sym
from rlxpy.errors import IndexOutOfRange
from rlxpy.ir import functions as F
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.op import ELEMENTWISE
from rlxpy.ir.row import CELLS, Why
from rlxpy.tools import derivatives
from rlxpy.tools.derivatives import DEEP, Call, run

NAN, INF = np.nan, np.inf


def having(*cells: str) -> pytest.MarkDecorator:
    """Every op whose row has these cells written."""
    assert set(cells) <= set(CELLS)
    return pytest.mark.parametrize("op", [op for op in OPS if all(callable(getattr(op.row, c)) for c in cells)], ids=lambda op: op.text)


def calls(op: Op) -> Iterator[Call]:
    return derivatives.calls(samples(op, DEEP))


@having("jvp")
def test_jvp_agrees_with_finite_differences(op: Op) -> None:
    step = 1e-6
    for call in calls(op):
        for which in (call.moving, *([i] for i in call.moving)):
            for got, high, low in zip(call.jvp(which), call.moved(step, which), call.moved(-step, which), strict=True):
                assert got.shape == high.shape
                there = np.isfinite(high)  # the mean of nothing is not
                assert_allclose(got[there], ((high - low) / (2 * step))[there], rtol=1e-6, atol=2e-8, err_msg=f"{call.s} {which}")


@having("vjp")
def test_vjp_agrees_with_finite_differences(op: Op) -> None:
    for call in calls(op):
        for i, got in zip(call.moving, call.vjp(), strict=True):
            assert got.shape == call.x[i].shape
            assert_allclose(got, call.differences(i), rtol=1e-6, atol=2e-8, err_msg=f"{call.s} input {i}")


@having("vjp", "jvp")
def test_forward_and_backward_are_each_others_transpose(op: Op) -> None:
    for call in calls(op):
        forward = sum((call.dy[k] * t).sum() for k, t in zip(call.smooth, call.jvp(call.moving), strict=True))
        backward = sum((g * call.dx[i]).sum() for i, g in zip(call.moving, call.vjp(), strict=True))
        assert forward == pytest.approx(backward, rel=1e-10, abs=1e-10), str(call.s)


@having("vjp", "jvp")
def test_derivatives_keep_narrow_types(op: Op) -> None:
    for dt in (DType.F32, DType.F16, DType.BF16):
        for s in samples(op, frozenset({dt})):
            b = Builder()
            values = s.emit(b)
            node = values[0].node
            xs = [Value(b, r) for r in node.inputs]
            y = values if len(values) > 1 else values[0]

            def fed(name: str, vs: Sequence[Value], b: Builder = b) -> tuple[Value | None, ...]:
                return tuple(b.input(f"{name}{i}", *v.type) if v.dtype.is_float else None for i, v in enumerate(vs))

            dy, dxs = fed("dy", values), fed("dx", xs)
            if set(dxs) != {None} and set(dy) != {None}:
                grads = op.row.vjp(dy if isinstance(y, tuple) else dy[0], y, *xs, **node.attrs.params())  # type: ignore[operator, misc]
                assert [g.type for g in grads if g is not None] == [x.type for x, g in zip(xs, grads, strict=True) if g is not None], str(s)
                tangent = op.row.jvp(dxs, y, *xs, **node.attrs.params())  # type: ignore[operator, misc]
                (first, *_) = tangent if isinstance(y, tuple) else (tangent,)
                assert first is None or first.type == values[0].type, str(s)


def gradient(f: Callable[..., Value], *arrays: Any, dy: Any = 1.0, shapes: Any = None) -> tuple[Array, ...]:
    """Reverse sweep over f by the rows' own cells: d sum(dy * f) for every argument.  `shapes` of the inputs may be symbolic."""
    b = Builder()
    shapes = shapes or [a.shape for a in arrays]
    xs = [b.input(f"x{i}", shape, dtype(a.dtype)) for i, (a, shape) in enumerate(zip(arrays, shapes, strict=True))]
    y = f(*xs)
    cotangent: dict[Any, Value] = {y.ref: b.input("dy", y.shape, y.dtype)}
    for node in reversed(b.nodes[:y.ref.node + 1]):
        dys, ys, inputs = tuple(map(cotangent.get, node.refs)), tuple(Value(b, r) for r in node.refs), [Value(b, r) for r in node.inputs]
        if inputs and any(d is not None for d in dys):
            args = (dys[0], ys[0]) if len(ys) == 1 else (dys, ys)
            grads = node.row.vjp(*args, *inputs, **node.attrs.params())  # type: ignore[operator, misc]
            for x, g in zip(inputs, grads, strict=True):
                if g is not None:
                    cotangent[x.ref] = cotangent[x.ref] + g if x.ref in cotangent else g
    return run(b, [cotangent[x.ref] for x in xs], [*arrays, np.broadcast_to(dy, y.shape).astype(y.dtype.numpy)])  # type: ignore[arg-type]


def test_the_branch_not_taken_adds_nothing() -> None:  # A19
    def f(x: Value) -> Any: return (x >= 0.0).where(x, (-x).sqrt())

    (got,) = gradient(f, np.array([1.0, 0.0, -4.0]))
    assert_array_equal(got, [1.0, 1.0, -0.25])


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "log", "log2", "log1p", "recip", "asin", "acos", "exp", "exp2", "expm1", "sinh", "cosh", "tan",
                                  "square", "abs"])
def test_a_zero_cotangent_wins_over_an_infinite_slope(name: str) -> None:
    x = np.array([0.0, -0.0, -1.0, 1.0, INF, -INF, NAN, 800.0, -800.0, 5e-324])
    (got,) = gradient(lambda v: v.apply(name, (v,), {}), x, dy=np.zeros(x.shape))
    assert_array_equal(got, np.zeros(x.shape))


@pytest.mark.parametrize("name", ["div", "mul", "pow", "atan2", "mod"])
def test_a_zero_cotangent_wins_for_both_operands(name: str) -> None:
    a, b = (g.reshape(-1) for g in np.meshgrid(*[np.array([0.0, -0.0, 1.0, -2.0, INF, -INF, NAN, 1e300])] * 2))
    for got in gradient(lambda x, y: x.apply(name, (x, y), {}), a, b, dy=np.zeros(a.shape)):
        assert_array_equal(got, np.zeros(a.shape))


def test_slopes_at_singular_points_that_do_count() -> None:
    def at(name: str, *x: float) -> Array: return gradient(lambda v: v.apply(name, (v,), {}), np.array(x))[0]

    assert_array_equal(at("sqrt", 0.0, 4.0), [INF, 0.25])
    assert_array_equal(at("log", 0.0, 2.0), [INF, 0.5])
    assert_array_equal(at("recip", 0.0, -2.0), [-INF, -0.25])
    assert_array_equal(at("asin", 1.0, 0.0), [INF, 1.0])
    assert_array_equal(at("abs", 0.0, -0.0, -3.0), [0.0, 0.0, -1.0])
    assert_array_equal(at("relu", 0.0, -0.0, 2.0, -2.0), [0.0, 0.0, 1.0, 0.0])
    for staircase in ("floor", "ceil", "trunc", "round", "sign"):
        assert getattr(Op, staircase.upper()).row.vjp(None, None, None) == (None,)


def test_powers() -> None:
    base, exponent = np.array([0.0, 0.0, 0.0, 2.0, -2.0, 0.0]), np.array([0.0, 1.0, 2.0, 3.0, 2.0, -1.0])
    dx, dp = gradient(lambda x, p: x.pow(p), base, exponent)
    assert_array_equal(dx, [0, 1, 0, 12, -4, -INF])
    assert_allclose(dp, [0, 0, 0, 8 * math.log(2), NAN, -INF])


def test_activations_have_finite_slopes_everywhere() -> None:  # A04
    x = np.array([-INF, -1e300, -1000, -88, -20, 0, 20, 88, 1000, 1e300, INF])
    middles = {"silu": 0.5, "gelu": 0.5, "gelu_tanh": 0.5, "softplus": 0.5, "tanh": 1.0, "sigmoid": 0.25, "erf": 2 / math.sqrt(math.pi)}
    for f, middle in middles.items():
        (got,) = gradient(lambda v, f=f: v.apply(f, (v,), {}), x)
        flat = f in ("tanh", "sigmoid", "erf")
        assert_allclose(got, [0, 0, 0, 0, 0, middle, *[0 if flat else 1] * 5], atol=5e-8, err_msg=f)
    (got,) = gradient(lambda v: v.softplus(), np.array([-200, -20, 0, 20, 100], np.float32))
    assert_allclose(got, [0, 2.0611537e-9, 0.5, 1, 1], rtol=1e-6)


def test_ties_share_so_that_gradients_sum_to_one() -> None:
    x = np.array([[3.0, 1, 3, 3], [0, 0, -1, -2]])
    (got,) = gradient(lambda v: v.max(axes=(1,)), x)
    assert_allclose(got, [[1 / 3, 0, 1 / 3, 1 / 3], [0.5, 0.5, 0, 0]])
    (got,) = gradient(lambda v: v.min(axes=(0, 1)), x)
    assert_array_equal(got, [[0, 0, 0, 0], [0, 0, 0, 1]])
    for f in ("maximum", "minimum"):
        a, b = gradient(lambda v, w, f=f: v.apply(f, (v, w), {}), np.array([2.0, 1, 5]), np.array([2.0, 3, 4]))
        assert_array_equal(a + b, [1, 1, 1])
        assert a[0] == 0.5
    dx, low, high = gradient(lambda x, lo, hi: x.clamp(lo, hi), np.array([-2.0, 0, 2, -1, 1]), np.full(5, -1.0), np.full(5, 1.0))
    assert_array_equal(dx + low + high, np.ones(5))
    assert_array_equal(dx, [0, 1, 0, 0.5, 0.5])
    (got,) = gradient(lambda v: v.max(axes=(0,)), np.full(70_000, 7, np.float32))
    assert got.sum() == pytest.approx(1, rel=1e-5)


def test_products_beside_zeros() -> None:
    (got,) = gradient(lambda v: v.prod(axes=(1,)), np.array([[2.0, 3, 4], [2, 0, 4], [0, 0, 4], [0, 5, -0.0]]))
    assert_array_equal(got, [[12, 8, 6], [0, 8, 0], [0, 0, 0], [0, 0, 0]])


def test_repeated_indices_add_up() -> None:
    at = np.array([1, 1, -1])
    (got,) = gradient(lambda v: v.gather(v.builder.const(at), axis=0), np.zeros((3, 2)), dy=[[1.0, 2], [10, 20], [100, 200]])
    assert_array_equal(got, [[0, 0], [11, 22], [100, 200]])
    (got,) = gradient(lambda v: v.take_along(v.builder.const(np.array([[0, 0], [-1, 0]])), axis=0), np.zeros((3, 2)), dy=[[1.0, 2], [10, 20]])
    assert_array_equal(got, [[1, 22], [0, 0], [10, 0]])


NARROW: dict[str, tuple[Callable[[Value], Any], list[float], float | list[float]]] = {  # counts, squares and products that no f16 holds
    "mean": (lambda v: v.mean(axes=(0,)), [1.0] * 70_000, 1 / 70_000),
    "max": (lambda v: v.max(axes=(0,)), [1.0] * 70_000, 1 / 70_000),
    "rms_norm": (lambda v: v.rms_norm(eps=0.0), [600, -600], 1 / 600),
    "prod": (lambda v: v.prod(axes=(0,)), [600, 600, 0.1], [60, 60, INF]),
}


@pytest.mark.parametrize("name", NARROW)
def test_narrow_derivatives_are_rounded_once(name: str) -> None:
    f, x, want = NARROW[name]
    (got,) = gradient(f, np.array(x, np.float16))
    assert got.dtype == np.float16
    assert_allclose(got, np.broadcast_to(np.array(want, np.float16), got.shape), rtol=1e-3)


N = sym("N", 0, 9)
SYMBOLIC: dict[str, Callable[[Value, Value], Any]] = {  # of v [N, 3] and w [N, 1]
    "mean": lambda v, w: (v * w).mean(axes=(0,)),
    "expand": lambda v, w: F.expand(v.sum(axes=(0,)), v.shape) * w,
    "broadcast": lambda v, w: v.sum(axes=(0,)) * w,
    "matmul": lambda v, w: F.unsqueeze(v, 2) @ F.unsqueeze(w, 1),
    "slice": lambda v, w: (v * w).slice(start=(0, 1), stop=v.shape, step=(2, 1)),
    "pad": lambda v, w: (v * w).pad(low=(1, 0), high=(0, 2)),
    "sort": lambda v, w: (v * w).sort(axis=0)[0],
    "take_along": lambda v, w: (v * w).take_along(v.argmin(axis=1, keep=True), axis=1),
    "concat": lambda v, w: F.concat((v, w, w * v), 1),
    "layer_norm": lambda v, w: v.layer_norm(eps=0.1) * w,
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_derivatives_hold_for_every_symbolic_size(name: str) -> None:
    """The same as with the size written out."""
    def loss(v: Value, w: Value) -> Any:
        y = SYMBOLIC[name](v, w)
        return (y * y).sum(axes=tuple(range(y.rank)))

    for n in (1, 2, 5, 0):
        x = np.random.default_rng(n).normal(size=(n, 3)), np.random.default_rng(n + 1).normal(size=(n, 1))
        for got, want in zip(gradient(loss, *x, shapes=((N, 3), (N, 1))), gradient(loss, *x), strict=True):
            assert_array_equal(got, want)


@having("vmap")
def test_vmap_agrees_with_a_loop(op: Op) -> None:
    size, first = 3, next(d for d in (DType.F64, DType.I32, DType.BOOL, DType.C128) if d in accepted(op))
    for s in samples(op, frozenset({first} if op in ELEMENTWISE else {first, DType.BF16})):
        types = s.input_types()
        for batched in itertools.product((False, True), repeat=len(types)):
            if not any(batched) or s.case.packed:
                continue
            single = s.arrays(0)
            many = [s.arrays(seed) for seed in range(1, size + 1)]
            given = [np.stack([m[i] for m in many]) if b else single[i] for i, b in enumerate(batched)]
            b = Builder()
            attrs = s.graph().nodes[len(types)].attrs.params()
            xs = [b.input(f"x{i}", a.shape, dt) for i, (a, (_, dt)) in enumerate(zip(given, types, strict=True))]
            made = op.row.vmap(batched, *xs, **attrs)  # type: ignore[operator, misc]
            got = run(b, made if isinstance(made, tuple) else (made,), given)
            rows = [s.reference(tuple(many[k][i] if flag else single[i] for i, flag in enumerate(batched))) for k in range(size)]
            for k, y in enumerate(got):
                want = np.stack([row[k] for row in rows])
                assert_close(y, want, s.dtype, f"{s} {batched}")


def test_vmap_of_nothing_is_nothing() -> None:
    b = Builder()
    x = b.input("x", (0, 2, 3), "f64")
    y = Op.SUM.row.vmap((True,), x, axes=(1,), keep=False)  # type: ignore[operator, misc]
    assert run(b, [y], [np.zeros((0, 2, 3))])[0].shape == (0, 2)


def test_a_gather_with_batched_indices_refuses_what_lies_in_the_neighbours_part() -> None:
    b = Builder()
    x, at = b.input("x", (2, 3), "f64"), b.input("at", (2, 1), "i64")
    y = Op.GATHER.row.vmap((True, True), x, at, axis=0)  # type: ignore[operator, misc]
    with pytest.raises(IndexOutOfRange, match="index 3"):
        run(b, [y], [np.zeros((2, 3)), np.array([[3], [0]])])


def test_rows_without_derivatives_say_why_or_are_listed() -> None:
    """vjp and jvp are written together, so that neither mode knows more than the other; only of a loop of unknown length are there no states to go back through."""
    for op in Op:
        kinds = [Why if isinstance(c, Why) else None if c is None else callable for c in (op.row.vjp, op.row.jvp)]
        assert kinds[0] is kinds[1] or op is Op.WHILE, op.text


OF_TWO_TYPES = (Op.RFFT, Op.IRFFT)  # reals on one side, complex numbers on the other: test_fourier has their laws
STAIRCASES = (Op.SIGN, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.FLOOR_DIV)


def test_the_sampling_of_derivatives_is_not_empty() -> None:
    """Laws above that pick f64 calls hold for something: every op with a vjp has a call in which a float moves."""
    for op in OPS:
        if callable(op.row.vjp) and op not in OF_TWO_TYPES:
            assert any(a.size for call in calls(op) for i, a in enumerate(call.x) if i in call.moving), op.text
            assert op in STAIRCASES or any(np.any(g) for call in calls(op) for g in call.vjp()), op.text


