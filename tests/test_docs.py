"""Every Python block of the documentation runs, page by page, and every `rlx` command it shows exists with those options."""
from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from textwrap import dedent

import pytest
import typer

from rlxpy import cli
from rlxpy.extend import backend_registry, encoding_registry, kernel_registry, pass_registry, quantiser_registry, registry

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)  # "```python no-run" needs a download and is not run
COMMAND = re.compile(r"(?:^    |`)rlx ([a-z][^`\n|]*)", re.M)


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    scope: dict[str, object] = {"__name__": page.stem}
    with registry(), pass_registry(), backend_registry(), encoding_registry(), kernel_registry(), quantiser_registry():
        for block in BLOCK.finditer(text):
            line = text[: block.start(1)].count("\n")
            exec(compile("\n" * line + block[1], str(page), "exec", dont_inherit=True), scope)


# Lines a user writes, at most, in every block of a section that holds a word; imports, comments and blank lines are free.
LINES = (
    ("add_an_op.md", "A composition", "@op", 2),
    ("add_an_op.md", "A kernel for the CPU", "register_cpu_kernel", 6),
    ("add_an_op.md", "Derivatives", "vjp=", 2 + 3),  # two of them are the op itself
    ("add_a_backend.md", "Kernels for a GPU", "register_gpu_kernel", 8),
)


@pytest.mark.parametrize(("page", "heading", "word", "most"), LINES, ids=[heading for _, heading, _, _ in LINES])
def test_an_addition_is_a_few_lines(page: str, heading: str, word: str, most: int) -> None:
    _, _, rest = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    blocks = [b[1] for b in BLOCK.finditer(section) if word in b[1]]
    assert blocks
    for block in blocks:
        written = [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith(("#", "import ", "from "))]
        assert len(written) <= most, "\n".join(written)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_a_page_points_at_is_there(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    linked = [page.parent / m for m in re.findall(r"\]\(([^)#:]+)\)", text)]
    named = [ROOT / m for m in re.findall(r"`((?:benchmarks|docs|examples|rlxpy|templates|tests)/[\w./-]+)`", text)]
    assert not [str(p.relative_to(ROOT)) for p in (*linked, *named) if not p.exists()]


def commands() -> list[tuple[str, str]]:
    """Those that the prose shows; a Python block may make one of its own."""
    return [(p.name, m[1]) for p in PAGES for m in COMMAND.finditer(BLOCK.sub("", p.read_text()))]


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda v: v[:40])
def test_commands_exist_with_their_options(page: str, line: str) -> None:
    for module in iter_modules(cli.__path__):
        import_module(f"{cli.__name__}.{module.name}")
    words = [w.strip("[],") for w in shlex.split(line, comments=True)]
    command = typer.main.get_command(import_module("rlxpy.cli.app").app)
    assert words[0] in command.commands, f"{page}: no command {words[0]!r}"  # type: ignore[attr-defined]
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{page}: rlx {line}: no option {word}"


def test_the_error_shown_in_the_first_page_is_the_real_one(
        capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "first_five_minutes.md"
    test_python_blocks_run(page, tmp_path, monkeypatch)
    printed = capsys.readouterr().out
    shown = re.findall(r"^    input 'x' has.*?(?=^\S)", page.read_text(), re.M | re.S)
    assert shown
    assert dedent(shown[0]).strip().replace("docs/", f"{ROOT}/docs/") in printed
