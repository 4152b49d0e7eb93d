"""The loop: prefill in chunks, pick, feed back, until something ends it; one compiled graph does it all."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import index
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.session import compile
from rlxpy.errors import InputError
from rlxpy.flow.families import DECODERS, LlamaConfig, llama
from rlxpy.frozen import dataclass
from rlxpy.generate.chat import render
from rlxpy.generate.opened import OpenedModel, asked, open_model
from rlxpy.generate.sampling import Sampler
from rlxpy.generate.stops import StopConditions, StopReason
from rlxpy.generate.stream import TextStream
from rlxpy.generate.tokenizer import Tokenizer
from rlxpy.ir.dtypes import Array

DEFAULT_CONTEXT = 2048  # tokens of prompt and answer; a longer one costs cache memory, so it is asked for
DEFAULT_CHUNK = 64      # prompt tokens a run; larger chunks need a larger arena


@dataclass(frozen=True)
class Piece:
    """One generated token, and the text that became final with it (often "")."""

    token: int
    text: str


@dataclass
class Generation:
    """A finished (or running) answer."""

    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: StopReason | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token comes from the prefill."""
        return (len(self.ids) - 1) / self.decode_seconds if len(self.ids) > 1 and self.decode_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {"prompt_ids": self.prompt_ids, "ids": self.ids, "text": self.text, "reason": self.reason, "prefill_seconds": self.prefill_seconds,
                "decode_seconds": self.decode_seconds, "tokens_per_second": self.tokens_per_second}


def token_ids(given: Iterable[Any]) -> list[int]:
    """Raises InputError for what is no sequence of whole numbers."""
    try:
        return [index(i) for i in given]
    except TypeError as e:
        raise InputError(f"{given!r:.60} are no token ids", why=str(e), fix="pass whole numbers, or a text to generate from") from None


class Conversation:
    """Tokens so far and the memory that holds their keys and values.  Forgetting it frees both."""

    def __init__(self, generator: Generator) -> None:
        self._generator, self._state = generator, generator.graph.new_state()
        self.ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> Array:
        """Append tokens; gives the logits, f32 [vocab], after the last.  Raises InputError beyond the context, and is then unchanged."""
        g, ids = self._generator, token_ids(ids)
        if not ids:
            raise InputError("no tokens to feed", why="a prompt of 0 tokens has no next one", fix="give a prompt of one token or more")
        if len(self.ids) + len(ids) > g.context:
            raise InputError("the context is full", why=f"{len(self.ids)} + {len(ids)} tokens meet {g.context} positions",
                             fix=f"compile for a longer context, or shorten by {len(self.ids) + len(ids) - g.context}")
        bad = [i for i in ids if not 0 <= i < g.config.vocab_size]
        if bad:
            raise InputError(f"token {bad[0]} does not exist", why=f"the vocabulary has {g.config.vocab_size}")
        for lo in range(0, len(ids), g.chunk):
            part = ids[lo:lo + g.chunk]
            logits = g.graph.run(np.array([part], np.int64), sizes={"P": len(self.ids)}, state=self._state)
            self.ids += part
        return np.asarray(logits[0, :g.vocab_size])  # some models pad the vocabulary with rows that mean nothing

    def rewind(self, ids: Sequence[int]) -> None:
        """Forget what does not begin as `ids` does: what follows is written over it."""
        same = next((k for k, (own, other) in enumerate(zip(self.ids, ids, strict=False)) if own != other), min(len(self.ids), len(ids)))
        del self.ids[same:]


