"""Products on the CPU against sums in float64: every operand that a graph can give them, every instruction set that this CPU runs."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlxpy import Builder, CompileOptions, DType, compile, settings, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import available
from rlxpy.backends.cpu.threads import set_threads

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
Array = np.ndarray[Any, Any]
# eps of the type of the sums, times the terms of a sum, times eps of the result
EPS = {DType.F32: 2.0**-24, DType.F64: 2.0**-53, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
ISAS = [isa.name for isa in available()]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    set_threads(request.param)
    yield request.param
    set_threads(None)


@dataclass(frozen=True)
class Case:
    """left and right: shapes of the arrays; view: what the graph does to them before the product; weight: the right one is a param."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    weight: bool = False
    view: Callable[[Any, Any], tuple[Any, Any]] = lambda a, b: (a, b)


CASES = {
    "weights": Case((37, 19), (19, 45), True),
    "one row": Case((1, 40), (40, 150), True),
    "two rows": Case((2, 40), (40, 150), True),
    "more rows than a block": Case((101, 9), (9, 33), True),
    "a batch that is more rows": Case((2, 3, 7, 5), (5, 18), True),
    "weights transposed": Case((5, 7), (18, 7), True, lambda a, b: (a, b.T)),
    "every other weight, backwards": Case((5, 7), (14, 18), True, lambda a, b: (a, b[::2].reverse(axes=(1,)))),
    "a batch of weights": Case((3, 7, 5), (3, 5, 18), True),
    "weights for every second matrix": Case((2, 3, 7, 5), (3, 5, 18), True),
    "activations": Case((37, 19), (19, 45)),
    "a row of activations": Case((4, 1, 19), (4, 19, 70)),
    "a row and a transposed right side": Case((4, 1, 19), (4, 70, 19), False, lambda a, b: (a, b.T)),
    "a batch": Case((2, 3, 13, 8), (2, 3, 8, 21)),
    "a batch on one side": Case((13, 8), (2, 3, 8, 21)),
    "a batch across": Case((2, 1, 13, 8), (3, 8, 21)),
    "both transposed": Case((2, 8, 13), (2, 21, 8), False, lambda a, b: (a.T, b.T)),
    "heads": Case((2, 6, 3, 8), (2, 9, 3, 8), False, lambda a, b: (a.transpose(perm=(0, 2, 1, 3)), b.transpose(perm=(0, 2, 3, 1)))),
    "steps and backwards": Case((14, 8), (16, 21), False, lambda a, b: (a[::2], b[::2].reverse(axes=(0,)))),
    "no rows": Case((0, 8), (8, 21)),
    "no depth": Case((5, 0), (0, 21)),
    "no columns": Case((5, 8), (8, 0), True),
    "one of all": Case((1, 1), (1, 1)),
}


def arrays_of(case: Case, d: DType, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=case.left).astype(d.numpy), rng.normal(size=case.right).astype(d.numpy)


