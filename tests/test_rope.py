"""Rotary positions (arXiv:2104.09864): the two pairings, scaled frequencies, far positions, against complex numbers and published rules."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlxpy
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.options import CompileOptions
from rlxpy.errors import BuildError, LoadError
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.flow.rope import frequencies
from rlxpy.flow.weights import WeightSource, open_weights
from rlxpy.ir.builder import Value
from rlxpy.ir.dims import sym
from rlxpy.ir.dtypes import Array, DType

NOTHING = open_weights({})


class Turn:
    """x [b, h, t, d] turned by `position` [t], with given frequencies or those of theta."""

    name = "turn"

    def __init__(self, freq: Array | None = None, **attrs: Any) -> None:
        self.freq, self.attrs = freq, attrs

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        return ctx.rope(x, ctx.input("position"), None if self.freq is None else ctx.constant(self.freq), **self.attrs)


def turner(width: int, freq: Array | None = None, *, dtype: DType = DType.F32, **attrs: Any) -> CompiledGraph:
    flow = ModelFlow("rope").input("x", (2, 3, sym("T", 0, 8), width), dtype).input("position", (sym("T", 0, 8),), DType.I64)
    graph = flow.layer_stage(Turn(freq, **attrs)).build().graph
    return rlxpy.compile(graph, options=CompileOptions(debug=True))


def turned(x: Array, position: Array, freq: Array, style: str) -> Array:
    """Pairs are complex numbers; turning is a product.  f64."""
    half = len(freq)
    first, second = (slice(0, half), slice(half, 2 * half)) if style == "half" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    z = (x[..., first] + 1j * x[..., second].astype(np.float64)) * np.exp(1j * position[:, None] * freq)
    out = x.astype(np.float64)
    out[..., first], out[..., second] = z.real, z.imag
    return out


@pytest.mark.parametrize(("style", "wanted"), [
    ("half", [-1.984111, 1.959901, 2.462378, 4.019800]), ("interleaved", [-1.142640, 1.922076, 2.959851, 4.029800]),
])
def test_the_two_pairings(style: str, wanted: list[float]) -> None:
    x = np.broadcast_to(np.array([1, 2, 3, 4], np.float32), (2, 3, 2, 4))
    got = turner(4, style=style).run(x, np.array([0, 1]))
    np.testing.assert_array_equal(got[:, :, 0], x[:, :, 0])
    np.testing.assert_allclose(got[:, :, 1], np.broadcast_to(wanted, (2, 3, 4)), atol=2e-6)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("width", "dims"), [(6, 0), (7, 4), (10, 10), (4, 2)])
@pytest.mark.parametrize("theta", [10_000.0, 17.0])
def test_pairs_turn_by_their_own_speed_and_the_rest_stays(style: str, width: int, dims: int, theta: float) -> None:
    x = np.random.default_rng(1).normal(size=(2, 5, 3, width)).astype(np.float32).swapaxes(1, 2)  # not contiguous
    position = np.array([3, 0, 11, 11, 500])
    count = (dims or width) // 2
    wanted = turned(x, position, theta ** (-np.arange(count) / count), style)
    graph = turner(width, style=style, dims=dims, theta=theta)
    for _ in range(2):
        got = graph.run(x, position)
        np.testing.assert_allclose(got, wanted, atol=2e-6)
    np.testing.assert_array_equal(got[..., 2 * count:], x[..., 2 * count:])
    assert graph.run(x[:, :, :0], position[:0]).shape == (2, 3, 0, width)


def test_given_frequencies_replace_theta() -> None:
    freq = np.array([0.5, 2.0, 0.001])
    x = np.random.default_rng(2).normal(size=(2, 3, 4, 6)).astype(np.float32)
    position = np.array([0, 1, 2, 40])
    np.testing.assert_allclose(turner(6, freq).run(x, position), turned(x, position, freq, "half"), atol=2e-6)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_far_positions_keep_their_digits(dtype: DType) -> None:
    """An f32 angle of 1,048,575 radians is off by up to 0.03."""
    x = np.random.default_rng(3).normal(size=(2, 3, 1, 4)).astype(dtype.numpy)
    position = np.array([(1 << 20) - 1])
    got = turner(4, dtype=dtype).run(x, position)
    np.testing.assert_allclose(got, turned(x, position, np.array([1.0, 0.01]), "half"), atol=1e-6 if dtype is DType.F32 else 1e-9)


def test_products_of_turned_pairs_depend_on_the_distance_alone() -> None:
    q, k = np.random.default_rng(4).normal(size=(2, 2, 3, 1, 8)).astype(np.float32)
    graph = turner(8)
    scores = [(graph.run(q, np.array([p + 5])) * graph.run(k, np.array([p]))).sum(-1) for p in (0, 1, 77)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)
    np.testing.assert_allclose(scores[2], scores[0], atol=1e-5)


# ---- scaled frequencies

def scaled(dims: int, theta: float, scaling: dict[str, Any], weights: WeightSource = NOTHING) -> Array:
    found = frequencies(dims, theta, scaling, weights)
    assert found is not None
    return found


def test_no_scaling_is_theta_alone() -> None:
    assert frequencies(8, 10_000.0, {}, NOTHING) is None
    assert frequencies(8, 10_000.0, {"rope_type": "default", "factor": 3.0}, NOTHING) is None


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_linear_scaling_divides_positions(key: str) -> None:
    found = scaled(6, 100.0, {key: "linear", "factor": 4.0})
    np.testing.assert_allclose(found, np.array([1, 100 ** (-1 / 3), 100 ** (-2 / 3)]) / 4)


def test_llama3_slows_long_waves_keeps_short_ones_and_blends_between() -> None:
    """Llama 3.1's numbers: theta 500000, head_dim 128, factor 8, wavelengths 2048 and 8192 as edges."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    found = scaled(128, 500_000.0, scaling)
    base = 500_000.0 ** (-np.arange(64) / 64)
    wave = 2 * np.pi / base
    np.testing.assert_allclose(found[wave < 2048], base[wave < 2048], rtol=1e-14)
    np.testing.assert_allclose(found[wave > 8192], base[wave > 8192] / 8, rtol=1e-14)
    between = (wave > 2048) & (wave < 8192)
    assert between.sum() == 6
    smooth = (8192 / wave[between] - 1) / 3
    np.testing.assert_allclose(found[between], (1 - smooth) * base[between] / 8 + smooth * base[between], rtol=1e-14)
    assert (np.diff(found) < 0).all()


