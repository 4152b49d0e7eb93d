"""What is known of each op on each kind of device, from runs that were recorded: compiled, executed in simulation, ran on a card.

    python -m rlxpy.tools.evidence compiled gfx942 sm_90     # the kernels compile for these
    python -m rlxpy.tools.evidence simulated isa:gfx942      # as machine code they give the reference's results on a simulated device; host:gfx942 as host code
    python -m rlxpy.tools.evidence ran cuda --ops add,matmul # on the card that is here"""
from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlxpy import __version__
from rlxpy.backends.cache import kept
from rlxpy.backends.gpu.backend import Gpu, emitter_of, target_of
from rlxpy.backends.gpu.sim import current, simulated
from rlxpy.backends.gpu.vendor import CUDA, ROCM, VENDORS
from rlxpy.backends.templates import HERE, folder
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile, lower, served
from rlxpy.errors import CompileError, DeviceError, InputError, LegaliseError, nearest
from rlxpy.extend.plan import Plan
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph
from rlxpy.tools.behaviour import Broken, same
from rlxpy.tools.cases import OPS, samples
from rlxpy.tools.samples import Sample, as_tuple

Level = Literal["compiled", "executed in simulation", "ran on H200"]
LEVELS: tuple[Level, ...] = ("compiled", "executed in simulation", "ran on H200")
Form = Literal["machine code", "host code"]  # what was compiled or ran: the target's own code, or the same source as code for the processor
FILE = Path(__file__).with_name("evidence.json")
OPTIONS = CompileOptions(optimise=False, debug=False)  # the op as it is written, and nothing fused
Verdicts = dict[str, dict[str, list[str]]]  # by op: what came of it (a kernel's name, "host", "refused", "broken"), and for which types


@dataclass(frozen=True)
class Record:
    """One recorded run.  target: the code's, as gfx942 or sm_90; by: what compiled and ran it; reasons: of what is broken, by op and type; sources: a
    digest of each op's text, so that a claim about an older text can be told."""

    level: Level
    form: Form
    device: str
    target: str
    by: str
    version: str
    date: str
    ops: Mapping[str, Mapping[str, Sequence[str]]]
    reasons: Mapping[str, str]
    sources: Mapping[str, str]

    @property
    def key(self) -> tuple[str, ...]:
        return self.level, self.form, self.target, self.by.partition(":")[0]


@dataclass(frozen=True)
class Claim:
    """An op in some types has a kernel of which this much is known.  stale: the kernel's text has changed since."""

    op: str
    dtypes: tuple[str, ...]
    kernel: str
    level: Level
    form: Form
    target: str
    by: str
    stale: bool

    @property
    def words(self) -> str:
        """How far it has been; of code that ran in simulation also which."""
        return f"{self.level}{f', as {self.form}' if self.level == 'executed in simulation' else ''}{', of an earlier text' if self.stale else ''}"


def records(file: Path = FILE) -> tuple[Record, ...]:
    """What the file holds; nothing where there is none."""
    return tuple(Record(**r) for r in json.loads(file.read_text())) if file.exists() else ()


def claims(found: Iterable[Record] | None = None, ops: Sequence[str] = (), say: Callable[[str], None] = lambda line: None) -> tuple[Claim, ...]:
    """Of kernels alone: what the host tier runs is no claim about a device.  say: told of each target whose kernels are written for the first time."""
    made = []
    for r in records() if found is None else found:
        now = {op: digest(backend_of(r.device, r.target), op) for op in r.ops if op in ops} if ops else digests(r.device, r.target, say)
        for op, by_kernel in r.ops.items():
            if ops and op not in ops:
                continue
            stale = now[op] != r.sources.get(op)
            made += [Claim(op, tuple(dtypes), kernel, r.level, r.form, r.target, r.by, stale) for kernel, dtypes in by_kernel.items() if "/" in kernel]
    return tuple(made)


# ---- what is run ---------------------------------------------------------------------------------------------------
def by_dtype(op: str) -> dict[DType, list[Sample]]:
    """Every case of an op.  Raises InputError for an unknown one."""
    known = {o.text: o for o in OPS}
    if op not in known:
        raise InputError(f"no op {op!r}", why=f"there are {len(known)}, see `rlx ops`", fix=f"near it: {nearest(op, list(known))}")
    found: dict[DType, list[Sample]] = {}
    for s in samples(known[op]):
        found.setdefault(s.dtype, []).append(s)
    return found


def graph_of(cases: Sequence[Sample]) -> Graph:
    b = Builder("evidence")
    return b.finish(*[v for k, s in enumerate(cases) for v in s.call(b, s.inputs(b, f"s{k}_"))])


