"""How long a graph takes: every setting in turns, so that what else the machine does meets all of them."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from rlxpy.backends.cpu import threads as pool
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import InputError
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Symbol
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph
from rlxpy.ir.types import bind
from rlxpy.tools.equivalence import draw

INDICES = 0, 2  # token ids and other indices: small enough for any table
TEXTS = (1, 16), (1, 128), (8, 128)  # how many, of how many tokens
LEAST_SECONDS = 0.02  # a sample repeats shorter calls until it is as long


@dataclass(frozen=True)
class Case:
    """One thing that is timed."""

    sizes: Mapping[str, int]
    device: str = "cpu"
    threads: int = 1
    numerics: str = "highest"

    @property
    def counted(self) -> int | None:
        """Its threads, where a number of them is asked for."""
        return self.threads if self.device == "cpu" else None


@dataclass(frozen=True)
class Timing:
    """seconds: of one call, each round's; elements: of the first input, which are the tokens of a model."""

    case: Case
    seconds: tuple[float, ...]
    elements: int
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def per_second(self) -> float:
        return self.elements / self.median

    def to_json(self) -> dict[str, Any]:
        c = self.case
        return {"sizes": dict(c.sizes), "device": c.device, "threads": c.counted, "numerics": c.numerics, "median_seconds": self.median,
                "least_seconds": min(self.seconds), "most_seconds": max(self.seconds), "rounds": len(self.seconds), "elements": self.elements,
                "elements_per_second": self.per_second, "memory": dict(self.memory)}


class Bench:
    """Graphs compiled for the cases, each device and way of counting once."""

    def __init__(self, graph: Graph, params: Mapping[str, Any], weights: str = "auto", seed: int = 0) -> None:
        self.graph, self.params, self.weights, self.seed = graph, params, weights, seed
        self._compiled: dict[tuple[str, str], CompiledGraph] = {}

    def compiled(self, case: Case) -> CompiledGraph:
        key = case.device, case.numerics
        if key not in self._compiled:
            self._compiled[key] = compile(self.graph, self.params, device=case.device, options=CompileOptions(weights=self.weights, numerics=case.numerics), wait=True)
        return self._compiled[key]

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Seeded random values; masks hide nothing."""
        rng = np.random.default_rng(self.seed)
        return {n.name: np.ones(bind(n.type.shape, sizes), bool) if n.type.dtype is DType.BOOL else draw(rng, n.type, sizes, INDICES) for n in self.graph.inputs}

    def run(self, cases: Sequence[Case], rounds: int = 7) -> list[Timing]:
        """Rounds of all cases in turns, each warmed up once before.  Raises InputError for sizes that the graph does not take."""
        if rounds < 1:
            raise InputError(f"rounds={rounds}", why="at least 1 is needed")
        calls = []
        for c in cases:
            check_sizes(self.graph, c.sizes)
            f, inputs = self.compiled(c), self.inputs(c.sizes)
            with using_threads(c.threads):
                first = _seconds(f, inputs, c.sizes, 1)
                once = _seconds(f, inputs, c.sizes, 1)
            calls.append((c, f, inputs, max(1, int(LEAST_SECONDS / max(min(first, once), 1e-7)))))
        samples: list[list[float]] = [[] for _ in calls]
        for _ in range(rounds):
            for (c, f, inputs, repeats), found in zip(calls, samples, strict=True):
                with using_threads(c.threads):
                    found.append(_seconds(f, inputs, c.sizes, repeats))
        return [Timing(c, tuple(found), _elements(inputs), f.memory()) for (c, f, inputs, _), found in zip(calls, samples, strict=True)]


class TextBench(Bench):
    """An encoder as `rlx embed` runs it: B texts of S tokens, or of N together, one after another."""

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Texts of lengths that differ by a token at most."""
        return {**super().inputs(sizes), "starts": np.arange(sizes["B"] + 1) * sizes["N"] // sizes["B"]}


def check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises InputError for symbols that are missing, unknown or out of range."""
    known = graph.symbols
    for name, value in sizes.items():
        if name not in known:
            raise InputError(f"no size {name!r}", why=f"there are {', '.join(known) or 'none: every shape is fixed'}", fix=f"name these: {_least(known)}" if known else "leave it out")
        s = known[name]
        if not s.lo <= value <= s.hi or value % s.step:
            near = min(max(value, s.lo + -s.lo % s.step), s.hi) // s.step * s.step
            raise InputError(f"{name}={value}", why=f"the graph takes {s.lo}..{s.hi}" + (f" in steps of {s.step}" if s.step > 1 else ""), fix=f"{name}={near}")
    missing = [n for n in known if n not in sizes]
    if missing:
        raise InputError(f"sizes of {', '.join(missing)} are missing", why=f"the graph has {', '.join(known)}", fix=_least(known))


def sizes_for(graph: Graph, asked: Mapping[str, int]) -> dict[str, int]:
    """What was asked for, as the graph calls it: B texts of S tokens are N = B * S where texts lie one after another."""
    return {"B": asked["B"], "N": asked["B"] * asked["S"]} if asked.keys() == {"B", "S"} and graph.symbols.keys() == {"B", "N"} else dict(asked)


def _least(symbols: Mapping[str, Symbol]) -> str:
    texts = ", or B texts of S tokens: --sizes B=1,S=16" if symbols.keys() == {"B", "N"} else ""
    return f"--sizes {','.join(f'{s.name}={max(s.lo, 1)}' for s in symbols.values())}{texts}"


def default_sizes(graph: Graph) -> list[dict[str, int]]:
    """What a model is asked for mostly.  An encoder: one text, a batch; a decoder, whose past P is a size: a prompt, one more token; other graphs: their least sizes."""
    names = set(graph.symbols)
    wanted: list[dict[str, int]] = [{}]
    if names == {"B", "S"}:
        wanted = [dict(zip("BS", texts, strict=True)) for texts in TEXTS]
    elif names == {"B", "N"}:
        wanted = [{"B": b, "N": b * s} for b, s in TEXTS]
    elif "P" in names:
        wanted = [{"P": 0, "T": 64}, {"P": 64, "T": 1}]
    return [{n: min(max(w.get(n, max(s.lo, 1)), s.lo), s.hi) // s.step * s.step for n, s in graph.symbols.items()} for w in wanted]


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    before = pool.limit()
    pool.set_threads(count)
    try:
        yield
    finally:
        pool.set_threads(before)


def _seconds(f: CompiledGraph, inputs: Mapping[str, Array], sizes: Mapping[str, int], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        f.run(dict(inputs), sizes=sizes)
    return (perf_counter() - start) / repeats


def _elements(inputs: Mapping[str, Array]) -> int:
    return max((prod(a.shape) for a in inputs.values()), default=1) if inputs else 1
