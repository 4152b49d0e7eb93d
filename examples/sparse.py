"""Sparse matrices as an extension: one op, and a class of Values with operator signs.  Run: python examples/sparse.py"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import rlxpy
from rlxpy.extend import *


@op("sparse.matmul")
def matmul(values, row, column, x, height: int):
    """A [height, n] with `values` at (row, column), those of one place added up, times x [n, k].  Differentiated through its lowering."""
    terms = x.gather(column, axis=0) * values.reshape(shape=(*values.shape, 1))
    return x.builder.const(0.0, x.dtype).expand(shape=(height, x.shape[1])).scatter_add(row, terms, axis=0)


@register_cpu_kernel(matmul)
def matmul(values, row, column, x, height):
    out = np.zeros((height, x.shape[1]), x.dtype)
    np.add.at(out, row, values[:, None] * x[column])
    return out


@dataclass(frozen=True)
class Sparse:
    """A sparse matrix of a graph, in coordinates: three Values of one length."""

    values: Value
    row: Value
    column: Value
    shape: tuple[int, int]

    def __matmul__(self, x: Value) -> Value:
        return matmul(self.values, self.row, self.column, x, height=self.shape[0])

    @property
    def T(self) -> Sparse:
        return Sparse(self.values, self.column, self.row, self.shape[::-1])


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    row, column, values = rng.integers(0, 5, 9), rng.integers(0, 7, 9), rng.normal(size=9).astype(np.float32)
    b = Builder("m")
    a = Sparse(b.input("values", (9,)), b.const(row), b.const(column), (5, 7))
    f = rlxpy.compile(b.finish(a @ b.input("x", (7, 2)), a.T @ b.input("y", (5, 2))))
    dense = np.zeros((5, 7), np.float32)
    np.add.at(dense, (row, column), values)
    x, y = rng.normal(size=(7, 2)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    for got, want in zip(f(values, x, y), (dense @ x, dense.T @ y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    print(*(f"{d['op']}: {d['kernel']}" for d in f.dispatch()), sep=", ")
