"""Embedding texts with tiny models: order, batches, truncation, pooling as the files say it, and files that cannot be."""
from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_oracles import bert_oracle
from tiny_models import WORDS, bert_config, bert_weights, write_folder, write_model_gguf

from rlxpy.errors import InputError, LoadError, RlxError
from rlxpy.generate import embedder as rooms
from rlxpy.generate.embedder import Embedder, longest, parts
from rlxpy.ir.dtypes import Array

CONFIG = bert_config()
WEIGHTS = bert_weights(CONFIG, seed=2)
LONGEST = CONFIG["max_position_embeddings"]
TEXTS = ["the cat sat", "", "a", "the mat", "bad cat abe", "the cat sat the mat the", "e", "ef gh", "the the"]


def wanted(texts: list[list[int]], pooling: str = "mean", normalise: bool = True) -> Array:
    return np.array([bert_oracle(CONFIG, WEIGHTS, ids, pooling, normalise) for ids in texts])


def near(got: Array, oracle: Array) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, oracle, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bert"), CONFIG, WEIGHTS)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return Embedder.load(folder, batch=2, debug=True)


def test_texts_keep_their_order_over_batches_of_like_lengths(embedder: Embedder) -> None:
    ids = [embedder.tokenizer.encode(t) for t in TEXTS]
    assert len({len(i) for i in ids}) > 4
    for order in (slice(None), slice(None, None, -1), slice(1, 6)):
        found = embedder.embed(TEXTS[order])
        near(found.vectors, wanted(ids[order]))
        assert found.token_counts == tuple(map(len, ids[order]))
        assert found.truncated == ()


def test_marks_stand_around_a_text(embedder: Embedder) -> None:
    assert embedder.tokenizer.encode("The CAT bad") == [WORDS.index(w) for w in ("[CLS]", "the", "cat", "b", "##a", "##d", "[SEP]")]
    assert embedder.embed(["The cat"]).vectors.tolist() == embedder.embed(["the cat"]).vectors.tolist()


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_the_batch_does_not_matter(folder: Path, embedder: Embedder, batch: int) -> None:
    near(Embedder.load(folder, batch=batch).embed(TEXTS).vectors, embedder.embed(TEXTS).vectors)


def test_a_text_may_come_twice_and_from_any_sequence(embedder: Embedder) -> None:
    found = embedder.embed(("the cat", "a", "the cat")).vectors
    near(found[0], found[2])
    assert np.abs(found[0] - found[1]).max() > 0.01


def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    found = embedder.embed([])
    assert (found.vectors.shape, found.vectors.dtype) == ((0, CONFIG["hidden_size"]), np.float32)
    assert (found.token_counts, found.truncated) == ((), ())


@pytest.mark.parametrize(("texts", "message"), [
    ("the cat", r"one string(.|\n)*embed\(\[text\]\)"), ([3], "found int"), (["a", None], "found NoneType"), ([b"a"], "found bytes"),
])
def test_what_is_no_list_of_texts(embedder: Embedder, texts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        embedder.embed(texts)


@pytest.mark.parametrize("row", [[], 3, "ab", [1.5, 2.0], [[1, 2]], [True, False], [1] * (LONGEST + 1), [None]])
def test_what_is_no_row_of_tokens(embedder: Embedder, row: Any) -> None:
    with pytest.raises(InputError, match=rf"text 2 is no row of tokens(.|\n)*1\.\.{LONGEST}"):
        embedder.run([[1, 2], np.array([3]), row])


# ---- texts that are too long

def test_a_long_text_is_cut_before_its_closing_mark_and_reported(embedder: Embedder) -> None:
    whole = "the cat sat on the mat bad bad bad"
    ids = embedder.tokenizer.encode(whole)
    assert len(ids) > LONGEST
    found = embedder.embed(["a", whole, "the cat"])
    assert (found.truncated, found.token_counts[1]) == ((1,), LONGEST)
    near(found.vectors[1], wanted([[*ids[:LONGEST - 1], WORDS.index("[SEP]")]])[0])


def test_a_text_of_just_the_limit_is_whole(embedder: Embedder) -> None:
    text = " ".join(["the"] * (LONGEST - 2))
    assert embedder.embed([text]).truncated == ()
    found = embedder.embed([text + " cat"])
    assert found.truncated == (0,)
    near(found.vectors, embedder.embed([text]).vectors)


def test_a_very_long_text(embedder: Embedder) -> None:
    found = embedder.embed(["cat " * 200_000])
    assert (found.truncated, found.token_counts) == ((0,), (LONGEST,))
    near(found.vectors, embedder.embed(["cat " * LONGEST]).vectors)


def test_the_limit_is_the_callers_the_files_or_the_models(tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, WEIGHTS)
    text = "the cat sat the mat the cat sat the mat"
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    assert Embedder.load(tmp_path).embed([text]).token_counts == (7,)
    assert Embedder.load(tmp_path, length=5).embed([text]).token_counts == (5,)
    assert Embedder.load(tmp_path, length=9).embed([text]).token_counts == (9,)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 700}))
    assert Embedder.load(tmp_path).embed([text]).token_counts == (LONGEST,)


