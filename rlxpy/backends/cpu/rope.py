"""The kernel of rotary positions: angles once a position, in f64, for all heads."""
from __future__ import annotations

from collections.abc import Sequence

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.attention import rope_frequencies
from rlxpy.ir.attrs import Rope
from rlxpy.ir.dims import Shape, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.layout import row_major


@dataclass(frozen=True)
class Rows:
    """Where turned rows go.  begin: C lines that declare q, the row with indices i0, i1, ..; stored: what its elements are, `dtype` or a narrower type;
    end: lines after it is there."""

    begin: list[str]
    stored: DType
    end: list[str]


def emit(site: Site) -> Kernel:
    x, a, out = site.ins[0], site.node.attrs, site.out
    assert isinstance(a, Rope)
    at = ctext.walk(row_major(x.shape).strides[:-1], tuple(f"i{k}" for k in range(len(x.shape) - 1)))
    text, tasks = turn(a, site.ins, Rows([f"{out.c} *q = y + {at};"], out.dtype, []))
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), tasks, symbols_used(site))


def turn(a: Rope, ins: Sequence[Operand], rows: Rows) -> tuple[str, str]:
    """C that turns x0 by the positions x1, with the frequencies x2 if there are any, and C for how many tasks it has."""
    x, position = ins[:2]
    d, lead, width = x.dtype, x.shape[:-1], x.shape[-1]
    n = a.dims or width
    assert isinstance(n, int), "the shape rule has checked it"
    walk = aligned(position.shape, position.layout, lead)
    placed, free = ([k for k, s in enumerate(walk) if (s != 0) is differs] for differs in (True, False))
    positions, others = (product(lead[k] for k in axes) for axes in (placed, free))
    per_task = max(1, TASK_NUMEL // max(1, upper(others * width)))
    index, step = tuple(f"i{k}" for k in range(len(lead))), ctext.dim(x.layout.strides[-1])
    first, second = ("c", f"c + {n // 2}") if a.style == "half" else ("2*c", "2*c + 1")
    text = render(
        "cpu/rope.c.j2", half=n // 2, turns=[] if len(ins) > 2 else [ctext.literal(f, DType.F64) for f in rope_frequencies(n // 2, a.theta)],
        turn=frequency(ins[2]) if len(ins) > 2 else "turns[c]" if n else "0.0", per_task=per_task, positions=ctext.dim(positions), others=ctext.dim(others),
        placed=_indices("r", placed, lead), free=_indices("other", free, lead), position_at=ctext.walk(walk, index), T=ctext.value(d), c=x.c, begin=rows.begin, end=rows.end,
        x_at=ctext.walk(x.layout.strides[:-1], index), first=first, second=second, width=ctext.dim(width), step=step,
        first_value=scalar.load(d, f"p[({first})*{step}]"), second_value=scalar.load(d, f"p[({second})*{step}]"),
        first_turned=scalar.store(rows.stored, "u*co[c] - w*si[c]"), second_turned=scalar.store(rows.stored, "w*co[c] + u*si[c]"),
        rest=f"p[c*{step}]" if rows.stored is d else scalar.store(rows.stored, f"p[c*{step}]"))
    return text, f"rlx_ceil_quotient({ctext.dim(positions)}, {per_task})"


def frequency(freq: Operand) -> str:
    stride = freq.layout.strides[0]
    return f"(f64){scalar.load(freq.dtype, f'x2[c*{ctext.dim(stride)}]')}"


def _indices(row: str, axes: list[int], lead: Shape) -> list[str]:
    """i0, i1, .. of some axes from a row number of theirs."""
    lines = [f"i64 {row}_rest = {row};"] if axes else []
    return [*lines, *(f"const i64 i{k} = {row}_rest % {ctext.dim(lead[k])}; {row}_rest /= {ctext.dim(lead[k])};" for k in reversed(axes))]
