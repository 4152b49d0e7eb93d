"""Products as kernels see them: which axes are one walk of rows, which are a batch of matrices, and what follows on the result."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import body_of, unravel
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.loops import Nest, aligned, nest
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, product
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import Layout, row_major
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Products:
    """The products of one node: one left operand, one right operand each, and the chain that joins them."""

    body: Graph
    nodes: tuple[Node, ...]
    left: Operand
    rights: tuple[Operand, ...]
    out: Operand

    @property
    def rows(self) -> Dim:
        return self.out.shape[-2]

    @property
    def columns(self) -> Dim:
        return self.out.shape[-1]

    @property
    def depth(self) -> Dim:
        return self.left.shape[-1]


def products(site: Site, op: Op = Op.MATMUL) -> Products:
    body = body_of(site)
    nodes = tuple(n for n in body if n.op is op)
    inputs = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
    return Products(body, nodes, inputs[nodes[0].inputs[0]], tuple(inputs[n.inputs[1]] for n in nodes), site.out)


@dataclass(frozen=True)
class Walk:
    """[batch..] matrices of [rows, depth] on the left.  `batch` steps the left operand in elements, then each right one in matrices,
    or in what their layouts were given in."""

    batch: Nest
    rows: Dim
    row_step: Dim
    depth_step: Dim

    @property
    def count(self) -> Dim:
        return product(self.batch.sizes)

    @property
    def indices(self) -> list[str]:
        """C for i0, i1, .. of the number `batch`, where a step needs them."""
        return unravel(self.batch.sizes, "batch") if _is_read(self.batch) else []


def _is_read(walks: Nest) -> bool:
    return any(s != 0 for strides in walks.strides for s in strides)


def walk(p: Products, left: Operand, rights: Sequence[Layout] | None = None) -> Walk:
    """Batch axes join the rows wherever the left operand walks them as one and the right ones do not change.

    rights: layouts of the right operands' batch axes; None where their matrices lie one after another."""
    lead = p.out.shape[:-2]
    steps = [aligned(left.shape[:-2], Layout(left.layout.strides[:-2]), lead)]
    steps += [aligned(r.shape[:-2], at, lead) for r, at in zip(p.rights, rights or [row_major(r.shape[:-2]) for r in p.rights], strict=True)]
    rows, row_step = p.rows, left.layout.strides[-2]
    while lead and (lead[-1] == 1 or all(s[-1] == 0 for s in steps[1:])):
        if lead[-1] != 1:
            if rows != 1 and steps[0][-1] != row_step * rows:
                break
            row_step = steps[0][-1] if rows == 1 else row_step
            rows = rows * lead[-1]
        lead, steps = lead[:-1], [s[:-1] for s in steps]
    return Walk(nest(lead, tuple(steps)), rows, row_step, left.layout.strides[-1])


def batch_offset(w: Walk, operand: int) -> str:
    """C for where operand (0 the left one) is at batch indices i0, i1, ..: elements of the left one, what their steps are in of a right one."""
    return " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(w.batch.strides[operand]) if s != 0) or "0"


def left_rows(left: Operand) -> Dim | None:
    """Elements from one row of [.., k] to the next, when all leading axes are one walk and rows have stride 1."""
    if left.layout.strides[-1] != 1 and left.shape[-1] != 1:
        return None
    rows = nest(left.shape[:-1], (left.layout.strides[:-1],))
    return None if len(rows.sizes) > 1 else left.shape[-1] if rows.sizes == (1,) else rows.strides[0][0]


@dataclass(frozen=True)
class Epilogue:
    """What follows a product on its tile: `row` runs once a row r, `inner` once a column j; `operands` are read beside the product."""

    row: list[str]
    inner: list[str]
    operands: tuple[Operand, ...]


def epilogue(site: Site, body: Graph, nodes: tuple[Node, ...], tile: Callable[[int], str]) -> Epilogue:
    """`tile(p)` is C for the value of product p at row i and column jj.  Operands are x1, x2, .. after the left one, x0."""
    lead, of_products = site.out.shape[:-1], {r for p in nodes for r in p.inputs}
    given = {p.refs[0]: scalar.rounded(p.type.dtype, tile(i)) for i, p in enumerate(nodes)}
    elsewhere = {r for n in body if n not in nodes for r in n.inputs}
    beside = [(n, o) for n, o in zip(body.inputs, site.ins, strict=True) if n.refs[0] not in of_products or n.refs[0] in elsewhere]
    strides = [aligned(o.shape, o.layout, site.out.shape) for _, o in beside]
    walks = nest(lead, tuple(s[:-1] for s in strides))
    row, loads = unravel(walks.sizes) if _is_read(walks) else [], list[str]()
    for k, ((n, o), step) in enumerate(zip(beside, strides, strict=True), 1):
        at = " + ".join(f"i{a}*{ctext.dim(s)}" for a, s in enumerate(walks.strides[k - 1]) if s != 0) or "0"
        row.append(f"const {o.c} *e{k} = x{k} + {at};")
        index = "0" if step[-1] == 0 else "j" if step[-1] == 1 else f"j*{ctext.dim(step[-1])}"
        loads.append(f"const {ctext.value(o.dtype)} a{n.id} = {scalar.load(o.dtype, f'e{k}[{index}]')};")
        given[n.refs[0]] = f"a{n.id}"
    made = scalar.chain(body, given)
    row.append(f"{site.out.c} *q = y + r*{ctext.dim(site.out.shape[-1])};")
    return Epilogue(row, [*loads, *made.lines, f"q[j] = {scalar.store(site.out.dtype, made.result)};"], tuple(o for _, o in beside))
