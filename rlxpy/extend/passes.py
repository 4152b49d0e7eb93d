"""What a pass is, what it may note, and the registry of a downstream package's passes."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from rlxpy.errors import RegistryError, nearest
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.place import placed
from rlxpy.registries import Registry


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


ROAD = ("canonicalise", "lower-extensions", "legalise", "find-composites", "fuse-attention", "fuse-append", "fuse", "fuse-products")  # built-in passes; the first time each runs


@dataclass(frozen=True)
class RegisteredPass:
    """A downstream pass and its wishes about order, by name of a pass of ROAD or of a registered one."""

    run: Pass
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.run.name


def pass_registry() -> AbstractContextManager[None]:
    """Passes registered inside the block are forgotten at its end; per thread and per task."""
    return REGISTERED.block()


@placed
def register_ir_pass(p: Pass, *, before: Sequence[str] = (), after: Sequence[str] = ()) -> Pass:
    """Run `p` after built-in fusion and before the last legalisation, or where `before` and `after` ask for.

    A name that no pass has is a wish about one that is not there, and changes nothing.
    Raises RegistryError on a taken name, for what is no pass, and for wishes that are no names or cannot be kept; then nothing has changed."""
    if isinstance(p, type) or not isinstance(p, Pass) or not isinstance(p.name, str) or not p.name:
        raise RegistryError(f"{p.__name__ if isinstance(p, type) else type(p).__name__} is not a pass", why="a pass has a name and is called with a Graph",
                            fix=f"register {p.__name__}(), an instance" if isinstance(p, type) else "write a frozen dataclass with `name` and __call__")
    try:
        hash(p)
    except TypeError as e:
        raise RegistryError(f"pass {p.name!r} cannot be part of a cache key", why=str(e), fix="make it a frozen dataclass whose fields are hashable") from None
    if p.name in ROAD:
        raise RegistryError(f"pass {p.name!r} has the name of a built-in pass", why="errors and reports name passes", fix=f"name it 'yourname.{p.name}'")
    if any(r.name == p.name for r in registered()):
        raise RegistryError(f"pass {p.name!r} is already registered", fix="unregister_ir_pass it first, or choose another name")
    REGISTERED.put(p.name, RegisteredPass(p, _names(p, "before", before), _names(p, "after", after)))
    try:
        passes_along(ROAD)
    except RegistryError:
        REGISTERED.drop(p.name)
        raise
    return p


def _adopt(name: str, p: Pass) -> None:
    register_ir_pass(p)


REGISTERED: Registry[RegisteredPass] = Registry("rlxpy.passes", _adopt)


def _names(p: Pass, wish: str, names: Any) -> tuple[str, ...]:
    """Text is not taken letter by letter."""
    if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names):
        raise RegistryError(f"pass {p.name!r}: {wish}={names!r}", why="names of passes are wanted, in a tuple", fix=f"{wish}=({names!r},)" if isinstance(names, str) else f"{wish}=('fuse',)")
    return tuple(names)


def unregister_ir_pass(name: str) -> None:
    """Forget a pass.  Raises RegistryError for one that is not registered."""
    if not REGISTERED.drop(name):
        names = list(REGISTERED.found())
        raise RegistryError(f"pass {name!r} is not registered", why=f"there are {', '.join(names) or 'none'}", fix=f"near it: {nearest(name, names)}")


def registered() -> tuple[RegisteredPass, ...]:
    return tuple(REGISTERED.found().values())


def _ordered() -> tuple[RegisteredPass, ...]:
    todo, done = list(registered()), list[RegisteredPass]()
    while todo:
        ready = next((r for r in todo if not any(_precedes(o, r) for o in todo)), None)
        if ready is None:
            raise RegistryError("registered passes wait for each other", why=", ".join(f"{r.name} before {r.before} after {r.after}" for r in todo), fix="drop one of these wishes")
        todo.remove(ready)
        done.append(ready)
    return tuple(done)


def _precedes(a: RegisteredPass, b: RegisteredPass) -> bool:
    return b.name in a.before or a.name in b.after


def registered_passes() -> tuple[Pass, ...]:
    """Registered passes in an order that keeps every wish, else the order of registration.  Raises RegistryError on a cycle."""
    return tuple(r.run for r in _ordered())


def passes_along(road: Sequence[str]) -> tuple[tuple[Pass, ...], ...]:
    """Registered passes in front of each built-in pass of a road, and at last those behind all of them.

    Whoever a pass waits for comes early with it.  Raises RegistryError when that, or a cycle, breaks a wish."""
    order, slot = _ordered(), dict[str, int]()
    for r in reversed(order):
        wished = [road.index(n) for n in r.before if n in road]
        slot[r.name] = min([*wished, *(slot[o.name] for o in order if _precedes(r, o))], default=len(road))
        if broken := [n for n in r.after if n in road and road.index(n) >= slot[r.name]]:
            raise RegistryError(f"pass {r.name!r} cannot run after {broken[0]!r}", why=f"it, or one that waits for it, runs before {road[slot[r.name]]!r}",
                                fix="drop one of these wishes")
    return tuple(tuple(r.run for r in order if slot[r.name] == k) for k in range(len(road) + 1))
