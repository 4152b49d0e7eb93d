"""Convolution kernels of the cpu backend: epilogues, layouts, sizes beyond one task, every instruction set, one and two threads."""
from __future__ import annotations

import platform
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import ISAS, assert_close

from rlxpy import Builder, CompileOptions, DType, compile
from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import available, named
from rlxpy.compiler.session import lower
from rlxpy.ir import functions as F, spatial_functions as S
from rlxpy.ir.dtypes import Array
from rlxpy.settings import override

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")


@pytest.fixture(params=[1, 2])
def thread_count(request: pytest.FixtureRequest) -> Iterator[int]:
    threads.set_threads(request.param)
    yield request.param
    threads.set_threads(None)


def whole(rng: np.random.Generator, *shape: int) -> Array:
    """Small whole numbers, whose products and sums f32 holds exactly: any order of a sum gives the same."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def plain(x: Array, w: Array, stride: int, pad: int, groups: int) -> Array:
    """[n, out, h, w] in f64, tap by tap."""
    n, c, h, wide = x.shape
    image = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    rows, columns = (h + 2 * pad - w.shape[2]) // stride + 1, (wide + 2 * pad - w.shape[3]) // stride + 1
    y = np.zeros((n, w.shape[0], rows, columns))
    share, out = c // groups, w.shape[0] // groups
    for g in range(groups):
        for a in range(w.shape[2]):
            for b in range(w.shape[3]):
                seen = image[:, g * share:(g + 1) * share, a:a + (rows - 1) * stride + 1:stride, b:b + (columns - 1) * stride + 1:stride]
                y[:, g * out:(g + 1) * out] += np.einsum("nchw,oc->nohw", seen, w[g * out:(g + 1) * out, :, a, b])
    return y


# x, out channels, window, stride, padding, groups: more results, channels or depth than one task takes; rows shorter and longer than a panel
SHAPES = [((2, 3, 33, 35), 64, 7, 2, 3, 1), ((1, 70, 13, 19), 301, 3, 1, 1, 1), ((2, 300, 5, 7), 17, 1, 1, 0, 1), ((1, 40, 70, 9), 13, 3, 1, 0, 1), ((3, 12, 9, 11), 24, 3, 1, 1, 3),
          ((2, 21, 40, 70), 21, 3, 1, 1, 21), ((1, 6, 12, 300), 12, 3, 2, 1, 6), ((1, 2, 3, 3), 700, 3, 1, 0, 1)]


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_sums_are_exact_whatever_the_shape(case: Any, thread_count: int) -> None:
    (shape, out, k, stride, pad, groups), rng = case, np.random.default_rng(0)
    x, w = whole(rng, *shape), whole(rng, out, shape[1] // groups, k, k)
    b = Builder()
    y = S.conv(b.input("x", x.shape), b.param("w", w.shape), strides=stride, padding=pad, groups=groups)
    f = compile(b.finish(y), {"w": w}, device="cpu", options=CompileOptions(debug=True))
    for _ in range(2):
        np.testing.assert_array_equal(f.run(x), plain(x, w, stride, pad, groups))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("groups", [1, 4])
def test_every_instruction_set_and_type(isa: str, groups: int) -> None:
    rng = np.random.default_rng(1)
    for dtype in (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U64):
        x, w = rng.integers(0, 3, (2, 4, 9, 21)).astype(dtype.numpy), rng.integers(0, 3, (8, 4 // groups, 3, 2)).astype(dtype.numpy)
        b = Builder()
        y = S.conv(b.input("x", x.shape, dtype), b.input("w", w.shape, dtype), padding=((1, 0), (1, 1)), groups=groups)
        with override(isa=isa):
            got = compile(b.finish(y), device="cpu", options=CompileOptions(debug=True)).run(x, w)
        want = plain(x.astype(np.float32), w.astype(np.float32), 1, 1, groups)[:, :, :-1]
        np.testing.assert_array_equal(got.astype(np.float64), want, f"{dtype} on {isa}")


# ---- matrix units: where this CPU has none, the C that stands for them
TILES = next((isa.name for isa in available() if "amx" in isa.features), f"{ISAS[0]}+amx_emulated")
PLANES = {"highest": ("amx_x6", 2.0**-22), "high": ("amx_x3", 2.0**-15), "medium": ("amx_bf16", 2.0**-7)}  # a bound of the sum of absolute products
# x, out channels, window, stride, padding: channels and windows beyond one tile, one step of depth and one block of results, and rests of them
ON_TILES = [((2, 3, 9, 11), 130, 3, 1, 1), ((1, 50, 7, 9), 140, 3, 1, 0), ((2, 17, 6, 7), 161, 1, 1, 0), ((1, 5, 13, 12), 300, 3, 2, 1)]


def on_tiles(graph: Any, weights: dict[str, Array], numerics: str) -> Any:
    with override(isa=TILES):
        return compile(graph, weights, device="cpu", options=CompileOptions(debug=True, numerics=numerics), wait=True)


@pytest.mark.parametrize("numerics", PLANES)
def test_convolutions_on_tiles(numerics: str, thread_count: int) -> None:
    rng, (row, bound) = np.random.default_rng(6), PLANES[numerics]
    b, weights, given, wanted = Builder(), dict[str, Array](), list[Array](), list[tuple[Array, Array]]()
    outputs = []
    for i, (shape, out, k, stride, pad) in enumerate(ON_TILES):
        x, weights[f"w{i}"] = (rng.normal(size=s).astype(np.float32) for s in (shape, (out, shape[1], k, k)))
        bias = rng.normal(size=(out, 1, 1)).astype(np.float32)
        y = S.conv(b.input(f"x{i}", shape), b.param(f"w{i}", (out, shape[1], k, k)), strides=stride, padding=pad)
        outputs.append((y + b.input(f"bias{i}", bias.shape)).relu() if i % 2 else y)
        given += [x, bias] if i % 2 else [x]
        sums, terms = plain(x, weights[f"w{i}"], stride, pad, 1), plain(np.abs(x), np.abs(weights[f"w{i}"]), stride, pad, 1)
        wanted.append((np.maximum(sums + bias, 0) if i % 2 else sums, terms))
    f = on_tiles(b.finish(*outputs), weights, numerics)
    assert {r["kernel"] for r in f.dispatch()} == {f"cpu/conv.{row}", f"cpu/fused.conv.{row}"}
    for _ in range(2):
        for got, (want, terms) in zip(f.run(*given), wanted, strict=True):
            assert (np.abs(got - want) <= bound * (terms + 4)).all()


@pytest.mark.parametrize("numerics", PLANES)
def test_numbers_that_tiles_cannot_hold_give_what_f32_gives(numerics: str) -> None:
    """In the image and in the weights: what no window of them sees, and no channel of them, is as it was."""
    rng, (row, bound) = np.random.default_rng(7), PLANES[numerics]
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((1, 6, 9, 10), (140, 6, 3, 3)))
    x[0, 2, 4, 4], x[0, 1, 0, 9], x[0, 3, 8, 0], x[0, 5, 8, 9] = np.inf, np.nan, 3e38, 1e-40
    w[3, 1, 1, 1], w[50, 2, 0, 0], w[70] = -np.inf, 1e-39, w[70] * np.float32(1e-36)
    b = Builder()
    f = on_tiles(b.finish(S.conv(b.input("x", x.shape), b.param("w", w.shape))), {"w": w}, numerics)
    assert [r["kernel"] for r in f.dispatch()] == [f"cpu/conv.{row}"]
    with np.errstate(all="ignore"):
        got, want, terms = f.run(x), plain(x, w, 1, 0, 1), plain(np.abs(x), np.abs(w), 1, 0, 1)
        dropped = 2.0**-133 * (plain(np.abs(x), np.ones_like(w), 1, 0, 1) + 1e3)  # bf16 has no bits below 2^-133
    sure = terms < 1e37
    assert sure.mean() > 0.5
    assert (np.abs(got[sure] - want[sure]) <= (bound + 54 * 2.0**-24) * terms[sure] + dropped[sure]).all()  # a rounding a term
    finite_x, finite_w = (np.abs(np.where(np.isfinite(a), a, 0)) for a in (x, w))
    lost = ~np.isfinite(want) & (plain(finite_x, finite_w, 1, 0, 1) < 1e37)  # elsewhere what is finite may overflow on its way
    assert lost.sum() > 100
    np.testing.assert_array_equal(got[lost], want[lost])


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="tile instructions were not compiled: they are x86-64's")
def test_the_real_instructions_compile() -> None:
    assert not isinstance(reason, str)
    cpu, b = Cpu(named("avx512+amx")), Builder("real")
    graph = b.finish(S.conv(b.input("x", (1, 6, 9, 10)), b.param("w", (64, 6, 3, 3)), padding=1))
    plan, _, _ = lower(graph, replace(cpu.spec, facts={**cpu.spec.facts, "numerics": "high"}), CompileOptions(numerics="high"))
    assert [s.choice.name for s in plan.steps] == ["cpu/conv.amx_x3"]
    assert build(cpu.program(plan, cpu.isa).source, cpu.isa, reason).is_file()


def test_what_tiles_do_not_take_goes_through_registers() -> None:
    """Weights that a run makes; groups and few channels, which explain() names."""
    rng = np.random.default_rng(8)
    x, w, few, grouped = (whole(rng, *s) for s in ((1, 4, 6, 7), (40, 4, 3, 3), (8, 4, 3, 3), (40, 2, 3, 3)))
    b = Builder()
    image = b.input("x", x.shape)
    graph = b.finish(S.conv(image, b.input("w", w.shape)), S.conv(image, b.param("few", few.shape)), S.conv(image, b.param("grouped", grouped.shape), groups=2))
    f = on_tiles(graph, {"few": few, "grouped": grouped}, "medium")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/conv.amx_bf16", "cpu/conv", "cpu/conv"]
    for got, (a, groups) in zip(f.run(x, w), ((w, 1), (few, 1), (grouped, 2)), strict=True):
        np.testing.assert_array_equal(got, plain(x, a, 1, 0, groups))


EPILOGUES: dict[str, Any] = {  # of y [2, 6, 5, 7]; what else is read, by shape
    "bias": (lambda y, v: y + v, ((6, 1, 1),)),
    "bias and relu": (lambda y, v: (y + v).relu(), ((6, 1, 1),)),
    "residual": (lambda y, v, r: (y + v + r).silu(), ((6, 1, 1), (2, 6, 5, 7))),
    "scale and shift": (lambda y, s, v: y * s + v, ((1, 6, 1, 1), (1, 6, 1, 1))),
    "along rows and columns": (lambda y, r, c: y * r + c, ((5, 1), (7,))),
    "one an item": (lambda y, v: y - v, ((2, 1, 1, 1),)),
    "a residual lying otherwise": (lambda y, r: y + r.transpose(perm=(0, 1, 3, 2)), ((2, 6, 7, 5),)),
    "itself twice": (lambda y: y * y.sigmoid(), ()),
    "cast": (lambda y: (y * 0.25).cast(to="bf16"), ()),
}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.F64], ids=str)
@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_is_done_in_the_same_kernel(name: str, groups: int, dtype: DType) -> None:
    make, shapes = EPILOGUES[name]
    rng = np.random.default_rng(2)
    arrays = [(rng.integers(-8, 9, s) / 4).astype(dtype.numpy) for s in ((2, 6, 5, 7), (6, 6 // groups, 3, 3), *shapes)]
    b = Builder()
    x, w, *more = (b.input(f"x{k}", a.shape, dtype) for k, a in enumerate(arrays))
    graph = b.finish(make(S.conv(x, w, padding=1, groups=groups), *more))
    fused = compile(graph, device="cpu", options=CompileOptions(debug=True))
    assert [hit.label for hit in fused.fusion.hits] == ["conv"]
    assert [row["kernel"] for row in fused.dispatch()] == ["cpu/fused.conv"]
    apart = compile(graph, device="reference", options=CompileOptions(optimise=False))
    assert_close(fused.run(*arrays), apart.run(*arrays), graph.output_types[0].dtype, name)


def test_two_products_never_share_a_kernel() -> None:
    b = Builder()
    x = b.input("x", (1, 3, 8, 8))
    graph = b.finish(S.conv(x, b.param("g", (4, 3, 3, 3))).sigmoid() * S.conv(x, b.param("u", (4, 3, 3, 3))))
    rng = np.random.default_rng(3)
    weights = {k: whole(rng, 4, 3, 3, 3) for k in "gu"}
    f = compile(graph, weights, device="cpu")
    assert {row["kernel"] for row in f.dispatch()} == {"cpu/conv", "cpu/fused.conv"}
    given = whole(rng, 1, 3, 8, 8)
    assert_close(f.run(given), compile(graph, weights, device="reference").run(given), DType.F32)


VIEWS: dict[str, Any] = {  # x [2, 5, 7, 4] and w [3, 3, 4, 6] seen as [n, c, h, w] and [out, c, h, w]
    "channels last": lambda x, w: S.conv(x.transpose(perm=(0, 3, 1, 2)), w.transpose(perm=(3, 2, 0, 1)), padding=1),
    "channels last, nothing around": lambda x, w: S.conv(x.transpose(perm=(0, 3, 1, 2)), w.transpose(perm=(3, 2, 0, 1))),
    "turned round": lambda x, w: S.conv(x.transpose(perm=(0, 3, 1, 2)).reverse(axes=(2, 3)), w.transpose(perm=(3, 2, 0, 1)).reverse(axes=(2,))),
    "a part": lambda x, w: S.conv(x.transpose(perm=(0, 3, 1, 2))[:, 1:3, ::2], w.transpose(perm=(3, 2, 0, 1))[::2, 2:]),
    "an item for all": lambda x, w: S.conv(F.expand(x[:1, :, :, :1], (2, 5, 7, 4)), F.expand(w[:1, :1, :1, :1], (4, 5, 2, 2))),
    "pooled": lambda x, w: S.max_pool(x.transpose(perm=(0, 3, 1, 2)).reverse(axes=(3,)), 3, strides=2, padding=1) + w[0, 0, 0, 0],
    "averaged": lambda x, w: S.avg_pool(x.transpose(perm=(0, 3, 1, 2))[:, ::2], 2, padding=1, count_pad=False) + w[0, 0, 0, 0],
    "resized": lambda x, w: S.resize(x.transpose(perm=(0, 3, 1, 2)).reverse(axes=(2,)), (9, 6), method="linear") + w[0, 0, 0, 0],
    "nearest": lambda x, w: S.resize(x.transpose(perm=(0, 3, 1, 2)), (3, 11)) + w[0, 0, 0, 0],
}


@pytest.mark.parametrize("name", VIEWS)
def test_operands_are_read_as_they_lie(name: str) -> None:
    rng = np.random.default_rng(4)
    arrays = [whole(rng, 2, 5, 7, 4), whole(rng, 3, 3, 4, 6)]
    b = Builder()
    graph = b.finish(VIEWS[name](*(b.input(f"x{k}", a.shape) for k, a in enumerate(arrays))))
    got, want = (compile(graph, device=d, options=CompileOptions(debug=True)).run(*arrays) for d in ("cpu", "reference"))
    assert_close(got, want, DType.F32, name)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_the_example_network_gives_what_its_formula_gives(device: str) -> None:
    example: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "cnn.py"))
    w = {k: a.astype(np.float64) for k, a in example["weights"]().items()}

    def conv(x: Array, key: str, stride: int, pad: int) -> Array:
        return np.asarray(plain(x, w[f"{key}.weight"], stride, pad, 1) + w[f"{key}.bias"][:, None, None])

    image = np.random.default_rng(5).normal(size=(3, 3, 32, 32)).astype(np.float32)
    y = image.astype(np.float64)
    for key, stride in (("stage0", 1), ("stage1", 2), ("stage2", 2)):
        y = np.maximum(conv(np.maximum(conv(y, f"{key}.a", stride, 1), 0), f"{key}.b", 1, 1) + conv(y, f"{key}.side", stride, 0), 0)
    model = example["flow"]().build(example["weights"]())
    f = compile(model.graph, model.params, device=device)
    np.testing.assert_allclose(f.run(image), y.mean((2, 3)) @ w["head.weight"].T, rtol=1e-4, atol=1e-5)
    if device == "cpu":
        kernels = [row["kernel"] for row in f.dispatch()]
        assert sum(k in ("cpu/conv", "cpu/fused.conv") for k in kernels) == 9
        assert not any("elementwise" in str(k) for k in kernels), kernels  # what follows a convolution is in its kernel, or in the mean's
