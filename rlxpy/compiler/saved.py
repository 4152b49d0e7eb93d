"""A compiled graph as one file: its graph as text, its weights, its options, and what its extension ops are and come from.

A safetensors file: tensors `param/NAME`, the text `graph`, and `lowered`, the same without the extension ops that can be lowered.
Nothing in it is executed."""
from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

import rlxpy
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import BuildError, InputError, LegaliseError, LoadError, RlxError, VerifyError
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.flow.weights.safetensors import NAMES, open_safetensors, save_safetensors
from rlxpy.flow.weights.source import Source
from rlxpy.frozen import dataclass
from rlxpy.fusion.legalise import LowerExtensions
from rlxpy.fusion.pipeline import run
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.extension import BUILT_IN, OpExtension, extension, is_op_registered
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.ir.place import placed
from rlxpy.ir.text import parse, show
from rlxpy.ir.types import bind
from rlxpy.ir.verify import verify
from rlxpy.notes import note_once

FORMAT = "rlxpy graph 1"
PARAM, GRAPH, LOWERED = "param/", "graph", "lowered"


@dataclass(frozen=True)
class SavedOp:
    """An extension op of a saved graph: the package and module that registered it, and its Python and kernels, to read.

    package, version: "" where no installed distribution has the module.  lowers: whether the text `lowered` does without it."""

    name: str
    module: str
    package: str = ""
    version: str = ""
    source: Mapping[str, str] | None = None
    lowers: bool = False

    @property
    def provider(self) -> str:
        return f"{self.package} {self.version} ({self.module})" if self.package else f"the module {self.module}, of no installed package"


def save(graph: Graph, params: Mapping[str, Array], options: CompileOptions, path: str | Path) -> None:
    """`path` appears complete or stays as it was.  Raises LoadError when the disk refuses."""
    lowered = _lowered(graph)
    ops = [_saved(extension(name), name not in _extensions(lowered)) for name in _extensions(graph)]
    texts = {GRAPH: show(graph, locs=True), **({LOWERED: show(lowered, locs=True)} if any(o.lowers for o in ops) else {})}
    arrays = {**{f"{PARAM}{name}": _storable(a) for name, a in params.items()}, **{name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}}
    save_safetensors(_path(path), arrays, {"format": FORMAT, "version": rlxpy.__version__, "options": json.dumps(asdict(options)), "ops": json.dumps([asdict(o) for o in ops])})


@placed
def load(path: str | Path, *, device: str | Sequence[str] | None = None, wait: bool | None = None) -> CompiledGraph:
    """Compile what `CompiledGraph.save` wrote, with the options it was compiled with; weights are mapped, not read.

    An extension op that is not registered here runs as its lowering in the file, and a note says so; without a lowering it is an error.
    Raises LoadError naming what is missing and where it comes from; and what `compile` raises."""
    graph, params, options = read(path)
    return compile(graph, params, device=device, options=options, wait=wait)


def read(path: str | Path) -> tuple[Graph, dict[str, Array], CompileOptions]:
    """What is to be compiled, and how.  Raises LoadError."""
    file = _opened(_path(path))
    missing = [o for o in _records(file) if not is_op_registered(o.name)]
    if needed := [o for o in missing if not o.lowers]:
        raise LoadError(f"{str(file.path)!r} needs {len(needed)} op{'s' * (len(needed) > 1)} not registered here", why="\n    ".join(f"{o.name} is of {o.provider}" for o in needed),
                        fix=f"install and import {', '.join(sorted({o.package or o.module for o in needed}))} before loading")
    graph = _graph(file, LOWERED if missing else GRAPH)
    if missing:
        note_once(f"{path}: {', '.join(f'{o.name} of {o.provider}' for o in missing)} is not registered here, so its lowering in the file runs")
    return graph, {n.name: _restored(file, n) for n in graph.params}, _options(file)


def is_saved(path: Path) -> bool:
    """Whether `save` wrote a file, with this version of rlxpy or another."""
    try:
        return path.is_file() and open_safetensors(path).metadata.get("format", "").startswith(FORMAT.rpartition(" ")[0])
    except (LoadError, OSError):
        return False


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file named {path!r}", why=f"{type(path).__name__} is no path", fix="give text, or a Path")
    return Path(path)


# ---- writing
def _extensions(graph: Graph) -> tuple[str, ...]:
    """Names, each once, those inside loops and branches too."""
    def every(g: Graph) -> Iterator[str]:
        for n in g:
            if n.op is Op.CUSTOM and n.label not in BUILT_IN:
                yield n.label
            for _, inner in n.attrs.graphs():
                yield from every(inner)

    return tuple(dict.fromkeys(every(graph)))


