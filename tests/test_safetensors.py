"""safetensors: against the reference implementation both ways, and headers that lie."""
from __future__ import annotations

import json
import resource
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from weights_samples import bounded, is_mapped, read_all, safetensors_bytes

from rlxpy.errors import LoadError, SafetensorsError
from rlxpy.flow.weights import open_weights, save_safetensors
from rlxpy.ir.dtypes import Array

RNG = np.random.default_rng(3)
SIX = np.arange(6, dtype=np.float32).reshape(2, 3)
NUMPY_TYPES = ("bool", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "f8", "i8", "u8", "c8")


def sample(kind: str, shape: tuple[int, ...] = (3, 5)) -> Array:
    return (RNG.standard_normal(shape) * 3).astype(kind)


def equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.safetensors"


def test_reads_what_the_reference_wrote(path: Path) -> None:
    arrays = {kind: sample(kind) for kind in NUMPY_TYPES if kind != "c8"}
    arrays |= {"scalar": np.array(2.5), "none": np.zeros((0, 3), np.float32), "brain": sample("f4").astype(ml_dtypes.bfloat16)}
    save_file(arrays, path, {"format": "np", "note": "Grüße"})
    source = open_weights(path)
    assert source.metadata == {"format": "np", "note": "Grüße"}
    assert set(source.names()) == set(arrays)
    for name, array in arrays.items():
        weight = source[name]
        assert (weight.shape, weight.dtype.numpy, weight.encoding, weight.nbytes) == (array.shape, array.dtype, None, array.nbytes)
        assert equal(weight.array(), array)
        assert not weight.array().flags.writeable


def test_arrays_are_views_of_the_file(path: Path) -> None:
    save_file({"a": SIX}, path)
    source = open_weights(path)
    kept, pending = source["a"].array(), source["a"]
    assert is_mapped(kept)
    source.close()
    assert equal(kept, SIX)
    with pytest.raises(SafetensorsError, match="is closed"):
        pending.array()


