"""Weights by one door: mappings, archives, folders and views; Hugging Face names and settings of GGUF files."""
from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file, save_file
from weights_samples import bounded, is_mapped, safetensors_bytes, source_arrays, write_gguf

from rlxpy.errors import BuildError, LoadError
from rlxpy.flow.weights import Renamed, huggingface_view, model_config, open_weights, packed, save_safetensors, unpermute_rope_rows
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.quantize import quantize

RNG = np.random.default_rng(9)
SIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---- mappings
def test_a_mapping_is_a_source() -> None:
    source = open_weights({"a": SIX.T, "n": 3, "none": np.zeros((0, 2), np.int8)})
    assert source.names() == ["a", "n", "none"]
    assert "a" in source
    assert "b" not in source
    assert (source.path, dict(source.metadata)) == (None, {})
    weight = source["a"]
    assert (weight.name, weight.shape, weight.dtype, weight.encoding, weight.nbytes) == ("a", (3, 2), DType.F32, None, 24)
    assert np.shares_memory(weight.array(), SIX)
    assert not weight.array().flags.writeable
    assert SIX.flags.writeable
    assert source["n"].shape == ()
    source.close()


def test_packed_weights_go_into_a_mapping() -> None:
    (data,) = quantize(RNG.standard_normal((3, 64)), "q4_1")
    weight = open_weights({"w": packed("w", (3, 64), "q4_1", data)})["w"]
    assert (weight.shape, weight.dtype, weight.encoding, weight.nbytes) == ((3, 64), DType.F32, "q4_1", 120)
    assert np.array_equal(weight.array(), data)
    with pytest.raises(LoadError, match=r"w: uint8 \(3, 40\)(.|\n)*q4_1 stores \(4, 64\) in 1 plane as uint8 \(4, 40\)"):
        packed("w", (4, 64), "q4_1", data)
    with pytest.raises(BuildError, match="q4_1 cannot hold rows of 33"):
        packed("w", (3, 33), "q4_1", data)


def test_an_unknown_name_gets_the_nearest() -> None:
    source = open_weights({"layers.0.weight": SIX, "layers.0.bias": SIX})
    with pytest.raises(LoadError, match=r"no weight 'layers.0.wieght'(.|\n)*of 2 the nearest are: layers.0.weight"):
        source["layers.0.wieght"]


@pytest.mark.parametrize("value", [np.array([None]), np.array(["a"]), np.zeros(2, [("x", "f4")])])
def test_arrays_of_other_things_are_refused(value: Array) -> None:
    with pytest.raises(LoadError, match="a holds"):
        open_weights({"a": value})


# ---- .npz
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save: Callable[..., None], tmp_path: Path) -> None:
    arrays = {"six": SIX, "fortran": np.asfortranarray(SIX), "big": np.arange(5, dtype=">i8"), "none": np.zeros((0, 3)), "one": np.array(True)}
    save(tmp_path / "w.npz", **arrays)
    source = open_weights(tmp_path / "w.npz")
    assert source.names() == list(arrays)
    for _ in range(2):
        for name, array in arrays.items():
            weight = source[name]
            assert (weight.shape, weight.nbytes) == (array.shape, array.nbytes)
            assert weight.array().dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(weight.array(), array)
    source.close()
    with pytest.raises(LoadError, match=r"six in .*w.npz cannot be read"):
        source["six"]


