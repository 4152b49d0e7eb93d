"""Which point of a row's tunables is best here: every legal one is checked against the reference, those that are right are timed in turns."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np

from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.devices import choose
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile, lower, served, weights_of
from rlxpy.compiler.tuned import GATES, OFF, PASSED, Kept, Rejected, Setting, keep, kept_at, tunable, tuning_contract
from rlxpy.extend.bands import narrowed
from rlxpy.extend.contract import KernelContract, call_graph
from rlxpy.extend.kernels import KernelRow, points
from rlxpy.extend.libraries import BUILTIN
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import symbols
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import Op
from rlxpy.ir.types import bind
from rlxpy.tools.bench import LEAST_SECONDS, check_sizes
from rlxpy.tools.equivalence import accepted_inputs, distance

ROUNDS = 10
INEXACT = {"highest": 0.0, "high": 1e-4, "medium": 2e-2, "low": 5e-2}  # by choice, in units of the greatest magnitude
PLAIN = CompileOptions(kernels=(BUILTIN,), force_row=(), tune=(OFF,), optimise=False, debug=True)
Point = Mapping[str, int]


@dataclass(frozen=True)
class Candidate:
    """seconds: of one call, each round's; none where it is wrong, and `fault` says how."""

    point: tuple[tuple[str, int], ...]
    seconds: tuple[float, ...] = ()
    fault: str = ""

    @property
    def median(self) -> float:
        return median(self.seconds) if self.seconds else 0.0

    @property
    def text(self) -> str:
        return ", ".join(f"{k} = {v}" for k, v in self.point)


@dataclass(frozen=True)
class Tuning:
    """One call at one set of sizes; the first candidate is the default.  launches: steps of the graph that make this call.

    best: faster than the default by more than either varies, and not barred; None where none is.
    barred: points that were wrong before, under this very contract: by themselves they are never chosen again."""

    contract: KernelContract
    op: str
    type: str
    sizes: tuple[tuple[str, int], ...]
    launches: int
    candidates: tuple[Candidate, ...]
    barred: tuple[Rejected, ...] = ()

    @property
    def default(self) -> Candidate:
        return self.candidates[0]

    @property
    def best(self) -> Candidate | None:
        if not self.default.seconds:
            return None
        barred = {r.point for r in self.barred}
        timed = [c for c in self.candidates if c.seconds and (c is self.default or c.point not in barred)]
        first = min(timed, key=lambda c: c.median)
        return first if first is not self.default and _high(first.seconds) < _low(self.default.seconds) else None

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """Of the points that were tried, beside the default, those that did not win, and why."""
        barred = {r.point: r for r in self.barred}
        return tuple(barred.get(c.point) or self._rejection(c) for c in self.candidates[1:] if c is not self.best)

    def _rejection(self, c: Candidate) -> Rejected:
        if c.fault:
            return Rejected(c.point, GATES[0], c.fault)
        wins = _high(c.seconds) < _low(self.default.seconds)
        reason = ", another point is faster" if wins else ", no more than both vary" if c.median < self.default.median else ""
        return Rejected(c.point, GATES[1], f"{self.default.median / c.median:.2f} times as fast as by default{reason}")

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {"row": self.contract.row, "contract": self.contract.id, "op": self.op, "type": self.type, "sizes": dict(self.sizes), "launches": self.launches,
                "best": dict(best.point) if best else None, "gates": {"passed": list(PASSED if best else ()), "not_run": list(GATES[len(PASSED):])},
                "rejected": [{"point": dict(r.point), "gate": r.gate, "why": r.why} for r in self.rejected],
                "candidates": [{"point": dict(c.point), "median_seconds": c.median, "seconds": list(c.seconds), "fault": c.fault} for c in self.candidates]}


def _low(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=4)[0] if len(seconds) > 1 else seconds[0]


def _high(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=4)[2] if len(seconds) > 1 else seconds[0]


def tune(graph: Graph, params: Mapping[str, Any] | None = None, *, device: str | Sequence[str] = "cpu", sizes: Mapping[str, int] | None = None, rounds: int = ROUNDS,
         options: CompileOptions | None = None, tell: Callable[[str], None] = lambda text: None) -> tuple[Tuning, ...]:
    """Measure the calls of a graph at these sizes, each as the compiled graph makes it; nothing changes until `accept`.

    Raises InputError for sizes that the graph does not take, and what compiling raises."""
    sizes = dict(sizes or {})
    check_sizes(graph, sizes)
    options = replace(options or CompileOptions(), tune=(OFF,))
    chosen = choose(device)
    spec = served(chosen.backend.spec, options)
    given = weights_of(graph, params or {})
    plan, hoisted, _ = lower(graph, spec, options)
    weights = given | {h.name: h.compute(given) for h in hoisted}
    found = dict[Any, list[tuple[Step, KernelRow]]]()
    for step in plan.steps:
        here = step.choice.at(sizes).name
        for choice, row in tunable(step.choice):
            if choice.name == here:
                contract = tuning_contract(plan, step, spec, choice)
                found.setdefault((contract.id, contract), []).append((step, row))
    return tuple(_tuning(plan, chosen.name, contract, some, sizes, weights, rounds, options, tell) for (_, contract), some in found.items())