@pytest.mark.parametrize(("options", "message"), [
    ({"length": 2}, "length 2"), ({"length": LONGEST + 1}, f"length {LONGEST + 1}(.|\n)*3..{LONGEST}"),
    ({"batch": 0}, "batch 0"), ({"batch": -1}, "batch -1"),
    ({"weights": "thin"}, "weights='thin'"), ({"device": "abacus"}, "no device"),
])
def test_options_that_cannot_be(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RlxError, match=message):
        Embedder.load(folder, **options)


# ---- pooling as the files say it

def sentence_transformers(folder: Path, mode: Any, *more: str) -> Path:
    write_folder(folder, CONFIG, WEIGHTS)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *((name, f"2_{name}") for name in more)]
    listing = [{"idx": i, "path": path, "type": f"sentence_transformers.models.{name}"} for i, (name, path) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listing))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mode))
    return folder


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("max_tokens", "max")])
def test_pooling_and_normalising_are_those_of_sentence_transformers(mode: str, pooling: str, normalise: bool, tmp_path: Path) -> None:
    modes = {f"pooling_mode_{m}": m == mode for m in ("mean_tokens", "cls_token", "max_tokens", "mean_sqrt_len_tokens")}
    embedder = Embedder.load(sentence_transformers(tmp_path / "a", {"word_embedding_dimension": 12, **modes}, *["Normalize"] * normalise))
    near(embedder.embed(TEXTS).vectors, wanted([embedder.tokenizer.encode(t) for t in TEXTS], pooling, normalise))


@pytest.mark.parametrize(("kind", "pooling"), [(1, "mean"), (2, "cls"), (None, "mean")])
def test_pooling_of_gguf(kind: int | None, pooling: str, tmp_path: Path) -> None:
    path = write_model_gguf(tmp_path / "a.gguf", CONFIG, WEIGHTS, {} if kind is None else {"pooling_type": kind})
    embedder = Embedder.load(path)
    assert embedder.tokenizer.encode("the cat bad") == [WORDS.index(w) for w in ("[CLS]", "the", "cat", "b", "##a", "##d", "[SEP]")]
    near(embedder.embed(TEXTS).vectors, wanted([embedder.tokenizer.encode(t) for t in TEXTS], pooling))


@pytest.mark.parametrize("kind", [0, 3, 4, [1, 2], "mean"], ids=str)
def test_pooling_of_gguf_that_is_not_supported(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="pooling type"):
        Embedder.load(write_model_gguf(tmp_path / "a.gguf", CONFIG, WEIGHTS, {"pooling_type": kind}))


@pytest.mark.parametrize(("mode", "more", "message"), [
    ({"pooling_mode_lasttoken": True}, (), "pooling_mode_lasttoken is not supported"),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, (), "mean_tokens, pooling_mode_max_tokens is not supported"),
    ({"pooling_mode_mean_tokens": True}, ("Dense",), "module Dense is not supported"),
    ([1, 2], (), "cannot be read"), (None, (), "cannot be read"),
])
def test_pooling_that_is_not_supported(mode: Any, more: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=message):
        Embedder.load(sentence_transformers(tmp_path / "a", mode, *more))


