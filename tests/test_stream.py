"""A stream's pieces joined are the text, whole characters only, cut at the stop string wherever tokens end."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlxpy.errors import InputError
from rlxpy.flow.weights import open_weights
from rlxpy.generate.stops import StopConditions
from rlxpy.generate.stream import TextStream
from rlxpy.generate.tokenizer import Tokenizer

FAMILY = "👩‍👩‍👧‍👦"  # four emoji joined by U+200D: 25 bytes
TEXTS = ("", "plain", "Größe", "東京", FAMILY, "e\u0301\u0302", "🇯🇵🏳️‍🌈", "a\x00b\n")


class Bytes:
    """A vocabulary of the pieces it is given; token i is piece i, "special" ones have text that must not appear."""

    def __init__(self, pieces: Sequence[bytes], special: frozenset[int] = frozenset()) -> None:
        self.pieces, self.special_ids = pieces, special

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def pieces(parts: Sequence[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """What every token and the end give, and whether a stop string was met."""
    stream = TextStream(Bytes(parts), stops)
    return [*(stream.feed(i) for i in range(len(parts))), stream.flush()], stream.stopped


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


cuts = st.lists(st.integers(0, 60), max_size=12)


# Characters.

@given(text=st.one_of(st.text(max_size=20), st.sampled_from(TEXTS)), at=cuts)
def test_pieces_joined_are_the_text_and_each_holds_whole_characters(text: str, at: list[int]) -> None:
    found, stopped = pieces(split(text.encode("utf-8", "replace"), at))
    assert "".join(found) == text.encode("utf-8", "replace").decode()
    assert not stopped
    assert all("\ufffd" not in piece for piece in found) or "\ufffd" in text
    assert found[-1] == ""  # whole text leaves nothing for the end


nearly_text = st.lists(st.sampled_from([*FAMILY.encode(), *b"\xc0\xed\xa0\x80\xf8\xffa"]), max_size=20).map(bytes)


@given(data=st.one_of(st.binary(max_size=30), nearly_text), at=cuts)
def test_bytes_that_are_no_text_become_what_decoding_the_whole_gives(data: bytes, at: list[int]) -> None:
    assert "".join(pieces(split(data, at))[0]) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_appears_with_its_last_byte(text: str) -> None:
    data = text.encode()
    ends = {len(text[:i].encode()): text[i - 1] for i in range(1, len(text) + 1)}
    assert pieces([data[i:i + 1] for i in range(len(data))])[0] == [*(ends.get(i + 1, "") for i in range(len(data))), ""]


def test_bytes_that_cannot_become_a_character_do_not_wait() -> None:
    assert pieces([b"\xf0\x9f", b"a", b"\xe6\x9d"])[0] == ["", "\ufffda", "", "\ufffd"]
    assert pieces([b"\xff", b"\xc3", b"\xa9"])[0] == ["\ufffd", "", "é", ""]


def test_special_tokens_have_no_text_and_break_nothing() -> None:
    stream = TextStream(Bytes([b"\xc3", b"<|x|>", b"\xa9"], frozenset({1})))
    assert [stream.feed(i) for i in (1, 0, 1, 2)] == ["", "", "", "é"]


# Stop strings.

def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Read one character at a time; the first that completes a stop string ends the text before the longest such."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[:end - max(map(len, ending))], True
    return text, False


@given(text=st.text("ab€", max_size=14), stops=st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3), at=cuts)
def test_the_text_ends_before_the_stop_string_however_it_is_cut(text: str, stops: list[str], at: list[int]) -> None:
    found, stopped = pieces(split(text.encode(), at), tuple(stops))
    assert ("".join(found), stopped) == cut(text, stops)


@pytest.mark.parametrize(("parts", "stops", "expected"), [
    (["Hi", " U", "ser", ":x"], ("User:",), ["Hi", " ", "", "", ""]),
    (["Hi", " U", "se", "d"], ("User:",), ["Hi", " ", "", "Used", ""]),
    (["Hi U"], ("User:",), ["Hi ", "U"]),                       # the end comes first: what was held is text
    (["aab", "aac", "x"], ("aabaac",), ["", "", "", ""]),
    (["aab", "aab", "aac"], ("aabaac",), ["", "aab", "", ""]),    # a new beginning inside an old one
    (["abcd"], ("abcd", "bc"), ["a", ""]),                      # "bc" is complete before "abcd"
    (["xab"], ("ab", "xab", "b"), ["", ""]),                    # of those that end together, the longest
    (["a", "b"], ("a",), ["", "", ""]),
    (["a€", "€"], ("€€",), ["a", "", ""]),
])
def test_stop_strings(parts: list[str], stops: tuple[str, ...], expected: list[str]) -> None:
    assert pieces([part.encode() for part in parts], stops)[0] == expected


def test_after_the_stop_string_nothing_comes() -> None:
    stream = TextStream(Bytes([b"ab", b"END", b"more", b"\xff"]), ("END",))
    assert [stream.feed(i) for i in (0, 1, 2, 3)] == ["ab", "", "", ""]
    assert stream.stopped
    assert [stream.flush(), stream.flush()] == ["", ""]


def test_a_second_flush_is_empty() -> None:
    stream = TextStream(Bytes([b"U\xc3"]), ("User",))
    assert [stream.feed(0), stream.flush(), stream.flush()] == ["", "U\ufffd", ""]


# A real vocabulary.

@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_weights(smollm2_gguf).metadata)


@given(ids=st.lists(st.integers(0, 49151), max_size=20))
def test_a_stream_of_any_tokens_is_the_decoded_whole(smollm2: Tokenizer, ids: list[int]) -> None:
    stream = TextStream(smollm2)
    assert "".join([*map(stream.feed, ids), stream.flush()]) == smollm2.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_of_real_tokens_never_shows_half_a_character(smollm2: Tokenizer, text: str) -> None:
    stream, ids = TextStream(smollm2), smollm2.encode(text)
    found = [stream.feed(token) for token in ids]
    assert "".join(found) == text
    assert "\ufffd" not in "".join(found)


# When to stop.

@pytest.mark.parametrize(("state", "reason"), [
    ({"prompt": 3, "generated": 0}, None),
    ({"prompt": 3, "generated": 1, "last": 9}, None),
    ({"prompt": 3, "generated": 1, "last": 2}, "eos"),
    ({"prompt": 3, "generated": 1, "last": 7}, "eos"),
    ({"prompt": 3, "generated": 1, "last": 9, "matched": True}, "stop"),
    ({"prompt": 3, "generated": 4, "last": 9}, "length"),
    ({"prompt": 6, "generated": 2, "last": 9}, "length"),
    ({"prompt": 8, "generated": 0}, "length"),                                    # a full prompt leaves no place
    ({"prompt": 4, "generated": 4, "last": 9}, "length"),                         # both limits
    ({"prompt": 4, "generated": 4, "last": 2, "matched": True}, "eos"),           # all four
    ({"prompt": 4, "generated": 4, "last": 9, "matched": True}, "stop"),
])
def test_reasons(state: dict[str, Any], reason: str | None) -> None:
    assert StopConditions(end_ids=frozenset({2, 7}), strings=("x",), max_tokens=4, context_length=8).reason(**state) == reason


def test_without_conditions_nothing_stops() -> None:
    assert StopConditions().reason(prompt=10**9, generated=10**9, last=0) is None
    assert StopConditions(max_tokens=0).reason(prompt=1, generated=0) == "length"


def test_case_a34_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    stops = StopConditions(max_tokens=3, context_length=4)
    assert [stops.reason(prompt=3, generated=n) for n in (0, 1)] == [None, "length"]
    assert stops.reason(prompt=4, generated=0) == "length"
    with pytest.raises(InputError, match="5 tokens meet 4 positions"):
        stops.reason(prompt=5, generated=0)


@pytest.mark.parametrize(("conditions", "told"), [
    ({"strings": "User:"}, "wanted a tuple"), ({"strings": ("",)}, "at least 1 character"), ({"strings": (3,)}, "at least 1 character"),
    ({"max_tokens": -1}, "-1 is below 0"), ({"context_length": 0}, "0 is below 1")])
def test_conditions_that_mean_nothing_are_refused(conditions: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        StopConditions(**conditions)


def test_a_stream_checks_its_stop_strings() -> None:
    for stops in ("END", ("",)):
        with pytest.raises(InputError):
            TextStream(Bytes([]), stops)


def test_conditions_are_values() -> None:
    assert StopConditions({1, 2}, ["a"]) == StopConditions(frozenset({2, 1}), ("a",))  # type: ignore[arg-type]  # any set will do
    assert len({StopConditions(strings=["a"]), StopConditions(strings=("a",))}) == 1
