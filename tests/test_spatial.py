"""Convolution, pooling and resizing against PyTorch's answers and against loops over every element; how they are written; what they refuse."""
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_derivatives import gradient

from rlxpy import Builder, CompileOptions, DType, ModelFlow, compile, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import BuildError
from rlxpy.extend import FlowCtx
from rlxpy.ir import spatial_functions as S
from rlxpy.ir.dtypes import Array

DEVICES = [d for d in ("reference", "cpu") if d == "reference" or not isinstance(find_compiler(), str)]  # test_cpu_backend.py says when the second does not run
GOLDEN = json.loads((Path(__file__).parent / "golden" / "spatial.json").read_text("utf-8"))
devices = pytest.mark.parametrize("device", DEVICES)


def values(shape: Sequence[int], salt: int) -> Array:
    """As in golden/spatial.py."""
    return np.array([((i * 7919 + salt * 104729) % 65 - 32) / 4 for i in range(prod(shape))]).reshape(shape)


def call(name: str, xs: Sequence[Any], given: dict[str, Any]) -> Any:
    a = dict(given)
    positional = [a.pop(k) for k in ("size", "shape") if k in a]
    return getattr(S, name)(*xs, *positional, **a)


def name_of(case: dict[str, Any]) -> str: return " ".join([case["name"], *map(str, case["shapes"]), str(case["given"])])


@devices
@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16], ids=str)
@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_values_are_pytorchs(case: dict[str, Any], dtype: DType, device: str) -> None:
    b = Builder()
    xs = [b.input(f"x{k}", s, dtype) for k, s in enumerate(case["shapes"])]
    f = compile(b.finish(call(case["name"], xs, case["given"])), device=device, options=CompileOptions(debug=True))
    for _ in range(2):
        got = f.run(*(values(s, k).astype(dtype.numpy) for k, s in enumerate(case["shapes"])))
        want = np.array(case["y"]).reshape(case["shape"])
        np.testing.assert_allclose(got.astype(np.float64), want, rtol={DType.F16: 2e-3}.get(dtype, 1e-6), atol={DType.F16: 2e-2}.get(dtype, 1e-5))


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_gradients_are_pytorchs(case: dict[str, Any]) -> None:
    arrays = [values(s, k) for k, s in enumerate(case["shapes"])]
    got = gradient(lambda *xs: call(case["name"], xs, case["given"]), *arrays, dy=values(case["shape"], 9))
    for g, a, want in zip(got, arrays, case["gradients"], strict=True):
        np.testing.assert_allclose(g, np.array(want).reshape(a.shape), rtol=1e-9, atol=1e-9)


