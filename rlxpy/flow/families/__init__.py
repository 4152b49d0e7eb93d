"""Model families as flows: which there are, and the flow of a configuration."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.flow.families.bert import BertConfig, bert, joined_bert
from rlxpy.flow.families.llama import LlamaConfig, llama

DECODERS = ("llama", "mistral", "qwen2", "qwen3")
ENCODERS = ("bert",)

__all__ = ["DECODERS", "ENCODERS", "BertConfig", "LlamaConfig", "bert", "check_supported", "joined_bert", "llama"]


def check_supported(config: Mapping[str, Any], wanted: tuple[str, ...], where: str = "") -> str:
    """The model type.  Raises LoadError naming what is supported, and what is there instead."""
    kind = str(config.get("model_type"))
    if kind not in wanted:
        other = "it turns text into embeddings: rlx embed" if kind in ENCODERS else "it generates text: rlx run" if kind in DECODERS else ""
        raise LoadError(f"model type {kind!r} is not supported here", where=where, why=f"supported are {', '.join(wanted)}", fix=other or "write its flow: docs/add_a_block.md")
    return kind