def test_data_at_odd_addresses_is_copied_into_place(path: Path) -> None:
    header = {"byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "six": {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]}}
    path.write_bytes(safetensors_bytes(header, b"\7" + SIX.tobytes()))
    array = open_weights(path)["six"].array()
    assert array.flags.aligned
    assert equal(array, SIX)


def test_a_tensor_of_an_unknown_dtype_fails_only_when_asked_for(path: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "b": {"dtype": "F3_E1M1", "shape": [8], "data_offsets": [24, 27]}}
    path.write_bytes(safetensors_bytes(header, SIX.tobytes() + b"abc"))
    source = open_weights(path)
    assert equal(source["a"].array(), SIX)
    with pytest.raises(SafetensorsError, match=r"b has dtype 'F3_E1M1'(.|\n)*readable are BOOL"):
        source["b"]


def one(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}


def two(begin: int, end: int, count: int) -> dict[str, Any]:
    return {**one(), "u": {"dtype": "F32", "shape": [count], "data_offsets": [begin, end]}}


FOUR = b"abcd"
LIES: dict[str, tuple[bytes, str]] = {
    "a million floats in 4 bytes": (safetensors_bytes(one(shape=[1000, 1000]), FOUR), r"'t': F32 \[1000, 1000\] in 4 bytes(.|\n)*4000000 bytes are needed"),
    "begin after end": (safetensors_bytes(one(data_offsets=[4, 0]), FOUR), r"'t' has data_offsets \[4, 0\]"),
    "end after the file": (safetensors_bytes(one(shape=[2], data_offsets=[0, 8]), FOUR), r"'t' ends after the file(.|\n)*8 of 4"),
    "far after the file": (safetensors_bytes(one(shape=[2**50], data_offsets=[0, 2**52]), FOUR), r"'t' ends after the file"),
    "a header longer than the file": (safetensors_bytes(one(), FOUR, length=10**6), r"a header of 1000000 bytes"),
    "a header of 2**64 bytes": (safetensors_bytes(one(), FOUR, length=2**64 - 1), r"a header of 18446744073709551615 bytes"),
    "a header that is a list": (safetensors_bytes([1, 2]), r"its header is \[1, 2\]"),
    "a header that is no JSON": (safetensors_bytes(b"{nonsense"), r"its header is no JSON"),
    "a header that is no UTF-8": (safetensors_bytes(b"\xff\xff"), r"its header is no JSON"),
    "a header of brackets": (safetensors_bytes(b"[" * 10**5), r"its header is no JSON"),
    "a tensor that is a number": (safetensors_bytes({"t": 3}), r"tensor 't' is 3"),
    "a name twice": (safetensors_bytes(b'{"t":1,"t":2}'), r"'t' appears twice"),
    "no shape": (safetensors_bytes({"t": {"dtype": "F32", "data_offsets": [0, 4]}}, FOUR), r"'t' has shape None"),
    "a negative shape": (safetensors_bytes(one(shape=[-1, -1]), FOUR), r"'t' has shape \[-1, -1\]"),
    "a shape in fractions": (safetensors_bytes(one(shape=[1.0]), FOUR), r"'t' has shape \[1.0\]"),
    "a shape in truths": (safetensors_bytes(one(shape=[True]), FOUR), r"'t' has shape \[True\]"),
    "a shape that wraps": (safetensors_bytes(one(shape=[2**32, 2**32]), FOUR), r"'t' has shape \[4294967296, 4294967296\]"),
    "an empty shape that no array has": (safetensors_bytes(one(shape=[2**62, 2, 0], data_offsets=[0, 0])), r"'t' has shape"),
    "65 dims": (safetensors_bytes(one(shape=[1] * 65), FOUR), r"'t' has shape \[1, 1(.|\n)*up to 64 whole numbers"),
    "a shape of 10**5 primes": (safetensors_bytes(one(shape=[10**9 + 7] * 10**5), FOUR), r"'t' has shape"),
    "a dtype that is a number": (safetensors_bytes(one(dtype=7), FOUR), r"'t' has dtype 7"),
    "one offset": (safetensors_bytes(one(data_offsets=[4]), FOUR), r"'t' has data_offsets \[4\]"),
    "offsets in words": (safetensors_bytes(one(data_offsets="ab"), FOUR), r"'t' has data_offsets 'ab'"),
    "tensors that share bytes": (safetensors_bytes(two(2, 6, 1), FOUR + b"ef"), r"'u' and tensor 't' overlap"),
    "a hole": (safetensors_bytes(two(8, 12, 1), FOUR * 3), r"'u' and tensor 't' leave a hole"),
    "bytes at the end": (safetensors_bytes(one(), FOUR * 2), r"bytes after tensor 't'(.|\n)*4 of 8"),
    "metadata that is a list": (safetensors_bytes({"__metadata__": [1], **one()}, FOUR), r"__metadata__ is \[1\]"),
    "seven bytes": (b"1234567", r"not a safetensors file(.|\n)*7 bytes"),
    "no bytes": (b"", r"not a safetensors file(.|\n)*0 bytes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_named_at_once(lie: str, path: Path) -> None:
    raw, message = LIES[lie]
    path.write_bytes(raw)
    with bounded(), pytest.raises(SafetensorsError, match=message):
        open_weights(path)


@pytest.mark.parametrize("lie", LIES)
def test_the_reference_refuses_them_too(lie: str, path: Path) -> None:
    path.write_bytes(LIES[lie][0])
    with pytest.raises((SafetensorError, ValueError, OverflowError)), safe_open(path, "np") as f:
        f.get_tensor("t")


def test_every_prefix_and_every_damaged_byte_ends_in_a_load_error_or_in_arrays(path: Path) -> None:
    save_file({"a": SIX, "b": np.arange(3)}, path, {"k": "v"})
    raw = path.read_bytes()
    damaged = [raw[:n] for n in range(len(raw))]
    damaged += [raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :] for i in range(len(raw)) for flip in (1, 4, 0x80)]
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            read_all(path)
        except LoadError:
            refused += 1
    assert refused > len(raw)


AWKWARD: dict[str, Array] = {
    "fortran": np.asfortranarray(SIX),
    "broadcast": np.broadcast_to(np.array([1.0, 2.0]), (4, 2)),
    "transposed": RNG.standard_normal((2, 3, 4)).transpose(2, 0, 1),
    "reversed": np.arange(7)[::-2],
    "big_endian": np.arange(5, dtype=">i4"),
    "scalar": np.array(1.5, np.float32),
    "none": np.zeros((3, 0, 2), np.int16),
    "one_byte": np.array([True, False, True]),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_any_strides_are_written_in_c_order(name: str, path: Path) -> None:
    save_safetensors(path, {name: AWKWARD[name]})
    for loaded in (load_file(path)[name], open_weights(path)[name].array()):
        assert loaded.shape == AWKWARD[name].shape
        assert np.array_equal(loaded, AWKWARD[name])


def test_the_reference_reads_what_was_written(path: Path) -> None:
    arrays = {**AWKWARD, **{kind: sample(kind) for kind in NUMPY_TYPES if kind != "c8"}, "brain": sample("f4").astype(ml_dtypes.bfloat16)}
    save_safetensors(path, arrays, {"format": "np", "k": "ü"})
    loaded = load_file(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert np.array_equal(loaded[name], array)
    with safe_open(path, "np") as f:
        assert f.metadata() == {"format": "np", "k": "ü"}


@pytest.mark.parametrize(("kind", "named"), [(ml_dtypes.float8_e4m3fn, "F8_E4M3"), (ml_dtypes.float8_e5m2, "F8_E5M2"), (np.complex64, "C64")])
def test_types_that_numpy_or_the_reference_lack(kind: Any, named: str, path: Path) -> None:
    array = (np.arange(12).reshape(3, 4).T / 4).astype(kind)
    save_safetensors(path, {"odd": np.zeros(1, np.uint8), "x": array})
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    entry = json.loads(raw[8 : 8 + length])["x"]
    begin, end = entry.pop("data_offsets")
    assert entry == {"dtype": named, "shape": [4, 3]}
    assert raw[8 + length + begin : 8 + length + end] == b"".join(array[i, j].tobytes() for i in range(4) for j in range(3))
    assert equal(open_weights(path)["x"].array(), np.ascontiguousarray(array))


def test_every_tensor_is_aligned(path: Path) -> None:
    save_safetensors(path, {f"{kind}{n}": sample(kind, (n,)) for kind in NUMPY_TYPES for n in (1, 3)})
    source = open_weights(path)
    for name in source.names():
        assert is_mapped(source[name].array())


@pytest.mark.parametrize(("arrays", "metadata", "message"), [
    ({"x": np.array([1, "a", None], object)}, None, r"x has elements of type object"),
    ({"x": np.zeros(2, np.complex128)}, None, r"x has dtype c128(.|\n)*the format has bool"),
    ({"x": np.zeros(2, ml_dtypes.int4)}, None, r"x has dtype i4"),
    ({3: SIX}, None, r"a tensor named 3"),
    ({"__metadata__": SIX}, None, r"a tensor named '__metadata__'"),
    ({"x": SIX}, {"k": 3}, r"metadata is not text"),
])
def test_what_cannot_be_written_leaves_the_old_file(arrays: Any, metadata: Any, message: str, path: Path) -> None:
    save_safetensors(path, {"old": SIX})
    with pytest.raises(SafetensorsError, match=message):
        save_safetensors(path, arrays, metadata)
    assert equal(load_file(path)["old"], SIX)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_full_disk_leaves_the_old_file(path: Path) -> None:
    save_safetensors(path, {"old": SIX})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(SafetensorsError, match=r"cannot write .*w.safetensors"):
            save_safetensors(path, {"first": np.zeros(10_000, np.float32), "second": np.zeros(100_000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert equal(load_file(path)["old"], SIX)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsError, match=r"cannot write(.|\n)*No such file"):
        save_safetensors(tmp_path / "no" / "w.safetensors", {"x": SIX})
