"""The invariants of a graph, checked after every pass so that a guilty pass is named."""
from __future__ import annotations

from rlxpy.errors import RlxError, VerifyError
from rlxpy.ir.builder import infer
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.text import show_node


def verify(graph: Graph, *, after: str = "") -> Graph:
    """The graph itself.  Raises VerifyError naming the node and the pass."""
    names: set[tuple[Op, str]] = set()
    for position, n in enumerate(graph.nodes):
        why = _fault(graph, position, n)
        if why is None and n.op in LEAVES and n.op is not Op.CONST:
            why = f"{n.op.text} {n.name!r} appears twice" if (n.op, n.name) in names else None
            names.add((n.op, n.name))
        if why:
            raise VerifyError(f"pass {after!r} broke the graph" if after else "the graph is broken", where=f"{show_node(n)}  {n.where}".rstrip(), why=why)
    for r in graph.results:
        if not _exists(graph, r, len(graph)):
            raise VerifyError(f"pass {after!r} broke the graph" if after else "the graph is broken", why=f"result {r} does not exist")
    for state, new in graph.updates:
        if graph[state].op is not Op.STATE or graph.type(state) != graph.type(new):
            raise VerifyError(f"pass {after!r} broke the graph" if after else "the graph is broken", why=f"update {state} = {new} joins {graph.type(state)} and {graph.type(new)}")
    try:
        graph.symbols  # noqa: B018 (raises when one name has two ranges)
    except RlxError as e:
        raise VerifyError(f"pass {after!r} broke the graph" if after else "the graph is broken", why=e.what) from None
    return graph


def _exists(graph: Graph, r: Ref, before: int) -> bool:
    return 0 <= r.node < before and 0 <= r.out < len(graph.nodes[r.node].types)


def _fault(graph: Graph, position: int, n: Node) -> str | None:
    if n.id != position:
        return f"its id is {n.id}, its position {position}"
    for r in n.inputs:
        if not _exists(graph, r, position):
            return f"input {r} is not defined before it"
    if n.op in LEAVES:
        return None if not n.inputs and len(n.types) == 1 else "a leaf has no inputs and one type"
    for field, body in n.attrs.graphs():
        try:
            verify(body)
        except VerifyError as e:
            return f"{field}: {e.why} at {e.where}"
    try:
        wanted = infer(n.op, n.attrs, tuple(graph.type(r) for r in n.inputs))
    except RlxError as e:
        return str(e)
    return None if wanted == n.types else f"its row infers {', '.join(map(str, wanted))}"
