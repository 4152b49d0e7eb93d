"""Weights: where they come from, and under which names."""
from __future__ import annotations

from rlxpy.flow.weights.config import model_config
from rlxpy.flow.weights.door import open_weights
from rlxpy.flow.weights.huggingface import as_stored, huggingface_view
from rlxpy.flow.weights.safetensors import save_safetensors
from rlxpy.flow.weights.source import Weight, WeightSource, packed
from rlxpy.flow.weights.views import Renamed, Rounded, unpermute_rope_rows

__all__ = [
    "Renamed", "Rounded", "Weight", "WeightSource", "as_stored", "huggingface_view", "model_config", "open_weights", "packed", "save_safetensors",
    "unpermute_rope_rows",
]
