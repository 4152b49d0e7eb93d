"""Settings: what wins over what, and what a bad value says."""
from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rlxpy import settings
from rlxpy.backends.cache import kept
from rlxpy.errors import InputError
from rlxpy.settings import SETTINGS, cache_home, override, setting, unknown_variables


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in SETTINGS.values():
        monkeypatch.delenv(row.variable, raising=False)


@pytest.mark.parametrize("row", SETTINGS.values(), ids=SETTINGS)
def test_every_row_is_complete_and_its_default_parses(row: settings.Setting) -> None:
    assert row.variable == "RLX_" + row.name.upper()
    assert row.doc
    assert row.twin
    assert setting(row.name) == row.parse(row.default)


def test_override_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setting("debug") == 0
    monkeypatch.setenv("RLX_DEBUG", "2")
    assert setting("debug") == 2
    with override(debug=4):
        with override(debug=5, dump=Path("/d")):
            assert (setting("debug"), setting("dump")) == (5, Path("/d"))
        assert (setting("debug"), setting("dump")) == (4, None)
    assert setting("debug") == 2


def test_override_ends_with_its_block_even_when_that_raises() -> None:
    with pytest.raises(ZeroDivisionError), override(debug=3):
        _ = 1 // 0
    assert setting("debug") == 0


def test_override_is_not_seen_by_other_threads_and_tasks() -> None:
    seen = []
    with override(debug=3):
        thread = threading.Thread(target=lambda: seen.append(setting("debug")))
        thread.start()
        thread.join()

    async def inside(level: int) -> int:
        with override(debug=level):
            await asyncio.sleep(0)  # let the other task enter its block
            return int(setting("debug"))

    async def both() -> tuple[int, int]:
        first, second = await asyncio.gather(inside(1), inside(5))
        return first, second

    assert seen == [0]
    assert asyncio.run(both()) == (1, 5)


@pytest.mark.parametrize("text", ["9", "-1", "two", "1.5", "", " 1"])
def test_a_bad_value_names_variable_value_and_what_was_wanted(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEBUG", text)
    with pytest.raises(InputError) as caught:
        setting("debug")
    assert "RLX_DEBUG" in caught.value.what
    assert repr(text) in caught.value.what
    assert "0 to 5" in caught.value.why


def test_an_unknown_override_lists_the_known_names() -> None:
    with pytest.raises(InputError, match="debugg") as caught, override(debugg=1):
        pass
    assert all(name in caught.value.fix for name in SETTINGS)


@pytest.mark.parametrize(("text", "names"), [("cpu", ("cpu",)), (" cuda, cpu ,", ("cuda", "cpu")), (",", ())])
def test_lists_are_split_at_commas(text: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", text)
    assert setting("device") == names


@pytest.mark.parametrize(("variables", "folder"), [
    ({"RLX_CACHE": "/r", "XDG_CACHE_HOME": "/x"}, "/r"),
    ({"RLX_CACHE": "~/r"}, "/home/u/r"),
    ({"XDG_CACHE_HOME": "/x"}, "/x/rlxpy"),
    ({"XDG_CACHE_HOME": "", "RLX_CACHE": ""}, "/home/u/.cache/rlxpy"),
])
def test_cache_home(variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in {"HOME": "/home/u", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_home() == Path(folder)


def test_without_a_home_a_process_keeps_what_it_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number without a name."""
    def unknown(number: int) -> None:
        raise KeyError(number)

    def written(place: Path) -> None:
        place.write_text("whole")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="Not a directory"):
        cache_home().mkdir(parents=True)
    made = kept("code", "0" * 40, ".txt", written)
    assert made.read_text() == "whole"
    monkeypatch.setenv("RLX_CACHE", "~/cache")
    with pytest.raises(InputError, match="RLX_CACHE='~/cache'"):
        cache_home()



def test_mistyped_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = unknown_variables()
    monkeypatch.setenv("RLX_DEBUGG", "1")
    monkeypatch.setenv("RLX_DEBUG", "1")
    assert unknown_variables() == sorted([*before, "RLX_DEBUGG"])
