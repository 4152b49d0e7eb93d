"""Kernels of softmax and norms, by rows."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL
from rlxpy.backends.templates import render
from rlxpy.ir.dims import Dim, product, upper


def emit_rows(site: Site) -> Kernel:
    """softmax, log_softmax, layer_norm, rms_norm over the last axis, however the operands lie in memory."""
    x, out, d = site.ins[0], site.out, site.out.dtype
    acc = d.accumulator
    width, rows = x.shape[-1], product(x.shape[:-1])
    per_task = max(1, TASK_NUMEL // max(1, upper(width)))
    text = render("cpu/rows.c.j2", kind=site.node.op.text, width=ctext.dim(width), rows=ctext.dim(rows), per_task=per_task, c=x.c, T=ctext.value(acc),
                  least=ctext.literal(-float("inf"), acc), narrow=d is not acc, x=_element(x, "p"), params=[_element(o, f"x{k}") for k, o in enumerate(site.ins[1:], 1)],
                  store=lambda t: scalar.store(d, t), unravel=unravel(x.shape[:-1]), at=_at(x, tuple(f"i{k}" for k in range(len(x.shape) - 1))),
                  eps=ctext.literal(getattr(site.node.attrs, "eps", 0.0), acc))
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), f"rlx_ceil_quotient({ctext.dim(rows)}, {per_task})", symbols_used(site))


def _element(o: Operand, row: str) -> str:
    """Element j of a row, as a value."""
    return scalar.load(o.dtype, f"{row}[{_step(o, 'j')}]")


def _step(o: Operand, index: str) -> str:
    """An index along the last axis."""
    stride = o.layout.strides[-1]
    return index if stride == 1 else f"{index}*{ctext.dim(stride)}"


def _at(o: Operand, index: tuple[str, ...]) -> str:
    return _sum(o.layout.strides, index)


def _sum(strides: tuple[Dim, ...], index: tuple[str, ...]) -> str:
    return " + ".join(f"{i}*{ctext.dim(s)}" for i, s in zip(index, strides, strict=False) if s != 0) or "0"
