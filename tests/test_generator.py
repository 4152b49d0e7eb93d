"""Generation over tiny models: what ends it, what repeats, and that conversations, chunks and threads do not change it."""
from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_oracles import decoder_oracle
from tiny_models import END, TOKENS, Config, Weights, decoder_config, decoder_weights, write_folder, write_model_gguf

from rlxpy.compiler import session
from rlxpy.errors import InputError, LoadError, RlxError
from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.plan import Plan
from rlxpy.fusion.plan import plan
from rlxpy.generate.generator import Conversation, Generation, Generator
from rlxpy.generate.sampling import Sampler
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph

CONFIG = decoder_config(tie_word_embeddings=False, max_position_embeddings=64)
WEIGHTS = decoder_weights(CONFIG, seed=3)
PROMPT = [40, 7, 93, 12, 60]
WARM = Sampler(temperature=1.0, seed=11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), CONFIG, WEIGHTS)


@pytest.fixture(scope="module")
def generator(folder: Path) -> Generator:
    """Context 64, chunks of 8, and no token that ends an answer."""
    return ending_with(Generator.load(folder, chunk=8, debug=True))


def ending_with(generator: Generator, *ids: int) -> Generator:
    """The same model, compiled once, with other tokens that end an answer."""
    tokenizer = replace(generator.tokenizer, eos_ids=frozenset(ids))
    return Generator(generator.graph, generator.config, tokenizer, context=generator.context, chunk=generator.chunk)


def greedy_by_oracle(prompt: Sequence[int], count: int, config: Config = CONFIG, weights: Weights = WEIGHTS) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(decoder_oracle(config, weights, ids)[-1].argmax()))
    return ids[len(prompt):]


# ---- what is generated

def test_greedy_tokens_are_the_oracles(generator: Generator) -> None:
    wanted = greedy_by_oracle(PROMPT, 9)
    assert len(set(wanted)) > 3
    for _ in range(2):
        found = generator.generate(PROMPT, max_tokens=9)
        assert (found.prompt_ids, found.ids, found.reason) == (PROMPT, wanted, "length")
    assert found.text == b"".join(map(generator.tokenizer.token_bytes, wanted)).decode("utf-8", "replace")


def test_a_prompt_may_be_text_ids_or_an_array(generator: Generator) -> None:
    text = "see the cat"
    ids = generator.tokenizer.encode(text)
    assert len(ids) < len(text)  # " the" is one token
    found = [generator.generate(p, max_tokens=3).to_json() for p in (text, ids, tuple(ids), np.array(ids))]  # type: ignore[arg-type]
    assert all(f["ids"] == found[0]["ids"] and f["prompt_ids"] == ids for f in found)


@pytest.mark.parametrize("write", [write_folder, write_model_gguf])
def test_every_file_of_one_model_gives_one_text(write: Callable[..., Path], tmp_path: Path) -> None:
    model = Generator.load(write(tmp_path / "model", CONFIG, WEIGHTS))
    found = model.generate("the cat", max_tokens=8)
    assert found.ids == greedy_by_oracle(model.tokenizer.encode("the cat"), 8)[:len(found.ids)]
    assert len(found.ids) == 8 or found.reason == "eos"


def test_a_chat_is_the_models_own_template_around_the_messages(tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG, WEIGHTS)
    messages = [{"role": "user", "content": "the cat"}]
    with pytest.raises(InputError, match="--raw"):
        Generator.load(tmp_path).chat_prompt(messages)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    assert Generator.load(tmp_path).chat_prompt(messages) == "user: the cat" + END


def test_a_narrow_cache_takes_half_the_memory(folder: Path, generator: Generator) -> None:
    model = Generator.load(folder, chunk=8, cache="bf16")
    assert model.graph.memory()["state_nbytes"] == generator.graph.memory()["state_nbytes"] / 2
    np.testing.assert_allclose(model.conversation().feed(PROMPT), generator.conversation().feed(PROMPT), atol=0.2)


