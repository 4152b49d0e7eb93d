"""Products on the CPU against sums in float64: every operand that a graph can give them, every instruction set that this CPU runs."""
from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from samples import ISAS, VECTORS

from rlxpy import Builder, CompileOptions, DType, compile, settings, sym
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import available, named
from rlxpy.backends.cpu.threads import set_threads
from rlxpy.compiler.session import lower

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
Array = np.ndarray[Any, Any]
# eps of the type of the sums, times the terms of a sum, times eps of the result
EPS = {DType.F32: 2.0**-24, DType.F64: 2.0**-53, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}


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


def viewed(case: Case, a: Any, b: Any) -> tuple[Array, Array]:
    """What the reference sees after the case's views, in float64."""
    g = Builder("views")
    x, y = case.view(g.input("a", a.shape, "f64"), g.input("b", b.shape, "f64"))
    left, right = compile(g.finish(x + 0.0, y + 0.0), device="reference").run(a.astype(np.float64), b.astype(np.float64))
    return left, right


def error_bound(a: Array, b: Array, d: DType) -> Any:
    """Of a sum in any order: one rounding a term in the type of the sums, then one of the result; a product of f16 may be subnormal."""
    size = np.abs(a) @ np.abs(b)
    return np.asarray((a.shape[-1] + 1) * EPS[d.accumulator] * size + EPS[d] * (size if d is d.accumulator else 1.01 * np.abs(a @ b)) + (2.0**-24 if d is DType.F16 else 0))


@pytest.mark.parametrize("d", EPS, ids=lambda d: d.text)
@pytest.mark.parametrize("isa", ISAS)
def test_products(isa: str, d: DType, threads: int) -> None:
    graph, weights, given = product_graph(CASES, d)
    with settings.override(isa=isa):
        f = compile(graph, weights, device="cpu", options=CompileOptions(debug=True), wait=True)
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
        f = compile(b.finish(b.input("a", a.shape, d) @ b.input("w", w.shape, d)), device="cpu", wait=True)
        np.testing.assert_array_equal(f.run(a, w), a @ w)


