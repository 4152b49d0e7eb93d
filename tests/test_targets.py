"""Targets of others: what they give is looked at before anything is written, and nothing is written outside the folder."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, Graph
from rlxpy.errors import InputError, RegistryError
from rlxpy.extend import register_target, target_registry
from rlxpy.extend.target import BUILT_IN
from rlxpy.targets import projects
from rlxpy.targets.projects import write


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with target_registry():
        yield


def graph() -> Graph:
    b = Builder("g")
    return b.finish(b.input("x", (2,)) + 1.0)


def giving(files: Any) -> Any:
    return type("Giving", (), {"name": "giving", "doc": "gives", "files": lambda self, graph, params, examples: files})()


def test_text_bytes_and_pieces_become_files(tmp_path: Path) -> None:
    numbers = np.arange(3, dtype=np.int32)
    write(graph(), {}, giving({"a.txt": "λ", "b/c.bin": b"abc", "d.bin": [b"ab", memoryview(numbers.tobytes())]}), tmp_path)
    assert (tmp_path / "a.txt").read_text("utf-8") == "λ"
    assert (tmp_path / "b" / "c.bin").read_bytes() == b"abc"
    assert (tmp_path / "d.bin").read_bytes() == b"ab" + numbers.tobytes()


@pytest.mark.parametrize(("files", "words"), [
    (None, "gives NoneType"), (["a.txt"], "gives list"), ({"first.txt": "x", "a.txt": 3}, "gives int for 'a.txt'"), ({"first.txt": "x", 3: "x"}, "writes to 3"),
    *(({"first.txt": "x", path: "x"}, "a path below the project's folder is wanted") for path in ("", ".", "..", "../out.txt", "a/../../out.txt", "/tmp/out.txt"))])
def test_what_is_no_set_of_files_is_refused_before_one_is_written(files: Any, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with pytest.raises(RegistryError, match=f"target 'giving' [^$]*{words}"):
        write(graph(), {}, giving(files), folder)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "factory", "words"), [("census", 3, "a name, and what is called"), ("", object, "a name, and what"), (3, object, "a name, and what"),
                                                        *((name, object, "is rlxpy's own") for name in BUILT_IN)])
def test_what_is_no_target_is_refused_when_it_is_registered(name: Any, factory: Any, words: str) -> None:
    with pytest.raises(RegistryError, match=words):
        register_target(name, factory)


@pytest.mark.parametrize(("factory", "words"), [(lambda: 1 // 0, "cannot be made[^$]*ZeroDivisionError"), (object, "is object[^$]*lacks name, doc or files"), (lambda: None, "is NoneType")])
def test_a_target_that_cannot_be_made_is_named(factory: Any, words: str, tmp_path: Path) -> None:
    register_target("odd", factory)
    with pytest.raises(RegistryError, match=f"target 'odd' {words}"):
        write(graph(), {}, "odd", tmp_path)


@pytest.mark.parametrize(("what", "folder"), [(3, "made"), (None, "made"), (graph(), None), (graph(), 3)])
def test_what_is_no_graph_or_no_folder_is_refused(what: Any, folder: Any) -> None:
    with pytest.raises(InputError, match="a Graph and the path of a folder are wanted"):
        write(what, {}, "c99", folder)


def test_names_of_built_in_targets_are_known_where_others_are_registered() -> None:
    assert set(BUILT_IN) == set(projects.BUILT_IN)
