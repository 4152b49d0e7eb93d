"""A new graph from an old one, node by node: the loop that every pass shares."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Node, Ref

Replace = Callable[[Builder, Node, Sequence[Value], dict[Ref, Value]], Any]  # Value(s) in the node's place, or None to keep it


def rebuild(graph: Graph, replace: Replace, pass_name: str) -> Graph:
    """`replace` sees every node with its new inputs and all new values so far.  What it builds stands where the node stood; the graph itself if nothing changed."""
    b, new = Builder(graph.name), dict[Ref, Value]()
    for n in graph:
        xs = [new[r] for r in n.inputs]
        b.loc, b.made_by = n.loc, n.through(pass_name)
        made = replace(b, n, xs, new)
        values = b.copy(n, xs) if made is None else made if isinstance(made, tuple) else (made,)
        if made is not None:
            b.own(values)
        new |= zip(n.refs, values, strict=True)
    result = b.finish(*(new[r] for r in graph.outputs), names=graph.output_names, updates=[(new[s], new[v]) for s, v in graph.updates])
    return graph if result == graph else result
