"""Files of tokenisers: what a folder says is gathered, and what is bad in one or in GGUF metadata is an error that names it."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_tokenizer import Metadata, byte_level, sentence_piece

from rlxpy.errors import BackendMissing, GgufError, InputError, LoadError, RlxError
from rlxpy.generate.tokenizer import Tokenizer

# Bad metadata.

def without(metadata: Metadata, key: str) -> Metadata:
    return {k: v for k, v in metadata.items() if k != f"tokenizer.ggml.{key}"}


BYTES, PIECE = byte_level(), sentence_piece()
BAD_METADATA = {
    "nothing at all": ({}, "model"),
    "unknown model": (byte_level(model="t5"), "model"),
    "model is a number": (byte_level(model=3), "model"),
    "unknown pre": (byte_level(pre="qwen9"), "qwen2"),
    "no pre": (without(BYTES, "pre"), "tokenizer.ggml.pre"),
    "no tokens": (without(BYTES, "tokens"), "tokenizer.ggml.tokens"),
    "no merges": (without(BYTES, "merges"), "tokenizer.ggml.merges"),
    "no scores": (without(PIECE, "scores"), "tokenizer.ggml.scores"),
    "tokens are numbers": (byte_level(tokens=[1, 2]), "tokenizer.ggml.tokens"),
    "the same token twice": (byte_level(tokens=[*BYTES["tokenizer.ggml.tokens"][:-1], "he"]), "token 256 and token 262"),
    "merge without a space": ({**BYTES, "tokenizer.ggml.merges": ["he"]}, "found 'he'"),
    "merge of strangers": ({**BYTES, "tokenizer.ggml.merges": ["he hm"]}, "hm"),
    "types too few": (byte_level(token_type=[1, 1]), "2 numbers meet 263"),
    "types are texts": (byte_level(token_type=["a"] * 263), "token_type"),
    "scores not a number": (sentence_piece(scores=[float("nan")] * 287), "scores"),
    "scores ragged": (sentence_piece(scores=[[1], [1, 2]]), "scores"),
    "bos outside": (byte_level(bos_token_id=263), "263 meets a vocabulary of 263"),
    "eos negative": (byte_level(eos_token_id=-1), "-1 meets"),
    "eos is a flag": (byte_level(eos_token_id=True), "True meets"),
    "bos wanted, not named": (without(byte_level(add_bos_token=True), "bos_token_id"), "bos_token_id"),
    "add_bos_token is a number": (byte_level(add_bos_token=1), "add_bos_token"),
    "surrogate in a token": (byte_level(tokens=[*BYTES["tokenizer.ggml.tokens"][:-1], "\ud800"]), "tokenizer.ggml"),
    "endless piece": (sentence_piece(tokens=[*PIECE["tokenizer.ggml.tokens"][:-1], "a" * 100_000]), "100000"),
    "BERT without word starts": ({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["[CLS]", "[SEP]", "[UNK]", "a"]}, "U+2581"),
    "BERT without marks": ({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["▁a"]}, "[CLS]"),
    "template is a number": ({**BYTES, "tokenizer.chat_template": 4}, "chat_template"),
}


@pytest.mark.parametrize("case", BAD_METADATA)
def test_bad_metadata_is_a_gguf_error_that_names_the_entry(case: str) -> None:
    metadata, told = BAD_METADATA[case]
    with pytest.raises(GgufError) as caught:
        Tokenizer.from_gguf(metadata)
    assert told in str(caught.value)
    assert caught.value.fix


def test_empty_entries_and_missing_types_are_no_error() -> None:
    metadata = without(byte_level(), "token_type")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "", ""]
    assert Tokenizer.from_gguf(metadata).encode("hello") == [260]


# Folders.

TINY = """{"version": "1.0", "added_tokens": [{"id": 3, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
"normalized": false, "special": true}], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
"decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
"model": {"type": "BPE", "vocab": {"a": 0, "▁b": 1, "<s>": 2, "</s>": 3}, "merges": []}}"""


def folder(path: Path, **files: Any) -> Path:
    for name, content in {"tokenizer": TINY, **files}.items():
        target = path / (f"{name}.jinja" if name == "chat_template" else f"{name}.json")
        target.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_a_folders_marks_are_gathered(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(
        tmp_path, tokenizer_config={"eos_token": {"content": "</s>"}, "model_max_length": 1e30, "chat_template": "old"},
        special_tokens_map={"bos_token": "<s>", "eos_token": "<none>"}, generation_config={"eos_token_id": [0, 3]}, chat_template="new\n"))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (2, 3, frozenset({0, 3}))
    assert (tokenizer.chat_template, tokenizer.max_length, tokenizer.special_ids) == ("new\n", None, frozenset({3}))
    assert tokenizer.decode([1, 1, 3]) == "b b"
    assert tokenizer.token_bytes(1) == b" b"


@pytest.mark.parametrize(("template", "found"), [
    ("text", "text"),
    ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
    ([{"name": "tool_use", "template": "t"}], None), (None, None), (5, None),
])
def test_a_folders_chat_template(tmp_path: Path, template: Any, found: str | None) -> None:
    assert Tokenizer.from_folder(folder(tmp_path, tokenizer_config={"chat_template": template})).chat_template == found


def test_one_end_token_without_a_name(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path, generation_config={"eos_token_id": 3}))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (None, 3, frozenset({3}))


BAD_FOLDERS: dict[str, dict[str, Any]] = {
    "tokenizer.json is cut": {"tokenizer": TINY[:200]},
    "tokenizer.json is another file": {"tokenizer": "{}"},
    "config is no JSON": {"tokenizer_config": "{"},
    "config is too deep": {"tokenizer_config": "[" * 100_000},
    "config is a list": {"tokenizer_config": "[]"},
    "end token outside": {"generation_config": {"eos_token_id": 4}},
    "end token negative": {"generation_config": {"eos_token_id": -1}},
    "end token beyond any": {"generation_config": {"eos_token_id": [2**40]}},
    "end token is a text": {"generation_config": {"eos_token_id": ["</s>"]}},
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_damaged_folder_is_a_load_error_that_names_the_file(tmp_path: Path, case: str) -> None:
    with pytest.raises(LoadError) as caught:
        Tokenizer.from_folder(folder(tmp_path, **BAD_FOLDERS[case]))
    assert f"{next(iter(BAD_FOLDERS[case]))}.json" in caught.value.where
    assert all((caught.value.why, caught.value.fix))


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 40)  # takes no space on the disk
    with pytest.raises(LoadError, match="1099511627776 bytes exceed 268435456"):
        Tokenizer.from_folder(tmp_path)


def test_a_folder_without_a_tokeniser_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such folder"):
        Tokenizer.from_folder(tmp_path / "missing")
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(LoadError, match=r"found tokenizer\.model"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\n")
    with pytest.raises(LoadError, match="cannot be read as text"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\nx\n", "utf-8")
    with pytest.raises(LoadError, match="3 lines lack \\[SEP\\]"):
        Tokenizer.from_folder(tmp_path)


def test_lines_of_a_vocabulary_end_at_newlines_only(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n\u2028\n\x0bq\nab\n##c\n", "utf-8")
    assert Tokenizer.from_folder(tmp_path).encode("abc") == [1, 5, 6, 2]


def test_a_decoder_without_bytes_still_encodes(tmp_path: Path) -> None:
    plain = json.loads(TINY)
    plain["decoder"] = {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": False}
    tokenizer = Tokenizer.from_folder(folder(tmp_path, tokenizer=plain))
    assert tokenizer.encode("a") == [0]
    with pytest.raises(InputError, match="found CTC"):
        tokenizer.decode([0])


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BackendMissing, match=r"pip install 'rlxpy\[models\]'"):
        Tokenizer.from_gguf(byte_level())
    with pytest.raises(RlxError, match=r"pip install 'rlxpy\[models\]'"):
        Tokenizer.from_folder(folder(tmp_path))
