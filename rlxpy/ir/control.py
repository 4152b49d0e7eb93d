"""The cells of scan, while and cond: what their graphs must take and give, and what running them means."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.ir.dims import Dim
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.refs import evaluate
from rlxpy.ir.types import TensorType

PREDICATE = TensorType((), DType.BOOL)


class Cells(NamedTuple):
    """The first columns of a row."""

    shape: Callable[..., list[TensorType]]  # whole types
    dtype: None
    ref: Callable[..., Any]


# ---- types ---------------------------------------------------------------------------------------------------------
def scan_types(*ts: TensorType, body: Any, carries: int, mapped: int, length: Dim, reverse: bool) -> list[TensorType]:
    if min(carries, mapped) < 0 or len(ts) < carries + mapped:
        raise BuildError(f"scan of {len(ts)} inputs", why=f"{carries} carries and {mapped} mapped inputs are named", fix="give all of them, carries first")
    init, xs, others = ts[:carries], ts[carries:carries + mapped], ts[carries + mapped:]
    for x in xs:
        if not x.shape or x.shape[0] != length:
            raise BuildError(f"scan of {length} steps over {x}", why=f"axis 0 has {x.shape[0]} slices" if x.shape else "a scalar has no slices",
                             fix="map over inputs of one length; others may be used in the body as they are")
    takes(body, "body", (*init, *(TensorType(x.shape[1:], x.dtype) for x in xs), *others))
    _gives(body.output_types[:carries], init, "carry")
    if not body.outputs:
        raise BuildError("scan without a result", why="its body gives neither carries nor slices", fix="return a carry or a slice of a result")
    return [*init, *(TensorType((length, *t.shape), t.dtype) for t in body.output_types[carries:])]


def while_types(*ts: TensorType, cond: Any, body: Any) -> list[TensorType]:
    takes(cond, "cond", ts)
    takes(body, "body", ts)
    if cond.output_types != (PREDICATE,):
        raise BuildError(f"while with a condition of {_listed(cond.output_types)}", why=f"it must be {PREDICATE}", fix="reduce it with .all() or .any()")
    if not body.outputs:
        raise BuildError("while without a result", why="its body gives 0 values", fix="return the values that change")
    _gives(body.output_types, ts[:len(body.outputs)], "value")
    return list(body.output_types)


def cond_types(p: TensorType, *ts: TensorType, then: Any, otherwise: Any) -> list[TensorType]:
    if p != PREDICATE:
        raise BuildError(f"cond by {p}", why=f"it must be {PREDICATE}", fix="reduce it with .all() or .any(); element by element it is p.where(a, b)")
    takes(then, "then", ts)
    takes(otherwise, "otherwise", ts)
    if then.output_types != otherwise.output_types or not then.outputs:
        raise BuildError(f"cond gives {_listed(then.output_types)} or {_listed(otherwise.output_types)}", why="both must give the same types, one value or more",
                         fix="cast or expand one side")
    return list(then.output_types)


def takes(graph: Any, field: str, wanted: Sequence[TensorType]) -> None:
    taken = tuple(n.type for n in graph.inputs)
    if taken != tuple(wanted):
        raise BuildError(f"graph {field!r} takes {_listed(taken)}", why=f"it is given {_listed(wanted)}", fix="give its inputs, in order")
    if graph.params or graph.states:
        named = (*graph.params, *graph.states)[0]
        raise BuildError(f"graph {field!r} has the {named.op.text} {named.name!r}", why="what is inside runs many times or not at all", fix="make it outside, and use it inside")


def _gives(results: Sequence[TensorType], wanted: Sequence[TensorType], what: str) -> None:
    if len(results) != len(wanted):
        raise BuildError(f"the body gives {len(results)} values", why=f"{len(wanted)} go in", fix="return all of them")
    for k, (out, t) in enumerate(zip(results, wanted, strict=True)):
        if out != t:
            raise BuildError(f"{what} {k} comes out as {out}", why=f"it goes in as {t}", fix="begin with the type that the body gives, or cast in the body")


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


# ---- meaning -------------------------------------------------------------------------------------------------------
def run_graph(graph: Any, xs: Sequence[Array]) -> tuple[Array, ...]:
    return evaluate(graph, dict(zip((n.id for n in graph.inputs), xs, strict=True)))


def scan_ref(*arrays: Array, body: Any, carries: int, mapped: int, length: int, reverse: bool) -> tuple[Array, ...]:
    carry, xs, others = arrays[:carries], arrays[carries:carries + mapped], arrays[carries + mapped:]
    slices = [np.empty((length, *t.shape), t.dtype.numpy) for t in body.output_types[carries:]]
    for i in reversed(range(length)) if reverse else range(length):
        made = run_graph(body, (*carry, *(x[i] for x in xs), *others))
        carry = made[:carries]
        for whole, part in zip(slices, made[carries:], strict=True):
            whole[i] = part
    return (*carry, *slices)


def while_ref(*arrays: Array, cond: Any, body: Any) -> tuple[Array, ...]:
    values, others = arrays[:len(body.outputs)], arrays[len(body.outputs):]
    while run_graph(cond, (*values, *others))[0]:
        values = run_graph(body, (*values, *others))
    return values


def cond_ref(p: Array, *arrays: Array, then: Any, otherwise: Any) -> tuple[Array, ...]:
    return run_graph(then if p else otherwise, arrays)


SCAN, WHILE, COND = Cells(scan_types, None, scan_ref), Cells(while_types, None, while_ref), Cells(cond_types, None, cond_ref)