def backend_of(device: str, arch: str) -> Gpu:
    """For a chip that need not be here."""
    return Gpu(VENDORS[device], target_of(device, arch))


def plan_of(backend: Gpu, graph: Graph) -> Plan:
    """Raises LegaliseError."""
    return lower(graph, served(backend.spec, OPTIONS), OPTIONS)[0]


def kernel_of(plan: Plan, op: str) -> str:
    """What runs an op's node: a row's name, or the executor's way with a loop; the host tier, if any of its nodes is there; what it was lowered to, where it is gone."""
    steps = [s for s in plan.steps if s.node.op.text == op] or list(plan.steps)
    if any(s.frame is None and emitter_of(s) is None for s in steps):
        return "host"
    names = dict.fromkeys(f"{s.choice.name}/{s.node.op.text}" if s.frame else s.choice.name for s in steps)
    return "+".join(names) or "no/launch"


def text_of(backend: Gpu, op: str) -> str:
    """The kernels of every type that has one, without what all modules share."""
    functions: dict[str, None] = {}
    for cases in by_dtype(op).values():
        try:
            functions |= dict.fromkeys(backend.program(plan_of(backend, graph_of(cases))).functions.values())
        except LegaliseError:
            continue
    return "\n".join(functions)


def digest(backend: Gpu, op: str) -> str:
    return blake2b(text_of(backend, op).encode(), digest_size=6).hexdigest()


def digests(device: str, target: str, say: Callable[[str], None] = lambda line: None) -> dict[str, str]:
    """Of every op.  They take seconds, and change with our sources alone, so they are kept by those."""
    def write(path: Path) -> None:
        say(f"writing every op's kernels for {target}, to tell which have changed")
        backend = backend_of(device, target)
        path.write_text(json.dumps({op.text: digest(backend, op.text) for op in OPS}))

    return dict(json.loads(kept("evidence", f"{_sources()}-{target}", ".json", write).read_text()))


@cache
def _sources() -> str:
    """A digest of every file that says what is emitted."""
    files = sorted((*HERE.rglob("*.py"), *(f for f in folder().rglob("*") if f.is_file())))
    return blake2b(b"".join(f.read_bytes() for f in files), digest_size=16).hexdigest()


# ---- recording -----------------------------------------------------------------------------------------------------
Trial = Callable[[Sequence[Sample]], None]


def recorded(level: Level, backend: Gpu, by: str, trial: Trial, ops: Sequence[str], say: Callable[[str], None] = lambda line: None, form: Form = "machine code") -> Record:
    """Each op in each type: what serves it, when `trial` has nothing against it."""
    verdicts: Verdicts = {}
    reasons: dict[str, str] = {}
    for op in ops:
        served_by = {d: _served(backend, op, cases) for d, cases in by_dtype(op).items()}
        mine = {d: cases for d, cases in by_dtype(op).items() if "/" in served_by[d]}
        if mine and _fails(trial, [s for cases in mine.values() for s in cases]):  # one by one, so that the guilty are named
            for d, cases in mine.items():
                if why := _fails(trial, cases):
                    say(f"{op} {d}: {why}")
                    served_by[d], reasons[f"{op} {d}"] = "broken", why.partition("\n")[0]
        found: dict[str, list[str]] = {}
        for d, kernel in served_by.items():
            found.setdefault(kernel, []).append(d.text)
        verdicts[op] = found
        say(f"{op}: {'; '.join(f'{k} {len(v)}' for k, v in found.items())}")
    assert backend.target is not None, "evidence is about a chip"
    return Record(level, form, backend.vendor.device, backend.target.arch, by, __version__, datetime.now(UTC).date().isoformat(), verdicts, reasons,
                  {op: digest(backend, op) for op in ops})


def _served(backend: Gpu, op: str, cases: Sequence[Sample]) -> str:
    try:
        return kernel_of(plan_of(backend, graph_of(cases)), op)
    except LegaliseError:
        return "refused"


def _fails(trial: Trial, cases: Sequence[Sample]) -> str:
    try:
        trial(cases)
    except (Broken, CompileError, DeviceError) as e:
        return str(e)
    return ""


