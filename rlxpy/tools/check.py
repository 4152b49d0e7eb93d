"""Everything that can be said of one op by running it: types, text, gradients, and every kernel on every backend against its meaning."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.devices import backend, backend_report
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile, served
from rlxpy.errors import InputError
from rlxpy.extend.backend import Backend, BackendSpec, Device, ExecutableGraph, nothing
from rlxpy.extend.devices import backend_registry, register_backend
from rlxpy.extend.kernels import Choice, KernelLibrary, KernelRow, Refusal
from rlxpy.extend.libraries import BUILTIN
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder
from rlxpy.ir.dtypes import Array
from rlxpy.ir.extension import OpExtension, extension, is_op_registered, register_op, registry
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.ir.row import Why
from rlxpy.ir.text import parse, show
from rlxpy.ir.verify import verify
from rlxpy.tools import derivatives
from rlxpy.tools.batch import Call, calls, difference, differences, together
from rlxpy.tools.cases import OPS, cases as known_cases, samples as known_samples
from rlxpy.tools.dossier import MOST_TOLD, Check, Dossier
from rlxpy.tools.guess import EVERYDAY, guessed, samples_of
from rlxpy.tools.op_table import op_facts
from rlxpy.tools.samples import AnyOp, Case, Sample, as_tuple, name_of

ONLY = "check"  # the library of a row that is tried by itself
FREE = CompileOptions(debug=True, numerics="highest", kernels=(), force_row=())
ALONE = replace(FREE, optimise=False, kernels=(BUILTIN,))  # without the libraries of others, which would come first
RTOL, ATOL = 1e-6, 2e-8  # of finite differences in f64
BATCH = 3
LAYS: tuple[Callable[[Array], Array], ...] = (np.array, lambda a: np.array(a, order="F"), lambda a: np.flip(np.flip(a).copy()))


def check_op(op: str | AnyOp, *, cases: Sequence[Case] = (), devices: Sequence[str] | None = None, oracle: Callable[..., Any] | None = None) -> Dossier:
    """Check an op, built-in or registered, and tell what ran, what was simulated, what did not run and why.

    cases: calls to check it on, instead of those that are known (built-in) or tried (extensions).  devices: default: every known one.
    oracle: (*arrays, **attrs) -> array or tuple: what the op means, written independently; called with f64 for floats.
    Raises InputError for an unknown op or device, or where no inputs are known that it takes."""
    with registry():
        if isinstance(op, OpExtension) and not (is_op_registered(op.name) and extension(op.name) is op):
            register_op(op)
        found = _found(op)
        every = _samples(found, tuple(cases))
        checks = [*_laws(every, oracle), *_gradients(found, every), *_batched(found, every), *_lowering(found, every)]
        for status in backend_report() if devices is None else ():
            checks += _on(status.device, every) if not status.missing else [Check("kernels", status.device, skipped=status.missing)]
        for name in devices or ():
            missing = backend(name).missing()
            checks += _on(name, every) if not missing else [Check("kernels", name, skipped=missing)]
        return Dossier(op_facts(name_of(found)), _meaning(found, oracle), tuple(map(str, dict.fromkeys(str(s.case) for s in every))),
                       tuple(dict.fromkeys(s.dtype.text for s in every)), _reach(every), tuple(checks))


def _found(op: str | AnyOp) -> AnyOp:
    if not isinstance(op, str):
        return op
    return extension(op) if is_op_registered(op) else Op[op_facts(op).name.upper()]


def _samples(op: AnyOp, cases: tuple[Case, ...]) -> tuple[Sample, ...]:
    if isinstance(op, OpExtension):
        return tuple(s for case in cases or guessed(op) for s in samples_of(op, case))
    if op not in OPS:
        raise InputError(f"{op.text} is not checked by itself", why="a leaf holds a value, and computes none", fix="name another op: `rlx ops`")
    return tuple(s for s in known_samples(op, frozenset(EVERYDAY), cases or known_cases(op)))


def _meaning(op: AnyOp, oracle: Any) -> str:
    own = "its `ref`, in NumPy" if callable(op.row.ref) else "its lowering, op by op in NumPy"
    return own + (", itself held against an oracle" if oracle else "")


def _reach(every: Sequence[Sample]) -> tuple[str, ...]:
    """What the calls have and lack of what finds faults."""
    shapes = [shape for s in every for shape in s.case.shapes]
    return ("a batch" if any(s and s[0] > 1 for s in shapes) else "no batch", "odd sizes" if any(d % 2 and d > 1 for s in shapes for d in s) else "no odd sizes",
            "zero sizes" if any(0 in s for s in shapes) else "no zero sizes", "several types" if len({s.dtype for s in every}) > 1 else "one type")


# ---- laws of the row -----------------------------------------------------------------------------------------------
def _tried(law: str, on: str, items: Sequence[Any], f: Callable[[Any], str | None]) -> Check:
    """`f` says what is wrong with an item, or raises."""
    failures = []
    for item in items:
        try:
            said = f(item)
        except Exception as e:  # whatever an extension's code raises
            said = f"{item}: {type(e).__name__}: {_brief(e)}"
        if said:
            failures.append(said)
    return Check(law, on, len(items), tuple(failures)) if items else Check(law, on, skipped="no call of it fits")


def _brief(e: Exception) -> str:
    return "; ".join(filter(None, (getattr(e, "what", "") or str(e).partition("\n")[0], getattr(e, "why", ""))))


def _laws(every: Sequence[Sample], oracle: Any) -> Iterator[Check]:
    yield _tried("types", "its meaning", every, _type_fault)
    yield _tried("text", "parse(show(g))", every, lambda s: None if parse(show(s.graph())) == verify(s.graph()) else f"{s}: it reads back as another graph")
    if oracle is not None:
        yield _tried("meaning", "the oracle", [s for s in every if s.dtype.bits >= 32 or not s.dtype.is_float], lambda s: _against(s, oracle))


def _type_fault(s: Sample) -> str | None:
    got = [(a.dtype, a.shape) for a in map(np.asarray, s.reference(s.arrays()))]
    want = [(t.dtype.numpy, t.shape) for t in s.graph().output_types]
    return None if got == want else f"{s}: it gives {', '.join(f'{d}{list(n)}' for d, n in got)}, its rules promise {', '.join(f'{d}{list(n)}' for d, n in want)}"


def _against(s: Sample, oracle: Callable[..., Any]) -> str | None:
    arrays = s.arrays()
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    with np.errstate(all="ignore"):
        wanted = as_tuple(oracle(*wide, **s.params()))
    for k, (g, w) in enumerate(zip(s.reference(arrays), wanted, strict=True)):
        if said := difference(np.asarray(g), np.asarray(w).astype(g.dtype)):
            return f"{s}: output {k} {said}"
    return None


def _cell(op: AnyOp, cell: str, otherwise: str) -> str:
    """Why a cell holds nothing to run; "" when it does."""
    value = getattr(op.row, cell)
    return "" if callable(value) else value.reason if isinstance(value, Why) else otherwise


def _gradients(op: AnyOp, every: Sequence[Sample]) -> Iterator[Check]:
    deep = [s for s in every if s.dtype in derivatives.DEEP]
    for cell, fault in (("vjp", _vjp_fault), ("jvp", _jvp_fault)):
        why = _cell(op, cell, "it has no rule" + (", so its lowering is differentiated" if callable(op.row.lower) else ""))
        moving = [] if why else list(derivatives.calls(iter(deep)))
        if why or not moving:
            yield Check(cell, "finite differences in f64", skipped=why or "no float moves in any call")
        else:
            yield _tried(cell, "finite differences in f64", moving, fault)


def _vjp_fault(call: derivatives.Call) -> str | None:
    return _apart(call, ((f"d input {i}", got, call.differences(i)) for i, got in zip(call.moving, call.vjp(), strict=True)))


def _jvp_fault(call: derivatives.Call) -> str | None:
    ends = (call.moved(by, call.moving) for by in (derivatives.STEP, -derivatives.STEP))
    return _apart(call, ((f"d output {k}", got, (high - low) / (2 * derivatives.STEP)) for k, got, high, low in zip(call.smooth, call.jvp(call.moving), *ends, strict=True)))


def _apart(call: derivatives.Call, rows: Iterator[tuple[str, Array, Array]]) -> str | None:
    for name, got, want in rows:
        bad = np.isfinite(want) & ~(np.abs(got - want) <= ATOL + RTOL * np.abs(want))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return f"{call.s}: {name} at {list(at)} is {got[at]:.6g}, differences give {want[at]:.6g}"
    return None


def _batched(op: AnyOp, every: Sequence[Sample]) -> Iterator[Check]:
    why = _cell(op, "vmap", "it has no rule")
    if why:
        yield Check("vmap", "a loop", skipped=why)
        return
    first = [s for s in every if s.dtype is every[0].dtype and s.case.packed is None and s.case.shapes]
    yield _tried("vmap", "a loop", [(s, flags) for s in first for flags in product((True, False), repeat=len(s.case.shapes)) if any(flags)][:40], lambda item: _vmap_fault(*item))


def _vmap_fault(s: Sample, batched: tuple[bool, ...]) -> str | None:
    single, many = s.arrays(), [s.arrays(seed) for seed in range(1, BATCH + 1)]
    given = [np.stack([m[i] for m in many]) if b else single[i] for i, b in enumerate(batched)]
    b = Builder("vmap")
    xs = [b.input(f"x{i}", a.shape, dt) for i, (a, (_, dt)) in enumerate(zip(given, s.input_types(), strict=True))]
    got = derivatives.run(b, as_tuple(s.op.row.vmap(batched, *xs, **s.params())), given)  # type: ignore[operator, misc]
    rows = [s.reference(tuple(m[i] if flag else single[i] for i, flag in enumerate(batched))) for m in many]
    for k, y in enumerate(got):
        if said := difference(y, np.stack([r[k] for r in rows])):
            return f"{s} batched {batched}: output {k} {said}"
    return None


def _lowering(op: AnyOp, every: Sequence[Sample]) -> Iterator[Check]:
    why = _cell(op, "lower", "it has none")
    yield Check("lowering", "its meaning", skipped=why) if why else _tried("lowering", "its meaning", every, _lowering_fault)


def _lowering_fault(s: Sample) -> str | None:
    graph = s.lowered()
    if graph.output_types != s.graph().output_types:
        return f"{s}: it gives {', '.join(map(str, graph.output_types))}, the rules promise {', '.join(map(str, s.graph().output_types))}"
    got = as_tuple(compile(graph, device="reference", options=CompileOptions(optimise=False, debug=True)).run(*s.arrays()))
    return Call(s).wrong(got, s.arrays()) or None


# ---- kernels -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Narrowed:
    """A backend that has fewer kernels than it had."""

    whole: Backend
    spec: BackendSpec

    def missing(self) -> str | None:
        return self.whole.missing()

    def load(self, plan: Any, params: Any, *, debug: bool = False) -> ExecutableGraph:
        return self.whole.load(plan, params, debug=debug)


def _on(device: str, every: Sequence[Sample]) -> Iterator[Check]:
    """Every kernel row by itself, then what compile() chooses, among neighbours that it may fuse with."""
    whole, everyday = backend(device), _nodes(every)
    simulated = bool(whole.spec.facts.get("simulated"))
    for library in served(whole.spec, FREE).kernels.libraries:
        for row in library.by_op.get((everyday[0][2].op, everyday[0][2].kind), ()):
            law, alone = f"kernel {library.name}/{row.name}", _only(whole.spec, library, row)
            tried, (taken, refused) = everyday, _taken(alone, everyday)
            if row.opd_shapes and not taken:
                tried = _nodes(_samples(every[0].op, tuple(map(Case, row.opd_shapes))))
                taken, refused = _taken(alone, tried)
            yield _run(law, device, _Narrowed(whole, alone), calls(taken), simulated, ALONE) if taken else Check(law, device, skipped=f"it takes none of {len(tried)} calls: {refused}")
    yield _run("as compiled", device, whole, calls(every), simulated, FREE)


_Tried = Sequence[tuple[Sample, Graph, Node]]  # a call, its graph, and the node of its op


def _nodes(every: Sequence[Sample]) -> _Tried:
    return [(s, g, g.nodes[len(s.input_types())]) for s in every for g in (s.graph(),)]


def _taken(spec: BackendSpec, tried: _Tried) -> tuple[list[Sample], str]:
    """The calls that a spec takes, and why it does not take one."""
    verdicts = [(s, served(spec, ALONE).verdict(graph, node)) for s, graph, node in tried]
    return [s for s, v in verdicts if isinstance(v, Choice)], next((v.reasons[0] for _, v in verdicts if isinstance(v, Refusal)), "")


def _only(spec: BackendSpec, library: KernelLibrary, row: KernelRow) -> BackendSpec:
    """The row alone for its op; other ops keep theirs."""
    rest = (replace(lib, rows=tuple(r for r in lib.rows if (r.op, r.kind) != (row.op, row.kind))) for lib in spec.kernels.libraries)
    alone = KernelLibrary(ONLY, (row,), needs=library.needs, ops=library.ops)
    return replace(spec, kernels=replace(spec.kernels, libraries=(alone, *rest)), native=None, extensions=nothing)


def _run(law: str, device: str, on: Backend, batch: Sequence[Call], simulated: bool, options: CompileOptions) -> Check:
    """All calls in one graph, on poisoned memory, three times; where it cannot be made or run, by halves, to find the calls that are to blame."""
    name = f"{on.spec.device}:check"

    def results(some: Sequence[Call]) -> tuple[list[str], str]:
        """What differs, and how it ran.  Raises what compiling or running raises."""
        f = compile(together(some), device=name, options=options, wait=True)
        return list(dict.fromkeys(said for k, lay in enumerate(LAYS) for said in differences(some, f.run, k % 2, lay))), _how(f, name_of(some[0].sample.op))

    def blamed(some: Sequence[Call]) -> list[str]:
        try:
            return results(some)[0]
        except Exception as e:  # a kernel of an extension may raise anything
            if len(some) == 1:
                return [f"{some[0]}: {type(e).__name__}: {_brief(e)}"]
            first = blamed(some[:len(some) // 2])
            return first + (blamed(some[len(some) // 2:]) if len(first) < MOST_TOLD else []) or [f"{len(some)} calls together: {type(e).__name__}: {_brief(e)}"]

    with backend_registry():
        register_backend(Device(name), lambda: on)
        try:
            said, how = results(batch)
        except Exception:
            said, how = blamed(batch), ""
    return Check(law, device, len(batch), tuple(said), how=how if options is FREE else "", simulated=simulated)


def _how(f: CompiledGraph, op: str) -> str:
    """The kernels that ran the op itself, or what it was lowered to."""
    own = {s.choice.name for s in f.plan.steps if s.node.label == op}
    lowered = {s.node.label for s in f.plan.steps if op in {n.label for n in f.report.of("lowered")}} - {op}
    return "; ".join(filter(None, (", ".join(sorted(own)), f"lowered to {', '.join(sorted(lowered))}" if lowered and not own else "")))
