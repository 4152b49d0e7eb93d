"""Which model a folder holds."""
from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rlxpy.errors import InputError

_FOLDERS_SEARCHED = 1000


def model_path(path: Path) -> Path:
    """The model in a folder, nearest its top: a folder of config.json and safetensors, or a GGUF file (of a split one, the first).

    A file is itself.  Raises InputError when there is none, or several side by side."""
    if not path.is_dir():
        return path
    found = candidates(path)
    if not found:
        raise InputError("no model in this folder", where=str(path), why="wanted a .gguf file, or config.json beside .safetensors files",
                         fix="name the model's own file or folder")
    if len(found) > 1:
        raise InputError(f"{len(found)} models in this folder", where=str(path), why=", ".join(sorted(p.name for p in found)),
                         fix="name one of them")
    return found[0]


def candidates(folder: Path) -> list[Path]:
    """Models at the level nearest the top that has any."""
    level = [folder]
    left = _FOLDERS_SEARCHED
    while level and left > 0:
        level = level[:left]
        left -= len(level)
        if found := [model for f in level for model in _models_in(f)]:
            return found
        level = list(islice((p for f in level for p in _entries(f) if p.is_dir() and not p.is_symlink()), left))
    return []


def _models_in(folder: Path) -> Iterator[Path]:
    files = [p for p in _entries(folder) if p.is_file()]
    if any(p.name == "config.json" for p in files) and any(p.suffix == ".safetensors" for p in files):
        yield folder
        return
    for path in files:
        part = re.search(r"-(\d{5})-of-\d{5}$", path.stem)
        if path.suffix.lower() == ".gguf" and (part is None or int(part[1]) == 1):
            yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # a folder we may not read holds nothing for us
        return []
