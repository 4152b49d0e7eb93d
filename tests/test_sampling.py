"""Samplers draw from the distribution that their docstring describes, and the same seed gives the same tokens."""
from __future__ import annotations

from math import exp, inf, log, nan
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from rlxpy.errors import InputError
from rlxpy.generate.sampling import Sampler

RNG = np.random.default_rng(0)


def logs(*weights: float) -> np.ndarray[Any, Any]:
    """Logits whose softmax is proportional to the weights; weight 0 is -inf."""
    return np.array([log(w) if w else -inf for w in weights], np.float32)


def near(found: np.ndarray[Any, Any], *weights: float) -> bool:
    return bool(np.allclose(found, np.array(weights) / sum(weights), rtol=1e-6, atol=0))


# Closed forms.

@pytest.mark.parametrize(("options", "weights", "expected"), [
    ({"temperature": 1}, (1, 2, 4), (1, 2, 4)),
    ({"temperature": 2}, (1, 4, 16), (1, 2, 4)),
    ({"temperature": 0.5}, (1, 2, 4), (1, 4, 16)),
    ({"temperature": 1}, (0, 3, 0, 1), (0, 3, 0, 1)),
    ({"temperature": 1, "top_k": 2}, (1, 4, 2, 3), (0, 4, 0, 3)),
    ({"temperature": 1, "top_k": 1}, (1, 4, 2, 3), (0, 1, 0, 0)),
    ({"temperature": 1, "top_k": 2}, (5, 5, 5, 1), (5, 5, 0, 0)),           # ties to the lower index
    ({"temperature": 1, "top_k": 3}, (0, 5, 0, 1), (0, 5, 0, 1)),           # never a token of probability 0
    ({"temperature": 1, "top_k": 0}, (1, 4, 2), (1, 4, 2)),
    ({"temperature": 1, "top_k": 99}, (1, 4, 2), (1, 4, 2)),
    ({"temperature": 1, "top_p": 0.45}, (2, 5, 3), (0, 1, 0)),
    ({"temperature": 1, "top_p": 0.6}, (2, 5, 3), (0, 5, 3)),
    ({"temperature": 1, "top_p": 0.85}, (2, 5, 3), (2, 5, 3)),
    ({"temperature": 1, "top_p": 0}, (2, 5, 3), (0, 1, 0)),
    ({"temperature": 1, "top_p": 0.4}, (1, 1, 1, 1), (1, 1, 0, 0)),
    ({"temperature": 1, "min_p": 0.5}, (2, 5, 3), (0, 5, 3)),
    ({"temperature": 1, "min_p": 1}, (2, 5, 5, 3), (0, 1, 1, 0)),
    ({"temperature": 0.5, "top_p": 0.6}, (5, 3, 2), (1, 0, 0)),             # 25/38 after temperature, 5/10 before
    ({"temperature": 1, "top_k": 2, "top_p": 0.5}, (4, 3, 2, 1), (1, 0, 0, 0)),   # 4/7 of what top_k left
    ({"temperature": 1, "top_p": 0.6, "min_p": 0.7}, (5, 3, 2), (1, 0, 0)),
    ({"temperature": 2, "min_p": 0.3}, (25, 4, 1), (5, 2, 0)),              # min_p reads what temperature left
    ({}, (1, 4, 2), (0, 1, 0)),
    ({}, (1, 4, 4), (0, 1, 0)),
])
def test_distribution(options: dict[str, float], weights: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert near(Sampler(**cast(Any, options)).probabilities(logs(*weights)), *expected)


@pytest.mark.parametrize(("options", "history", "expected"), [
    ({}, [0, 1], (exp(1), exp(-4), exp(1), 1)),              # divided when positive, multiplied when negative
    ({}, [0, 0, 0], (exp(1), exp(-2), exp(1), 1)),           # once, however often it came
    ({}, [3], (exp(2), exp(-2), exp(1), 1)),                 # a logit of 0 stays
    ({}, [], (exp(2), exp(-2), exp(1), 1)),
    ({"repeat_window": 2}, [0, 1, 2], (exp(2), exp(-4), exp(0.5), 1)),
    ({"repeat_window": 0}, [0, 1, 2], (exp(2), exp(-2), exp(1), 1)),
    ({}, [0] + [3] * 63, (exp(1), exp(-2), exp(1), 1)),      # 64 tokens back is the default
    ({}, [0] + [3] * 64, (exp(2), exp(-2), exp(1), 1)),
    ({"repetition_penalty": 0.5}, [2, 1], (exp(2), exp(-1), exp(2), 1)),
])
def test_repetition_penalty(options: dict[str, float], history: list[int], expected: tuple[float, ...]) -> None:
    sampler = Sampler(**cast(Any, {"temperature": 1, "repetition_penalty": 2, **options}))
    for given_history in (history, tuple(history), np.array(history, np.int32)):
        assert near(sampler.probabilities(np.array([2.0, -2, 1, 0]), cast(Any, given_history)), *expected)


def test_the_penalty_changes_what_is_greedy() -> None:
    sampler = Sampler(repetition_penalty=1.5)
    assert sampler.pick(np.array([3.0, 2.5]), [], RNG) == 0
    assert sampler.pick(np.array([3.0, 2.5]), [0], RNG) == 1


def reference(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The docstring's steps on lists, one token at a time."""
    weights = [exp((x - max(logits)) / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-weights[i], i))[: top_k or None]
    total, reached = sum(weights[i] for i in order), 0.0
    kept: list[int] = []
    for i in order:
        if top_p < 1 and kept and reached / total >= top_p:
            break
        kept.append(i)
        reached += weights[i]
    kept = [i for i in kept if weights[i] >= min_p * weights[order[0]]]
    return [weights[i] / sum(weights[j] for j in kept) if i in kept else 0.0 for i in range(len(logits))]


@given(logits=st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=1, max_size=9), temperature=st.sampled_from([0.3, 1.0, 2.5]),
       top_k=st.integers(0, 10), top_p=st.floats(0, 1), min_p=st.floats(0, 1))
def test_all_steps_together(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    expected = reference(logits, temperature, top_k, top_p, min_p)
    assume(all(reference(logits, temperature, top_k, min(1, max(0, top_p + e)), min(1, max(0, min_p + d))) == expected
               for e in (-1e-9, 1e-9) for d in (-1e-9, 1e-9)))  # no edge within rounding
    sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert np.allclose(sampler.probabilities(np.array(logits)), expected, rtol=1e-9, atol=0)


# Drawing.

@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3}])
def test_draws_follow_the_distribution(options: dict[str, float]) -> None:
    count, logits = 20_000, logs(3, 0, 1, 4, 2)
    sampler = Sampler(temperature=1, seed=11, **cast(Any, options))
    drawn = np.bincount([sampler.pick(logits, [], sampler.rng(i)) for i in range(count)], minlength=5)
    kept = {"top_k": [3, 0, 0, 4, 2], "top_p": [3, 0, 0, 4, 2], "min_p": [3, 0, 0, 4, 2]}.get(next(iter(options), ""), [3, 0, 1, 4, 2])
    p = np.array(kept) / sum(kept)
    assert np.all(np.abs(drawn - count * p) <= 5 * np.sqrt(count * p * (1 - p)))  # 0 draws where p is 0


