"""Token ids to text, piece by piece: never half a character, never the beginning of a stop string."""
from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Collection, Sequence
from typing import Protocol

from rlxpy.generate.stops import StopConditions


class Vocabulary(Protocol):
    """The part of a Tokenizer that a stream reads."""

    @property
    def special_ids(self) -> Collection[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class TextStream:
    """Text of a growing list of tokens.  The pieces joined are the UTF-8 text of the joined token bytes, cut at a stop string.

    - Bytes wait until their code point is complete; bytes that cannot become one turn into U+FFFD as in `bytes.decode(errors=
      "replace")`, a truncated character at the end included.  A sequence of code points that a terminal shows as one sign
      (emoji joined by U+200D) may be split between pieces, at whole code points only.
    - Text that may still become a stop string waits.  The stop string that is complete first ends the stream, the longest of
      those that end at one character; so how the text is divided into tokens cannot change the result.
    - Special tokens have no text.

    Nothing is stripped: the space a SentencePiece token starts with is text, since a stream goes on from a prompt."""

    def __init__(self, vocabulary: Vocabulary, stop_strings: Sequence[str] = ()) -> None:
        self.stopped = False
        self._vocabulary = vocabulary
        self._stops = StopConditions(strings=stop_strings).strings
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, token: int) -> str:
        """Text that the token makes final, often "".  After the stop string (`stopped`) always ""."""
        if token in self._vocabulary.special_ids:
            return ""
        return self._release(self._decoder.decode(self._vocabulary.token_bytes(token)))

    def flush(self) -> str:
        """What was held back, at the end of the tokens; a second call gives ""."""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text, self._held = self._held + text, ""
        start = first_stop(text, self._stops)
        if start is not None:
            self.stopped = True
            return text[:start]
        cut = len(text) - unfinished_stop(text, self._stops)
        self._held = text[cut:]
        return text[:cut]


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string begins that is complete first, the longest of those that end together; None without any."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def unfinished_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning, not the whole, of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    return next((n for n in range(min(longest, len(text)), 0, -1) if any(s.startswith(text[-n:]) for s in stops)), 0)
