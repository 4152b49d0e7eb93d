"""The `tokenizers` library: found, its failures made ours, and the parts that several sources build with it."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlxpy.errors import BackendMissing, RlxError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

WORD_NCHARS = 100  # BERT: a longer word is unknown


def library() -> Any:
    """The optional package `tokenizers`.  Raises BackendMissing."""
    try:
        import tokenizers
    except ImportError as e:
        raise BackendMissing("text needs the package `tokenizers`", why=f"it cannot be imported: {e}",
                             fix="pip install 'rlxpy[models]'") from None
    return tokenizers


@contextmanager
def guarded(what: str, error: type[RlxError], *, where: str = "", fix: str = "") -> Iterator[None]:
    """Turns the library's failures into `error`; its panics do not derive from Exception."""
    try:
        yield
    except (RlxError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        raise error(what, where=where, why=f"{type(e).__name__}: {e}", fix=fix) from e


def word_piece(vocab: Mapping[str, int], *, unknown: str, before: int, after: int, special: Iterable[str],
               lowercase: bool = True, strip_accents: bool | None = None, chinese: bool = True) -> Engine:
    """BERT's tokeniser (Devlin et al. 2018).  before, after: ids put around a text.  strip_accents None follows lowercase."""
    lib = library()
    engine: Engine = lib.Tokenizer(lib.models.WordPiece(dict(vocab), unk_token=unknown, max_input_chars_per_word=WORD_NCHARS))
    engine.normalizer = lib.normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese)
    engine.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
    engine.decoder = lib.decoders.WordPiece(cleanup=False)
    engine.add_special_tokens([lib.AddedToken(text, normalized=False, special=True) for text in special])
    surround(engine, before, after)
    return engine


def surround(engine: Engine, before: int | None, after: int | None) -> None:
    """Makes encode(special=True) put these ids around a text."""
    marks = {name: token for name, token in (("before", before), ("after", after)) if token is not None}
    if not marks:
        return
    engine.post_processor = library().processors.TemplateProcessing(
        single=[part for part in ("before", "$A", "after") if part == "$A" or part in marks],
        special_tokens=[{"id": name, "ids": [token], "tokens": [engine.id_to_token(token)]} for name, token in marks.items()])
