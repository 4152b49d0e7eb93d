"""A part of a graph, as a graph."""
from __future__ import annotations

from collections.abc import Sequence

from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Ref


def part(graph: Graph, refs: Sequence[Ref], name: str) -> Graph:
    """What computes some values of a graph, as a graph that gives them."""
    need, todo = set[int](), [r.node for r in refs]
    while todo:
        i = todo.pop()
        if i not in need:
            need.add(i)
            todo += [r.node for r in graph[i].inputs]
    b, new = Builder(name), dict[Ref, Value]()
    for i in sorted(need):
        new |= zip(graph[i].refs, b.copy(graph[i], [new[r] for r in graph[i].inputs]), strict=True)
    return b.finish(*(new[r] for r in refs))
