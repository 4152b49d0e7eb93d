"""A GGUF source under Hugging Face names, its rows in Hugging Face order."""
from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.flow.weights.config import model_config
from rlxpy.flow.weights.families import Family, family_of
from rlxpy.flow.weights.source import WeightSource
from rlxpy.flow.weights.views import Renamed, unpermute_rope_rows
from rlxpy.ir.dtypes import Array


def huggingface_view(source: WeightSource) -> Renamed:
    """A GGUF source under its original's Hugging Face names, query and key rows in that order.  Only those rows are copied, when read.

    `rope_freqs.weight` (divisors of the rope frequencies, [head_dim / 2]) has no counterpart and keeps its name.  Raises LoadError for an
    architecture without a table and for a tensor that its table lacks."""
    family = family_of(source)
    config = model_config(source)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    names = {old: _renamed(old, family) for old in source.names()}
    changed: dict[str, Callable[[Array], Array]] = {new: partial(unpermute_rope_rows, heads=heads[stem]) for new, stem in names.values() if stem in family.permuted}
    return Renamed(source, {new: old for old, (new, _) in names.items()}, changed)


def as_stored(source: WeightSource) -> tuple[Renamed, dict[str, Any]]:
    """A GGUF source under the same names with every row where the file has it, so that none is copied, and the configuration, which then says how
    the channels of a head pair up: "rope_style" is Rope's.  Raises what `huggingface_view` raises."""
    view = huggingface_view(source)
    return Renamed(source, view.mapping), model_config(source) | {"rope_style": "interleaved" if view.changed else "half"}


def _renamed(old: str, family: Family) -> tuple[str, str]:
    """Hugging Face name, and the stem within its layer ("" outside layers)."""
    stem, _, end = old.rpartition(".")
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        if match[2] in family.layers:
            return f"{family.layer}.{match[1]}.{family.layers[match[2]]}.{end}", match[2]
    elif stem in family.names:
        return f"{family.names[stem]}.{end}", ""
    raise LoadError(f"tensor {old!r} has no Hugging Face name in {family.model_class}", fix="read the tensors under their own names")
