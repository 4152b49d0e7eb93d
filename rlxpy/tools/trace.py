"""A pipeline in slow motion: the graph after every pass, and what the pass said."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rlxpy.extend.passes import Note, Pass
from rlxpy.frozen import dataclass
from rlxpy.fusion.pipeline import run
from rlxpy.ir.graph import Graph


@dataclass(frozen=True)
class Stage:
    """The graph after one pass; the first stage is the graph as it came."""

    name: str
    graph: Graph
    seconds: float = 0.0
    notes: tuple[Note, ...] = ()
    changed: bool = True


def trace(graph: Graph, passes: Sequence[Pass]) -> tuple[Stage, ...]:
    """The passes that ran: one that has nothing to add to its own result does not.  Raises as `fusion.pipeline.run`."""
    seen: list[Graph] = []
    _, report = run(graph, passes, lambda name, g: seen.append(g))
    after = (Stage(r.name, g, r.seconds, r.notes, g is not before) for r, (before, g) in zip(report.runs, pairwise(seen), strict=True))
    return (Stage("input", graph), *after)