class Generator:
    """A decoder model, compiled once: its graph serves every prompt length up to the context."""

    def __init__(self, graph: CompiledGraph, config: LlamaConfig, tokenizer: Tokenizer, *, context: int, chunk: int) -> None:
        self.graph, self.config, self.tokenizer, self.context, self.chunk = graph, config, tokenizer, context, chunk
        self.vocab_size = tokenizer.vocab_size  # asked for before weights are laid out: to find it takes a copy of the vocabulary

    @classmethod
    def load(cls, path: str | Path, *, device: str | Sequence[str] | None = None, context: int | None = None, chunk: int | None = None,
             weights: str = "auto", numerics: str | None = None, cache: str = "f32", debug: bool | None = None) -> Generator:
        """From a GGUF file or a Hugging Face folder.  Raises LoadError naming what the model needs and rlxpy lacks.

        weights, numerics: as in CompileOptions; weights="int8" rounds matrices of floats to int8 (`q8_0`), and activations too unless `numerics` says otherwise;
        the name of an encoding packs matrices alone, by the quantiser of RLX_QUANTISER.
        cache: how keys and values are kept: f32, bf16, f16, or q8_0 (int8 with a scale for 32)."""
        return cls.of(open_model(Path(path), DECODERS), device=device, context=context, chunk=chunk, weights=weights, numerics=numerics, cache=cache, debug=debug)

    @classmethod
    def of(cls, model: OpenedModel, *, device: str | Sequence[str] | None = None, context: int | None = None, chunk: int | None = None,
           weights: str = "auto", numerics: str | None = None, cache: str = "f32", debug: bool | None = None) -> Generator:
        model, options = asked(model, weights, numerics, debug)
        config = LlamaConfig.of(model.config)
        context = min(DEFAULT_CONTEXT, config.max_position_embeddings) if context is None else context
        chunk = DEFAULT_CHUNK if chunk is None else chunk
        built = llama(config, context=context, chunk=chunk, cache=cache).build(model.weights)
        model.check_complete(built)
        graph = compile(built.graph, built.params, device=device, options=options)
        return cls(graph, config, model.tokenizer, context=context, chunk=min(chunk, context))

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> str:
        """The model's own chat template around the messages.  Raises an error that tells of --raw when it has none."""
        t = self.tokenizer
        return render(t.chat_template, messages, bos=t.bos, eos=t.eos)

    def conversation(self) -> Conversation:
        return Conversation(self)

    def stream(self, prompt: str | Sequence[int], result: Generation, *, sampler: Sampler | None = None, max_tokens: int | None = 256,
               stop: Sequence[str] = (), special: bool = True, conversation: Conversation | None = None) -> Iterator[Piece]:
        """Pieces as they are made, `result` growing with them.  prompt: text (special: add the model's own start tokens), or ids.

        conversation: one that goes on.  The prompt is still the whole text, of which it remembers the beginning.
        Raises InputError before anything runs when the prompt does not fit the context."""
        sampler = sampler or Sampler()
        ids = self.tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else token_ids(prompt)
        stops = StopConditions(self.tokenizer.eos_ids, stop, max_tokens, self.context)
        result.prompt_ids = ids
        result.reason = stops.reason(prompt=len(ids), generated=0)
        if result.reason is not None:
            return
        conversation, text = conversation or self.conversation(), TextStream(self.tokenizer, stop)
        conversation.rewind(ids[:-1])  # the last token is fed again for its logits
        start = perf_counter()
        logits = conversation.feed(ids[len(conversation.ids):])
        result.prefill_seconds = perf_counter() - start
        start = perf_counter()
        while True:
            token = sampler.pick(logits, [*ids, *result.ids], sampler.rng(len(ids) + len(result.ids)))
            result.ids.append(token)
            piece = "" if token in self.tokenizer.eos_ids else text.feed(token)
            result.reason = stops.reason(prompt=len(ids), generated=len(result.ids), last=token, matched=text.stopped)
            if result.reason is not None:
                piece += text.flush()
            result.text += piece
            result.decode_seconds = perf_counter() - start
            yield Piece(token, piece)
            if result.reason is not None:
                return
            logits = conversation.feed([token])

    def generate(self, prompt: str | Sequence[int], *, sampler: Sampler | None = None, max_tokens: int | None = 256, stop: Sequence[str] = (),
                 special: bool = True) -> Generation:
        """The whole answer at once."""
        result = Generation([])
        for _ in self.stream(prompt, result, sampler=sampler, max_tokens=max_tokens, stop=stop, special=special):
            pass
        return result
