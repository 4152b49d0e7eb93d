"""Products on the simulated GPU against sums in float64: the cases of the cpu's tests, every type, few rows and many."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_device import fact, gpu as gpu, opened, running
from sim_device import needs_clang
from test_cpu_products import CASES, EPS, arrays_of, chains, error_bound, product_graph, viewed
from test_packed_kernels import BOUND, ROWS, depth_of, size, weights

from rlxpy import Builder, CompileOptions, DType, Op, compile, sym
from rlxpy.backends.cpu.blocks import BLOCKS
from rlxpy.backends.gpu import units
from rlxpy.backends.gpu.attention_few import PART_KEYS
from rlxpy.backends.gpu.backend import spec_of
from rlxpy.backends.gpu.sim import Simulation
from rlxpy.ir.encoding import encoding
from rlxpy.tools.cases import samples

Array = np.ndarray[Any, Any]
DEBUG = CompileOptions(debug=True)


def kernels_of(f: Any) -> set[str]:
    """At any size."""
    return {v.choice.name for s in f.plan.steps for v in s.variants}


@pytest.fixture(params=["rocm gfx1030", "rocm gfx90a", "cuda"])
def plain(request: pytest.FixtureRequest) -> Iterator[str]:
    """In simulation without matrix units, or only with such as are less exact."""
    with running(str(request.param)) as name:
        yield name


@pytest.mark.parametrize("d", EPS, ids=lambda d: d.text)
def test_products(plain: str, d: DType) -> None:
    graph, weights, given = product_graph(CASES, d)
    f = compile(graph, weights, device=plain, options=DEBUG)
    assert {name.endswith(".few") for name in kernels_of(f) if name.startswith("gpu/matmul")} == {True, False}
    for _ in range(2):
        for (name, case), got, k in zip(CASES.items(), f.run(*given), range(len(CASES)), strict=True):
            want_of = viewed(case, *arrays_of(case, d, k))
            assert got.dtype == d.numpy
            assert np.all(np.abs(got.astype(np.float64) - np.matmul(*want_of)) <= error_bound(*want_of, d)), name


def test_whole_numbers_wrap(gpu: str) -> None:
    rng = np.random.default_rng(0)
    b, given, want = Builder("wraps"), list[Array](), list[Array]()
    outputs = []
    for d in (DType.I8, DType.I64, DType.U16):
        for rows in (5, 20):
            a, w = (rng.integers(-100, 100, s).astype(d.numpy) for s in ((3, rows, 7), (3, 7, 70)))
            outputs.append(b.input(f"a{len(given)}", a.shape, d) @ b.input(f"w{len(given)}", w.shape, d))
            given += [a, w]
            want.append(a @ w)
    f = compile(b.finish(*outputs), device=gpu, options=DEBUG)
    for got, exact in zip(f.run(*given), want, strict=True):
        np.testing.assert_array_equal(got, exact)


def test_sizes_known_at_run_time(gpu: str) -> None:
    m, n, k = sym("M", 0, 300), sym("N", 0, 100), sym("K", 0, 100)
    b = Builder("sizes")
    x, y, w = b.input("x", (3, m, k)), b.input("y", (3, k, n)), b.param("w", (40, 33))
    bias = b.input("bias", (n,))
    f = compile(b.finish((x @ y + bias).relu(), b.input("z", (3, m, 40)) @ w), {"w": np.ones((40, 33), np.float32)}, device=gpu, options=DEBUG)
    assert kernels_of(f) >= {f"gpu/{kind}{form}" for kind in ("matmul", "fused.matmul") for form in ("", ".few", ".one")}
    rng = np.random.default_rng(0)
    for rows, columns, depth in ((5, 7, 9), (0, 7, 9), (5, 0, 9), (5, 7, 0), (70, 100, 100), (1, 33, 2), (97, 16, 1), (8, 2, 3), (9, 2, 3)):
        left, right, z = (rng.normal(size=s).astype(np.float32) for s in ((3, rows, depth), (3, depth, columns), (3, rows, 40)))
        shift = rng.normal(size=columns).astype(np.float32)
        got = f.run(left, right, shift, z)
        np.testing.assert_allclose(got[0], np.maximum(left.astype(np.float64) @ right + shift, 0), rtol=0, atol=1e-4)
        np.testing.assert_allclose(got[1], np.broadcast_to(z.sum(-1, keepdims=True), (3, rows, 33)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("d", [DType.F32, DType.BF16], ids=lambda d: d.text)
def test_epilogues_give_what_the_reference_gives(gpu: str, d: DType) -> None:
    rng = np.random.default_rng(1)
    results = []
    heights = (7, 19)
    arrays = dict[str, Array]()
    for rows in heights:
        shapes = {"x": (2, rows, 20), "w": (20, 11), "u": (20, 11), "bias": (11, 1), "residual": (2, 11, rows)}
        arrays |= {f"{k}{rows}": rng.normal(size=s).astype(d.numpy) for k, s in shapes.items()}
    for device in (gpu, "reference"):
        b = Builder("chains")
        leaf = {k: b.input(k, a.shape, d) for k, a in arrays.items()}
        outputs = [y for n in heights for y in chains(leaf[f"x{n}"], leaf[f"w{n}"], leaf[f"u{n}"], leaf[f"bias{n}"].T, leaf[f"residual{n}"])]
        f = compile(b.finish(*outputs), device=device, options=DEBUG)
        results.append(f.run(*arrays.values()))
        if device == gpu:
            for kind in ("gpu/fused.matmul", "gpu/fused.gated_mlp"):  # few rows by the one form, many by another
                assert {name.endswith(".few") for name in kernels_of(f) if name.startswith(kind)} == {True, False}
    for got, want in zip(*results, strict=True):
        scale = np.abs(want.astype(np.float64)).max()
        assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= 40 * EPS[d] * scale


# ---- packed weights
def test_every_encoding(gpu: str) -> None:
    """One product of few rows and many and one whole matrix of each, all in one graph; in simulation every other encoding on each wave size."""
    names = BLOCKS if gpu == "cuda" else BLOCKS[fact(gpu, "wave") == 64::2]
    b, params, outputs = Builder("packed"), dict[str, Array](), list[Any]()
    m = sym("M", 0, 40)
    for name in names:
        depth = depth_of(name)
        params[name] = weights(name, ROWS, depth)
        w = b.param(name, params[name].shape, "u8")
        outputs += [b.input(f"x_{name}", (m, depth)).qmatmul(w, encoding=name, shape=(ROWS, depth)), w.dequantize(encoding=name, shape=(ROWS, depth)) * 1.0]
    f = compile(b.finish(*outputs), params, device=gpu, options=CompileOptions(weights="packed", debug=True))
    assert kernels_of(f) >= {"gpu/qmatmul", "gpu/qmatmul.few", "gpu/dequantize"}
    rng = np.random.default_rng(1)
    for count in (0, 1, 5, 8, 37):
        given = [rng.normal(size=(count, depth_of(name))).astype(np.float32) for name in params]
        results = f.run(*given)
        for k, (name, x) in enumerate(zip(params, given, strict=True)):
            got, dense = results[2*k], results[2*k + 1]
            exact = encoding(name).decode((params[name],), x.shape[1])
            assert (np.abs(dense - exact) <= 2.0**-22 * size(name, exact)).all(), f"{name}: the matrix"
            error = np.abs(got - x.astype(np.float64) @ exact.T.astype(np.float64))
            assert (error <= BOUND * (np.abs(x) @ size(name, exact).T)).all(), f"{name}, {count} rows: {error.max()}"


def test_epilogues_of_packed_weights(gpu: str) -> None:
    """Two encodings of different blocks in one node, rows that are no single walk, a batch of dequantised matrices."""
    depth, rng = 512, np.random.default_rng(2)
    params = {"gate": weights("q4_k", ROWS, depth), "up": weights("q8_0", ROWS, depth, 1), "table": weights("q4_0", 6, 64, 2).reshape(2, 3, -1)}
    x, bias = rng.normal(size=(2, 5, 3, depth)).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)
    results = []
    for device in (gpu, "reference"):
        b = Builder("packed chains")
        given, shift = b.input("x", x.shape), b.input("bias", bias.shape)
        gate, up = (b.param(k, params[k].shape, "u8") for k in ("gate", "up"))
        turned = given.transpose(perm=(2, 0, 1, 3))
        outputs = []
        for rows in (turned, turned[:, 0, ::2], given.reshape(shape=(30, depth))):
            y = [rows.qmatmul(w, encoding=e, shape=(ROWS, depth)) for w, e in ((gate, "q4_k"), (up, "q8_0"))]
            other = (-rows).qmatmul(up, encoding="q8_0", shape=(ROWS, depth))
            outputs += [y[0].silu() * y[1], (other + shift).relu()]
        outputs.append(b.param("table", (2, 3, 36), "u8").dequantize(encoding="q4_0", shape=(2, 3, 64)) * 1.0)
        f = compile(b.finish(*outputs), params, device=device, options=CompileOptions(weights="packed", debug=True))
        results.append(f.run(x, bias))
        if device == gpu:
            assert kernels_of(f) >= {"gpu/fused.qgated_mlp", "gpu/fused.qgated_mlp.few", "gpu/fused.qmatmul", "gpu/fused.qmatmul.few"}
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_a_vector_times_packed_weights_is_no_matrix(gpu: str) -> None:
    (sample,) = (s for s in samples(Op.QMATMUL, frozenset({DType.F32})) if len(s.case.shapes[0]) == 1)
    arrays = sample.arrays()
    f = compile(sample.graph(), device=gpu, options=DEBUG)
    assert "gpu/qmatmul" not in kernels_of(f)
    np.testing.assert_allclose(f(*arrays), sample.reference(arrays)[0], rtol=1e-5, atol=1e-5)


# ---- matrix units
LARGE = {k: CASES[k] for k in ("weights", "a batch that is more rows", "weights transposed", "both transposed", "a batch across", "heads", "steps and backwards")}


def on_units(gpu: str, d: DType, numerics: str, cases: dict[str, Any], unit: str) -> None:
    """Each product within what its operands lose by rounding, if anything."""
    graph, weights_, given = product_graph(cases, d)
    f = compile(graph, weights_, device=gpu, options=CompileOptions(debug=True, numerics=numerics))
    assert any(unit in name for name in kernels_of(f))
    for (name, case), got, k in zip(cases.items(), f.run(*given), range(len(cases)), strict=True):
        x, y = viewed(case, *arrays_of(case, d, k))
        lost = 2.0**-7 * (np.abs(x) @ np.abs(y)) if d is DType.F32 else 0
        assert np.all(np.abs(got.astype(np.float64) - x @ y) <= error_bound(x, y, d) + lost), name


@pytest.mark.parametrize(("d", "numerics"), [(DType.F32, "medium"), (DType.BF16, "highest"), (DType.F16, "highest")], ids=str)
def test_products_on_matrix_units(gpu: str, d: DType, numerics: str) -> None:
    on_units(gpu, d, numerics, LARGE, {"gfx1100": "wmma", "gfx942": "mfma"}.get(fact(gpu, "arch"), "mma"))


def test_packed_weights_and_epilogues_on_matrix_units(gpu: str) -> None:
    """Operands are rounded to bf16; what follows is not."""
    depth, rng = 256, np.random.default_rng(3)
    params = {"gate": weights("q4_k", ROWS, depth), "up": weights("q4_0", ROWS, depth, 1)}
    x, bias = rng.normal(size=(2, 11, depth)).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)
    b = Builder("packed on units")
    given, shift = b.input("x", x.shape), b.input("bias", bias.shape)
    gate, up = (given.qmatmul(b.param(k, params[k].shape, "u8"), encoding=e, shape=(ROWS, depth)) for k, e in (("gate", "q4_k"), ("up", "q4_0")))
    other = (-given).qmatmul(b.param("again", params["up"].shape, "u8"), encoding="q4_0", shape=(ROWS, depth))
    f = compile(b.finish(gate.maximum(0.0) * up, other + shift), {**params, "again": params["up"]}, device=gpu,
                options=CompileOptions(weights="packed", debug=True, numerics="medium"))
    assert {name.rpartition(".")[0] for name in kernels_of(f)} >= {"gpu/fused.qmatmul", "gpu/fused.qgated_mlp"}
    dense = {k: encoding(e).decode((params[k],), depth).astype(np.float64).T for k, e in (("gate", "q4_k"), ("up", "q4_0"))}
    rounded = {k: w.astype(DType.BF16.numpy).astype(np.float64) for k, w in dense.items()}
    narrow = x.astype(DType.BF16.numpy).astype(np.float64)
    products = {k: narrow @ w for k, w in rounded.items()}
    got = f.run(x, bias)
    for result, want in zip(got, (np.maximum(products["gate"], 0) * products["up"], bias - products["up"]), strict=True):
        np.testing.assert_allclose(result, want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.fixture(params=["gfx90a", "gfx942", "gfx1151", "gfx1201"])
def machine(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Of every matrix unit, a device that runs machine code."""
    yield from opened(request.param, "isa")


