"""Fourier transforms against NumPy's in double precision: every kind of length, type, axis, view and instruction set."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import ISAS

from rlxpy import Builder, CompileOptions, DType, compile, sym
from rlxpy.backends.cpu import fourier, threads
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import BuildError
from rlxpy.ir.dtypes import Array
from rlxpy.settings import override

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
CHECKED = CompileOptions(debug=True)
SMALL = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 60)
LARGE = (97, 143, 250, 1009, 1024)
ERROR = {"f32": 4e-7, "f64": 1e-15}  # of the root of the mean square, times the logarithm of the length


def numbers(*shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def all_kinds(lengths: tuple[int, ...], real: str, rows: int = 3) -> tuple[Any, list[Array], list[Array]]:
    """A graph with every transform of every length, its inputs, and what NumPy makes of them in double precision."""
    b = Builder("transforms")
    kind = {"f32": "c64", "f64": "c128"}[real]
    outputs, given, wanted = list[Any](), list[Array](), list[Array]()
    for n in lengths:
        z, x, half = numbers(rows, n, seed=n).astype(np.complex64), numbers(rows, n, seed=n).real.astype(np.float32), numbers(rows, n // 2 + 1, seed=n).astype(np.complex64)
        v = [b.input(f"{name}{n}", a.shape, d) for name, a, d in (("z", z, kind), ("x", x, real), ("half", half, kind))]
        outputs += [v[0].fft(), v[0].ifft(), v[1].rfft(), v[2].irfft(n=n)]
        given += [z, x, half]
        wanted += [np.fft.fft(z.astype(complex)), np.fft.ifft(z.astype(complex)), np.fft.rfft(x.astype(float)), np.fft.irfft(half.astype(complex), n)]
    return b.finish(*outputs), [a.astype(DType.F64.numpy if a.dtype.kind == "f" else complex) if real == "f64" else a for a in given], wanted


def near(got: Array, want: Array, real: str, n: int) -> None:
    scale = float(np.sqrt((np.abs(want) ** 2).mean())) or 1.0
    assert np.abs(got - want).max() <= ERROR[real] * scale * (2 + np.log2(max(n, 2))) * (3 if fourier.length(n) != n else 1), (n, real)


@needs_compiler
@pytest.mark.parametrize("real", ["f32", "f64"])
@pytest.mark.parametrize("lengths", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("count", [1, 2])
def test_every_length(real: str, lengths: tuple[int, ...], count: int) -> None:
    graph, given, wanted = all_kinds(lengths, real)
    f = compile(graph, device="cpu", options=CHECKED)
    assert {row["tier"] for row in f.dispatch()} == {"kernel"}
    threads.set_threads(count)
    try:
        first, second = f.run(*given), f.run(*given)
    finally:
        threads.set_threads(None)
    for k, (got, again, want) in enumerate(zip(first, second, wanted, strict=True)):
        near(got, want, real, lengths[k // 4])
        np.testing.assert_array_equal(got, again)


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: str) -> None:
    lengths = (12, 17, 77, 256)
    graph, given, wanted = all_kinds(lengths, "f32", rows=5)
    with override(isa=isa):
        f = compile(graph, device="cpu", options=CHECKED)
    for k, (got, want) in enumerate(zip(f.run(*given), wanted, strict=True)):
        near(got, want, "f32", lengths[k // 4])


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=needs_compiler)])
def test_axes_views_and_sizes_of_rows(device: str) -> None:
    rows = sym("R", 0, 40)
    b = Builder("views")
    x = b.input("x", (rows, 6, 10), "c64")
    f = compile(b.finish(x.fft(axis=1), x.transpose(perm=(2, 0, 1)).fft(axis=0), x.reverse(axes=(1,)).ifft(axis=1), x[:, ::2, 1:].fft(axis=-1)), device=device, options=CHECKED)
    for count in (0, 1, 3, 40):
        a = numbers(count, 6, 10).astype(np.complex64)
        want = (np.fft.fft(a, axis=1), np.fft.fft(a.transpose(2, 0, 1), axis=0), np.fft.ifft(a[:, ::-1], axis=1), np.fft.fft(a[:, ::2, 1:]))
        for g, w in zip(f.run(a), want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=3e-6)


@needs_compiler
def test_a_length_that_is_symbolic_or_too_long_runs_on_the_host_and_says_so() -> None:
    b = Builder("host")
    f = compile(b.finish(b.input("x", (sym("N", 1, 64),)).rfft(), b.input("long", (fourier.LONGEST + 2,), "c64").fft()), device="cpu")
    x, long = numbers(10).real.astype(np.float32), numbers(fourier.LONGEST + 2).astype(np.complex64)
    for got, want in zip(f.run(x, long), (np.fft.rfft(x), np.fft.fft(long)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    assert [row["tier"] for row in f.dispatch()] == ["host", "host"]
    said = [n.text for n in f.report.notes if n.kind == "host"]
    assert any("in0.shape[axis] = N" in text for text in said)
    assert any(f"in0.shape[axis] = {fourier.LONGEST + 2}" in text for text in said)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_derivatives_between_reals_and_frequencies(n: int) -> None:
    """The other rows' laws hold for one type; here the results are of another.  Sums of products with fixed cotangents, against differences."""
    x, half = numbers(2, n).real, numbers(2, n // 2 + 1)
    weigh_half, weigh = numbers(2, n // 2 + 1, seed=1), numbers(2, n, seed=2).real
    b = Builder("gradients")
    xs, hs = b.input("x", x.shape, "f64"), b.input("half", half.shape, "c128")
    y, back = xs.rfft(), hs.irfft(n=n)
    f = compile(b.finish(*y.node.row.vjp(b.const(weigh_half), y, xs, axis=-1), *back.node.row.vjp(b.const(weigh), back, hs, n=n, axis=-1)))
    dx, dhalf = f.run(x, half)
    step = 1e-6
    for at in np.ndindex(x.shape):
        moved = [np.fft.rfft(x + step * sign * (np.arange(x.size).reshape(x.shape) == np.ravel_multi_index(at, x.shape))) for sign in (1, -1)]
        assert dx[at] == pytest.approx((weigh_half * (moved[0] - moved[1])).sum().real / (2 * step), abs=1e-7)
    for at in np.ndindex(half.shape):
        for way, part in ((1, "real"), (1j, "imag")):
            one = way * (np.arange(half.size).reshape(half.shape) == np.ravel_multi_index(at, half.shape))
            slope = (weigh * (np.fft.irfft(half + step * one, n) - np.fft.irfft(half - step * one, n))).sum() / (2 * step)
            assert (dhalf[at] * way).real == pytest.approx(slope, abs=1e-7), part


def test_errors_name_both_sizes() -> None:
    b = Builder("wrong")
    x = b.input("x", (3, 0), "c64")
    with pytest.raises(BuildError, match="may have 0 points"):
        x.fft()
    with pytest.raises(BuildError, match=r"axis -1 has 4 frequencies, 8 points have 5"):
        b.input("half", (2, 4), "c64").irfft(n=8)
    with pytest.raises(BuildError, match="f16 is not among f32, f64"):
        b.input("narrow", (4,), "f16").rfft()


def test_the_round_trip_and_parsevals_sum() -> None:
    b = Builder("trip")
    x = b.input("x", (4, 15), "f64")
    back, frequencies = compile(b.finish(x.rfft().irfft(n=15), x.cast(to="c128").fft())).run(a := numbers(4, 15).real)
    np.testing.assert_allclose(back, a, rtol=0, atol=1e-14)
    np.testing.assert_allclose((np.abs(frequencies) ** 2).sum(1), 15 * (a ** 2).sum(1), rtol=1e-13)
