"""Small wheels with a model inside, whole and damaged, made by hand after the binary distribution format."""
from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

WEIGHTS = bytes(range(1, 252)) * 12_001  # about 3 MB, so that progress has something to count
FILES = {
    "tiny_model/__init__.py": b"raise SystemExit('a model package must never be imported')",
    "tiny_model/data/weights.gguf": WEIGHTS,
    "tiny_model/data/tokenizer.json": b"{}",
    "tiny_model/data/vocab.txt": b"a\nb\n",
    "tiny_model/data/run.sh": b"exit 1",
    "tiny_model-1.0.dist-info/LICENSE": b"do what you like",
    "tiny_model-1.0.dist-info/top_level.txt": b"tiny_model",
}
MODEL_FILES = {"data/weights.gguf", "data/tokenizer.json", "data/vocab.txt"}
EVIL = b"evil"
Entry = tuple[zipfile.ZipInfo | str, bytes]


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def record(files: dict[str, bytes], stem: str) -> str:
    return "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items()) + f"{stem}.dist-info/RECORD,,\n"


def make_wheel(folder: Path, files: dict[str, bytes] = FILES, name: str = "tiny_model", version: str = "1.0",
               extra: tuple[Entry, ...] = (), recorded: str | None = None) -> Path:
    """A wheel as the binary distribution format describes it.  `extra`: members that RECORD may or may not know."""
    stem = f"{name}-{version}"
    files = {n.replace("tiny_model-1.0", stem): data for n, data in files.items()} | {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in (*files.items(), *extra):
            archive.writestr(member, data)
        archive.writestr(f"{stem}.dist-info/RECORD", record(files, stem) if recorded is None else recorded)
    return path


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def edit(path: Path, change: Callable[[bytes], bytes]) -> Path:
    return write(path, change(path.read_bytes()))


def symlink(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def evil_wheel(name: str) -> Callable[[Path], Path]:
    return lambda folder: make_wheel(folder, {**FILES, name: EVIL})


OUTSIDE = ("../evil.gguf", "/evil.gguf", "tiny_model/../../evil.gguf", "C:\\evil.gguf", "c:evil.gguf", "..\\evil.gguf")
DAMAGED: dict[str, tuple[str, Callable[[Path], Path]]] = {  # case -> (a word of the error, how to make the wheel)
    "not a zip": ("not a zip", lambda f: write(f / "tiny_model-1.0-py3-none-any.whl", b"no zip at all")),
    "truncated": ("not a zip", lambda f: edit(make_wheel(f), lambda raw: raw[: len(raw) // 2])),
    "a flipped bit": ("CRC|decompressing", lambda f: edit(make_wheel(f), lambda raw: raw[:400] + bytes([raw[400] ^ 4]) + raw[401:])),
    "no RECORD entry": ("no hash for", lambda f: make_wheel(f, extra=(("tiny_model/more.gguf", EVIL),))),
    "empty RECORD": ("no hash for", lambda f: make_wheel(f, recorded="")),
    "another hash": ("its RECORD says", lambda f: make_wheel(f, recorded=record(dict.fromkeys(FILES, EVIL), "tiny_model-1.0"))),
    "a weak hash": ("no hash for", lambda f: make_wheel(f, recorded="tiny_model/data/weights.gguf,md5=AAAA,1\n")),
    "two RECORDs": ("one RECORD", lambda f: make_wheel(f, extra=(("other-1.0.dist-info/RECORD", b""),))),
    **{f"a file named {name}": ("below the wheel's own folder", evil_wheel(name)) for name in OUTSIDE},
    "a link": ("below the wheel's own folder", lambda f: make_wheel(
        f, recorded=record({**FILES, "tiny_model/l.gguf": EVIL}, "tiny_model-1.0"), extra=((symlink("tiny_model/l.gguf"), EVIL),))),
    "one name twice": ("exists", lambda f: make_wheel(f, extra=(("tiny_model/data/vocab.txt", FILES["tiny_model/data/vocab.txt"]),))),
    "a file below a file": ("exists|Not a directory", lambda f: make_wheel(f, {**FILES, "tiny_model/data/vocab.txt/x.json": EVIL})),
}
