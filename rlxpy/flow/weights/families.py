"""What GGUF calls the tensors and settings of an architecture, and what Hugging Face calls them: one row per architecture."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.flow.weights.source import WeightSource
from rlxpy.frozen import dataclass

ARCHITECTURE = "general.architecture"


@dataclass(frozen=True)
class Family:
    """How one GGUF architecture maps.  names, layers: GGUF stem to Hugging Face stem, outside and inside `blk.N`; keys: metadata key
    below the architecture's to config key; fixed: what the architecture implies; permuted: layer stems with rope rows in pairs."""

    model_class: str
    names: Mapping[str, str]
    layer: str
    layers: Mapping[str, str]
    keys: Mapping[str, str]
    fixed: Mapping[str, Any]
    permuted: tuple[str, ...] = ()


COMMON_KEYS = {
    "block_count": "num_hidden_layers", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "context_length": "max_position_embeddings",
}
REQUIRED = frozenset(COMMON_KEYS.values())
DECODER_KEYS = {
    **COMMON_KEYS, "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta", "attention.sliding_window": "sliding_window",
    "vocab_size": "vocab_size", "rope.dimension_count": "rotary_dim",
}
ROPE_SCALING_KEYS = {
    "rope.scaling.factor": "factor", "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor", "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
}
TOKEN_KEYS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id", "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id", "tokenizer.ggml.token_type_count": "type_vocab_size",
}
DECODER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "rope_freqs": "rope_freqs"}
DECODER_LAYERS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
BERT_NAMES = {
    "token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm",
}
BERT_LAYERS = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
}


def _decoder(model_class: str, permuted: tuple[str, ...] = ()) -> Family:
    fixed = {"hidden_act": "silu", "rope_theta": 10000.0}
    return Family(model_class, DECODER_NAMES, "model.layers", DECODER_LAYERS, DECODER_KEYS, fixed, permuted)


FAMILIES = {
    "llama": _decoder("LlamaForCausalLM", ("attn_q", "attn_k")),  # Mistral models are stored under this name too
    "qwen2": _decoder("Qwen2ForCausalLM"),
    "qwen3": _decoder("Qwen3ForCausalLM"),
    "bert": Family(
        "BertModel", BERT_NAMES, "encoder.layer", BERT_LAYERS,
        {**COMMON_KEYS, "attention.layer_norm_epsilon": "layer_norm_eps"}, {"hidden_act": "gelu"},
    ),
}


def family_of(source: WeightSource) -> Family:
    """The row of a GGUF source.  Raises LoadError naming the architecture and those that have one."""
    name = source.metadata.get(ARCHITECTURE)
    if name not in FAMILIES:
        raise LoadError(
            f"architecture {name!r} has no table of Hugging Face names", where=str(source.path), why=f"supported are {', '.join(FAMILIES)}",
            fix="read the tensors under their own names, or add a Family",
        )
    return FAMILIES[name]
