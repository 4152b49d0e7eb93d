"""Kernels that move values: copies, concat, pad, iota, sizes."""
from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from operator import add
from typing import cast

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import arguments, indent, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, Nest, nest, tasks
from rlxpy.backends.cpu.scalar import store
from rlxpy.backends.templates import render
from rlxpy.ir.dims import Dim, Shape, product
from rlxpy.ir.layout import Layout, ViewArgs, row_major
from rlxpy.ir.types import TensorType

TILE = 16          # elements of one cache line, or a few


def emit_copy(site: Site) -> Kernel:
    """A movement op as a copy, where its result is not just a view."""
    (x,), out = site.ins, site.out
    shape, source, target = walked(site)
    return copy(part(x, shape, source.strides, source.offset), part(out, shape, target.strides, target.offset))


def walked(site: Site) -> tuple[Shape, Layout, Layout]:
    """The shape of a movement op's copy, and how it goes through source and result, each from its operand's first element on."""
    (x,), out, node = site.ins, site.out, site.node
    seen = node.row.view(ViewArgs(x.layout, TensorType(x.shape, x.dtype), node.type, node.attrs.params())) if node.row.view else None
    if seen is None:  # a reshape that keeps the order of the elements: the result is written in the shape of the source
        return x.shape, Layout(x.layout.strides), row_major(x.shape)
    return out.shape, Layout(seen.strides, seen.offset - x.layout.offset), Layout(out.layout.strides)


def part(o: Operand, shape: Shape, strides: Shape, offset: Dim) -> Operand:
    """Another walk over an operand's elements, from `offset` elements behind its first."""
    pointer = f"{o.pointer} + {ctext.dim(offset)}" if offset != 0 else o.pointer
    return replace(o, shape=shape, layout=Layout(strides, o.layout.offset + offset), pointer=pointer)


def copy(x: Operand, out: Operand) -> Kernel:
    """One shape, two walks.  Where the source is contiguous along another axis than the result, by tiles: each cache line is read and
    written once, whatever the strides."""
    walks = nest(x.shape, (x.layout.strides, out.layout.strides))
    turned = next((a for a, s in enumerate(walks.strides[0][:-1]) if s == 1), None)
    if turned is not None and walks.strides[1][-1] == 1:
        return _turned(x, out, walks, turned)
    deal = tasks(walks)
    places = [f"const {x.c} *p = x0 + {walks.offset(0)}; {out.c} *q = y + {walks.offset(1)};"]
    if deal.block:
        lines = ["for (i64 t = t0; t < t1; t++) {", f"  const i64 j0 = t*{deal.block}, width = rlx_least({deal.block}, {ctext.dim(walks.inner)} - j0);",
                 *indent([f"const {x.c} *p = x0 + {_times('j0', walks.strides[0][-1])}; {out.c} *q = y + {_times('j0', walks.strides[1][-1])};"]),
                 *indent(run("q", "p", "width", walks, out)), "}"]
    else:
        lines = [f"const i64 r1 = rlx_least(t1*{deal.rows}, {ctext.dim(product(walks.outer))});", f"for (i64 r = t0*{deal.rows}; r < r1; r++) {{",
                 *indent(unravel(walks.outer)), *indent(places), *indent(run("q", "p", ctext.dim(walks.inner), walks, out)), "}"]
    return _copier(x, out, lines, deal.count)


def run(q: str, p: str, width: str, walks: Nest, o: Operand) -> list[str]:
    """The innermost walk of a copy: bytes at once where both sides are contiguous."""
    if walks.strides[0][-1] == 1 and walks.strides[1][-1] == 1:
        return [f"__builtin_memcpy({q}, {p}, (u64)({width})*sizeof({o.c}));"]
    return ["RLX_SIMD", f"for (i64 j = 0; j < {width}; j++) {q}[{walks.step(1)}] = {p}[{walks.step(0)}];"]


