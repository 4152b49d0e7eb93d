"""Kernels of attention: by tiles of keys for many queries, split over keys for few, with narrow or packed keys and values read as they lie."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import body_of
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import aligned
from rlxpy.backends.cpu.quant import readers
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Attend, Packed
from rlxpy.ir.dims import Dim, Shape, exact_quotient, lower, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op

MOST_CHANNELS = 512   # of a key or value: a task's tiles lie on its stack
TILE_KEYS = 96        # keys of a tile, and with their values about what the first cache holds; a multiple of key_rows
TASK_COLUMNS = 4      # blocks of 2 * vector rows in a task of attention_tiles
PART_KEYS = 4 * TILE_KEYS  # keys of a task of attention_split


def key_rows(isa: Isa) -> int:
    """Keys of a register tile, beside two columns of vectors."""
    return 12 if isa.vector >= 16 else 6 if isa.vector >= 8 else 4


def few_rows(isa: Isa) -> int:
    """Rows up to which dot products are quicker than tiles with empty columns."""
    return isa.vector


@dataclass(frozen=True)
class Source:
    """Keys or values as a kernel reads them: a row is `width` channels, in f32 `padded` of them.  `decode` is C from `p` to `to`."""

    name: str
    operand: Operand
    width: Dim
    unit: int    # what `padded` is a multiple of
    decode: str  # empty where rows are read where they lie
    needs: frozenset[str] = frozenset()

    def template(self) -> Mapping[str, Any]:
        step, padded = self.operand.layout.strides[2], -(-upper(self.width) // self.unit) * self.unit
        return {"name": self.name, "c": self.operand.c, "at": ctext.walk(self.operand.layout.strides[:2], ("b", "g")), "width": ctext.dim(self.width),
                "padded": padded, "most": padded, "direct": not self.decode, "decode": self.decode, "step": ctext.dim(step),
                "distance": str(padded) if self.decode else ctext.dim(step)}


def _source(name: str, o: Operand, width: Dim, unit: int, packing: str) -> Source:
    stride = o.layout.strides[3]
    if packing:
        e = encoding(packing)
        blocks = exact_quotient(width, e.block)
        assert blocks is not None, "the fused node's constraints ask for whole blocks"
        return Source(name, o, width, unit, f"for (i64 c = 0; c < {ctext.dim(blocks)}; c++) rlx_decode_{e.name}(p + c*{e.block_nbytes}, to + c*{e.block});", frozenset({e.name}))
    if o.dtype is DType.F32 and stride == 1 and isinstance(width, int) and width % unit == 0:
        return Source(name, o, width, unit, "")
    if o.dtype is DType.F16 and stride == 1:
        return Source(name, o, width, unit, f"rlx_widen_f16(to, p, {ctext.dim(width)});")
    return Source(name, o, width, unit, f"RLX_SIMD for (i64 c = 0; c < {ctext.dim(width)}; c++) to[c] = {scalar.load(o.dtype, f'p[c*{ctext.dim(stride)}]')};")


@dataclass(frozen=True)
class Call:
    """An attention node, or a fused chain around one, taken apart.  `out_strides` are of (b, h, t) in the result."""

    q: Operand
    k: Operand
    v: Operand
    mask: Operand | None
    packing: tuple[str, str]  # encodings of keys and values, "" for plain ones
    node: Node
    shapes: tuple[Shape, Shape, Shape]
    out_strides: Shape

    @property
    def attrs(self) -> Attend:
        assert isinstance(self.node.attrs, Attend)
        return self.node.attrs


def call_of(site: Site) -> Call:
    body = body_of(site)
    node = attention_in(body)
    given = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
    found = [_behind(body, r) for r in node.inputs]
    _, h, t, e = node.type.shape
    merged = len(site.out.shape) == 3
    strides = (t * h * e, e, h * e) if merged else row_major(node.type.shape).strides[:3]
    operands = [given[r] for r, _ in found]
    mask = operands[3] if len(operands) > 3 else None
    q, k, v = (body.type(r).shape for r in node.inputs[:3])
    return Call(operands[0], operands[1], operands[2], mask, (found[1][1], found[2][1]), node, (q, k, v), strides)


def attention_in(body: Graph) -> Node:
    return next(n for n in body if n.op is Op.ATTENTION)


def _behind(body: Graph, r: Ref) -> tuple[Ref, str]:
    """The input that a value of the chain is read from, and its encoding: casts and decoding happen as it is read."""
    node = body[r.node]
    if node.op is Op.INPUT:
        return r, ""
    return node.inputs[0], node.attrs.encoding if isinstance(node.attrs, Packed) else ""


@dataclass(frozen=True)
class First:
    """A stage that takes many queries before the tiles do, which take what it leaves: so many rows a task, rows of keys and values
    padded to whole units."""

    template: str
    rows: int
    unit: int
    facts: Mapping[str, Any]
    needs: tuple[str, ...]


def emitter(isa: Isa) -> Emitter:
    return lambda site: emit(call_of(site), site, isa)


def emit(call: Call, site: Site, isa: Isa, first: First | None = None) -> tuple[Kernel, ...]:
    (b, h, t, _), (_, g, s, _), _ = call.shapes
    group, few = exact_quotient(h, g), few_rows(isa)
    assert group is not None, "the shape rule has checked it"
    facts = {**_facts(call, site, isa, group), "leftover": first is not None}
    if first:
        facts["rows"] = first.rows
    rows, pairs = t * group, ctext.dim(product((b, g)))
    parts, chunks = f"rlx_ceil_quotient({ctext.dim(s)}, {PART_KEYS})", f"rlx_ceil_quotient({ctext.dim(rows)}, {facts['rows']})"
    (*ins, result), (*values, into) = _params(call, site)
    scratch, shared = "char *scratch", site.scratch or "arena"  # nothing is left where there are no rows or no keys
    every = {"block": "mask_at[block*WIDTH + r]", "row": "at"} if facts["per_row"] else dict.fromkeys(("block", "row"), facts["mask_row"])

    def stage(name: str, mask: str, names: Sequence[str], args: Sequence[str], tasks: str, more: Mapping[str, Any], needs: tuple[str, ...] = ()) -> Kernel:
        given = {**facts, **more}
        code = readers([encoding(n) for x in given["sources"] for n in x.needs], isa)
        body = render(f"cpu/attention_{name}.c.j2", **given, mask_key=f"{mask} + (s0 + s)*{facts['mask_step']}")
        return Kernel(tuple(names), body, tuple(args), tasks, symbols_used(site), (*code, *needs))

    is_few = f"{ctext.dim(rows)} <= {few}"
    many, none = f"({is_few} ? 0 : {pairs}*{chunks})", dict[str, Any]()
    stages = [stage("tiles", every["block"], (*ins, result), (*values, into), many, none)]
    if first:
        noted, more = ((*ins, scratch, result), (*values, shared, into), many), {**_sources(call, first.unit, first.unit), **first.facts}
        stages = [stage(first.template, every["block"], *noted, more, first.needs), stage("tiles", every["block"], *noted, none)]
    if lower(rows) > few:
        return tuple(stages)
    split = stage("split", every["row"], (*ins, scratch), (*values, shared), f"({ctext.dim(rows)} > 0 && {is_few} ? {pairs}*{parts} : 0)", none)
    join = stage("join", "", (scratch, result), (shared, into), f"({is_few} ? {pairs}*{ctext.dim(rows)} : 0)", none)
    return (split, join) if upper(rows) <= few else (*stages, split, join)


def _facts(call: Call, site: Site, isa: Isa, group: Dim) -> dict[str, Any]:
    (*_, t, _), (_, g, s, _), _ = call.shapes
    columns, q = 2 * isa.vector, call.q
    query_rows = 4 if group > 4 or not isinstance(group, int) else group
    return {
        "VL": isa.vector, "MR": key_rows(isa), "PR": 8 if isa.vector >= 16 else 4, "QR": query_rows, "few": -(-few_rows(isa) // query_rows) * query_rows,
        "rows": TASK_COLUMNS * columns, "keys": TILE_KEYS, "part_keys": PART_KEYS, "key_heads": ctext.dim(g), "group": ctext.dim(group), "T": ctext.dim(t), "S": ctext.dim(s),
        "scale": ctext.literal(call.attrs.scale, DType.F32), **mask_facts(call),
        "q": {"c": q.c, "at": ctext.walk(q.layout.strides[:3], ("b", "h", "i")), "element": scalar.load(q.dtype, f"p[c*{ctext.dim(q.layout.strides[3])}]")},
        **_sources(call, isa.vector, columns),
        "out": {"c": site.out.c, "at": ctext.walk(call.out_strides, ("b", "h", "i")), "store": scalar.store(site.out.dtype, "from_o[c]*inverse")},
    }


def _sources(call: Call, key_unit: int, value_unit: int) -> dict[str, Any]:
    k, v = _source("k", call.k, call.shapes[0][3], key_unit, call.packing[0]), _source("v", call.v, call.shapes[2][3], value_unit, call.packing[1])
    return {"k": k.template(), "v": v.template(), "sources": (k, v)}


def mask_facts(call: Call) -> dict[str, Any]:
    """What the macros of templates/cpu/attention.j2 ask of masks; walks are from (b, h, i), the batch, the head and the query."""
    mask, a, (b, h, t, _), s = call.mask, call.attrs, call.shapes[0], call.shapes[1][2]
    kind = "" if mask is None else "bool" if mask.dtype is DType.BOOL else "spans" if mask.dtype.is_integer else "add"
    walk = (0, 0, 0, 0) if mask is None else aligned(mask.shape, mask.layout, (b, h, t, 2 if kind == "spans" else s))
    return {
        "softcap": ctext.literal(a.softcap, DType.F32) if a.softcap else "", "causal": a.mask != "none", "window": a.window,
        "mask": kind, "mask_load": scalar.load(mask.dtype, "@").split("@") if mask is not None and kind == "add" else ("", ""),
        "mask_row": ctext.walk(walk[:3], ("b", "h", "i")), "mask_step": ctext.dim(walk[3]),
        "per_row": kind in ("bool", "add") and walk[1:3] != (0, 0), "touched": bool(a.softcap) or kind in ("bool", "add"), "limited": a.mask != "none" or kind == "spans",
    }


def _params(call: Call, site: Site) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parameters and arguments: q, k, v, perhaps mask, and the result last."""
    given = {"q": call.q, "k": call.k, "v": call.v, **({"mask": call.mask} if call.mask else {})}
    names = (*(f"const {o.c} *restrict {n}" for n, o in given.items()), f"{site.out.c} *restrict y")
    return names, (*(o.pointer for o in given.values()), site.out.pointer)


def shapes_of(graph: Graph, node: Node) -> tuple[Shape, Shape, Shape]:
    """Of queries, keys and values, of an attention node or a chain around one."""
    body, inner = (graph, node) if node.op is Op.ATTENTION else (node.attrs.body, attention_in(node.attrs.body))  # type: ignore[attr-defined]
    q, k, v = (body.type(r).shape for r in inner.inputs[:3])
    return q, k, v


def scratch_nbytes(isa: Isa) -> Callable[[Graph, Node], int]:
    """Room for what the parts of attention_split leave, at the largest sizes; 0 where it never runs."""
    def room(graph: Graph, node: Node) -> int:
        (b, h, t, _), (_, g, s, _), (*_, e) = shapes_of(graph, node)
        rows = t * exact_quotient(h, g)  # type: ignore[operator]
        if lower(rows) > few_rows(isa):
            return 0
        parts = -(-upper(s) // PART_KEYS)
        return upper(product((b, g))) * min(upper(rows), few_rows(isa)) * parts * (upper(e) + 2) * 4
    return room
