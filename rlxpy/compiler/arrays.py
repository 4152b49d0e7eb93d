"""What callers pass in: anything with __array__ or __dlpack__, lists, scalars, any strides; checked against the graph."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from rlxpy.errors import InputError, nearest
from rlxpy.ir.constant import fitted, native
from rlxpy.ir.dims import check_sizes, shape_text, solve
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.types import TensorType, bind

READERS: dict[str, Callable[[Any], Array]] = {"__array__": np.asarray, "__array_interface__": np.asarray, "__dlpack__": np.from_dlpack}


def as_array(value: Any, want: DType, what: str) -> Array:
    """A NumPy view of `value` where possible.  Lists and Python scalars take the wanted type if they fit it; arrays must have it."""
    read = next((f for protocol, f in READERS.items() if hasattr(value, protocol)), None)
    if read is None:
        return fitted(value, want, what, InputError)
    try:
        array = read(value)
    except Exception as e:  # of the caller's object: a tensor on a GPU, say
        raise InputError(f"{what} cannot be read", why=f"{type(value).__name__} raised {type(e).__name__}: {e}",
                         fix="copy it to the host, as a NumPy array") from None
    if array.dtype.name != want.numpy_name:
        raise InputError(f"{what} has the wrong type", why=f"{array.dtype.name} was given, {want} is wanted",
                         fix=f"convert it: x.astype({want.numpy_name!r})")
    return native(array)


def gather_inputs(graph: Graph, args: Sequence[Any], named: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[list[Array], dict[str, int]]:
    """Arrays in the graph's order, and every symbol's size.  Raises InputError naming the input and both shapes."""
    if not named and len(args) == len(graph.inputs) and all(type(a) is np.ndarray and a.dtype == n.type.dtype.numpy for n, a in zip(graph.inputs, args, strict=True)):
        return list(args), _learn_sizes(graph, args, sizes)  # what nearly every call is
    if len(args) == 1 and isinstance(args[0], Mapping) and not named:
        named, args = args[0], ()
    names = [n.name for n in graph.inputs]
    if len(args) > len(names):
        raise InputError(f"{len(args)} inputs given", why=f"the graph has {len(names)}: {_list(names)}",
                         fix="pass one array for each input")
    given = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if name not in names or name in given:
            raise InputError(f"input {name!r} {'is given twice' if name in given else 'does not exist'}", why=f"inputs are {_list(names)}",
                             fix=f"near it: {nearest(str(name), names)}")
        given[name] = value
    missing = [n for n in names if n not in given]
    if missing:
        raise InputError(f"input {_list(missing)} is missing", why=f"inputs are {_list(names)}, given are {_list(given)}",
                         fix="pass it by position, by name, or in one dict")
    arrays = [as_array(given[n.name], n.type.dtype, f"input {n.name!r}") for n in graph.inputs]
    return arrays, _learn_sizes(graph, arrays, sizes)


def each_call(calls: Any) -> list[Sequence[Any]]:
    """Raises InputError for what is no row of calls: an array would fall into its rows, and a dict into its names."""
    found = list(calls) if isinstance(calls, Iterable) else [calls]
    for k, inputs in enumerate(found):
        if not isinstance(inputs, (tuple, list)):
            raise InputError(f"call {k} is no tuple", why=f"{type(inputs).__name__} was given", fix="run_each([(x, y), (x2, y2)]): of each call its inputs, in order")
    return found


def _learn_sizes(graph: Graph, arrays: Sequence[Array], sizes: Mapping[str, int]) -> dict[str, int]:
    known = _whole(graph, sizes)
    before = -1
    while len(known) > before:  # until nothing is learnt: B*S finds its S once another axis has told B
        before = len(known)
        for n, a in zip(graph.inputs, arrays, strict=True):
            _match(n, a, known)
    check_sizes(graph.symbols, known)
    return known


def _whole(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    if type(sizes) is dict and not sizes:
        return {}  # what nearly every call gives
    if not isinstance(sizes, Mapping):
        raise InputError(f"sizes = {sizes!r}", why=f"{type(sizes).__name__} is no mapping from names to numbers", fix="sizes={'S': 16}")
    for name, size in sizes.items():
        if name not in graph.symbols:
            raise InputError(f"size {name!r} does not exist", why=f"sizes are {_list(graph.symbols)}",
                             fix=f"near it: {nearest(str(name), list(graph.symbols))}")
        if not isinstance(size, (int, np.integer)):
            raise InputError(f"size {name} = {size!r}", why=f"{type(size).__name__} is not a whole number",
                             fix=f"sizes={{{name!r}: {graph.symbols[name].lo}}}")
    return {name: int(size) for name, size in sizes.items()}


def _list(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _match(n: Node, a: Array, known: dict[str, int]) -> None:
    t = n.type
    if a.shape == t.shape:
        return
    if a.ndim != t.rank:
        raise InputError(f"input {n.name!r} has the wrong rank", why=f"{shape_text(a.shape)} was given, {_declared(n)} is wanted",
                         fix=f"give it {t.rank} axes")
    for axis, (d, size) in enumerate(zip(t.shape, a.shape, strict=True)):
        why = solve(d, size, known)
        if why:
            raise InputError(f"input {n.name!r} has the wrong size on axis {axis}",
                             why=f"{shape_text(a.shape)} was given, {_declared(n)} is wanted: {why}",
                             fix="change the array, or the size that the graph was built with")


def _declared(n: Node) -> str:
    return f"{n.type} (declared at {n.where})" if n.where else str(n.type)


def check_param(node: Node, value: Any) -> Array:
    """A weight of the declared type and shape.  Raises InputError."""
    array = as_array(value, node.type.dtype, f"param {node.name!r}")
    if array.shape != node.type.shape:
        raise InputError(f"param {node.name!r} has the wrong shape",
                         why=f"{shape_text(array.shape)} was given, {_declared(node)} is wanted",
                         fix="reshape or transpose the weight")
    return array


def kept(array: Array) -> Array:
    """The array itself when nobody can write to it, as a memory-mapped file; otherwise a copy."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return array.copy()
        base = base.base
    return array


