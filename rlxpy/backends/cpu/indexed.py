"""Kernels that read and write by index: gather, take_along, scatter_add."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, indent, params, unravel
from rlxpy.backends.cpu.kernel import NODE, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, nest, tasks
from rlxpy.backends.cpu.movement import run
from rlxpy.ir.dims import Dim, Shape, product, upper
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major

BLOCK = 256  # elements of a row that one task of scatter_add owns


def checked(at: Operand, text: str, n: Dim, otherwise: str, fail: str = "rlx_fail(size, node") -> list[str]:
    """`index`, counted from the end where negative.  One outside the axis is noted by the call that `fail` begins, and `otherwise` follows."""
    least = "0" if at.dtype.kind == "u" else f"-({ctext.dim(n)})"
    return [f"i64 index = (i64){text};", f"if (index < {least} || index >= {ctext.dim(n)}) {{ {fail}, index, {ctext.dim(n)}); {otherwise} }}",
            f"if (index < 0) index += {ctext.dim(n)};"]


def emit_gather(site: Site) -> Kernel:
    """Rows by index: a row is everything behind the axis."""
    (x, at), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    lead, tail = x.shape[:axis], x.shape[axis + 1:]
    count, width = product(at.shape), product(tail)
    inner = nest(tail, (x.layout.strides[axis + 1:], row_major(tail).strides))
    per_task = max(1, TASK_NUMEL // max(1, upper(width)))
    rows = product(lead) * count
    lines = [f"const i64 count = {ctext.dim(count)}, r1 = rlx_least(t1*{per_task}, {ctext.dim(rows)});", f"for (i64 r = t0*{per_task}; r < r1; r++) {{",
             "  i64 o = r / count, a = r % count;", *indent(renamed(unravel(at.shape, "a"), "a_")), *indent(checked(at, f"x1[{_at(at.layout.strides, 'a_')}]", x.shape[axis], "continue;")),
             *indent(renamed(unravel(lead, "o"), "o_", "more")),
             f"  const {x.c} *p = x0 + index*{ctext.dim(x.layout.strides[axis])} + {_at(x.layout.strides[:axis], 'o_')};",
             f"  {out.c} *q = y + r*{ctext.dim(width)};",
             f"  for (i64 s = 0; s < {ctext.dim(product(inner.outer))}; s++) {{", *indent(unravel(inner.outer, "s"), 2),
             f"    const {x.c} *pp = p + {inner.offset(0)}; {out.c} *qq = q + {inner.offset(1)};", *indent(run("qq", "pp", ctext.dim(inner.inner), inner, out), 2), "  }", "}"]
    return _indexed(site, "\n".join(lines), f"rlx_ceil_quotient({ctext.dim(rows)}, {per_task})")


def emit_take_along(site: Site) -> Kernel:
    """One loop nest over the result; the index stands for the place on its axis."""
    (x, at), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    here = tuple(0 if a == axis else s for a, s in enumerate(x.layout.strides))
    walks = nest(out.shape, (here, at.layout.strides, out.layout.strides))
    deal = tasks(walks)
    element = [*checked(at, f"a[{walks.step(1)}]", x.shape[axis], "continue;"), f"q[{walks.step(2)}] = p[{walks.step(0)} + index*{ctext.dim(x.layout.strides[axis])}];"]
    start, stop = (f"t*{deal.block}", f"rlx_least(t*{deal.block} + {deal.block}, {ctext.dim(walks.inner)})") if deal.block else ("0", ctext.dim(walks.inner))
    rows = ctext.dim(product(walks.outer))
    outer = ["for (i64 t = t0; t < t1; t++) {"] if deal.block else [f"const i64 r1 = rlx_least(t1*{deal.rows}, {rows});", f"for (i64 r = t0*{deal.rows}; r < r1; r++) {{"]
    lines = [*outer, *indent(unravel(walks.outer)), f"  const {x.c} *p = x0 + {walks.offset(0)};", f"  const {at.c} *a = x1 + {walks.offset(1)};",
             f"  {out.c} *q = y + {walks.offset(2)};", f"  for (i64 j = {start}; j < {stop}; j++) {{", *indent(element, 2), "  }", "}"]
    return _indexed(site, "\n".join(lines), deal.count)


def emit_scatter_add(site: Site) -> Kernel:
    """A task owns a block of every row along the axis, and adds the updates in their order: any number of threads gives the same sums.

    Narrow floats are summed in f32 in the scratch, and rounded once."""
    (x, at, update), out = site.ins, site.out
    axis = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    lead, tail, end = x.shape[:axis], x.shape[axis + 1:], axis + len(at.shape)
    n, wide, T = x.shape[axis], site.scratch, ctext.value(x.dtype.accumulator)
    walks = nest(tail, (x.layout.strides[axis + 1:], update.layout.strides[end:], out.layout.strides[axis + 1:]))
    step, sum_step = ctext.dim(x.layout.strides[axis]), ctext.dim(out.layout.strides[axis])
    blocks = f"rlx_ceil_quotient({ctext.dim(walks.inner)}, {BLOCK})"
    total = f"{ctext.dim(product(lead))}*{ctext.dim(product(walks.outer))}*{blocks}"
    loop, sums = "for (i64 j = j0; j < j1; j++)", "work" if wide else "y"
    lines = [
        "for (i64 t = t0; t < t1; t++) {",
        f"  const i64 blocks = {blocks}, r = t / blocks % {ctext.dim(product(walks.outer))}, o = t / blocks / {ctext.dim(product(walks.outer))};",
        f"  const i64 j0 = t % blocks*{BLOCK}, j1 = rlx_least(j0 + {BLOCK}, {ctext.dim(walks.inner)});",
        *indent(unravel(walks.outer)), *indent(renamed(unravel(lead, "o"), "o_", "more")), "  (void)r; (void)o;",
        f"  const {x.c} *p = x0 + {_at(x.layout.strides[:axis], 'o_')} + {walks.offset(0)};",
        f"  const {update.c} *u = x2 + {_at(update.layout.strides[:axis], 'o_')} + {walks.offset(1)};",
        f"  {T} *s = {sums} + {_at(out.layout.strides[:axis], 'o_')} + {walks.offset(2)};",
        f"  for (i64 i = 0; i < {ctext.dim(n)}; i++) {{", "    RLX_SIMD",
        f"    {loop} s[i*{sum_step} + {walks.step(2)}] = {scalar.load(x.dtype, f'p[i*{step} + {walks.step(0)}]')};", "  }",
        f"  for (i64 a = 0; a < {ctext.dim(product(at.shape))}; a++) {{", *indent(renamed(unravel(at.shape, "a"), "a_", "further"), 2),
        *indent(checked(at, f"x1[{_at(at.layout.strides, 'a_')}]", n, "continue;"), 2),
        f"    const {update.c} *v = u + {_at(update.layout.strides[axis:end], 'a_')};", "    RLX_SIMD",
        f"    {loop} s[index*{sum_step} + {walks.step(2)}] += {scalar.load(update.dtype, f'v[{walks.step(1)}]')};", "  }"]
    if wide:
        lines += [f"  {out.c} *q = y + (s - work);", f"  for (i64 i = 0; i < {ctext.dim(n)}; i++) {{", "    RLX_SIMD",
                  f"    {loop} q[i*{sum_step} + {walks.step(2)}] = {scalar.store(out.dtype, f's[i*{sum_step} + {walks.step(2)}]')};", "  }"]
    work = ((f"{T} *restrict work",), (f"({T} *)({wide})",)) if wide else ((), ())
    return Kernel((*params(site.ins, out), *work[0], NODE), "\n".join([*lines, "}"]), (*arguments(site.ins, out), *work[1], str(site.node.id)), total, symbols_used(site))


def scatter_scratch(graph: Graph, node: Node) -> int:
    """The sums of narrow floats."""
    t = node.type
    return 0 if t.dtype.accumulator is t.dtype else upper(product(t.shape)) * t.dtype.accumulator.nbytes


def _indexed(site: Site, body: str, count: str) -> Kernel:
    return Kernel((*params(site.ins, site.out), NODE), body, (*arguments(site.ins, site.out), str(site.node.id)), count, symbols_used(site))


def _at(strides: Shape, index: str) -> str:
    return " + ".join(f"{index}{k}*{ctext.dim(s)}" for k, s in enumerate(strides) if s != 0) or "0"


def renamed(lines: list[str], index: str, rest: str = "left") -> list[str]:
    """unravel's lines with other names, for a second walk in the same scope."""
    return [line.replace("i64 i", f"i64 {index}").replace("rest", rest) for line in lines]
