"""Rope frequencies of scaled models: what config.json's rope_scaling and GGUF's factors mean."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from typing import Any

import numpy as np

from rlxpy.errors import LoadError
from rlxpy.flow.weights import WeightSource
from rlxpy.ir.dtypes import Array
from rlxpy.ir.refs import rope_frequencies


def frequencies(dims: int, theta: float, scaling: Mapping[str, Any], weights: WeightSource) -> Array | None:
    """f64 [dims / 2], radians a position; None when theta alone says it.  Raises LoadError for a scaling we do not know."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not scaling or kind == "default":
        return None
    if kind not in SCALINGS:
        raise LoadError(f"rope scaling {kind!r} is not supported", why=f"supported are {', '.join(SCALINGS)}", fix="use a model without it")
    return SCALINGS[kind](rope_frequencies(dims // 2, theta), scaling, weights)


def _linear(base: Array, scaling: Mapping[str, Any], weights: WeightSource) -> Array:
    return np.asarray(base / scaling["factor"])


def _llama3(base: Array, scaling: Mapping[str, Any], weights: WeightSource) -> Array:
    """Long waves are slowed by `factor`, short ones kept, those between blended.  Llama 3.1's config.json."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * base / (2 * pi)  # full turns within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(base * (blend + (1 - blend) / scaling["factor"]))


def _factors(base: Array, scaling: Mapping[str, Any], weights: WeightSource) -> Array:
    return np.asarray(base / weights[scaling["tensor"]].array().astype(np.float64))


SCALINGS: dict[str, Callable[[Array, Mapping[str, Any], WeightSource], Array]] = {"linear": _linear, "llama3": _llama3, "freq_factors": _factors}
