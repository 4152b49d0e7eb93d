"""Products of one left operand in one launch: to the last byte what they give apart, in no more memory, and only where they stand side by side."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from samples import ISAS, VECTORS

from rlxpy import Builder, CompileOptions, Graph, compile, settings, sym
from rlxpy.backends.cpu import backend, threads as pool
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import available
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.backends.reference import Reference
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.fusion.pipeline import fusion_report, run, standard
from rlxpy.fusion.products import FuseProducts
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Value
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.encoding import encoding
from rlxpy.ir.op import Op
from rlxpy.ir.quantize import quantize
from rlxpy.tools.emit import emit

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
TILES = next((isa.name for isa in available() if "amx" in isa.features), f"{ISAS[0]}+amx_emulated")
DEPTH, COLUMNS, MOST = 64, (48, 33, 16), 70
T = sym("T", 0, MOST)
KINDS = ("f32", "bf16", "q4_0", "q6_k")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = pool.limit()
    pool.set_threads(request.param)
    yield request.param
    pool.set_threads(before)


def depth_of(kind: str) -> int:
    return 256 if kind == "q6_k" else DEPTH


def linear(b: Builder, x: Value, name: str, columns: int, kind: str) -> Value:
    if kind in ("f32", "bf16"):
        return x @ b.param(f"{name}.0", (columns, depth_of(kind)), kind).T  # type: ignore[no-any-return]
    planes = [b.param(f"{name}.{k}", p.shape, str(p.dtype)) for k, p in enumerate(stored(kind, columns, 0))]
    return x.qmatmul(*planes, encoding=kind, shape=(columns, depth_of(kind)))  # type: ignore[no-any-return]


def stored(kind: str, columns: int, seed: int) -> tuple[Array, ...]:
    """A weight's planes."""
    rng, depth = np.random.default_rng(seed), depth_of(kind)
    if kind == "q6_k":  # rounding does not write it: any codes, and scales that keep them small
        e = encoding(kind)
        w = rng.integers(0, 256, (columns, e.row_nbytes(depth)), dtype=np.uint8)
        w.reshape(columns, -1, e.block_nbytes)[..., -2:] = np.frombuffer(np.float16(1e-3).tobytes(), np.uint8)
        return (w,)
    numbers = rng.normal(size=(columns, depth)).astype(np.float32)
    return (numbers.astype(dtype(kind).numpy),) if kind in ("f32", "bf16") else quantize(numbers, kind)


def attentive(kind: str, turned: bool = False) -> Graph:
    """Queries, keys and values of a layer, [2, T, depth]: one with a bias and an activation, one with a residual, heads apart.  turned: x lies otherwise."""
    b, depth = Builder("layer"), depth_of(kind)
    x = b.input("x", (T, 2, depth) if turned else (2, T, depth), "bf16" if kind == "bf16" else "f32")
    x = x.transpose(perm=(1, 0, 2)) if turned else x
    beside = b.input("beside", (2, T, COLUMNS[1]), x.dtype)
    q, k, v = (linear(b, x, f"w{i}", n, kind) for i, n in enumerate(COLUMNS))
    q = F.reshape((q + b.param("bias", (COLUMNS[0],), x.dtype)).silu(), (2, T, 3, 16)).transpose(perm=(0, 2, 1, 3))
    return b.finish(q, k + beside, v)


def params_of(kind: str) -> dict[str, Array]:
    made = {f"w{i}.{k}": p for i, n in enumerate(COLUMNS) for k, p in enumerate(stored(kind, n, i))}
    bias = np.random.default_rng(7).normal(size=COLUMNS[0]).astype(dtype("bf16" if kind == "bf16" else "f32").numpy)
    return {**made, "bias": bias}


def inputs_of(kind: str, t: int, turned: bool) -> tuple[Array, Array]:
    rng, d = np.random.default_rng(t), dtype("bf16" if kind == "bf16" else "f32").numpy
    return rng.normal(size=(t, 2, depth_of(kind)) if turned else (2, t, depth_of(kind))).astype(d), rng.normal(size=(2, t, COLUMNS[1])).astype(d)