def _turned(x: Operand, out: Operand, walks: Nest, axis: int) -> Kernel:
    """The source is contiguous along `axis`, the result along the last axis."""
    outer = Nest((*walks.sizes[:axis], *walks.sizes[axis + 1:]), tuple((*s[:axis], *s[axis + 1:]) for s in walks.strides))
    high, wide = ctext.dim(walks.sizes[axis]), ctext.dim(walks.inner)
    strips = f"rlx_ceil_quotient({high}, {TILE})"
    text = render("cpu/turn.c.j2", tile=TILE, high=high, wide=wide, strips=strips, unravel=unravel(outer.outer), x_at=outer.offset(0), y_at=outer.offset(1), c=x.c,
                  x_step=ctext.dim(walks.strides[0][-1]), y_step=ctext.dim(walks.strides[1][axis]))
    return _copier(x, out, text.splitlines(), f"{ctext.dim(product(outer.outer))}*{strips}")


def _copier(x: Operand, out: Operand, lines: list[str], count: str) -> Kernel:
    sizes = ctext.names(*x.shape, *x.layout.strides, *out.layout.strides)
    return Kernel(params((x,), out), "\n".join(lines), arguments((x,), out), count, frozenset(sizes))


def _times(index: str, stride: Dim) -> str:
    return index if stride == 1 else f"{index}*{ctext.dim(stride)}"


def emit_concat(site: Site) -> tuple[Kernel, ...]:
    """Each source is a copy into its part of the result."""
    return tuple(copy(x, part(site.out, x.shape, site.out.layout.strides, start)) for x, start in zip(site.ins, starts(site), strict=True))


def starts(site: Site) -> tuple[Dim, ...]:
    """Of a concat: where each source's part of the result begins."""
    out, axis = site.out, site.node.attrs.axis % len(site.out.shape)  # type: ignore[attr-defined]
    before = accumulate((x.shape[axis] for x in site.ins[:-1]), add, initial=cast(Dim, 0))
    return tuple(n * out.layout.strides[axis] for n in before)


def filling(site: Site) -> tuple[str, Dim]:
    """Of a pad: C of the value that it writes, and where the source's part of the result begins."""
    (x,), out, a = site.ins, site.out, site.node.attrs
    value = store(x.dtype, ctext.literal(a.value, x.dtype.accumulator))  # type: ignore[attr-defined]
    start: Dim = 0
    for low, stride in zip(a.low, out.layout.strides, strict=True):  # type: ignore[attr-defined]
        start = start + low * stride
    return value, start


def emit_pad(site: Site) -> tuple[Kernel, ...]:
    (x,), out = site.ins, site.out
    fill, offset = filling(site)
    n = ctext.dim(product(out.shape))
    filled = Kernel(params((), out), f"const i64 j1 = rlx_least(t1*{TASK_NUMEL}, {n});\nRLX_SIMD\nfor (i64 j = t0*{TASK_NUMEL}; j < j1; j++) y[j] = {fill};",
                    arguments((), out), f"rlx_ceil_quotient({n}, {TASK_NUMEL})", frozenset(ctext.names(*out.shape)))
    return filled, copy(x, part(out, x.shape, out.layout.strides, offset))


def emit_iota(site: Site) -> Kernel:
    out = site.out
    axis = site.node.attrs.axis % len(out.shape)  # type: ignore[attr-defined]
    lines = [f"const i64 n = {ctext.dim(product(out.shape))}, r1 = rlx_least(t1*{TASK_NUMEL}, n);", f"for (i64 r = t0*{TASK_NUMEL}; r < r1; r++) {{",
             *indent(unravel(out.shape)), f"  y[r] = {store(out.dtype, f'({ctext.value(out.dtype)})i{axis}')};", "}"]
    return Kernel(params((), out), "\n".join(lines), arguments((), out), f"rlx_ceil_quotient({ctext.dim(product(out.shape))}, {TASK_NUMEL})", symbols_used(site))


def emit_size(site: Site) -> Kernel:
    d = site.node.attrs.dim  # type: ignore[attr-defined]
    return Kernel(params((), site.out), f"if (t0 == 0) y[0] = {ctext.dim(d)};", arguments((), site.out), "1", symbols_used(site, d))
