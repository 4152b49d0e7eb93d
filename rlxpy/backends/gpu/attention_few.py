"""GPU kernels of attention for few queries: many keys in parts, each read once into registers, and what joins the parts."""
from __future__ import annotations

from rlxpy.backends.cpu.attention import attention_in, call_of
from rlxpy.backends.gpu.attention import facts_of, group_of, kernel, reading
from rlxpy.backends.gpu.kernel import Kernel, Room, Site, quotient, symbols_used
from rlxpy.backends.templates import read, trimmed
from rlxpy.ir.dims import product, upper
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

FEW = 4          # queries of a head up to which keys are dealt out in parts
PART_KEYS = 128  # of a part
THREADS = 128
SUMS = 64        # of results in a thread's registers, at most, beside as many numbers of the queries


def emit(site: Site) -> Kernel | tuple[Kernel, ...]:
    """What the parts of the keys leave, and what joins them; one kernel where one part holds all keys."""
    call = call_of(site)
    (b, h, t, d), (_, g, s, _), (*_, e) = call.shapes
    rows, wide = t * group_of(h, g), max(upper(d), upper(e))
    own = 8 if wide <= 256 else 16
    blocks = -(-upper(rows) * own // SUMS)
    many, lanes = -(-upper(rows) // max(blocks, 1)) or 1, max(4, 1 << (-(-wide // own) - 1).bit_length())
    facts, split = facts_of(call, site), upper(s) > PART_KEYS
    for name, o, width, packing in (("q", call.q, d, ""), ("k", call.k, d, call.packing[0]), ("v", call.v, e, call.packing[1])):
        facts[name] |= reading(o, width, packing)
    facts |= {"mask_key": f"masks[r] + s*{facts['mask_step']}", "PART": PART_KEYS, "split": split}
    text = trimmed("gpu/attention_few.cu.j2", **facts, ROWS=many, LANES=lanes, OWN=own, GROUPS=THREADS // lanes, BATCH=4 if many*own <= SUMS // 2 else 2)
    count = b * g * quotient(rows, many)
    parts = kernel(call, site, text, count * (quotient(s, PART_KEYS) if split else 1), THREADS, (read("gpu/words.h"), read("gpu/narrow.h")), split=split)
    if not split:
        return parts
    text = trimmed("gpu/attention_join.cu.j2", **facts, E=upper(e), THREADS=THREADS)
    return parts, Kernel(("const f32 *scratch", f"{site.out.c} *__restrict__ y"), text, (Room.SCRATCH, site.out.ref), (b * g * rows,), THREADS, sizes=symbols_used(site))


def scratch_nbytes(graph: Graph, node: Node) -> int:
    """Room for what parts of the keys leave, at the largest sizes; 0 where there is one part."""
    body, inner = (graph, node) if node.op is Op.ATTENTION else (node.attrs.body, attention_in(node.attrs.body))  # type: ignore[attr-defined]
    (b, h, t, _), (_, _, s, _), (*_, e) = (body.type(r).shape for r in inner.inputs[:3])
    parts = -(-upper(s) // PART_KEYS)
    return upper(product((b, h))) * min(upper(t), FEW) * parts * (upper(e) + 2) * 4 if parts > 1 else 0
