"""GGUF files: what ggml's writer wrote, what its reader reads, and headers that lie."""
from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize
from weights_samples import F32, U32, bounded, gguf_bytes, is_mapped, pair, read_all, source_arrays, tensor, text, write_gguf

from rlxpy.errors import GgufError, LoadError
from rlxpy.flow.weights import open_weights
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import encoding

RNG = np.random.default_rng(5)
PLAIN: dict[str, Array] = {
    "half": RNG.standard_normal((3, 5)).astype(np.float16),
    "single": RNG.standard_normal((2, 3, 4, 5)).astype(np.float32),
    "double": RNG.standard_normal(7),
    **{f"int{n}": RNG.integers(-100, 100, (3, n + 1)).astype(f"i{n // 8}") for n in (8, 16, 32, 64)},
}
PACKED = {name: RNG.integers(0, 256, (3, 2 * encoding(name).block_nbytes), dtype=np.uint8) for name in ("q4_1", "q6_k", "mxfp4")}
SETTINGS: dict[str, Any] = {
    "x.flag": True, "x.count": 4_000_000_000, "x.rate": 0.1, "x.name": "Grüße, 世界", "x.list": [3, -1, 2], "x.words": ["a", "", "漢"],
    "x.floats": [0.5, 1e30], "x.flags": [True, False],
}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.gguf"
    bf16 = RNG.standard_normal((4, 3)).astype(ml_dtypes.bfloat16)
    tensors = {**PLAIN, "brain": (bf16.view(np.uint8), "BF16"), **{n: (a, n.upper()) for n, a in PACKED.items()}}
    write_gguf(path, "llama", tensors, SETTINGS)
    return path


def test_reads_what_ggml_wrote(sample: Path) -> None:
    source = open_weights(sample)
    for name, array in PLAIN.items():
        weight = source[name]
        assert (weight.shape, weight.dtype.numpy, weight.encoding, weight.nbytes) == (array.shape, array.dtype, None, array.nbytes)
        assert np.array_equal(weight.array(), array)
    for name, array in PACKED.items():
        weight = source[name]
        assert (weight.shape, weight.dtype, weight.encoding) == ((3, 2 * encoding(name).block), DType.F32, name)
        assert weight.nbytes == array.nbytes
        assert np.array_equal(weight.array(), array)
    assert source["brain"].array().dtype == ml_dtypes.bfloat16
    rate = float(np.float32(0.1))
    assert source.metadata == {"general.architecture": "llama", **SETTINGS, "x.rate": rate, "x.floats": [0.5, float(np.float32(1e30))]}


def test_agrees_with_ggmls_reader_on_every_tensor(sample: Path) -> None:
    source = open_weights(sample)
    reader = gguf.GGUFReader(sample)
    assert source.names() == [t.name for t in reader.tensors]
    for t in reader.tensors:
        assert source[t.name].shape == tuple(t.shape.tolist())[::-1]
        assert source[t.name].array().tobytes() == t.data.tobytes()


def test_arrays_are_read_only_views_of_the_file_that_outlive_the_source(sample: Path) -> None:
    source = open_weights(sample)
    kept, pending = source["single"].array(), source["half"]
    assert is_mapped(kept)
    assert not kept.flags.writeable
    source.close()
    assert np.array_equal(kept, PLAIN["single"])
    with pytest.raises(GgufError, match=r"is closed"):
        pending.array()


def test_version_2_and_other_alignments(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, "llama", PLAIN)
    raw = bytearray(path.read_bytes())
    raw[4] = 2
    path.write_bytes(raw)
    for name, array in read_all(path).items():
        assert np.array_equal(array, PLAIN[name])
    values = struct.pack("<3f", 1, 2, 3)
    for alignment in (1, 8, 4096):
        header = (pair("general.alignment", U32, struct.pack("<I", alignment)),)
        path.write_bytes(gguf_bytes(header, (tensor("t", (3,)),), values, alignment=alignment))
        assert read_all(path)["t"].tolist() == [1, 2, 3]


def test_scalars_empty_tensors_and_strings_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    rows = (tensor("scalar", ()), tensor("none", (0, 3), offset=32), tensor("none_packed", (64, 0), 8, 32))
    path.write_bytes(gguf_bytes((pair("k", 8, text(b"\xff\xfea")),), rows, struct.pack("<f", 2.5) + bytes(28)))
    arrays = read_all(path)
    assert arrays["scalar"].shape == ()
    assert arrays["scalar"] == 2.5
    assert arrays["none"].shape == (3, 0)
    assert arrays["none_packed"].shape == (0, 68)
    assert open_weights(path).metadata["k"].encode(errors="surrogateescape") == b"\xff\xfea"


