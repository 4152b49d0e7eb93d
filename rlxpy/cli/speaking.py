"""A language model loaded and heard: what `rlx run`, its chat and `rlx demo` share."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rlxpy.cli.progress import progress
from rlxpy.cli.report import printable, size

if TYPE_CHECKING:
    from rlxpy.flow.profile import Profile
    from rlxpy.generate.generator import Conversation, Generation, Generator
    from rlxpy.generate.sampling import Sampler


def checked_sampler(profile: Profile) -> Sampler:
    """Raises InputError for a setting outside its range, before a model is loaded for it."""
    from rlxpy.generate.sampling import Sampler
    from rlxpy.generate.stops import StopConditions

    StopConditions(strings=profile.sampling.stop, max_tokens=profile.sampling.max_tokens, context_length=profile.sizes.context)
    return Sampler(**profile.sampling.sampler())


def load(model: str, profile: Profile) -> Generator:
    """Fetched where it has to be, built and compiled as the profile says."""
    from rlxpy import hub
    from rlxpy.generate.generator import Generator

    with progress() as tell:
        path = hub.resolve(model, tell)
        tell(None, f"loading {Path(model).name}")
        return Generator.load(path, device=profile.compile.device or None, context=profile.sizes.context, chunk=profile.sizes.chunk,
                              weights=profile.compile.weights or "auto", numerics=profile.compile.numerics, cache=profile.compile.cache)


def messages(profile: Profile, text: str) -> list[dict[str, str]]:
    """The beginning of a chat."""
    system = [{"role": "system", "content": profile.sampling.system}] if profile.sampling.system else []
    return [*system, {"role": "user", "content": text}]


def answer(generator: Generator, prompt: str, profile: Profile, sampler: Sampler, *, special: bool, silent: bool = False,
           conversation: Conversation | None = None) -> Generation:
    """The answer, on stdout as it is made unless silent.  special: the prompt is plain text and gets the model's own start tokens."""
    from rlxpy.generate.generator import Generation

    result = Generation([])
    terminal = sys.stdout.isatty()
    for piece in generator.stream(prompt, result, sampler=sampler, max_tokens=profile.sampling.max_tokens, stop=profile.sampling.stop,
                                  special=special, conversation=conversation):
        if not silent:
            typer.echo(harmless(piece.text) if terminal else piece.text, nl=False)
    if not silent:
        typer.echo()
    return result


def harmless(text: str) -> str:
    """Text without the characters that steer a terminal, line breaks and tabs apart."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def about(generator: Generator) -> dict[str, Any]:
    """Where and how it runs."""
    g = generator.graph
    return {"device": g.device, "passed_over": g.passed_over, "weights": g.options.weights, "context": generator.context, "chunk": generator.chunk,
            **g.memory()}


def summary(generator: Generator, result: Generation) -> str:
    """One line about an answer."""
    speed = f"{result.tokens_per_second:.1f} tokens/s" if result.tokens_per_second else ""
    prefill = f"prompt of {len(result.prompt_ids)} in {result.prefill_seconds:.2f} s"
    parts = (f"{len(result.ids)} tokens", speed, prefill, f"ended by {result.reason}", f"on {generator.graph.device}")
    return f"[{', '.join(filter(None, parts))}]"


def memory_text(generator: Generator) -> str:
    """Weights, caches and scratch memory in words."""
    m = generator.graph.memory()
    return f"{size(m['param_nbytes'] + m['const_nbytes'])} weights, {size(m['state_nbytes'])} keys and values, {size(m['arena_nbytes'])} scratch"
