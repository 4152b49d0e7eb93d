"""A Tokenizer from GGUF metadata.  Keys: the GGUF specification (ggml, docs/gguf.md) and llama.cpp's vocabulary loader."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlxpy.errors import GgufError
from rlxpy.frozen import dataclass
from rlxpy.generate.engine import guarded, library, surround, word_piece
from rlxpy.generate.pre_tokenizer import pre_tokenizer
from rlxpy.generate.tokenizer import Tokenizer
from rlxpy.ir.dtypes import Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # tokenizer.ggml.token_type; 6 is a byte
VISIBLE_SPACE = "\u2581"  # SentencePiece writes spaces so
MAX_PIECE_NCHARS = 1024   # every way to halve a piece is tried
ANOTHER = "convert the model again, or use its tokenizer.json"

# The metadata names one end token, and most chat models end a turn with another: those are known by their spelling.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<end_of_utterance>",
               "<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
ENDS_A_PART = {"<|end|>": "<|return|>"}  # beside the second, the first ends a part of an answer, not the answer


def read(metadata: Mapping[str, Any]) -> Tokenizer:
    """See Tokenizer.from_gguf."""
    entries = Entries(metadata)
    model = entries.text("tokenizer.ggml.model")
    if model not in _MODELS:
        raise entries.error("tokenizer.ggml.model", f"wanted {' or '.join(_MODELS)}, found {model}")
    with guarded("no tokeniser can be built from this file", GgufError, where="tokenizer.ggml.*", fix=ANOTHER):
        engine = _MODELS[model](entries)
        engine.add_special_tokens(_added(entries, UNKNOWN, CONTROL))
        engine.add_tokens(_added(entries, USER_DEFINED))
    template, length = "tokenizer.chat_template", metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return Tokenizer(engine, bos_id=entries.token("bos"), eos_id=entries.token("eos"), eos_ids=_end_ids(entries),
                     chat_template=entries.text(template) if template in metadata else None,
                     max_length=int(length) if isinstance(length, int | np.integer) and length > 0 else None)


@dataclass(frozen=True, eq=False)
class Entries:
    """The metadata, each value checked when it is read: GgufError for what is missing or of another kind."""

    metadata: Mapping[str, Any]

    def error(self, key: str, why: str) -> GgufError:
        return GgufError("no tokeniser can be built from this file", where=key, why=why, fix=ANOTHER)

    def wanted(self, key: str, kind: str) -> GgufError:
        found = self.metadata.get(key)
        return self.error(key, f"wanted {kind}, found {'nothing' if found is None else f'{type(found).__name__} {found!r:.60}'}")

    def text(self, key: str) -> str:
        found = self.metadata.get(key)
        if not isinstance(found, str):
            raise self.wanted(key, "a text")
        return found

    def texts(self, key: str) -> list[str]:
        found = self.metadata.get(key)
        if not isinstance(found, list | tuple | np.ndarray) or not all(isinstance(text, str) for text in found):
            raise self.wanted(key, "a list of texts")
        return list(found)

    def flag(self, name: str, default: bool) -> bool:
        key = f"tokenizer.ggml.{name}"
        found = self.metadata.get(key, default)
        if not isinstance(found, bool | np.bool_):
            raise self.wanted(key, "true or false")
        return bool(found)

    def numbers(self, key: str, kinds: str) -> Array:
        """One number a token.  kinds: NumPy's letters."""
        try:
            found = np.asarray(self.metadata.get(key))
        except ValueError:  # a ragged list
            raise self.wanted(key, "a list of numbers") from None
        if found.ndim != 1 or found.dtype.kind not in kinds or not np.isfinite(found).all():
            raise self.wanted(key, "a list of numbers")
        if len(found) != len(self.tokens):
            raise self.error(key, f"{len(found)} numbers meet {len(self.tokens)} tokens")
        return found

    def token(self, name: str) -> int | None:
        """The id called `name`, None where the metadata names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        found = self.metadata.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | np.integer) or not 0 <= found < len(self.tokens):
            raise self.error(key, f"{found!r} meets a vocabulary of {len(self.tokens)}")
        return int(found)

    def mark(self, name: str, usual: bool) -> int | None:
        """The id called `name` where it belongs beside a text: as add_..._token says, else as usual for the model."""
        if not self.flag(f"add_{name}_token", usual):
            return None
        found = self.token(name)
        if found is None:
            raise self.wanted(f"tokenizer.ggml.{name}_token_id", f"a token, since add_{name}_token is true")
        return found

    @cached_property
    def tokens(self) -> list[str]:
        """An empty entry, which no text can meet, gets llama.cpp's name for it."""
        return [text or f"[EMPTY_{i}]" for i, text in enumerate(self.texts("tokenizer.ggml.tokens"))]

    @cached_property
    def ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for i, text in enumerate(self.tokens):
            if ids.setdefault(text, i) != i:
                raise self.error("tokenizer.ggml.tokens", f"{text!r} is token {ids[text]} and token {i}")
        return ids

    @cached_property
    def types(self) -> Array:
        key = "tokenizer.ggml.token_type"
        return self.numbers(key, "iu") if key in self.metadata else np.full(len(self.tokens), NORMAL)


