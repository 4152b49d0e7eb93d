"""A chat on a terminal: `rlx run MODEL` without a prompt."""
from __future__ import annotations

from typing import TYPE_CHECKING

from rlxpy.cli.report import note
from rlxpy.cli.speaking import answer, messages, summary
from rlxpy.errors import InputError

if TYPE_CHECKING:
    from rlxpy.flow.profile import Profile
    from rlxpy.generate.generator import Generator
    from rlxpy.generate.sampling import Sampler

LEAVE = ("/exit", "/quit")


def chat(generator: Generator, profile: Profile, sampler: Sampler) -> None:
    """Until Ctrl-D or /exit.  One conversation: what was said is not computed again."""
    note("A chat: /exit or Ctrl-D leaves, Ctrl-C breaks off.")
    conversation, history = generator.conversation(), messages(profile, "")[:-1]
    while (text := _said()) is not None:
        history.append({"role": "user", "content": text})
        try:
            result = answer(generator, generator.chat_prompt(history), profile, sampler, special=False, conversation=conversation)
        except InputError as e:  # the context is full: what fits may still be said
            history.pop()
            note(f"error: {e}")
            continue
        history.append({"role": "assistant", "content": result.text})
        note(summary(generator, result))


def _said() -> str | None:
    """A line from the person, None at the end."""
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            return None
        if text:
            return None if text in LEAVE else text
