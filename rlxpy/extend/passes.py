"""What a pass is, what it may note, and the registry of a downstream package's passes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rlxpy.errors import RegistryError
from rlxpy.ir.graph import Graph, Node


@dataclass(frozen=True)
class Note:
    """One thing a pass did or declined.  kind: "fused", "near miss", "folded", "rewritten", "lowered", "host"."""

    pass_name: str
    kind: str
    label: str       # what it is about: an op, a fused kind, a rule
    where: str       # the user's line
    text: str        # the reason, with values
    saved_nbytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.label}: {self.text}" + (f"  ({self.where})" if self.where else "")


@runtime_checkable
class Pass(Protocol):
    """A frozen dataclass from Graph to Graph: `name`, options as fields, no state."""

    @property
    def name(self) -> str: ...

    def __call__(self, graph: Graph) -> Graph: ...


class NotingPass:
    """Base of passes that also say what they did: write `noted`, get the call."""

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        raise NotImplementedError

    def __call__(self, graph: Graph) -> Graph:
        return self.noted(graph)[0]


def note(pass_name: str, kind: str, label: str, node: Node, text: str, saved_nbytes: int = 0) -> Note:
    return Note(pass_name, kind, label, node.where, text, saved_nbytes)


Watch = Callable[[str, Graph], None]


@dataclass(frozen=True)
class RegisteredPass:
    """A downstream pass and its wishes about order, by pass name."""

    run: Pass
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


_GLOBAL: list[RegisteredPass] = []
_scopes: ContextVar[tuple[list[RegisteredPass], ...]] = ContextVar("rlxpy_passes", default=())


@contextmanager
def pass_registry() -> Iterator[None]:
    """Passes registered inside the block are forgotten at its end; per thread and per task."""
    token = _scopes.set((*_scopes.get(), []))
    try:
        yield
    finally:
        _scopes.reset(token)


def register_ir_pass(p: Pass, *, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Pass:
    """Run `p` after built-in fusion and before the last legalisation.  Raises RegistryError on a taken name, and for what is no pass."""
    if not isinstance(p, Pass):
        raise RegistryError(f"{type(p).__name__} is not a pass", why="a pass has a name and is called with a Graph", fix="write a frozen dataclass with `name` and __call__")
    try:
        hash(p)
    except TypeError as e:
        raise RegistryError(f"pass {p.name!r} cannot be part of a cache key", why=str(e), fix="make it a frozen dataclass whose fields are hashable") from None
    if any(r.run.name == p.name for r in registered()):
        raise RegistryError(f"pass {p.name!r} is already registered", fix="unregister_ir_pass it first, or choose another name")
    (_scopes.get() or (_GLOBAL,))[-1].append(RegisteredPass(p, before, after))
    return p


def unregister_ir_pass(name: str) -> None:
    for table in (*_scopes.get(), _GLOBAL):
        table[:] = [r for r in table if r.run.name != name]


def registered() -> tuple[RegisteredPass, ...]:
    return tuple(r for table in (_GLOBAL, *_scopes.get()) for r in table)


def registered_passes() -> tuple[Pass, ...]:
    """Registered passes in an order that keeps every wish, else the order of registration.  Raises RegistryError on a cycle."""
    todo, done = list(registered()), list[RegisteredPass]()
    while todo:
        waiting = {r.run.name for r in todo}
        ready = next((r for r in todo if not any(a in waiting for a in r.after) and not any(r.run.name in o.before for o in todo)), None)
        if ready is None:
            raise RegistryError("registered passes wait for each other", why=", ".join(f"{r.run.name} before {r.before} after {r.after}" for r in todo))
        todo.remove(ready)
        done.append(ready)
    return tuple(r.run for r in done)
