"""Which values of a plan memory keeps in bf16: those that only kernels read which round them to it, and that kernels write which can."""
from __future__ import annotations

from collections import defaultdict

from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.op import Op

# kernels that round f32 operands to bf16 first of all, and those that write through Operand.stored
ROUNDING = frozenset(f"cpu/{name}" for name in (
    "matmul.amx_bf16", "fused.matmul.amx_bf16", "fused.gated_mlp.amx_bf16", "qmatmul.amx", "fused.qmatmul.amx", "fused.qgated_mlp.amx",
    "attention.amx_bf16", "fused.attention.amx_bf16"))
WRITING = ROUNDING | {f"cpu/{name}.int8_rows" for name in ("qmatmul", "fused.qmatmul", "fused.qgated_mlp")}
PRODUCTS = (Op.MATMUL, Op.QMATMUL)


def narrow(plan: Plan) -> frozenset[int]:
    """Buffers of the arena: half as much to write and to read, and no result changes but of magnitudes that bf16 rounds to infinity."""
    held, readers = defaultdict[int, list[Ref]](list), defaultdict[int, list[tuple[Node, Ref]]](list)
    for r, place in plan.places.items():
        held[place.buffer].append(r)
    for n in plan.graph:
        for r in n.inputs:
            readers[plan.places[r].buffer].append((n, r))
    steps = {s.node.id: s for s in plan.steps}
    seen = {*plan.graph.outputs, *(r for pair in plan.commits for r in pair)}

    def fits(refs: list[Ref], read: list[tuple[Node, Ref]]) -> bool:
        makers = [steps[r.node] for r in refs if r.node in steps]
        whole = not seen & {*refs} and all(plan.graph.type(r).dtype is DType.F32 for r in refs)
        return whole and len(makers) == 1 and _are(WRITING, makers[0]) and all(n.refs[0] in refs if n.id not in steps else _are(ROUNDING, steps[n.id]) and r in _rounded(n) for n, r in read)

    return frozenset(b for b, refs in held.items() if plan.buffers[b].space is Space.ARENA and fits(refs, readers[b]))


def _are(kernels: frozenset[str], step: Step) -> bool:
    return all(s.choice.name in kernels for s in step.variants)


def _rounded(n: Node) -> set[Ref]:
    """Inputs of such a kernel's node that it reads as operands on tiles and in no other way."""
    if n.op is not Op.FUSED:
        return _operands(n)
    body = n.attrs.body  # type: ignore[attr-defined]  # the others are fused nodes
    outer = dict(zip((i.refs[0] for i in body.inputs), n.inputs, strict=True))
    on_tiles = {r for m in body for r in _operands(m)}
    elsewhere = {outer[r] for m in body for r in m.inputs if r in outer and r not in _operands(m)}
    return {outer[r] for r in on_tiles if r in outer} - elsewhere


def _operands(n: Node) -> set[Ref]:
    """Queries, keys and values; of products the left operand, for a right one is a weight, or laid out from f32."""
    many = 3 if n.op is Op.ATTENTION else 1 if n.op in PRODUCTS else 0
    return {*n.inputs[:many]} - {*n.inputs[many:]}
