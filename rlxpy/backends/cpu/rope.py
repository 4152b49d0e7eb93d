"""The kernel of rotary positions: angles once a position, in f64, for all heads."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned
from rlxpy.backends.templates import render
from rlxpy.ir.attention import rope_frequencies
from rlxpy.ir.attrs import Rope
from rlxpy.ir.dims import Shape, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.layout import row_major


def emit(site: Site) -> Kernel:
    x, position = site.ins[:2]
    a, d, lead, width = site.node.attrs, site.out.dtype, x.shape[:-1], x.shape[-1]
    assert isinstance(a, Rope)
    n = a.dims or width
    assert isinstance(n, int), "the shape rule has checked it"
    walk = aligned(position.shape, position.layout, lead)
    placed, free = ([k for k, s in enumerate(walk) if (s != 0) is differs] for differs in (True, False))
    positions, others = (product(lead[k] for k in axes) for axes in (placed, free))
    per_task = max(1, TASK_NUMEL // max(1, upper(others * width)))
    index, step = tuple(f"i{k}" for k in range(len(lead))), ctext.dim(x.layout.strides[-1])
    first, second = ("c", f"c + {n // 2}") if a.style == "half" else ("2*c", "2*c + 1")
    text = render(
        "cpu/rope.c.j2", half=n // 2, turns=[] if len(site.ins) > 2 else [ctext.literal(f, DType.F64) for f in rope_frequencies(n // 2, a.theta)],
        turn=frequency(site.ins[2]) if len(site.ins) > 2 else "turns[c]" if n else "0.0", per_task=per_task, positions=ctext.dim(positions), others=ctext.dim(others),
        placed=_indices("r", placed, lead), free=_indices("other", free, lead), position_at=ctext.walk(walk, index), T=ctext.value(d), c=x.c, out_c=site.out.c,
        x_at=ctext.walk(x.layout.strides[:-1], index), y_at=ctext.walk(row_major(x.shape).strides[:-1], index), first=first, second=second, width=ctext.dim(width), step=step,
        first_value=scalar.load(d, f"p[({first})*{step}]"), second_value=scalar.load(d, f"p[({second})*{step}]"),
        first_turned=scalar.store(d, "u*co[c] - w*si[c]"), second_turned=scalar.store(d, "w*co[c] + u*si[c]"))
    return Kernel(params(site.ins, site.out), text, arguments(site.ins, site.out), f"rlx_ceil_quotient({ctext.dim(positions)}, {per_task})", symbols_used(site))


def frequency(freq: Operand) -> str:
    stride = freq.layout.strides[0]
    return f"(f64){scalar.load(freq.dtype, f'x2[c*{ctext.dim(stride)}]')}"


def _indices(row: str, axes: list[int], lead: Shape) -> list[str]:
    """i0, i1, .. of some axes from a row number of theirs."""
    lines = [f"i64 {row}_rest = {row};"] if axes else []
    return [*lines, *(f"const i64 i{k} = {row}_rest % {ctext.dim(lead[k])}; {row}_rest /= {ctext.dim(lead[k])};" for k in reversed(axes))]