def check_outputs(graph: Graph, given: Any, sizes: Mapping[str, int]) -> list[Array]:
    """Writable arrays of exactly the results' types and shapes, no two on the same bytes.  Raises InputError."""
    if not isinstance(given, (np.ndarray, Sequence)):
        raise InputError(f"outputs given as {type(given).__name__}",
                         why=f"one array, or one for each of {_list(graph.output_names)}, is wanted", fix="run_into(np.empty(..), ..)")
    arrays = (given,) if isinstance(given, np.ndarray) else tuple(given)
    if len(arrays) != len(graph.outputs):
        raise InputError(f"{len(arrays)} outputs given", why=f"the graph has {len(graph.outputs)}: {_list(graph.output_names)}",
                         fix="give one array for each")
    for name, a, t in zip(graph.output_names, arrays, graph.output_types, strict=True):
        _check_output(name, a, t, bind(t.shape, sizes))
    for (name, a), (other, b) in combinations(zip(graph.output_names, arrays, strict=True), 2):
        if _share_memory(a, b):
            raise InputError(f"outputs {name!r} and {other!r} lie on the same memory", why="the later one would overwrite the earlier",
                             fix="give each an array of its own")
    return list(arrays)


def _check_output(name: str, array: Any, t: TensorType, shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or not _is(array, t.dtype) or array.shape != shape or not array.flags.writeable:
        got = type(array).__name__
        if isinstance(array, np.ndarray):
            got = f"{array.dtype.name}{shape_text(array.shape)}{'' if array.flags.writeable else ', read-only'}"
        raise InputError(f"output {name!r} cannot be written there",
                         why=f"{got} was given, a writable {t.dtype}{shape_text(shape)} is wanted",
                         fix=f"np.empty({shape}, {t.dtype.numpy_name!r})")


def _is(array: Array, want: DType) -> bool:
    """In whichever byte order.  A dtype's name is slow to ask for."""
    return bool(array.dtype == want.numpy or array.dtype.name == want.numpy_name)


def _share_memory(a: Array, b: Array) -> bool:
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # NumPy's stub knows the two special values alone
    except np.exceptions.TooHardError:  # strides that only a search could tell apart
        return True
