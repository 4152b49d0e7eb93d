"""When generation ends: conditions as data, and the name of the one that was met."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass

StopReason: TypeAlias = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class StopConditions:
    """What ends a generation; the first that holds, in this order, names the reason.

    eos     the last token is one of `end_ids` (its text is not part of the answer)
    stop    the text holds one of `strings` (the answer ends before it)
    length  `max_tokens` were generated (0 generates nothing), or prompt and answer together fill `context_length`
            positions; None is no limit

    Raises InputError when a condition could never hold or always would."""

    end_ids: frozenset[int] = frozenset()
    strings: Sequence[str] = ()
    max_tokens: int | None = None
    context_length: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.strings, str):
            raise InputError(f"stop strings {self.strings!r}", why="wanted a tuple of strings, found one string",
                             fix=f"strings=({self.strings!r},)")
        object.__setattr__(self, "strings", tuple(self.strings))
        object.__setattr__(self, "end_ids", frozenset(self.end_ids))
        for text in self.strings:
            if not isinstance(text, str) or not text:
                raise InputError(f"stop string {text!r}", why="wanted at least 1 character", fix="leave it out")
        for name, value, least in (("max_tokens", self.max_tokens, 0), ("context_length", self.context_length, 1)):
            if value is not None and value < least:
                raise InputError(f"{name} = {value}", why=f"{value} is below {least}", fix="None means no limit")

    def reason(self, *, prompt: int, generated: int, last: int | None = None, matched: bool = False) -> StopReason | None:
        """Why to stop now, or None to go on.

        prompt, generated: counts of tokens so far.  last: the newest token, None before the first.  matched: the text
        holds a stop string.  Raises InputError when the prompt alone is longer than the context."""
        if self.context_length is not None and prompt > self.context_length:
            raise InputError("the prompt does not fit the context", why=f"{prompt} tokens meet {self.context_length} positions",
                             fix=f"shorten the prompt by {prompt - self.context_length} tokens, or compile for a longer context")
        if last is not None and last in self.end_ids:
            return "eos"
        if matched:
            return "stop"
        limits = ((generated, self.max_tokens), (prompt + generated, self.context_length))
        return "length" if any(most is not None and count >= most for count, most in limits) else None
