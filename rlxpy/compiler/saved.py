"""A compiled graph as one file: its graph as text, its weights, its options, and what its extension ops are and come from.

A safetensors file: tensors `param/NAME`, the text `graph`, and `lowered`, the same without extension ops where all of them can be lowered.
Nothing in it is executed."""
from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np

import rlxpy
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import BuildError, InputError, LegaliseError, LoadError, RlxError, VerifyError
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import KernelSearchPath
from rlxpy.flow.weights.safetensors import NAMES, open_safetensors, save_safetensors
from rlxpy.flow.weights.source import Source
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

    package, version: "" where no installed distribution has the module."""

    name: str
    module: str
    package: str = ""
    version: str = ""
    source: Mapping[str, str] | None = None

    @property
    def provider(self) -> str:
        return f"{self.package} {self.version} ({self.module})" if self.package else f"the module {self.module}, of no installed package"


def save(graph: Graph, params: Mapping[str, Array], options: CompileOptions, path: str | Path) -> None:
    """`path` appears complete or stays as it was.  Raises LoadError when the disk refuses."""
    ops = [_saved(extension(name)) for name in _extensions(graph)]
    texts = {GRAPH: show(graph, locs=True), **({LOWERED: lowered} if ops and (lowered := _lowered(graph)) else {})}
    arrays = {**{f"{PARAM}{name}": _storable(a) for name, a in params.items()}, **{name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}}
    save_safetensors(path, arrays, {"format": FORMAT, "version": rlxpy.__version__, "options": json.dumps(asdict(options)), "ops": json.dumps([asdict(o) for o in ops])})


@placed
def load(path: str | Path, *, device: str | Sequence[str] | None = None, wait: bool | None = None) -> CompiledGraph:
    """Compile what `CompiledGraph.save` wrote, with the options it was compiled with; weights are mapped, not read.

    An extension op that is not registered here runs as its lowering in the file, and a note says so; without a lowering it is an error.
    Raises LoadError naming what is missing and where it comes from; and what `compile` raises."""
    file = _opened(Path(path))
    missing = [o for o in _records(file) if not is_op_registered(o.name)]
    graph = _graph(file, LOWERED if missing else GRAPH, missing)
    if missing:
        note_once(f"{path}: {', '.join(f'{o.name} of {o.provider}' for o in missing)} is not registered here, so its lowering in the file runs")
    params = {n.name: _restored(file, n) for n in graph.params}
    return compile(graph, params, device=device, options=_options(file), wait=wait)


# ---- writing
def _extensions(graph: Graph) -> Iterator[str]:
    """Names, each once, those inside loops and branches too."""
    def every(g: Graph) -> Iterator[str]:
        for n in g:
            if n.op is Op.CUSTOM and n.label not in BUILT_IN:
                yield n.label
            for _, inner in n.attrs.graphs():
                yield from every(inner)

    return iter(dict.fromkeys(every(graph)))


def _saved(ext: OpExtension) -> SavedOp:
    cells = {name: cell for name in ("ref", "lower", "vjp", "jvp", "vmap") if callable(cell := getattr(ext.row, name))}
    module = next((str(cell.__module__) for cell in cells.values() if hasattr(cell, "__module__")), "")
    package = next(iter(packages_distributions().get(module.partition(".")[0], ())), "")
    kernels = {f"kernel {device}": str(text) for device, kernel in ext.kernels.items() if (text := getattr(kernel, "source", ""))}
    return SavedOp(ext.name, module, package, version(package) if package else "", {**{name: _source(cell) for name, cell in cells.items()}, **kernels})


def _source(cell: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(cell)
    except (OSError, TypeError):  # made at a prompt, or no Python
        return ""


def _lowered(graph: Graph) -> str | None:
    """The graph in built-in ops alone; None when one of its ops cannot be lowered."""
    nothing = BackendSpec(Device("none"), KernelSearchPath(()))
    try:
        made = run(graph, (LowerExtensions(nothing),))[0]
    except LegaliseError:
        return None
    return None if any(_extensions(made)) else show(made, locs=True)


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
        return [SavedOp(**record) for record in json.loads(file.metadata["ops"])]
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


def _graph(file: Source, name: str, missing: Sequence[SavedOp]) -> Graph:
    if missing and name not in file:
        raise LoadError(f"{str(file.path)!r} needs {len(missing)} ops that are not registered here", why="\n    ".join(f"{o.name} is of {o.provider}" for o in missing),
                        fix=f"install and import {', '.join(sorted({o.package or o.module for o in missing}))} before loading")
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
