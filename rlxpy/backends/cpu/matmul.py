"""Kernels of products: packed weights through register tiles, everything else through plain loops; epilogues on the tile."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, params, unravel
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Packed, Site, symbols_used
from rlxpy.backends.cpu.loops import aligned
from rlxpy.backends.templates import render
from rlxpy.ir.dims import Dim, Shape, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op

ROW_BLOCK = 96      # rows of the left operand that stay in the first caches while a panel passes
GROUP_NUMEL = 1 << 15  # columns x depth of the panels one task reads


def tile_rows(isa: Isa) -> int:
    """Rows of a register tile: what fits beside two columns of vectors in the register file."""
    return 12 if isa.vector >= 16 else 6 if isa.vector >= 8 else 4


def tile_columns(isa: Isa) -> int:
    return 2 * isa.vector


def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site, isa)


def _emit(site: Site, isa: Isa) -> Kernel:
    body = body_of(site)
    products = [n for n in body if n.op is Op.MATMUL]
    inputs = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
    left, rights = inputs.get(products[0].inputs[0]), [inputs.get(p.inputs[1]) for p in products]
    packs = [_pack(r, tile_columns(isa)) for r in rights]
    if left is not None and left.dtype is DType.F32 and left_rows(left) is not None and all(packs):
        return _tiled(site, isa, body, products, left, [p for p in packs if p is not None])
    return _plain(site, body, products)


def _pack(right: Operand | None, width: int) -> Packed | None:
    """The layout of a weight matrix that only depends on a param; None for others."""
    if right is None or right.dtype is not DType.F32 or len(right.shape) != 2 or "fixed[" not in right.pointer:
        return None
    (depth, columns), strides, offset = right.shape, right.layout.strides, right.layout.offset
    if not all(isinstance(d, int) for d in (depth, columns, *strides, offset)):
        return None
    buffer = int(right.pointer.partition("fixed[")[2].partition("]")[0])
    return Packed(buffer, int(depth), int(columns), (int(strides[0]), int(strides[1])), int(offset), width)


def left_rows(left: Operand) -> Dim | None:
    """Elements from one row of [.., k] to the next, when all leading axes are one walk and rows have stride 1."""
    if left.layout.strides[-1] != 1 and left.shape[-1] != 1:
        return None
    step: Dim | None = None
    for d, s in reversed(list(zip(left.shape[:-1], left.layout.strides[:-1], strict=True))):
        if d == 1:
            continue
        if step is None:
            first, step, size = s, s, d
        elif s == first * size:
            size = size * d
        else:
            return None
    return left.shape[-1] if step is None else step


@dataclass(frozen=True)
class Epilogue:
    """What follows a product on its tile: `row` runs once a row r, `inner` once a column j; `operands` are read beside the product."""

    row: list[str]
    inner: list[str]
    operands: tuple[Operand, ...]


def epilogue(site: Site, body: Graph, products: list[Node], tile: Callable[[int], str]) -> Epilogue:
    """`tile(p)` is C for the value of product p at row i and column jj.  Operands are x1, x2, .. after the left one, x0."""
    out_shape, of_products = site.out.shape, {r for p in products for r in p.inputs}
    given = {p.refs[0]: tile(i) for i, p in enumerate(products)}
    row, loads, operands = [*unravel(out_shape[:-1])], list[str](), list[Operand]()
    elsewhere = {r for n in body if n not in products for r in n.inputs}
    for n, o in zip(body.inputs, site.ins, strict=True):
        if n.refs[0] in of_products and n.refs[0] not in elsewhere:
            continue
        operands.append(o)
        k, walk = len(operands), aligned(o.shape, o.layout, out_shape)
        row.append(f"const {o.c} *e{k} = x{k} + {' + '.join(_terms(walk[:-1])) or '0'};")
        index = "0" if walk[-1] == 0 else "j" if walk[-1] == 1 else f"j*{ctext.dim(walk[-1])}"
        loads.append(f"const {ctext.value(o.dtype)} a{n.id} = {scalar.load(o.dtype, f'e{k}[{index}]')};")
        given[n.refs[0]] = f"a{n.id}"
    made = scalar.chain(body, given)
    row.append(f"{site.out.c} *q = y + r*{ctext.dim(out_shape[-1])};")
    return Epilogue(row, [*loads, *made.lines, f"q[j] = {scalar.store(made.dtype, made.result)};"], tuple(operands))


def _tiled(site: Site, isa: Isa, body: Graph, products: list[Node], left: Operand, packs: list[Packed]) -> Kernel:
    columns, depth = packs[0].columns, packs[0].depth
    mr, nr = tile_rows(isa), tile_columns(isa)
    tiles = -(-columns // nr)
    per_group = max(1, min(tiles, GROUP_NUMEL // (nr * max(depth, 1))))
    groups = -(-tiles // per_group)
    rows = product(left.shape[:-1])
    block = ROW_BLOCK - ROW_BLOCK % mr
    parts = epilogue(site, body, products, lambda p: f"c{p}[i*{nr} + jj]")
    operands = (left, *parts.operands)
    weights = tuple(f"const f32 *restrict w{i}" for i in range(len(packs)))
    text = render("cpu/matmul.c.j2", M=ctext.dim(rows), N=columns, K=depth, MR=mr, NR=nr, MC=block, groups=groups, per_group=per_group,
                  lda=ctext.dim(left_rows(left) or depth), products=len(packs), row=parts.row, inner=parts.inner)
    return Kernel((*weights, *params(operands, site.out)), text, (*packs, *arguments(operands, site.out)),
                  f"rlx_ceil_quotient({ctext.dim(rows)}, {block})*{groups}", symbols_used(site))


def _plain(site: Site, body: Graph, products: list[Node]) -> Kernel:
    """Any dtype, any walk: a row of results at a time, depth outside when the right operand's columns are neighbours."""
    out_shape = site.out.shape
    columns, depth = out_shape[-1], body.type(products[0].inputs[0]).shape[-1]
    inputs = {n.refs[0]: (k, o) for k, (n, o) in enumerate(zip(body.inputs, site.ins, strict=True))}
    lines = [f"const i64 N = {ctext.dim(columns)}, K = {ctext.dim(depth)};", "for (i64 t = t0; t < t1; t++) {", *("  " + u for u in unravel(out_shape[:-1], "t"))]
    given: dict[Ref, str] = {}
    inner: list[str] = []
    for p, n in enumerate(products):
        (ka, a), (kb, b) = inputs[n.inputs[0]], inputs[n.inputs[1]]
        acc = ctext.value(n.type.dtype.accumulator)
        wa = aligned(a.shape, a.layout, (*out_shape[:-2], *a.shape[-2:]))
        wb = aligned(b.shape, b.layout, (*out_shape[:-2], *b.shape[-2:]))
        lead = len(out_shape) - 2
        row = _terms(wa[:lead]) + ([f"i{lead}*{ctext.dim(wa[lead])}"] if wa[lead] != 0 else [])
        lines.append(f"  const {a.c} *l{p} = x{ka} + {' + '.join(row) or '0'}; const {b.c} *r{p} = x{kb} + {' + '.join(_terms(wb[:lead])) or '0'};")
        value = f"{scalar.load(a.dtype, f'l{p}[k*{ctext.dim(wa[-1])}]')} * {scalar.load(b.dtype, f'r{p}[k*{ctext.dim(wb[-2])} + j*{ctext.dim(wb[-1])}]')}"
        inner += [f"{acc} c{p} = 0;", "RLX_SIMD_REDUCE(+, c" + str(p) + ")", f"for (i64 k = 0; k < K; k++) c{p} += ({acc}){value};"]
        given[n.refs[0]] = scalar.rounded(n.type.dtype, f"c{p}")
    for n, o in zip(body.inputs, site.ins, strict=True):
        k, _ = inputs[n.refs[0]]
        if any(n.refs[0] in p.inputs for p in products) and not any(n.refs[0] in m.inputs for m in body if m.op is not Op.MATMUL):
            continue
        walk = aligned(o.shape, o.layout, out_shape)
        at = " + ".join([*_terms(walk[:-1]), *([f"j*{ctext.dim(walk[-1])}"] if walk[-1] != 0 else [])]) or "0"
        inner.append(f"const {ctext.value(o.dtype)} a{n.id} = {scalar.load(o.dtype, f'x{k}[{at}]')};")
        given[n.refs[0]] = f"a{n.id}"
    made = scalar.chain(body, given)
    inner += [*made.lines, f"y[t*N + j] = {scalar.store(made.dtype, made.result)};"]
    lines += ["  for (i64 j = 0; j < N; j++) {", *("    " + line for line in inner), "  }", "}"]
    return Kernel(params(site.ins, site.out), "\n".join(lines), arguments(site.ins, site.out), ctext.dim(product(out_shape[:-1])), symbols_used(site))


def _terms(strides: Shape) -> list[str]:
    return [f"i{k}*{ctext.dim(s)}" for k, s in enumerate(strides) if s != 0]


