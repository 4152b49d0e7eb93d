"""Linear algebra as an extension: factor and solve by NumPy on every device, with gradients.  Run: python examples/linalg.py"""
from __future__ import annotations

import numpy as np

import rlxpy
from rlxpy.extend import *
from rlxpy.ir.functions import swap


def square(a: TensorType) -> TensorType:
    if a.rank < 2 or a.shape[-1] != a.shape[-2]:
        raise BuildError(f"{a} is no square matrix", fix="factor a matrix [.., n, n]")
    return a


def cholesky_vjp(dc: Value, c: Value, a: Value) -> tuple[Value]:
    """Murray 2016, arXiv:1602.07527, section 3: with P = tril(C' dC) and its diagonal halved, dA is the symmetric part of inv(C)' P inv(C)."""
    half = np.tril(np.ones((a.shape[-1], a.shape[-1]))) - 0.5 * np.eye(a.shape[-1])
    p = (swap(c) @ dc) * half.astype(a.dtype.numpy)
    s = solve(swap(c), swap(solve(swap(c), p)))
    return ((s + swap(s)) * 0.5,)


def solve_vjp(dx: Value, x: Value, a: Value, b: Value) -> tuple[Value, Value]:
    db = solve(swap(a), dx)
    return -(db @ swap(x)), db


@declare_op("linalg.cholesky", vjp=cholesky_vjp)
def cholesky(a): return square(a)


@declare_op("linalg.solve", vjp=solve_vjp)
def solve(a, b):
    if square(a).shape[-1] != b.shape[-2]:
        raise BuildError(f"solve of {a} for {b}", why="a row of b for every row of a is wanted")
    return b


register_cpu_kernel(cholesky, lambda a: np.linalg.cholesky(a))
register_cpu_kernel(solve, lambda a, b: np.linalg.solve(a, b))


def log_det(a: Value) -> Value:
    """Of a positive definite matrix: a composition needs no op."""
    return (cholesky(a) * np.eye(a.shape[-1], dtype=a.dtype.numpy)).sum(axes=(-1,)).log().sum(axes=(-1,)) * 2.0


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    m = rng.normal(size=(2, 5, 5))
    a, b = m @ m.swapaxes(1, 2) + np.eye(5), rng.normal(size=(2, 5, 3))
    g = Builder("gaussian")
    x, y = g.input("a", a.shape, "f64"), g.input("b", b.shape, "f64")
    f = rlxpy.compile(g.finish(solve(x, y), log_det(x)))
    np.testing.assert_allclose(f(a, b)[0], np.linalg.solve(a, b))
    np.testing.assert_allclose(f(a, b)[1], np.linalg.slogdet(a)[1])
    print(*(f"{d['op']}: {d['kernel']}" for d in f.dispatch()), sep=", ")
