"""GGUF models under Hugging Face names and settings: ggml's own name table and converter rule as oracles."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.tensor_mapping import get_tensor_name_map
from weights_samples import is_mapped, write_gguf

from rlxpy.errors import LoadError
from rlxpy.flow.weights import as_stored, huggingface_view, model_config, open_weights, unpermute_rope_rows
from rlxpy.ir.dtypes import Array
from rlxpy.ir.quantize import quantize

RNG = np.random.default_rng(9)
SIX = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(("heads", "head_dim", "rest"), [(2, 4, (1,)), (3, 6, (5,)), (1, 2, (2, 3)), (5, 64, ())])
def test_rope_rows_return_from_pairs_to_halves(heads: int, head_dim: int, rest: tuple[int, ...]) -> None:
    """Per head, row j of the first half is stored at 2j and row j of the second half at 2j + 1."""
    plain = RNG.integers(0, 256, (heads * head_dim, *rest), dtype=np.uint8)
    stored = np.empty_like(plain)
    for h in range(heads):
        for j in range(head_dim // 2):
            stored[h * head_dim + 2 * j] = plain[h * head_dim + j]
            stored[h * head_dim + 2 * j + 1] = plain[h * head_dim + head_dim // 2 + j]
    assert np.array_equal(unpermute_rope_rows(stored, heads), plain)
    assert np.array_equal(unpermute_rope_rows(np.asfortranarray(stored), heads), plain)


def test_keys_are_put_back_by_their_own_head_count() -> None:
    stored = np.array([0, 2, 1, 3, 4, 6, 5, 7])
    assert unpermute_rope_rows(stored, 2).tolist() == [*range(8)]
    assert unpermute_rope_rows(stored, 4).tolist() != [*range(8)]
    for heads in (0, 3, 8):
        with pytest.raises(LoadError, match=f"8 rows for {heads} heads"):
            unpermute_rope_rows(stored, heads)


LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN = 2, 32, 4, 2, 48
DECODER_LAYER = {
    "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,), "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH // 2, WIDTH),
    "self_attn.v_proj": (WIDTH // 2, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH), "self_attn.q_norm": (8,), "self_attn.k_norm": (8,),
    "mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH), "mlp.down_proj": (WIDTH, HIDDEN),
}
DECODER = {"model.embed_tokens": (11, WIDTH), "model.norm": (WIDTH,), "lm_head": (11, WIDTH)}
BERT_LAYER = {
    "attention.self.query": (WIDTH, WIDTH), "attention.self.key": (WIDTH, WIDTH), "attention.self.value": (WIDTH, WIDTH),
    "attention.output.dense": (WIDTH, WIDTH), "attention.output.LayerNorm": (WIDTH,), "intermediate.dense": (HIDDEN, WIDTH),
    "output.dense": (WIDTH, HIDDEN), "output.LayerNorm": (WIDTH,),
}
BERT = {
    "embeddings.word_embeddings": (11, WIDTH), "embeddings.position_embeddings": (16, WIDTH), "embeddings.token_type_embeddings": (2, WIDTH),
    "embeddings.LayerNorm": (WIDTH,),
}


def stems(architecture: str) -> dict[str, tuple[int, ...]]:
    outer, prefix, inner = (BERT, "encoder.layer", BERT_LAYER) if architecture == "bert" else (DECODER, "model.layers", DECODER_LAYER)
    layers = {f"{prefix}.{i}.{stem}": shape for i in range(LAYERS) for stem, shape in inner.items()}
    qwen3_only = (".q_norm", ".k_norm")
    return {stem: shape for stem, shape in {**outer, **layers}.items() if architecture == "qwen3" or not stem.endswith(qwen3_only)}


def settings(architecture: str, **more: Any) -> dict[str, Any]:
    keys = {
        "block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": HIDDEN, "context_length": 16, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5, **more,
    }
    return {f"{architecture}.{key}": value for key, value in keys.items() if value is not None}


def pairs(rows: Array, heads: int) -> Array:
    """What ggml's converter does to a llama's query and key rows."""
    half = len(rows) // heads // 2
    order = [h * 2 * half + i * half + j for h in range(heads) for j in range(half) for i in range(2)]
    return rows[order]


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, Array]]]:
    """Writes a GGUF file under ggml's names; returns it with the tensors under Hugging Face's."""

    def write(architecture: str, **more: Any) -> tuple[Path, dict[str, Array]]:
        name_of = get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], LAYERS)
        original, stored = {}, {}
        for stem, shape in stems(architecture).items():
            array = original[f"{stem}.weight"] = RNG.standard_normal(shape).astype(np.float32)
            rotated = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(stem.rpartition(".")[2]) if architecture == "llama" else None
            name = name_of.get_name(stem)
            assert name is not None
            stored[f"{name}.weight"] = pairs(array, rotated) if rotated else array
        path = tmp_path / f"{architecture}.gguf"
        write_gguf(path, architecture, stored, settings(architecture, **more))
        return path, original

    return write


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "bert"])
def test_a_gguf_model_gets_its_tensors_back(architecture: str, model: Callable[..., tuple[Path, dict[str, Array]]]) -> None:
    path, original = model(architecture)
    view = huggingface_view(open_weights(path))
    assert set(view.names()) == set(original)
    for name, array in original.items():
        assert view[name].shape == array.shape
        assert np.array_equal(view[name].array(), array), name
        copied = architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight"))
        assert is_mapped(view[name].array()) is not copied
    assert model_config(view) == model_config(open_weights(path))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "bert"])
def test_a_gguf_models_tensors_as_they_lie(architecture: str, model: Callable[..., tuple[Path, dict[str, Array]]]) -> None:
    """No row is copied: the configuration says in which order they are."""
    path, original = model(architecture)
    view, config = as_stored(open_weights(path))
    assert set(view.names()) == set(original)
    assert all(is_mapped(view[name].array()) for name in original)
    assert config == model_config(open_weights(path)) | {"rope_style": "interleaved" if architecture == "llama" else "half"}
    for name, array in original.items():
        turned = architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight"))
        heads = config["num_key_value_heads" if "k_proj" in name else "num_attention_heads"]
        assert np.array_equal(view[name].array(), pairs(array, heads) if turned else array), name


def test_packed_rows_move_whole(tmp_path: Path) -> None:
    rows = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    (plain,), (stored,) = quantize(rows, "q4_0"), quantize(pairs(rows, HEADS), "q4_0")
    bias = np.arange(WIDTH, dtype=np.float32)
    tensors = {
        "token_embd.weight": rows, "blk.1.attn_q.weight": (stored, "Q4_0"), "blk.1.attn_q.bias": pairs(bias, HEADS), "blk.1.attn_v.bias": bias,
    }
    write_gguf(tmp_path / "a.gguf", "llama", tensors, settings("llama"))
    view = huggingface_view(open_weights(tmp_path / "a.gguf"))
    weight = view["model.layers.1.self_attn.q_proj.weight"]
    assert (weight.encoding, weight.shape) == ("q4_0", (WIDTH, WIDTH))
    for _ in range(2):
        assert np.array_equal(weight.array(), plain)
    assert not weight.array().flags.writeable
    assert np.array_equal(view["model.layers.1.self_attn.q_proj.bias"].array(), bias)
    assert np.array_equal(view["model.layers.1.self_attn.v_proj.bias"].array(), bias)


def test_settings_under_hugging_faces_keys(model: Callable[..., tuple[Path, dict[str, Array]]]) -> None:
    path, _ = model("llama", **{"rope.freq_base": 500000.0, "attention.sliding_window": 8, "vocab_size": 11, "rope.dimension_count": 8})
    assert model_config(open_weights(path)) == {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": LAYERS, "hidden_size": WIDTH,
        "intermediate_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": 16, "sliding_window": 8, "vocab_size": 11, "tie_word_embeddings": False,
    }


@pytest.mark.parametrize(("keys", "config"), [
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    (
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 8},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}},
    ),
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    ({"rope.dimension_count": 4}, {"partial_rotary_factor": 0.5}),
    ({"attention.key_length": 16, "attention.head_count_kv": None}, {"head_dim": 16, "num_key_value_heads": HEADS}),
])
def test_settings_that_change_others(keys: Any, config: dict[str, Any], tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen2", {"token_embd.weight": SIX}, settings("qwen2", **keys))
    found = model_config(open_weights(tmp_path / "a.gguf"))
    default = {"rope_scaling": None, "partial_rotary_factor": None, "head_dim": 8, "num_key_value_heads": KV_HEADS}
    assert {key: found.get(key) for key in default} == {**default, **config}
    assert (found["rope_theta"], found["vocab_size"], found["tie_word_embeddings"]) == (10000.0, 2, True)


def test_rope_divisors_stay_reachable(tmp_path: Path) -> None:
    divisors = np.array([1, 2, 4, 8], np.float32)
    write_gguf(tmp_path / "a.gguf", "llama", {"token_embd.weight": SIX, "rope_freqs.weight": divisors}, settings("llama"))
    view = huggingface_view(open_weights(tmp_path / "a.gguf"))
    scaling = model_config(view)["rope_scaling"]
    assert scaling == {"rope_type": "freq_factors", "tensor": "rope_freqs.weight"}
    assert np.array_equal(view[scaling["tensor"]].array(), divisors)


@pytest.mark.parametrize(("keys", "message"), [
    ({"block_count": None, "context_length": None}, r"does not give max_position_embeddings, num_hidden_layers"),
    ({"attention.head_count": 0}, r"llama.attention.head_count is 0(.|\n)*a positive number"),
    ({"feed_forward_length": [3, 4]}, r"llama.feed_forward_length is \[3, 4\]"),
    ({"embedding_length": "wide"}, r"llama.embedding_length is wide"),
    ({"attention.head_count_kv": True}, r"llama.attention.head_count_kv is True"),
    ({"attention.head_count": 64}, r"64 heads(.|\n)*hidden_size is 32"),
    ({"rope.freq_base": "fast"}, r"llama.rope.freq_base is fast"),
])
def test_settings_that_make_no_model(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", {"token_embd.weight": SIX}, settings("llama", **keys))
    with pytest.raises(LoadError, match=message):
        model_config(open_weights(tmp_path / "a.gguf"))
    with pytest.raises(LoadError, match=message):
        huggingface_view(open_weights(tmp_path / "a.gguf"))


def test_architectures_and_tensors_without_a_name_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "mamba", {"token_embd.weight": SIX})
    for ask in (huggingface_view, model_config):
        with pytest.raises(LoadError, match=r"architecture 'mamba'(.|\n)*supported are llama, qwen2, qwen3, bert"):
            ask(open_weights(tmp_path / "a.gguf"))
    with pytest.raises(LoadError, match="architecture None"):
        huggingface_view(open_weights({"a": SIX}))
    for name in ("blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "strange", "token_embd_norm.weight"):
        write_gguf(tmp_path / "b.gguf", "llama", {"token_embd.weight": SIX, name: SIX}, settings("llama"))
        with pytest.raises(LoadError, match=f"tensor '{name}' has no Hugging Face name in LlamaForCausalLM"):
            huggingface_view(open_weights(tmp_path / "b.gguf"))


def test_a_real_model_under_hugging_face_names(smollm2_gguf: Path) -> None:
    source = open_weights(smollm2_gguf)
    view = huggingface_view(source)
    config = model_config(source)
    assert config["tie_word_embeddings"]
    assert {k: config[k] for k in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rope_theta")} == {
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "rope_theta": 100000.0,
    }
    assert len(view.names()) == len(source.names()) == 272
    keys, stored = view["model.layers.29.self_attn.k_proj.weight"], source["blk.29.attn_k.weight"].array()
    assert (keys.shape, keys.encoding) == ((192, 576), "q4_1")
    order = [h * 64 + 2 * (j % 32) + j // 32 for h in range(3) for j in range(64)]
    assert np.array_equal(keys.array(), stored[order])
    assert np.array_equal(view["model.embed_tokens.weight"].array()[-3:], source["token_embd.weight"].array()[-3:])
