"""The cpu backend works in the caller's own arrays: whatever their strides, results are right and nothing but results is written."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, compile, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import IndexOutOfRange

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def compiled(make: Any, *types: Any) -> Any:
    b = Builder("lent")
    made = make(*(b.input(f"x{k}", *t) for k, t in enumerate(types)))
    return compile(b.finish(*(made if isinstance(made, tuple) else (made,))), device="cpu", options=CompileOptions(debug=True))


def unaligned(a: Any) -> Any:
    raw = np.zeros(a.nbytes + 1, np.uint8)
    moved = raw[1:].view(a.dtype).reshape(a.shape)
    moved[...] = a
    return moved


@pytest.mark.parametrize("given", [X, X.copy("F"), np.repeat(X, 2, 1)[:, ::2], X[::-1][::-1], unaligned(X)], ids=["plain", "columns", "strided", "reversed", "unaligned"])
def test_inputs_are_read_wherever_they_lie_and_never_written(given: Any) -> None:
    f, before = compiled(lambda x: x * 2.0, ((3, 4),)), given.copy()
    for _ in range(2):
        np.testing.assert_array_equal(f(given), X * 2)
    np.testing.assert_array_equal(given, before)


def test_results_are_written_where_the_caller_wants_them() -> None:
    f = compiled(lambda x: (x * 2.0, x + 1.0), ((3, 4),))
    frame = np.full((3, 8), 7, np.float32)
    for plain, other in ((np.empty((3, 4), np.float32), frame[:, ::2]), (unaligned(X), np.empty((3, 4), np.float32, order="F"))):
        f.run_into((plain, other), X)
        np.testing.assert_array_equal(plain, X * 2)
        np.testing.assert_array_equal(other, X + 1)
    np.testing.assert_array_equal(frame[:, 1::2], np.full((3, 4), 7))


@pytest.mark.parametrize("order", "<>")
def test_results_are_written_in_the_callers_byte_order(order: str) -> None:
    f = compiled(lambda x: (x * 2.0, x.sum(axes=(0, 1))), ((3, 4),))
    doubled, total = np.zeros((3, 4), f"{order}f4"), np.zeros((), f"{order}f4")
    f.run_into((doubled, total), X.astype(f"{order}f4"))
    np.testing.assert_array_equal(doubled, X * 2)
    assert total == X.sum()


def test_a_result_over_an_input() -> None:
    f, x = compiled(lambda x: x.T @ x, ((4, 4),)), np.arange(16, dtype=np.float32).reshape(4, 4)
    want = x.T @ x
    f.run_into(x, x)
    np.testing.assert_array_equal(x, want)


def test_results_that_are_one_value_or_parts_of_one() -> None:
    f = compiled(lambda x: ((y := x * 2.0), y, y.T, y[:2], y.reshape(shape=(4, 3)), y.sum(axes=(0,)), x, x.reshape(shape=(12,))), ((3, 4),))
    y = X * 2
    for got, want in zip(f(X), (y, y, y.T, y[:2], y.reshape(4, 3), y.sum(0), X, X.reshape(12)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_result_smaller_than_its_buffer() -> None:
    """At the largest size both are alike; at others the buffer holds more than the result."""
    n = sym("N", 0, 4)
    f = compiled(lambda x, like: ((x * 2.0)[:like.shape[0]], like + 1.0), ((4,),), ((n,),))
    for size in (4, 2, 0):
        got, more = f(np.arange(4, dtype=np.float32), np.zeros(size, np.float32))
        np.testing.assert_array_equal(got, np.arange(4)[:size] * 2)
        np.testing.assert_array_equal(more, np.ones(size))


def test_a_new_state_that_is_a_result_too() -> None:
    b = Builder("count")
    s = b.state("s", (3,))
    new = s + b.input("x", (3,))
    f = compile(b.finish(new, updates=[(s, new)]), device="cpu", options=CompileOptions(debug=True))
    first, second = f(np.ones(3, np.float32)), f(np.ones(3, np.float32))
    np.testing.assert_array_equal([first, second], [[1] * 3, [2] * 3])


def test_a_run_that_fails_leaves_the_outputs_as_they_were() -> None:
    f = compiled(lambda x, i: (x * 2.0, x.gather(i, axis=0)), ((3, 4),), ((1,), "i64"))
    outputs = np.full((3, 4), 7, np.float32), np.full((1, 4), 7, np.float32)
    with pytest.raises(IndexOutOfRange):
        f.run_into(outputs, X, [3])
    assert all((o == 7).all() for o in outputs)
    f.run_into(outputs, X, [2])
    np.testing.assert_array_equal(outputs[0], X * 2)
    np.testing.assert_array_equal(outputs[1], X[2:])
