"""The one door to weights: looks at what it is given and calls the reader for it."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.flow.weights.arrays import open_arrays, open_npz
from rlxpy.flow.weights.folder import CONVERT, open_folder
from rlxpy.flow.weights.gguf import MAGIC, open_gguf
from rlxpy.flow.weights.safetensors import LENGTH_NBYTES, open_safetensors
from rlxpy.flow.weights.source import WeightSource

READABLE = "a mapping of arrays, .npz, .safetensors, .gguf, or a folder with model.safetensors"
HEAD_NBYTES = 64
# reader, what a file starts with (from byte), its suffix.  Content decides; a suffix serves only files whose content says nothing
READERS: tuple[tuple[Callable[[Path], WeightSource], int, tuple[bytes, ...], str], ...] = (
    (open_gguf, 0, (MAGIC,), ".gguf"),
    (open_npz, 0, (b"PK\x03\x04", b"PK\x05\x06"), ".npz"),
    (open_safetensors, LENGTH_NBYTES, (b"{",), ".safetensors"),
)
FOREIGN = (  # what it starts with, what that is, how to go on
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file it points to: git lfs pull"),
    (b"\x80", "a Python pickle", CONVERT),
    (b"\x89HDF", "an HDF5 file", CONVERT),
    (b"\x93NUMPY", "a single NumPy array", "save it by name with numpy.savez"),
    (b"<", "a web page or XML", "fetch the file again: this is what the server said instead"),
)


def open_weights(source: Mapping[str, Any] | str | Path) -> WeightSource:
    """Weights of a mapping of arrays, an .npz, a safetensors file, a GGUF file (any part of a split one) or a Hugging Face folder.

    Files are memory-mapped and read when a weight is asked for; nothing is unpickled.  Raises LoadError saying what was found."""
    if isinstance(source, Mapping):
        return open_arrays(source)
    if not isinstance(source, str | Path):
        raise LoadError(f"weights from a {type(source).__name__}", fix=READABLE)
    try:
        return _open_path(Path(source))
    except OSError as e:
        raise LoadError(f"cannot open {source}", why=e.strerror or str(e)) from None


def _open_path(path: Path) -> WeightSource:
    if path.is_dir():
        return open_folder(path)
    head = _head(path)
    for read, start, magics, _ in READERS:
        if head[start:].startswith(magics):
            return read(path)
    for magic, what, fix in FOREIGN:
        if head.startswith(magic):
            raise LoadError(f"{path} is {what}", why=f"it starts with {head[:16]!r}", fix=fix)
    for read, _, _, suffix in READERS:
        if path.suffix == suffix:
            return read(path)
    raise LoadError(f"{path} holds no weights that can be read", why=f"it starts with {head[:16]!r}", fix=READABLE)


def _head(path: Path) -> bytes:
    if not path.is_file():
        why = "it is a device or a pipe" if path.exists() else "there is no such file"
        raise LoadError(f"cannot open {path}", why=why, fix=READABLE)
    with path.open("rb") as f:
        return f.read(HEAD_NBYTES)