def viewed(case: Case, a: Array, b: Array) -> tuple[Array, Array]:
    """What the reference sees after the case's views, in float64."""
    g = Builder("views")
    x, y = case.view(g.input("a", a.shape, "f64"), g.input("b", b.shape, "f64"))
    made = compile(g.finish(x + 0.0, y + 0.0), device="reference").run(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(made[0]), np.asarray(made[1])


def error_bound(a: Array, b: Array, d: DType) -> Array:
    """Of a sum in any order: one rounding a term in the type of the sums, then one of the result; a product of f16 may be subnormal."""
    size = np.abs(a) @ np.abs(b)
    return np.asarray((a.shape[-1] + 1) * EPS[d.accumulator] * size + EPS[d] * (size if d is d.accumulator else 1.01 * np.abs(a @ b)) + (2.0**-24 if d is DType.F16 else 0))


@pytest.mark.parametrize("d", EPS, ids=lambda d: d.text)
@pytest.mark.parametrize("isa", ISAS)
def test_products(isa: str, d: DType, threads: int) -> None:
    b, weights, given = Builder("products"), dict[str, Array](), list[Array]()
    outputs = []
    for k, case in enumerate(CASES.values()):
        left, right = arrays_of(case, d, k)
        x = b.input(f"a{k}", left.shape, d)
        w = b.param(f"w{k}", right.shape, d) if case.weight else b.input(f"b{k}", right.shape, d)
        given += [left] if case.weight else [left, right]
        weights |= {f"w{k}": right} if case.weight else {}
        left_view, right_view = case.view(x, w)
        outputs.append(left_view @ right_view)
    with settings.override(isa=isa):
        f = compile(b.finish(*outputs), weights, device="cpu", options=CompileOptions(debug=True))
    for _ in range(2):
        for (name, case), got, k in zip(CASES.items(), f.run(*given), range(len(CASES)), strict=True):
            want_of = viewed(case, *arrays_of(case, d, k))
            assert got.dtype == d.numpy
            assert np.all(np.abs(got.astype(np.float64) - np.matmul(*want_of)) <= error_bound(*want_of, d)), name


def test_whole_numbers_wrap() -> None:
    rng = np.random.default_rng(0)
    for d in (DType.I8, DType.I64, DType.U16):
        a, w = (rng.integers(-100, 100, s).astype(d.numpy) for s in ((3, 5, 7), (3, 7, 70)))
        b = Builder("wraps")
        f = compile(b.finish(b.input("a", a.shape, d) @ b.input("w", w.shape, d)), device="cpu")
        np.testing.assert_array_equal(f.run(a, w), a @ w)


def test_sizes_known_at_run_time(threads: int) -> None:
    m, n, k = sym("M", 0, 300), sym("N", 0, 100), sym("K", 0, 100)
    b = Builder("sizes")
    x, y, w = b.input("x", (3, m, k)), b.input("y", (3, k, n)), b.param("w", (40, 33))
    bias = b.input("bias", (n,))
    f = compile(b.finish((x @ y + bias).relu(), b.input("z", (3, m, 40)) @ w), {"w": np.ones((40, 33), np.float32)}, device="cpu", options=CompileOptions(debug=True))
    rng = np.random.default_rng(0)
    for sizes in ((5, 7, 9), (0, 7, 9), (5, 0, 9), (5, 7, 0), (300, 100, 100), (1, 33, 2), (97, 16, 1)):
        rows, columns, depth = sizes
        left, right, z = (rng.normal(size=s).astype(np.float32) for s in ((3, rows, depth), (3, depth, columns), (3, rows, 40)))
        shift = rng.normal(size=columns).astype(np.float32)
        got = f.run(left, right, shift, z)
        np.testing.assert_allclose(got[0], np.maximum(left.astype(np.float64) @ right + shift, 0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(got[1], np.broadcast_to(z.sum(-1, keepdims=True), (3, rows, 33)), rtol=0, atol=1e-4)


def chains(x: Any, w: Any, u: Any, bias: Any, residual: Any) -> tuple[Any, ...]:
    """bias, activation, residual of another walk, scale; two products of one input."""
    product = x @ w
    return ((product + bias).gelu(), product * 0.25 + residual.T, (x @ w).silu() * (x @ u), product * product.builder.const(np.float32(3).astype(product.dtype.numpy)) + bias.T)


@pytest.mark.parametrize("d", [DType.F32, DType.BF16, DType.F64], ids=lambda d: d.text)
@pytest.mark.parametrize("weights", [True, False])
def test_epilogues_give_what_the_reference_gives(d: DType, weights: bool, threads: int) -> None:
    shapes = {"x": (2, 11, 20), "w": (20, 11), "u": (20, 11), "bias": (11, 1), "residual": (2, 11, 11)}
    rng = np.random.default_rng(1)
    arrays = {k: rng.normal(size=s).astype(d.numpy) for k, s in shapes.items()}
    results = []
    for device in ("cpu", "reference"):
        b = Builder("chains")
        leaf = {k: b.param(k, s, d) if weights and k in "wu" else b.input(k, s, d) for k, s in shapes.items()}
        graph = b.finish(*chains(leaf["x"], leaf["w"], leaf["u"], leaf["bias"].T, leaf["residual"]))
        f = compile(graph, arrays, device=device, options=CompileOptions(debug=True))
        results.append(f.run(*(a for k, a in arrays.items() if not (weights and k in "wu"))))
        if device == "cpu":
            assert {row["tier"] for row in f.dispatch()} == {"kernel"}
            assert any("fused.matmul" in str(row["kernel"]) for row in f.dispatch())
    for got, want in zip(*results, strict=True):
        scale = np.abs(want.astype(np.float64)).max()
        assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= 40 * EPS[d] * scale


def test_a_weight_replaced_is_packed_anew() -> None:
    b = Builder("set")
    f = compile(b.finish(b.input("x", (3, 4)) @ b.param("w", (4, 5))), {"w": np.zeros((4, 5), np.float32)}, device="cpu")
    x = np.ones((3, 4), np.float32)
    assert not f.run(x).any()
    f.set_param("w", np.full((4, 5), 2, np.float32))
    np.testing.assert_array_equal(f.run(x), np.full((3, 5), 8, np.float32))
