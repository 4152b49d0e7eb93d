"""A Tokenizer from a Hugging Face folder."""
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlxpy.errors import LoadError
from rlxpy.generate.engine import guarded, library, word_piece
from rlxpy.generate.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

MAX_FILE_NBYTES = 1 << 28  # the largest tokenizer.json in use is some 40 MB
NO_LIMIT = 10**9           # transformers writes 1e30 where no maximum length is known
AGAIN = "fetch the file again"
BERT_MARKS = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}


def read(folder: Path) -> Tokenizer:
    """See Tokenizer.from_folder."""
    config, marks, generation, sentence = (_json(folder / f"{name}.json") for name in
                                           ("tokenizer_config", "special_tokens_map", "generation_config", "sentence_bert_config"))
    engine = _engine(folder, config)
    bos, eos = (_mark(engine, name, config, marks) for name in ("bos_token", "eos_token"))
    ends = _end_ids(folder, engine, generation.get("eos_token_id")) | ({eos} if eos is not None else frozenset())
    stated = (config.get("model_max_length"), sentence.get("max_seq_length"))
    lengths = [int(n) for n in stated if isinstance(n, int | float) and 0 < n < NO_LIMIT]
    return Tokenizer(engine, bos_id=bos, eos_id=eos if eos is not None else min(ends, default=None), eos_ids=ends,
                     chat_template=_template(folder, config), max_length=min(lengths, default=None))


def _engine(folder: Path, config: Mapping[str, Any]) -> Engine:
    ready, words = folder / "tokenizer.json", folder / "vocab.txt"
    if ready.is_file():
        text = _text(ready)
        with guarded(f"{ready.name} is damaged", LoadError, where=str(ready), fix=AGAIN):
            engine: Engine = library().Tokenizer.from_str(text)
        engine.no_truncation()
        engine.no_padding()
        return engine
    if words.is_file():
        with guarded(f"{words.name} is damaged", LoadError, where=str(words), fix=AGAIN):
            return _from_words(words, config)
    found = ", ".join(sorted(p.name for p in folder.iterdir())[:12]) if folder.is_dir() else "no such folder"
    raise LoadError("no tokeniser here", where=str(folder), why=f"wanted tokenizer.json or vocab.txt, found {found or 'an empty folder'}",
                    fix="fetch tokenizer.json with the model's other files")


def _from_words(path: Path, config: Mapping[str, Any]) -> Engine:
    """BERT's vocabulary: one entry a line, its id the line's number from 0."""
    vocab = {entry: i for i, entry in enumerate(_text(path).removesuffix("\n").split("\n"))}
    marks = {name: _content(config.get(f"{name}_token")) or usual for name, usual in BERT_MARKS.items()}
    for name in ("unk", "cls", "sep"):
        if marks[name] not in vocab:
            raise LoadError(f"{path.name} is no vocabulary", where=str(path), why=f"its {len(vocab)} lines lack {marks[name]}", fix=AGAIN)
    return word_piece(vocab, unknown=marks["unk"], before=vocab[marks["cls"]], after=vocab[marks["sep"]],
                      special=[text for text in marks.values() if text in vocab], lowercase=config.get("do_lower_case", True),
                      strip_accents=config.get("strip_accents"), chinese=config.get("tokenize_chinese_chars", True))


def _mark(engine: Engine, name: str, *configs: Mapping[str, Any]) -> int | None:
    """Id of the token that a config calls `name`.  A name that the vocabulary lacks can never be met and counts as none."""
    texts = (_content(config.get(name)) for config in configs)
    return next((i for text in texts if text and (i := engine.token_to_id(text)) is not None), None)


def _content(token: Any) -> str | None:
    """A special token is written as its text or as an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _end_ids(folder: Path, engine: Engine, given: Any) -> frozenset[int]:
    """generation_config.json names one end token, a list of them, or none."""
    ids = [] if given is None else given if isinstance(given, list) else [given]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 1 << 32 or engine.id_to_token(i) is None:
            raise LoadError(f"eos_token_id {i!r} is no token", where=str(folder / "generation_config.json"),
                            why=f"{i!r} meets a vocabulary of {engine.get_vocab_size(True)}", fix="the folder mixes files of two models")
    return frozenset(ids)


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's: a text, or named ones of which "default" counts."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _text(file)
    given = config.get("chat_template")
    named = [t for t in given if isinstance(t, dict) and t.get("name") == "default"] if isinstance(given, list) else [{"template": given}]
    text = named[0].get("template") if named else None
    return text if isinstance(text, str) else None


def _json(path: Path) -> dict[str, Any]:
    """A config; {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as e:
        raise LoadError(f"{path.name} is not JSON", where=str(path), why=f"{type(e).__name__}: {e}", fix=AGAIN) from None
    if not isinstance(found, dict):
        raise LoadError(f"{path.name} is no config", where=str(path), why=f"wanted an object, found {type(found).__name__}", fix=AGAIN)
    return found


def _text(path: Path) -> str:
    """A file of bounded size as UTF-8 text."""
    try:
        nbytes = path.stat().st_size
        if nbytes > MAX_FILE_NBYTES:
            raise LoadError(f"{path.name} is too large", where=str(path), why=f"{nbytes} bytes exceed {MAX_FILE_NBYTES}", fix=AGAIN)
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise LoadError(f"{path.name} cannot be read as text", where=str(path), why=str(e), fix=AGAIN) from None