def test_sizes_known_at_run_time(threads: int) -> None:
    m, n, k = sym("M", 0, 300), sym("N", 0, 100), sym("K", 0, 100)
    b = Builder("sizes")
    x, y, w = b.input("x", (3, m, k)), b.input("y", (3, k, n)), b.param("w", (40, 33))
    bias = b.input("bias", (n,))
    f = compile(b.finish((x @ y + bias).relu(), b.input("z", (3, m, 40)) @ w), {"w": np.ones((40, 33), np.float32)}, device="cpu", options=CompileOptions(debug=True), wait=True)
    rng = np.random.default_rng(0)
    for sizes in ((5, 7, 9), (0, 7, 9), (5, 0, 9), (5, 7, 0), (300, 100, 100), (1, 33, 2), (97, 16, 1)):
        rows, columns, depth = sizes
        left, right, z = (rng.normal(size=s).astype(np.float32) for s in ((3, rows, depth), (3, depth, columns), (3, rows, 40)))
        shift = rng.normal(size=columns).astype(np.float32)
        got = f.run(left, right, shift, z)
        np.testing.assert_allclose(got[0], np.maximum(left.astype(np.float64) @ right + shift, 0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(got[1], np.broadcast_to(z.sum(-1, keepdims=True), (3, rows, 33)), rtol=0, atol=1e-4)


def test_any_rows_pass_over_every_panel_once(threads: int) -> None:
    """How panels are shared among tasks depends on the rows, the depth, and how many panels there are; the last is not a whole one."""
    m, rng, b = sym("M", 0, 300), np.random.default_rng(6), Builder("panels")
    weights = {f"w{d}": rng.normal(size=(d, 723)).astype(np.float32) for d in (8, 300, 2100)}
    graph = b.finish(*(b.input(f"x{w.shape[0]}", (m, w.shape[0])) @ b.param(name, w.shape) for name, w in weights.items()))
    with settings.override(isa=VECTORS):
        f = compile(graph, weights, device="cpu", options=CompileOptions(debug=True), wait=True)
    for rows in (0, 1, 2, 3, 16, 97, 200, 300):
        given = [rng.normal(size=(rows, w.shape[0])).astype(np.float32) for w in weights.values()]
        for x, w, got in zip(given, weights.values(), f.run(*given), strict=True):
            assert np.all(np.abs(got - x.astype(np.float64) @ w) <= error_bound(x, w, DType.F32))


def chains(x: Any, w: Any, u: Any, bias: Any, residual: Any) -> tuple[Any, ...]:
    """bias, activation, residual of another walk, scale; two products of one input."""
    lefts = [x, -x, x.abs(), x.square()]  # different ones, so that no product has two readers
    return (lefts[0] @ w + bias).gelu(), (lefts[1] @ w) * 0.25 + residual.T, (lefts[2] @ w).silu() * (lefts[2] @ u), (lefts[3] @ w) * 3.0 + bias


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
        f = compile(graph, arrays, device=device, options=CompileOptions(debug=True), wait=True)
        results.append(f.run(*(a for k, a in arrays.items() if not (weights and k in "wu"))))
        if device == "cpu":
            assert {row["tier"] for row in f.dispatch()} == {"kernel"}
            assert {"cpu/fused.matmul", "cpu/fused.gated_mlp"} <= {row["kernel"] for row in f.dispatch()}
    for got, want in zip(*results, strict=True):
        scale = np.abs(want.astype(np.float64)).max()
        assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= 40 * EPS[d] * scale


def test_a_weight_replaced_is_packed_anew() -> None:
    b = Builder("set")
    f = compile(b.finish(b.input("x", (3, 4)) @ b.param("w", (4, 5))), {"w": np.zeros((4, 5), np.float32)}, device="cpu", wait=True)
    x = np.ones((3, 4), np.float32)
    assert not f.run(x).any()
    f.set_param("w", np.full((4, 5), 2, np.float32))
    np.testing.assert_array_equal(f.run(x), np.full((3, 5), 8, np.float32))


# ---- matrix units: where this CPU has none, the C that stands for them
TILES = next((isa.name for isa in available() if "amx" in isa.features), f"{ISAS[0]}+amx_emulated")
LARGE = {**{k: c for k, c in CASES.items() if 0 not in (*c.left, *c.right)}, "a long sum": Case((35, 600), (600, 40), True), "a long sum of activations": Case((2, 40, 600), (600, 17))}
ULPS = {"highest": 2.0**-23, "high": 2.0**-15, "medium": 2.0**-7}  # an operand's relative error, times the sum of magnitudes: more than enough


def on_tiles(graph: Any, weights: dict[str, Array], numerics: str, isa: str = TILES) -> Any:
    with settings.override(isa=isa):
        return compile(graph, weights, device="cpu", options=CompileOptions(debug=True, numerics=numerics), wait=True)


def product_graph(cases: dict[str, Case], d: DType) -> tuple[Any, dict[str, Array], list[Array]]:
    b, weights, given, outputs = Builder("tiles"), dict[str, Array](), list[Array](), list[Any]()
    for k, case in enumerate(cases.values()):
        left, right = arrays_of(case, d, k)
        x = b.input(f"a{k}", left.shape, d)
        w = b.param(f"w{k}", right.shape, d) if case.weight else b.input(f"b{k}", right.shape, d)
        given += [left] if case.weight else [left, right]
        weights |= {f"w{k}": right} if case.weight else {}
        left_view, right_view = case.view(x, w)
        outputs.append(left_view @ right_view)
    return b.finish(*outputs), weights, given


@pytest.mark.parametrize(("numerics", "d"), [*((n, DType.F32) for n in ULPS), ("highest", DType.BF16)])
def test_products_on_tiles(numerics: str, d: DType, threads: int) -> None:
    graph, weights, given = product_graph(LARGE, d)
    f = on_tiles(graph, weights, numerics)
    row = "matmul.amx" if d is DType.BF16 else {"highest": "matmul.amx_x6", "high": "matmul.amx_x3", "medium": "matmul.amx_bf16"}[numerics]
    assert any(r["kernel"] == f"cpu/{row}" for r in f.dispatch())
    for _ in range(2):
        for (name, case), got, k in zip(LARGE.items(), f.run(*given), range(len(LARGE)), strict=True):
            x, y = viewed(case, *arrays_of(case, d, k))
            bound = error_bound(x, y, d) if d is DType.BF16 else error_bound(x, y, d) + ULPS[numerics] * (np.abs(x) @ np.abs(y))
            assert np.all(np.abs(got.astype(np.float64) - x @ y) <= bound), name


@pytest.mark.parametrize("depth", [40, 384, 1536])
def test_six_products_of_planes_are_as_exact_as_f32(depth: int) -> None:
    """Root mean square error against float64, beside NumPy's f32 product."""
    rng = np.random.default_rng(depth)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((48, depth), (depth, 32)))
    b = Builder("exact")
    f = on_tiles(b.finish(b.input("x", x.shape) @ b.param("w", w.shape)), {"w": w}, "highest")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/matmul.amx_x6"]
    want = x.astype(np.float64) @ w
    ours, theirs = (float(np.sqrt(np.mean((got - want) ** 2))) for got in (f.run(x), x @ w))
    assert ours <= 1.05 * theirs


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="tile instructions were not compiled: they are x86-64's")
@pytest.mark.parametrize("numerics", ULPS)
def test_the_real_instructions_compile(numerics: str) -> None:
    assert not isinstance(reason, str)
    cpu, (graph, _, _) = Cpu(named("avx512+amx")), product_graph({"one": Case((64, 40), (40, 33), True)}, DType.F32)
    plan, _, _ = lower(graph, replace(cpu.spec, facts={**cpu.spec.facts, "numerics": numerics}), CompileOptions(numerics=numerics))
    assert cpu.isa.features == {"amx"}
    assert build(cpu.program(plan, cpu.isa).source, cpu.isa, reason).is_file()