def test_figures_of_a_run(generator: Generator) -> None:
    found = generator.generate(PROMPT, max_tokens=5)
    assert found.prefill_seconds > 0
    assert found.tokens_per_second == pytest.approx(4 / found.decode_seconds)
    assert set(found.to_json()) == {"prompt_ids", "ids", "text", "reason", "prefill_seconds", "decode_seconds", "tokens_per_second"}
    assert generator.generate(PROMPT, max_tokens=1).tokens_per_second == 0.0


# ---- A34: the context is a bound

@pytest.fixture(scope="module")
def short(folder: Path) -> Generator:
    return ending_with(Generator.load(folder, context=4, debug=True))


def test_generation_stops_where_the_context_ends(short: Generator) -> None:
    found = short.generate(PROMPT[:3], max_tokens=3)
    assert (found.ids, found.reason) == (greedy_by_oracle(PROMPT[:3], 1), "length")
    found = short.generate(PROMPT[:1], max_tokens=None)
    assert (found.ids, found.reason) == (greedy_by_oracle(PROMPT[:1], 3), "length")


def test_a_prompt_that_fills_the_context_leaves_no_place(short: Generator) -> None:
    found = short.generate(PROMPT[:4], max_tokens=3)
    assert (found.ids, found.text, found.reason) == ([], "", "length")


def test_a_prompt_beyond_the_context_is_refused_and_nothing_runs(short: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversation, "feed", lambda self, ids: pytest.fail("it ran"))
    for prompt, tokens in ((PROMPT[:5], 5), (PROMPT * 100, 500)):
        with pytest.raises(InputError, match=f"{tokens} tokens meet 4 positions(.|\n)*by {tokens - 4} tokens"):
            short.generate(prompt, max_tokens=3)


def test_requests_after_a_refused_one_are_right(short: Generator) -> None:
    with pytest.raises(InputError):
        short.generate(PROMPT, max_tokens=3)
    assert short.generate(PROMPT[:2], max_tokens=2).ids == greedy_by_oracle(PROMPT[:2], 2)


def test_feeding_beyond_the_context_changes_nothing(short: Generator) -> None:
    talk = short.conversation()
    first = talk.feed(PROMPT[:3])
    beyond = len(TOKENS)
    for ids, message in ((PROMPT[3:], r"3 \+ 2 tokens meet 4"), ([], "no tokens"), ([beyond], f"token {beyond} does not exist"), ([-1], "token -1")):
        with pytest.raises(InputError, match=message):
            talk.feed(ids)
        assert talk.ids == PROMPT[:3]
    wanted = decoder_oracle(CONFIG, WEIGHTS, PROMPT[:4])
    np.testing.assert_allclose(first, wanted[2], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(talk.feed(PROMPT[3:4]), wanted[3], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("context", [1, 2])
def test_the_shortest_contexts_work(folder: Path, context: int) -> None:
    model = ending_with(Generator.load(folder, context=context, debug=True))
    assert model.generate(PROMPT[:1]).ids == greedy_by_oracle(PROMPT[:1], context - 1)


@pytest.mark.parametrize(("options", "message"), [
    ({"context": 0}, "a context of 0"), ({"context": 65}, r"a context of 65 tokens(.|\n)*1\.\.64"), ({"context": -3}, "a context of -3"),
    ({"chunk": 0}, "chunk = 0"), ({"cache": "i8"}, "a cache of i8"), ({"cache": "f31"}, "no dtype 'f31'"),
    ({"weights": "squeezed"}, "weights='squeezed'"), ({"device": "abacus"}, "no device 'abacus'"),
])
def test_options_that_cannot_be(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RlxError, match=message):
        Generator.load(folder, **options)


def test_an_empty_prompt_is_refused(generator: Generator) -> None:
    prompts: list[str | list[int]] = ["", []]
    for prompt in prompts:
        with pytest.raises(InputError, match="no tokens to feed"):
            generator.generate(prompt)


@pytest.mark.parametrize("prompt", [[1.0], ["a"], 3, [None], [[1]]], ids=str)
def test_a_prompt_that_is_none_is_refused(generator: Generator, prompt: Any) -> None:
    for give in (generator.generate, generator.conversation().feed):
        with pytest.raises(InputError, match="are no token ids"):
            give(prompt)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="nowhere"):
        Generator.load(tmp_path / "nowhere")
    write_folder(tmp_path, CONFIG, WEIGHTS)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"wanted tokenizer\.json"):
        Generator.load(tmp_path)


