"""Kernels of softmax and norms by rows, with the elementwise chain that feeds them and the one that follows."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, indent, params, unravel
from rlxpy.backends.cpu.folds import Fold, declared, folded, least
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned, index, nest, offset
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op

ROWS = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.LAYER_NORM, Op.RMS_NORM})
LONGEST_KEPT = 1 << 12  # elements of a row that a thread keeps on its stack between the passes over it


@dataclass(frozen=True)
class Passes:
    """Passes over the `width` elements of each of `rows` rows, as lines about element j.

    places: where row r begins in each operand (p0, ..) and result (q0, ..).  first: make the row's element v, and write what others read
    of its making; again: read v again, from the source or where the first pass put it, which is `back`.  kept: where exponentials are
    kept, "" for nowhere.  loads, factors, after: what the last pass reads, scales with, and does with the `result`."""

    node: Node
    acc: DType
    out: DType
    width: Dim
    rows: Dim
    places: tuple[str, ...]
    first: tuple[str, ...]
    again: tuple[str, ...]
    back: str
    kept: str
    loads: tuple[str, ...]
    factors: tuple[scalar.Chain, ...]
    after: scalar.Chain

    def ending(self, value: str, lines: Sequence[str]) -> list[str]:
        """Lines of the pass that writes, from the C text of the row op's value."""
        result = f"const {ctext.value(self.acc)} result = {scalar.rounded(self.node.type.dtype, value)};"
        return [*_once(self.loads, lines, *(c.lines for c in self.factors), [result], self.after.lines), f"q0[j] = {scalar.store(self.out, self.after.result)};"]

    def facts(self) -> dict[str, str]:
        """What templates/cpu/passes.j2 says of the row op."""
        return {"kind": self.node.op.text, "T": ctext.value(self.acc), "least": least(self.acc), "eps": ctext.literal(getattr(self.node.attrs, "eps", 0.0), self.acc),
                "row": self.kept, "scaled": "".join(f"{sign}{c.result}" for sign, c in zip("*+", self.factors, strict=False))}


def passes_of(site: Site, room: bool) -> Passes:
    """room: whether there is an array `row` of the row's length, where the result itself is no place to keep its elements."""
    body, out = body_of(site), site.out
    node = next(n for n in body if n.op in ROWS)
    shape, acc = node.type.shape, node.type.dtype.accumulator
    given = {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}
    walks = [aligned(o.shape, o.layout, shape) for o in site.ins]
    loads = [f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, f'p{k}[{index(w[-1])}]')};" for k, (o, w) in enumerate(zip(site.ins, walks, strict=True))]

    source, others = node.inputs[0], body.outputs[1:]
    v, *more = (scalar.chain(body, given, r) for r in (source, *others))
    kept = "q0" if out.dtype is acc else "row" if room else ""
    back = f"q{others.index(source) + 1}" if source in others and v.dtype is acc else kept if v.lines else ""
    take = f"const {ctext.value(acc)} v = {v.result};"
    stores = [f"q{k}[j] = {scalar.store(c.dtype, c.result)};" for k, c in enumerate(more, 1)]
    first = [*_once(loads, v.lines, *(c.lines for c in more)), take, *stores, *([f"{kept}[j] = v;"] if back == kept != "" else [])]
    again = [f"const {ctext.value(acc)} v = {back}[j];"] if back else [*_once(loads, v.lines), take]

    lead = shape[:-1]
    over = nest(lead, (*(w[:-1] for w in walks), row_major(lead).strides))
    places = [*unravel(over.sizes), *(f"const {o.c} *p{k} = x{k} + {offset(s)};" for k, (o, s) in enumerate(zip(site.ins, over.strides, strict=False))),
              *(f"{o.c} *q{k} = {'y' if len(site.outs) == 1 else f'y{k}'} + r*n;" for k, o in enumerate(site.outs))]
    return Passes(node, acc, out.dtype, shape[-1], product(lead), tuple(places), tuple(first), tuple(again), back, kept, tuple(loads),
                  tuple(scalar.chain(body, given, r) for r in node.inputs[1:]), scalar.chain(body, {**given, node.refs[0]: "result"}))


def emit(site: Site) -> Kernel:
    """Passes over a row in the first cache, however the operands lie in memory."""
    longest = upper(site.out.shape[-1])
    made = passes_of(site, room=longest <= LONGEST_KEPT)
    acc = ctext.value(made.acc)

    def total(lines: Sequence[str], name: str, operator: str, value: str, start: str = "0") -> str:
        fold = Fold(name, acc, operator, start, value)
        return _block([*declared([fold]), *folded("n", lines, [fold])])

    def finish(value: str, lines: Sequence[str]) -> str:
        return _block(["RLX_SIMD", "for (i64 j = 0; j < n; j++) {", *indent(made.ending(value, lines)), "}"])

    per_task, rows = max(1, TASK_NUMEL // max(1, longest)), ctext.dim(made.rows)
    text = render("cpu/rows.c.j2", width=ctext.dim(made.width), rows=rows, per_task=per_task, places=made.places, block=_block,
                  stack=max(longest, 1) if made.kept == "row" and (made.back == "row" or made.node.op is Op.SOFTMAX) else 0,
                  first=list(made.first), again=list(made.again), total=total, finish=finish, **made.facts())
    return Kernel(params(site.ins, *site.outs), text, arguments(site.ins, *site.outs), f"rlx_ceil_quotient({rows}, {per_task})", symbols_used(site))


def _once(*parts: Iterable[str]) -> list[str]:
    """Lines in order, each the first time: chains over the same values share what they compute."""
    return list(dict.fromkeys(line for part in parts for line in part))


def _block(lines: Sequence[str]) -> str:
    return "\n".join(indent(list(lines)))
