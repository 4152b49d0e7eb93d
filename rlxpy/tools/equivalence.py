"""Do two graphs compute the same?  Both run on the same seeded random inputs and weights."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import IndexOutOfRange, InputError, RlxError
from rlxpy.extend.libraries import BUILTIN
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Symbol
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.quantize import quantize
from rlxpy.ir.types import TensorType, bind

RUNS = 2            # states must agree after the first run too
INT_RANGES = ((-8, 8), (0, 2), (0, 1))  # the widest that every index of the graph allows is used
MOST_PER_SYMBOL = 7
SLACK = 32          # roundings that a fused chain may differ by, in units of the output's precision


@dataclass(frozen=True)
class Difference:
    """How far apart one output is.  error: the greatest distance, in units of the greatest magnitude; allowed: what rounding explains."""

    name: str
    type: str
    error: float
    allowed: float

    @property
    def same(self) -> bool:
        return self.error <= self.allowed


def compare(before: Graph, after: Graph, device: str | tuple[str, ...] = "reference", seed: int = 0) -> tuple[Difference, ...]:
    """`before` op by op on the reference, `after` on `device`; one row for each output and run.

    Raises InputError when the first graph refuses every kind of input tried."""
    rng = np.random.default_rng(seed)
    sizes = some_sizes(before, rng)
    params = dict(_params(before, sizes, rng))
    plain = CompileOptions(optimise=False, debug=True)
    first = compile(before, params, device="reference", options=replace(plain, kernels=(BUILTIN,), force_row=()))
    second = compile(after, {n.name: params[n.name] for n in after.params}, device=device, options=plain, wait=True)
    inputs, wanted = accepted_inputs(first, before, sizes, rng)
    got = [_outputs(second.run(inputs, sizes=sizes)) for _ in range(RUNS)]
    return tuple(Difference(name, str(t), *distance(w, g, t.dtype)) for run in range(RUNS)
                 for name, t, w, g in zip(before.output_names, before.output_types, wanted[run], got[run], strict=True))


def accepted_inputs(compiled: Any, graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator) -> tuple[dict[str, Array], list[tuple[Array, ...]]]:
    """Random inputs that the graph takes, and what runs of them give.  Raises InputError when it refuses every kind that is tried."""
    refusal: RlxError | None = None
    for ints in INT_RANGES:
        inputs = {n.name: draw(rng, n.type, sizes, ints) for n in graph.inputs}
        compiled.reset()
        try:
            return inputs, [_outputs(compiled.run(inputs, sizes=sizes)) for _ in range(RUNS)]
        except IndexOutOfRange as e:
            refusal = e
    raise InputError("no random inputs suit this graph", where=refusal.where if refusal else "", why=str(refusal), fix="run it on inputs of your own")


def _outputs(got: Any) -> tuple[Array, ...]:
    return got if isinstance(got, tuple) else (got,)


def some_sizes(graph: Graph, rng: np.random.Generator) -> dict[str, int]:
    return {s.name: _size(s, rng) for s in graph.symbols.values()}


def _size(s: Symbol, rng: np.random.Generator) -> int:
    """Small, odd where it may be, and not the least, so that sizes differ from 1 and from each other."""
    first = -(-s.lo // s.step)
    last = min(s.hi // s.step, first + MOST_PER_SYMBOL)
    return int(rng.integers(min(first + 1, last), last + 1)) * s.step


def draw(rng: np.random.Generator, t: TensorType, sizes: Mapping[str, int], ints: tuple[int, int] = INT_RANGES[0]) -> Array:
    """Random values of a type: floats in -1..1, integers in a range."""
    shape = bind(t.shape, sizes)
    if t.dtype is DType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if t.dtype.is_integer:
        low, high = max(ints[0], int(t.dtype.range[0])), min(ints[1], int(t.dtype.range[1]))
        return np.asarray(rng.integers(low, high, shape)).astype(t.dtype.numpy)
    real = np.asarray(rng.uniform(-1, 1, shape))
    return (real + 1j * rng.uniform(-1, 1, shape)).astype(t.dtype.numpy) if t.dtype.is_complex else real.astype(t.dtype.numpy)


def random_params(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Weights for a graph that has none, by name."""
    return dict(_params(graph, {s.name: s.lo for s in graph.symbols.values()}, np.random.default_rng(seed)))


def _params(graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Weights; the planes of a packed one are a packed random matrix, for random bytes would hold scales that are not finite."""
    planes: dict[int, Array] = {}
    for n in graph:
        if hasattr(n.attrs, "encoding"):
            operands = n.inputs[-len(encoding(n.attrs.encoding).stored):]
            packed = quantize(rng.uniform(-1, 1, n.attrs.shape).astype(np.float32), n.attrs.encoding)  # type: ignore[attr-defined]
            planes |= {r.node: p for r, p in zip(operands, packed, strict=True)}
    for n in graph.params:
        yield n.name, planes[n.id] if n.id in planes and planes[n.id].shape == n.type.shape else _weight(n, sizes, rng)


def _weight(n: Node, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Scaled by the longest axis, so that deep graphs stay finite."""
    a = draw(rng, n.type, sizes, INT_RANGES[1])
    return (a * max(1, *a.shape, 1) ** -0.5).astype(a.dtype) if n.type.dtype.is_float else a


def distance(wanted: Array, got: Array, dt: DType, roundings: int = SLACK) -> tuple[float, float]:
    """Greatest distance relative to the greatest finite magnitude, and what is allowed; inf where one is NaN or infinite and the other is not so."""
    if not (dt.is_float or dt.is_complex):
        return (0.0 if np.array_equal(wanted, got) else float("inf")), 0.0
    a, b = (x.astype(np.complex128 if dt.is_complex else np.float64) for x in (wanted, got))
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return float("inf"), 0.0
    if not finite.any():
        return 0.0, 0.0
    precision = 2.0 ** -{DType.F64: 52, DType.C128: 52, DType.F32: 23, DType.C64: 23, DType.F16: 10, DType.BF16: 7}.get(dt, 2)
    return float(np.abs(a - b)[finite].max() / max(np.abs(a[finite]).max(), 1e-30)), roundings * precision
