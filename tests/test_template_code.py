"""Templates that were compiled once are not compiled again, and nothing damaged or out of date is run."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import pytest

from rlxpy.backends import templates

TEXT = "{% for i in range(3) %}\n{{ i * n }};\n{% endfor %}\n"
PLAIN, TRIMMED = "\n0;\n\n7;\n\n14;\n\n", "0;\n7;\n14;\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one template, and a cache that is empty."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "t.j2").write_text(TEXT)
    monkeypatch.setattr(templates, "folder", lambda: tmp_path / "templates")
    monkeypatch.setenv("RLX_CACHE", str(tmp_path / "cache"))
    templates._environment.cache_clear()
    yield tmp_path
    templates._environment.cache_clear()


def afresh(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As in another process; and what is compiled from now on."""
    templates._environment.cache_clear()
    compiled: list[str] = []
    generate = jinja2.Environment.compile

    def noted(self: jinja2.Environment, source: str, *args: object, **kwargs: object) -> object:
        compiled.append(source)
        return generate(self, source, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(jinja2.Environment, "compile", noted)
    return compiled


def kept(place: Path) -> list[Path]:
    return sorted((place / "cache" / "templates").glob("*.bin"))


def test_what_was_compiled_is_not_compiled_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (templates.render("t.j2", n=7), templates.trimmed("t.j2", n=7)) == (PLAIN, TRIMMED)
    assert len(kept(place)) == 2, "one for each way of reading blocks"
    compiled = afresh(monkeypatch)
    assert (templates.render("t.j2", n=7), templates.trimmed("t.j2", n=7)) == (PLAIN, TRIMMED)
    assert compiled == []


def test_a_template_that_was_changed_is_compiled(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates.render("t.j2", n=7)
    (place / "templates" / "t.j2").write_text("{{ n + 1 }}")
    compiled = afresh(monkeypatch)
    assert templates.render("t.j2", n=7) == "8"
    assert compiled == ["{{ n + 1 }}"]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda b: b[:40], "empty": lambda b: b"",
    "a bit of code": lambda b: b[:-1] + bytes([b[-1] ^ 1]), "a bit of the digest": lambda b: bytes([b[0] ^ 1]) + b[1:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_not_run_but_made_again(place: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]) -> None:
    templates.render("t.j2", n=7)
    (file,) = kept(place)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    compiled = afresh(monkeypatch)
    assert templates.render("t.j2", n=7) == PLAIN
    assert compiled == [TEXT]
    assert kept(place) == [file]
    assert file.read_bytes() == whole


def test_without_a_folder_to_write_to_templates_are_compiled_each_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "cache").write_text("a file stands where the cache would be")
    for _ in range(2):
        compiled = afresh(monkeypatch)
        assert templates.render("t.j2", n=7) == PLAIN
        assert compiled == [TEXT]
