"""Reductions, softmax and norms on the cpu, alone and with the chains around them, against the reference that runs op by op."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from kernel_graphs import LARGE, blocks, norms_of_constant_rows, row_arrays, row_shapes
from samples import ISAS, assert_close

from rlxpy import Builder, CompileOptions, DType, compile, settings, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.threads import set_threads

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
FLOATS = (DType.F32, DType.F16, DType.BF16, DType.F64)


def compiled(dtype: DType, width: int, most: int) -> list[Any]:
    """The same graph fused for the cpu, and op by op on the reference."""
    graphs = []
    for device, optimise in (("cpu", True), ("reference", False)):
        b = Builder("rows")
        graph = b.finish(*blocks(*(b.input(f"x{k}", s, dtype) for k, s in enumerate(row_shapes(sym("B", 1, most), width)))))
        graphs.append(compile(graph, device=device, options=CompileOptions(debug=True, optimise=optimise)))
    return graphs


def check(runs: list[Any], dtype: DType, width: int, sizes: tuple[int, ...]) -> None:
    for batch in sizes:
        given = row_arrays(dtype, width, batch)
        for again in range(2):
            for k, (got, want) in enumerate(zip(runs[0](*given), runs[1](*given), strict=True)):
                assert_close(got, want, dtype if got.dtype == dtype.numpy else DType.BF16, f"output {k}, batch {batch}, run {again}")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("width", [37, 129])
def test_fused_rows_are_their_chain(dtype: DType, width: int) -> None:
    f = compiled(dtype, width, 3)
    assert {"rows", "reduce"} <= {n.kind for n in f[0].plan.graph}
    for count in (1, 2):
        set_threads(count)
        try:
            check(f, dtype, width, (3, 1, 2))
        finally:
            set_threads(None)


@pytest.mark.parametrize("isa", ISAS)
def test_on_every_instruction_set(isa: str) -> None:
    with settings.override(isa=isa):
        check(compiled(DType.F32, 67, 2), DType.F32, 67, (2,))


@pytest.mark.parametrize(("dtype", "width"), [(DType.F32, 1), *((d, 771) for d in FLOATS)], ids=str)
def test_constant_rows_normalise_to_their_bias(dtype: DType, width: int) -> None:
    graph, given, wants = norms_of_constant_rows(dtype, width)
    f = compile(graph, device="cpu", options=CompileOptions(debug=True), wait=True)
    for _ in range(2):
        for got, want in zip(f(*given), wants, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", ISAS)
def test_norms_of_rows_far_from_zero_and_of_large_ones(isa: str) -> None:
    """To f64's values within what the input's last place is of a deviation; and no mean or deviation that is finite is lost."""
    rng = np.random.default_rng(3)
    centres = np.array([[0], [1], [-15], [17], [1000], [3e4]])
    given = (rng.normal(size=(6, 387)) + centres).astype(np.float32)
    wide = given.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    b = Builder("far")
    with settings.override(isa=isa):
        f = compile(b.finish(b.input("x", (sym("B", 1, 9), sym("N", 1, 400))).layer_norm(eps=1e-5)), device="cpu", wait=True)
    assert (np.abs(f(given) - want) < 1e-6 + np.spacing(np.abs(centres), dtype=np.float32)).all()
    np.testing.assert_array_equal(f(LARGE), np.zeros_like(LARGE))


def test_rows_too_long_to_be_kept() -> None:
    check(compiled(DType.BF16, 4500, 1), DType.BF16, 4500, (1,))


def test_nothing_in_nothing_out() -> None:
    b = Builder("none")
    x = b.input("x", (sym("B", 0, 2), 5))
    f = compile(b.finish((x + 1.0).softmax(axis=-1), (x * 2.0).layer_norm(eps=1e-5), (x * x).sum(axes=(0,)).exp()), device="cpu", options=CompileOptions(debug=True))
    soft, normed, total = f(np.zeros((0, 5), np.float32))
    assert soft.shape == normed.shape == (0, 5)
    np.testing.assert_array_equal(total, np.ones(5))


def test_special_values() -> None:
    """NaN wins extremes, whichever way memory is walked; a softmax row of -inf is NaN; a constant row normalises to its bias."""
    b = Builder("special")
    x = b.input("x", (40, 40))
    f = compile(b.finish((x * 1.0).max(axes=(0,)), (x * 1.0).min(axes=(1,)), (x + x).softmax(axis=-1), (x * 2.0).layer_norm(eps=1e-5) + 3.0), device="cpu")
    given = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    given[3, 5], given[7], given[9] = np.nan, -np.inf, 2.5
    top, low, soft, normed = f(given)
    assert np.isnan(top).tolist() == [k == 5 for k in range(40)]
    assert np.isnan(low).tolist() == [k == 3 for k in range(40)]
    assert np.isnan(soft).all(axis=1).tolist() == [k in (3, 7) for k in range(40)]
    np.testing.assert_array_equal(normed[9], np.full(40, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.text)
@pytest.mark.parametrize("shape", [(3, 0), (0, 5), (0, 0)], ids=str)
def test_rows_of_nothing_and_no_rows(dtype: DType, shape: tuple[int, int]) -> None:
    b = Builder("nothing")
    x = b.input("x", shape, dtype)
    chains = (x.softmax(axis=-1), x.log_softmax(axis=-1), x.rms_norm(eps=1e-5), x.layer_norm(eps=1e-5), (x * 2.0).softmax(axis=-1) + 1.0, x.softmax(axis=0))
    graph = b.finish(*chains, x.sum(axes=(-1,)), x.mean(axes=(0,)))
    given = np.zeros(shape, dtype.numpy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        want = compile(graph, device="reference", options=CompileOptions(optimise=False))(given)
    for got, expected in zip(compile(graph, device="cpu", wait=True)(given), want, strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))
