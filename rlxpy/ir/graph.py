"""Node and Graph: values that are never changed, in topological order, with where they came from."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Attrs, Named
from rlxpy.ir.dims import Sizes, Symbol, symbols
from rlxpy.ir.extension import label, lookup
from rlxpy.ir.op import Op
from rlxpy.ir.place import Loc
from rlxpy.ir.row import OpRow
from rlxpy.ir.types import TensorType, bind

APPEND = "append"  # the kind of a fused node whose chain ends in kv_append: its first input is the cache


class Ref(NamedTuple):
    """One output of one node."""

    node: int
    out: int = 0

    def __str__(self) -> str:
        return f"%{self.node}#{self.out}" if self.out else f"%{self.node}"


@lru_cache(maxsize=1 << 18)
def refs_of(node: int, outs: int = 1) -> tuple[Ref, ...]:
    """Every output of one node: the same few objects for all graphs, since passes ask for them millions of times."""
    return tuple(Ref(node, k) for k in range(outs))


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    op: Op
    inputs: tuple[Ref, ...]
    types: tuple[TensorType, ...]
    attrs: Attrs
    loc: Loc = field(default=Loc(), compare=False)
    made_by: tuple[str, ...] = field(default=(), compare=False)  # passes that rewrote it, oldest first

    @property
    def row(self) -> OpRow:
        return lookup(self.op, self.attrs)

    @property
    def label(self) -> str:
        return label(self.op, self.attrs)

    @property
    def kind(self) -> str:
        """What tells apart nodes of one op: an extension's name, a fused node's kind."""
        return str(getattr(self.attrs, "name" if self.op is Op.CUSTOM else "kind", "")) if self.op in (Op.CUSTOM, Op.FUSED) else ""

    @property
    def type(self) -> TensorType:
        """Of the first output, which for most ops is the only one."""
        return self.types[0]

    @property
    def name(self) -> str:
        """The user's name of a leaf; "" for other nodes."""
        return self.attrs.name if isinstance(self.attrs, Named) else ""

    @property
    def where(self) -> str:
        """The user's line, and the passes since: what an error says after "at"."""
        made = f" (through {', '.join(self.made_by)})" if self.made_by else ""
        return f"{self.loc}{made}"

    def through(self, pass_name: str) -> tuple[str, ...]:
        """`made_by` of what the pass puts in its place."""
        return self.made_by if self.made_by[-1:] == (pass_name,) else (*self.made_by, pass_name)

    @property
    def refs(self) -> tuple[Ref, ...]:
        return refs_of(self.id, len(self.types))

    @property
    def inplace(self) -> int | None:
        """The input whose memory the result takes over when nothing else reads it."""
        return 0 if self.op is Op.FUSED and self.kind == APPEND else self.row.inplace


def root(graph: Graph, node: Node) -> tuple[Graph, Node]:
    """The op that gives a node's first result, and the graph it stands in: of a fused node its chain."""
    if node.op is not Op.FUSED:
        return graph, node
    body: Graph = node.attrs.body  # type: ignore[attr-defined]
    return body, body[body.outputs[0]]


@dataclass(frozen=True, eq=True)
class Graph:
    """SSA: `nodes[i].id == i` and inputs come first.  `updates` says which value each STATE leaf holds after a run."""

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    output_names: tuple[str, ...]
    updates: tuple[tuple[Ref, Ref], ...] = ()  # (state leaf, its new value)

    def __getitem__(self, i: int | Ref) -> Node:
        return self.nodes[i.node if isinstance(i, Ref) else i]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.nodes, self.outputs, self.output_names, self.updates))

    def __hash__(self) -> int:
        return self._hash

    def type(self, ref: Ref) -> TensorType:
        return self.nodes[ref.node].types[ref.out]

    def producers(self, node: Node) -> tuple[Node, ...]:
        return tuple(self.nodes[r.node] for r in node.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(self.type(r) for r in self.outputs)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        return self._leaves(Op.INPUT)

    @cached_property
    def params(self) -> tuple[Node, ...]:
        return self._leaves(Op.PARAM)

    @cached_property
    def states(self) -> tuple[Node, ...]:
        return self._leaves(Op.STATE)

    def _leaves(self, op: Op) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op is op)

    @property
    def results(self) -> tuple[Ref, ...]:
        """Everything that must be right when a run ends: outputs and new states."""
        return (*self.outputs, *(new for _, new in self.updates))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that read any of its outputs, in order and once each."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for n in self.nodes:
            for r in n.inputs:
                if not users[r.node] or users[r.node][-1] != n.id:
                    users[r.node].append(n.id)
        return tuple(map(tuple, users))

    @cached_property
    def escaping(self) -> frozenset[int]:
        """Nodes with an output that leaves the graph."""
        return frozenset(r.node for r in self.results)

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """Every symbolic size by name, sub-graphs included.  Raises BuildError when one name has two ranges."""
        shapes = dict.fromkeys(t.shape for n in self.nodes for t in n.types)  # few, since layers repeat
        return symbols(chain((d for shape in shapes for d in shape), (d for n in self.nodes for d in n.attrs.symbolic()),
                             (s for n in self.nodes for _, g in n.attrs.graphs() for s in g.symbols.values())))

    def bind(self, sizes: Sizes) -> Graph:
        """The same graph with every size concrete."""
        if not self.symbols:
            return self
        nodes = tuple(replace(n, types=tuple(TensorType(bind(t.shape, sizes), t.dtype) for t in n.types), attrs=n.attrs.bind(sizes)) for n in self.nodes)
        return replace(self, nodes=nodes)
