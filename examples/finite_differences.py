"""Poisson's equation by finite differences and conjugate gradients, on top of sparse.py.  Run: python examples/finite_differences.py"""
from __future__ import annotations

import numpy as np
from sparse import Sparse

import rlxpy
from rlxpy.extend import *


def second_difference(n: int, b: Builder) -> Sparse:
    """-u'' on n inner points of the unit interval, u = 0 at both ends: (2 u[i] - u[i-1] - u[i+1]) / h^2."""
    i = np.arange(n)
    row, column = np.concatenate([i, i[1:], i[:-1]]), np.concatenate([i, i[:-1], i[1:]])
    return Sparse(b.const(np.where(row == column, 2.0, -1.0) * (n + 1) ** 2, "f64"), b.const(row), b.const(column), (n, n))


def conjugate_gradients(a: Sparse, y: Value, steps: int) -> Value:
    """x of a @ x = y for a positive definite a.  Hestenes and Stiefel 1952."""
    def step(c):
        x, r, p, rr = c
        ap = a @ p
        alpha = rr / (p * ap).sum(axes=(0, 1))
        r = r - alpha * ap
        new = (r * r).sum(axes=(0, 1))
        return x + alpha * p, r, r + new / rr * p, new
    return rlxpy.while_loop(lambda c: c[3] > 1e-20 * steps, step, (y * 0.0, y, y, (y * y).sum(axes=(0, 1))))[0]


if __name__ == "__main__":
    n = 63
    b = Builder("poisson")
    f = rlxpy.compile(b.finish(conjugate_gradients(second_difference(n, b), b.input("y", (n, 1), "f64"), n)))
    t = np.arange(1, n + 1)[:, None] / (n + 1)
    np.testing.assert_allclose(f(np.pi**2 * np.sin(np.pi * t)), np.sin(np.pi * t), rtol=1e-3)
    print(*(f"{d['op']}: {d['kernel']}" for d in f.dispatch()), sep=", ")
