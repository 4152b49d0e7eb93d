"""int8 weights with one scale a row: products of whole numbers, bit for bit, on every instruction set; decoded at load wherever no kernel reads them."""
from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from gpu_device import on_host, running
from samples import ISAS, VECTORS

from rlxpy import Builder, CompileOptions, ModelFlow, Value, compile, settings, sym
from rlxpy.backends.cpu import rows8
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import available, named
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.session import lower
from rlxpy.flow.ctx import FlowCtx
from rlxpy.flow.weights import Renamed, Rounded, open_weights
from rlxpy.ir.dtypes import Array
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Graph
from rlxpy.ir.quantize import quantize


@dataclass(frozen=True)
class Linear:
    """A product with `w`, and the sum of one of its rows."""

    name: str = "linear"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        row = ctx.embedding(ctx.graph.const(np.array([5])), "w")
        return ctx.linear(x, "w") + row.sum(axes=(0, 1))  # type: ignore[no-any-return]


reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")

SHAPES = ((37, 100), (5, 3), (64, 1537), (17, 0), (0, 9))  # rows and depth of the weights: rests of tiles both ways, nothing to add up, no rows
COUNTS = (0, 1, 2, 3, 4, 5, 16, 17, 37, 131)  # left rows: none, each of the few, whole tiles and rests, more than a block for tiles
MOST = max(COUNTS)
EVERY = [*ISAS, *(f"{isa.name}+{emulated}" for isa in available() if isa.vector == 8 for emulated in ("vnni_emulated", "amx_emulated"))]


