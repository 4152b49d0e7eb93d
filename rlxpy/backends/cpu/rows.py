"""Kernels of softmax and norms by rows, with the elementwise chain that feeds them and the one that follows."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, indent, params, unravel
from rlxpy.backends.cpu.folds import Fold, declared, folded, least
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned, index, nest, offset
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product, upper
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op

ROWS = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.LAYER_NORM, Op.RMS_NORM})
LONGEST_KEPT = 1 << 12  # elements of a row that a thread keeps on its stack between the passes over it


def emit(site: Site) -> Kernel:
    """Passes over a row in the first cache, however the operands lie in memory.

    The first pass makes the row, and writes what others read of its making; later ones read it again: from the source, or where the
    first one put it."""
    body, out = body_of(site), site.out
    node = next(n for n in body if n.op in ROWS)
    shape, acc = node.type.shape, node.type.dtype.accumulator
    given = {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}
    walks = [aligned(o.shape, o.layout, shape) for o in site.ins]
    loads = [f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, f'p{k}[{index(w[-1])}]')};" for k, (o, w) in enumerate(zip(site.ins, walks, strict=True))]

    source, others = node.inputs[0], body.outputs[1:]
    v, *more = (scalar.chain(body, given, r) for r in (source, *others))
    row = "q0" if out.dtype is acc else "row" if upper(shape[-1]) <= LONGEST_KEPT else ""
    back = f"q{others.index(source) + 1}" if source in others and v.dtype is acc else row if v.lines else ""
    take = f"const {ctext.value(acc)} v = {v.result};"
    stores = [f"q{k}[j] = {scalar.store(c.dtype, c.result)};" for k, c in enumerate(more, 1)]
    first = [*_once(loads, v.lines, *(c.lines for c in more)), take, *stores, *([f"{row}[j] = v;"] if back == row != "" else [])]
    again = [f"const {ctext.value(acc)} v = {back}[j];"] if back else [*_once(loads, v.lines), take]
    factors = [scalar.chain(body, given, r) for r in node.inputs[1:]]
    ending = scalar.chain(body, {**given, node.refs[0]: "result"})

    def total(lines: Sequence[str], name: str, operator: str, value: str, start: str = "0") -> str:
        fold = Fold(name, ctext.value(acc), operator, start, value)
        return _block([*declared([fold]), *folded("n", lines, [fold])])

    def finish(value: str, lines: Sequence[str]) -> str:
        result = f"const {ctext.value(acc)} result = {scalar.rounded(node.type.dtype, value)};"
        inner = [*_once(loads, lines, *(c.lines for c in factors), [result], ending.lines), f"q0[j] = {scalar.store(out.dtype, ending.result)};"]
        return _block(["RLX_SIMD", "for (i64 j = 0; j < n; j++) {", *indent(inner), "}"])

    lead = shape[:-1]
    over = nest(lead, (*(w[:-1] for w in walks), row_major(lead).strides))
    places = [*unravel(over.sizes), *(f"const {o.c} *p{k} = x{k} + {offset(s)};" for k, (o, s) in enumerate(zip(site.ins, over.strides, strict=False))),
              *(f"{o.c} *q{k} = {'y' if len(site.outs) == 1 else f'y{k}'} + r*n;" for k, o in enumerate(site.outs))]
    per_task, rows = max(1, TASK_NUMEL // max(1, upper(shape[-1]))), ctext.dim(product(lead))
    text = render("cpu/rows.c.j2", kind=node.op.text, width=ctext.dim(shape[-1]), rows=rows, per_task=per_task, places=places, block=_block, T=ctext.value(acc),
                  stack=upper(shape[-1]) if row == "row" and (back == row or node.op is Op.SOFTMAX) else 0, first=first, again=again, row=row, total=total, finish=finish,
                  least=least(acc), eps=ctext.literal(getattr(node.attrs, "eps", 0.0), acc), scaled="".join(f"{sign}{c.result}" for sign, c in zip("*+", factors, strict=False)))
    return Kernel(params(site.ins, *site.outs), text, arguments(site.ins, *site.outs), f"rlx_ceil_quotient({rows}, {per_task})", symbols_used(site))


def _once(*parts: Iterable[str]) -> list[str]:
    """Lines in order, each the first time: chains over the same values share what they compute."""
    return list(dict.fromkeys(line for part in parts for line in part))


def _block(lines: Sequence[str]) -> str:
    return "\n".join(indent(list(lines)))