@pytest.mark.parametrize("listing", [
    "{", "[3]", '{"type": "x"}', '[{"type": "a.Pooling"}]', '[{"type": "a.Pooling", "path": "nowhere"}]', '[{"type": 3, "path": ""}]',
    "[" * 100_000,
], ids=lambda text: text[:30])
def test_damaged_modules(listing: str, tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, WEIGHTS)
    (tmp_path / "modules.json").write_text(listing)
    with pytest.raises(LoadError, match="modules cannot be read"):
        Embedder.load(tmp_path)


def test_a_folder_that_says_nothing_means_the_mean_of_unit_length(embedder: Embedder) -> None:
    assert np.linalg.norm(embedder.embed(TEXTS).vectors, axis=1) == pytest.approx(1, abs=1e-6)


def test_weights_may_stand_under_bert(tmp_path: Path) -> None:
    more = {"bert.pooler.dense.weight": np.ones((12, 12), np.float32), "cls.predictions.bias": np.ones(3, np.float32)}
    embedder = Embedder.load(write_folder(tmp_path, CONFIG, {**{f"bert.{n}": w for n, w in WEIGHTS.items()}, **more}, shards=2))
    near(embedder.embed(TEXTS).vectors, wanted([embedder.tokenizer.encode(t) for t in TEXTS]))


def test_threads_are_each_as_alone(embedder: Embedder) -> None:
    alone = [embedder.embed([t]).vectors for t in TEXTS]
    found: dict[int, Array] = {}
    start = threading.Barrier(len(TEXTS))

    def work(i: int) -> None:
        start.wait()
        found[i] = embedder.embed([TEXTS[i]]).vectors

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(TEXTS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, one in enumerate(alone):
        np.testing.assert_array_equal(found[i], one)


@pytest.mark.parametrize("lanes", [0, 1, 2, 3, 8])
def test_parts_hold_every_text_once_and_no_lane_has_much_more_than_another(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    for count in [*range(12), 40, 133]:
        for batch in (1, 3, 32):
            for most in (5, 128, 700):
                lengths = rng.integers(3, most + 1, count).tolist()
                alone, together = parts(lengths, lanes, batch)
                held = sorted((p.start, p.stop) for p in [*alone, *together])
                assert [k for lo, hi in held for k in range(lo, hi)] == list(range(count))
                assert all(0 < hi - lo <= batch for lo, hi in held)
                assert all(p.stop - p.start == 1 or sum(lengths[p]) <= rooms.LANE_ROWS for p in alone)
                assert not alone or lanes
                if alone:
                    rows = [sum(lengths[p]) for p in alone]
                    assert rows == sorted(rows, reverse=True)
                    assert longest(rows, lanes) <= rooms.UNEVEN * sum(rows) / lanes


def test_many_rows_are_cut_into_lanes_and_few_are_not() -> None:
    assert parts([128] * 8, 2, 32) == ([slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)], [])
    assert parts([128] * 9, 2, 32) == ([slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)], [slice(8, 9)])
    assert parts([128], 2, 32) == ([], [slice(0, 1)])
    assert parts([128, 128, 100], 2, 32) == ([], [slice(0, 3)]), "one lane would have twice as much to do"
    assert parts([128] * 8, 0, 3) == ([], [slice(0, 3), slice(3, 6), slice(6, 8)])


def test_lanes_change_no_vector(folder: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "LANE_ROWS", 9)
    ids = [embedder.tokenizer.encode(t) for t in TEXTS]
    monkeypatch.setattr(type(embedder.graph), "lanes", property(lambda g: 2))
    assert len(parts([len(i) for i in ids], 2, embedder.batch)[0]) > 2
    near(embedder.embed(TEXTS).vectors, wanted(ids))
    near(embedder.run([np.array(i) for i in ids]), wanted(ids))
