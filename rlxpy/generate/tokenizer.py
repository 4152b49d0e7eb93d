"""Text to token ids and back."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass
from rlxpy.generate.engine import guarded
from rlxpy.generate.spelling import Spelling, spelling

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokeniser and the marks that its model was trained with.

    engine: the `tokenizers` library's object.  eos_id: the token named as the end of text; eos_ids: every token that ends an
    answer (end of text, of turn, of message).  max_length: the longest input in tokens, where the model states it."""

    engine: Engine = field(repr=False)  # its repr is the whole vocabulary
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    chat_template: str | None = None
    max_length: int | None = None

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """From a Hugging Face folder: tokenizer.json, else a WordPiece vocab.txt; marks from tokenizer_config.json,
        special_tokens_map.json and generation_config.json; the template from chat_template.jinja or tokenizer_config.json.

        Padding and truncation that tokenizer.json asks for are off: lengths are the caller's matter.
        Raises LoadError for missing or damaged files."""
        from rlxpy.generate import folder_tokenizer

        return folder_tokenizer.read(Path(path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the metadata of a GGUF file, its `tokenizer.*` keys.  Raises GgufError for missing, damaged or unknown entries."""
        from rlxpy.generate import gguf_tokenizer

        return gguf_tokenizer.read(metadata)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids.  special: add the marks that the model wants around a text (bos; [CLS] and [SEP]); the empty text gets
        them too.  Leave it off for a rendered chat, which brings its own.

        A special token spelled out in the text counts as that token either way: a rendered chat works, and strangers' text
        can forge turns.  U+0000 is a character like others (WordPiece drops it); a character without any entry becomes the
        unknown token, or vanishes where the model has none.  Time and memory are linear in the text: some 1 us and 150 bytes
        a character.  Raises InputError for unpaired surrogates, which UTF-8 cannot hold."""
        if not isinstance(text, str):
            raise InputError("no text to encode", why=f"wanted str, found {type(text).__name__}", fix="decode bytes first")
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise InputError("the text is not valid Unicode", where=f"character {e.start} of {len(text)}",
                             why=f"U+{ord(text[e.start]):04X} is half of a surrogate pair",
                             fix="text.encode('utf-8', 'replace').decode()") from None
        with guarded("the tokeniser failed on this text", InputError):
            return list(self.engine.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of a whole sequence: its tokens' bytes joined, as UTF-8 with U+FFFD for what is not, without the space
        that the tokeniser itself puts before a text.  Nothing else is cleaned.  Raises InputError for an id without a token."""
        text = b"".join(self.token_bytes(i) for i in ids if not (skip_special and i in self.special_ids)).decode("utf-8", "replace")
        return text[min(self._spelling.lead, len(text) - len(text.lstrip(" "))):]

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token, leading space included; they need not be whole characters.

        Raises InputError for an id without a token."""
        entry = self.engine.id_to_token(int(token)) if 0 <= token < self.vocab_size else None
        if entry is None:
            raise InputError(f"there is no token {token}", why=f"{token} meets a vocabulary of {self.vocab_size}",
                             fix="ids and tokeniser must be of one model")
        if self._spelling.byte_level and token in self._added:
            return entry.encode()  # added tokens are written in plain text, not in the byte alphabet
        return self._spelling.bytes_of(entry)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id.  A model's logits may be wider: the rest is padding."""
        return 1 + max(self.engine.get_vocab(with_added_tokens=True).values(), default=-1)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are marks, not text."""
        return frozenset(i for i, special in self._added.items() if special)

    @property
    def bos(self) -> str:
        """What a chat template calls bos_token; "" without one."""
        return self._entry(self.bos_id)

    @property
    def eos(self) -> str:
        """What a chat template calls eos_token; "" without one."""
        return self._entry(self.eos_id)

    def _entry(self, token: int | None) -> str:
        return "" if token is None else self.engine.id_to_token(token) or ""

    @cached_property
    def _added(self) -> dict[int, bool]:
        """Tokens matched in the text before anything else, and whether they are special."""
        return {i: token.special for i, token in self.engine.get_added_tokens_decoder().items()}

    @cached_property
    def _spelling(self) -> Spelling:
        decoder = self.engine.decoder
        return spelling(json.loads(decoder.__getstate__()) if decoder else None)
