"""Kernels of products: right operands in panels, weights packed at load and activations by a stage of the step, through register tiles."""
from __future__ import annotations

from functools import cache

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, indent, loop_kernel, params, unravel
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import aligned, nest
from rlxpy.backends.cpu.packing import Form, Packed, Panels
from rlxpy.backends.cpu.products import Products, batch_offset, epilogue, products, walk
from rlxpy.backends.memory import ALIGN_NBYTES
from rlxpy.backends.templates import render
from rlxpy.extend.kernels import Tunable
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Fused
from rlxpy.ir.dims import Dim, Shape, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.ir.types import TensorType

ROW_BLOCK = Tunable("row_block", (0, 24, 48, 96, 192, 384), 0)  # rows of the left operand that stay in the caches while panels pass; 0 asks the depth
USUAL_ROWS = 96        # of a block that is not deep
KEPT_NUMEL = 5 << 14   # of a deep one: with a panel beside it half a megabyte, a small second cache
GROUP_NUMEL = 1 << 15  # columns x depth of the panels one task reads
TASKS = 32             # a product is cut into, at least, as long as a task has a panel: enough for threads to end together
STREAMED_ROWS = 192    # up to which the time that panels take to come from memory shows
FEW_ROWS = 2           # up to here a right operand that is used once is cheaper to read where it lies than to pack
PLAIN_COLUMNS = 64     # sums side by side in the first cache
FEW = {1: 4, 2: 2}     # rows to panels walked at once: so few rows wait for memory, which several streams keep busy
AHEAD_NBYTES = 2048    # how far those streams are fetched ahead


@dataclass(frozen=True)
class Tile:
    """Register tiles of one element type: `kept` in panels, `sums` in registers and on the left."""

    isa: Isa
    sums: DType
    kept: DType

    @property
    def vector(self) -> int:
        return self.isa.vector * 4 // self.sums.nbytes

    @property
    def columns(self) -> int:
        return 2 * self.vector

    @property
    def rows(self) -> int:
        """What fits beside two columns of vectors in the register file."""
        return tile_rows(self.isa)

    @property
    def text(self) -> str:
        """The C functions rlx_tile_T, rlx_panel_T and rlx_groups_T of the kept type T."""
        return _functions(self)


@cache
def _functions(tile: Tile) -> str:
    bf16 = tile.kept is DType.BF16
    widened = "(v)(__builtin_convertvector(*(const narrow *)(%s), wide) << 16)"
    return render("cpu/tile.h.j2", T=tile.kept.text, A=ctext.value(tile.sums), C=ctext.storage(tile.kept), nbytes=tile.sums.nbytes, VL=tile.vector, NR=tile.columns,
                  MR=tile.rows, few=FEW, AHEAD=AHEAD_NBYTES // tile.kept.nbytes,
                  lines=range(0, tile.columns, ALIGN_NBYTES // tile.kept.nbytes), TASKS=TASKS, load=widened if bf16 else "*(const v *)(%s)", widens=bf16,
                  FMA="RLX_VFMA_F64" if tile.sums is DType.F64 else "RLX_VFMA", GROUP=GROUP_NUMEL)


def tile_rows(isa: Isa) -> int:
    return 12 if isa.vector >= 16 else 6 if isa.vector >= 8 else 4


def tile_columns(isa: Isa) -> int:
    """Of f32."""
    return 2 * isa.vector


def tile_of(isa: Isa, d: DType) -> Tile | None:
    """None for integers, which go through plain loops."""
    return Tile(isa, d.accumulator, Panels(d, 1).kept) if d in (DType.F16, DType.BF16, DType.F32, DType.F64) else None


def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site, isa)


def scratch_nbytes(isa: Isa, graph: Graph, node: Node) -> int:
    """Memory for a left operand made wide and for right operands that are no weights, in panels."""
    left, rights = ends(graph, node)
    tile = tile_of(isa, graph.type(left).dtype)
    return sum(_pieces(tile, graph.type(left), [graph.type(r) for r in rights if not is_weight(graph, r)])) if tile else 0


def ends(graph: Graph, node: Node) -> tuple[Ref, list[Ref]]:
    """The left operand of a node's products, and the right ones."""
    if not isinstance(node.attrs, Fused):
        return node.inputs[0], [node.inputs[1]]
    outer = dict(zip((n.refs[0] for n in node.attrs.body.inputs), node.inputs, strict=True))
    pairs = [n.inputs for n in node.attrs.body if n.op is Op.MATMUL]
    return outer[pairs[0][0]], [outer[right] for _, right in pairs]


def is_weight(graph: Graph, r: Ref) -> bool:
    """A leaf that only set_param changes, or another walk over one."""
    n = graph[r]
    return n.op in (Op.PARAM, Op.CONST) or (n.row.view is not None and is_weight(graph, n.inputs[0]))


