"""Which packages are installed, told without `importlib.metadata`: never less than what that finds."""
from __future__ import annotations

import re
import sys
import zipfile
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from rlxpy.installed import may_be_installed, may_have_entry_points, metadata_folders


def spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install(site: Path, folder: str, entry_points: str = "") -> None:
    (site / folder).mkdir(parents=True)
    (site / folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.partition('-')[0]}\nVersion: 1\n")
    if entry_points:
        (site / folder / "entry_points.txt").write_text(entry_points)


def test_it_finds_all_that_importlib_finds_here() -> None:
    names = {spelled(d.name) for d in metadata.distributions()}
    assert {"numpy", "pytest"} <= names
    assert [n for n in names if not may_be_installed(n)] == []
    assert not may_be_installed("no-such-package")
    assert not may_be_installed("num")


@pytest.mark.parametrize("folder", ["of_two.words-1.0.dist-info", "Of_Two__Words-1.0.dist-info", "of_two_words-1.0-py3.11.egg-info", "of_two_words.egg-info"])
def test_names_are_compared_as_importlib_compares_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    install(tmp_path, folder, "[gui]\n\n  [made.up.group]\nx = y:z\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert may_be_installed("of-two-words") == bool(list(metadata.distributions(name="of-two-words"))) is True
    assert may_have_entry_points("made.up.")
    assert not may_have_entry_points("up.")
    assert not may_have_entry_points("made.up.group.of")


def test_the_current_folder_counts_where_python_looks_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "here-1.dist-info")
    monkeypatch.chdir(tmp_path)
    assert not may_be_installed("here")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert may_be_installed("here") == bool(list(metadata.distributions(name="here"))) is True


class Finder(MetaPathFinder):
    def find_distributions(self) -> None:
        """Somebody's own way to find packages."""


@pytest.mark.parametrize("how", ["archive", "egg", "finder", "gone"])
def test_what_it_cannot_see_it_does_not_deny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    assert metadata_folders() is not None
    if how == "archive":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.writestr("zipped-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1\n")
        monkeypatch.syspath_prepend(str(tmp_path / "all.zip"))
        assert metadata.version("zipped") == "1"
    elif how == "finder":
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    else:
        monkeypatch.syspath_prepend(str(tmp_path / ("of.egg" if how == "egg" else "gone")))
    sure = how == "gone"
    assert (metadata_folders() is not None) is sure
    assert may_be_installed("zipped") is may_have_entry_points("made.up.") is not sure