def drawn(shape: Sequence[int], seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@cache
def weights(rows: int, depth: int, seed: int = 0) -> tuple[Array, Array]:
    """Codes and scales."""
    codes, scales = quantize(drawn((rows, depth), seed), "int8_rows")
    return codes, scales


def exactly(x: Array, codes: Array, scales: Array) -> Array:
    """The product as docs/numerics.md defines it, in NumPy's whole numbers."""
    greatest = np.abs(x).max(-1, keepdims=True, initial=0)
    inverse = np.where(greatest < 2.0**-120, np.float32(0), np.float32(127) / np.maximum(greatest, np.float32(2.0**-120)))
    sums = np.rint(x * inverse).astype(np.int64) @ codes.astype(np.int64).T
    return np.asarray(sums.astype(np.float32) * scales[:, 0] * (greatest / np.float32(127)), np.float32)


def compiled(graph: Graph, params: dict[str, Array], numerics: str = "low", device: str = "cpu") -> CompiledGraph:
    return compile(graph, params, device=device, options=CompileOptions(weights="packed", numerics=numerics, debug=True), wait=True)


def kernels(f: CompiledGraph) -> set[str]:
    return {str(row["kernel"]) for row in f.dispatch()}


def multiplied(b: Builder, x: Any, name: str, shape: tuple[int, int], params: dict[str, Array], seed: int = 0) -> Any:
    """x times weights, which become params."""
    codes, params[f"{name}.scale"] = weights(*shape, seed)
    params[name] = codes
    return x.qmatmul(b.param(name, codes.shape, "i8"), b.param(f"{name}.scale", (shape[0], 1)), encoding="int8_rows", shape=shape)


def holds(counts: Sequence[int] = COUNTS) -> None:
    """Every shape and count in one graph; sums are equal bit for bit, twice."""
    b, params, m = Builder("law"), dict[str, Array](), sym("M", 0, MOST)
    f = compiled(b.finish(*(multiplied(b, b.input(f"x{k}", (m, depth)), f"w{k}", (rows, depth), params) for k, (rows, depth) in enumerate(SHAPES))), params)
    assert kernels(f) == {"cpu/qmatmul.int8_rows"}
    for count in counts:
        given = [drawn((count, depth), count) * 10.0**k for k, (_, depth) in enumerate(SHAPES)]
        want = [exactly(x, *weights(*shape)) for x, shape in zip(given, SHAPES, strict=True)]
        for _ in range(2):
            for got, exact in zip(f.run(*given), want, strict=True):
                np.testing.assert_array_equal(got, exact)


@needs_compiler
@pytest.mark.parametrize("isa", EVERY)
def test_whole_numbers_are_the_same_on_every_instruction_set(isa: str) -> None:
    with settings.override(isa=isa):
        holds()


@needs_compiler
def test_fours_in_another_order_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above sees a fault in how weights lie."""
    right = rows8.Fours.pack

    def wrong(self: rows8.Fours, given: Array, take: Any) -> Array:
        return np.ascontiguousarray(right(self, given, take)[..., ::-1])

    monkeypatch.setattr(rows8.Fours, "pack", wrong)
    with settings.override(isa=VECTORS), pytest.raises(AssertionError, match="not equal"):
        holds((3,))


@needs_compiler
@pytest.mark.parametrize("isa", [VECTORS, f"{ISAS[0]}+amx_emulated"])
def test_what_follows_is_fused_and_left_rows_lie_as_they_like(isa: str) -> None:
    """A batch, a turned operand, bias, activation and residual, a gated pair, and codes that a run computes."""
    shape, params, m = (37, 100), dict[str, Array](), sym("M", 1, 40)
    b = Builder("fused")
    x, turned, beside = b.input("x", (2, m, 100)), b.input("turned", (100, m)), b.input("beside", (2, m, 37))
    fresh = b.input("fresh", (100, 37), "i8")
    f_, gate, up = (multiplied(b, x, name, shape, params, seed) for seed, name in enumerate(("f", "gate", "up")))
    computed = turned.T.qmatmul(fresh.T, b.param("f.scale", (37, 1)), encoding="int8_rows", shape=shape)
    with settings.override(isa=isa):
        f = compiled(b.finish((f_ + b.param("bias", (37,))).relu() + beside, gate.silu() * up, computed * 2.0), {**params, "bias": drawn((37,), 9)})
    assert kernels(f) == {"cpu/fused.qmatmul.int8_rows", "cpu/fused.qgated_mlp.int8_rows"}
    for count in (1, 4, 40):
        given, other, sides = drawn((2, count, 100), 1), drawn((100, count), 2), drawn((2, count, 37), 3)
        codes = np.random.default_rng(count).integers(-127, 128, (100, 37)).astype(np.int8)
        plain, gated, doubled = f.run(given, other, sides, codes)
        a, g, u = (exactly(given, *weights(*shape, seed)) for seed in range(3))
        np.testing.assert_array_equal(plain, np.maximum(a + drawn((37,), 9), 0) + sides)
        np.testing.assert_allclose(gated, g / (1 + np.exp(-g.astype(np.float64))) * u, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(doubled, exactly(np.ascontiguousarray(other.T), codes.T, params["f.scale"]) * 2)


@needs_compiler
@pytest.mark.parametrize("isa", [*{VECTORS: 0, ISAS[-1]: 0, **dict.fromkeys(EVERY[len(ISAS):])}])
def test_the_deepest_sums_do_not_overflow_and_deeper_ones_are_floats(isa: str) -> None:
    """All codes at their ends, -128 among them, which rounding never writes; one column more than the limit is multiplied in f32."""
    deep, ends = rows8.DEEPEST, np.array([127, -127, -128], np.int8)
    codes, scales = np.repeat(ends[:, None], deep, 1), np.full((3, 1), 0.5, np.float32)
    b = Builder("deep")
    with settings.override(isa=isa):
        f = compiled(b.finish(b.input("x", (5, deep)).qmatmul(b.param("w", codes.shape, "i8"), b.param("s", (3, 1)), encoding="int8_rows", shape=codes.shape)), {"w": codes, "s": scales})
    x = np.full((5, deep), 127, np.float32) * np.array([[1], [-1], [1], [-1], [1]], np.float32)
    np.testing.assert_array_equal(f.run(x), x[:, :1] * deep * (ends * np.float32(0.5)))
    if isa == VECTORS:
        b = Builder("deeper")
        y = b.input("x", (2, deep + 64)).qmatmul(b.input("w", (3, deep + 64), "i8"), b.param("s", (3, 1)), encoding="int8_rows", shape=(3, deep + 64))
        g = compiled(b.finish(y), {"s": scales})
        assert not [k for k in kernels(g) if "int8" in k]
        assert [n.text for n in g.report.notes if "LE 65536" in n.text]
        np.testing.assert_allclose(g.run(np.ones((2, deep + 64), np.float32), np.repeat(ends[:, None], deep + 64, 1)), [ends * 0.5 * (deep + 64.0)] * 2, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("isa", [VECTORS, f"{ISAS[0]}+amx_emulated"])
def test_extreme_rows(isa: str) -> None:
    """Zeros stay zeros, tiny rows vanish, rows that are not finite give numbers that are not, and no row touches another."""
    b, params = Builder("extreme"), dict[str, Array]()
    with settings.override(isa=isa):
        f = compiled(b.finish(multiplied(b, b.input("x", (37, 100)), "w", (37, 100), params)), params)
    x = drawn((37, 100))
    alone = f.run(x)
    x[1], x[2], x[18, 7], x[33, 40], x[34] = 0, 1e-38, np.nan, np.inf, x[34] * np.float32(2.0**120)
    got = f.run(x)
    assert (got[1] == 0).all()
    assert (np.abs(got[2]) < 1e-35).all()
    assert not np.isfinite(got[[18, 33]]).any()
    np.testing.assert_array_equal(got[34], alone[34] * np.float32(2.0**120))
    others = [k for k in range(37) if k not in (1, 2, 18, 33, 34)]
    np.testing.assert_array_equal(got[others], alone[others])


@needs_compiler
def test_the_error_is_at_most_what_is_promised() -> None:
    """Against float64 products of the decoded weights: half a step of the left row, times the sum of what a row of weights weighs."""
    b, params, (rows, depth) = Builder("bound"), dict[str, Array](), (64, 1537)
    f = compiled(b.finish(multiplied(b, b.input("x", (sym("M", 1, 50), depth)), "w", (rows, depth), params)), params)
    dense = encoding("int8_rows").decode(weights(rows, depth), depth).astype(np.float64)
    for seed, spread in enumerate((0.0, 1.0, 3.0)):
        x = drawn((50, depth), seed) * np.exp(spread * drawn((depth,), 7))
        error = np.abs(f.run(x) - x.astype(np.float64) @ dense.T)
        promised = np.abs(x).max(-1, keepdims=True) / 254.0 * np.abs(dense).sum(-1)
        assert (error <= promised * (1 + 2.0**-15)).all()
        assert error.max() > promised.max() / 1000, "the bound says something"


@needs_compiler
@pytest.mark.parametrize("numerics", ["highest", "high", "medium"])
def test_other_numerics_decode_at_load_and_say_so(numerics: str) -> None:
    shape, params, b = (37, 100), dict[str, Array](), Builder("decoded")
    with settings.override(isa=VECTORS):
        f = compiled(b.finish(multiplied(b, b.input("x", (9, 100)), "w", shape, params) + 1.0), params, numerics)
    assert kernels(f) == {"cpu/fused.matmul"}, "nothing decodes in a run"
    assert [n for n in f.report.notes if n.pass_name == "unpack-planes" and "device.numerics EQ low" in n.text]
    x = drawn((9, 100))
    for seed in (0, 5):
        codes, scales = weights(*shape, seed)
        f.set_param("w", codes)
        f.set_param("w.scale", scales)
        dense = encoding("int8_rows").decode((codes, scales), 100).astype(np.float64)
        np.testing.assert_allclose(f.run(x), x @ dense.T + 1, rtol=1e-5, atol=1e-4)


def test_the_reference_keeps_them_packed() -> None:
    params, b = dict[str, Array](), Builder("reference")
    f = compiled(b.finish(multiplied(b, b.input("x", (9, 100)), "w", (37, 100), params)), params, device="reference")
    assert f.memory()["param_nbytes"] < 2 * 37 * 104
    dense = encoding("int8_rows").decode(weights(37, 100), 100).astype(np.float64)
    np.testing.assert_allclose(f.run(drawn((9, 100))), drawn((9, 100)) @ dense.T, rtol=1e-5, atol=1e-4)


def test_gpus_decode_them_at_load() -> None:
    with running("rocm gfx942") as gpu:
        params, b = dict[str, Array](), Builder("gpu")
        f = compiled(b.finish(multiplied(b, b.input("x", (9, 100)), "w", (37, 100), params)), params, device=gpu)
        assert not on_host(f)
        dense = encoding("int8_rows").decode(weights(37, 100), 100).astype(np.float64)
        np.testing.assert_allclose(f.run(drawn((9, 100))), drawn((9, 100)) @ dense.T, rtol=0.02, atol=0.2)


@needs_compiler
def test_a_pair_of_two_encodings_is_no_pair() -> None:
    """Rows of one encoding never read the other's bytes: fused, a pair is named by all of its encodings."""
    params, b = dict[str, Array](), Builder("pair")
    x, packed = b.input("x", (9, 96)), quantize(drawn((37, 96), 4), "q8_0")[0]
    blocks = x.qmatmul(b.param("q", packed.shape, "u8"), encoding="q8_0", shape=(37, 96))
    rows = multiplied(b, x, "w", (37, 96), params)
    with settings.override(isa=VECTORS):
        f = compiled(b.finish(rows.silu() * blocks, blocks.relu() * rows), {**params, "q": packed})
    assert {"cpu/qmatmul.int8", "cpu/qmatmul.int8_rows"} <= kernels(f) | {k.replace("fused.", "") for k in kernels(f)}
    y = drawn((9, 96))
    g, u = exactly(y, *weights(37, 96)).astype(np.float64), y.astype(np.float64) @ encoding("q8_0").decode((packed,), 96).T
    np.testing.assert_allclose(f.run(y)[0], g / (1 + np.exp(-g)) * u, atol=0.05 * np.abs(g * u).max())


@needs_compiler
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="tile instructions were not compiled: they are x86-64's")
@pytest.mark.parametrize(("isa", "instruction"), [("avx512+vnni+amx+amx_int8", "tdpbssd"), ("avx512+vnni", "vpdpbusd"), ("avx2+vnni", "vpdpbusd"), ("avx512", "rlx_part_add_signed")])
def test_real_instructions_compile(isa: str, instruction: str) -> None:
    assert not isinstance(reason, str)
    cpu, b, params = Cpu(named(isa)), Builder("real"), dict[str, Array]()
    graph = b.finish(multiplied(b, b.input("x", (sym("M", 1, 256), 256)), "w", (33, 256), params).gelu())
    plan, _, _ = lower(graph, replace(cpu.spec, facts={**cpu.spec.facts, "numerics": "low"}), CompileOptions(weights="packed", numerics="low"))
    source = cpu.program(plan, cpu.isa).source
    assert instruction in source
    assert build(source, cpu.isa, reason).is_file()


