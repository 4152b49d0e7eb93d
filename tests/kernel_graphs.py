"""Graphs and values that the kernels of every backend are tried with."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlxpy import Builder, DType, Graph
from rlxpy.ir.dtypes import Array

RNG = np.random.default_rng(5)


# ---- reductions, softmax, norms ------------------------------------------------------------------------------------
def blocks(x: Any, r: Any, g: Any, b: Any, column: Any, row: Any) -> Iterator[Any]:
    """x, r [B,7,N], g, b [N], column [B,7,1], row [1,1,N]."""
    yield (x * 0.5 + r).softmax(axis=-1)
    yield (x + row).softmax(axis=-1) * r
    yield (x > 0.0).where(x, r).log_softmax(axis=-1) * 0.5
    yield x.softmax(axis=-1).cast(to=DType.F32 if x.dtype is not DType.F32 else DType.BF16)
    s = x + r
    yield s
    yield s.layer_norm(g, b, eps=1e-5)
    yield (x * column).layer_norm(eps=1e-3).gelu() + r
    t = r.tanh() - row
    yield t.rms_norm(g, eps=1e-5).silu() * x
    yield t
    yield x.T.rms_norm(eps=1e-5).T
    yield x.T.exp().softmax(axis=-1)
    yield x[:, ::2].reverse(axes=(2,)).layer_norm(g, eps=1e-5)
    yield (g * b).rms_norm(g + b, eps=1e-5)
    yield ((x - 1.0) * x).sum(axes=(2,)).abs().sqrt()
    yield ((x * x).mean(axes=(2,), keep=True) + 1e-6).rsqrt() * column
    yield (x * row).sum(axes=(1,)) * 0.5 + b
    yield (x - column).max(axes=(0,), keep=True).exp()
    yield r.min(axes=(0, 1)) * g
    yield (x.T * 2.0).mean(axes=(1,))
    yield (x * r).mean(axes=(0, 2))
    yield x.sum(axes=(0, 1, 2)).tanh()
    yield (x > r).any(axes=(1,)).logical_not()
    yield (x > r).all(axes=(2,)).cast(to=x.dtype) + 1.0
    yield (r.cast(to=DType.I32) * 3).sum(axes=(1,)).cast(to=x.dtype)


def row_shapes(batch: Any, width: int) -> tuple[tuple[Any, ...], ...]:
    """Of the operands of `blocks`."""
    return (batch, 7, width), (batch, 7, width), (width,), (width,), (batch, 7, 1), (1, 1, width)


def row_arrays(dtype: DType, width: int, batch: int) -> list[Array]:
    rng = np.random.default_rng(batch)
    return [rng.normal(size=s).astype(dtype.numpy) for s in row_shapes(batch, width)]


def norms_of_constant_rows(dtype: DType, width: int) -> tuple[Graph, list[Array], list[Array]]:
    """Norms of rows that are constant, of views of them and after chains, with what they are given and what they must be: the bias, exactly.
    No row's sum overflows."""
    rows = np.array([v for v in (0.1, 1234.1, 100000.1, -3.3e35, 0.0) if abs(v) < 6e4 or dtype is not DType.F16])
    given = [np.repeat(rows[:, None], width, axis=1), np.linspace(-2, 2, width), np.linspace(-1, 3, width)]
    x, scale, bias = (a.astype(dtype.numpy) for a in given)
    build = Builder("constant rows")
    v, g, b = (build.input(name, a.shape, dtype) for name, a in (("x", x), ("g", scale), ("b", bias)))
    made = ((v.layer_norm(eps=1e-5), 0), (v.layer_norm(g, eps=1e-5), 0), (v.layer_norm(g, b, eps=1e-5), 1), ((-v).layer_norm(g, b, eps=1e-12) * 2.0, 2),
            (v.reverse(axes=(0, 1)).layer_norm(eps=1e-3), 0), (v[:, None].layer_norm(g, b, eps=1e-5), 1))
    return build.finish(*(y for y, _ in made)), [x, scale, bias], [np.broadcast_to(bias * times, y.shape) for y, times in made]


# whose variance is beyond f32, though not their sums and what their means leave
LARGE = np.array([[3e38, -3e38, 0, 0, 0, 0, 0], [3e38, 0, -1.5e38, 0, -1.5e38, 0, 0], [1e30, 1.1e30, 1.2e30, 0, 1e30, 1e30, 1e30]], np.float32)


# ---- order ---------------------------------------------------------------------------------------------------------
def bits(shape: tuple[int, ...], dtype: Any) -> Array:
    """Any bits at all: NaNs of both signs, infinities, subnormals, zeros of both signs, extreme integers; and many ties."""
    d = np.dtype(dtype)
    raw = RNG.integers(0, 256, (int(np.prod(shape)) * d.itemsize,)).astype(np.uint8).view(d).reshape(shape).copy()
    return np.where(RNG.random(shape) < 0.3, RNG.choice(np.array([0.0, -0.0, 1.0, 2.0] if raw.dtype.kind not in "iu" else [0, 1, 2, 1]).astype(d), shape), raw)


def orders(x: Any) -> list[Any]:
    made: list[Any] = []
    for axis in range(len(x.shape)):
        made += [x.argmax(axis=axis), x.argmin(axis=axis, keep=True), *x.sort(axis=axis), *x.sort(axis=axis, descending=True), *x.top_k(k=3, axis=axis)]
    return made


# ---- by index ------------------------------------------------------------------------------------------------------
def indexing(op: str) -> Graph:
    b = Builder(op)
    x, at = b.input("x", (4, 3)), b.input("at", (2, 3) if op == "take_along" else (2,), "i64")
    return b.finish(x.scatter_add(at, b.input("u", (2, 3)), axis=0) if op == "scatter_add" else x.apply(op, (x, at), {"axis": 0}))
