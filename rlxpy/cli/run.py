"""`rlx run`: a language model answers."""
from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.chat import chat
from rlxpy.cli.options import (
    Devices,
    ForceRow,
    Kernels,
    KeysAndValues,
    Model,
    Numerics,
    Packing,
    ProfileFile,
    Rounding,
    device_names,
    profile,
)
from rlxpy.cli.reading import stdin_text
from rlxpy.cli.report import Json, note, show
from rlxpy.cli.speaking import about, answer, checked_sampler, load, messages, summary


@command()
def run(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The text; - reads stdin.  On a terminal, without it: a chat.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on from the text as it is: no chat template.")] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="How the model is to behave; part of the chat template.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="X", help="0 is greedy, the default.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="N", help="Draw from the N likeliest tokens; 0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(metavar="X", help="Draw from the likeliest tokens that make up X; 1 is off.")] = None,
    min_p: Annotated[float | None, typer.Option(metavar="X", help="Draw from tokens at least X times as likely as the likeliest; 0 is off.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(metavar="X", help="Divides the logits of recent tokens; 1 is off.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed draws the same text.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens of the answer at most; default 256.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given again.")] = None,
    context: Annotated[int | None, typer.Option(metavar="N", help="Tokens of prompt and answer at most.")] = None,
    chunk: Annotated[int | None, typer.Option(metavar="N", help="Tokens of the prompt that are read at once.")] = None,
    weights: Packing = None,
    quantiser: Rounding = None,
    numerics: Numerics = None,
    cache: KeysAndValues = None,
    device: Devices = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    profile_file: ProfileFile = None,
    as_json: Json = False,
) -> None:
    """Let a language model answer.

    The text goes to stdout as it is made, a summary to stderr; --json prints one object in the end."""
    if prompt is None and (as_json or raw or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise typer.BadParameter("is missing; - reads stdin, and a terminal without options for it gets a chat", param_hint="PROMPT")
    if raw and system is not None:
        raise typer.BadParameter("has no place in a raw prompt", param_hint="--system")
    chosen = profile(profile_file, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed,
                     max_tokens=max_tokens, stop=tuple(stop) if stop else None, system=system, context=context, chunk=chunk,
                     weights=weights, numerics=numerics.value if numerics else None,
                     cache=cache.value if cache else None, device=device_names(device))
    text = prompt if prompt != "-" else stdin_text()
    sampler = checked_sampler(chosen)
    generator = load(model, chosen)
    if text is None:
        chat(generator, chosen, sampler)
        return
    result = answer(generator, text if raw else generator.chat_prompt(messages(chosen, text)), chosen, sampler, special=raw, silent=as_json)
    if as_json:
        show({"model": model, **about(generator), **result.to_json()}, "", as_json)
    else:
        note(summary(generator, result))
