"""Kernels of the model's blocks: softmax and norms by rows, attention, rope."""
from __future__ import annotations

from math import log

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, indent, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned
from rlxpy.backends.templates import render
from rlxpy.ir.dims import Dim, product, upper
from rlxpy.ir.dtypes import DType


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


def emit_rope(site: Site) -> Kernel:
    """Pairs of channels turned by an angle kept in f64; a row of the result is one position of one head."""
    x, pos = site.ins[:2]
    out, a, d = site.out, site.node.attrs, site.out.dtype
    n = a.dims or x.shape[-1]  # type: ignore[attr-defined]
    assert isinstance(n, int)
    lead, width = x.shape[:-1], x.shape[-1]
    rows = product(lead)
    place = aligned(pos.shape, pos.layout, lead)
    turn = f"(f64){scalar.load(site.ins[2].dtype, 'x2[c]')}" if len(site.ins) > 2 else f"rlx_exp((f64)c*{ctext.literal(-log(a.theta) * 2 / n, DType.F64)})"  # type: ignore[attr-defined]
    first, second = ("c", f"c + {n // 2}") if a.style == "half" else ("2*c", "2*c + 1")  # type: ignore[attr-defined]
    step = ctext.dim(x.layout.strides[-1])
    value = ctext.value(d)
    lines = [f"const i64 r1 = rlx_least(t1*32, {ctext.dim(rows)});", "for (i64 r = t0*32; r < r1; r++) {", *indent(unravel(lead)),
             f"  const {x.c} *p = x0 + {_sum(x.layout.strides[:-1], tuple(f'i{k}' for k in range(len(lead))))}; {out.c} *q = y + r*{ctext.dim(width)};",
             f"  const f64 at = (f64)x1[{_sum(place, tuple(f'i{k}' for k in range(len(lead))))}];",
             f"  for (i64 c = 0; c < {n // 2}; c++) {{",
             f"    const f64 angle = at*{turn};", f"    const {value} co = ({value})rlx_cos(angle), si = ({value})rlx_sin(angle);",
             f"    const {value} u = {scalar.load(d, f'p[({first})*{step}]')}, w = {scalar.load(d, f'p[({second})*{step}]')};",
             f"    q[{first}] = {scalar.store(d, 'u*co - w*si')}; q[{second}] = {scalar.store(d, 'w*co + u*si')};", "  }",
             f"  for (i64 c = {n}; c < {ctext.dim(width)}; c++) q[c] = p[c*{step}];", "}"]
    return Kernel(params(site.ins, out), "\n".join(lines), arguments(site.ins, out), f"rlx_ceil_quotient({ctext.dim(rows)}, 32)", symbols_used(site))
