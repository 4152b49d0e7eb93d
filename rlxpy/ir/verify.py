"""The invariants of a graph, checked after every pass so that a guilty pass is named."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlxpy.errors import RlxError, VerifyError
from rlxpy.ir.attrs import Custom, Literal, field_types
from rlxpy.ir.builder import infer
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.text import show_node
from rlxpy.ir.types import TensorType


def verify(graph: Graph, *, after: str = "") -> Graph:
    """The graph itself.  Raises VerifyError naming the node and the pass."""
    for where, why in _faults(graph, set()):
        raise VerifyError(f"pass {after!r} broke the graph" if after else "the graph is broken", where=where, why=why)
    return graph


def _faults(graph: Graph, sound: set[Graph]) -> Iterator[tuple[str, str]]:
    """(where, why) of everything that is wrong; what comes later may rely on what came before.  `sound`: sub-graphs seen, since layers repeat theirs."""
    names: set[tuple[Op, str]] = set()
    for position, n in enumerate(graph.nodes):
        why = _fault(graph, position, n, sound)
        if why is None and n.op in LEAVES and n.op is not Op.CONST:
            why = f"{n.op.text} {n.name!r} appears twice" if (n.op, n.name) in names else None
            names.add((n.op, n.name))
        if why:
            yield f"{show_node(n)}  {n.where}".rstrip(), why
    states = [state for state, _ in graph.updates]
    for r in (*states, *graph.results):
        if not _exists(graph, r, len(graph)):
            yield "", f"result {r} does not exist"
    times = Counter(states)
    for state, new in graph.updates:
        if graph[state].op is not Op.STATE or graph.type(state) != graph.type(new) or times[state] > 1:
            yield "", f"update {state} = {new} joins {graph.type(state)} and {graph.type(new)}; a state is updated once, with its own type"
    if len(graph.output_names) != len(graph.outputs) or len(set(graph.output_names)) != len(graph.outputs):
        yield "", f"{len(graph.outputs)} outputs are named {', '.join(map(repr, graph.output_names)) or 'nothing'}"
    try:
        graph.symbols  # noqa: B018 (raises when one name has two ranges)
    except RlxError as e:
        yield "", f"{e.what}: {e.why}"


def _exists(graph: Graph, r: Ref, before: int) -> bool:
    return 0 <= r.node < before and 0 <= r.out < len(graph.nodes[r.node].types)


def _fault(graph: Graph, position: int, n: Node, sound: set[Graph]) -> str | None:
    if n.id != position:
        return f"its id is {n.id}, its position {position}"
    for r in n.inputs:
        if not _exists(graph, r, position):
            return f"input {r} is not defined before it"
    if not isinstance(n.attrs, n.op.row.attrs):
        return f"its parameters are {type(n.attrs).__name__}, {n.op.text} takes {n.op.row.attrs.__name__}"
    if isinstance(n.attrs, Literal) and n.types != (TensorType(n.attrs.value.shape, n.attrs.value.dtype),):
        return f"it holds {n.attrs.value}"
    if n.op in LEAVES:
        return None if not n.inputs and len(n.types) == 1 else "a leaf has no inputs and one type"
    for field, body in n.attrs.graphs():
        for where, why in _faults(body, sound) if body not in sound else ():
            return f"{field}: {why} at {where}"
        sound.add(body)
    try:
        if isinstance(n.attrs, Custom) and (own := field_types(type(n.attrs.given))) != (now := field_types(n.row.attrs)):
            return f"its parameters are {', '.join(own) or 'none'}, and those of {n.attrs.name} as it is registered now {', '.join(now) or 'none'}"
        wanted = infer(n.op, n.attrs, tuple([graph.nodes[r.node].types[r.out] for r in n.inputs]))
    except Exception as e:  # a rule may meet parameters that nobody's code would make
        return str(e) if isinstance(e, RlxError) else f"{type(e).__name__}: {e}"
    return None if wanted == n.types else f"its row infers {', '.join(map(str, wanted))}"