# ---- what ends it

def test_an_end_token_ends_it_and_is_no_text(generator: Generator) -> None:
    ids = greedy_by_oracle(PROMPT, 9)
    at = next(i for i in range(2, 9) if ids[i] not in ids[:i])
    for ends in ({ids[at]}, {ids[at], TOKENS.index(END)}):
        found = ending_with(generator, *ends).generate(PROMPT, max_tokens=9)
        assert (found.ids, found.reason) == (ids[:at + 1], "eos")
        assert found.text == generator.tokenizer.decode(ids[:at])


def test_nothing_is_generated_when_nothing_is_asked_for(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversation, "feed", lambda self, ids: pytest.fail("it ran"))
    found = generator.generate(PROMPT, max_tokens=0)
    assert (found.prompt_ids, found.ids, found.text, found.reason) == (PROMPT, [], "", "length")
    with pytest.raises(InputError, match="max_tokens = -1"):
        generator.generate(PROMPT, max_tokens=-1)


def test_a_stop_string_cuts_the_text_wherever_tokens_end(generator: Generator) -> None:
    whole = generator.generate(PROMPT, max_tokens=12)
    text = [generator.tokenizer.decode([i]) for i in whole.ids]
    assert all(len(t) == 1 for t in text[:6]), text
    for first, length in ((0, 1), (1, 2), (2, 3), (1, 5)):
        stop = "".join(text[first:first + length])
        found = generator.generate(PROMPT, max_tokens=12, stop=["never met", stop])
        assert found.reason == "stop"
        assert found.text == whole.text[:whole.text.index(stop)]
        assert found.ids == whole.ids[:len(found.text) + length]


def test_the_beginning_of_a_stop_string_is_text_after_all(generator: Generator) -> None:
    whole = generator.generate(PROMPT, max_tokens=6)
    found = generator.generate(PROMPT, max_tokens=6, stop=[whole.text[-2:] + "?!?"])
    assert (found.text, found.reason) == (whole.text, "length")


# ---- chance

def test_a_seed_repeats_and_another_differs(generator: Generator) -> None:
    runs = {seed: generator.generate(PROMPT, sampler=replace(WARM, seed=seed), max_tokens=20).ids for seed in (1, 2, 3)}
    assert len({tuple(ids) for ids in runs.values()}) == 3
    for seed, ids in runs.items():
        assert generator.generate(PROMPT, sampler=replace(WARM, seed=seed), max_tokens=20).ids == ids
    fresh = {tuple(generator.generate(PROMPT, sampler=replace(WARM, seed=None), max_tokens=20).ids) for _ in range(4)}
    assert len(fresh) > 1


def test_taking_up_a_text_goes_on_as_it_would_have(generator: Generator) -> None:
    whole = generator.generate(PROMPT, sampler=WARM, max_tokens=12).ids
    assert generator.generate([*PROMPT, *whole[:5]], sampler=WARM, max_tokens=7).ids == whole[5:]