def compiled(graph: Graph, params: Any, numerics: str = "highest", isa: str = VECTORS, *, abreast: bool = True) -> CompiledGraph:
    options = CompileOptions(weights="packed", numerics=numerics, debug=True)
    with settings.override(isa=isa), pytest.MonkeyPatch.context() as patch:
        if not abreast:
            patch.setattr(backend, "FUSES", backend.FUSES - {"products"})
            patch.setattr(backend, "_spec", backend._spec.__wrapped__)
        return compile(graph, params, device="cpu", options=options, wait=True)


def exactly(kind: str, params: dict[str, Array], x: Array, beside: Array) -> list[Array]:
    """In f64."""
    planes = [tuple(p for name, p in params.items() if name.startswith(f"w{i}.")) for i in range(3)]
    dense = [p[0] if kind in ("f32", "bf16") else encoding(kind).decode(p, depth_of(kind)) for p in planes]
    q, k, v = (x.astype(np.float64) @ w.astype(np.float64).T for w in dense)
    q = q + params["bias"].astype(np.float64)
    return [(q / (1 + np.exp(-q))).reshape(2, -1, 3, 16).transpose(0, 2, 1, 3), k + beside.astype(np.float64), v]


WAYS = (("f32", "highest", VECTORS, False), ("bf16", "highest", VECTORS, True), ("q4_0", "highest", VECTORS, True), ("q4_0", "low", VECTORS, False),
        ("q6_k", "low", ISAS[-1], True), ("int8_rows", "low", VECTORS, True), ("f32", "medium", TILES, True), ("q4_0", "low", TILES, True))


@needs_compiler
@pytest.mark.parametrize(("kind", "numerics", "isa", "turned"), WAYS, ids=lambda v: str(v))
def test_together_is_what_they_are_apart(kind: str, numerics: str, isa: str, turned: bool, threads: int) -> None:
    """Each byte of it, and near to f64; every number of rows meets the row that serves it."""
    graph, params = attentive(kind, turned), params_of(kind)
    together, apart = (compiled(graph, params, numerics, isa, abreast=on) for on in (True, False))
    (step,) = together.plan.steps
    assert step.node.kind == "products"
    assert len(apart.plan.steps) == 3
    assert together.memory()["arena_nbytes"] <= apart.memory()["arena_nbytes"]
    assert together.memory().get("packed_nbytes") == apart.memory().get("packed_nbytes")
    loss = {"bf16": 0.02}.get(kind, 1e-5 if numerics == "highest" else 0.02)
    for t in (MOST, 1, 0, 5, 33):
        given = inputs_of(kind, t, turned)
        exact = exactly(kind, params, given[0].swapaxes(0, 1) if turned else given[0], given[1])
        for got, want, right in zip(together.run(*given), apart.run(*given), exact, strict=True):
            assert got.tobytes() == want.tobytes()
            np.testing.assert_allclose(got.astype(np.float64), right, rtol=0, atol=loss * max(1.0, np.abs(right).max(initial=0)))


@needs_compiler
@pytest.mark.parametrize(("kind", "numerics", "isa", "launches"), [
    ("q4_0", "low", "avx2", {"cpu/fused.qproducts.int8": 2}), ("q4_0", "highest", "avx2", {"cpu/fused.qproducts": 1}), ("f32", "medium", "avx512+amx", {"cpu/fused.products.amx_bf16": 2}),
    ("q4_0", "medium", "avx512+amx", {"cpu/fused.qproducts.amx": 2, "cpu/fused.qproducts": 1}), ("bf16", "highest", "avx2", {"cpu/fused.products": 2}),
])
def test_the_left_operand_is_prepared_once(kind: str, numerics: str, isa: str, launches: dict[str, int]) -> None:
    """There is one launch that rounds, widens or splits it, where that is done, and one of all columns."""
    made = emit(attentive(kind), isa=isa, options=CompileOptions(weights="packed", numerics=numerics)).launches
    assert Counter(launch["kernel"] for launch in made) == launches