def _saved(ext: OpExtension, lowers: bool) -> SavedOp:
    from importlib.metadata import packages_distributions, version  # few graphs have such ops

    cells = {name: getattr(ext.row, name) for name in ("shape", "dtype", "ref", "lower", "vjp", "jvp", "vmap")}
    cells |= {f"kernel {device}": getattr(kernel, "f", None) for device, kernel in ext.kernels.items()}
    own = {name: cell for name, cell in cells.items() if callable(cell) and not _module(cell).startswith("rlxpy.")}  # what rlxpy made of them is in rlxpy
    texts = {f"kernel {device}": str(text) for device, kernel in ext.kernels.items() if (text := getattr(kernel, "source", ""))}
    module = next(map(_module, own.values()), "")
    package = next(iter(packages_distributions().get(module.partition(".")[0], ())), "")
    return SavedOp(ext.name, module, package, version(package) if package else "", {**{name: _source(cell) for name, cell in own.items()}, **texts}, lowers)


def _module(cell: Callable[..., Any]) -> str:
    return str(getattr(cell, "__module__", None) or "")


def _source(cell: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(cell)
    except (OSError, TypeError):  # made at a prompt, or no Python
        return ""


def _lowered(graph: Graph) -> Graph:
    """Without the extension ops that can be lowered; the graph itself where a lowering fails."""
    kept = BackendSpec(Device("none"), native=lambda spec, graph, node: "it is lowered" if node.op is Op.CUSTOM and callable(node.row.lower) else None)
    try:
        return run(graph, (LowerExtensions(kept),))[0]
    except LegaliseError:
        return graph


def _storable(a: Array) -> Array:
    """Types that safetensors lacks, as bytes."""
    return a if dtype(a.dtype) in NAMES else np.ascontiguousarray(a).reshape(-1).view(np.uint8)


# ---- reading
def _opened(path: Path) -> Source:
    try:
        file = open_safetensors(path)
    except OSError as e:
        raise LoadError(f"cannot read {str(path)!r}", why=e.strerror or str(e), fix="name a file that CompiledGraph.save wrote") from None
    if file.metadata.get("format") != FORMAT:
        raise LoadError(f"{str(path)!r} is no saved graph", why=f"its format is {file.metadata.get('format', 'not told')!r}, {FORMAT!r} is wanted",
                        fix="name a file that CompiledGraph.save wrote, with this version of rlxpy or an earlier one")
    return file


def _records(file: Source) -> list[SavedOp]:
    try:
        records = [SavedOp(**record) for record in json.loads(file.metadata["ops"])]
        if odd := [o for o in records if not all(isinstance(text, str) for text in (o.name, o.module, o.package, o.version))]:
            raise TypeError(f"{odd[0]!r:.80} is not of texts")
        return records
    except (KeyError, ValueError, TypeError) as e:
        raise _damaged(file, "the list of its ops", e) from None


def _options(file: Source) -> CompileOptions:
    try:
        given = json.loads(file.metadata["options"])
        unknown = sorted(set(given) - {f.name for f in fields(CompileOptions)})
        if unknown:
            raise LoadError(f"{str(file.path)!r} has options that this rlxpy lacks", why=", ".join(unknown), fix=f"update rlxpy: the file was written by {file.metadata.get('version')}")
        return CompileOptions(**given)
    except (KeyError, ValueError, TypeError, InputError) as e:
        raise _damaged(file, "its options", e) from None


def _graph(file: Source, name: str) -> Graph:
    try:
        return verify(parse(file[name].array().tobytes().decode(), str(file.path)))
    except (BuildError, VerifyError, UnicodeDecodeError) as e:
        raise _damaged(file, "its graph", e) from e


def _restored(file: Source, n: Node) -> Array:
    """The weight as the graph declares it; `compile` checks the rest."""
    array = file[f"{PARAM}{n.name}"].array()
    if n.type.dtype in NAMES:
        return array
    try:
        return array.view(n.type.dtype.numpy).reshape(bind(n.type.shape, {}))
    except ValueError as e:
        raise _damaged(file, f"weight {n.name!r}", e) from None


def _damaged(file: Source, what: str, e: Exception) -> LoadError:
    said = f"{e.what}: {e.why}" if isinstance(e, RlxError) else f"{type(e).__name__}: {e}"
    return LoadError(f"{str(file.path)!r}: {what} cannot be read", where=e.where if isinstance(e, RlxError) else "", why=said, fix="save it again")
