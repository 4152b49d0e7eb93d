"""How byte-level BPE models cut text into words before merging: a row for each published tokeniser, found by its GGUF name."""
from __future__ import annotations

from rlxpy.errors import GgufError, nearest
from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """names: values of tokenizer.ggml.pre.  patterns: applied one after another, each to the pieces the one before left; a
    match is a word of its own and so is what lies between matches.  The rest is what the metadata leaves out."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    nfc: bool = False            # text is put in Unicode form C first
    ignore_merges: bool = False  # a word that is an entry is taken whole
    add_bos: bool = False        # where add_bos_token is absent


# Published patterns: GPT-2 (Radford et al. 2019); cl100k and o200k (tiktoken); default is llama.cpp's own; the others are in the
# tokenizer.json of the model that a row is named after.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|"
_O200K = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_TEKKEN = _CASED % ("", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_DEEPSEEK_V3 = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
                r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES)

PRE_TOKENIZERS = (
    PreTokenizer(("gpt-2", "phi-2"), (_GPT2,)),
    PreTokenizer(("olmo", "mpt"), (_GPT2,), nfc=True),
    PreTokenizer(("smollm", "starcoder", "refact"), (r"\p{N}", _GPT2)),
    PreTokenizer(("llama-bpe", "llama3", "llama-v3"), (_CL100K,), ignore_merges=True, add_bos=True),
    PreTokenizer(("qwen2",), (_QWEN2,), nfc=True),
    PreTokenizer(("qwen35",), (_QWEN35,), nfc=True),
    PreTokenizer(("deepseek-r1-qwen",), (_QWEN2,)),
    PreTokenizer(("deepseek-coder",), _DEEPSEEK_CODER),
    PreTokenizer(("deepseek-v3",), _DEEPSEEK_V3),
    PreTokenizer(("gpt-4o", "llama4"), (_O200K,)),
    PreTokenizer(("tekken",), (_TEKKEN,), ignore_merges=True, add_bos=True),
    PreTokenizer(("default",), (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
)
_BY_NAME = {name: row for row in PRE_TOKENIZERS for name in row.names}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The row of a GGUF name.  Raises GgufError for any other: a wrong cut gives wrong ids without a sign of it."""
    if name not in _BY_NAME:
        known = tuple(_BY_NAME)
        raise GgufError(f"unknown pre-tokeniser {name!r}", where="tokenizer.ggml.pre", why=f"{name!r} is none of {', '.join(known)}",
                        fix=f"use the model's tokenizer.json; nearest: {nearest(name, known)}")
    return _BY_NAME[name]