def _pieces(tile: Tile, left: TensorType, rights: list[TensorType]) -> list[int]:
    """Bytes of the parts of the scratch memory, each a whole number of cache lines."""
    wide = [upper(product(left.shape)) * tile.sums.nbytes] if left.dtype is not tile.sums else [0]
    panels = [upper(product(r.shape[:-1])) * -(-upper(r.shape[-1]) // tile.columns) * tile.columns * tile.kept.nbytes for r in rights]
    return [-(-n // ALIGN_NBYTES) * ALIGN_NBYTES for n in (*wide, *panels)]


def _emit(site: Site, isa: Isa) -> Kernel | tuple[Kernel, ...]:
    p = products(site)
    tile = tile_of(isa, p.left.dtype)
    form = Panels(p.left.dtype, tile.columns if tile else 1)
    sources: list[Packed | Operand] = [packed(r, form) or r for r in p.rights]
    fresh = [s for s in sources if isinstance(s, Operand)]
    pieces = _pieces(tile, TensorType(p.left.shape, p.left.dtype), [TensorType(o.shape, o.dtype) for o in fresh]) if tile else []
    if tile is None or sum(pieces) > site.scratch_nbytes or (fresh and upper(p.rows) <= FEW_ROWS):
        return plain(site, p)
    places = [f"{site.scratch} + {sum(pieces[:k])}" for k in range(len(pieces))]
    left, stages = p.left, list[Kernel]()
    if left.dtype is not tile.sums:
        left = Operand(left.ref, left.shape, tile.sums, row_major(left.shape), f"({ctext.storage(tile.sums)} *)({places[0]})")
        stages.append(widen(site, p.left, left))
    panels: dict[Operand, str] = {}
    for o, place in zip(fresh, places[1:], strict=True):
        if o not in panels:
            panels[o] = f"({form.c} *)({place})"
            stages.append(_pack(site, tile, o, panels[o]))
    given = tuple(s if isinstance(s, Packed) else panels[s] for s in sources)
    return (*stages, _tiled(site, tile, p, left, given))


def packed(right: Operand, form: Form) -> Packed | None:
    """The weights of a product in another form; None for what is no weight, or no batch of matrices with fixed steps."""
    batch = nest(right.shape[:-2], (right.layout.strides[:-2],))
    sizes = (batch.inner, *right.shape[-2:], batch.strides[0][-1], *right.layout.strides[-2:], right.layout.offset)
    if right.param is None or batch.outer or not all(isinstance(d, int) for d in sizes):
        return None
    count, depth, columns, matrix, row, column, offset = map(int, sizes)
    return Packed(right.param, (count, depth, columns), (matrix, row, column), offset, form)


def widen(site: Site, narrow: Operand, wide: Operand) -> Kernel:
    walks = nest(narrow.shape, (narrow.layout.strides, wide.layout.strides))
    line = f"q[{walks.step(1)}] = {scalar.load(narrow.dtype, f'p0[{walks.step(0)}]')};"
    return loop_kernel(Site(site.node, (narrow,), (wide,)), walks, [line])


def _pack(site: Site, tile: Tile, right: Operand, panels: str) -> Kernel:
    """[batch][columns / width][depth][width] of a right operand that a run makes."""
    *lead, depth, columns = right.shape
    *steps, row, column = right.layout.strides
    tiles = f"rlx_ceil_quotient({ctext.dim(columns)}, {tile.columns})"
    at = " + ".join(["0", *(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(steps) if s != 0)])
    lines = [f"const i64 K = {ctext.dim(depth)}, N = {ctext.dim(columns)}, tiles = {tiles};", "for (i64 t = t0; t < t1; t++) {",
             f"  const i64 j0 = t % tiles*{tile.columns}, width = rlx_least((i64){tile.columns}, N - j0), batch = t / tiles;",
             *indent(unravel(tuple(lead), "batch")),
             f"  rlx_panel_{right.dtype.text}(x0 + {at} + j0*{ctext.dim(column)}, {ctext.dim(row)}, {ctext.dim(column)}, K, width, y + t*K*{tile.columns});", "}"]
    out = Operand(right.ref, right.shape, tile.kept, row_major(right.shape), panels)
    return Kernel(params((right,), out), "\n".join(lines), arguments((right,), out), f"{ctext.dim(product(lead))}*{tiles}", symbols_used(site),
                  needs=(panel_text(right.dtype, tile),))


def panel_text(d: DType, tile: Tile) -> str:
    """The C function rlx_panel_T, which packs columns of a matrix of T."""
    load = "%s" if d is tile.kept else f"rlx_load_{d.text}(%s)"
    return render("cpu/panel.h.j2", T=d.text, C=ctext.storage(d), D=ctext.storage(tile.kept), NR=tile.columns, load=load)


def _tiled(site: Site, tile: Tile, p: Products, left: Operand, rights: tuple[str | Packed, ...]) -> Kernel:
    w, wide = walk(p, left), tile.columns
    parts = epilogue(site, p.body, p.nodes, lambda k: f"c{k}[i*step*{wide} + jj]")
    operands = (left, *parts.operands)
    rows, columns, depth = ctext.dim(w.rows), ctext.dim(p.columns), ctext.dim(p.depth)
    asked = site.params.get(ROW_BLOCK.name) or _block_rows(p.depth)  # convolutions have no point of their own
    block = asked - asked % tile.rows
    text = render("cpu/matmul.c.j2", T=tile.kept.text, A=ctext.storage(tile.sums), C=ctext.storage(tile.kept), M=rows, N=columns, K=depth, MR=tile.rows, NR=wide, MC=block,
                  STREAMED_ROWS=STREAMED_ROWS, count=ctext.dim(w.count),
                  lda=ctext.dim(w.row_step), a_step=ctext.dim(w.depth_step), products=len(p.nodes), batch=w.indices,
                  at=[batch_offset(w, k) for k in range(1 + len(p.nodes))], row=parts.row, inner=parts.inner)
    weights = tuple(f"const {ctext.storage(tile.kept)} *restrict w{k}" for k in range(len(rights)))
    blocks = f"{ctext.dim(w.count)}*rlx_ceil_quotient({rows}, {block})"
    count = f"{blocks}*rlx_groups_{tile.kept.text}({rows}, {blocks}, {columns}, {depth})"
    return Kernel((*weights, *params(operands, site.out)), text, (*rights, *arguments(operands, site.out)), count, symbols_used(site), needs=(tile.text,))


def _block_rows(depth: Dim) -> int:
    return max(v for v in ROW_BLOCK.values if v <= USUAL_ROWS and v * upper(depth) <= KEPT_NUMEL) or min(filter(None, ROW_BLOCK.values))


def plain(site: Site, p: Products) -> Kernel:
    """Any dtype, any walk: sums of one row side by side where the right operand's columns are neighbours, else one sum at a time."""
    lead = site.out.shape[:-2]
    parts = epilogue(site, p.body, p.nodes, lambda k: f"c{k}[jj]")
    operands = (p.left, *parts.operands, *p.rights)
    wa = aligned(p.left.shape, p.left.layout, (*lead, *p.left.shape[-2:]))
    pointers, sums = [f"const {p.left.c} *l = x0 + {_sum(wa[:-1])};"], list[str]()
    for k, (n, right) in enumerate(zip(p.nodes, p.rights, strict=True)):
        acc = ctext.value(n.type.dtype.accumulator)
        wb = aligned(right.shape, right.layout, (*lead, *right.shape[-2:]))
        pointers.append(f"const {right.c} *r{k} = x{len(operands) - len(p.rights) + k} + {_sum(wb[:-2])};")
        a, b = scalar.load(p.left.dtype, f"l[k*{ctext.dim(wa[-1])}]"), scalar.load(right.dtype, f"r{k}[k*{ctext.dim(wb[-2])} + (j0 + jj)*{ctext.dim(wb[-1])}]")
        if wb[-1] == 1:
            sums += [f"{acc} c{k}[{PLAIN_COLUMNS}] = {{0}};", "for (i64 k = 0; k < K; k++) {", f"  const {acc} a = {a};", "  RLX_SIMD",
                     f"  for (i64 jj = 0; jj < width; jj++) c{k}[jj] += ({acc})({scalar.times(n.type.dtype, 'a', b)});", "}"]
        else:
            sums += [f"{acc} c{k}[{PLAIN_COLUMNS}];", "for (i64 jj = 0; jj < width; jj++) {", f"  {acc} s = 0;", "  RLX_SIMD_REDUCE(+, s)",
                     f"  for (i64 k = 0; k < K; k++) s += ({acc})({scalar.times(n.type.dtype, a, b)});", f"  c{k}[jj] = s;", "}"]
    lines = [f"const i64 N = {ctext.dim(p.columns)}, K = {ctext.dim(p.depth)};", "for (i64 r = t0; r < t1; r++) {", *indent([*unravel(site.out.shape[:-1]), *pointers]),
             f"  for (i64 j0 = 0; j0 < N; j0 += {PLAIN_COLUMNS}) {{", f"    const i64 width = rlx_least((i64){PLAIN_COLUMNS}, N - j0);", *indent([*sums, *parts.row], 2),
             "    for (i64 jj = 0; jj < width; jj++) {", "      const i64 j = j0 + jj; (void)j;", *indent(parts.inner, 3), "    }", "  }", "}"]
    return Kernel(params(operands, site.out), "\n".join(lines), arguments(operands, site.out), ctext.dim(product(site.out.shape[:-1])), symbols_used(site))


def _sum(strides: Shape) -> str:
    return " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(strides) if s != 0) or "0"
