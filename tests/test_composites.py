"""Composites written out in plain ops: every spelling is found and keeps its value; what only looks like one says why not."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from random_graphs import TOLERANCE

from rlxpy import Builder, CompileOptions, DType, Graph, Op, compile, sym
from rlxpy.errors import FusionError
from rlxpy.extend.passes import Note
from rlxpy.fusion.canonicalise import Canonicalise
from rlxpy.fusion.composites import FindComposites
from rlxpy.fusion.pipeline import run
from rlxpy.ir.dims import Dim
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.refs import evaluate

Shapes = dict[str, tuple[str, tuple[Dim, ...]]]


def built(f: Callable[..., Any], inputs: Shapes) -> Graph:
    b = Builder()
    made = f(*(b.input(n, shape, d) for n, (d, shape) in inputs.items()))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def found(g: Graph) -> tuple[Graph, tuple[Note, ...]]:
    after, report = run(g, (Canonicalise(), FindComposites(), Canonicalise()))
    return after, report.of("fused", "near miss")


def values(inputs: Shapes, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: (rng.random(shape) < 0.7 if d == "bool" else rng.standard_normal(shape) * 2 + 0.5).astype(dtype(d).numpy)
            for n, (d, shape) in ((n, (d, tuple(3 if not isinstance(k, int) else k for k in s))) for n, (d, s) in inputs.items())}


def assert_value_kept(g: Graph, inputs: Shapes) -> None:
    """Against the graph as it was written; two runs, so that nothing of the first is left."""
    fused, plain = compile(g, options=CompileOptions(debug=True)), compile(g, options=CompileOptions(optimise=False))
    for seed in range(2):
        given = values(inputs, seed)
        got, want = (r if isinstance(r, tuple) else (r,) for r in (fused.run(given), plain.run(given)))
        assert_close(got, want, g)


def assert_close(got: Sequence[Array], want: Sequence[Array], g: Graph) -> None:
    for x, y, t in zip(got, want, g.output_types, strict=True):
        a, b = x.astype(np.float64), y.astype(np.float64)
        tol = TOLERANCE[t.dtype]
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol * max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0))))


def assert_becomes(f: Callable[..., Any], inputs: Shapes, *ops: Op, compiled: bool = True) -> None:
    """Exactly these ops, apart from leaves and movement."""
    g = built(f, inputs)
    after, notes = found(g)
    assert [n.op for n in after if n.inputs and n.row.view is None] == list(ops), notes
    assert [n for n in notes if n.kind == "near miss"] == []
    if compiled:
        assert_value_kept(g, inputs)
    else:
        given = values(inputs)
        got, want = (evaluate(graph, {n.id: given[n.name] for n in graph.inputs}) for graph in (after, g))
        assert_close(got, want, g)


def assert_missed(f: Callable[..., Any], inputs: Shapes, what: str, words: str) -> None:
    """The composite is not made, the reason is told at the user's line, and the value stays."""
    g = built(f, inputs)
    after, notes = found(g)
    assert not any(n.op.text == what for n in after)
    (miss,) = (n for n in notes if n.kind == "near miss")
    assert miss.label == what
    assert words in miss.text
    assert __file__ in miss.where
    assert_value_kept(g, inputs)


def texts(value: Any) -> str:
    """What a case is called: its texts, not its functions."""
    return value if isinstance(value, str) else "-"


# ---- softmax -------------------------------------------------------------------------------------------------------
def exp_of(x: Any, axis: int) -> Any:
    return (x - x.max(axes=(axis,), keep=True)).exp()


SOFTMAX: dict[str, Callable[..., Any]] = {
    "divided": lambda x: exp_of(x, -1) / exp_of(x, -1).sum(axes=(-1,), keep=True),
    "times the reciprocal": lambda x: exp_of(x, -1) * (1.0 / exp_of(x, -1).sum(axes=(-1,), keep=True)),
    "the reciprocal first": lambda x: exp_of(x, 1).sum(axes=(1,), keep=True).recip() * exp_of(x, 1),
    "first axis": lambda x: exp_of(x, 0) / exp_of(x, 0).sum(axes=(0,), keep=True),
}


