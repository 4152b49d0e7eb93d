"""Which Python packages may be installed, by the names of folders: `importlib.metadata` knows more, and takes a third of NumPy's time to import."""
from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib.machinery import PathFinder

SUFFIXES = (".dist-info", ".egg-info")


def metadata_folders() -> tuple[str, ...] | None:
    """Where packages say what they are; None where only `importlib.metadata` can tell: some are in archives, or found by somebody's own finder."""
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return None
    found: list[str] = []
    for place in sys.path:
        if os.path.isfile(place) or place.endswith(".egg"):  # noqa: PTH113 (pathlib is slower)
            return None
        with suppress(OSError), os.scandir(place or ".") as inside:
            found += [entry.path for entry in inside if entry.name.lower().endswith(SUFFIXES)]
    return tuple(found)


def may_be_installed(name: str) -> bool:
    """Whether a package may be; its name spelled as in PEP 503: "of-two-words"."""
    folders = metadata_folders()
    return folders is None or name in map(_package, folders)


def may_have_entry_points(prefix: str) -> bool:
    """Whether a package may offer entry points of groups that begin so."""
    folders = metadata_folders()
    return folders is None or any(f"[{prefix}".encode() in _entry_points(f) for f in folders)


def _package(folder: str) -> str:
    return re.sub(r"[-_.]+", "-", os.path.basename(folder).lower().rpartition(".")[0].partition("-")[0])  # noqa: PTH119


def _entry_points(folder: str) -> bytes:
    try:
        with open(f"{folder}/entry_points.txt", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""
