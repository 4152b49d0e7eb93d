"""Texts to embeddings: tokenise, join into batches, run."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.session import compile
from rlxpy.errors import InputError, LoadError
from rlxpy.flow.families import ENCODERS, BertConfig, joined_bert
from rlxpy.frozen import dataclass
from rlxpy.generate.opened import asked, open_model
from rlxpy.generate.tokenizer import Tokenizer
from rlxpy.ir.dtypes import Array

DEFAULT_BATCH = 32
LANE_ROWS = 256  # tokens of a call by one thread
UNEVEN = 1.1     # how much longer than all threads together the busiest one may take
GGUF_POOLING = {1: "mean", 2: "cls"}  # llama.cpp's enum of pooling types


@dataclass(frozen=True)
class Embeddings:
    """vectors f32 [texts, width]; token counts; which texts were cut at the model's limit."""

    vectors: Array
    token_counts: tuple[int, ...]
    truncated: tuple[int, ...]


class Embedder:
    """An encoder model, compiled once for every batch and length up to its bounds."""

    def __init__(self, graph: CompiledGraph, tokenizer: Tokenizer, *, batch: int, length: int) -> None:
        self.graph, self.tokenizer, self.batch, self.length = graph, tokenizer, batch, length

    @classmethod
    def load(cls, path: str | Path, *, device: str | Sequence[str] | None = None, batch: int = DEFAULT_BATCH, length: int | None = None,
             weights: str = "auto", numerics: str | None = None, debug: bool | None = None) -> Embedder:
        """From a Hugging Face folder (with sentence-transformers' pooling, where it says one) or a GGUF file.  Raises LoadError.

        weights, numerics: as in CompileOptions; weights="int8" rounds matrices of floats to int8 (`int8_rows`), and activations too unless `numerics` says otherwise;
        the name of an encoding packs matrices alone, by the quantiser of RLX_QUANTISER."""
        model, options = asked(open_model(Path(path), ENCODERS), weights, numerics, debug)
        config = BertConfig.of({**model.config, **pooling(Path(path), model.weights.metadata)})
        own = min(config.max_position_embeddings, model.tokenizer.max_length or config.max_position_embeddings)
        length = own if length is None else length
        if not 3 <= length <= config.max_position_embeddings or batch < 1:
            raise InputError(f"length {length}, batch {batch}", why=f"lengths are 3..{config.max_position_embeddings}, batches 1 or more")
        prefix = "bert." if "bert.embeddings.word_embeddings.weight" in model.weights else ""
        built = joined_bert(config, max_texts=batch, max_length=length).with_prefix(prefix).build(model.weights)
        model.check_complete(built)
        graph = compile(built.graph, built.params, device=device, options=options)
        return cls(graph, model.tokenizer, batch=batch, length=length)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """In any number; texts of a batch lie one after another, so that nothing is padding."""
        if isinstance(texts, str):
            raise InputError("one string was given", why="embed takes a list of texts", fix="embed([text])")
        ids = [self.tokenizer.encode(t) for t in texts]
        cut = tuple(i for i, t in enumerate(ids) if len(t) > self.length)
        for i in cut:
            ids[i] = [*ids[i][:self.length - 1], ids[i][-1]]  # the closing token stays
        return Embeddings(self.run(ids), tuple(map(len, ids)), cut)

    def run(self, ids: Sequence[Sequence[int] | Array]) -> Array:
        """Vectors f32 [texts, width] of texts that are tokens already, marks and all.  Raises InputError for what is no row of 1..length tokens."""
        rows = [self._tokens(k, row) for k, row in enumerate(ids)]
        lengths = tuple(map(len, rows))
        alone, together = parts(lengths, self.graph.lanes, self.batch)
        width = self.graph.plan.graph.output_types[0].shape[-1]
        out = np.empty((len(rows), int(width)), np.float32)
        for part, made in zip(alone, self.graph.run_each([joined(rows[part]) for part in alone]), strict=True):
            out[part] = made[0]
        for part in together:
            out[part] = self.graph.run(*joined(rows[part]))[0]
        return out

    def _tokens(self, k: int, row: Sequence[int] | Array) -> Array:
        tokens = np.asarray(row)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not 1 <= tokens.size <= self.length:
            raise InputError(f"text {k} is no row of tokens", why=f"{list(tokens.shape)} of {tokens.dtype} was given, 1..{self.length} whole numbers are wanted",
                             fix="run([tokenizer.encode(text)]), or embed([text]), which cuts what is longer")
        return tokens


