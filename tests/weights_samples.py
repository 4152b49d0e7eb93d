"""Small weight files for tests: GGUF written byte by byte or by ggml's own writer, safetensors from any header."""
from __future__ import annotations

import json
import mmap
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from rlxpy.flow.weights import WeightSource, open_weights
from rlxpy.ir.dtypes import Array

U32, F32 = 4, 6  # GGUF value types


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0, dim_count: int | None = None) -> bytes:
    """A row of the tensor table.  dims: innermost first, as the file has them."""
    count = len(dims) if dim_count is None else dim_count
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def gguf_bytes(
    pairs: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: bytes = b"", *,
    version: int = 3, pair_count: int | None = None, tensor_count: int | None = None, alignment: int = 32,
) -> bytes:
    counts = (len(tensors) if tensor_count is None else tensor_count, len(pairs) if pair_count is None else pair_count)
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join((*pairs, *tensors))
    return header + b"\0" * (-len(header) % alignment) + data


def safetensors_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def write_gguf(path: Path, architecture: str, tensors: Mapping[str, Any], settings: Mapping[str, Any] = {}, **options: Any) -> None:
    """ggml's writer.  tensors: arrays, or (bytes, ggml type name) when packed; settings: uint32, float32, str, bool or lists by key."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array,
    }
    for key, value in settings.items():
        add[type(value)](key, value)
    for name, value in tensors.items():
        array, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[kind] if kind else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_all(path: Path) -> dict[str, Array]:
    source = open_weights(path)
    return {name: source[name].array().copy() for name in source.names()}


def is_mapped(array: Array) -> bool:
    """Whether an array views a memory-mapped file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


@contextmanager
def bounded() -> Iterator[None]:
    """The body takes less than a second of processor time and less than 50 MB."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        assert time.process_time() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def source_arrays(source: WeightSource) -> dict[str, Array]:
    return {name: source[name].array() for name in source.names()}
