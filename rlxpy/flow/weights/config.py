"""The configuration of a model under Hugging Face's keys, from a GGUF file or from config.json."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlxpy.errors import LoadError
from rlxpy.flow.weights.families import ARCHITECTURE, REQUIRED, ROPE_SCALING_KEYS, TOKEN_KEYS, Family, family_of
from rlxpy.flow.weights.source import WeightSource


def model_config(source: WeightSource) -> dict[str, Any]:
    """Hugging Face's config.json of a model: from GGUF metadata, or the folder's own with its defaults filled in.

    Always there: model_type, tie_word_embeddings (true when no output matrix is stored), and where heads are given num_key_value_heads and
    head_dim.  rope_scaling is there only when rope is scaled; its rope_type "freq_factors" names a tensor of divisors.  Raises LoadError
    for a GGUF architecture without a table, a setting that is missing or no number, and a source that does not say what it is."""
    config = _from_gguf(source) if ARCHITECTURE in source.metadata else _from_config(source)
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        config["num_key_value_heads"] = config.get("num_key_value_heads") or heads
        config["head_dim"] = config.get("head_dim") or width // heads
    config["tie_word_embeddings"] = not any(name in source for name in ("output.weight", "lm_head.weight"))
    return config


def _from_config(source: WeightSource) -> dict[str, Any]:
    config = dict(source.metadata)
    if not isinstance(config.get("model_type"), str):
        raise LoadError(
            f"{source.path or 'the mapping'} does not say what model it is", why="it has neither model_type nor general.architecture",
            fix="open the folder that has config.json, or a GGUF file",
        )
    rope = config.get("rope_parameters")  # transformers 5 keeps theta and scaling together
    if isinstance(rope, dict) and "rope_type" in rope:
        config.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
        if rope["rope_type"] != "default":
            config.setdefault("rope_scaling", {k: v for k, v in rope.items() if k != "rope_theta"})
    if config.get("rope_scaling") is None:
        config.pop("rope_scaling", None)
    return config


def _from_gguf(source: WeightSource) -> dict[str, Any]:
    family, architecture = family_of(source), source.metadata[ARCHITECTURE]
    config = {"model_type": architecture, "architectures": [family.model_class], **family.fixed}
    config |= _numbers(source, {f"{architecture}.{key}": name for key, name in family.keys.items()} | TOKEN_KEYS)
    missing = REQUIRED - config.keys()
    if missing:
        raise LoadError(f"{source.path} does not give {', '.join(sorted(missing))}", fix="convert the model again")
    if config["hidden_size"] < config["num_attention_heads"]:
        raise LoadError(f"{source.path}: {config['num_attention_heads']} heads", why=f"hidden_size is {config['hidden_size']}")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rotary_dim = config.pop("rotary_dim", head_dim)
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    config.setdefault("vocab_size", _vocabulary(source, family))
    rope_type = source.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if "rope_freqs.weight" in source:
        config["rope_scaling"] = {"rope_type": "freq_factors", "tensor": "rope_freqs.weight"}
    elif rope_type != "none":
        scaling = _numbers(source, {f"{architecture}.{key}": name for key, name in ROPE_SCALING_KEYS.items()})
        config["rope_scaling"] = {"rope_type": rope_type, **scaling}
    return config


def _numbers(source: WeightSource, keys: Mapping[str, str]) -> dict[str, int | float]:
    """Values of the keys that are there, renamed."""
    found = {key: source.metadata[key] for key in keys if key in source.metadata}
    for key, value in found.items():
        if type(value) not in (int, float) or value < (keys[key] in REQUIRED):
            needed = "a positive number" if keys[key] in REQUIRED else "a number, not negative,"
            raise LoadError(f"{key} is {str(value)[:60]}", where=str(source.path), why=f"{needed} is needed")
    return {keys[key]: _shortest(value) if isinstance(value, float) else value for key, value in found.items()}


def _shortest(value: float) -> float:
    """GGUF floats are f32: the shortest decimal that is the same f32 (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _vocabulary(source: WeightSource, family: Family) -> int:
    if tokens := source.metadata.get("tokenizer.ggml.tokens"):
        return len(tokens)
    renamed = f"{family.names['token_embd']}.weight"
    return source[renamed if renamed in source else "token_embd.weight"].shape[0]