def accept(found: Sequence[Tuning]) -> int:
    """Keep what won and what was rejected, for graphs that are compiled from now on by this user on this machine; how many have a better point.  Raises OSError.

    Where nothing won, an earlier winner goes; where the default itself was wrong, everything stays as it is."""
    right, today = [t for t in found if t.default.seconds], datetime.now(UTC).date().isoformat()
    for t in right:
        winner = t.best or t.default
        keep(Kept(t.contract, t.sizes, winner.point if t.best else (), winner.median, t.default.median, today, t.rejected))
    return sum(t.best is not None for t in right)


def _tuning(plan: Plan, device: str, contract: KernelContract, some: Sequence[tuple[Step, KernelRow]], sizes: Mapping[str, int], weights: Mapping[str, Array],
            rounds: int, options: CompileOptions, tell: Callable[[str], None]) -> Tuning:
    step, row = some[0]
    own = _own_sizes(plan, step, sizes)
    tell(f"{contract.row} at {step.node.type}")
    graph = call_graph(*narrowed(plan.graph, step.node, own))
    params = {f"in{k}": weights[leaf.name] for k, r in enumerate(step.node.inputs) for leaf in (plan.graph[r],) if leaf.op is Op.PARAM}
    params = {n.name: params[n.name] for n in graph.params}
    reference = compile(graph, params, device="reference", options=PLAIN)
    inputs, (wanted, _) = accepted_inputs(reference, graph, {}, np.random.default_rng(0))

    def compiled(point: Point, *, debug: bool) -> CompiledGraph:
        pins = tuple(f"{contract.row}:{k}={v}" for k, v in point.items())
        return compile(graph, params, device=device, options=replace(options, optimise=False, debug=debug, force_row=(contract.row,), tune=pins), wait=True)

    candidates, allowed = list[Candidate](), INEXACT[options.numerics]
    for point in points(row):
        fault, error = _fault(lambda p=point: compiled(p, debug=True), inputs, wanted, graph, allowed)  # type: ignore[misc]
        candidates.append(Candidate(tuple(point.items()), fault=fault))
        if len(candidates) == 1:
            if fault:
                break
            allowed = 2 * error  # the other points may be as inexact as this one
    right = [k for k, c in enumerate(candidates) if not c.fault]
    for k, seconds in zip(right, _in_turns([compiled(dict(candidates[k].point), debug=False) for k in right], inputs, rounds), strict=True):
        candidates[k] = replace(candidates[k], seconds=seconds)
    at: Setting = tuple(sorted(own.items()))
    before = kept_at(contract, row, at)
    barred = tuple(r for r in before.rejected if r.gate == GATES[0]) if before else ()
    return Tuning(contract, step.node.label, str(step.node.type), at, len(some), tuple(candidates), barred)


def _own_sizes(plan: Plan, step: Step, sizes: Mapping[str, int]) -> dict[str, int]:
    """Of the symbols that the call mentions."""
    dims = [d for r in (*step.node.inputs, *step.node.refs) for d in plan.graph.type(r).shape]
    return {name: sizes[name] for name in sorted(set(symbols([*dims, *step.node.attrs.symbolic()])))}


def _fault(make: Callable[[], CompiledGraph], inputs: Mapping[str, Array], wanted: Sequence[Array], graph: Graph, allowed: float) -> tuple[str, float]:
    """What is wrong with a point, run twice on poisoned memory; and how far it is from the reference."""
    worst = 0.0
    try:
        f = make()
        for _ in range(2):
            got = f.run(dict(inputs))
            for name, t, w, g in zip(graph.output_names, graph.output_types, wanted, got if isinstance(got, tuple) else (got,), strict=True):
                error, rounding = distance(w, g, t.dtype)
                worst = max(worst, error)
                if not error <= max(rounding, allowed):
                    return f"{name} is {error:.3g} from the reference, where {max(rounding, allowed):.3g} is rounding", worst
    except Exception as e:  # a kernel of somebody else may raise anything
        return f"{type(e).__name__}: {e}".partition("\n")[0], worst
    return "", worst


def _in_turns(graphs: Sequence[CompiledGraph], inputs: Mapping[str, Array], rounds: int) -> Iterator[tuple[float, ...]]:
    """Seconds of one call of each, all graphs in every round, so that what else the machine does meets all of them."""
    outs = [[np.empty(bind(t.shape, {}), t.dtype.numpy) for t in f.source.output_types] for f in graphs]

    def once(f: CompiledGraph, out: list[Array], repeats: int) -> float:
        start = perf_counter()
        for _ in range(repeats):
            f.run_into(out, dict(inputs))
        return (perf_counter() - start) / repeats

    repeats = [max(1, int(LEAST_SECONDS / max(min(once(f, out, 1) for _ in range(3)), 1e-7))) for f, out in zip(graphs, outs, strict=True)]
    taken = [[once(f, out, n) for f, out, n in zip(graphs, outs, repeats, strict=True)] for _ in range(rounds)]
    return (tuple(column) for column in islice(zip(*taken, strict=True), len(graphs)))
