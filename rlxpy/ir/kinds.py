"""Kinds of parameters by the text of their annotation: which values each takes, and what it makes of them."""
from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache
from operator import index
from typing import Any, SupportsIndex

from rlxpy.ir.constant import Constant, Real
from rlxpy.ir.dims import Dim, Shape, as_dim, as_shape
from rlxpy.ir.dtypes import dtype

Convert = Callable[[Any], Any]  # raises TypeError, ValueError, OverflowError or BuildError for what is of another kind


def annotation(kind: Any) -> str:
    """An annotation's text without module names, whether or not its module postpones annotations."""
    plain = isinstance(kind, type) and not hasattr(kind, "__args__")
    alias = "Shape" if kind == Shape else "Dim" if kind == Dim else kind.__name__ if plain else str(kind)
    return re.sub(r"\b\w+\.(?=\w)", "", alias)


@cache
def converter(kind: str) -> Convert | None:
    """None for a kind that has no text form.  Beside the names in NAMED: tuples of PLAIN kinds, and `| None`."""
    if kind in NAMED:
        return NAMED[kind]
    try:
        return _parsed(ast.parse(kind, mode="eval").body)
    except SyntaxError:
        return None


def _parsed(node: ast.expr) -> Convert | None:
    match node:
        case ast.Name(id=name) if name in PLAIN:
            return NAMED[name]
        case ast.BinOp(left=some, op=ast.BitOr(), right=ast.Constant(value=None)):
            inner = _parsed(some)
            return inner and (lambda v: None if v is None else inner(v))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant(value=value)])) if value is ...:
            one = _parsed(item)
            return one and (lambda v: tuple(map(one, _items(v))))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=items):
            each = [_parsed(i) for i in (items.elts if isinstance(items, ast.Tuple) else (items,))]
            return _of_length([e for e in each if e]) if all(each) else None
    return None


def _of_length(each: Sequence[Convert]) -> Convert:
    def convert(v: Any) -> tuple[Any, ...]:
        items = _items(v)
        if len(items) != len(each):
            raise ValueError(f"{len(items)} values where {len(each)} are wanted")
        return tuple(one(i) for one, i in zip(each, items, strict=True))
    return convert


def _items(value: Any) -> Sequence[Any]:
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{type(value).__name__} is not a tuple")  # text, too, is no tuple of letters
    return value


def _whole(value: Any) -> int:
    return int(index(value))  # of True and NumPy's numbers too: they are written as numbers


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, value if isinstance(value, (tuple, list)) else (value,) if isinstance(value, SupportsIndex) else value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    return value


def _flag(value: Any) -> bool:
    if value is not True and value is not False:
        raise TypeError(f"{type(value).__name__} is not True or False")
    return bool(value)


def _real(value: Any) -> Real:
    if isinstance(value, str):
        raise TypeError("text is not a number")
    return Real(value)


def _graph(value: Any) -> Any:
    if not hasattr(value, "output_types"):  # the class is made of nodes, which are made of parameters
        raise TypeError(f"{type(value).__name__} is not a Graph")
    return value




PLAIN = ("int", "float", "bool", "str")
NAMED: dict[str, Convert] = {
    "int": _whole, "float": _real, "bool": _flag, "str": _text, "DType": dtype, "Dim": as_dim, "Shape": as_shape, "tuple[int, ...]": _ints,
    "Constant": lambda v: v if isinstance(v, Constant) else Constant(v), "Graph": _graph, "Graph | None": lambda v: None if v is None else _graph(v),
}
KINDS = f"{', '.join(PLAIN)}, tuples of these, DType, Dim, Shape, Constant, Graph"  # for errors
