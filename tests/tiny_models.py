"""Tiny random models of every family, written as people find them: Hugging Face folders and GGUF files, with a small tokeniser."""
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from weights_samples import write_gguf

from rlxpy.ir.dtypes import Array

Config = dict[str, Any]
Weights = dict[str, Array]

# Byte-level BPE over printable ASCII (a space is written so) and the two bytes of "é"; three merges; two marks.
SPACE = "\u0120"
BYTES = [SPACE, *map(chr, range(0x21, 0x7F)), "\u00c3", "\u00a9"]
MERGES = [("t", "h"), ("th", "e"), (SPACE, "the")]
START, END = "<|start|>", "<|end|>"
TOKENS = [*BYTES, *("".join(m) for m in MERGES), START, END]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "mat", *"abcdefgh", *(f"##{c}" for c in "abcdefgh")]


# ---- what a model is

def decoder_config(model_type: str = "llama", **changes: Any) -> Config:
    """config.json of a decoder: odd sizes, grouped queries, heads whose width is not hidden_size / heads."""
    return {
        "model_type": model_type, "vocab_size": len(TOKENS), "hidden_size": 15, "intermediate_size": 21, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 40, "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0, "hidden_act": "silu", "tie_word_embeddings": True, **changes,
    }


def decoder_weights(config: Config, seed: int = 0) -> Weights:
    """Random, every norm and bias away from what would hide it; biases and q/k norms as the model type has them."""
    width, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,), "self_attn.q_proj.weight": (queries, width),
            "self_attn.k_proj.weight": (keys, width), "self_attn.v_proj.weight": (keys, width), "self_attn.o_proj.weight": (width, queries),
            "mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width), "mlp.down_proj.weight": (width, inner),
        }
        if config["model_type"] == "qwen2":
            layer |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,), "self_attn.v_proj.bias": (keys,)}
        if config["model_type"] == "qwen3":
            layer |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        shapes |= {f"model.layers.{i}.{stem}": shape for stem, shape in layer.items()}
    return _random(shapes, seed)


def bert_config(**changes: Any) -> Config:
    return {
        "model_type": "bert", "vocab_size": len(WORDS), "hidden_size": 12, "intermediate_size": 19, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 11, "layer_norm_eps": 1e-5, "hidden_act": "gelu", **changes,
    }


def bert_weights(config: Config, seed: int = 0) -> Weights:
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width), "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width), **_affine("embeddings.LayerNorm", width),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        square = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        dense = dict.fromkeys(square, (width, width)) | {"intermediate.dense": (inner, width), "output.dense": (width, inner)}
        for stem, (rows, columns) in dense.items():
            shapes |= {f"{layer}.{stem}.weight": (rows, columns), f"{layer}.{stem}.bias": (rows,)}
        shapes |= _affine(f"{layer}.attention.output.LayerNorm", width) | _affine(f"{layer}.output.LayerNorm", width)
    return _random(shapes, seed)


def _affine(stem: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(0, 1.5 / np.sqrt(shape[-1]), shape) if len(shape) > 1 else rng.uniform(0.3, 1.7, shape)).astype(np.float32)
            for name, shape in shapes.items()}


# ---- as a folder

def write_folder(folder: Path, config: Config, weights: Weights, shards: int = 1) -> Path:
    """config.json, weights in one file or in indexed shards (the reference implementation's writer), tokeniser."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        place = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(weights)}
        for file in sorted(set(place.values())):
            save_file({n: w for n, w in weights.items() if place[n] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    if config["model_type"] == "bert":
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    else:
        _byte_level().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return folder


def _byte_level() -> Tokenizer:
    engine = Tokenizer(models.BPE({t: i for i, t in enumerate(TOKENS)}, MERGES))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([START, END])
    return engine


# ---- as a GGUF file

SETTINGS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    "layer_norm_eps": "attention.layer_norm_epsilon", "sliding_window": "attention.sliding_window",
}
MARKS = {"eos_token_id": TOKENS.index(END)}


def write_model_gguf(path: Path, config: Config, weights: Weights, more: Mapping[str, Any] = {}, kind: str = "F32",
                     extra: Mapping[str, Array] = {}) -> Path:
    """As ggml's converter writes it.  kind: ggml type of the matrices; more: settings below the architecture's; extra: tensors as named."""
    architecture = "llama" if config["model_type"] == "mistral" else str(config["model_type"])
    name_of = get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"} if architecture == "llama" else {}
    tensors: dict[str, Any] = {}
    for name, array in weights.items():
        stem, _, end = name.rpartition(".")
        rotated = heads.get(stem.rpartition(".")[2])
        rows = neighbours(array, config[rotated]) if rotated else array
        packed = kind != "F32" and array.ndim == 2
        tensors[f"{name_of.get_name(stem)}.{end}"] = (gguf.quants.quantize(rows, gguf.GGMLQuantizationType[kind]), kind) if packed else rows
    settings = {f"{architecture}.{SETTINGS[k]}": v for k, v in config.items() if k in SETTINGS}
    settings |= {f"{architecture}.{k}": v for k, v in more.items()}
    settings |= {f"tokenizer.ggml.{k}": v for k, v in _vocabulary(architecture).items()}
    write_gguf(path, architecture, {**tensors, **extra}, settings)
    return path


def neighbours(rows: Array, heads: int) -> Array:
    """Rows of rotated halves, put so that the two of a pair are neighbours."""
    half = len(rows) // heads // 2
    return rows[[h * 2 * half + side * half + j for h in range(heads) for j in range(half) for side in range(2)]]


def _vocabulary(architecture: str) -> dict[str, Any]:
    if architecture == "bert":
        spelled = [w if w.startswith("[") else w.removeprefix("##") if w.startswith("##") else f"\u2581{w}" for w in WORDS]
        return {"model": "bert", "tokens": spelled, "token_type": [3 if w.startswith("[") else 1 for w in WORDS], "token_type_count": 2,
                "cls_token_id": WORDS.index("[CLS]"), "seperator_token_id": WORDS.index("[SEP]"), "unknown_token_id": WORDS.index("[UNK]")}
    return {"model": "gpt2", "pre": "gpt-2", "tokens": TOKENS, "merges": [" ".join(m) for m in MERGES],
            "token_type": [3 if t in (START, END) else 1 for t in TOKENS], **MARKS}
