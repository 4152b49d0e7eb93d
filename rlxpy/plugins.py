"""What installed packages add, by entry point: found once, loaded at first need; a broken one is reported and skipped."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import replace
from functools import cache
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from rlxpy.errors import RlxError
from rlxpy.frozen import dataclass
from rlxpy.installed import may_have_entry_points
from rlxpy.notes import note_once

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = ("rlxpy.backends", "rlxpy.encodings", "rlxpy.kernels", "rlxpy.ops", "rlxpy.passes", "rlxpy.quantisers", "rlxpy.targets")


class Declined(Exception):
    """Raised by a plug-in that has nothing for this machine: it is left out, with this reason, and everything else goes on."""


@dataclass(frozen=True)
class Plugin:
    """One entry point.  state: "not loaded", "loaded", "declined", "refused" (it clashes), "broken" or "shadowed"; `reason` says more."""

    group: str
    name: str
    value: str
    package: str
    version: str
    state: str = "not loaded"
    reason: str = ""

    def __str__(self) -> str:
        return f"plug-in {self.name!r} of {self.package} {self.version} ({self.group}: {self.value})"


_lock = threading.RLock()  # a plug-in's import may look for others
_states: dict[Plugin, Plugin] = {}
_under_way: set[str] = set()
_done: set[str] = set()


@cache
def _found() -> dict[Plugin, EntryPoint]:
    """In the order in which Python finds packages; of one name in a group the first counts, and the others are shadowed."""
    if not may_have_entry_points("rlxpy."):
        return {}
    from importlib.metadata import entry_points

    found: dict[Plugin, EntryPoint] = {}
    first: dict[tuple[str, str], Plugin] = {}
    every = entry_points()
    for group in GROUPS:
        for e in every.select(group=group):
            p = Plugin(group, e.name, e.value, e.dist.name if e.dist else "an unknown package", e.dist.version if e.dist else "")
            if (other := first.setdefault((group, e.name), p)) == p:
                found[p] = e
            else:
                _states[p] = replace(p, state="shadowed", reason=f"{other.package} {other.version} gives {group} {e.name!r} too, and is found first")
    return found


def plugins() -> tuple[Plugin, ...]:
    """Every plug-in there is, and what became of it; loads nothing."""
    with _lock:
        return tuple(sorted((_states.get(p, p) for p in {**_states, **_found()}), key=lambda p: (GROUPS.index(p.group), p.name, p.package)))


def load(group: str, adopt: Callable[[str, Any], object], table: dict[str, Any]) -> None:
    """Load a group's plug-ins, once a process, outside every scope; what a module names that is only half imported, at a later call.

    adopt(name, thing) registers what an entry point names, or each thing that it gives when it is a function; a function may also
    register by itself and give None.  table: the registry's, put back as it was when a plug-in fails half-way."""
    if group in _done:
        return
    with _lock:
        if group in _under_way:
            return
        _under_way.add(group)
        try:
            left = [(p, e) for p, e in _found().items() if p.group == group and p not in _states]
            for p, e in left:
                if not _half_imported(e):
                    Context().run(_load, p, e, adopt, table)
        finally:
            _under_way.discard(group)
        if all(p in _states for p, _ in left):
            _done.add(group)


def _half_imported(e: EntryPoint) -> bool:
    """Whether its module's import is under way, here or in another thread: what it names may not be there yet, and to wait could be for ever."""
    return bool(getattr(getattr(sys.modules.get(e.module), "__spec__", None), "_initializing", False))


def _load(p: Plugin, e: EntryPoint, adopt: Callable[[str, Any], object], table: dict[str, Any]) -> None:
    before = table.copy()
    try:
        for thing in things(e.load()):
            adopt(p.name, thing)
        _states[p] = replace(p, state="loaded")
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises
        table.clear()
        table.update(before)
        state = "declined" if isinstance(error, Declined) else "refused" if isinstance(error, RlxError) else "broken"
        _states[p] = replace(p, state=state, reason=str(error) if state != "broken" else f"{type(error).__name__}: {error}")
        if state != "declined":
            note_once(f"{p} is left out: {_states[p].reason}")


def things(found: Any) -> Iterable[Any]:
    """What an entry point gives: itself, or what it gives when it is a plain function; a module has registered by being imported."""
    if isinstance(found, ModuleType):
        return ()
    made = found() if isinstance(found, FunctionType) else found
    return () if made is None else made if isinstance(made, (tuple, list)) else (made,)


def forget() -> None:
    """Look for plug-ins anew: for tests, and after a package was installed.  What was registered stays."""
    with _lock:
        _found.cache_clear()
        _states.clear()
        _done.clear()