@needs_compiler
def test_a_weight_replaced_is_packed_anew() -> None:
    graph, params = attentive("q4_0"), params_of("q4_0")
    f, given = compiled(graph, params, "low"), inputs_of("q4_0", 5, False)
    before = f.run(*given)
    f.set_param("w1.0", params["w1.0"][::-1].copy())
    q, k, v = f.run(*given)
    assert (q.tobytes(), v.tobytes()) == (before[0].tobytes(), before[2].tobytes())
    want = compiled(graph, {**params, "w1.0": params["w1.0"][::-1].copy()}, "low").run(*given)[1]
    assert k.tobytes() == want.tobytes()


# ---- the pass
def kinds(graph: Graph) -> list[str]:
    return [n.kind or n.op.text for n in graph if n.op in (Op.FUSED, Op.MATMUL, Op.QMATMUL)]


def side_by_side(between: str) -> Graph:
    b = Builder("pass")
    x, y = b.input("x", (3, 4)), b.input("y", (3, 4))
    w, u = b.param("w", (4, 4)), b.param("u", (4, 4), "f16" if between == "another type" else "f32")
    first = x @ w
    if between == "work":
        return b.finish(first.exp(), x @ u)
    if between == "one of the other":
        return b.finish(first, first @ u)
    if between == "other lefts":
        return b.finish(first, y @ u)
    if between == "no weight":
        return b.finish(first, x @ (y.T @ y))
    if between == "another type":
        return b.finish(first, x.cast(to=dtype("f16")) @ u)
    view = first.T
    return b.finish(view, (x @ u)[1:], x @ b.param("v", (5, 4)).T)


@pytest.mark.parametrize(("between", "found"), [
    ("views", ["products"]), ("work", ["matmul", "matmul"]), ("one of the other", ["matmul", "matmul"]), ("other lefts", ["matmul", "matmul"]),
    ("no weight", ["matmul", "matmul", "matmul"]), ("another type", ["matmul", "matmul"]),
])
def test_only_neighbours_become_one(between: str, found: list[str]) -> None:
    """Nothing is made earlier than it was needed, and nothing lives longer."""
    graph = side_by_side(between)
    after, notes = FuseProducts().noted(graph)
    assert kinds(after) == found
    assert [(n.kind, n.label) for n in notes] == [("fused", "products")] * found.count("products")
    if found != ["products"]:
        assert after is graph
    rng = np.random.default_rng(0)
    params = {n.name: rng.normal(size=n.type.shape).astype(n.type.dtype.numpy) for n in graph.params}
    given = [rng.normal(size=(3, 4)).astype(np.float32) for _ in graph.inputs]
    for got, want in zip(*(compile(g, params, device="reference", options=CompileOptions(optimise=False)).run(*given) for g in (after, graph)), strict=True):
        np.testing.assert_array_equal(got, want)


@needs_compiler
def test_who_says_so_gets_it_and_reports_tell() -> None:
    cpu = compiled(attentive("f32"), params_of("f32"))
    (hit,) = (h for h in fusion_report(cpu.report).hits if h.label == "products")
    assert "matmul : f32[2,T,16], fused matmul : f32[2,T,48], fused matmul : f32[2,T,33]" in str(hit)
    assert "cpu/fused.products" in [row["kernel"] for row in cpu.dispatch()]
    for spec in (Reference().spec, Gpu(VENDORS["cuda"]).spec):
        assert "products" not in kinds(run(attentive("f32"), standard(spec))[0])


@needs_compiler
def test_a_row_that_is_asked_for_keeps_its_products_apart() -> None:
    with settings.override(force_row=("cpu/matmul",)):
        f = compiled(attentive("f32"), params_of("f32"))
    assert [s.choice.name for s in f.plan.steps if s.node.op is Op.MATMUL] == ["cpu/matmul"] * 3
