"""A plan: a legal graph, an order to run it in, and a place for every value.  Data; fusion/plan.py makes it, backends run it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum

from rlxpy.extend.kernels import Choice, When, holds
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Sizes
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import Layout


class Space(Enum):
    """Where a buffer's bytes come from and how long they live."""

    ARENA = "arena"    # scratch of one run; offsets are shared by values that are never alive together
    INPUT = "input"    # staged copies of what the caller passed
    STATE = "state"    # lives from run to run
    PARAM = "param"    # weights, one buffer each
    CONST = "const"    # literals, one buffer each


@dataclass(frozen=True)
class Buffer:
    """`offset` and `nbytes` count bytes from the start of the space; first and last are the node ids that need it.

    steps: of a slice that a loop's round reads, elements between the places where it may begin: it is aligned as all of them are, and no further."""

    space: Space
    offset: int
    nbytes: int
    first: int
    last: int
    steps: tuple[Dim, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where one value lies; several values may share a buffer (views, in-place updates)."""

    buffer: int
    layout: Layout


@dataclass(frozen=True)
class Frame:
    """Memory of a loop or branch inside its step's scratch: where the arena of each of its graphs begins, and two slots for every value
    that a step of the loop hands to the next.  All in bytes; graphs in the order of the op's parameters."""

    bodies: tuple[Plan, ...]
    arenas: tuple[int, ...]
    slots: tuple[tuple[int, int], ...]
    nbytes: int


@dataclass(frozen=True)
class Step:
    """One launch.  `scratch` is a buffer of its own, or -1; `frame` is what a native loop or branch keeps there.  `when`: the sizes for
    which it is made, () is all, and `unless`: those of them for which it is not."""

    node: Node
    choice: Choice
    scratch: int = -1
    frame: Frame | None = None
    when: When = ()
    unless: tuple[When, ...] = ()

    @property
    def variants(self) -> tuple[Step, ...]:
        """A step for each row that may run the node, of which every run takes one."""
        bands = self.choice.bands
        general = replace(self, choice=replace(self.choice, bands=()), unless=tuple(when for when, _ in bands))
        return (*(replace(self, choice=c, when=when) for when, c in bands), general) if bands else (self,)

    def applies(self, sizes: Sizes) -> bool:
        """Whether a run of these sizes takes it."""
        return holds(self.when, sizes) and not any(holds(when, sizes) for when in self.unless)


@dataclass(frozen=True)
class Plan:
    """`commits` are copies made after the last step: (new value, state) pairs that could not be computed in place."""

    graph: Graph
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    places: Mapping[Ref, Place]
    commits: tuple[tuple[Ref, Ref], ...]
    nbytes: Mapping[Space, int]

    @property
    def arena_nbytes(self) -> int:
        return self.nbytes[Space.ARENA]

    @property
    def every_step(self) -> Iterator[Step]:
        """Those of loops and branches too."""
        for s in self.steps:
            yield s
            for body in s.frame.bodies if s.frame else ():
                yield from body.every_step

    def buffer(self, ref: Ref) -> Buffer:
        return self.buffers[self.places[ref].buffer]

    def table(self) -> list[dict[str, object]]:
        """One row a launch, for reports."""
        return [{"node": f"%{s.node.id}", "op": s.node.label, "type": str(s.node.type), "kernel": s.choice.name, "tier": s.choice.tier,
                 "offset": self.buffer(s.node.refs[0]).offset, "nbytes": self.buffer(s.node.refs[0]).nbytes, "where": s.node.where} for s in self.steps]
