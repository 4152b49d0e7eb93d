"""Derivatives by an op's own rules, and by finite differences of what it means."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlxpy.compiler.options import CompileOptions
from rlxpy.compiler.session import compile
from rlxpy.errors import HookMismatch
from rlxpy.ir import hooks
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dtypes import Array, DType
from rlxpy.tools.samples import Sample, as_tuple, draw, name_of

DEEP = frozenset({DType.F64, DType.C128})
STEP = 1e-6


def run(b: Builder, outputs: Sequence[Value], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """On the reference, with poisoned memory."""
    return as_tuple(compile(b.finish(*outputs), device="reference", options=CompileOptions(debug=True)).run(*arrays)) if outputs else ()


class Call:
    """A sample's call in f64 or c128, and its derivatives as the row's cells give them.  Integers and bools stand still."""

    def __init__(self, s: Sample, seed: int = 0) -> None:
        self.s, self.x = s, s.arrays(seed)
        rng = np.random.default_rng(seed + 100)
        self.y = s.reference(self.x)
        self.moving = [i for i, a in enumerate(self.x) if a.dtype == s.dtype.numpy]
        self.smooth = [k for k, a in enumerate(self.y) if a.dtype == s.dtype.numpy]
        self.dy = [draw(rng, a.shape, s.dtype, (-2.0, 2.0), (0, 0)) for a in self.y]  # random, so that a wrong factor cannot hide behind ones
        self.dx = [draw(rng, a.shape, s.dtype, (-2.0, 2.0), (0, 0)) for a in self.x]

    def _emit(self) -> tuple[Builder, list[Value], Any, dict[str, Any]]:
        b = Builder()
        values = self.s.emit(b)
        node = values[0].node
        return b, [Value(b, r) for r in node.inputs], values if len(values) > 1 else values[0], node.attrs.params()

    def _fed(self, b: Builder, name: str, arrays: Sequence[Array], which: Sequence[int]) -> tuple[Value | None, ...]:
        return tuple(b.input(f"{name}{i}", a.shape, self.s.dtype) if i in which else None for i, a in enumerate(arrays))

    def vjp(self) -> list[Array]:
        """The cotangent of every moving input; zeros for None."""
        b, xs, y, attrs = self._emit()
        dy = self._fed(b, "dy", self.dy, self.smooth)
        grads = self.s.op.row.vjp(dy if isinstance(y, tuple) else dy[0], y, *xs, **attrs)  # type: ignore[operator, misc]
        hooks.check_results(name_of(self.s.op), "vjp", grads, [x.type for x in xs], [v.type for v in as_tuple(y)])
        self._refuse(grads, self.moving, "vjp", "input")
        there = [g for g in grads if g is not None]
        got = iter(run(b, there, [*self.x, *(self.dy[k] for k in self.smooth)]))
        return [np.zeros_like(self.x[i]) if grads[i] is None else next(got) for i in self.moving]

    def jvp(self, which: Sequence[int]) -> list[Array]:
        """The tangent of every smooth output when only the inputs `which` move."""
        b, xs, y, attrs = self._emit()
        made = self.s.op.row.jvp(self._fed(b, "dx", self.dx, which), y, *xs, **attrs)  # type: ignore[operator, misc]
        tangents = as_tuple(made)
        hooks.check_results(name_of(self.s.op), "jvp", made, [x.type for x in xs], [v.type for v in as_tuple(y)])
        self._refuse(tangents, self.smooth, "jvp", "output")
        there = [t for t in tangents if t is not None]
        got = iter(run(b, there, [*self.x, *(self.dx[i] for i in which)]))
        return [np.zeros_like(self.y[k]) if tangents[k] is None else next(got) for k in self.smooth]

    def moved(self, step: float, which: Sequence[int]) -> list[Array]:
        """Smooth outputs a step away along dx."""
        y = self.s.reference(tuple(a + step * self.dx[i] if i in which else a for i, a in enumerate(self.x)))
        return [y[k] for k in self.smooth]

    def _refuse(self, made: Sequence[Any], floats: Sequence[int], hook: str, of: str) -> None:
        odd = [k for k, v in enumerate(made) if v is not None and k not in floats]
        if odd:
            raise HookMismatch(f"{hook} of {name_of(self.s.op)} moves {of} {odd[0]}", why="integers and bools stand still", fix="give None for it")

    def differences(self, i: int) -> Array:
        """d sum(dy * y) for each element of input i, by two runs on either side of it."""
        want = np.zeros_like(self.x[i])
        for at in np.ndindex(want.shape):
            ends = []
            for by in (STEP, -STEP):
                x = [a.copy() for a in self.x]
                x[i][at] += by
                y = self.s.reference(tuple(x))
                ends.append(sum((self.dy[k] * y[k]).sum() for k in self.smooth))
            want[at] = (ends[0] - ends[1]) / (2 * STEP)
        return want


def calls(samples: Iterator[Sample]) -> Iterator[Call]:
    """Those in which something moves."""
    for s in samples:
        if s.dtype in DEEP and (call := Call(s)).moving and call.smooth:
            yield call
