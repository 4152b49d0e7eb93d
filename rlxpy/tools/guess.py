"""Calls of an extension's op that its author gives none for: shapes, parameters and types that its own rules accept."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any

from rlxpy.errors import InputError, RlxError
from rlxpy.ir.attrs import field_types, make
from rlxpy.ir.dtypes import DType
from rlxpy.ir.extension import OpExtension
from rlxpy.ir.hooks import SAMPLES, bounds
from rlxpy.ir.types import TensorType
from rlxpy.tools.cases import broadcasts
from rlxpy.tools.samples import Case, Sample, accepted_by, name_of

Shapes = tuple[tuple[int, ...], ...]
EVERYDAY = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U8, DType.BOOL, DType.C64)
TRIED: dict[int, tuple[Shapes, ...]] = {  # beside broadcasts: more ranks, even axes, products, norms; odd sizes and batches, and nothing
    1: (((3, 8),), ((4, 4),), ((2, 3, 5, 7),), ((6, 0),)),
    2: (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 7)), ((0, 4), (4, 3)), ((2, 3, 4), (4,)), ((3, 5), (3,))),
    3: (((3, 4), (4, 5), (5,)), ((2, 3, 4), (4,), (4,)), ((2, 3, 5), (2, 7, 5), (2, 7, 3)), ((0, 4), (4, 3), (3,))),
}
OTHER: dict[str, tuple[Any, ...]] = {"float": (0.5,), "bool": (True, False)}  # tried beside the default: types do not depend on these


def guessed(op: OpExtension) -> tuple[Case, ...]:
    """Every call tried that the op's rules accept in some type.  Raises InputError where none is, with the last refusal."""
    cases, refusal = list[Case](), ""
    for case in _tried(op):
        try:
            next(accepted_samples(op, (case,)))
            cases.append(case)
        except StopIteration:
            refusal = _refusal(Sample(op, case, DType.F32))
    if not cases:
        raise InputError(f"no inputs are known that {op.name} takes", why=f"of those tried the last is refused: {refusal}", fix="give some: cases=[Case(shapes=((3, 5),), attrs={..})]")
    return tuple(cases)


def samples_of(op: OpExtension, case: Case) -> list[Sample]:
    """A case in every type that the op's rules accept.  Raises InputError where that is none."""
    found = list(accepted_samples(op, (case,)))
    if not found:
        accepted = [d for d in EVERYDAY if all(d in accepted_by(op, i) for i in range(len(case.shapes)))]
        raise InputError(f"{op.name} takes no such call", why=_refusal(Sample(op, case, accepted[0] if accepted else DType.F32)), fix="give shapes and parameters that its rules accept")
    return found


def accepted_samples(op: OpExtension, cases: Sequence[Case], dtypes: Sequence[DType] = EVERYDAY) -> Iterator[Sample]:
    """The cases in every type that the op's rules accept."""
    for case in cases:
        for dt in dtypes:
            s = Sample(op, case, dt)
            if not any(dt in accepted_by(op, i) for i in range(len(case.shapes))) and case.shapes:
                continue
            if not _refusal(s):
                yield s


def _refusal(s: Sample) -> str:
    """Why the rules do not take a call; "" when they do."""
    try:
        types = [TensorType(shape, dt) for shape, dt in s.input_types()]
        s.op.row.infer(name_of(s.op), types, make(s.op.row.attrs, name_of(s.op), s.case.attrs))
    except RlxError as e:
        return f"{s.case}: {e.what}" + (f", {e.why}" if e.why else "")
    return ""


def _tried(op: OpExtension) -> Iterator[Case]:
    params = _parameters(op)
    least, most = bounds(op.row.arity)
    for count in (range(least, most + 1) if most is not None else (max(least, 1), max(least, 1) + 2)):
        shapes = [*TRIED.get(count, ()), *(broadcasts(count) if count else ((),))]
        for k, some in enumerate(shapes):
            yield Case(some, params[k % len(params)])


def _parameters(op: OpExtension) -> list[dict[str, Any]]:
    """Values for those without a default; then each with another value, one at a time."""
    kinds, defaults = field_types(op.row.attrs), {f.name: f.default for f in fields(op.row.attrs)}
    given = {k: SAMPLES[kind] for k, kind in kinds.items() if defaults[k] is MISSING and kind in SAMPLES}
    unknown = [f"{k}: {kinds[k]}" for k in kinds if defaults[k] is MISSING and k not in given]
    if unknown:
        raise InputError(f"{op.name} has parameters without a default", why=f"for {', '.join(unknown)} no value is known", fix="give calls: cases=[Case(shapes=((3, 5),), attrs={..})]")
    return [given, *({**given, k: v} for k, kind in kinds.items() for v in OTHER.get(kind, ()) if v != given.get(k, defaults[k]))]
