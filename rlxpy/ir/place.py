"""The user's line: where something was asked for, and errors that say so."""
from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from rlxpy.errors import RlxError

P = ParamSpec("P")
R = TypeVar("R")


class Loc(NamedTuple):
    """The user's line that made a node, and the block of the model it belongs to ("layers.3.mlp")."""

    file: str = ""
    line: int = 0
    scope: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return f"{place} in {self.scope}" if place and self.scope else place or self.scope


def caller(scope: str = "") -> Loc:
    """The nearest frame outside rlxpy; none under an `rlx` command, whose user has no lines."""
    frame = sys._getframe(1)
    while frame.f_back and (module := frame.f_globals.get("__name__", "")).startswith("rlxpy."):
        if module.startswith("rlxpy.cli."):
            return Loc(scope=scope)
        frame = frame.f_back
    return Loc(frame.f_code.co_filename, frame.f_lineno, scope)


def placed(f: Callable[P, R]) -> Callable[P, R]:
    """`f`, with the caller's line in an error that has no place yet."""
    @wraps(f)
    def with_place(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return f(*args, **kwargs)
        except RlxError as e:
            if e.where:
                raise
            raise e.at(str(caller())) from e.__cause__
    return with_place