class Trap:
    """Unpickling this would leave a mark."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["RLXPY_TRAP"],)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLXPY_TRAP", str(tmp_path / "sprung"))
    np.savez(tmp_path / "w.npz", good=SIX, bad=np.array([Trap()], object))
    source = open_weights(tmp_path / "w.npz")
    assert np.array_equal(source["good"].array(), SIX)
    with pytest.raises(LoadError, match=r"bad in .* holds Python objects(.|\n)*unpickling"):
        source["bad"]
    (tmp_path / "w.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(LoadError, match=r"w.bin is a Python pickle"):
        open_weights(tmp_path / "w.bin")
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps(Trap()))
    with pytest.raises(LoadError, match=r"model.pt is no .npz archive(.|\n)*data.pkl(.|\n)*PyTorch files are pickles"):
        open_weights(tmp_path / "model.pt")
    assert not (tmp_path / "sprung").exists()


def npy(shape: str, data: bytes, descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize("entry", [
    npy("(1000000000000,)", b"abcd"), npy("(2**62, 4)", b"abcd"), npy("(4611686018427387904, 4)", b""), npy("(-1,)", b""), npy("(2,)", b"abcd"),
    npy("(1,)", b"abcdefgh"), npy("(1,)", b"abcd", "'|O'"), npy("(1,)", b"abcd", "'nonsense'"), npy("(True, 'a')", b""), b"\x93NUMPY\3\0", b"",
    npy("(" * 400, b""),
])
def test_lying_npy_headers(entry: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as z:
        z.writestr("a.npy", entry)
    source = open_weights(tmp_path / "w.npz")
    with bounded(), pytest.raises(LoadError, match=r"a in .*w.npz"):
        source["a"]


def test_damaged_archives_end_in_a_load_error_or_in_arrays(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez_compressed(path, a=SIX, b=np.arange(3))
    raw = path.read_bytes()
    refused = 0
    for data in [raw[:n] for n in range(4, len(raw))] + [raw[:i] + bytes([raw[i] ^ 0x81]) + raw[i + 1 :] for i in range(len(raw))]:
        path.write_bytes(data)
        try:
            source_arrays(open_weights(path))
        except LoadError:
            refused += 1
    assert refused > len(raw)


# ---- folders
SHARDS: dict[str, dict[str, Array]] = {"one.safetensors": {"a": SIX, "b": np.arange(3)}, "two.safetensors": {"c": SIX + 1}}
CONFIG = {"model_type": "llama", "hidden_size": 6, "num_attention_heads": 3}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    for file, arrays in SHARDS.items():
        save_safetensors(tmp_path / file, arrays)
    index = {"metadata": {"total_size": 72}, "weight_map": {n: file for file, arrays in SHARDS.items() for n in arrays}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_of_shards(sharded: Path) -> None:
    source = open_weights(str(sharded))
    assert (source.names(), source.path, source.metadata) == (["a", "b", "c"], sharded, CONFIG)
    kept = source["c"].array()
    assert is_mapped(kept)
    source.close()
    assert equal(kept, SIX + 1)
    with pytest.raises(LoadError, match="is closed"):
        source["a"].array()


def test_a_folder_of_one_file_needs_no_config(tmp_path: Path) -> None:
    save_file({"a": SIX}, tmp_path / "model.safetensors")
    source = open_weights(tmp_path)
    assert equal(source["a"].array(), SIX)
    with pytest.raises(LoadError, match=r"does not say what model it is(.|\n)*config.json"):
        model_config(source)


def test_what_is_wrong_with_a_folder_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    whole = json.loads(index.read_text())["weight_map"]
    edit(index, weight_map={**whole, "d": "two.safetensors"})
    with pytest.raises(LoadError, match=r"tensor 'd' is not in its shard two.safetensors"):
        open_weights(sharded)
    edit(index, weight_map={**whole, "d": "three.safetensors", "e": "three.safetensors"})
    with pytest.raises(LoadError, match=r"shard three.safetensors is missing(.|\n)*it holds 2 tensors"):
        open_weights(sharded)
    for outside in ("../one.safetensors", "/etc/passwd", "sub/one.safetensors"):
        edit(index, weight_map={**whole, "d": outside})
        with pytest.raises(LoadError, match=r"names the shard(.|\n)*shards lie beside their index"):
            open_weights(sharded)
    edit(index, weight_map={**whole, "d": ".."})
    with pytest.raises(LoadError, match=r"shard \.\. is missing"):
        open_weights(sharded)
    malformed: tuple[Any, ...] = ([], {"a": 3}, None)
    for broken in malformed:
        edit(index, weight_map=broken)
        with pytest.raises(LoadError, match="has no weight_map"):
            open_weights(sharded)
    for text in ("{", "[" * 10**5):
        index.write_text(text)
        with pytest.raises(LoadError, match=r"index.json is no JSON"):
            open_weights(sharded)
    index.unlink()
    with pytest.raises(LoadError, match=r"no weights in(.|\n)*it holds config.json, one.safetensors, two.safetensors, but neither"):
        open_weights(sharded)
    (sharded / "pytorch_model.bin").touch()
    with pytest.raises(LoadError, match=r"convert it to safetensors"):
        open_weights(sharded)
    (sharded / "config.json").write_text("[1]")
    with pytest.raises(LoadError, match=r"config.json holds a list"):
        open_weights(sharded)


def test_a_real_folder(minilm_folder: Path) -> None:
    source = open_weights(minilm_folder)
    want = load_file(minilm_folder / "model.safetensors")
    assert set(source.names()) == set(want)
    for name, array in want.items():
        assert equal(source[name].array(), array)
    config = model_config(source)
    assert {k: config[k] for k in ("model_type", "hidden_size", "head_dim", "num_key_value_heads", "vocab_size")} == {
        "model_type": "bert", "hidden_size": 384, "head_dim": 32, "num_key_value_heads": 12, "vocab_size": 30522,
    }


# ---- the door
def test_content_decides_not_the_name(tmp_path: Path) -> None:
    save_file({"a": SIX}, tmp_path / "a.npz")
    np.savez(tmp_path / "b", a=SIX)
    (tmp_path / "b.npz").rename(tmp_path / "b.gguf")
    write_gguf(tmp_path / "c.safetensors", "llama", {"a": SIX})
    for name in ("a.npz", "b.gguf", "c.safetensors"):
        assert equal(open_weights(tmp_path / name)["a"].array(), SIX)


@pytest.mark.parametrize(("content", "message"), [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", r"a Git LFS pointer(.|\n)*git lfs pull"),
    (b"<!DOCTYPE html><html>404", r"a web page"),
    (b"\x89HDF\r\n\x1a\n", r"an HDF5 file"),
    (b"\x93NUMPY\1\0", r"a single NumPy array(.|\n)*numpy.savez"),
    (b"hello there", r"holds no weights(.|\n)*b'hello there'(.|\n)*\.npz, \.safetensors, \.gguf"),
    (b"", r"holds no weights(.|\n)*b''"),
])
def test_other_files_are_named_for_what_they_are(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "w.dat").write_bytes(content)
    with pytest.raises(LoadError, match=message):
        open_weights(tmp_path / "w.dat")


@pytest.mark.parametrize("suffix", [".gguf", ".npz", ".safetensors"])
def test_a_suffix_names_the_reader_that_refuses(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"w{suffix}").write_bytes(b"hello there, this is no such file")
    with pytest.raises(LoadError, match=r"not a GGUF file|the .npz archive .* cannot be read|a header of \d+ bytes"):
        open_weights(tmp_path / f"w{suffix}")


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "absent", "there is no such file"), (tmp_path / "pipe", "a device or a pipe"), (Path("/dev/zero"), "a device")):
        with bounded(), pytest.raises(LoadError, match=rf"cannot open(.|\n)*{why}"):
            open_weights(path)
    wrong: Any = 3
    with pytest.raises(LoadError, match="weights from a int"):
        open_weights(wrong)


# ---- views
def test_renamed_shows_the_mapping_and_copies_nothing(tmp_path: Path) -> None:
    save_file({"a": SIX, "b": SIX + 1}, tmp_path / "w.safetensors", {"k": "v"})
    view = Renamed(open_weights(tmp_path / "w.safetensors"), {"x": "b"})
    assert (view.names(), "x" in view, "b" in view, view.metadata, view.path) == (["x"], True, False, {"k": "v"}, tmp_path / "w.safetensors")
    assert view["x"].name == "x"
    assert equal(view["x"].array(), SIX + 1)
    assert is_mapped(view["x"].array())
    with pytest.raises(LoadError, match="no weight 'b'"):
        view["b"]
    with pytest.raises(LoadError, match="no weight 'c'"):
        Renamed(view, {"y": "c"})
    weight = view["x"]
    view.close()
    with pytest.raises(LoadError, match="is closed"):
        weight.array()


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


# ---- Hugging Face names and settings of GGUF files
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


@pytest.mark.parametrize(("given", "found"), [
    ({"rope_scaling": None}, {}),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 5e5}),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
     {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ({"num_key_value_heads": 1, "head_dim": 4}, {"num_key_value_heads": 1, "head_dim": 4}),
])
def test_a_folders_config_is_filled_in(given: dict[str, Any], found: dict[str, Any], sharded: Path) -> None:
    edit(sharded / "config.json", **given)
    config = model_config(open_weights(sharded))
    kept = {k: v for k, v in given.items() if k == "rope_parameters"}
    assert config == {**CONFIG, "num_key_value_heads": 3, "head_dim": 2, "tie_word_embeddings": True, **kept, **found}
    save_safetensors(sharded / "model.safetensors", {"lm_head.weight": SIX})
    assert not model_config(open_weights(sharded))["tie_word_embeddings"]


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


def test_a_safetensors_file_with_the_length_of_a_zip_magic(tmp_path: Path) -> None:
    """19280 is "PK" in bytes: a header of that length is still no archive."""
    header = {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    raw = json.dumps(header).encode().ljust(0x4B50)
    (tmp_path / "w").write_bytes(safetensors_bytes(raw, b"abcd"))
    assert open_weights(tmp_path / "w")["t"].shape == (1,)
