"""What callers pass in: anything with __array__ or __dlpack__, lists, scalars, any strides; checked against the graph."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlxpy.errors import InputError, nearest
from rlxpy.ir.dims import check_sizes, shape_text, solve
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.types import TensorType


def as_array(value: Any, want: DType, what: str) -> Array:
    """A NumPy view of `value` where possible.  Lists and Python scalars take the wanted type if they fit it; arrays must have it."""
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__array__") or isinstance(value, np.generic):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        return _from_python(value, want, what)
    if array.dtype.name != want.numpy_name:
        raise InputError(f"{what} has the wrong type", why=f"{array.dtype.name} was given, {want} is wanted", fix=f"convert it: x.astype({want.numpy_name!r})")
    return array


def _from_python(value: Any, want: DType, what: str) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise InputError(f"{what} is not an array", why=str(e), fix="rows of a list must have equal lengths") from None
    if array.size == 0:
        return array.astype(want.numpy)
    fits = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc"}[want.kind]
    if array.dtype.kind not in fits:
        raise InputError(f"{what} cannot be {want}", why=f"{type(value).__name__} holds {array.dtype.name}", fix=f"pass an array of {want}, or numbers it can hold")
    if want.is_integer and (array.min() < want.range[0] or array.max() > want.range[1]):
        raise InputError(f"{what} does not fit {want}", why=f"values {array.min()}..{array.max()}, {want} holds {want.range[0]}..{want.range[1]}")
    return array.astype(want.numpy)


def gather_inputs(graph: Graph, args: Sequence[Any], named: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[list[Array], dict[str, int]]:
    """Arrays in the graph's order, and every symbol's size.  Raises InputError naming the input and both shapes."""
    if len(args) == 1 and isinstance(args[0], Mapping) and not named:
        named, args = args[0], ()
    names = [n.name for n in graph.inputs]
    if len(args) > len(names):
        raise InputError(f"{len(args)} inputs given", why=f"the graph has {len(names)}: {', '.join(names)}")
    given = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in names or name in given:
            raise InputError(f"input {name!r} {'is given twice' if name in given else 'does not exist'}", why=f"inputs are {', '.join(names) or 'none'}",
                             fix=f"near it: {nearest(name, names)}")
        given[name] = value
    missing = [n for n in names if n not in given]
    if missing:
        raise InputError(f"input {', '.join(map(repr, missing))} is missing", why=f"inputs are {', '.join(names)}")
    arrays = [as_array(given[n.name], n.type.dtype, f"input {n.name!r}") for n in graph.inputs]
    return arrays, _learn_sizes(graph, arrays, sizes)


def _learn_sizes(graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int]) -> dict[str, int]:
    unknown = [s for s in sizes if s not in graph.symbols]
    if unknown:
        raise InputError(f"size {unknown[0]!r} does not exist", why=f"sizes are {', '.join(graph.symbols) or 'none'}")
    known = {k: int(v) for k, v in sizes.items()}
    for _ in range(2):  # plain symbols first, so that B*S finds its B
        for n, a in zip(graph.inputs, arrays, strict=True):
            _match(n, n.type, a, known)
    check_sizes(graph.symbols, known)
    return known


def _match(n: Node, t: TensorType, a: Array, known: dict[str, int]) -> None:
    if a.ndim != t.rank:
        raise InputError(f"input {n.name!r} has the wrong rank", where=n.where, why=f"{shape_text(a.shape)} was given, {t} is wanted")
    for axis, (d, size) in enumerate(zip(t.shape, a.shape, strict=True)):
        why = solve(d, size, known)
        if why:
            raise InputError(f"input {n.name!r} has the wrong size on axis {axis}", where=n.where, why=f"{shape_text(a.shape)} was given, {t} is wanted: {why}")


def check_param(node: Node, value: Any) -> Array:
    """A weight of the declared type and shape.  Raises InputError."""
    array = as_array(value, node.type.dtype, f"param {node.name!r}")
    if array.shape != node.type.shape:
        raise InputError(f"param {node.name!r} has the wrong shape", where=node.where, why=f"{shape_text(array.shape)} was given, {node.type} is wanted")
    return array


def check_output(name: str, array: Any, t: TensorType, shape: tuple[int, ...]) -> Array:
    """A writable array of exactly the result's type and shape.  Raises InputError."""
    if not isinstance(array, np.ndarray) or array.dtype.name != t.dtype.numpy_name or array.shape != shape or not array.flags.writeable:
        got = f"{dtype(array.dtype)}{shape_text(array.shape)}{'' if array.flags.writeable else ', read-only'}" if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"output {name!r} cannot be written there", why=f"{got} was given, a writable {t.dtype}{shape_text(shape)} is wanted")
    return array
