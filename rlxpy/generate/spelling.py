"""The bytes that a vocabulary entry spells, told from the tokeniser's decoder."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: visible Latin-1 as itself, the rest as U+0100 onwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()
BYTE_ENTRIES = {f"<0x{b:02X}>": bytes([b]) for b in range(256)}  # SentencePiece's spelling of bytes


@dataclass(frozen=True)
class Spelling:
    """How entries spell bytes.  lead: how many spaces the tokeniser itself put before a text."""

    replaced: tuple[tuple[str, str], ...] = ()
    byte_level: bool = False        # GPT-2's alphabet
    byte_fallback: bool = False     # <0x41> is the byte 0x41
    word_prefix: str | None = None  # WordPiece: an entry with it continues a word, one without starts a word
    lead: int = 0

    def bytes_of(self, entry: str) -> bytes:
        if self.byte_fallback and entry in BYTE_ENTRIES:
            return BYTE_ENTRIES[entry]
        if self.word_prefix is not None:
            entry = entry.removeprefix(self.word_prefix) if entry.startswith(self.word_prefix) else f" {entry}"
        for old, new in self.replaced:
            entry = entry.replace(old, new)
        if self.byte_level and all(c in _BYTE_OF for c in entry):
            return bytes(_BYTE_OF[c] for c in entry)
        return entry.encode()


_DECODERS: dict[str, Callable[[Spelling, Mapping[str, Any]], Spelling]] = {
    "ByteFallback": lambda s, d: replace(s, byte_fallback=True),
    "ByteLevel": lambda s, d: replace(s, byte_level=True),
    "Fuse": lambda s, d: s,
    "Metaspace": lambda s, d: replace(s, replaced=(*s.replaced, (d["replacement"], " ")), lead=s.lead + (d["prepend_scheme"] != "never")),
    "Replace": lambda s, d: replace(s, replaced=(*s.replaced, (d["pattern"]["String"], d["content"]))),
    "Strip": lambda s, d: replace(s, lead=s.lead + d["start"]),
    "WordPiece": lambda s, d: replace(s, word_prefix=d["prefix"], lead=s.lead + 1),
}


def spelling(decoder: Mapping[str, Any] | None) -> Spelling:
    """Reads the `decoder` of a tokenizer.json.  Raises InputError for a step whose entries are not plain bytes."""
    given = decoder or {"type": "none"}
    found = Spelling()
    for step in given["decoders"] if given["type"] == "Sequence" else [given]:
        try:
            found = _DECODERS[step["type"]](found, step)
        except KeyError:
            raise InputError("tokens of this tokeniser cannot be turned into bytes", where=f"its decoder: {json.dumps(step)[:200]}",
                             why=f"wanted {' or '.join(_DECODERS)}; found {step['type']}", fix="use it to encode only") from None
    return found
