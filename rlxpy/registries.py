"""What packages register, by name: for good or for a block of code, and what installed packages add once somebody looks."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from rlxpy import plugins

T = TypeVar("T")


class Registry(Generic[T]):
    """group: its entry point.  adopt(name, thing): registers what a plug-in gives, with every check that a call of its function makes."""

    def __init__(self, group: str, adopt: Callable[[str, Any], object]) -> None:
        self.group, self._adopt = group, adopt
        self.lasting: dict[str, T] = {}
        self._blocks: ContextVar[tuple[dict[str, T], ...]] = ContextVar(group, default=())

    @contextmanager
    def block(self, first: Mapping[str, T] | None = None) -> Iterator[None]:
        """What is registered inside, and `first`, is forgotten at its end; per thread and per task."""
        token = self._blocks.set((*self._blocks.get(), dict(first or {})))
        try:
            yield
        finally:
            self._blocks.reset(token)

    def put(self, name: str, thing: T) -> None:
        """Into the innermost block, or for good."""
        (self._blocks.get() or (self.lasting,))[-1][name] = thing

    def drop(self, name: str) -> bool:
        """Forget the innermost of that name; whether there was one."""
        return any(table.pop(name, None) is not None for table in reversed(self.tables()))

    def tables(self) -> tuple[dict[str, T], ...]:
        """What lasts, then the blocks, outermost first."""
        plugins.load(self.group, self._adopt, self.lasting)
        return (self.lasting, *self._blocks.get())

    def found(self) -> dict[str, T]:
        """Everything, in order of registration; of equal names the innermost."""
        return {name: thing for table in self.tables() for name, thing in table.items()}