def compiled_for(arch: str, ops: Sequence[str], say: Callable[[str], None]) -> Record:
    """Code is written and compiled for a chip; nothing runs."""
    from rlxpy.backends.gpu.cuda import compile_offline
    from rlxpy.backends.gpu.offline import compile_hip, device_compiler

    device = CUDA.device if arch.startswith("sm_") else ROCM.device
    backend = backend_of(device, arch)
    make = compile_offline if device == CUDA.device else compile_hip
    found = device_compiler()

    def trial(cases: Sequence[Sample]) -> None:
        program = backend.program(plan_of(backend, graph_of(cases)))
        if program.functions:
            make(program.source, arch)

    by = f"NVRTC: {_nvrtc()}" if device == CUDA.device else f"clang: {found if isinstance(found, str) else found.version.splitlines()[0]}"
    every = [s for op in ops for some in by_dtype(op).values() if "/" in _served(backend, op, some) for s in some]
    why = _fails(trial, every)  # as one module, which takes a tenth of the time
    say(f"{arch}: all at once: {why or 'compiled'}")
    return recorded("compiled", backend, by, trial if why else lambda cases: None, ops, say)


def _nvrtc() -> str:
    from importlib import import_module

    _, major, minor = import_module("cuda.bindings.nvrtc").nvrtcVersion()
    return f"{major}.{minor}"


def ran_on(device: str, ops: Sequence[str], say: Callable[[str], None]) -> Record:
    """On the device that is here, a card or a simulated one."""
    api, simulation = Gpu(VENDORS[device]).api(), current() if device == ROCM.device else None
    if not simulation and "H200" not in api.name:
        raise InputError(f"no level of evidence for {api.name}", why=f"there are {', '.join(LEVELS)}", fix="add one for this card to rlxpy/tools/evidence.py")
    return recorded("executed in simulation" if simulation else "ran on H200", Gpu(VENDORS[device], api.target), f"{api.name}: {api.compiler.splitlines()[0]}",
                    partial(trial_on, device), ops, say, "host code" if simulation and simulation.by == "host" else "machine code")


def simulated_on(setting: str, ops: Sequence[str], say: Callable[[str], None]) -> Record:
    """setting: isa:ARCH or host:ARCH, as RLX_ROCM_SIM has it."""
    by, _, arch = setting.partition(":")
    with simulated(arch, by=by):  # type: ignore[arg-type]  # which refuses others
        return ran_on(ROCM.device, ops, say)


def trial_on(device: str, cases: Sequence[Sample]) -> None:
    """Twice, against the rows' own meaning, all as one graph.  Raises Broken, and what compiling and running raise."""
    run = compile(graph_of(cases), device=device, options=OPTIONS)
    for seed in range(2):
        given = [s.arrays(seed) for s in cases]
        got = iter(as_tuple(run(*(a for arrays in given for a in arrays))))
        for s, arrays in zip(cases, given, strict=True):
            for want in s.reference(arrays):
                same(next(got), np.asarray(want), str(s))


def merged(old: Sequence[Record], new: Record) -> tuple[Record, ...]:
    """A record replaces the one of the same level, target and maker, op by op."""
    before = next((r for r in old if r.key == new.key), None)
    if before is not None:
        kept = {of: why for of, why in before.reasons.items() if of.partition(" ")[0] not in new.ops}
        new = replace(new, ops={**before.ops, **new.ops}, reasons={**kept, **new.reasons}, sources={**before.sources, **new.sources})
    return tuple(sorted((*(r for r in old if r.key != new.key), new), key=lambda r: (LEVELS.index(r.level), r.form, r.target, r.by)))


def written(found: Sequence[Record]) -> str:
    """A line for each op, so that changes can be read."""
    return "[\n" + ",\n".join(_record_text(r) for r in found) + "\n]\n"


def _record_text(r: Record) -> str:
    head = {k: getattr(r, k) for k in ("level", "form", "device", "target", "by", "version", "date")}
    ops = ",\n".join(f"  {json.dumps(op)}: {json.dumps(r.ops[op])}" for op in sorted(r.ops))
    return f"{json.dumps(head)[:-1]}, \"ops\": {{\n{ops}}},\n \"reasons\": {json.dumps(dict(sorted(r.reasons.items())))},\n \"sources\": {json.dumps(dict(sorted(r.sources.items())))}}}"


WAYS: Mapping[str, Callable[[str, Sequence[str], Callable[[str], None]], Record]] = {"compiled": compiled_for, "simulated": simulated_on, "ran": ran_on}


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(prog="python -m rlxpy.tools.evidence", description=__doc__)
    parser.add_argument("how", choices=tuple(WAYS))
    parser.add_argument("where", nargs="+", help="chips to compile for, simulated devices, or devices that are here")
    parser.add_argument("--ops", default=",".join(op.text for op in OPS))
    parser.add_argument("--file", type=Path, default=FILE)
    args = parser.parse_args(argv)

    def say(line: Any) -> None:
        print(line, file=sys.stderr, flush=True)

    for place in args.where:
        new = WAYS[args.how](place, args.ops.split(","), say)
        args.file.write_text(written(merged(records(args.file), new)))


if __name__ == "__main__":
    main(sys.argv[1:])