def parts(lengths: Sequence[int], lanes: int, batch: int) -> tuple[list[slice], list[slice]]:
    """Texts of these lengths as calls for one thread each, and calls that all threads share.

    A thread alone wants few enough rows for what it computes to stay in its second cache, and as much to do as the others; lanes 0 is no threads of that kind."""
    size = min(batch, len(lengths)) or 1
    if lanes:
        ends = [0]
        for k in range(len(lengths)):
            if k + 1 == len(lengths) or k + 1 - ends[-1] == size or sum(lengths[ends[-1]:k + 2]) > LANE_ROWS:
                ends.append(k + 1)
        cut = [slice(lo, hi) for lo, hi in pairwise(ends)][:(len(ends) - 1) // lanes * lanes]
        rows = [sum(lengths[c]) for c in cut]
        if cut and longest(rows, lanes) * lanes <= UNEVEN * sum(rows):
            order = sorted(range(len(cut)), key=lambda k: -rows[k])
            return [cut[k] for k in order], [slice(lo, min(lo + size, len(lengths))) for lo in range(cut[-1].stop, len(lengths), size)]
    return [], [slice(lo, min(lo + size, len(lengths))) for lo in range(0, len(lengths), size)]


def longest(work: Sequence[int], lanes: int) -> int:
    """Of the busiest lane, when each takes the largest piece that is left as soon as it is free."""
    busy = [0] * lanes
    for w in sorted(work, reverse=True):
        busy[busy.index(min(busy))] += w
    return max(busy)


def joined(rows: Sequence[Array]) -> tuple[Array, Array]:
    """ids i64 [1, n], row after row, and where each begins and the last ends, i64 [rows + 1]."""
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return np.concatenate(rows).astype(np.int64)[None], starts


def pooling(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """pooling and normalise, from sentence-transformers' modules.json or GGUF metadata; {} when neither says."""
    if "bert.pooling_type" in metadata:
        kind = metadata["bert.pooling_type"]
        if not isinstance(kind, int) or kind not in GGUF_POOLING:
            raise LoadError(f"pooling type {kind} is not supported", where=str(path), why=f"supported are {GGUF_POOLING}")
        return {"pooling": GGUF_POOLING[kind]}
    listing = path / "modules.json"
    if not listing.is_file():
        return {}
    try:
        modules = json.loads(listing.read_text())
        types = {m["type"].rpartition(".")[2]: m["path"] for m in modules}
        asked = json.loads((path / types["Pooling"] / "config.json").read_text()) if "Pooling" in types else {}
        modes = [k for k, on in asked.items() if k.startswith("pooling_mode_") and on is True]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise LoadError("the sentence-transformers modules cannot be read", where=str(listing), why=f"{type(e).__name__}: {e}") from None
    unknown = set(types) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise LoadError(f"module {', '.join(sorted(unknown))} is not supported", where=str(listing), why="supported are Transformer, Pooling, Normalize")
    named = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
    if modes and (len(modes) > 1 or modes[0] not in named):
        raise LoadError(f"pooling {', '.join(modes)} is not supported", where=str(listing), why=f"supported is one of {', '.join(named)}")
    return {"pooling": named[modes[0]] if modes else "mean", "normalise": "Normalize" in types}
