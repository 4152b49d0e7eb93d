"""Which targets there are, and how one of them becomes a folder of files."""
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import InputError, RegistryError, RlxError, nearest
from rlxpy.extend.target import Content, Example, Target, TargetFactory, registered_targets
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Graph
from rlxpy.tools.equivalence import accepted_inputs, some_sizes

RUNS = 2  # a state shows in the second
BUILT_IN: Mapping[str, str] = {  # where the class of each is; imported at first use
    "c99": "rlxpy.targets.c99.project:C99",
    "hip": "rlxpy.targets.hip.project:Hip",
    "systemverilog": "rlxpy.targets.systemverilog.project:SystemVerilog",
    "dot": "rlxpy.targets.drawings:Dot",
    "html": "rlxpy.targets.drawings:Html",
}


def _built_in(place: str) -> TargetFactory:
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(module), name)()


def known() -> dict[str, TargetFactory]:
    """A built-in one cannot be replaced."""
    return {**registered_targets(), **{name: _built_in(place) for name, place in BUILT_IN.items()}}


def target(name: str) -> Target:
    """Raises InputError for an unknown name."""
    if name not in known():
        raise InputError(f"no target {name!r}", why=f"there are {', '.join(known())}", fix=f"near it: {nearest(name, list(known()))}")
    try:
        made: Any = known()[name]()
    except RlxError:
        raise
    except Exception as e:  # whatever a stranger's code raises
        raise RegistryError(f"target {name!r} cannot be made", why=f"{type(e).__name__}: {e}", fix="mend its class: it is called without arguments") from e
    if not isinstance(made, Target):
        raise RegistryError(f"target {name!r} is {type(made).__name__}", why="it lacks name, doc or files", fix="docs/targets.md shows one")
    return made


def record(graph: Graph, params: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]] = (), *, sizes: Mapping[str, int] | None = None, seed: int = 0) -> tuple[Example, ...]:
    """What the reference, op by op, gives for `inputs`, one run after another; without them, for seeded random ones."""
    plain = compile(graph, params, device="reference", options=CompileOptions(optimise=False))
    if not inputs:
        rng = np.random.default_rng(seed)
        sizes = some_sizes(graph, rng) | dict(sizes or {})
        inputs = (accepted_inputs(plain, graph, sizes, rng)[0],) * RUNS
        plain.reset()
    return tuple(_example(plain, given, sizes or {}) for given in inputs)


@dataclass(frozen=True)
class _Recording(Sequence[Example]):
    """Random runs, recorded when a target first looks at them: many have no use for any."""

    graph: Graph
    params: Mapping[str, Any]

    @cached_property
    def _runs(self) -> tuple[Example, ...]:
        return record(self.graph, self.params)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, k: Any) -> Any:
        return self._runs[k]


def _example(compiled: Any, given: Mapping[str, Any], sizes: Mapping[str, int]) -> Example:
    from rlxpy.compiler.arrays import gather_inputs

    arrays, known_sizes = gather_inputs(compiled.source, (given,), {}, sizes)
    got = compiled.run(given, sizes=sizes)
    return Example(known_sizes, tuple(arrays), got if isinstance(got, tuple) else (got,))


def write(graph: Graph, params: Mapping[str, Any], to: str | Target, folder: str | Path, examples: Sequence[Example] | None = None) -> tuple[Path, ...]:
    """The files of a project, each under its name once it is complete; returns their paths.

    examples: recorded runs; None records some.  Raises InputError, LegaliseError, RegistryError; of all but a full disk before anything is written."""
    if not isinstance(graph, Graph) or not isinstance(folder, (str, os.PathLike)):
        raise InputError(f"write({type(graph).__name__}, .., folder={folder!r:.60})", why="a Graph and the path of a folder are wanted", fix="write(graph, params, 'c99', 'folder')")
    chosen = target(to) if isinstance(to, str) else to
    made = _checked(chosen.name, chosen.files(graph, params, _Recording(graph, params) if examples is None else examples))
    return tuple(_write(Path(folder) / name, content) for name, content in made.items())


def _checked(name: str, made: Any) -> Mapping[str, Content]:
    """Raises RegistryError for what is no set of files below a folder."""
    if not isinstance(made, Mapping):
        raise RegistryError(f"target {name!r} gives {type(made).__name__}", why="contents by file name are wanted", fix="{'file.txt': text}")
    for path, content in made.items():
        parts = PurePath(path).parts if isinstance(path, str) else ()
        if not parts or PurePath(path).is_absolute() or ".." in parts:
            raise RegistryError(f"target {name!r} writes to {path!r}", why="a path below the project's folder is wanted", fix="as in 'src/model.c'")
        if not isinstance(content, (str, bytes, Iterable)):
            raise RegistryError(f"target {name!r} gives {type(content).__name__} for {path!r}", why="text, bytes, or pieces of bytes are wanted", fix="str(..), or array.tobytes()")
    return made


def _write(path: Path, content: Content) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, (content.encode(),) if isinstance(content, str) else (content,) if isinstance(content, bytes) else content)
    except OSError as e:
        raise InputError(f"cannot write {str(path)!r}", why=e.strerror or str(e), fix="name a folder that you may write to") from None
    return path


def _replace(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as f:
            for piece in pieces:
                f.write(piece)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
