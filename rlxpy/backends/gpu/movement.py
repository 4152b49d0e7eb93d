"""GPU kernels that move elements: copies of strided values, rows appended to a cache and put back."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.cpu.loops import nest, offset
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Room, Site, params, quotient
from rlxpy.ir.dims import Shape, product
from rlxpy.ir.layout import Layout, row_major

FAULT = "u64 *fault, i64 node"


def copied(c: str, shape: Shape, source: Layout, target: Layout, call: tuple[Operand, Operand] | None = None) -> Kernel:
    """An element a thread, whatever the type: `c` is its storage.  Layouts may be symbolic; offsets are the caller's."""
    walks = nest(shape, (source.strides, target.strides))
    n = product(shape)
    lines = [*unravel(walks.sizes, "t"), f"y[{offset(walks.strides[1])}] = x0[{offset(walks.strides[0])}];"]
    text = "\n".join(["const i64 t = rlx_thread();", f"if (t < {ctext.dim(n)}) {{", *indent(lines), "}"])
    sizes = frozenset(ctext.names(*shape, *source.strides, *target.strides))
    return Kernel((f"const {c} *x0", f"{c} *y"), text, tuple(o.ref for o in call) if call else (), (quotient(n, THREADS),), sizes=sizes)


def emit_copy(site: Site) -> Kernel:
    """A movement op that no view says: its input's layout with the op applied is not known, so it is a copy in order."""
    (x,), out = site.ins, site.out
    return copied(x.c, out.shape, x.layout, out.layout, (x, out))


def in_place(site: Site) -> bool:
    """Whether a kv_append's result is the cache's own memory."""
    return site.ins[0].pointer == site.out.pointer


def emit_append(site: Site) -> tuple[Kernel, ...]:
    """New rows into the cache at a position, what they overwrite into `undo`; before that the rest, unless it is there."""
    (cache, new, pos), out = site.ins, site.out
    axis = site.node.attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    walks = nest(new.shape, (new.layout.strides, out.layout.strides))
    room = ctext.dim(cache.shape[axis])
    n = product(new.shape)
    place = f"at*{ctext.dim(out.layout.strides[axis])} + {offset(walks.strides[1])}"
    lines = ["const i64 t = rlx_thread(), at = (i64)x1[0];", f"if (t < {ctext.dim(n)}) {{",
             f"  if (at < 0 || at > {room} - {ctext.dim(new.shape[axis])}) {{ rlx_fault(fault, node, at, {room}); return; }}", *indent(unravel(walks.sizes, "t")),
             f"  {out.c} *const q = y + {place};", "  undo[t] = *q;", f"  *q = x0[{offset(walks.strides[0])}];", "}"]
    given = (new.ref, pos.ref, out.ref, Room.UNDO, Room.FAULT, Room.NODE)
    sizes = frozenset(ctext.names(*new.shape, cache.shape[axis], *new.layout.strides, *out.layout.strides))
    append = Kernel((*params((new, pos), out), f"{out.c} *undo", FAULT), "\n".join(lines), given, (quotient(n, THREADS),), sizes=sizes)
    return (append,) if in_place(site) else (copied(cache.c, cache.shape, cache.layout, out.layout, (cache, out)), append)


def emit_restore(site: Site) -> Kernel:
    """What `undo` holds back into the cache, after a run that broke off."""
    (cache, new, pos), out = site.ins, site.out
    axis = site.node.attrs.axis % len(cache.shape)  # type: ignore[attr-defined]
    walks = nest(new.shape, (row_major(new.shape).strides, out.layout.strides))
    n = product(new.shape)
    lines = ["const i64 t = rlx_thread(), at = (i64)x0[0];", f"if (t < {ctext.dim(n)} && at >= 0 && at <= {ctext.dim(cache.shape[axis])} - {ctext.dim(new.shape[axis])}) {{",
             *indent(unravel(walks.sizes, "t")), f"  y[at*{ctext.dim(out.layout.strides[axis])} + {offset(walks.strides[1])}] = undo[t];", "}"]
    sizes = frozenset(ctext.names(*new.shape, cache.shape[axis], *out.layout.strides))
    return Kernel((*params((pos,), out), f"const {out.c} *undo"), "\n".join(lines), (pos.ref, out.ref, Room.UNDO), (quotient(n, THREADS),), sizes=sizes)