def _added(entries: Entries, *types: int) -> list[Any]:
    """Entries that are met in a text before it is cut and merged."""
    token, special = library().AddedToken, CONTROL in types
    return [token(entries.tokens[i], normalized=False, special=special) for i in np.flatnonzero(np.isin(entries.types, types))]


def _end_ids(entries: Entries) -> frozenset[int]:
    named = (entries.token(name) for name in ("eos", "eot", "eom"))
    spelled = (entries.ids.get(text) for text in END_OF_TURN if ENDS_A_PART.get(text) not in entries.ids)
    return frozenset(i for i in (*named, *spelled) if i is not None)


def _byte_level(entries: Entries) -> Engine:
    """GPT-2's BPE over bytes.  Without tokenizer.ggml.pre the cut is unknown, and a guess would give wrong ids in silence."""
    lib, row = library(), pre_tokenizer(entries.text("tokenizer.ggml.pre"))
    merges = [_halves(entries, merge) for merge in entries.texts("tokenizer.ggml.merges")]
    engine: Engine = lib.Tokenizer(lib.models.BPE(entries.ids, merges, ignore_merges=row.ignore_merges))
    if row.nfc:
        engine.normalizer = lib.normalizers.NFC()
    cuts = [lib.pre_tokenizers.Split(lib.Regex(pattern), "isolated") for pattern in row.patterns]
    engine.pre_tokenizer = lib.pre_tokenizers.Sequence([*cuts, lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    engine.decoder = lib.decoders.ByteLevel()
    surround(engine, entries.mark("bos", row.add_bos), entries.mark("eos", False))
    return engine


def _halves(entries: Entries, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise entries.error("tokenizer.ggml.merges", f"wanted two entries and a space between, found {merge!r:.60}")
    return left, right


def _sentence_piece(entries: Entries) -> Engine:
    """SentencePiece's BPE: of all neighbours that join to an entry, those with the best score join first, the leftmost of
    equals; characters without an entry fall to bytes.  As merges this is exact where the scores of entries differ."""
    lib = library()
    unknown = entries.token("unknown")
    engine: Engine = lib.Tokenizer(lib.models.BPE(entries.ids, _merges(entries), byte_fallback=True, fuse_unk=True,
                                                  unk_token=None if unknown is None else entries.tokens[unknown]))
    lead = entries.flag("add_space_prefix", True)
    steps = [lib.normalizers.Replace(" ", VISIBLE_SPACE)]
    engine.normalizer = lib.normalizers.Sequence([lib.normalizers.Prepend(VISIBLE_SPACE), *steps] if lead else steps)
    spelled = [lib.decoders.Replace(VISIBLE_SPACE, " "), lib.decoders.ByteFallback(), lib.decoders.Fuse()]
    engine.decoder = lib.decoders.Sequence([*spelled, lib.decoders.Strip(" ", 1, 0)] if lead else spelled)
    surround(engine, entries.mark("bos", True), entries.mark("eos", False))
    return engine


def _merges(entries: Entries) -> list[tuple[str, str]]:
    """Every pair of entries that joins to a third, by falling score of the third."""
    scores = entries.numbers("tokenizer.ggml.scores", "if")
    pieces = {text: text for text, kind in zip(entries.tokens, entries.types, strict=True) if kind in (NORMAL, USER_DEFINED, UNUSED)}
    longest = max(pieces, key=len, default="")
    if len(longest) > MAX_PIECE_NCHARS:
        raise entries.error("tokenizer.ggml.tokens", f"{len(longest)} characters of {longest[:20]!r}... exceed {MAX_PIECE_NCHARS}")
    ranked = sorted(pieces, key=lambda text: -scores[entries.ids[text]])
    cuts = ((text[:i], text[i:]) for text in ranked for i in range(1, len(text)))
    return [(pieces[left], pieces[right]) for left, right in cuts if left in pieces and right in pieces]


def _word_piece(entries: Entries) -> Engine:
    """BERT.  GGUF marks the entries that start a word, WordPiece those that go on with one; [MARKS] stay as they are."""
    words = {_word(text): i for text, i in entries.ids.items()}
    if not any(text.startswith(VISIBLE_SPACE) for text in entries.tokens):
        raise entries.error("tokenizer.ggml.tokens", f"none of {len(words)} entries starts a word with U+2581")
    before, after, unknown = (next((i for name in names if (i := entries.token(name)) is not None), words.get(mark)) for names, mark in (
        (("cls", "bos"), "[CLS]"), (("seperator", "eos"), "[SEP]"), (("unknown",), "[UNK]")))  # sic: the key is spelled so
    if before is None or after is None or unknown is None:
        raise entries.error("tokenizer.ggml.tokens", f"[CLS], [SEP], [UNK] are tokens {before}, {after}, {unknown}")
    lowercase = entries.flag("normalizer.lowercase", True)
    return word_piece(words, unknown=entries.tokens[unknown], before=before, after=after, special=(), lowercase=lowercase,
                      strip_accents=entries.flag("normalizer.strip_accents", lowercase))


def _word(entry: str) -> str:
    if entry.startswith("[") and entry.endswith("]"):
        return entry
    return entry.removeprefix(VISIBLE_SPACE) if entry.startswith(VISIBLE_SPACE) else f"##{entry}"


_MODELS: dict[str, Callable[[Entries], Engine]] = {"gpt2": _byte_level, "llama": _sentence_piece, "bert": _word_piece}
