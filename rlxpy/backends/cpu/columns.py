"""Kernels of softmax and log_softmax along any axis but the last: columns side by side, in vectors."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, rows, scalar
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.lines import lines_of
from rlxpy.backends.templates import render
from rlxpy.ir.op import Op

LANES = 64  # columns of one block: their greatest values and sums stay in the first cache


def emit_softmax(site: Site) -> Kernel:
    (x,), out = site.ins, site.out
    if site.node.attrs.axis == len(x.shape) - 1:  # type: ignore[attr-defined]
        return rows.emit(site)
    lines, acc = lines_of(site.node.attrs.axis, x, out), out.dtype.accumulator  # type: ignore[attr-defined]
    element = f"p[k*{ctext.dim(lines.steps[0])} + l*{ctext.dim(lines.lanes[0])}]"
    text = render("cpu/softmax.c.j2", n=ctext.dim(lines.length), head=lines.head((x, out), ("x0", "y"), LANES), lanes=LANES, c=x.c, T=ctext.value(acc),
                  x_lane=ctext.dim(lines.lanes[0]), y_lane=ctext.dim(lines.lanes[1]), y_step=ctext.dim(lines.steps[1]), x=scalar.load(x.dtype, element),
                  least=ctext.literal(-float("inf"), acc), log=site.node.op is Op.LOG_SOFTMAX, store=lambda t: scalar.store(out.dtype, t))
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), lines.count(LANES), symbols_used(site))
