"""Sample calls of an op: inputs that it takes, how they may lie in memory, and what it means by its own row."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.extension import OpExtension
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import Op
from rlxpy.ir.quantize import quantize
from rlxpy.ir.refs import evaluate
from rlxpy.ir.row import BOOL, INDEX

AnyOp = Op | OpExtension


@dataclass(frozen=True)
class Case:
    """One call.  `ints` bounds integer inputs (upper end excluded), `domain` floats; `types` fixes the dtype of single inputs; `packed`
    (encoding, shape) adds the planes of a packed matrix behind the other inputs."""

    shapes: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    ints: tuple[int, int] = (-9, 10)
    types: Mapping[int, DType] = field(default_factory=dict)
    packed: tuple[str, tuple[int, ...]] | None = None
    domain: tuple[float, float] = (-2.0, 2.0)

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, s)) or "scalar" for s in self.shapes)
        return " ".join((shapes, *(f"{k}={v}" for k, v in self.attrs.items() if not isinstance(v, Graph))))


@dataclass(frozen=True)
class Sample:
    """A case of an op in one dtype."""

    op: AnyOp
    case: Case
    dtype: DType

    def __str__(self) -> str:
        return f"{name_of(self.op)} {self.dtype} {self.case}".strip()

    def input_types(self) -> tuple[tuple[tuple[int, ...], DType], ...]:
        """(shape, dtype) of each input: the sample's dtype wherever the row takes any, i64 for indices."""
        own = tuple((shape, self.case.types.get(i) or self._taken(i)) for i, shape in enumerate(self.case.shapes))
        planes = encoding(self.case.packed[0]).planes(self.case.packed[1]) if self.case.packed else ()
        return (*own, *((shape, dt) for _, shape, dt in planes))

    def _taken(self, i: int) -> DType:
        accepted = accepted_by(self.op, i)
        if accepted is INDEX or accepted is BOOL:
            return DType.I64 if accepted is INDEX else DType.BOOL
        return self.dtype if self.dtype in accepted else next(d for d in (DType.F32, DType.I64, *DType) if d in accepted)

    def inputs(self, b: Builder, prefix: str = "x") -> list[Value]:
        """Inputs x0, x1, .. of a graph in the making."""
        return [b.input(f"{prefix}{i}", shape, dt) for i, (shape, dt) in enumerate(self.input_types())]

    def call(self, b: Builder, xs: Sequence[Value]) -> tuple[Value, ...]:
        """The op on these values."""
        made = b.emit(self.op, *xs, **self.case.attrs) if isinstance(self.op, Op) else b.custom_op(self.op.name, *xs, **self.case.attrs)
        return as_tuple(made)

    def emit(self, b: Builder) -> tuple[Value, ...]:
        """The op on inputs x0, x1, .. of a new graph."""
        return self.call(b, self.inputs(b))

    def graph(self) -> Graph:
        b = Builder(name_of(self.op).replace(".", "_"))
        return b.finish(*self.emit(b))

    def lowered(self) -> Graph:
        """What the row's `lower` makes of the call."""
        if not callable(self.op.row.lower):
            raise InputError(f"{name_of(self.op)} has no lowering", why="its row says nothing simpler", fix="give its row a `lower`")
        b = Builder("lowered")
        return b.finish(*as_tuple(self.op.row.lower(*self.inputs(b), **self.params())))

    def params(self) -> dict[str, Any]:
        """Every parameter of the call, defaults too, as the row's cells get them."""
        return self.graph().nodes[len(self.input_types())].attrs.params()

    def arrays(self, seed: int = 0) -> tuple[Array, ...]:
        rng = np.random.default_rng(seed)
        own = tuple(draw(rng, shape, dt, self.case.domain, self.case.ints) for shape, dt in self.input_types()[:len(self.case.shapes)])
        if self.case.packed is None:
            return own
        name, shape = self.case.packed
        return (*own, *quantize(rng.normal(size=shape).astype(np.float32), name))

    def reference(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """What the row's `ref` says, as arrays; without one, what its lowering comes to, op by op."""
        with np.errstate(all="ignore"):
            if callable(self.op.row.ref):
                return as_tuple(self.op.row.ref(*arrays, **self.params()))
            graph = self.lowered()
            return evaluate(graph, {n.id: a for n, a in zip(graph.inputs, arrays, strict=True)})


def as_tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def name_of(op: AnyOp) -> str:
    return op.text if isinstance(op, Op) else op.name


def draw(rng: np.random.Generator, shape: tuple[int, ...], dt: DType, domain: tuple[float, float], ints: tuple[int, int]) -> Array:
    if dt is DType.BOOL:
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if dt.is_integer:
        low, high = max(ints[0], dt.range[0]), min(ints[1], dt.range[1] + 1)
        return np.asarray(rng.integers(low, high, shape)).astype(dt.numpy)
    real = np.asarray(rng.uniform(*domain, shape))
    return np.asarray(real + 1j * rng.uniform(*domain, shape), dt.numpy) if dt.is_complex else real.astype(dt.numpy)


def accepted_by(op: AnyOp, i: int) -> frozenset[DType]:
    dtypes = op.row.dtypes
    return dtypes[min(i, len(dtypes) - 1)]


def layouts(a: Array) -> Iterator[tuple[str, Array]]:
    """The same values lying in memory in other ways, and one element seen everywhere."""
    yield "as made", a
    yield "reversed", np.flip(np.flip(a).copy())
    yield "fortran", np.array(a, order="F")
    wide = np.repeat(a[..., None], 2, -1)
    yield "stepped", wide[..., 1]
    frozen = a.copy()
    frozen.setflags(write=False)
    yield "read-only", frozen
    if prod(a.shape):
        yield "stride 0", np.broadcast_to(a.reshape(-1)[0], a.shape)


def plain(a: Array) -> Array:
    """Values that NumPy can compare: what ml_dtypes adds becomes f64 or i64, without loss."""
    return a if a.dtype.isbuiltin == 1 else a.astype(np.int64 if "int" in a.dtype.name else np.float64)
