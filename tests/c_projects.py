"""C99 projects in tests: written, compiled without a warning, called through ctypes."""
from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy import Graph
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.extend.target import Example
from rlxpy.ir.dtypes import Array
from rlxpy.ir.types import bind
from rlxpy.targets.projects import write

reason = find_compiler()
STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")
SECONDS = 300.0


def compiled(folder: Path, prefix: str, *flags: str, out: str, sources: Sequence[str] = ()) -> Path:
    assert not isinstance(reason, str)
    done = subprocess.run([*reason.argv, *STRICT, *flags, "-o", out, *(sources or (f"{prefix}.c",)), "-lm"], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, ""), '\n'.join([line for line in done.stderr.splitlines() if 'error:' in line][:30])
    return folder / out


@dataclass
class Project:
    """A library made of a graph; `run` as a C program would call it."""

    graph: Graph
    prefix: str
    library: Any
    memory: Any

    def run(self, *arrays: Array, sizes: Mapping[str, int] | None = None) -> tuple[Array, ...]:
        """Raises AssertionError with the library's message."""
        sizes = sizes or {}
        outs = [np.full(bind(t.shape, sizes), 0, t.dtype.numpy) for t in self.graph.output_types]
        for o in outs:
            o.reshape(-1).view(np.uint8).fill(0xa5)
        given = [np.asarray(a, order="C") for a in arrays]
        assert [(a.dtype, a.shape) for a in given] == [(n.type.dtype.numpy, bind(n.type.shape, sizes)) for n in self.graph.inputs]
        args = [ctypes.byref(self.memory), *(ctypes.c_int64(sizes[s]) for s in sorted(self.graph.symbols)), *(ctypes.c_void_p(a.ctypes.data) for a in (*given, *outs))]
        code = getattr(self.library, f"{self.prefix}_run")(*args)
        message = getattr(self.library, f"{self.prefix}_message")
        message.restype = ctypes.c_char_p
        assert code == 0, message(code).decode()
        return tuple(outs)

    def reset(self) -> None:
        getattr(self.library, f"{self.prefix}_reset")(ctypes.byref(self.memory))


class _Model(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("weights", "arena", "state", "owned"))


def project(graph: Graph, folder: Path, params: Mapping[str, Any] | None = None, *flags: str, examples: Sequence[Example] | None = ()) -> Project:
    """Written, compiled as a shared library, opened."""
    header = next(p for p in write(graph, params or {}, "c99", folder, examples) if p.suffix == ".h")
    library = ctypes.CDLL(str(compiled(folder, header.stem, "-fPIC", "-shared", *(flags or ("-O1",)), out="library.so")))
    memory = _Model()
    code = getattr(library, f"{header.stem}_open")(ctypes.byref(memory), str(folder / f"{header.stem}.weights").encode())
    assert code == 0
    return Project(graph, header.stem, library, memory)