# ---- loops over every element --------------------------------------------------------------------------------------
def seen(at: Sequence[int], size: Sequence[int], a: dict[str, Any], space: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(place in the window, place in x) of every element that the window of result `at` holds."""
    for k in product(*map(range, size)):
        place = tuple(o * s - low + i * d for o, s, low, i, d in zip(at, a["strides"], a["low"], k, a["dilation"], strict=True))
        if all(0 <= p < n for p, n in zip(place, space, strict=True)):
            yield k, place


def looped(shape: Sequence[int], x: Array, size: Sequence[int], a: dict[str, Any], f: Any) -> Array:
    y = np.zeros(shape)
    for at in np.ndindex(*shape):
        y[at] = f(at, [(k, p) for k, p in seen(at[2:], size, a, x.shape[2:])])
    return y


UNEVEN = {"strides": (2, 1), "low": (2, 0), "high": (1, 3), "dilation": (1, 2)}


@devices
def test_uneven_padding_as_in_loops(device: str) -> None:
    x, w = values((2, 4, 6, 5), 0), values((6, 2, 3, 2), 1)
    b = Builder()
    vx, vw = b.input("x", x.shape, "f64"), b.input("w", w.shape, "f64")
    pads = list(zip(UNEVEN["low"], UNEVEN["high"], strict=True))
    c = S.conv(vx, vw, strides=(2, 1), padding=pads, dilation=(1, 2), groups=2)
    pools = [S.max_pool(vx, (3, 2), strides=(2, 1), padding=pads, dilation=(1, 2)), *(S.avg_pool(vx, (3, 2), strides=(2, 1), padding=pads, dilation=(1, 2), count_pad=n) for n in (False, True))]
    got = compile(b.finish(c, *pools), device=device).run(x, w)

    def dot(at: Any, cells: Any) -> float:
        n, o = at[:2]
        return float(sum(x[(n, o // 3 * 2 + i, *p)] * w[(o, i, *k)] for k, p in cells for i in range(2)))

    np.testing.assert_allclose(got[0], looped(c.shape, x, (3, 2), UNEVEN, dot), rtol=1e-12)
    np.testing.assert_array_equal(got[1], looped(pools[0].shape, x, (3, 2), UNEVEN, lambda at, cells: max((x[(*at[:2], *p)] for _, p in cells), default=-np.inf)))
    for y, whole in zip(got[2:], (False, True), strict=True):
        with np.errstate(invalid="ignore"):
            want = looped(pools[1].shape, x, (3, 2), UNEVEN, lambda at, cells, whole=whole: np.float64(sum(x[(*at[:2], *p)] for _, p in cells)) / (6 if whole else len(cells)))
        np.testing.assert_allclose(y, want, rtol=1e-12)


@pytest.mark.parametrize(("n", "k", "s", "d"), [(7, 3, 2, 1), (8, 3, 2, 1), (5, 2, 1, 1), (9, 3, 4, 2), (4, 1, 3, 1)])
def test_same_makes_one_result_a_stride(n: int, k: int, s: int, d: int) -> None:
    b = Builder()
    x = b.input("x", (1, 1, n))
    y = S.conv(x, b.input("w", (1, 1, k)), strides=s, padding="same", dilation=d)
    (low,), (high,) = y.node.attrs.low, y.node.attrs.high
    assert y.shape == (1, 1, -(-n // s))
    assert high - low in (0, 1)
    back = S.conv_transpose(y, b.input("v", (1, 1, k)), strides=s, padding="same", dilation=d)
    assert back.shape == (1, 1, -(-n // s) * s)


H, W = sym("H", 5, 12), sym("W", 4, 16, 2)


@devices
def test_symbolic_sizes_give_what_written_sizes_give(device: str) -> None:
    def build(h: Any, width: Any, n: Any) -> Any:
        b = Builder()
        x, w, v = b.input("x", (n, 4, h, width)), b.param("w", (6, 2, 3, 3)), b.param("v", (6, 3, 2, 2))
        c = S.conv(x, w, strides=(1, 2), padding="same", groups=2)
        t = S.conv_transpose(c, v, strides=2)
        p = S.max_pool(t, 2, strides=1, padding=1)
        return b.finish(c, t, p, S.avg_pool(x, 3, strides=2, padding=1, count_pad=False), S.resize(x, scale=2, method="linear"), S.resize(x, (h + 1, 3), points="corners"))

    weights = {"w": values((6, 2, 3, 3), 1).astype(np.float32), "v": values((6, 3, 2, 2), 2).astype(np.float32)}
    f = compile(build(H, W, sym("N", 0, 3)), weights, device=device, options=CompileOptions(debug=True))
    for n, h, width in ((2, 5, 4), (1, 12, 16), (0, 7, 6), (3, 9, 10)):
        x = values((n, 4, h, width), n).astype(np.float32)
        for got, want in zip(f.run(x), compile(build(h, width, n), weights, device="reference").run(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@devices
def test_nothing_is_lost_of_nan_and_infinity(device: str) -> None:
    b = Builder()
    x = b.input("x", (1, 1, 7))
    f = compile(b.finish(S.max_pool(x, 3, strides=2), S.max_pool(x, 2, strides=1, padding=1), S.conv(x, b.const(np.ones((1, 1, 1), np.float32)))), device=device)
    given = np.array([[[1, np.nan, 0, -np.inf, -np.inf, -np.inf, np.inf]]], np.float32)
    pooled, ends, through = f.run(given)
    np.testing.assert_array_equal(pooled[0, 0], [np.nan, 0, np.inf])
    np.testing.assert_array_equal(ends[0, 0], [1, np.nan, np.nan, 0, -np.inf, -np.inf, np.inf, np.inf])
    np.testing.assert_array_equal(through, given)


@devices
def test_windows_that_are_a_result_and_windows_of_windows(device: str) -> None:
    b = Builder()
    x = b.input("x", (3, 8))
    w = x.T.windows(axis=0, size=3, stride=2).windows(axis=1, size=2)
    f = compile(b.finish(w, w.sum(axes=(2, 3)), w + 1.0), device=device, options=CompileOptions(debug=True))
    a = values((3, 8), 0).astype(np.float32)
    want = np.lib.stride_tricks.sliding_window_view(a.T, (3, 2))[::2]
    for got, expected in zip(f.run(a), (want, want.sum((2, 3)), want + 1), strict=True):
        np.testing.assert_array_equal(got, expected)


REFUSED: list[tuple[str, Any, str]] = [
    ("channels", lambda x, w: S.conv(x, w, groups=2), "x has 4 channels, the weights take 4 . 2"),
    ("groups", lambda x, w: S.conv(x, w[:, :1], groups=4), "6 channels do not make 4 groups"),
    ("rank of weights", lambda x, w: S.conv(x, w[:, :, 0]), "3 axes"),
    ("a window larger than x", lambda x, w: S.conv(x, w, dilation=4), "reach over 9 elements, and there are 7"),
    ("strides", lambda x, w: S.conv(x, w, strides=(1, 2, 3)), "3 numbers for 2 spatial axes"),
    ("a stride of 0", lambda x, w: S.max_pool(x, 2, strides=0), "each is 1 or more"),
    ("padding", lambda x, w: S.conv(x, w, padding="full"), "valid, same"),
    ("negative padding", lambda x, w: S.conv(x, w, padding=-1), "padding is 0 or more"),
    ("no space", lambda x, w: S.max_pool(x[0, :, 0], 2), "3 to 5"),
    ("too much extra", lambda x, w: S.conv_transpose(x, w.T.transpose(perm=(1, 0, 2, 3))[:4], strides=2, extra=2), "conv makes"),
    ("same of a symbol", lambda x, w: S.conv(x.builder.input("s", (1, 4, H, 7)), w, strides=2, padding="same"), "depends on the rest of H by 2"),
    ("perhaps too small", lambda x, w: S.max_pool(x.builder.input("s", (1, 4, H)), 6), "perhaps 5"),
    ("resize twice said", lambda x, w: S.resize(x, (3, 3), scale=2), "either sizes or a scale"),
    ("method", lambda x, w: S.resize(x, (3, 3), method="cubic"), "nearest, linear"),
    ("points", lambda x, w: S.resize(x, (3, 3), points="edges"), "half_pixel, corners, asymmetric"),
]


@pytest.mark.parametrize(("make", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_cannot_be_is_refused_with_both_sides(make: Any, words: str) -> None:
    b = Builder()
    with pytest.raises(BuildError, match=words) as caught:
        make(b.input("x", (2, 4, 7, 7)), b.input("w", (6, 4, 3, 3)))
    assert "test_spatial.py" in str(caught.value)


@devices
def test_a_flow_has_them_all(device: str) -> None:
    class Block:
        name = "block"

        def emit_layer(self, ctx: FlowCtx, x: Any) -> Any:
            y = ctx.relu(ctx.conv(x, "down", strides=2, padding="same"))
            y = ctx.conv_transpose(y, "up", strides=2)
            return ctx.resize(ctx.max_pool(ctx.avg_pool(y, 2), 2, strides=1, padding=1), scale=2)

    rng = np.random.default_rng(0)
    weights = {"down.weight": rng.normal(size=(6, 3, 3, 3)), "down.bias": rng.normal(size=6), "up.weight": rng.normal(size=(6, 2, 2, 2))}
    model = ModelFlow("m").input("x", (2, 3, 8, 8)).layer_stage(Block()).output("y").build({k: a.astype(np.float32) for k, a in weights.items()})
    y = compile(model.graph, model.params, device=device).run(rng.normal(size=(2, 3, 8, 8)).astype(np.float32))
    assert y.shape == (2, 2, 10, 10)
    assert np.isfinite(y).all()
