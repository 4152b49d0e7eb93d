"""What a code generator is: a graph and its weights in, files out; and the registry of a downstream package's own."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from rlxpy.errors import RegistryError
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph
from rlxpy.registries import Registry

Content = str | bytes | Iterable[bytes | memoryview]  # text, or bytes, or those piece by piece: weights need not be copied


@dataclass(frozen=True, eq=False)
class Example:
    """One run as it was recorded: sizes of the graph's symbols, inputs and outputs in the graph's order."""

    sizes: Mapping[str, int]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@runtime_checkable
class Target(Protocol):
    """A frozen dataclass, options as fields."""

    @property
    def name(self) -> str: ...

    @property
    def doc(self) -> str:
        """One line: what it writes."""

    def files(self, graph: Graph, params: Mapping[str, Array], examples: Sequence[Example]) -> Mapping[str, Content]:
        """What to write, by path relative to the project's folder.

        params: an array for each PARAM leaf.  examples: runs one after another, states zero before the first; a target that
        writes tests checks itself against them.  Raises LegaliseError with every node that it cannot write, all at once."""


BUILT_IN = ("c99", "hip", "systemverilog", "dot", "html")  # rlxpy's own
TargetFactory = Callable[[], Target]


def register_target(name: str, factory: TargetFactory) -> None:
    """factory() gives the target.  Raises RegistryError when the name is taken, by rlxpy or another, and for what is no name or no factory."""
    if not isinstance(name, str) or not name or not callable(factory):
        raise RegistryError(f"register_target({name!r:.60}, {type(factory).__name__})", why="a name, and what is called to make the target, are wanted", fix="register_target('census', Census)")
    if name in BUILT_IN:
        raise RegistryError(f"target {name!r} is rlxpy's own", why=f"so are {', '.join(BUILT_IN)}", fix="choose another name: target names are open")
    if name in registered_targets():
        raise RegistryError(f"target {name!r} is already registered", fix="choose another name: target names are open")
    REGISTERED.put(name, factory)


def target_registry() -> AbstractContextManager[None]:
    """Targets registered inside the block are forgotten at its end; per thread and per task."""
    return REGISTERED.block()


def registered_targets() -> Mapping[str, TargetFactory]:
    """By name, in order of registration."""
    return REGISTERED.found()


def _adopt(name: str, found: Any) -> None:
    """What a plug-in gives: a target, or the class of one, under the entry point's name."""
    if not isinstance(found, (type, Target)):
        raise RegistryError(f"{type(found).__name__} is not a target", fix="name a Target, or a class or function that makes one")
    register_target(name, found if isinstance(found, type) else lambda: found)


REGISTERED: Registry[TargetFactory] = Registry("rlxpy.targets", _adopt)
