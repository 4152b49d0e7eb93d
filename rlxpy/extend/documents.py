"""JSON documents held to a shape: the first thing that is unlike it, where it stands, and what was wanted."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class Leaf:
    """A value by itself.  words: what is wanted, for a person."""

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Many:
    """A list."""

    of: Shape


@dataclass(frozen=True)
class Named:
    """An object whose names are free."""

    of: Shape


Shape: TypeAlias = "Leaf | Many | Named | Mapping[str, Shape]"  # a mapping: an object of these names and no others

TEXT = Leaf("a text", lambda v: isinstance(v, str))
FLAG = Leaf("true or false", lambda v: isinstance(v, bool))
WHOLE = Leaf("a whole number", lambda v: type(v) is int)
COUNT = Leaf("a whole number from 0", lambda v: type(v) is int and v >= 0)
POSITIVE = Leaf("a number above 0", lambda v: type(v) in (int, float) and isfinite(v) and v > 0)
ANY = Leaf("anything", lambda v: True)


def exactly(value: Any) -> Leaf:
    return Leaf(_short(value), lambda v: type(v) is type(value) and v == value)


def one_of(values: Sequence[str]) -> Leaf:
    return Leaf(f"one of {', '.join(values)}", lambda v: isinstance(v, str) and v in values)


def optional(leaf: Leaf) -> Leaf:
    return Leaf(f"{leaf.words}, or null", lambda v: v is None or leaf.holds(v))


def fault(data: Any, shape: Shape, at: str = "") -> str | None:
    """What is unlike the shape first, as "contract.walks[2] is 7, a text is wanted"; None where nothing is.  Nothing is converted."""
    if isinstance(shape, Leaf):
        return None if shape.holds(data) else _unlike(data, shape, at)
    if isinstance(shape, Many):
        return _first(fault(v, shape.of, f"{at}[{k}]") for k, v in enumerate(data)) if isinstance(data, list) else _unlike(data, shape, at)
    if not isinstance(data, dict):
        return _unlike(data, shape, at)
    if isinstance(shape, Named):
        return _first(fault(v, shape.of, _inside(at, name)) for name, v in data.items())
    if why := _first(fault(data[name], of, _inside(at, name)) if name in data else f"{_inside(at, name)} is missing, {_words(of)} is wanted" for name, of in shape.items()):
        return why
    return next((f"{_inside(at, name)} is unknown, there are {', '.join(shape)}" for name in data if name not in shape), None)


def _first(faults: Iterable[str | None]) -> str | None:
    return next((f for f in faults if f), None)


def _inside(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _words(shape: Shape) -> str:
    return shape.words if isinstance(shape, Leaf) else "a list" if isinstance(shape, Many) else "an object"


def _unlike(data: Any, shape: Shape, at: str) -> str:
    return f"{at or 'the document'} is {_short(data)}, {_words(shape)} is wanted"


def _short(value: Any) -> str:
    import json

    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
