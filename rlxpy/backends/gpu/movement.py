"""GPU kernels that move elements: copies of strided values, their joining and padding, numbers from nothing, rows appended to a cache and put back."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.cpu.loops import nest, offset
from rlxpy.backends.cpu.movement import filling, starts, walked
from rlxpy.backends.cpu.scalar import store
from rlxpy.backends.gpu.elementwise import each, over
from rlxpy.backends.gpu.kernel import FAULT, THREADS, Argument, Kernel, Room, Site, params, quotient
from rlxpy.ir.dims import Dim, Shape, product
from rlxpy.ir.layout import row_major


def copied(c: str, shape: Shape, source: Shape, target: Shape, call: tuple[Operand, Operand] | None = None, *, skip: Dim = 0, into: Dim = 0) -> Kernel:
    """An element a thread, whatever the type: `c` is its storage.  source, target: strides, may be symbolic; skip, into: elements before
    the first that is read, and before the first that is written."""
    walks = nest(shape, (source, target))
    n = product(shape)
    to, of = (offset(s) + (f" + {ctext.dim(first)}" if first != 0 else "") for s, first in ((walks.strides[1], into), (walks.strides[0], skip)))
    lines = [*unravel(walks.sizes, "t"), f"y[{to}] = x0[{of}];"]
    sizes = frozenset(ctext.names(*shape, *source, *target, skip, into))
    return Kernel((f"const {c} *x0", f"{c} *y"), over(n, lines), tuple(o.ref for o in call) if call else (), (quotient(n, THREADS),), sizes=sizes)


def emit_copy(site: Site) -> Kernel:
    """A movement op whose result is not just a view."""
    (x,), out = site.ins, site.out
    shape, source, target = walked(site)
    return copied(x.c, shape, source.strides, target.strides, (x, out), skip=source.offset, into=target.offset)


def emit_concat(site: Site) -> tuple[Kernel, ...]:
    """Each source is a copy into its part of the result."""
    out = site.out
    return tuple(copied(x.c, x.shape, x.layout.strides, out.layout.strides, (x, out), into=start) for x, start in zip(site.ins, starts(site), strict=True))


def emit_pad(site: Site) -> tuple[Kernel, ...]:
    (x,), out = site.ins, site.out
    value, start = filling(site)
    return each(site, product(out.shape), [f"y[t] = {value};"]), copied(x.c, x.shape, x.layout.strides, out.layout.strides, (x, out), into=start)


def emit_iota(site: Site) -> Kernel:
    out = site.out
    axis = site.node.attrs.axis % len(out.shape)  # type: ignore[attr-defined]
    return each(site, product(out.shape), [*unravel(out.shape, "t"), f"y[t] = {store(out.dtype, f'({ctext.value(out.dtype)})i{axis}')};"])


def emit_size(site: Site) -> Kernel:
    d = site.node.attrs.dim  # type: ignore[attr-defined]
    return each(site, 1, [f"y[0] = {ctext.dim(d)};"], symbols=(d,))


def in_place(site: Site) -> bool:
    """Whether a kv_append's result is the cache's own memory."""
    return site.ins[0].pointer == site.out.pointer


def emit_append(site: Site) -> tuple[Kernel, ...]:
    """New rows into the cache at a position, what they overwrite into `undo`, and that they did into `note`; before that the rest, unless it is there."""
    (cache, new, pos), out = site.ins, site.out
    axis = site.node.attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    walks = nest(new.shape, (new.layout.strides, out.layout.strides))
    room = ctext.dim(cache.shape[axis])
    n = product(new.shape)
    place = f"at*{ctext.dim(out.layout.strides[axis])} + {offset(walks.strides[1])}"
    lines = ["const i64 t = rlx_thread(), at = (i64)x1[0];", f"if (t < {ctext.dim(n)}) {{",
             f"  if (at < 0 || at > {room} - {ctext.dim(new.shape[axis])}) {{ rlx_fault(fault, node, 0, at, {room}); return; }}",
             "  if (t == 0) *note = (u64)at + 1;", *indent(unravel(walks.sizes, "t")),
             f"  {out.c} *const q = y + {place};", "  undo[t] = *q;", f"  *q = x0[{offset(walks.strides[0])}];", "}"]
    given: tuple[Argument, ...] = (new.ref, pos.ref, out.ref, Room.UNDO, Room.NOTE, *FAULT.values())
    sizes = frozenset(ctext.names(*new.shape, cache.shape[axis], *new.layout.strides, *out.layout.strides))
    append = Kernel((*params((new, pos), out), f"{out.c} *undo", "u64 *note", *FAULT), "\n".join(lines), given, (quotient(n, THREADS),), sizes=sizes)
    return (append,) if in_place(site) else (copied(cache.c, cache.shape, cache.layout.strides, out.layout.strides, (cache, out)), append)


def emit_restore(site: Site) -> Kernel:
    """What `undo` holds back into the cache, after a run that broke off; if it broke off before the append, nothing.  The position's memory
    may be another value's by then."""
    (cache, new, _), out = site.ins, site.out
    axis = site.node.attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    walks = nest(new.shape, (row_major(new.shape).strides, out.layout.strides))
    n = product(new.shape)
    lines = ["const i64 t = rlx_thread(), at = (i64)*note - 1;", f"if (t < {ctext.dim(n)} && at >= 0) {{", *indent(unravel(walks.sizes, "t")),
             f"  y[at*{ctext.dim(out.layout.strides[axis])} + {offset(walks.strides[1])}] = undo[t];", "}"]
    sizes = frozenset(ctext.names(*new.shape, *out.layout.strides))
    return Kernel((*params((), out), f"const {out.c} *undo", "const u64 *note"), "\n".join(lines), (out.ref, Room.UNDO, Room.NOTE), (quotient(n, THREADS),), sizes=sizes)
