"""How many values become one: the arithmetic of each reduction, and loops with several accumulators."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import indent
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType
from rlxpy.ir.op import Op

STREAMS = 4        # stretches of a loop that go side by side, each with its accumulator: an addition need not wait for the one before
STREAM_LINES = 12  # of a loop's body: a longer one has enough to do while an addition is under way
STEP: Mapping[str, str] = {  # operators of an OpenMP reduction clause, and what each does to an accumulator; others are functions of two
    "+": "{a} += {v};", "*": "{a} *= {v};", "|": "{a} |= {v};", "&": "{a} &= {v};",
    "max": "{a} = {v} > {a} ? {v} : {a};", "min": "{a} = {v} < {a} ? {v} : {a};"}
OPERATOR = {Op.SUM: "+", Op.MEAN: "+", Op.PROD: "*", Op.MAX: "max", Op.MIN: "min", Op.ANY: "|", Op.ALL: "&"}


@dataclass(frozen=True)
class Fold:
    """One accumulator: its name and C type, the operator, what it starts with, and the value that each element adds."""

    name: str
    c: str
    operator: str
    start: str
    value: str

    def step(self, into: str, value: str) -> str:
        return STEP.get(self.operator, f"{{a}} = {self.operator}({{a}}, {{v}});").format(a=into, v=value)


def least(d: DType) -> str:
    return ctext.literal(-float("inf") if d.is_float else d.range[0], d)


def greatest(d: DType) -> str:
    return ctext.literal(float("inf") if d.is_float else d.range[1], d)


def folds_of(op: Op, d: DType, value: str) -> tuple[Fold, ...]:
    """What a reduction over values of type `d` accumulates: `acc`, and for extremes of floats `nan`, since comparisons lose a NaN."""
    start = {Op.PROD: "1", Op.ALL: "1"}.get(op) or (least(d) if op is Op.MAX else greatest(d) if op is Op.MIN else "0")
    operator = f"rlx_mul_{d.text}" if op is Op.PROD and d.is_complex else OPERATOR[op]
    acc = Fold("acc", ctext.value(d.accumulator), operator, start, value)
    return (acc, Fold("nan", "int", "|", "0", f"({value} != {value})")) if op in (Op.MAX, Op.MIN) and d.is_float else (acc,)


def result_of(op: Op, d: DType, count: str) -> str:
    """The reduction's value, from its accumulators and how many were folded."""
    c = ctext.value(d.accumulator)
    if op in (Op.MAX, Op.MIN) and d.is_float:
        return f"(nan ? ({c})__builtin_nan(\"\") : acc)"
    return f"acc/({c})({count})" if op is Op.MEAN else "acc"


def declared(folds: Sequence[Fold]) -> list[str]:
    return [f"{f.c} {f.name} = {f.start};" for f in folds]


def folded(count: str, lines: Sequence[str], folds: Sequence[Fold]) -> list[str]:
    """C that adds what `lines` compute at index j < count to accumulators that are declared."""
    if len(lines) > STREAM_LINES:
        return _loop("0", count, lines, folds)
    names = {f.name: [f.name, *(f"{f.name}{k}" for k in range(1, STREAMS))] for f in folds}
    inside = [line for k in range(STREAMS) for line in (
        f"{{ const i64 j = k + {k}*stream;", *indent([*lines, *(f.step(names[f.name][k], f.value) for f in folds)]), "}")]
    return ["{", f"  const i64 stream = ({count})/{STREAMS}/RLX_VL*RLX_VL;", *indent([f"{f.c} {', '.join(f'{n} = {f.start}' for n in names[f.name][1:])};" for f in folds]),
            f"  {_pragma([(f.operator, ', '.join(names[f.name])) for f in folds])}", "  for (i64 k = 0; k < stream; k++) {", *indent(inside, 2), "  }",
            *indent(_loop(f"{STREAMS}*stream", count, lines, folds)),
            *indent([f.step(f.name, n) for f in folds for n in names[f.name][1:]]), "}"]


def _loop(first: str, last: str, lines: Sequence[str], folds: Sequence[Fold]) -> list[str]:
    steps = [f.step(f.name, f.value) for f in folds]
    return [_pragma([(f.operator, f.name) for f in folds]), f"for (i64 j = {first}; j < {last}; j++) {{", *indent([*lines, *steps]), "}"]


def _pragma(clauses: Sequence[tuple[str, str]]) -> str:
    known = [f"reduction({operator}: {names})" for operator, names in clauses if operator in STEP]
    return f"RLX_PRAGMA(omp simd {' '.join(known)})" if len(known) == len(clauses) else ""
