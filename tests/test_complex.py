"""Complex numbers and 4-bit integers in generated code, against NumPy in the wider type: odd sizes, views, infinities, every byte that may hold four bits."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_device import WAVES, on_host, running
from samples import VECTORS, plain

from rlxpy import Builder, CompileOptions, DType, compile, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.ir import refs
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.settings import override
from rlxpy.tools.samples import as_tuple

RNG = np.random.default_rng(5)
EPS = {np.dtype(np.complex64): 2.0**-23, np.dtype(np.complex128): 2.0**-52}
KINDS = (np.complex64, np.complex128)
DEVICES = {"cpu": KINDS, **{f"rocm {arch}": (kind,) for arch, kind in zip(WAVES, KINDS, strict=True)}, "cuda": KINDS}
both = pytest.mark.parametrize("kind", KINDS)
each = pytest.mark.parametrize(("device", "kind"), [(d, k) for d, kinds in DEVICES.items() for k in kinds], indirect=["device"])  # one text serves both: in simulation one a wave


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "cpu":
        with running(request.param) as name:
            yield name
        return
    if isinstance(why := find_compiler(), str):
        pytest.skip(f"not run, because {why}")
    with override(isa=VECTORS):
        yield "cpu"


def drawn(kind: Any, *shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(kind)


def ran(device: str, make: Any, *arrays: Array, shapes: Any = None) -> tuple[Array, ...]:
    """All of it in generated code, twice over poisoned memory."""
    b = Builder("case")
    made = make(*(b.input(f"x{k}", shape, dtype(a.dtype)) for k, (a, shape) in enumerate(zip(arrays, shapes or [a.shape for a in arrays], strict=True))))
    f = compile(b.finish(*(made if isinstance(made, (list, tuple)) else (made,))), device=device, options=CompileOptions(debug=True), wait=True)
    assert not on_host(f), on_host(f)
    first, second = as_tuple(f(*arrays)), as_tuple(f(*arrays))
    for a, b_ in zip(first, second, strict=True):
        assert a.tobytes() == b_.tobytes()
    return first


def near(got: Array, want: Any, units: float, where: str = "") -> None:
    """Within so many units in the last place of the whole number, both parts together."""
    want = np.asarray(want)
    assert got.shape == want.shape, where
    assert np.all(np.abs(got.astype(complex) - want) <= units * EPS[got.dtype] * np.abs(want)), where


@each
def test_arithmetic_of_views_that_broadcast(device: str, kind: Any) -> None:
    n = sym("N", 0, 9)
    x, y, z = drawn(kind, 7, 3, 5), drawn(kind, 5, 3), drawn(kind, 3, 1)

    def make(x: Any, y: Any, z: Any) -> list[Any]:
        v, w = x.reverse(axes=(0,)), y.T
        return [v + w, v - z, v * w, v / z, -(v * 1.0), v.square(), v.fma(w, z), (v * w + z) / (v - w), v.eq(x).where(v, w), v.ne(w)]

    for rows in (7, 0, 1):
        given = x[:rows]
        v, w = given[::-1].astype(complex), y.T.astype(complex)
        got = ran(device, make, given, y, z, shapes=[(n, 3, 5), (5, 3), (3, 1)])
        for k, want in enumerate((v + w, v - z, v * w, v / z, -v, v * v)):
            near(got[k], want, 4.0, f"output {k}")
        np.testing.assert_allclose(got[6], v * w + z, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[7], (v * w + z) / (v - w), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(got[8], np.where(v == given, v, w).astype(kind))
        np.testing.assert_array_equal(got[9], v != w)


@each
def test_quotients_near_the_ends_of_the_range_and_of_special_values_are_numpy_s(device: str, kind: Any) -> None:
    """Smith's scaling in NumPy's order: the same bits, but for which NaN."""
    big, small = (1e30, 1e-30) if kind is np.complex64 else (1e300, 1e-300)
    parts = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, big, -small])
    every = np.array([complex(r, i) for r in parts for i in parts]).astype(kind)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(every[:, None], every[None]))
    with np.errstate(all="ignore"):
        want = a / b
    got, = ran(device, lambda a, b: a / b, a, b)
    for part in ("real", "imag"):
        g, w = getattr(got, part), getattr(want, part)
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        np.testing.assert_array_equal(g[~np.isnan(g)], w[~np.isnan(w)])


@each
def test_products_of_infinities_have_no_rule_of_their_own(device: str, kind: Any) -> None:
    """Each part is what its formula says, as NumPy's and unlike C's."""
    parts = np.array([0.0, 1.0, -2.0, np.inf, np.nan])
    every = np.array([complex(r, i) for r in parts for i in parts]).astype(kind)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(every[:, None], every[None]))
    with np.errstate(all="ignore"):
        want = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
    got = ran(device, lambda a, b: [a * b, a.reshape(shape=(625, 1, 1)) @ b.reshape(shape=(625, 1, 1)), a.fma(b, a * 0.0).ne(a).where(a * b, a * b)], a, b)
    for made in got:
        for g, w in zip((made.real, made.imag), want, strict=True):
            np.testing.assert_array_equal(g.reshape(w.shape), w)


@both
def test_sums_products_and_running_sums(device: str, kind: Any) -> None:
    n = sym("N", 0, 300)
    x = drawn(kind, 257, 3, 7)

    def make(x: Any) -> list[Any]:
        return [x.sum(axes=(0,)), x.sum(axes=(2,)), x.sum(axes=(0, 1, 2)), x.T.sum(axes=(0, 1)), (x * 2.0).sum(axes=(1,)) - 1.0, x.prod(axes=(1,)), x.prod(axes=(2,)),
                x.cumsum(axis=0), x.cumsum(axis=-1), x.reverse(axes=(2,)).cumsum(axis=2)]

    for rows in (257, 0, 1, 5):
        v = x[:rows].astype(np.complex128)
        want = [v.sum(0), v.sum(2), v.sum(), v.sum((0, 2)), (v * 2).sum(1) - 1, v.prod(1), v.prod(2), v.cumsum(0), v.cumsum(-1), v[:, :, ::-1].cumsum(2)]
        size = np.abs(v).sum() + 1
        for k, (g, w) in enumerate(zip(ran(device, make, x[:rows], shapes=[(n, 3, 7)]), want, strict=True)):
            bound = 40 * EPS[g.dtype] * (np.abs(w) if k in (5, 6) else size)
            assert g.shape == w.shape
            assert np.all(np.abs(g - w) <= bound), f"output {k}, {rows} rows"


@each
def test_long_products_and_running_sums_of_few_lines(device: str, kind: Any) -> None:
    x = np.exp(1j * RNG.uniform(0, 6, (2, 40_001))).astype(kind)
    got = ran(device, lambda x: [x.prod(axes=(1,)), x.cumsum(axis=1), x.sum(axes=(1,))], x)
    wide = x.astype(np.complex128)
    for g, w in zip(got, (wide.prod(1), wide.cumsum(1), wide.sum(1)), strict=True):
        assert np.all(np.abs(g - w) <= 100 * EPS[g.dtype] * (1 + np.abs(w).max()))


@each
@pytest.mark.parametrize("rows", [1, 3, 67])
def test_matrix_products(device: str, kind: Any, rows: int) -> None:
    """Of batches, of views, with what follows; by lanes along the depth and by tiles."""
    x, w, bias, u = drawn(kind, 2, rows, 33), drawn(kind, 33, 70), drawn(kind, 70), drawn(kind, 2, 33, 5)
    got = ran(device, lambda x, w, bias, u: [x @ w, (x @ w + bias) * 2.0, x.reverse(axes=(2,)) @ u, x[:, :, :0] @ w[:0]], x, w, bias, u)
    v = x.astype(complex)
    want = [v @ w, (v @ w + bias) * 2, v[..., ::-1] @ u, np.zeros((2, rows, 70))]
    for k, (g, expected) in enumerate(zip(got, want, strict=True)):
        assert g.shape == expected.shape
        assert np.all(np.abs(g - expected) <= 60 * 33 * EPS[g.dtype]), f"output {k}"


@each
def test_padding_scattering_and_numbers_in_source(device: str, kind: Any) -> None:
    x, u, at = drawn(kind, 4, 3), drawn(kind, 5, 3), np.array([0, -1, 2, 0, 0])
    c = (1.5 - 2j)
    got = ran(device, lambda x, u, at: [x.pad(low=(1, 0), high=(0, 2), value=7.5), x.scatter_add(at, u, axis=0), x.T.scatter_add(at, u.T, axis=1), x * x.builder.const(np.array(c, kind)),
                                        x[:0].scatter_add(at[:0], u[:0], axis=0)], x, u, at)
    want = x.copy()
    np.add.at(want, at, u)
    np.testing.assert_array_equal(got[0], np.pad(x, ((1, 0), (0, 2)), constant_values=7.5))
    np.testing.assert_array_equal(got[1], want)
    np.testing.assert_array_equal(got[2], want.T)
    near(got[3], x.astype(complex) * c, 4.0)


NARROW = {DType.I4: ml_dtypes.int4, DType.U4: ml_dtypes.uint4}
TO = [dtype(d) for d in ("bool", "i4", "u4", "i8", "u16", "i64", "f8e5m2", "bf16", "f64", "c64", "c128")]


def test_casts_of_complex_numbers(device: str) -> None:
    """To reals the imaginary part is dropped; a bool asks for both."""
    x = np.array([0, 1, -2.5, 1e9, -1e9, 300, 0.25, np.inf, np.nan, -7.9]) + 1j * np.array([0, 0, 5, 1, 0, 2, 0, 1, 1, 3])
    for kind in (np.complex64, np.complex128):
        given = x.astype(kind)
        for d, got in zip(TO, ran(device, lambda x: [(x + 0.0).cast(to=t) for t in TO], given), strict=True):
            with np.errstate(all="ignore"):
                want = refs.cast(given, d)
            np.testing.assert_array_equal(plain(got), plain(want), d.text)
    reals = [RNG.integers(0, 2 if d is DType.BOOL else 8, 9).astype(d.numpy) for d in TO if not d.is_complex]
    made = ran(device, lambda *xs: [v.cast(to=t) for v in xs for t in ("c64", "c128")], *reals)
    for k, got in enumerate(made):
        np.testing.assert_array_equal(got, plain(reals[k // 2]).astype(complex))


def test_four_bits_lie_in_the_lower_half_of_a_byte_and_the_upper_is_not_read(device: str) -> None:
    """Written, it is a copy of the sign: 0 for u4."""
    every = np.arange(256, dtype=np.uint8)
    p = np.arange(256) % 2 == 0
    for d, kind in NARROW.items():
        x, y = every.view(kind), np.roll(every, 3).view(kind)
        values, others = plain(x), plain(y)
        got = ran(device, lambda p, x, y: [x.eq(y), x.ne(y), p.where(x, y), x.pad(low=(2,), high=(1,), value=-8.0 if d is DType.I4 else 9.0), *(x.cast(to=t) for t in TO),  # noqa: B023
                                           (x.reverse(axes=(0,)).cast(to="i32") * 2).cast(to=d)], p, x, y)  # noqa: B023
        np.testing.assert_array_equal(got[0], values == others)
        np.testing.assert_array_equal(got[1], values != others)
        np.testing.assert_array_equal(plain(got[2]), np.where(p, values, others))
        np.testing.assert_array_equal(plain(got[3]), np.pad(values, (2, 1), constant_values=-8 if d is DType.I4 else 9))
        for t, g in zip(TO, got[4:], strict=False):
            np.testing.assert_array_equal(plain(g), plain(refs.cast(values.astype(np.int64), t)), t.text)
        doubled = values[::-1] * 2
        np.testing.assert_array_equal(plain(got[-1]), (doubled + 8) % 16 - 8 if d is DType.I4 else doubled % 16)
        assert set(got[2].view(np.uint8)) <= set(np.arange(-8, 8).astype(np.int8).view(np.uint8) if d is DType.I4 else range(16))


def test_floats_become_four_bits_as_they_become_eight(device: str) -> None:
    x = np.array([-9, -8, -7.5, -1, -0.5, 0.99, 6.9, 7, 7.5, 14.99, 15, 16, 1e9, -1e9, np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        given = [x.astype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
    got = ran(device, lambda *xs: [(v * 1.0).cast(to=d) for v in xs for d in NARROW], *given)
    for k, (a, d) in enumerate((a, d) for a in given for d in NARROW):
        np.testing.assert_array_equal(plain(got[k]), plain(refs.cast(a, d)), f"{a.dtype} to {d}")


@pytest.mark.parametrize("arch", WAVES)
def test_as_machine_code_they_give_the_same(arch: str) -> None:
    with running(f"isa {arch}") as name:
        test_padding_scattering_and_numbers_in_source(name, np.complex64)
        test_matrix_products(name, np.complex128 if arch == WAVES[0] else np.complex64, 3)
        test_floats_become_four_bits_as_they_become_eight(name)
