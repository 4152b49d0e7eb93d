"""Weights by one door: mappings, archives, folders and views."""
from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from weights_samples import bounded, is_mapped, safetensors_bytes, source_arrays, write_gguf

from rlxpy.errors import BuildError, LoadError
from rlxpy.flow.weights import Renamed, model_config, open_weights, packed, save_safetensors
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.quantize import quantize

RNG = np.random.default_rng(9)
SIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


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


def test_a_safetensors_file_with_the_length_of_a_zip_magic(tmp_path: Path) -> None:
    """19280 is "PK" in bytes: a header of that length is still no archive."""
    header = {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    raw = json.dumps(header).encode().ljust(0x4B50)
    (tmp_path / "w").write_bytes(safetensors_bytes(raw, b"abcd"))
    assert open_weights(tmp_path / "w")["t"].shape == (1,)


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


@pytest.mark.parametrize(("given", "found"), [
    ({"rope_scaling": None}, {}),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 5e5}),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
     {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ({"num_key_value_heads": 1, "head_dim": 4}, {"num_key_value_heads": 1, "head_dim": 4}),
    ({"rotary_dim": 64}, {"rotary_dim": 64}),
])
def test_a_folders_config_is_filled_in(given: dict[str, Any], found: dict[str, Any], sharded: Path) -> None:
    edit(sharded / "config.json", **given)
    config = model_config(open_weights(sharded))
    kept = {k: v for k, v in given.items() if k == "rope_parameters"}
    assert config == {**CONFIG, "num_key_value_heads": 3, "head_dim": 2, "tie_word_embeddings": True, **kept, **found}
    save_safetensors(sharded / "model.safetensors", {"lm_head.weight": SIX})
    assert not model_config(open_weights(sharded))["tie_word_embeddings"]