def test_types_of_one_scheme_share_its_functions() -> None:
    b = Builder("types")
    x, y = b.input("x", (33, 40)), b.input("y", (33, 40), "bf16")
    graph = b.finish(x @ b.param("w", (40, 17)), y @ b.param("v", (40, 17), "bf16"))
    w = np.random.default_rng(0).integers(-3, 4, (40, 17)).astype(np.float32)
    f = on_tiles(graph, {"w": w, "v": w.astype(DType.BF16.numpy)}, "medium")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/matmul.amx_bf16", "cpu/matmul.amx"]
    for got in f.run(np.ones((33, 40), np.float32), np.ones((33, 40), DType.BF16.numpy)):
        np.testing.assert_array_equal(got.astype(np.float32), np.broadcast_to(w.sum(axis=0), (33, 17)))


def test_too_few_rows_stay_off_the_tiles_and_explain_says_why() -> None:
    b = Builder("few")
    f = on_tiles(b.finish(b.input("x", (16, 8)) @ b.param("w", (8, 8))), {"w": np.ones((8, 8), np.float32)}, "highest")
    assert [row["kernel"] for row in f.dispatch()] == ["cpu/matmul"]
    assert "not cpu/matmul.amx_x6: out.shape[-2] GE 32: out.shape[-2] = 16" in f.explain()


SPECIAL = [np.inf, -np.inf, np.nan, 3.4e38, -3.39e38, 1e-40, 2.0**-149, 1e30]


@pytest.mark.parametrize("numerics", ULPS)
@pytest.mark.parametrize("weight", [True, False])
def test_numbers_that_planes_cannot_hold_give_what_f32_gives(numerics: str, weight: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((70, 40), (40, 50)))
    for k, v in enumerate(SPECIAL):
        x[3 * k, 5 * k % 40], w[7 * k % 40, 6 * k] = v, v
    x[60] *= np.float32(1e-37)  # a row of subnormal products
    b = Builder("special")
    left_in, right_in = b.input("x", x.shape), b.param("w", w.shape) if weight else b.input("w", w.shape)
    f = on_tiles(b.finish(left_in @ right_in), {"w": w} if weight else {}, numerics)
    got = f.run(x) if weight else f.run(x, w)
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    with np.errstate(all="ignore"):
        want, size = x64 @ w64, np.abs(x64) @ np.abs(w64)
        rest = np.abs(np.where(np.isfinite(x), x64, 0)) @ np.abs(np.where(np.isfinite(w), w64, 0))
        dropped = 2.0**-133 * (np.abs(x64).sum(axis=1)[:, None] + np.abs(w64).sum(axis=0))  # bf16 has no bits below 2^-133
    finite = size < 1e38  # a sum of larger terms may overflow on its way
    assert np.all(np.abs(got[finite] - want[finite]) <= (ULPS[numerics] + 41 * 2.0**-24) * size[finite] + dropped[finite])
    special = ~np.isfinite(want) & (rest < 1e38)
    assert special.sum() > 100
    np.testing.assert_array_equal(got[special], want[special])


@pytest.mark.parametrize(("numerics", "few", "many"), [("highest", "cpu/matmul", ["cpu/matmul.amx_x6"]), ("high", "cpu/matmul.amx_x3", [])])
def test_few_rows_at_run_time_on_tiles(numerics: str, few: str, many: list[str]) -> None:
    """Six bytes of a weight are more than a kernel of few rows should read, four are what any kernel reads."""
    m = sym("M", 0, 64)
    rng = np.random.default_rng(0)
    w = rng.normal(size=(70, 50)).astype(np.float32)
    b = Builder("few")
    f = on_tiles(b.finish(b.input("x", (m, 70)) @ b.param("w", w.shape)), {"w": w}, numerics)
    assert [r["kernel"] for r in f.dispatch()] == [few]
    assert [c.name for s in f.plan.steps for _, c in s.choice.bands] == many
    for rows in (0, 1, 4, 5, 17, 64):
        x = rng.normal(size=(rows, 70)).astype(np.float32)
        np.testing.assert_allclose(f.run(x), x.astype(np.float64) @ w, rtol=0, atol=3e-4)


def test_gated_products_on_tiles_give_what_the_reference_gives() -> None:
    shapes = {"x": (3, 40, 33), "w": (33, 31), "u": (33, 31), "bias": (1, 31), "residual": (3, 31, 40)}
    rng = np.random.default_rng(2)
    arrays = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    b = Builder("chains")
    leaf = {k: b.param(k, s) if k in "wu" else b.input(k, s) for k, s in shapes.items()}
    graph = b.finish(*chains(leaf["x"], leaf["w"], leaf["u"], leaf["bias"], leaf["residual"]))
    given = [a for k, a in arrays.items() if k not in "wu"]
    f = on_tiles(graph, arrays, "highest")
    assert {"cpu/fused.matmul.amx_x6", "cpu/fused.gated_mlp.amx_x6"} <= {str(r["kernel"]) for r in f.dispatch()}
    for got, want in zip(f.run(*given), compile(graph, arrays, device="reference").run(*given), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)
