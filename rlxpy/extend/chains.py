"""The chain of plain ops that a fused row stands for, as a graph in one form."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Ref
from rlxpy.ir.types import TensorType


@lru_cache(maxsize=4096)
def chain_of(replaces: Callable[..., Any], types: tuple[TensorType, ...]) -> Graph | None:
    """The chain on operands of these types, which are named for their positions; None where it has no meaning."""
    b = Builder("chain")
    try:
        made = replaces(*(b.input(f"in{k}", *t) for k, t in enumerate(types)))
    except (BuildError, TypeError):  # other types, or another number of them, than the chain is for
        return None
    return in_order(b.finish(*((made,) if isinstance(made, Value) else made)))


def in_order(body: Graph) -> Graph:
    """Equal chains become equal graphs: inputs by position, then every node when its first reader needs it."""
    b = Builder("chain")
    new = {n.refs[0]: b.input(f"in{k}", *n.type) for k, n in enumerate(body.inputs)}

    def value(r: Ref) -> Value:
        if r not in new:
            n = body[r]
            new.update(zip(n.refs, b.copy(n, [value(i) for i in n.inputs]), strict=True))
        return new[r]

    return b.finish(*map(value, body.outputs))
