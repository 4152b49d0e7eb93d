"""`rlx cache`: what rlxpy keeps on this disk, and its removal."""
from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rlxpy.cli.app import command, group
from rlxpy.cli.report import Json, show, size, table
from rlxpy.errors import InputError
from rlxpy.settings import cache_home

cache = group("cache", "Show or empty the cache.")


class Part(Enum):
    models = "models"
    code = "code"
    templates = "templates"
    tune = "tune"

    @property
    def folder(self) -> Path:
        return cache_home() / self.value


@command("path", group=cache)
def path(as_json: Json = False) -> None:
    """Print where it is; RLX_CACHE moves it."""
    show({"path": cache_home()}, str(cache_home()), as_json)


@command("ls", group=cache)
def ls(as_json: Json = False) -> None:
    """Show how much room it takes."""
    from rlxpy.hub.store import folder_nbytes

    rows = [(part.value, folder_nbytes(part.folder), part.folder) for part in Part]
    text = table(("part", "size", "path"), ((p, size(n), f) for p, n, f in rows))
    show([{"part": p, "nbytes": n, "path": f} for p, n, f in rows], text, as_json)


@command("clear", group=cache)
def clear(part: Annotated[Part | None, typer.Argument(help="Only this part.")] = None, as_json: Json = False) -> None:
    """Delete what rlxpy put there.

    Files of other origin stay."""
    from rlxpy.hub import store

    chosen = [part] if part else list(Part)
    freed = {}
    for each in chosen:
        before = store.folder_nbytes(each.folder)
        store.clear() if each is Part.models else _clear(each.folder)
        freed[each.value] = before - store.folder_nbytes(each.folder)
    show({"freed_nbytes": freed}, "\n".join(f"freed {size(nbytes)} of {name}" for name, nbytes in freed.items()), as_json)


def _clear(folder: Path) -> None:
    """Compiled code and tunings go as a whole, if its folder carries the tag of bford.info/cachedir: RLX_CACHE may point anywhere."""
    import shutil

    if not folder.exists():
        return
    if not (folder / "CACHEDIR.TAG").is_file():
        raise InputError("this folder is not known to be a cache", where=str(folder), why="it has no CACHEDIR.TAG",
                         fix="delete it yourself if it is not needed")
    shutil.rmtree(folder, ignore_errors=True)