def test_the_samplers_settings_are_used(generator: Generator) -> None:
    greedy = generator.generate(PROMPT, max_tokens=12).ids
    for settings in ({"top_k": 1}, {"temperature": 1e-9}, {"top_p": 1e-9}, {"min_p": 1.0}):
        same = replace(WARM, **settings)
        assert generator.generate(PROMPT, sampler=same, max_tokens=12).ids == greedy
    once = generator.generate(PROMPT, sampler=Sampler(repetition_penalty=1e9), max_tokens=12).ids
    assert len({*once, *PROMPT}) == len(once) + len(PROMPT)  # no token twice, the prompt's included


# ---- streaming

def test_pieces_joined_are_the_text(generator: Generator) -> None:
    asked: list[dict[str, Any]] = [{}, {"sampler": WARM}, {"stop": ["zz"]}, {"sampler": replace(WARM, temperature=3.0)}]
    for options in asked:
        result = Generation([])
        pieces = list(generator.stream(PROMPT, result, max_tokens=30, **options))
        assert "".join(p.text for p in pieces) == result.text
        assert [p.token for p in pieces] == result.ids
        whole = generator.generate(PROMPT, max_tokens=30, **options)
        assert (whole.text, whole.ids, whole.reason) == (result.text, result.ids, result.reason)


def test_the_result_grows_with_the_pieces_and_may_be_left(generator: Generator) -> None:
    result = Generation([])
    stream = generator.stream(PROMPT, result, max_tokens=30)
    for count in (1, 2, 3):
        piece = next(stream)
        assert (len(result.ids), result.ids[-1], result.reason) == (count, piece.token, None)
    del stream
    assert result.ids == greedy_by_oracle(PROMPT, 3)
    assert generator.generate(PROMPT, max_tokens=3).ids == result.ids


def test_two_streams_in_turn_are_each_as_alone(generator: Generator) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    alone = [generator.generate(p, max_tokens=10).ids for p in prompts]
    results = [Generation([]), Generation([])]
    for _ in zip(*(generator.stream(p, r, max_tokens=10) for p, r in zip(prompts, results, strict=True)), strict=True):
        pass
    assert [r.ids for r in results] == alone


# ---- conversations

