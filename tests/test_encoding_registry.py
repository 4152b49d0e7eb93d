"""Encodings of downstream packages: one decoder on every device, scopes, and what may not be registered."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, Graph, Session, compile, parse, show
from rlxpy.errors import BuildError, InputError, RegistryError
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import (
    ENCODINGS,
    Encoding,
    Field,
    Level,
    Plane,
    encoding,
    encoding_registry,
    number,
    planar,
    register_encoding,
    registered_encodings,
    stream,
    unregister_encoding,
)
from rlxpy.ir.quantize import quantize

FIVES = planar("acme.fives", Level(5, zero=16.0), scales=(Level(DType.F16, 24),), mins=(Level(DType.F16, 24, factor=-1.0),))
TABLE = planar("acme.table", Level(2, table=(-3.0, -0.5, 0.25, 7.0)), scales=(Level(DType.F32, 0),))
BLOCK = Encoding("acme.block", 32, (Plane("data", DType.U8, 32, 8 * 14),), Field(32, stream(2, 3, 32), zero=4.0), scales=(number(0, DType.F16),))
W = np.random.default_rng(5).normal(size=(7, 96)).astype(np.float32)
X = np.random.default_rng(6).normal(size=(3, 96)).astype(np.float32)


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with encoding_registry():
        yield


def product(e: Encoding) -> Graph:
    b = Builder()
    x = b.input("x", X.shape)
    return b.finish(x.qmatmul(*(b.param(name, s, d) for name, s, d in e.planes(W.shape)), encoding=e.name, shape=W.shape))


def random_planes(e: Encoding) -> dict[str, np.ndarray]:
    """Any bits for codes; scales of a moderate size."""
    rng = np.random.default_rng(7)
    planes = {name: rng.integers(0, 256, s).astype(d.numpy) if d is DType.U8 else rng.uniform(0.5, 2, s).astype(d.numpy) for name, s, d in e.planes(W.shape)}
    if e is BLOCK:
        planes["data"].reshape(-1, 14)[:, :2] = np.array([1.5], np.float16).view(np.uint8)
    return planes


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("e", [FIVES, TABLE, BLOCK], ids=lambda e: e.name)
def test_a_registered_encoding_runs_on_every_device(e: Encoding, device: str) -> None:
    register_encoding(e)
    planes = random_planes(e)
    f = compile(product(e), planes, device=device)
    want = X.astype(np.float64) @ e.decode(tuple(planes.values()), 96).T
    for _ in range(2):
        np.testing.assert_allclose(f(X), want, rtol=1e-4, atol=1e-4)


def test_three_bit_blocks_hold_what_was_packed_by_hand() -> None:
    """The bits of 32 codes are one little-endian number behind the scale."""
    codes = np.random.default_rng(8).integers(0, 8, 32)
    stored = sum(int(c) << 3 * k for k, c in enumerate(codes)).to_bytes(12, "little")
    row = np.frombuffer(np.float16(0.5).tobytes() + stored, np.uint8)[None]
    assert register_encoding(BLOCK).decode((row,), 32)[0].tolist() == ((codes - 4) * 0.5).tolist()


def test_text_names_the_encoding() -> None:
    graph = product(register_encoding(FIVES))
    assert "acme.fives" in show(graph)
    assert parse(show(graph)) == graph


def test_a_scope_forgets_and_an_equal_one_may_come_again() -> None:
    with encoding_registry():
        register_encoding(FIVES)
        assert register_encoding(replace(FIVES)) == FIVES == encoding("acme.fives")
        with encoding_registry():
            register_encoding(TABLE)
            assert list(registered_encodings()) == ["acme.fives", "acme.table"]
        assert list(registered_encodings()) == ["acme.fives"]
    with pytest.raises(BuildError, match=r"no encoding 'acme\.fives'"):
        encoding("acme.fives")
    assert not set(ENCODINGS) & set(registered_encodings())


def test_a_session_plans_anew_when_a_name_means_something_else() -> None:
    session = Session("reference")
    graph, planes = product(register_encoding(TABLE)), random_planes(TABLE)
    before = session.compile(graph, planes)(X)
    unregister_encoding("acme.table")
    other = register_encoding(replace(TABLE, code=replace(TABLE.code, table=(3.0, 0.5, -0.25, -7.0))))
    np.testing.assert_array_equal(session.compile(graph, planes)(X), -before)
    assert other == encoding("acme.table")
    assert session.plans_made == 2


@pytest.mark.parametrize(("e", "words"), [
    (None, "takes an Encoding, not NoneType"),
    (replace(FIVES, name="fives"), r"'fives' is not named vendor\.name(.|\n)*yourname\.fives"),
    (replace(FIVES, name="q8_0"), r"is not named vendor\.name(.|\n)*rlxpy's own"),
    (replace(FIVES, name="acme.a b"), "is not named"),
    (replace(FIVES, name="acme.taken", block=2), "already registered, and stores otherwise"),
    (replace(FIVES, name="acme.ragged", code=replace(FIVES.code, table=((1.0,),) * 31 + ((1.0, 2.0),))), r"cannot decode two rows of 24 zeros(.|\n)*ValueError"),
])
def test_what_cannot_be_registered_leaves_nothing_behind(e: Encoding, words: str) -> None:
    register_encoding(replace(FIVES, name="acme.taken"))
    before = registered_encodings()
    with pytest.raises(RegistryError, match=words):
        register_encoding(e)
    assert registered_encodings() == before


def test_forgetting_what_is_not_there_names_what_is() -> None:
    register_encoding(FIVES)
    with pytest.raises(RegistryError, match=r"no encoding 'acme\.five' is registered(.|\n)*near it: acme\.fives"):
        unregister_encoding("acme.five")


def test_rounding_to_nearest_serves_a_registered_name() -> None:
    plain = register_encoding(planar("acme.sixes", Level(6, zero=32.0), scales=(Level(DType.F32, 16),)))
    step = np.abs(W.reshape(7, -1, 16)).max(-1) / 32
    error = np.abs(plain.decode(quantize(W, "acme.sixes"), 96) - W).reshape(7, -1, 16)
    assert (error <= step[..., None] * (1 + 1e-5)).all()


@pytest.mark.parametrize("number", [0, -4, "4", 4.5, None])
def test_a_level_has_numbers_of_some_width(number: Any) -> None:
    with pytest.raises(BuildError, match="a count of bits above 0"):
        Level(number)


@pytest.mark.parametrize(("columns", "rows"), [(-1, 1), (32, -1), (1.5, 1), ("32", 1)])
def test_a_level_serves_counts_of_columns_and_rows(columns: Any, rows: Any) -> None:
    with pytest.raises(BuildError, match="columns and rows are counts"):
        Level(4, columns, rows)


@pytest.mark.parametrize("parts", [{"code": "4"}, {"scales": Level(4)}, {"scales": [Level(4)]}, {"scales": ("f16",)}, {"mins": Level(4)}, {"sign": 1}])
def test_an_encoding_is_made_of_levels(parts: Any) -> None:
    with pytest.raises(BuildError, match="code is a Level, and scales and mins are tuples of Levels"):
        planar("acme.odd", **{"code": Level(4), "scales": (Level(DType.F16, 32),), **parts})


@pytest.mark.parametrize("values", ["abc", None, object(), 3.0])
def test_only_arrays_of_numbers_are_quantised(values: Any) -> None:
    with pytest.raises(InputError, match="q8_0: "):
        quantize(values, "q8_0")
