"""Fuse attention with what brings its keys and values to its type, and with the merging of its heads: a narrow or packed cache is read as it lies."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.attrs import Cast, Packed, Perm
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import exact_quotient
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op

HEADS_INSIDE = (0, 2, 1, 3)  # [b, h, t, e] to [b, t, h, e]


@dataclass(frozen=True)
class FuseAttention(NotingPass):
    """Attention with what widens its keys and values and what merges its heads becomes one node, of kind attention.

    Its inputs are q, k, v and perhaps the mask, in this order."""

    apart: Callable[[Graph, Node], bool] | None = None  # nodes that are to stay what they are
    name: str = "fuse-attention"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        chains = {chain[-1].id: chain for n in graph if n.op is Op.ATTENTION and not (self.apart and self.apart(graph, n)) and len(chain := _chain(graph, n)) > 1}
        notes = [note(self.name, "fused", "attention", chain[-1], f"{' '.join(m.label for m in chain)} : {chain[-1].type}", _saved(chain)) for chain in chains.values()]
        bodies: dict[Graph, Graph] = {}  # one object for equal chains, so that they compare at once

        def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Value | None:
            if n.id not in chains:
                return None
            reads, body = _body(graph, chains[n.id])
            made: Value = b.emit(Op.FUSED, *(new[r] for r in reads), kind="attention", body=bodies.setdefault(body, body))
            return made

        return rebuild(graph, replace, self.name), tuple(notes)


def _chain(graph: Graph, attention: Node) -> list[Node]:
    """The attention with its neighbours of one chain, in order."""
    before = [graph[r.node] for r in dict.fromkeys(attention.inputs[1:3]) if _widens(graph, r, attention)]
    return [*before, attention, *_merging(graph, attention)]


def _widens(graph: Graph, r: Ref, attention: Node) -> bool:
    """Whether a value is a narrower one in f32, without loss, or a packed one whose rows are whole blocks."""
    node = graph[r.node]
    if attention.type.dtype is not DType.F32:
        return False
    if isinstance(node.attrs, Cast):
        source = graph.type(node.inputs[0]).dtype
        return source.is_float and source.bits < DType.F32.bits
    return isinstance(node.attrs, Packed) and node.op is Op.DEQUANTIZE and len(node.inputs) == 1 and exact_quotient(
        node.type.shape[-1], encoding(node.attrs.encoding).block or 0) is not None


def _merging(graph: Graph, attention: Node) -> tuple[Node, ...]:
    """The transpose and reshape that make [b, t, h * e] of the result, if it goes nowhere else."""
    swap = only_user(graph, attention)
    if swap is None or not isinstance(swap.attrs, Perm) or swap.attrs.perm != HEADS_INSIDE:
        return ()
    merge, (b, h, t, e) = only_user(graph, swap), attention.type.shape
    return (swap, merge) if merge is not None and merge.op is Op.RESHAPE and merge.type.shape == (b, t, h * e) else ()


def only_user(graph: Graph, node: Node) -> Node | None:
    users = graph.users[node.id]
    return graph[users[0]] if len(users) == 1 and node.id not in graph.escaping else None


def _saved(chain: list[Node]) -> int:
    return 2 * sum(m.type.max_nbytes for m in chain[:-1])


def _body(graph: Graph, chain: list[Node]) -> tuple[list[Ref], Graph]:
    """What the chain reads, and the chain with an input for each of it; equal reads keep their own inputs, so that positions have one meaning."""
    attention = next(m for m in chain if m.op is Op.ATTENTION)
    b, reads, operands = Builder("attention"), list[Ref](), list[Value]()
    b.loc = chain[-1].loc
    for i, r in enumerate(attention.inputs):
        node = graph[r.node]
        inside = node in chain
        reads.append(node.inputs[0] if inside else r)
        x = b.input(f"in{i}", *graph.type(reads[-1]))
        operands.append(b.copy(node, [x])[0] if inside else x)
    (value,) = b.copy(attention, operands)
    for m in chain[chain.index(attention) + 1:]:
        (value,) = b.copy(m, [value])
    return reads, b.finish(value)
