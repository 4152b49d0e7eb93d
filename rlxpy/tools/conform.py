"""Does a backend keep its promises?  The laws that every backend is held to, and what came of each."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np

from rlxpy.backends.host import LIBRARY
from rlxpy.compiler.devices import backend
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import BackendMissing, InputError, LegaliseError, nearest
from rlxpy.extend.backend import Backend
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import Op
from rlxpy.tools.behaviour import BEHAVIOUR, Broken, same
from rlxpy.tools.cases import OPS, samples
from rlxpy.tools.samples import Sample, as_tuple, layouts

EVERYDAY = frozenset({DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL, DType.C64})
SHOWN = 3  # faults of one subject
Verdict = Literal["kept", "refused", "broken"]


@dataclass(frozen=True)
class Finding:
    """refused: the backend said, with its reasons, that it does not run this; which is no fault."""

    law: str
    subject: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Conformance:
    device: str
    findings: tuple[Finding, ...]

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict == verdict)

    @property
    def kept(self) -> bool:
        """Whether no law is broken."""
        return not self.of("broken")

    @property
    def summary(self) -> str:
        return f"{self.device}: {len(self.of('kept'))} laws kept, {len(self.of('refused'))} refused, {len(self.of('broken'))} broken"


class Refused(Exception):
    """Part of a subject is not run, the rest is right."""


def conform(device: str, ops: Sequence[str] | None = None, progress: Callable[[Finding], None] = lambda finding: None) -> Conformance:
    """Hold a registered device to every law; of the ops, to those named alone.

    Raises InputError for an unknown device or op, BackendMissing where the device cannot run here."""
    found = backend(device)
    if why := found.missing():
        raise BackendMissing(f"device {device} cannot run here", why=why, fix="run it where it can")
    findings = list[Finding]()
    for law, subject, trial in _trials(device, found, _ops(ops)):
        verdict: Verdict = "kept"
        why = ""
        try:
            trial()
        except (LegaliseError, Refused) as e:
            verdict, why = "refused", str(e)
        except Broken as e:
            verdict, why = "broken", str(e)
        except Exception as e:  # whatever a backend of somebody else raises
            verdict, why = "broken", f"{type(e).__name__}: {e}"
        findings.append(Finding(law, subject, verdict, why))
        progress(findings[-1])
    return Conformance(device, tuple(findings))


def _ops(names: Sequence[str] | None) -> tuple[Op, ...]:
    known = {op.text: op for op in OPS}
    if names is None:
        return OPS
    for n in names:
        if n not in known:
            raise InputError(f"no op {n!r}", why=f"there are {len(known)}, see `rlx ops`", fix=f"near it: {nearest(n, list(known))}")
    return tuple(known[n] for n in names)


def _trials(device: str, found: Backend, ops: Sequence[Op]) -> Iterator[tuple[str, str, Callable[[], None]]]:
    yield "contract", "its name and its parts", partial(_contract, device, found)
    for law, subjects in BEHAVIOUR.items():
        for subject, trial in subjects.items():
            yield law, subject, partial(trial, device)
    for op in ops:
        yield "ops", op.text, partial(_op, device, op)


def _contract(device: str, found: Backend) -> None:
    if not isinstance(found, Backend):
        raise Broken(f"{type(found).__name__} lacks one of spec, missing, load")
    if found.spec.device.name != device:
        raise Broken(f"it is registered as {device}, and its spec says {found.spec.device}")
    made = {kind for op, kind in LIBRARY.by_op if op is Op.FUSED}
    if unknown := sorted(found.spec.fuses - made):
        raise Broken(f"it fuses {', '.join(unknown)}, which no pass makes; there are {', '.join(sorted(made))}")
    if found.spec != found.spec:
        raise Broken("two looks at its spec differ, so no plan can be kept")


# ---- every op against its row's own meaning ------------------------------------------------------------------------
def _op(device: str, op: Op) -> None:
    """All of its cases and types in one graph; where that fails, one by one, so that the guilty are named."""
    every = list(samples(op, EVERYDAY)) or list(samples(op))
    try:
        _agree(device, every)
        return
    except Exception as e:
        if len(every) == 1:
            raise
        together = e
    refused, broken = list[str](), list[str]()
    for s in every:
        try:
            _agree(device, [s])
        except LegaliseError as e:
            refused.append(f"{s}: {e.why}")
        except Broken as e:
            broken.append(str(e))
        except Exception as e:
            broken.append(f"{s}: {type(e).__name__}: {e}")
    if broken:
        raise Broken(_some(broken))
    if refused:
        raise Refused(f"{len(refused)} of {len(every)}: {_some(refused)}")
    raise Broken(f"each of its {len(every)} cases is right by itself, together: {together}")


def _some(faults: Sequence[str]) -> str:
    return "\n".join((*faults[:SHOWN], *([f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else [])))


def _agree(device: str, every: Sequence[Sample]) -> None:
    """Twice, on inputs that lie in memory in two ways."""
    run = compile(_graph(every), device=device, options=CompileOptions(debug=True), wait=True)
    for seed, layout in enumerate(("as made", "reversed")):
        given = [s.arrays(seed) for s in every]
        got = iter(as_tuple(run(*(dict(layouts(a))[layout] for arrays in given for a in arrays))))
        for s, arrays in zip(every, given, strict=True):
            for want in s.reference(arrays):
                same(next(got), np.asarray(want), f"{s}, inputs {layout}")


def _graph(every: Sequence[Sample]) -> Graph:
    b = Builder(every[0].op.text if isinstance(every[0].op, Op) else "samples")
    return b.finish(*[v for k, s in enumerate(every) for v in s.call(b, s.inputs(b, f"s{k}_"))])
