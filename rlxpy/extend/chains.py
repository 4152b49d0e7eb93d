"""The chain of plain ops that a fused row stands for, as a graph."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph
from rlxpy.ir.types import TensorType


@lru_cache(maxsize=4096)
def chain_of(replaces: Callable[..., Any], types: tuple[TensorType, ...]) -> Graph | None:
    """The chain on operands of these types, with their positions for names, as bodies of fused nodes have them; None where it has no meaning."""
    b = Builder("chain")
    try:
        made = replaces(*(b.input(f"in{k}", *t) for k, t in enumerate(types)))
    except (BuildError, TypeError):  # other types, or another number of them, than the chain is for
        return None
    return b.finish(*((made,) if isinstance(made, Value) else made))