@needs_clang
def test_the_table_of_units_is_the_machines(machine: Simulation) -> None:
    """Which lane holds what, as machine code has it: a wrong cell gives wrong sums."""
    two = {k: CASES[k] for k in ("weights", "both transposed")}
    for d in (DType.BF16, DType.F16):
        on_units("rocm", d, "medium", two, "mfma" if machine.wave == 64 else "wmma")


@needs_clang
def test_a_wrong_cell_of_the_table_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNITS", tuple(replace(u, row=u.column, column=u.row) for u in units.UNITS))
    spec_of.cache_clear()
    for _ in opened("gfx1201", "isa"):
        with pytest.raises(AssertionError, match="weights"):
            on_units("rocm", DType.BF16, "medium", {"weights": CASES["weights"]}, "wmma")
    spec_of.cache_clear()


@needs_clang
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1030"])
def test_products_and_attention_as_machine_code(arch: str) -> None:
    """By AMD's own hipRTC where it is installed: few rows and many, lanes along the depth and across it, packed weights, both forms of attention."""
    rng = np.random.default_rng(4)
    shapes = {"x": (20, 24), "deep": (9, 24), "wide": (24, 37), "left": (3, 256), "q": (1, 4, 6, 16), "k": (1, 2, PART_KEYS + 3, 16), "v": (1, 2, PART_KEYS + 3, 16)}
    arrays = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    packed = weights("q4_k", ROWS, 256)
    results = []
    for device in ("rocm", "reference"):
        for _ in opened(arch, "isa"):
            b = Builder("machine")
            x, deep, wide, left, q, k, v = (b.input(name, shape) for name, shape in shapes.items())
            outputs = [y @ w for y in (x, x[3:6]) for w in (deep.T, wide)]
            outputs += [left.qmatmul(b.param("w", packed.shape, "u8"), encoding="q4_k", shape=(ROWS, 256))]
            outputs += [t.apply("attention", (t, k, v), {"scale": 0.25, "mask": "causal"}) for t in (q, q[:, :, 4:])]
            f = compile(b.finish(*outputs), {"w": packed}, device=device, options=CompileOptions(debug=True, weights="packed"))
            results.append(f.run(*arrays.values()))
        if device == "rocm":
            assert kernels_of(f) >= {"gpu/matmul", "gpu/matmul.few", "gpu/qmatmul.few", "gpu/attention", "gpu/attention.few"}
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())
