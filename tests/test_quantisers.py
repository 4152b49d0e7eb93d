"""Quantisers of others: chosen by name and options, held to what the encoding stores, refused before a weight is read; and how much one loses."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import settings
from rlxpy.errors import BuildError, InputError, RegistryError
from rlxpy.extend.quantisers import (
    BUILT_IN,
    Quantiser,
    Rtn,
    pack,
    packing,
    packing_error,
    quantiser,
    quantiser_registry,
    register_quantiser,
    registered_quantisers,
    unregister_quantiser,
)
from rlxpy.flow.weights import Rounded, open_weights, views
from rlxpy.generate.opened import OpenedModel, asked
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import Encoding, Level, encoding, encoding_registry, planar, register_encoding
from rlxpy.ir.quantize import quantize

RNG = np.random.default_rng(4)
W = RNG.normal(size=(7, 96)).astype(np.float32)


@dataclass(frozen=True)
class Coarse:
    """Every number rounded to a multiple of `grain` before rounding to nearest: worse on purpose, and easy to tell."""

    grain: float = 0.5
    wide: bool = False
    calibration: Path = Path()
    name: str = "acme.coarse"
    doc: str = "multiples of a grain"
    row_block: int = 2

    def refusal(self, to: Encoding) -> str:
        return Rtn().refusal(to) or ("it is meant for q8_0 and q4_0" if to.name not in ("q8_0", "q4_0") else "")

    def __call__(self, values: Array, to: Encoding, weight: str) -> tuple[Array, ...]:
        return quantize(np.round(values / np.float32(self.grain)) * np.float32(self.grain), to)


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with quantiser_registry(), encoding_registry():
        yield


# ---- names and options ---------------------------------------------------------------------------------------------
def test_a_text_names_a_quantiser_and_its_options() -> None:
    assert register_quantiser(Coarse()) == Coarse() == quantiser("acme.coarse")
    assert quantiser("acme.coarse:grain=0.25,wide=true,calibration=/tmp/x") == Coarse(0.25, True, Path("/tmp/x"))
    assert quantiser("rtn") == Rtn() == BUILT_IN["rtn"]


@pytest.mark.parametrize(("text", "words"), [
    ("acme.coarsest", r"no quantiser 'acme\.coarsest'(.|\n)*there are rtn, acme\.coarse(.|\n)*near it: acme\.coarse"),
    ("", "no quantiser ''"),
    ("acme.coarse:grian=1", r"no option 'grian'(.|\n)*there are grain, wide, calibration(.|\n)*near it: grain"),
    ("acme.coarse:name=x", "no option 'name'"),
    ("acme.coarse:grain=much", "grain=much(.|\n)*could not convert(.|\n)*grain is float"),
    ("acme.coarse:wide=yes", "true or false is wanted"),
    ("rtn:steps=3", r"no option 'steps'(.|\n)*there are none"),
])
def test_what_a_text_cannot_name_is_told(text: str, words: str) -> None:
    register_quantiser(Coarse())
    with pytest.raises(InputError, match=words):
        quantiser(text)


@dataclass(frozen=True)
class Listing(Coarse):
    name: str = "acme.listing"
    shares: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Changing(Coarse):
    name: str = "acme.changing"
    seen: list[str] = field(default_factory=list)


@pytest.mark.parametrize(("given", "words"), [
    (None, "NoneType is not a quantiser"),
    (Coarse, "Coarse is not a quantiser(.|\n)*register one of it"),
    (len, "len is not a quantiser"),
    (replace(Coarse(), name="coarse"), r"'coarse' is not named vendor\.name(.|\n)*yourname\.coarse"),
    (replace(Coarse(), name="rtn"), r"is not named vendor\.name(.|\n)*rlxpy's own"),
    (Changing(), "cannot be told from others(.|\n)*frozen"),
    (Listing(), "an option 'shares' that no text can set(.|\n)*bool, int, float, str, Path"),
    (replace(Coarse(), name="acme.taken", grain=2.0), r"already registered(.|\n)*test_quantisers\.Coarse is there, .*test_quantisers\.Coarse comes now"),
])
def test_what_cannot_be_registered_leaves_nothing_behind(given: Any, words: str) -> None:
    register_quantiser(replace(Coarse(), name="acme.taken"))
    before = registered_quantisers()
    with pytest.raises(RegistryError, match=words):
        register_quantiser(given)
    assert registered_quantisers() == before


def test_a_scope_forgets_and_forgetting_names_what_is_there() -> None:
    register_quantiser(Coarse())
    with quantiser_registry():
        register_quantiser(replace(Coarse(), name="acme.inner"))
        assert list(registered_quantisers()) == ["acme.coarse", "acme.inner"]
    with pytest.raises(RegistryError, match=r"no quantiser 'acme\.inner' is registered(.|\n)*there are acme\.coarse"):
        unregister_quantiser("acme.inner")
    unregister_quantiser("acme.coarse")
    assert not registered_quantisers()


# ---- used ----------------------------------------------------------------------------------------------------------
def test_weights_are_packed_by_the_one_that_is_asked_for() -> None:
    register_quantiser(Coarse())
    source = open_weights({"w": W, "bias": W[0]})
    for text, grain in (("rtn", 0.0), ("acme.coarse", 0.5), ("acme.coarse:grain=2", 2.0)):
        with settings.override(quantiser=text):
            by_setting = Rounded(source, "q8_0")
        weight = Rounded(source, "q8_0", text)["w"]
        assert weight.encoding == "q8_0"
        rounded = np.round(W / grain) * grain if grain else W
        want = quantize(rounded.astype(np.float32), "q8_0")[0]
        np.testing.assert_array_equal(weight.array(), want)
        np.testing.assert_array_equal(by_setting["w"].array(), want)
        assert Rounded(source, "q8_0", text)["bias"].encoding is None, "vectors stay as they are"


@pytest.mark.parametrize("row_block", [0, 1, 3])
def test_a_weight_goes_by_in_blocks_of_whole_row_blocks(row_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "BLOCK_NUMEL", 4 * 96)
    seen: list[tuple[str, int]] = []

    @dataclass(frozen=True)
    class Watching(Rtn):
        name: str = "acme.watching"

        def __call__(self, values: Array, to: Encoding, weight: str) -> tuple[Array, ...]:
            seen.append((weight, len(values)))
            return super().__call__(values, to, weight)

    register_quantiser(Watching(row_block=row_block))
    got = Rounded(open_weights({"w": W}), "q4_0", "acme.watching")["w"].array()
    np.testing.assert_array_equal(got, quantize(W, "q4_0")[0])
    assert seen == [("w", n) for n in {0: (7,), 1: (4, 3), 3: (3, 3, 1)}[row_block]]


def test_what_cannot_be_packed_is_refused_before_a_weight_is_read() -> None:
    @dataclass(frozen=True)
    class Anything(Rtn):
        name: str = "acme.any"

        def refusal(self, to: Encoding) -> str:
            return ""

    register_quantiser(Coarse())
    register_quantiser(Anything())
    register_encoding(planar("acme.shared", Level(DType.I8), scales=(Level(DType.F32, 0, rows=2),)))

    class Unread(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise AssertionError("a weight was read")

    source: Any = Unread()
    for to, by, words in (
        ("q5_1", "acme.coarse", r"'acme\.coarse' cannot write q5_1(.|\n)*meant for q8_0(.|\n)*use rtn"),
        ("q4_k", "rtn", "'rtn' cannot write q4_k(.|\n)*scale levels"),
        ("bf16", "rtn", "cannot write bf16(.|\n)*plain bf16 numbers"),
        ("acme.shared", "acme.any", r"cannot be packed in acme\.shared(.|\n)*rows share what scale stores"),
        ("q8_0", "acme.corse", r"no quantiser 'acme\.corse'"),
    ):
        with pytest.raises(InputError, match=words):
            Rounded(source, to, by)
    with pytest.raises(BuildError, match="no encoding 'q9_9'"):
        Rounded(source, "q9_9", "rtn")


@pytest.mark.parametrize(("planes", "words"), [
    ((W,), r"stores \[7, 96\] as data u8 \[7, 102\]"), ((), "gave \\[\\]"), (None, "gave NoneType"), ((np.zeros((7, 101), np.uint8),), r"\(7, 101\)"),
])
def test_planes_that_are_none_of_the_encoding_are_told_with_their_weight(planes: Any, words: str) -> None:
    @dataclass(frozen=True)
    class Wrong(Rtn):
        name: str = "acme.wrong"

        def __call__(self, values: Array, to: Encoding, weight: str) -> tuple[Array, ...]:
            return planes  # type: ignore[no-any-return]

    with pytest.raises(RegistryError, match=words) as caught:
        pack(Wrong(), W, encoding("q8_0"), "layers.0.up")
    assert caught.value.where == "layers.0.up"


def test_the_error_is_that_of_the_decoder_whoever_chose() -> None:
    e = encoding("q8_0")
    planes = pack(Rtn(), W, e)
    lost = e.decode(planes, 96).astype(np.float64) - W
    told = packing_error(W, planes, e)
    assert told.greatest == np.abs(lost).max()
    np.testing.assert_allclose(told.relative, np.linalg.norm(lost) / np.linalg.norm(W.astype(np.float64)), rtol=1e-12)
    assert told.relative < packing_error(W, pack(Coarse(), W, e), e).relative
    assert packing_error(np.zeros((2, 32), np.float32), pack(Rtn(), np.zeros((2, 32), np.float32), e), e) == packing_error(np.zeros((0, 32)), pack(Rtn(), np.zeros((0, 32), np.float32), e), e)


def test_a_models_weights_by_the_name_of_an_encoding() -> None:
    model = OpenedModel(Path("m"), {"model_type": "llama"}, open_weights({"w": W}), None)  # type: ignore[arg-type]
    encoder = replace(model, config={"model_type": "bert"})
    for opened, words, want, numerics in ((model, "int8", "q8_0", "low"), (encoder, "int8", "int8_rows", "low"), (model, "q4_0", "q4_0", "highest")):
        made, options = asked(opened, words, None, None)
        assert made.weights["w"].encoding == want
        assert (options.weights, options.numerics) == ("packed", numerics)
    with pytest.raises(InputError, match=r"weights='q4_9'(.|\n)*one of auto, packed, dense, int8, or an encoding(.|\n)*near it: q4_k"):
        asked(model, "q4_9", None, None)


def test_built_in_ones_are_quantisers_like_any_other() -> None:
    for q in BUILT_IN.values():
        assert isinstance(q, Quantiser)
        assert packing(q, "q8_0") == encoding("q8_0")