class Fixed:
    """A generator that always gives one number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_the_ends_of_the_range_never_draw_a_token_of_probability_0(number: float, token: int) -> None:
    assert Sampler(temperature=1).pick(logs(0, 1, 0, 1, 0), [], cast(Any, Fixed(number))) == token


def test_the_sum_rounds_but_the_last_token_is_in_it() -> None:
    logits = np.log(RNG.random(1000))
    logits[-3:] = -inf
    assert Sampler(temperature=1).pick(logits, [], cast(Any, Fixed(1 - 2**-53))) == 996


# Case A35.

@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-300])
def test_no_temperature_is_greedy(seed: int, temperature: float) -> None:
    sampler = Sampler(temperature=temperature, seed=seed)
    for top_k in (0, 1, 99):
        chosen = Sampler(temperature=temperature, top_k=top_k, seed=seed)
        assert chosen.pick(np.array([1, 3, 2], np.float32), [], sampler.rng(0)) == 1
        assert np.array_equal(chosen.probabilities(np.array([1, 3, 2], np.float32)), [0, 1, 0])


def test_great_temperatures_and_logits_stay_numbers() -> None:
    assert near(Sampler(temperature=1e308).probabilities(np.array([1e300, -1e300, -inf])), 1, 1, 0)
    assert near(Sampler(temperature=1).probabilities(np.array([1e308, -1e308])), 1, 0)
    assert near(Sampler(temperature=1e308, top_k=1).probabilities(np.array([1.0, 2.0])), 0, 1)


# Seeds.

LOGITS = np.random.default_rng(7).normal(size=(12, 50)).astype(np.float32)


def test_the_same_seed_gives_the_same_tokens_in_any_order() -> None:
    sampler = Sampler(temperature=1, seed=5)
    onward = [sampler.pick(LOGITS[i], [], sampler.rng(i)) for i in range(12)]
    backward = [Sampler(temperature=1, seed=5).pick(LOGITS[i], [], Sampler(seed=5).rng(i)) for i in reversed(range(12))]
    assert onward == backward[::-1]
    assert onward != [sampler.pick(LOGITS[i], [], Sampler(seed=6).rng(i)) for i in range(12)]


def test_positions_and_seeds_have_numbers_of_their_own() -> None:
    numbers = [Sampler(seed=seed).rng(position).random() for seed in (0, 1, 2**64 - 1) for position in (0, 1, 2, 10**6)]
    assert len(set(numbers)) == len(numbers)
    assert Sampler().rng(0).random() != Sampler().rng(0).random()


def philox(key: int, counter: list[int]) -> int:
    """First word of Philox4x64-10 (Salmon et al. 2011, table 2)."""
    word, keys = 2**64 - 1, [key, 0]
    for _ in range(10):
        first, third = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [third >> 64 ^ counter[1] ^ keys[0], third & word, first >> 64 ^ counter[3] ^ keys[1], first & word]
        keys = [keys[0] + 0x9E3779B97F4A7C15 & word, keys[1] + 0xBB67AE8584CAA73B & word]
    return counter[0]


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 1, 2**40])
def test_seeded_numbers_are_philoxs_own(seed: int, position: int) -> None:
    assert Sampler(seed=seed).rng(position).random() == (philox(seed, [1, 0, 0, position]) >> 11) * 2.0**-53


# Inputs.

@pytest.mark.parametrize("logits", [
    np.array([1, 4, 2, 3], np.float16), np.array([1, 4, 2, 3], ml_dtypes.bfloat16), np.array([1, 4, 2, 3], np.int32),
    np.array([3, 0, 2, 0, 4, 0, 1, 0], np.float32)[::-2], np.arange(8, dtype=np.float64).reshape(4, 2)[:, 1] % 6])
def test_any_dtype_and_strides_and_never_changed(logits: np.ndarray[Any, Any]) -> None:
    before = logits.copy()
    logits.flags.writeable = False
    sampler = Sampler(temperature=1, top_k=2, repetition_penalty=2)
    assert np.allclose(sampler.probabilities(logits, [0]), sampler.probabilities(np.ascontiguousarray(logits).astype(np.float64), [0]))
    assert sampler.pick(logits, [0], RNG) in range(4)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("logits", "told"), [
    ([1, nan, 3], "logit 1 of 3.*found nan"), ([nan], "found nan"), ([1, 2, inf], "logit 2 of 3.*found inf"),
    ([-inf, -inf], "all 2 logits are -inf"), ([], r"found \[0\]"), ([[1, 2]], r"found \[1, 2\]"), (3, r"found \[\]"),
    (["a"], "could not convert"), (None, r"found \[\]")])
def test_logits_that_choose_nothing_are_refused(logits: Any, told: str, temperature: float) -> None:
    sampler = Sampler(temperature=temperature)
    with pytest.raises(InputError, match=f"(?s){told}"):
        sampler.pick(logits, [], RNG)
    with pytest.raises(InputError, match=f"(?s){told}"):
        sampler.probabilities(logits)


@pytest.mark.parametrize("token", [-1, 3])
def test_history_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InputError, match=f"token {token} meets 3 logits"):
        Sampler(repetition_penalty=2).pick(np.zeros(3), [0, token], RNG)


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", -0.1), ("temperature", nan), ("temperature", inf), ("temperature", "1"), ("temperature", True), ("temperature", None),
    ("top_k", -1), ("top_k", 1.5), ("top_k", True), ("top_p", -0.1), ("top_p", 1.1), ("top_p", nan), ("min_p", -0.1), ("min_p", 2),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", inf), ("repeat_window", -1), ("repeat_window", 2.0),
    ("seed", -1), ("seed", 2**64), ("seed", 1.0), ("seed", True), ("seed", "x")])
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        Sampler(**{name: value})
    assert name in caught.value.what
    assert all((caught.value.why, caught.value.fix))


def test_numpy_numbers_are_numbers() -> None:
    sampler = Sampler(temperature=cast(float, np.float32(0.5)), top_k=cast(int, np.int64(2)), seed=cast(int, np.uint64(2**64 - 1)))
    assert near(sampler.probabilities(logs(1, 2, 3)), 0, 4, 9)
    assert 0 <= sampler.rng(0).random() < 1


def test_positions_count_from_0() -> None:
    with pytest.raises(InputError, match="-1 is below 0"):
        Sampler(seed=1).rng(-1)
