"""Fuse what is appended to a cache with the turning and the rounding that it alone goes through: rows are written once, as the cache keeps them."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.attention import only_user
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import APPEND, Graph, Node, Ref
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class FuseAppend(NotingPass):
    """rope, a cast or quantize, and kv_append become one node, of kind append.

    Its inputs are the cache, the rows, the position in the cache, and what rope reads beside the rows."""

    apart: Callable[[Graph, Node], bool] | None = None  # nodes that are to stay what they are
    name: str = "fuse-append"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        chains = {n.id: chain for n in graph if n.op is Op.KV_APPEND and len(chain := self._chain(graph, n)) > 1}
        notes = [note(self.name, "fused", APPEND, c[-1], f"{' '.join(m.label for m in c)} : {c[-1].type}", 2 * sum(m.type.max_nbytes for m in c[:-1])) for c in chains.values()]
        bodies: dict[Graph, Graph] = {}  # one object for equal chains, so that they compare at once

        def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Value | None:
            if n.id not in chains:
                return None
            reads, body = _body(graph, chains[n.id])
            made: Value = b.emit(Op.FUSED, *(new[r] for r in reads), kind=APPEND, body=bodies.setdefault(body, body))
            return made

        return rebuild(graph, replace, self.name), tuple(notes)

    def _chain(self, graph: Graph, append: Node) -> list[Node]:
        """In order, the append last."""
        chain = [append]
        for fits in (_rounds, _turns):
            made = graph[chain[0].inputs[1 if chain[0] is append else 0]]
            if fits(graph, made) and only_user(graph, made) is chain[0]:
                chain.insert(0, made)
        return [] if self.apart and any(self.apart(graph, n) for n in chain) else chain


def _rounds(graph: Graph, n: Node) -> bool:
    """From f32 to a narrower float, or to the one plane of an encoding."""
    narrows = n.op is Op.CAST and n.type.dtype in (DType.F16, DType.BF16)
    return (narrows or (n.op is Op.QUANTIZE and len(n.types) == 1)) and graph.type(n.inputs[0]).dtype is DType.F32


def _turns(graph: Graph, n: Node) -> bool:
    return n.op is Op.ROPE


def _body(graph: Graph, chain: list[Node]) -> tuple[list[Ref], Graph]:
    """What the chain reads, and the chain with an input for each of it; equal reads keep their own inputs, so that positions have one meaning."""
    append, first = chain[-1], chain[0]
    reads = [append.inputs[0], first.inputs[0], append.inputs[2], *(first.inputs[1:] if first.op is Op.ROPE else ())]
    b = Builder(APPEND)
    b.loc = append.loc
    cache, x, at, *beside = (b.input(f"in{k}", *graph.type(r)) for k, r in enumerate(reads))
    for m in chain[:-1]:
        (x,) = b.copy(m, [x, *(beside if m.op is Op.ROPE else ())])
    return reads, b.finish(*b.copy(append, [cache, x, at]))