# ---- models
@needs_compiler
def test_other_encodings_of_several_arrays_pack_weights_too() -> None:
    """No kernel reads 4-bit codes beside their scales: decoded at load, the product is one of floats, and a looked-up row is right."""
    flow = ModelFlow("planes").input("x", (sym("M", 1, 9), 200)).then(Linear())
    built = flow.build(Rounded(open_weights({"w.weight": drawn((7, 200))}), "int4_128", "rtn"))
    assert {n.name: n.type.shape for n in built.graph.params} == {"w.weight": (7, 100), "w.weight.scale": (7, 2)}
    dense = encoding("int4_128").decode(quantize(drawn((7, 200)), "int4_128"), 200)
    for device in ("reference", "cpu"):
        f = compile(built.graph, built.params, device=device, options=CompileOptions(weights="packed", numerics="highest"), wait=True)
        np.testing.assert_allclose(f.run(drawn((3, 200))), drawn((3, 200)) @ dense.T + dense[[5]].sum(), rtol=1e-4, atol=1e-3)
        assert device == "reference" or not [k for k in kernels(f) if "qmatmul" in k]


def test_a_weight_of_two_arrays_stays_one_weight() -> None:
    w = drawn((7, 96))
    got = Rounded(open_weights({"w": w, "b": w[0]}), "int8_rows", "rtn")["w"]
    codes, scales = quantize(w, "int8_rows")
    (beside,) = got.beside
    assert (beside.name, beside.stored[0], got.stored[0], got.nbytes, beside.nbytes) == ("w.scale", (7, 1), (7, 96), 7 * 96, 28)
    np.testing.assert_array_equal(got.array(), codes)
    np.testing.assert_array_equal(beside.array(), scales)
    turned = Renamed(Rounded(open_weights({"w": w}), "int8_rows", "rtn"), {"v": "w"}, {"v": lambda rows: rows[::-1]})["v"]
    np.testing.assert_array_equal(encoding("int8_rows").decode((turned.array(), turned.beside[0].array()), 96), encoding("int8_rows").decode((codes, scales), 96)[::-1])
