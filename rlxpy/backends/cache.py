"""Files made once and kept under the user's cache folder by what they were made of."""
from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from rlxpy.notes import note_once
from rlxpy.settings import cache_home

# An entry is <part>/<key>/<digest of the content><suffix>: one file, published by one rename, and whoever reads it can tell whether it is whole.
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# made by rlxpy; see https://bford.info/cachedir/\n"
_SCRATCH = ".scratch-"
_STALE_SECONDS = 24 * 3600.0
Make = Callable[[Path], None]


def kept(part: str, key: str, suffix: str, make: Make, *, runs: bool = False) -> Path:
    """The file of this key, made by make(path to write) unless it is there and whole.

    part: folder below the cache's.  runs: the file is code, so that its disk must let code run.  Where the cache folder does not
    serve, a folder of this process does instead, and one note says so.  What `make` raises passes through and leaves nothing."""
    home = cache_home() / part
    if (found := _whole(home / key, suffix)) and not (runs and _forbids_code(home)):
        return found
    try:
        _prepare(home)
        if runs and _forbids_code(home):
            raise PermissionError(None, "its disk lets no code run (noexec)")
    except OSError as e:
        home = _private(part)
        note_once(f"{cache_home()} cannot keep compiled code: {e.strerror or e}; this process keeps its own in {home}. RLX_CACHE names another folder.")
        if found := _whole(home / key, suffix):
            return found
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=home))  # not a TemporaryDirectory: a process forked meanwhile would remove it at its end
    try:
        made = scratch / f"made{suffix}"
        make(made)
        target = home / key / f"{_digest(made)}{suffix}"
        target.parent.mkdir(exist_ok=True)
        made.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def publish(part: str, name: str, content: bytes) -> Path:
    """A small file of this name, in the place of one before it, by one rename.  Raises OSError where the cache cannot be written."""
    home = cache_home() / part
    _prepare(home)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=home))
    try:
        (scratch / name).write_bytes(content)
        return (scratch / name).replace(home / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _whole(entry: Path, suffix: str) -> Path | None:
    """An entry's file whose content has the digest in its name; what is damaged is removed."""
    try:
        files = [f for f in entry.iterdir() if f.suffix == suffix]
    except OSError:
        return None
    for file in files:
        with suppress(OSError):  # another process was first to remove it
            if _digest(file) == file.stem:
                return file
            file.unlink()
    return None


def _digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def _prepare(home: Path) -> None:
    """Make the folder, tag it as a cache, and sweep what killed writers left.  Raises OSError where nothing can be written."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "CACHEDIR.TAG").exists():
        (home / "CACHEDIR.TAG").write_text(_TAG)
    for folder in home.glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # its owner was done with it
            if time.time() - folder.stat().st_mtime >= _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
    tempfile.TemporaryFile(dir=home).close()


def _forbids_code(folder: Path) -> bool:
    """Whether the folder's disk is mounted noexec, as far as the system tells."""
    if not hasattr(os, "statvfs") or not hasattr(os, "ST_NOEXEC"):
        return False
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


@cache
def _private(part: str) -> Path:
    """A folder that only this user can read, gone when the process ends."""
    folder = tempfile.mkdtemp(prefix=f"rlxpy-{part}-")
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)  # a fork shares it
    return Path(folder)
