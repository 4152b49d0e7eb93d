"""Where the time of a compiled graph goes: launches with their time, work and traffic, beside what the machine can do."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any

from rlxpy.compiler.arrays import gather_inputs
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.session import compile
from rlxpy.errors import InputError
from rlxpy.extend.backend import Span
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.parts import part
from rlxpy.tools.costs import cost
from rlxpy.tools.roofline import Roofline


@dataclass(frozen=True)
class Launch:
    """One launch of a run, its stages together.  seconds: from its first thread's begin to its last one's end, the median of the rounds;
    busy_seconds: all threads added."""

    node: str
    op: str
    type: str
    kernel: str
    function: str
    tier: str
    where: str
    seconds: float
    busy_seconds: float
    flops: int
    nbytes: int

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """Gigabytes a second."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """threads: of the cpu, None elsewhere; seconds: of a whole call that is not profiled, the median; spans: of the round in the middle."""

    device: str
    threads: int | None
    sizes: Mapping[str, int]
    seconds: float
    launches: tuple[Launch, ...]
    spans: tuple[Span, ...]
    roofline: Roofline | None = None

    @property
    def place(self) -> str:
        """The device, and how many threads of it where they are counted."""
        return self.device if self.threads is None else f"{self.device}, {threads_text(self.threads)}"

    @property
    def launched_seconds(self) -> float:
        return sum(x.seconds for x in self.launches)

    def share(self, x: Launch) -> float:
        """Of the time in launches."""
        return x.seconds / self.launched_seconds if self.launched_seconds else 0.0

    def of_roofline(self, x: Launch) -> float | None:
        """The time that the machine's arithmetic and memory need at least, as a part of the time taken."""
        return None if self.roofline is None or not x.seconds else self.roofline.seconds(x.flops, x.nbytes) / x.seconds

    def grouped(self, key: str) -> list[tuple[str, int, float, int, int]]:
        """Launches that agree in a field ("function", "op", "kernel", "where"): name, how many, seconds, flops, nbytes; the longest first."""
        found: dict[str, list[Launch]] = {}
        for x in self.launches:
            found.setdefault(getattr(x, key), []).append(x)
        rows = [(name, len(xs), sum(x.seconds for x in xs), sum(x.flops for x in xs), sum(x.nbytes for x in xs)) for name, xs in found.items()]
        return sorted(rows, key=lambda r: -r[2])

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(x), "share": self.share(x), "gflops": x.gflops, "gbytes": x.gbytes, "of_roofline": self.of_roofline(x)} for x in self.launches]
        return {"device": self.device, "threads": self.threads, "sizes": dict(self.sizes), "seconds": self.seconds, "launched_seconds": self.launched_seconds,
                "roofline": asdict(self.roofline) if self.roofline else None, "launches": rows}


def threads_text(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def profile(compiled: CompiledGraph, *inputs: Any, sizes: Sizes | None = None, state: Any = None, rounds: int = 7, roofline: Roofline | None = None,
            **named: Any) -> Profile:
    """Run `rounds` times with a look at the clock, and as often without, in turns.

    state: memory of a graph that has some; every round changes it.  Raises InputError for what does not fit and for rounds below 1."""
    from rlxpy.backends.cpu.threads import threads

    if rounds < 1:
        raise InputError(f"rounds={rounds}", why="at least 1 is needed")
    arrays, known = gather_inputs(compiled.source, inputs, named, {} if sizes is None else sizes)
    call = {"sizes": sizes, "state": state, **named}
    compiled.profile(*inputs, **call)
    compiled.run(*inputs, **call)
    traces, totals = [], []
    for _ in range(rounds):
        traces.append(compiled.profile(*inputs, **call))
        start = perf_counter()
        compiled.run(*inputs, **call)
        totals.append(perf_counter() - start)
    middle = sorted(traces, key=_duration)[len(traces) // 2]
    launches = tuple(_launches(compiled, traces, known, _spans(compiled, arrays, known)))
    return Profile(compiled.device, threads() if compiled.device == "cpu" else None, known, median(totals), launches, middle, roofline)


def _duration(spans: Sequence[Span]) -> int:
    return spans[-1].end_ns - spans[0].begin_ns if spans else 0


def _spans(compiled: CompiledGraph, arrays: Sequence[Array], sizes: Sizes) -> Mapping[Ref, Array]:
    """Integer masks of attentions, where the inputs alone decide them: with texts that lie one after another, most pairs of tokens are of two texts."""
    graph = compiled.plan.graph
    masks = tuple(dict.fromkeys(n.inputs[3] for n in graph if _attends(n) and len(n.inputs) > 3 and graph.type(n.inputs[3]).dtype.is_integer))
    made = part(graph, masks, "spans")
    if not masks or made.params or made.states:
        return {}
    given = {n.name: a for n, a in zip(compiled.source.inputs, arrays, strict=True)}
    found = compile(made, device="reference").run({n.name: given[n.name] for n in made.inputs}, sizes={name: sizes[name] for name in made.symbols})
    return dict(zip(masks, found if isinstance(found, tuple) else (found,), strict=True))


def _attends(n: Node) -> bool:
    return n.op is Op.ATTENTION or n.kind == "attention"


def _launches(compiled: CompiledGraph, traces: Sequence[Sequence[Span]], sizes: Sizes, spans: Mapping[Ref, Array]) -> Iterable[Launch]:
    """One for each step of the plan that ran, in order."""
    plan = compiled.plan
    timed = [_by_step(spans) for spans in traces]
    layouts = {r: p.layout for r, p in plan.places.items()}
    for step in plan.steps:
        n = step.node
        rounds = [t[n.id] for t in timed if n.id in t]
        if not rounds:
            continue
        c = cost(plan.graph, n, sizes, layouts, next((spans[r] for r in n.inputs if r in spans and _attends(n)), None))
        yield Launch(f"%{n.id}", n.label, str(n.type), step.choice.name, rounds[0][2], step.choice.tier, str(n.loc),
                     median(r[0] for r in rounds), median(r[1] for r in rounds), c.flops, c.nbytes)


def _by_step(spans: Sequence[Span]) -> dict[int, tuple[float, float, str]]:
    """Of each node: seconds in which one of its stages ran, or several rounds of a loop; seconds of all threads; the function that took longest."""
    stages: dict[int, dict[str, list[Span]]] = {}
    for s in spans:
        stages.setdefault(s.step.node.id, {}).setdefault(s.kernel, []).append(s)
    found = {}
    for node, by_kernel in stages.items():
        walls = {k: _covered([(s.begin_ns, s.end_ns) for s in xs]) for k, xs in by_kernel.items()}
        busy = sum(s.end_ns - s.begin_ns for xs in by_kernel.values() for s in xs)
        found[node] = (sum(walls.values()) / 1e9, busy / 1e9, max(walls, key=lambda k: walls[k]))
    return found


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Of the clock, by spans that may overlap: threads work side by side, rounds of a loop one after another."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def chrome_trace(p: Profile) -> dict[str, Any]:
    """For Perfetto or chrome://tracing: one row a thread."""
    origin = min((s.begin_ns for s in p.spans), default=0)
    events = [{"name": s.kernel, "cat": s.step.choice.tier, "ph": "X", "pid": 0, "tid": s.thread, "ts": (s.begin_ns - origin) / 1e3, "dur": (s.end_ns - s.begin_ns) / 1e3,
               "args": {"node": f"%{s.step.node.id}", "op": s.step.node.label, "where": s.step.node.where}} for s in p.spans]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"device": p.device, **{k: str(v) for k, v in p.sizes.items()}}}