@pytest.mark.parametrize("d", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("spelling", SOFTMAX)
def test_softmax(spelling: str, d: str) -> None:
    assert_becomes(SOFTMAX[spelling], {"x": (d, (5, 7))}, Op.SOFTMAX)


@pytest.mark.parametrize(("f", "words"), [
    (lambda x: x.exp() / x.exp().sum(axes=(-1,), keep=True), "greatest value is not subtracted"),
    (lambda x: exp_of(x, -1) / exp_of(x, -1).sum(axes=(0,), keep=True), "not one kept axis"),
    (lambda x: exp_of(x, -1) / exp_of(x, -1).sum(axes=(0, 1), keep=True), "not one kept axis"),
    (lambda x: exp_of(x, 1) / exp_of(x, 1).sum(axes=(1,)), "not one kept axis"),
])
def test_what_is_no_softmax(f: Callable[..., Any], words: str) -> None:
    assert_missed(f, {"x": ("f32", (4, 4))}, "softmax", words)


# ---- norms ---------------------------------------------------------------------------------------------------------
EPS = 1e-3


def mean(x: Any) -> Any: return x.mean(axes=(-1,), keep=True)
def centred(x: Any) -> Any: return x - mean(x)


SQUARES: dict[str, Callable[[Any], Any]] = {"d*d": lambda d: d * d, "square": lambda d: d.square(), "d**2": lambda d: d ** 2.0}
FINALS: dict[str, Callable[[Any, Any], Any]] = {
    "d*rsqrt": lambda d, v: d * v.rsqrt(), "rsqrt*d": lambda d, v: v.rsqrt() * d, "d/sqrt": lambda d, v: d / v.sqrt(),
    "d*(1/sqrt)": lambda d, v: d * (1.0 / v.sqrt()), "d*recip": lambda d, v: d * v.sqrt().recip(), "d*v**-0.5": lambda d, v: d * v ** -0.5,
    "d/v**0.5": lambda d, v: d / v ** 0.5,
}
MEANS: dict[str, Callable[[Any], Any]] = {
    "mean": mean, "sum/n": lambda x: x.sum(axes=(-1,), keep=True) / 7.0, "sum*(1/n)": lambda x: x.sum(axes=(1,), keep=True) * (1 / 7),
}
EPSILONS: dict[str, Callable[[Any], Any]] = {
    "v+eps": lambda v: v + EPS, "eps+v": lambda v: EPS + v, "no eps": lambda v: v, "eps[1]": lambda v: v + v.builder.const(np.array([EPS]).astype(v.dtype.numpy)),
}


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("final", FINALS)
def test_norms_in_every_spelling(square: str, final: str) -> None:
    for average in MEANS.values():
        for epsilon in EPSILONS.values():
            def normed(d: Any, average: Any = average, epsilon: Any = epsilon) -> Any:
                return FINALS[final](d, epsilon(average(SQUARES[square](d))))

            assert_becomes(normed, {"x": ("f32", (3, 7))}, Op.RMS_NORM, compiled=False)
            assert_becomes(lambda x, average=average, normed=normed: normed(x - average(x)), {"x": ("f64", (3, 7))}, Op.LAYER_NORM, compiled=False)


def layer_norm(x: Any, eps: Any = EPS) -> Any: return centred(x) / (mean(centred(x) * centred(x)) + eps).sqrt()
def rms_norm(x: Any, eps: Any = EPS) -> Any: return x * (mean(x * x) + eps).rsqrt()


@pytest.mark.parametrize("d", ["f16", "bf16"])
@pytest.mark.parametrize("f", [layer_norm, rms_norm])
def test_norms_in_narrow_types(f: Callable[..., Any], d: str) -> None:
    assert_becomes(f, {"x": (d, (2, 5, 9))}, Op.LAYER_NORM if f is layer_norm else Op.RMS_NORM)


def test_norms_of_symbolic_sizes() -> None:
    assert_becomes(layer_norm, {"x": ("f32", (sym("B", 1, 4), sym("S", 1, 9), 5))}, Op.LAYER_NORM)
    assert_becomes(rms_norm, {"x": ("f32", (2, sym("C", 2, 9)))}, Op.RMS_NORM)


def test_scale_and_bias_become_operands() -> None:
    inputs: Shapes = {"x": ("f32", (2, 3, 4)), "g": ("f32", (4,)), "c": ("f32", (4,))}
    assert_becomes(lambda x, g, c: layer_norm(x) * g + c, inputs, Op.LAYER_NORM)
    assert_becomes(lambda x, g, c: c + g * layer_norm(x), inputs, Op.LAYER_NORM)
    assert_becomes(lambda x, g, c: rms_norm(x) * (g + 1.0) * 1.0, {n: inputs[n] for n in ("x", "g")} | {"c": ("f32", (4,))}, Op.ADD, Op.RMS_NORM)
    assert_becomes(lambda x, g, c: rms_norm(x) * g + c, inputs, Op.RMS_NORM, Op.ADD)  # rms_norm has no bias


X4: Shapes = {"x": ("f32", (4, 4))}


@pytest.mark.parametrize(("f", "what", "words"), [
    (lambda x: centred(x) / ((centred(x) * centred(x)).sum(axes=(-1,), keep=True) / 3.0 + EPS).sqrt(), "layer_norm", "sum over 4 elements is divided by 3"),  # ddof=1
    (lambda x: centred(x) / ((centred(x) * centred(x)).sum(axes=(-1,), keep=True) * 0.5 + EPS).sqrt(), "layer_norm", "divided by 2"),
    (lambda x: x * ((x * x).mean(axes=(0,), keep=True) + EPS).rsqrt(), "rms_norm", "over axes (0,) of rank 2"),
    (lambda x: x * ((x * x).mean(axes=(0, 1), keep=True) + EPS).rsqrt(), "rms_norm", "over axes (0, 1)"),
    (lambda x: x * ((x * x).mean(axes=(1,)) + EPS).rsqrt(), "rms_norm", "not over the last one, kept"),
    (lambda x: (x - x.mean(axes=(0,), keep=True)) / ((x - x.mean(axes=(0,), keep=True)).square().mean(axes=(0,), keep=True) + EPS).sqrt(),
     "layer_norm", "over axes (0,) of rank 2"),
    (lambda x: layer_norm(x, x.builder.const(np.array([[1e-3], [1e-2], [0.1], [1]], np.float32))), "layer_norm", "its eps f32[4,1] is not one number"),
    (lambda x: rms_norm(x, x.abs()), "rms_norm", "its eps f32[4,4] is not one number"),
], ids=texts)
def test_what_is_no_norm(f: Callable[..., Any], what: str, words: str) -> None:
    assert_missed(f, X4, what, words)


def test_a_sum_of_unknown_length_is_no_mean() -> None:
    assert_missed(lambda x: x * ((x * x).sum(axes=(-1,), keep=True) / 8.0 + EPS).rsqrt(), {"x": ("f32", (2, sym("C", 3, 8)))}, "rms_norm", "sum over C elements is divided by 8")


def test_centred_by_another_axis_it_is_still_an_rms_norm() -> None:
    def f(x: Any) -> Any:
        d = x - x.mean(axes=(0,), keep=True)
        return d / (mean(d * d) + EPS).sqrt()
    assert_becomes(f, X4, Op.MEAN, Op.SUB, Op.RMS_NORM)


@pytest.mark.parametrize(("f", "shape", "words"), [
    (lambda x, g: layer_norm(x) * g, (3, 1), "scale f32[3,1] is not [4]"),      # A13
    (lambda x, g: g * layer_norm(x), (1,), "scale f32[1] is not [4]"),
    (lambda x, g: rms_norm(x) * g, (2, 1, 4), "scale f32[2,1,4] is not [4]"),
], ids=texts)
def test_a_scale_along_other_axes_stays_outside(f: Callable[..., Any], shape: tuple[int, ...], words: str) -> None:
    g = built(f, {"x": ("f32", (2, 3, 4)), "g": ("f32", shape)})
    after, notes = found(g)
    assert [n.op for n in after if n.inputs] in ([Op.LAYER_NORM, Op.MUL], [Op.RMS_NORM, Op.MUL])
    assert [n.text.startswith(words) for n in notes if n.kind == "near miss"] == [True]
    assert_value_kept(g, {"x": ("f32", (2, 3, 4)), "g": ("f32", shape)})


def test_layer_norm_with_a_scale_for_each_row_has_the_right_values() -> None:  # A13
    b = Builder()
    x = b.input("x", (2, 3, 4))
    y = layer_norm(x, 1e-5) * b.const(np.array([[1], [10], [100]], np.float32)) + b.const(np.array([0.5], np.float32))
    given = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    wide = given.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * [[1], [10], [100]] + 0.5
    np.testing.assert_allclose(compile(b.finish(y)).run(given), want, rtol=1e-4, atol=1e-4)


def test_values_that_others_read_stay_right() -> None:  # A12
    inputs: Shapes = {"x": ("f32", (2, 8)), "r": ("f32", (2, 8)), "g": ("f32", (8,))}

    def residual(x: Any, r: Any, g: Any) -> Any:
        s = x + r
        return s, layer_norm(s) * g, s.relu() + s
    g = built(residual, inputs)
    assert Op.LAYER_NORM in {n.op for n in found(g)[0]}
    x, r = (np.arange(16, dtype=np.float32).reshape(2, 8) * k for k in (1, 2))
    got = compile(g).run(x, r, np.ones(8, np.float32))
    np.testing.assert_array_equal(got[0], x + r)
    assert_value_kept(g, inputs)

    def inner(x: Any, r: Any, g: Any) -> Any:
        d = centred(x)
        v = mean(d * d) + EPS
        y = d / v.sqrt()
        return d, v, y, y * g + r
    g = built(inner, inputs)
    after, notes = found(g)
    assert "the value before the scale is read by others too" in [n.text for n in notes]
    assert Op.LAYER_NORM in {n.op for n in after}
    assert_value_kept(g, inputs)


# ---- attention -----------------------------------------------------------------------------------------------------
B, H, T, S, D = 2, 3, 5, 4, 8
QKV: Shapes = {"q": ("f32", (B, H, T, D)), "k": ("f32", (B, H, S, D)), "v": ("f32", (B, H, S, 6))}
ADD: Shapes = {**QKV, "mask": ("f32", (B, 1, T, S))}
SEEN: Shapes = {**QKV, "mask": ("bool", (T, S))}
ROOT = float(np.sqrt(D))


def weighted(scores: Any, v: Any, axis: int = -1) -> Any: return scores.softmax(axis=axis) @ v


ATTENTION: dict[str, tuple[Shapes, Callable[..., Any]]] = {
    "plain": (QKV, lambda q, k, v: weighted(q @ k.T, v)),
    "scores / sqrt(d)": (QKV, lambda q, k, v: weighted(q @ k.T / ROOT, v)),
    "scores * scale": (QKV, lambda q, k, v: weighted(q @ k.T * 0.3, v)),
    "scale * scores": (QKV, lambda q, k, v: weighted(0.3 * (q @ k.T), v)),
    "last axis by its number": (QKV, lambda q, k, v: weighted(q @ k.T * 0.3, v, 3)),
    "PyTorch: scores / sqrt(d) + mask": (ADD, lambda q, k, v, mask: weighted(q @ k.T / ROOT + mask, v)),
    "mask + scores * scale": (ADD, lambda q, k, v, mask: weighted(mask + q @ k.T * 0.3, v)),
    "scores + mask": (ADD, lambda q, k, v, mask: weighted(q @ k.T + mask, v)),
    "where(seen, scores, -inf)": (SEEN, lambda q, k, v, mask: weighted(mask.where(q @ k.T / ROOT, -np.inf), v)),
    "masked_fill(hidden, -inf)": (SEEN, lambda q, k, v, mask: weighted(mask.logical_not().where(-np.inf, q @ k.T * 0.3), v)),
    "where without a scale": (SEEN, lambda q, k, v, mask: weighted(mask.where(q @ k.T, -np.inf), v)),
    "three axes": ({n: (d, s[1:]) for n, (d, s) in QKV.items()}, lambda q, k, v: weighted(q @ k.T / ROOT, v)),
    "two axes": ({n: (d, s[2:]) for n, (d, s) in SEEN.items() if n != "mask"} | {"mask": ("bool", (T, S))},
                 lambda q, k, v, mask: weighted(mask.where(q @ k.T / ROOT, -np.inf), v)),
}


@pytest.mark.parametrize("spelling", ATTENTION)
def test_attention(spelling: str) -> None:
    inputs, f = ATTENTION[spelling]
    if "two axes" in spelling or "masked_fill" in spelling:  # a row of only hidden keys is policy, see below
        inputs = {**inputs, "mask": ("bool", (T, S))}
    g = built(f, inputs)
    after, notes = found(g)
    assert [n.op for n in after if n.inputs and n.row.view is None and n.op is not Op.LOGICAL_NOT] == [Op.ATTENTION], notes
    assert [n.kind for n in notes] == ["fused"]
    given = values(inputs)
    if inputs.get("mask", ("", ()))[0] == "bool":
        given["mask"][:, 0] = True
    got, want = (compile(g, options=CompileOptions(optimise=o)).run(given) for o in (True, False))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_attention_with_softmax_written_out() -> None:
    def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
        s = q @ k.T / ROOT + mask
        e = (s - s.max(axes=(-1,), keep=True)).exp()
        return (e / e.sum(axes=(-1,), keep=True)) @ v
    assert_becomes(f, ADD, Op.ATTENTION)


def test_attention_of_symbolic_lengths_with_projections() -> None:
    def f(x: Any, w: Any) -> Any:
        q, k, v = ((x @ w).reshape(shape=(*x.shape[:2], 2, 4)).transpose(perm=(0, 2, 1, 3)) * c for c in (1.0, 2.0, 3.0))
        y = weighted(q @ k.T / 2.0, v)
        return y.transpose(perm=(0, 2, 1, 3)).reshape(shape=x.shape)
    inputs: Shapes = {"x": ("f32", (sym("B", 1, 4), sym("T", 1, 8), 8)), "w": ("f32", (8, 8))}
    assert Op.ATTENTION in {n.op for n in found(built(f, inputs))[0]}
    assert_value_kept(built(f, inputs), inputs)


@pytest.mark.parametrize(("inputs", "f", "words"), [
    (SEEN, lambda q, k, v, mask: weighted(mask.where(q @ k.T, -1e9), v), "filled with -1000000000.0, not -inf"),
    (SEEN, lambda q, k, v, mask: weighted(mask.where(-3e38, q @ k.T), v), "not -inf"),
    ({**QKV, "mask": ("f32", (5, B, H, T, S))}, lambda q, k, v, mask: weighted(q @ k.T + mask, v), "the mask widens the scores"),
    ({**QKV, "k": ("f32", (B, H, 1, D)), "mask": ("bool", (T, S))}, lambda q, k, v, mask: weighted(mask.where(q @ k.T, -np.inf), v), "the mask widens the scores"),
    (QKV, lambda q, k, v: (weighted(q @ k.T * 0.3, v), (q @ k.T * 0.3).softmax(axis=-1)), "the probs f32[2,3,5,4] are read by others"),
    (QKV, lambda q, k, v: (weighted(q @ k.T * 0.3, v), q @ k.T), "the product f32[2,3,5,4] are read by others"),
    (QKV, lambda q, k, v: (weighted(q @ k.T * 0.3, v), (q @ k.T * 0.3).max(axes=(-1,))), "are read by others"),
    ({**QKV, "q": ("f32", (B, H, S, D))}, lambda q, k, v: weighted(q @ k.T * 0.3, v, -2), "softmax is over axis -2 of the scores"),
    ({**QKV, "q": ("f32", (B, H, S, D))}, lambda q, k, v: weighted(q @ k.T * 0.3, v, 0), "softmax is over axis 0"),
    ({**QKV, "k": ("f32", (B, 1, S, D))}, lambda q, k, v: weighted(q @ k.T, v), "batch and heads broadcast: [2,3,5,8], [2,1,8,4], [2,3,4,6]"),
    ({**QKV, "s": ("f32", (H, 1, 1))}, lambda q, k, v, s: weighted(q @ k.T * s, v), "its scale f32[3,1,1] is not one number"),
    ({**QKV, "s": ("f32", ())}, lambda q, k, v, s: weighted(q @ k.T / s, v), "its divisor f32[] is not one number"),
    ({n: (d, (1, *s)) for n, (d, s) in QKV.items()}, lambda q, k, v: weighted(q @ k.T, v), "of rank 5"),
], ids=texts)
def test_what_is_no_attention(inputs: Shapes, f: Callable[..., Any], words: str) -> None:
    assert_missed(f, inputs, "attention", words)


def test_a_row_that_sees_nothing() -> None:  # A03
    """attention gives zeros; so does the composite, where the ops it replaces, kept as written, give NaN.  Other rows do not change."""
    b = Builder()
    q, k, v = (b.input(n, (1, 1, 2, 2)) for n in "qkv")
    mask = b.input("mask", (2, 2), "bool")
    direct = q.attention(k, v, mask, scale=1.0)
    written = weighted(mask.where(q @ k.T, -np.inf), v)
    zero, value = np.zeros((1, 1, 2, 2), np.float32), np.array([[[[1, 2], [3, 4]]]], np.float32)
    seen = np.array([[False, False], [True, True]])
    for y in (direct, written):
        np.testing.assert_array_equal(compile(b.finish(y)).run(zero, zero, value, seen)[0, 0], [[0, 0], [2, 3]])
    plain = compile(b.finish(written), options=CompileOptions(optimise=False)).run(zero, zero, value, seen)[0, 0]
    np.testing.assert_array_equal(plain, [[np.nan, np.nan], [2, 3]])
    assert "zeros" in Op.ATTENTION.row.doc


# ---- reports -------------------------------------------------------------------------------------------------------
def test_a_near_miss_is_an_error_when_fusion_must_be_clean() -> None:
    clean = CompileOptions(assert_fusion_clean=True)
    compile(built(layer_norm, X4), options=clean)
    with pytest.raises(FusionError, match="sum over 4 elements is divided by 3") as e:
        compile(built(lambda x: centred(x) / (centred(x).square().sum(axes=(-1,), keep=True) / 3.0 + EPS).sqrt(), X4), options=clean)
    assert __file__ in e.value.where


def test_the_report_lists_hits_and_near_misses_with_the_line() -> None:
    report = compile(built(lambda x: (layer_norm(x), x.exp() / x.exp().sum(axes=(-1,), keep=True)), X4)).fusion
    assert "layer_norm" in [n.label for n in report.hits]
    assert [n.label for n in report.near_misses] == ["softmax"]
    assert all(__file__ in n.where for n in (*report.hits, *report.near_misses))


def test_finding_twice_finds_nothing_new() -> None:
    for f, inputs in ((layer_norm, X4), *((f, i) for i, f in ATTENTION.values())):
        after, _ = run(built(f, inputs), (Canonicalise(), FindComposites(), Canonicalise()))
        assert FindComposites()(after) is after


def test_dtypes_are_those_of_the_chain() -> None:
    for d in (DType.F16, DType.BF16, DType.F64):
        (t,) = found(built(layer_norm, {"x": (d.text, (2, 4))}))[0].output_types
        assert t.dtype is d