ONE = struct.pack("<f", 1)
HUGE = 2**63 + 1
LIES: dict[str, tuple[bytes, str]] = {
    "dims whose product wraps to 2": (gguf_bytes((), (tensor("t", (HUGE, 2)),), ONE), r"tensor 't' has dims(.|\n)*byte \d+"),
    "dims whose product wraps to 0": (gguf_bytes((), (tensor("t", (2**32, 2**32)),), ONE), r"tensor 't' has dims"),
    "an empty tensor with a dim that no array has": (gguf_bytes((), (tensor("t", (HUGE, 0)),), ONE), r"tensor 't' has dims"),
    "bytes whose count wraps": (gguf_bytes((), (tensor("t", (2**30, 2**30 - 1)),), ONE), r"tensor 't' has dims"),
    "five dims": (gguf_bytes((), (tensor("t", (1,) * 5),), ONE), r"tensor 't' has 5 dims(.|\n)*allows 4"),
    "a million dims": (gguf_bytes((), (tensor("t", (1,), dim_count=10**6),), ONE), r"tensor 't' has 1000000 dims"),
    "2**32 dims": (gguf_bytes((), (tensor("t", (1,), dim_count=0xFFFFFFFF),), ONE), r"tensor 't' has 4294967295 dims"),
    "2**60 keys": (gguf_bytes(pair_count=2**60), r"1152921504606846976 keys(.|\n)*cut off"),
    "2**64 tensors": (gguf_bytes(tensor_count=2**64 - 1), r"18446744073709551615 tensors"),
    "a string of 2**40": (gguf_bytes((pair("key", 8, struct.pack("<Q", 2**40)),)), r"key is cut off(.|\n)*byte \d+(.|\n)*1099511627776"),
    "a key of 2**40": (gguf_bytes((struct.pack("<Q", 2**40) + b"k" * 20,)), r"a metadata key is cut off"),
    "an array of 2**62 numbers": (gguf_bytes((pair("key", 9, struct.pack("<IQ", 10, 2**62)),)), r"key is cut off"),
    "an array of 2**62 strings": (gguf_bytes((pair("key", 9, struct.pack("<IQ", 8, 2**62)),)), r"key is cut off"),
    "an array of arrays": (gguf_bytes((pair("key", 9, struct.pack("<IQIQ", 9, 1, 4, 0)),)), r"key is an array of arrays"),
    "an unknown value type": (gguf_bytes((pair("key", 13, ONE),)), r"key has value type 13"),
    "an array of an unknown type": (gguf_bytes((pair("key", 9, struct.pack("<IQ", 77, 0)),)), r"key has value type 77"),
    "a key twice": (gguf_bytes((pair("key", U32, ONE), pair("key", F32, ONE))), r"key 'key' appears twice"),
    "a name twice": (gguf_bytes((), (tensor("t", (1,)), tensor("t", (1,), offset=32)), bytes(36)), r"tensor 't' appears twice"),
    "tensors that share bytes": (gguf_bytes((), (tensor("a", (16,)), tensor("b", (1,), offset=32)), bytes(64)), r"tensors 'a' and 'b' overlap"),
    "tensors in one place": (gguf_bytes((), (tensor("a", (1,)), tensor("b", (1,))), ONE), r"tensors 'a' and 'b' overlap"),
    "an offset off the grid": (gguf_bytes((), (tensor("t", (1,), offset=4),), bytes(64)), r"tensor 't' is misaligned(.|\n)*4 is no multiple of 32"),
    "an offset beyond the file": (gguf_bytes((), (tensor("t", (1,), offset=2**64 - 32),), ONE), r"tensor 't' \(1,\) ends after the file"),
    "too little data": (gguf_bytes((), (tensor("t", (2,)),), ONE), r"tensor 't' \(2,\) ends after the file"),
    "an unreadable type beyond the file": (gguf_bytes((), (tensor("t", (256,), 16, 64),), ONE), r"tensor 't' \(256,\) ends after the file"),
    "rows that are no whole blocks": (gguf_bytes((), (tensor("t", (33,), 2),), bytes(64)), r"tensor 't' has rows of 33(.|\n)*q4_0 stores blocks of 32"),
    "a packed scalar": (gguf_bytes((), (tensor("t", (), 2),), bytes(64)), r"tensor 't' has rows of 1"),
    "a name that is no UTF-8": (gguf_bytes((), (tensor(b"\xff", (1,)),), ONE), r"a tensor name is not UTF-8"),
    "an alignment of 0": (gguf_bytes((pair("general.alignment", U32, bytes(4)),)), r"general.alignment is 0"),
    "an alignment of 24": (gguf_bytes((pair("general.alignment", U32, struct.pack("<I", 24)),)), r"general.alignment is 24"),
    "an alignment in words": (gguf_bytes((pair("general.alignment", 8, text("much")),)), r"general.alignment is 'much'"),
    "version 1": (gguf_bytes(version=1), r"GGUF version 1"),
    "the other byte order": (gguf_bytes(version=3 << 24), r"big-endian"),
    "split.count in words": (gguf_bytes((pair("split.count", 8, text("two")),)), r"split.count is 'two'"),
    "nothing after the magic": (b"GGUF", r"the version is cut off"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_named_at_once(lie: str, tmp_path: Path) -> None:
    raw, message = LIES[lie]
    path = tmp_path / "lie.gguf"
    path.write_bytes(raw)
    assert len(raw) < 256
    with bounded(), pytest.raises(GgufError, match=message):
        open_weights(path)


@pytest.mark.parametrize(("kind", "named"), [(16, "iq2_xxs"), (99, "unknown")])
def test_a_tensor_of_an_unreadable_type_fails_only_when_asked_for(kind: int, named: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes((), (tensor("good", (1,)), tensor("strange", (256,), kind, 32)), ONE + bytes(100)))
    source = open_weights(path)
    assert source.names() == ["good", "strange"]
    assert source["good"].array().tolist() == [1]
    with pytest.raises(GgufError, match=rf"strange has tensor type {kind} \({named}\)(.|\n)*readable are f32, f16, q4_0"):
        source["strange"]


def test_every_prefix_and_every_damaged_byte_ends_in_a_load_error_or_in_arrays(tmp_path: Path) -> None:
    """No other exception leaves the reader, whatever the header claims."""
    path = tmp_path / "a.gguf"
    write_gguf(path, "llama", {"a": PLAIN["half"], "b": (PACKED["q4_1"], "Q4_1")}, {"n": 3, "s": "text", "l": ["x", "y"], "i": [1, 2]})
    raw = path.read_bytes()
    damaged = [raw[:n] for n in range(len(raw))]
    damaged += [raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :] for i in range(len(raw)) for flip in (1, 0x80, 0xFF)]
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            read_all(path)
        except LoadError:
            refused += 1
    assert refused > len(raw) // 2


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write_gguf(tmp_path / "model.gguf", "llama", PLAIN, {"x.name": "split"}, split_max_tensors=3)
    found = sorted(tmp_path.glob("*.gguf"))
    assert [p.name for p in found] == [f"model-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    return found


@pytest.mark.parametrize("given", range(3))
def test_any_part_opens_the_whole(parts: list[Path], given: int) -> None:
    source = open_weights(parts[given])
    assert source.metadata["x.name"] == "split"
    arrays = source_arrays(source)
    assert set(arrays) == set(PLAIN)
    for name, array in PLAIN.items():
        assert np.array_equal(arrays[name], array)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(GgufError, match=r"part 2 of 3 is missing(.|\n)*model-00002-of-00003.gguf"):
        open_weights(parts[0])


def test_a_part_under_another_parts_name_is_refused(parts: list[Path]) -> None:
    shutil.copy(parts[2], parts[1])
    with pytest.raises(GgufError, match=r"model-00002-of-00003.gguf is another part(.|\n)*\(2, 3\)(.|\n)*\(1, 3\)"):
        open_weights(parts[0])


def test_a_part_under_a_name_that_leads_nowhere_is_refused(parts: list[Path]) -> None:
    lone = parts[0].rename(parts[0].with_name("lone.gguf"))
    with pytest.raises(GgufError, match=r"lone.gguf is one part of 3(.|\n)*NAME-00001-of-00003.gguf"):
        open_weights(lone)


def split_header(number: int, total: int, tensors: int) -> tuple[bytes, ...]:
    return (
        pair("split.no", 2, struct.pack("<H", number)), pair("split.count", 2, struct.pack("<H", total)),
        pair("split.tensors.count", 5, struct.pack("<i", tensors)),
    )


def test_parts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    first.write_bytes(gguf_bytes(split_header(0, 2, 2), (tensor("t", (1,)),), ONE))
    second.write_bytes(gguf_bytes(split_header(1, 2, 2), (tensor("t", (1,)),), ONE))
    with pytest.raises(GgufError, match=r"tensor 't' is in two parts"):
        open_weights(first)
    second.write_bytes(gguf_bytes(split_header(1, 2, 2)))
    with pytest.raises(GgufError, match=r"split.tensors.count is 2, the parts hold 1"):
        open_weights(first)


def test_a_real_model_decodes_as_ggml_decodes_it(smollm2_gguf: Path) -> None:
    source, reader = open_weights(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    assert source.names() == [t.name for t in reader.tensors]
    assert len(source.metadata["tokenizer.ggml.tokens"]) == 49152
    seen = set()
    for t in reader.tensors:
        weight = source[t.name]
        if weight.encoding in seen:
            continue
        seen.add(weight.encoding)
        assert is_mapped(weight.array())
        if weight.encoding is None:
            assert np.array_equal(weight.array(), t.data)
        else:
            got = encoding(weight.encoding).decode((weight.array()[:300],), weight.shape[-1])
            assert np.array_equal(got, dequantize(t.data[:300], t.tensor_type))
    assert seen == {None, "q4_1", "q8_0"}
