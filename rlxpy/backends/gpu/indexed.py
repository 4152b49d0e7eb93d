"""GPU kernels that read and write by index: gather, take_along, scatter_add."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.indexed import checked, renamed
from rlxpy.backends.cpu.loops import index, nest, offset
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import FAULT, Kernel, Room, Site
from rlxpy.ir.dims import Shape, product, upper

FAIL = "rlx_fault(fault, node, {}"  # and where among the indices
ENOUGH = 1 << 14  # threads that keep a device busy


def emit_gather(site: Site) -> Kernel:
    """The axis gives way to those of the indices."""
    x, at = site.ins
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    strides = x.layout.strides
    return _taken(site, axis, (*strides[:axis], *(0 for _ in at.shape), *strides[axis + 1:]), (*(0 for _ in strides[:axis]), *at.layout.strides, *(0 for _ in strides[axis + 1:])))


def emit_take_along(site: Site) -> Kernel:
    """An index for each element."""
    x, at = site.ins
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    return _taken(site, axis, tuple(0 if a == axis else s for a, s in enumerate(x.layout.strides)), at.layout.strides)


def _taken(site: Site, axis: int, source: Shape, indices: Shape) -> Kernel:
    """Strides of both operands along the result; the index stands for the place on the source's axis."""
    (x, at), out = site.ins, site.out
    walks = nest(out.shape, (source, indices, out.layout.strides))
    return each(site, product(out.shape), [
        *unravel(walks.sizes, "t"), *checked(at, f"x1[{offset(walks.strides[1])}]", x.shape[axis], "return;", FAIL.format("t")),
        f"y[{offset(walks.strides[2])}] = x0[{offset(walks.strides[0])} + {index(x.layout.strides[axis], 'index')}];"], more=FAULT)


def emit_scatter_add(site: Site) -> Kernel:
    """A thread owns a stretch of one line along the axis, and adds the updates that fall into it in their order; neighbours own neighbouring
    lines.  Narrow floats are summed in f32 in the scratch, and rounded once."""
    (x, at, update), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    n, T, wide = x.shape[axis], ctext.value(x.dtype.accumulator), x.dtype.accumulator is not x.dtype
    end = axis + len(at.shape)
    others = (*x.shape[:axis], *x.shape[axis + 1:])
    walks = nest(others, tuple((*s[:axis], *s[to:]) for s, to in ((x.layout.strides, axis + 1), (update.layout.strides, end), (out.layout.strides, axis + 1))))
    count = product(others)
    parts = max(1, min(-(-ENOUGH // max(1, upper(count))), upper(n)))
    added = offset(update.layout.strides[axis:end], "a_")
    step, to = (index(o.layout.strides[axis], "i") for o in (x, out))
    lines = [
        f"const i64 r = t % {ctext.dim(count)}, part = t / {ctext.dim(count)}, first = {ctext.dim(n)}*part/{parts}, last = {ctext.dim(n)}*(part + 1)/{parts};",
        *unravel(walks.sizes), f"const {x.c} *p = x0 + {offset(walks.strides[0])};", f"const {update.c} *u = x2 + {offset(walks.strides[1])};",
        f"{T} *s = {'work' if wide else 'y'} + {offset(walks.strides[2])};",
        f"for (i64 i = first; i < last; i++) s[{to}] = {scalar.load(x.dtype, f'p[{step}]')};",
        f"for (i64 a = 0; a < {ctext.dim(product(at.shape))}; a++) {{", *indent(renamed(unravel(at.shape, "a"), "a_", "further")),
        *indent(checked(at, f"x1[{offset(at.layout.strides, 'a_')}]", n, "continue;", FAIL.format("a"))), "  if (index < first || index >= last) continue;",
        f"  s[{index(out.layout.strides[axis], 'index')}] += {scalar.load(update.dtype, f'u[{added}]')};", "}"]
    if wide:
        lines += [f"{out.c} *q = y + {offset(walks.strides[2])};", f"for (i64 i = first; i < last; i++) q[{to}] = {scalar.store(out.dtype, f's[{to}]')};"]
    return each(site, count * parts, lines, more={**({f"{T} *work": Room.SCRATCH} if wide else {}), **FAULT})
