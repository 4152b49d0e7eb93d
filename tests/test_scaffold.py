"""The scaffolder: what it writes passes its own tests, and fails them usefully when the body is broken; names; nothing overwritten or half-written."""
from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.cli.app import app
from rlxpy.tools.scaffold import KINDS, name_for

import_module("rlxpy.cli.new")


def rlx(*args: str) -> Any: return CliRunner().invoke(app, args)


MADE: tuple[tuple[tuple[str, ...], str, str, str, str], ...] = (  # command, module, what is broken in it, by what, what the failure says
    (("new-op", "acme.softcap"), "acme_softcap", ".tanh() * limit", ".tanh()", "meant is"),
    (("new-op", "HTTPGate", "--route", "numpy"), "mine_http_gate", "np.tanh", "np.sin", "meant is"),
    *(() if isinstance(find_compiler(), str) else ((("new-op", "acme.cap_c", "--route", "c"), "acme_cap_c", "i < out_numel", "i + 1 < out_numel", "meant is"),)),
    (("new-model", "gated_mlp"), "gated_mlp", "ctx.silu", "ctx.gelu", "Not equal to tolerance"),
    (("new-kernel", "acme.softmax"), "acme_softmax", "[...] = a", "[...] = a * 2", "kernel acme/softmax"),
    (("new-kernel", "fast.total", "--op", "sum"), "fast_total", "[...] = a", "[:1] = a[:1]", "kernel fast/total"),
    (("new-backend", "MyDevice"), "my_device", "np.matmul(*(", "1 + np.matmul(*(", "kernel my_device/matmul"),
)


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)], cwd=folder, capture_output=True, text=True, check=False, timeout=500)


def test_what_is_written_passes_its_tests_at_once(tmp_path: Path) -> None:
    for command, module, *_ in MADE:
        told = rlx(*command, "--into", str(tmp_path))
        assert told.exit_code == 0, told.output
        assert sorted(p.name for p in (tmp_path / module).iterdir()) == sorted((f"{module}.py", "pyproject.toml", f"test_{module}.py"))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(module for _, module, *_ in MADE), "nothing else is left"
    done = run_tests(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_a_broken_body_fails_in_words_that_help(tmp_path: Path) -> None:
    for command, module, old, new, _ in MADE:
        rlx(*command, "--into", str(tmp_path))
        path = tmp_path / module / f"{module}.py"
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))
    done = run_tests(tmp_path)
    assert done.returncode == 1
    for _, module, _, _, words in MADE:
        failed = [part for part in done.stdout.split("\n____") if f"test_{module}.py:" in part]
        assert any(words in part for part in failed), f"{module}: {words!r} is not in\n{done.stdout}"


@pytest.mark.parametrize("case", MADE, ids=lambda c: " ".join(c[0]))
def test_stdout_prints_what_would_be_written(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, module, *_ = case
    monkeypatch.chdir(tmp_path)
    told = rlx(*command, "--stdout")
    assert told.exit_code == 0
    assert not list(tmp_path.iterdir())
    rlx(*command, "--into", "sub/folder")
    written = {p.name: p.read_text() for p in (tmp_path / "sub" / "folder" / module).iterdir()}
    assert told.stdout == "\n".join(f"# ---- {name}\n{written[name]}" for name in (f"{module}.py", f"test_{module}.py", "pyproject.toml"))
    project = tomllib.loads(written["pyproject.toml"])
    assert project["project"]["name"] == module.replace("_", "-")
    assert all(value.startswith(module) for group in project["project"].get("entry-points", {}).values() for value in group.values())


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "acme_softcap"
    mine.mkdir()
    (mine / "notes.txt").write_text("years of work")
    told = rlx("new-op", "acme.softcap", "--into", str(tmp_path))
    assert told.exit_code == 1
    assert "is there already" in told.stderr
    assert [p.name for p in mine.iterdir()] == ["notes.txt"]

    write, count = Path.write_text, 0

    def full(self: Path, *args: Any, **more: Any) -> int:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(28, "No space left on device")
        return write(self, *args, **more)

    monkeypatch.setattr(Path, "write_text", full)
    told = rlx("new-model", "gated_mlp", "--into", str(tmp_path))
    assert told.exit_code == 1
    assert "No space left on device" in told.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["acme_softcap"]


@pytest.mark.parametrize(("kind", "text", "dotted", "camel", "module"), [
    ("op", "HTTPGate", "mine.http_gate", "HTTPGate", "mine_http_gate"), ("op", "acme.softcap", "acme.softcap", "Softcap", "acme_softcap"),
    ("op", "Acme-Labs.soft-cap", "acme_labs.soft_cap", "SoftCap", "acme_labs_soft_cap"), ("model", "gated_mlp", "gated_mlp", "GatedMlp", "gated_mlp"),
    ("model", "HTTPGate", "http_gate", "HTTPGate", "http_gate"), ("model", "Conv2D", "conv2_d", "Conv2D", "conv2_d"), ("backend", "npu7", "npu7", "Npu7", "npu7"),
    ("kernel", "softmax", "mine.softmax", "Softmax", "mine_softmax"), ("model", "MLP", "mlp", "MLP", "mlp"),
])
def test_names_are_spelled_as_each_place_spells_them(kind: str, text: str, dotted: str, camel: str, module: str) -> None:
    n = name_for(KINDS[kind], text)
    assert (n.dotted, n.camel, n.module) == (dotted, camel, module)


@pytest.mark.parametrize(("command", "text", "words"), [
    ("new-op", "", "no name"), ("new-op", "1x", "no name"), ("new-op", "a b", "no name"), ("new-op", "a.b.c", "no name"), ("new-op", ".x", "no name"), ("new-op", "x.", "no name"),
    ("new-op", "λ", "no name"), ("new-op", "../x", "no name"), ("new-op", "acme.lambda", "a word of Python"), ("new-model", "json", "would hide json"), ("new-model", "numpy", "would hide numpy"),
    ("new-model", "ModelFlow", "uses ModelFlow otherwise"), ("new-op", "acme.op", "uses op otherwise"), ("new-backend", "CPU", "there is a device cpu"),
    ("new-model", "None", "try: my_none"), ("new-backend", "true", "try: my_true"), ("new-model", "class", "try: my_class"), ("new-op", "acme.class", "try: acme.my_class"),
    ("new-op", "class.softcap", "try: my_class.softcap"), ("new-op", "rlx.softcap", "try: mine.softcap"), ("new-op", "acme.op", "try: acme.my_op"),
    ("new-kernel", "cpu.softmax", "what bundled kernels are called"), ("new-kernel", "acme.softmaxx", "near it: softmax"),
])
def test_a_name_that_cannot_be_is_refused(command: str, text: str, words: str, tmp_path: Path) -> None:
    told = rlx(command, text, "--into", str(tmp_path))
    assert told.exit_code == 1
    assert words in told.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_there_already_is_shown_first() -> None:
    assert rlx("new-op", "acme.soft_max", "--stdout").stderr.startswith("there is already: softmax")
    assert "linear" in rlx("new-model", "Linears", "--stdout").stderr
    for short in ("x", "f"):  # which is a part of half of the names
        assert "there is already" not in rlx("new-op", f"acme.{short}", "--stdout").stderr
    assert "there is already" not in rlx("new-op", "acme.zyzzyva", "--stdout").stderr