def test_factors_come_from_a_tensor() -> None:
    weights = open_weights({"rope_freqs.weight": np.array([1, 4, 32], np.float32)})
    found = scaled(6, 100.0, {"rope_type": "freq_factors", "tensor": "rope_freqs.weight"}, weights)
    np.testing.assert_allclose(found, [1, 100 ** (-1 / 3) / 4, 100 ** (-2 / 3) / 32], rtol=1e-14)


@pytest.mark.parametrize(("scaling", "message"), [
    ({"rope_type": "longrope", "factor": 2.0}, "'longrope' is not supported(.|\n)*linear, llama3, freq_factors"),
    ({"rope_type": 3}, "rope_type is 3"),
    ({"rope_type": "linear", "factor": "two"}, "factor is 'two'"),
    ({"rope_type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}, "has no low_freq_factor"),
    ({"rope_type": "freq_factors", "tensor": "nowhere"}, "no weight 'nowhere'"),
])
def test_scalings_that_cannot_be(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        frequencies(8, 10_000.0, scaling, NOTHING)


@pytest.mark.parametrize(("attrs", "freq", "message"), [
    ({"style": "whole"}, None, "rope style 'whole'"), ({"dims": 3}, None, "rope over 3 of 6"), ({"dims": 8}, None, "rope over 8 of 6"),
    ({}, np.ones(2), "there must be 3"),
])
def test_turns_that_cannot_be(attrs: dict[str, Any], freq: Array | None, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        turner(6, freq, **attrs)
