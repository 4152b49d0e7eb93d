"""Kernels that move values: concat, pad, gather, kv_append, iota, sizes."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import arguments, indent, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, nest
from rlxpy.backends.cpu.scalar import store
from rlxpy.ir.dims import Dim, product, upper
from rlxpy.ir.layout import Layout, row_major

NODE = "i64 node"  # which node to name when an index is out of range


def emit_concat(site: Site) -> Kernel:
    """Each source is one walk into its part of the result."""
    axis = site.node.attrs.axis % len(site.out.shape)  # type: ignore[attr-defined]
    lines: list[str] = []
    start: Dim = 0
    for k, o in enumerate(site.ins):
        lines += _copy(o, f"x{k}", site.out, "y", start * site.out.layout.strides[axis])
        start = start + o.shape[axis]
    return Kernel(params(site.ins, site.out), "\n".join(["if (t0 > 0) return;", *lines]), arguments(site.ins, site.out), "1", symbols_used(site))


def _copy(source: Operand, x: str, to: Operand, y: str, offset: Dim) -> list[str]:
    """source's elements to the part of `to` that starts `offset` elements in."""
    walks = nest(source.shape, (source.layout.strides, to.layout.strides))
    return ["{", f"  const i64 rows = {ctext.dim(product(walks.outer))};", "  for (i64 r = 0; r < rows; r++) {", *indent(unravel(walks.outer), 2),
            f"    const {source.c} *p = {x} + {walks.offset(0)}; {to.c} *q = {y} + {ctext.dim(offset)} + {walks.offset(1)};",
            "    RLX_SIMD", f"    for (i64 j = 0; j < {ctext.dim(walks.inner)}; j++) q[{walks.step(1)}] = p[{walks.step(0)}];", "  }", "}"]


def emit_pad(site: Site) -> Kernel:
    (x,), out, a = site.ins, site.out, site.node.attrs
    fill = store(x.dtype, ctext.literal(a.value, x.dtype.accumulator))  # type: ignore[attr-defined]
    offset: Dim = 0
    for low, stride in zip(a.low, out.layout.strides, strict=True):  # type: ignore[attr-defined]
        offset = offset + low * stride
    lines = ["if (t0 > 0) return;", f"for (i64 j = 0; j < {ctext.dim(product(out.shape))}; j++) y[j] = {fill};", *_copy(x, "x0", out, "y", offset)]
    return Kernel(params(site.ins, out), "\n".join(lines), arguments(site.ins, out), "1", symbols_used(site))


def emit_gather(site: Site) -> Kernel:
    """Rows by index; an index outside stops the run: the error word gets the step, the index and the bound."""
    (x, at), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    lead, tail = x.shape[:axis], x.shape[axis + 1:]
    n, count, width = x.shape[axis], product(at.shape), product(tail)
    inner = nest(tail, (x.layout.strides[axis + 1:], row_major(tail).strides))
    per_task = max(1, TASK_NUMEL // max(1, upper(width)))
    rows = product(lead) * count
    lines = [f"const i64 count = {ctext.dim(count)}, r1 = rlx_least(t1*{per_task}, {ctext.dim(rows)});", f"for (i64 r = t0*{per_task}; r < r1; r++) {{",
             "  i64 o = r / count, a = r % count;", *indent(_renamed(unravel(at.shape, "a"), "a_")),
             f"  i64 index = (i64)x1[{_at(at.layout.strides, 'a_')}];",
             f"  if (index < {'0' if at.dtype.kind == 'u' else f'-({ctext.dim(n)})'} || index >= {ctext.dim(n)}) {{ rlx_fail(size, node, index, {ctext.dim(n)}); index = 0; }}",
             f"  if (index < 0) index += {ctext.dim(n)};", *indent(_renamed(unravel(lead, "o"), "o_", "more")),
             f"  const {x.c} *p = x0 + index*{ctext.dim(x.layout.strides[axis])} + {_at(x.layout.strides[:axis], 'o_')};",
             f"  {out.c} *q = y + r*{ctext.dim(width)};",
             f"  for (i64 s = 0; s < {ctext.dim(product(inner.outer))}; s++) {{", *indent(unravel(inner.outer, "s"), 2),
             f"    const {x.c} *pp = p + {inner.offset(0)}; {out.c} *qq = q + {inner.offset(1)};",
             f"    for (i64 j = 0; j < {ctext.dim(inner.inner)}; j++) qq[{inner.step(1)}] = pp[{inner.step(0)}];", "  }", "}"]
    return Kernel((*params(site.ins, out), NODE), "\n".join(lines), (*arguments(site.ins, out), str(site.node.id)), f"rlx_ceil_quotient({ctext.dim(rows)}, {per_task})", symbols_used(site))


def _at(strides: Sequence[Dim], index: str) -> str:
    return " + ".join(f"{index}{k}*{ctext.dim(s)}" for k, s in enumerate(strides) if s != 0) or "0"


def _renamed(lines: list[str], index: str, rest: str = "left") -> list[str]:
    return [line.replace("i64 i", f"i64 {index}").replace("rest", rest) for line in lines]


def emit_append(site: Site) -> Kernel:
    """New rows into the cache at a position; the rest is already there when the plan gave the cache's own memory."""
    (cache, new, _), out = site.ins, site.out
    axis = site.node.attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    moved = replace(new, layout=Layout(new.layout.strides, 0))
    room = cache.shape[axis]
    lines = ["if (t0 > 0) return;", "const i64 at = (i64)x2[0];",
             f"if (at < 0 || at > {ctext.dim(room)} - {ctext.dim(new.shape[axis])}) {{ rlx_fail(size, node, at, {ctext.dim(room)}); return; }}",
             f"if ((const void *)y != (const void *)x0) for (i64 j = 0; j < {ctext.dim(product(cache.shape))}; j++) y[j] = x0[j];",
             f"y += at*{ctext.dim(out.layout.strides[axis])};", *_copy(moved, "x1", out, "y", 0)]
    names = tuple(p.replace("restrict ", "") for p in params(site.ins, out))  # the cache and the result are one memory
    return Kernel((*names, NODE), "\n".join(lines), (*arguments(site.ins, out), str(site.node.id)), "1", symbols_used(site))


def emit_iota(site: Site) -> Kernel:
    out = site.out
    axis = site.node.attrs.axis % len(out.shape)  # type: ignore[attr-defined]
    lines = [f"const i64 n = {ctext.dim(product(out.shape))}, r1 = rlx_least(t1*{TASK_NUMEL}, n);", f"for (i64 r = t0*{TASK_NUMEL}; r < r1; r++) {{",
             *indent(unravel(out.shape)), f"  y[r] = {store(out.dtype, f'({ctext.value(out.dtype)})i{axis}')};", "}"]
    return Kernel(params((), out), "\n".join(lines), arguments((), out), f"rlx_ceil_quotient({ctext.dim(product(out.shape))}, {TASK_NUMEL})", symbols_used(site))


def emit_size(site: Site) -> Kernel:
    d = site.node.attrs.dim  # type: ignore[attr-defined]
    return Kernel(params((), site.out), f"if (t0 == 0) y[0] = {ctext.dim(d)};", arguments((), site.out), "1", symbols_used(site, d))
