"""Rope frequencies of scaled models: what config.json's rope_scaling and GGUF's factors mean."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from typing import Any

import numpy as np

from rlxpy.errors import LoadError
from rlxpy.flow.config import Settings
from rlxpy.flow.weights import WeightSource
from rlxpy.ir.attention import rope_frequencies
from rlxpy.ir.dtypes import Array


def frequencies(dims: int, theta: float, scaling: Mapping[str, Any], weights: WeightSource) -> Array | None:
    """f64 [dims / 2], radians a position; None when theta alone says it.  Raises LoadError for a scaling we do not know."""
    read = Settings(scaling, "rope_scaling")
    kind = read.text("rope_type", read.text("type", "default"))
    if kind == "default":
        return None
    if kind not in SCALINGS:
        raise LoadError(f"rope scaling {kind!r} is not supported", why=f"supported are {', '.join(SCALINGS)}", fix="use a model without it")
    return SCALINGS[kind](rope_frequencies(dims // 2, theta), read, weights)


def _linear(base: Array, read: Settings, weights: WeightSource) -> Array:
    return np.asarray(base / read.number("factor"))


def _llama3(base: Array, read: Settings, weights: WeightSource) -> Array:
    """Long waves are slowed by `factor`, short ones kept, those between blended.  Llama 3.1's config.json."""
    low, high = read.number("low_freq_factor"), read.number("high_freq_factor")
    if low >= high:
        raise LoadError("rope_scaling cannot blend", why=f"low_freq_factor {low} is not below high_freq_factor {high}")
    turns = read.number("original_max_position_embeddings") * base / (2 * pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(base * (blend + (1 - blend) / read.number("factor")))


def _factors(base: Array, read: Settings, weights: WeightSource) -> Array:
    stored = weights[read.text("tensor")]
    divisors = stored.array().astype(np.float64)
    if divisors.shape != base.shape or not (divisors > 0).all():
        raise LoadError(f"{stored.name} {divisors.shape} holds no rope divisors", why=f"{len(base)} numbers above 0 are needed")
    return np.asarray(base / divisors)


SCALINGS: dict[str, Callable[[Array, Settings, WeightSource], Array]] = {"linear": _linear, "llama3": _llama3, "freq_factors": _factors}
