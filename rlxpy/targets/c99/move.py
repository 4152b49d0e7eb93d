"""Kernels that move values: copies, joins, padding, reading and writing by index."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.loops import aligned, index, nest
from rlxpy.backends.cpu.movement import part
from rlxpy.ir.dims import Dim, Shape, product, upper
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import ViewArgs, row_major
from rlxpy.ir.op import Op
from rlxpy.ir.types import TensorType
from rlxpy.targets.c99.compute import accumulated
from rlxpy.targets.c99.text import Function, at, function, indented, literal, loops, read, write


def copied(x: Operand, out: Operand, node: Node) -> Function:
    """One shape, two walks."""
    walks = nest(x.shape, (x.layout.strides, out.layout.strides))
    site = Site(node, (x,), (out,))
    if all(s[-1] == 1 for s in walks.strides) and len(walks.sizes) == 1:
        return function(site, [f"memcpy(y, x0, sizeof *y*{ctext.dim(walks.inner)});"])
    return function(site, loops(walks.sizes, [f"y[{at(walks.strides[1])}] = x0[{at(walks.strides[0])}];"]))


def copy(site: Site) -> tuple[Function, ...]:
    """A movement op whose result is not just another walk over its input."""
    (x,), out, node = site.ins, site.out, site.node
    seen = node.row.view(ViewArgs(x.layout, TensorType(x.shape, x.dtype), node.type, node.attrs.params())) if node.row.view else None
    if seen is None:  # a reshape that keeps the order of the elements
        return (copied(x, part(out, x.shape, row_major(x.shape).strides, 0), node),)
    return (copied(part(x, out.shape, seen.strides, seen.offset - x.layout.offset), out, node),)


def concat(site: Site) -> tuple[Function, ...]:
    out, axis = site.out, site.node.attrs.axis % len(site.out.shape)  # type: ignore[attr-defined]
    made: list[Function] = []
    start: Dim = 0
    for x in site.ins:
        made.append(copied(x, part(out, x.shape, out.layout.strides, start * out.layout.strides[axis]), site.node))
        start = start + x.shape[axis]
    return tuple(made)


def pad(site: Site) -> tuple[Function, ...]:
    (x,), out, a = site.ins, site.out, site.node.attrs
    offset: Dim = 0
    for low, stride in zip(a.low, out.layout.strides, strict=True):  # type: ignore[attr-defined]
        offset = offset + low * stride
    value = literal(a.value, x.dtype) if x.dtype.is_float else literal(int(a.value), x.dtype)  # type: ignore[attr-defined]
    filled = function(Site(site.node, (), (out,)), loops((product(out.shape),), [write(x.dtype, "y[i0]" if product(out.shape) != 1 else "y[0]", value)]))
    return filled, copied(x, part(out, x.shape, out.layout.strides, offset), site.node)


def iota(site: Site) -> tuple[Function, ...]:
    out = site.out
    axis = site.node.attrs.axis % len(out.shape)  # type: ignore[attr-defined]
    here = f"i{axis}" if out.shape[axis] != 1 else "0"
    return (function(site, loops(out.shape, [write(out.dtype, f"y[{_within(out.shape, out.layout.strides)}]", f"({ctext.value(out.dtype)}){here}")])),)


def size(site: Site) -> tuple[Function, ...]:
    return (function(site, [f"y[0] = {ctext.dim(site.node.attrs.dim)};"]),)  # type: ignore[attr-defined]


def _within(shape: Shape, strides: Shape, index: str = "i") -> str:
    """Offset over axes of which those of size 1 have no loop."""
    return at(tuple(0 if d == 1 else s for d, s in zip(shape, strides, strict=True)), index)


def checked(x: Operand, place: str, n: Dim) -> list[str]:
    """`index`, counted from the end where negative; outside the axis the function gives up."""
    size = ctext.dim(n)
    below = "" if x.dtype.kind == "u" else f"index < -{size} || "
    wrap = [] if x.dtype.kind == "u" else [f"if (index < 0) index += {size};"]
    return [f"{'const ' * (not wrap)}i64 index = (i64)x1[{place}];", f"if ({below}index >= {size}) return 1;", *wrap]


def gather(site: Site) -> tuple[Function, ...]:
    """A row is everything behind the axis."""
    (x, where), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    lead, tail, r = x.shape[:axis], x.shape[axis + 1:], len(where.shape)
    to = out.layout.strides
    by = x.layout.strides
    target = _sum(_within(lead, to[:axis]), _within(where.shape, to[axis:axis + r], "a"), _within(tail, to[axis + r:], "j"))
    source = _sum(_within(lead, by[:axis]), index(by[axis], "index"), _within(tail, by[axis + 1:], "j"))
    inner = loops(tail, [f"y[{target}] = x0[{source}];"], "j")
    body = loops(lead, loops(where.shape, [*checked(where, _within(where.shape, where.layout.strides, "a"), x.shape[axis]), *inner], "a"))
    return (function(site, body, fails=True),)


def take_along(site: Site) -> tuple[Function, ...]:
    (x, where), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    here = tuple(0 if a == axis else s for a, s in enumerate(x.layout.strides))
    walks = nest(out.shape, (here, where.layout.strides, out.layout.strides))
    body = [*checked(where, at(walks.strides[1]), x.shape[axis]),
            f"y[{at(walks.strides[2])}] = x0[{_sum(at(walks.strides[0]), index(x.layout.strides[axis], 'index'))}];"]
    return (function(site, loops(walks.sizes, body), fails=True),)


def scatter_scratch(graph: Graph, node: Node) -> int:
    """The sums of narrow floats."""
    t = node.type
    return 0 if t.dtype.accumulator is t.dtype else upper(product(t.shape)) * t.dtype.accumulator.nbytes


def scatter_add(site: Site) -> tuple[Function, ...]:
    """Updates in their order; of narrow floats the sums are wide until the end."""
    (x, where, update), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    lead, tail, r, d = x.shape[:axis], x.shape[axis + 1:], len(where.shape), out.dtype.accumulator
    sums, c = "y" if d is out.dtype else "work", ctext.value(d)
    whole = nest(out.shape, (x.layout.strides, out.layout.strides))
    begin = loops(whole.sizes, [f"{sums}[{at(whole.strides[1])}] = {read(x, 'x0', at(whole.strides[0]))};"])
    to, by = out.layout.strides, update.layout.strides
    place = f"{sums}[{_sum(_within(lead, to[:axis]), index(to[axis], 'index'), _within(tail, to[axis + 1:], 'j'))}]"
    value = read(update, "x2", _sum(_within(lead, by[:axis]), _within(where.shape, by[axis:axis + r], "a"), _within(tail, by[axis + r:], "j")))
    add = loops(tail, [f"{place} = {accumulated(Op.SUM, d, place, value)};"], "j")
    body = [*begin, *loops(lead, loops(where.shape, [*checked(where, _within(where.shape, where.layout.strides, "a"), x.shape[axis]), *add], "a"))]
    if sums == "work":
        body += [f"for (i64 k = 0; k < {ctext.dim(product(out.shape))}; k++) {write(out.dtype, 'y[k]', 'work[k]')}"]
    return (function(site, body, fails=True, work=c if sums == "work" else ""),)


def append(site: Site) -> tuple[Function, ...]:
    """New rows into the cache at a position; the others are there already where the cache's own memory takes the result."""
    (cache, new, _), out = site.ins, site.out
    axis = site.node.attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    room = ctext.dim(cache.shape[axis])
    kept, rows = nest(cache.shape, (cache.layout.strides, out.layout.strides)), nest(new.shape, (new.layout.strides, aligned(new.shape, out.layout, new.shape)))
    body = ["const i64 position = (i64)x2[0];", f"if (position < 0 || position > {room} - {ctext.dim(new.shape[axis])}) return 1;",
            "if (y != x0) {", *indented(loops(kept.sizes, [f"y[{at(kept.strides[1])}] = x0[{at(kept.strides[0])}];"])), "}",
            *loops(rows.sizes, [f"y[{_sum(index(out.layout.strides[axis], 'position'), at(rows.strides[1]))}] = x1[{at(rows.strides[0])}];"])]
    return (function(site, body, fails=True),)


def _sum(*terms: str) -> str:
    return " + ".join(t for t in terms if t not in ("0", "")) or "0"
