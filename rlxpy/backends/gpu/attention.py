"""GPU kernels of attention: tiles of keys in shared memory, many keys in parts for few queries; narrow or packed keys and values read as they lie."""
from __future__ import annotations

from typing import Any

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.attention import Call, attention_in, call_of, mask_facts
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.gpu import packed
from rlxpy.backends.gpu.kernel import Kernel, Room, Site, quotient, symbols_used
from rlxpy.backends.templates import trimmed
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, exact_quotient, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

FEW = 4          # queries of a head up to which keys are dealt out in parts
PART_KEYS = 256  # of a part
JOIN_THREADS = 64


@dataclass(frozen=True)
class Block:
    """What a block holds in 48 KiB of shared memory: ROWS queries and KEYS keys, or their values, of at most `channels` each; LANES threads have a row."""

    channels: int
    ROWS: int
    LANES: int
    KEYS: int


MANY_ROWS = (Block(128, 16, 16, 32), Block(256, 16, 16, 16), Block(512, 8, 32, 8))
FEW_ROWS = (Block(256, 4, 32, 32), Block(512, 4, 32, 16))
MOST_CHANNELS = 512


def emit_few(site: Site) -> Kernel | tuple[Kernel, ...]:
    """For few queries: what the parts of the keys leave, and what joins them."""
    call = call_of(site)
    (b, h, t, _), (_, g, s, _), _ = call.shapes
    if upper(s) <= PART_KEYS:
        return _tiles(call, site, FEW_ROWS)
    facts = facts_of(call, site)
    text = trimmed("gpu/attention_join.cu.j2", **facts, THREADS=JOIN_THREADS)
    join = Kernel(("const f32 *scratch", f"{site.out.c} *__restrict__ y"), text, (Room.SCRATCH, site.out.ref), (b * g * t * group_of(h, g),), JOIN_THREADS, sizes=symbols_used(site))
    return _tiles(call, site, FEW_ROWS, split=True), join


def emit(site: Site) -> Kernel:
    return _tiles(call_of(site), site, MANY_ROWS)


def _tiles(call: Call, site: Site, blocks: tuple[Block, ...], *, split: bool = False) -> Kernel:
    (b, h, t, d), (_, g, s, _), (*_, e) = call.shapes
    rows, wide = t * group_of(h, g), max(upper(d), upper(e))
    block = next(x for x in blocks if wide <= x.channels)
    facts = facts_of(call, site)
    text = trimmed("gpu/attention.cu.j2", **facts, split=split, ROWS=block.ROWS, LANES=block.LANES, KEYS=block.KEYS, D=max(upper(d), 1), E=max(whole(upper(e), block.LANES), block.LANES))
    return kernel(call, site, text, b * g * quotient(rows, block.ROWS) * (quotient(s, PART_KEYS) if split else 1), block.ROWS*block.LANES, split=split)


def kernel(call: Call, site: Site, text: str, blocks: Dim, threads: int, needs: tuple[str, ...] = (), *, split: bool = False) -> Kernel:
    """From q, k, v and perhaps mask to y or, of a part of the keys, to scratch; needs: text beside what packed keys and values need."""
    given = {"q": call.q, "k": call.k, "v": call.v, **({"mask": call.mask} if call.mask else {})}
    to = (("f32 *scratch",), (Room.SCRATCH,)) if split else ((f"{site.out.c} *__restrict__ y",), (site.out.ref,))
    names = (*(f"const {o.c} *__restrict__ {n}" for n, o in given.items()), *to[0])
    return Kernel(names, text, (*(o.ref for o in given.values()), *to[1]), (blocks,), threads, sizes=symbols_used(site),
                  needs=(*dict.fromkeys(n for name in call.packing if name for n in packed.needs(name)), *needs))


def group_of(heads: Dim, key_heads: Dim) -> Dim:
    """Heads that share a key head."""
    found = exact_quotient(heads, key_heads)
    assert found is not None, "the shape rule has checked it"
    return found


def whole(n: int, of: int) -> int:
    return -(-n // of) * of


def facts_of(call: Call, site: Site) -> dict[str, Any]:
    (_, h, t, d), (_, g, s, _), (*_, e) = call.shapes
    mask = mask_facts(call)
    return {
        **mask, "mask_key": f"{mask['mask_row']} + (s0 + s)*{mask['mask_step']}", "key_heads": ctext.dim(g), "group": ctext.dim(group_of(h, g)), "T": ctext.dim(t), "S": ctext.dim(s),
        "PART": PART_KEYS, "scale": ctext.literal(call.attrs.scale, DType.F32),
        "q": {"c": call.q.c, "at": ctext.walk(call.q.layout.strides[:3], ("b", "h", "i")), "element": element_of(call.q, "")},
        "k": _source("k", call.k, d, call.packing[0]), "v": _source("v", call.v, e, call.packing[1]),
        "out": {"c": site.out.c, "at": ctext.walk(call.out_strides, ("b", "h", "i")), "store": scalar.store(site.out.dtype, "%s")},
    }


def _source(name: str, o: Operand, width: Dim, packing: str) -> dict[str, str]:
    return {"name": name, "c": o.c, "at": ctext.walk(o.layout.strides[:2], ("b", "g")), "step": ctext.dim(o.layout.strides[2]), "width": ctext.dim(width),
            "element": element_of(o, packing)}


def element_of(o: Operand, packing: str) -> str:
    """C for channel c of the row at p."""
    return packed.element(packing, "p", "c") if packing else scalar.load(o.dtype, f"p[c*{ctext.dim(o.layout.strides[3])}]")


def scratch_nbytes(graph: Graph, node: Node) -> int:
    """Room for what parts of the keys leave, at the largest sizes; 0 where there is one part."""
    body, inner = (graph, node) if node.op is Op.ATTENTION else (node.attrs.body, attention_in(node.attrs.body))  # type: ignore[attr-defined]
    (b, h, t, _), (_, _, s, _), (*_, e) = (body.type(r).shape for r in inner.inputs[:3])
    parts = -(-upper(s) // PART_KEYS)
    return upper(product((b, h))) * min(upper(t), FEW) * parts * (upper(e) + 2) * 4 if parts > 1 else 0