@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_logits_do_not_depend_on_how_tokens_are_fed(generator: Generator, folder: Path, chunk: int) -> None:
    ids = (PROMPT * 4)[:18]
    wanted = decoder_oracle(CONFIG, WEIGHTS, ids)[-1]
    np.testing.assert_allclose(generator.conversation().feed(ids), wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(Generator.load(folder, chunk=chunk).conversation().feed(ids), wanted, rtol=2e-5, atol=2e-5)
    talk = generator.conversation()
    parts = [talk.feed(ids[i:i + chunk]) for i in range(0, len(ids), chunk)]
    np.testing.assert_allclose(parts[-1], wanted, rtol=2e-5, atol=2e-5)
    assert talk.ids == ids


def test_logits_belong_to_the_caller(generator: Generator) -> None:
    talk = generator.conversation()
    first = talk.feed(PROMPT)
    kept = first.copy()
    second = talk.feed([3])
    assert np.array_equal(first, kept)
    first[:] = np.nan
    second[:] = np.nan
    assert np.isfinite(talk.feed([4])).all()


def test_conversations_in_turn_are_each_as_alone(generator: Generator) -> None:
    texts = [PROMPT * 2, PROMPT[::-1] * 2]
    alone = [generator.conversation().feed(t) for t in texts]
    talks = [generator.conversation() for _ in texts]
    for a, b in ((0, 4), (4, 5), (5, 10)):
        together = [talk.feed(t[a:b]) for talk, t in zip(talks, texts, strict=True)]
    for got, wanted in zip(together, alone, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_conversation_that_goes_on_computes_what_is_new_alone(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt is the whole text so far; where it differs from what the conversation holds, that much is forgotten."""
    talk, fed = generator.conversation(), list[int]()
    feed = talk.feed

    def counted(ids: list[int]) -> Array:
        fed.append(len(ids))
        return feed(ids)

    monkeypatch.setattr(talk, "feed", counted)
    back = PROMPT[::-1]
    for prompt, new in ((PROMPT, 5), ([*PROMPT, 9, 9], 2), ([*PROMPT, 9, 9], 1), ([PROMPT[0], 5, 5], 2), (back, 5), (back[:2], 1)):
        fed.clear()
        result = Generation([])
        list(generator.stream(prompt, result, max_tokens=4, conversation=talk))
        assert (result.ids, fed) == (generator.generate(prompt, max_tokens=4).ids, [new, 1, 1, 1])
    with pytest.raises(InputError, match="does not fit"):
        list(generator.stream([1] * 65, Generation([]), conversation=talk))
    assert talk.ids[:2] == back[:2]


def test_threads_are_each_as_alone(generator: Generator) -> None:
    prompts = [[1 + i, 20 + i, 3] for i in range(6)]
    alone = [generator.generate(p, sampler=WARM, max_tokens=12).ids for p in prompts]
    found: dict[int, list[int]] = {}
    start = threading.Barrier(len(prompts))

    def work(i: int) -> None:
        start.wait()
        found[i] = generator.generate(prompts[i], sampler=WARM, max_tokens=12).ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [found[i] for i in range(len(prompts))] == alone


def test_one_plan_serves_every_length(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def planned(graph: Graph, spec: BackendSpec) -> Plan:
        made.append(graph)
        return plan(graph, spec)

    monkeypatch.setattr(session, "make_plan", planned)
    model = Generator.load(folder, chunk=4)
    for length in (1, 2, 3, 4, 5, 11):
        model.generate((PROMPT * 3)[:length], max_tokens=3)
    assert len(made) == 1


def test_a_forgotten_conversation_frees_its_memory_at_once(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[weakref.ref[Any]] = []
    made = generator.graph.new_state
    monkeypatch.setattr(generator.graph, "new_state", lambda: kept(made(), states))
    gc.disable()
    try:
        generator.generate(PROMPT, max_tokens=4)
        talk = generator.conversation()
        talk.feed(PROMPT)
        assert [s() is None for s in states] == [True, False]
        del talk
        assert [s() is None for s in states] == [True, True]
    finally:
        gc.enable()


def kept(state: Any, states: list[weakref.ref[Any]]) -> Any:
    states.append(weakref.ref(state))
    return state


def test_logits_beyond_the_tokenisers_vocabulary_are_padding(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": len(TOKENS) + 27}
    weights = decoder_weights(config, seed=3)
    weights["lm_head.weight"][len(TOKENS):] *= 1000  # padding that would win
    model = Generator.load(write_folder(tmp_path, config, weights), weights="packed")
    assert max(model.generate(PROMPT, sampler=WARM, max_tokens=20).ids) < len(TOKENS)
    assert decoder_oracle(config, weights, PROMPT)[-1].argmax() >= len(TOKENS)


# ---- weights in memory

def test_packed_weights_stay_packed(tmp_path: Path) -> None:
    """What the running model holds, beside the mapped file, is far less than its weights as numbers."""
    config = decoder_config(hidden_size=512, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=8, head_dim=64)
    weights = decoder_weights(config)
    path = write_model_gguf(tmp_path / "a.gguf", config, weights, kind="Q4_0")
    dense_nbytes = sum(w.nbytes for w in weights.values())
    held: dict[str, int] = {}
    answers = {}
    for mode in ("packed", "dense"):
        tracemalloc.start()
        try:
            model = Generator.load(path, weights=mode, context=40, chunk=4)
            answers[mode] = model.generate(PROMPT, max_tokens=4).ids
            held[mode] = tracemalloc.get_traced_memory()[0]
            assert held[mode] < tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        arena = model.graph.memory()
        assert (arena["param_nbytes"] < 0.2 * dense_nbytes) == (mode == "packed")
    assert answers["packed"] == answers["dense"]
    assert held["packed"] < 0.2 * dense_nbytes < 0.9 * dense_nbytes < held["dense"]
