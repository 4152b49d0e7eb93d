"""Products with packed weights on the cpu: every block encoding, on every instruction set, against float64 and the arithmetic as written."""
from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import ISAS, VECTORS

from rlxpy import Builder, CompileOptions, Embedder, Generator, compile, settings, sym
from rlxpy.backends.cpu import amx_int8, amx_packed, threads as pool
from rlxpy.backends.cpu.amx import BF16
from rlxpy.backends.cpu.amx_packed import ROW_BLOCK
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.blocks import BLOCKS
from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.int8 import reader as int8_reader, tile
from rlxpy.backends.cpu.isa import Isa, available, named
from rlxpy.backends.cpu.quant import PANEL_DEPTH
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.compiler.session import lower
from rlxpy.errors import BuildError
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.graph import Graph
from rlxpy.ir.op import Op
from rlxpy.ir.quantize import quantize

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")

COUNTS = (0, 1, 2, 3, 4, 5, 15, 16, 23, 24, 67)  # rows of the left operand: none, each of the few, the last few, the first on tiles, panels and their rests
ROWS = 37       # of the weights: no multiple of the four that are read together
KINDS = ("q8_0", "q4_1", "q5_0", "q6_k", "iq4_nl", "nvfp4_ggml")  # a signed byte, nibbles and a minimum, single bits, small groups, tables, runs of 8
BOUND = 2.0**-20  # of the sum of absolute products: a hundred roundings of f32, far below those of int8


def weights(name: str, rows: int, depth: int, seed: int = 0) -> Array:
    """Packed rows: rounded normal numbers where rounding alone can write the encoding, else random codes under finite scales."""
    rng, e = np.random.default_rng(seed), encoding(name)
    try:
        return quantize(rng.normal(size=(rows, depth)).astype(np.float32), name)[0]
    except BuildError:
        raw = rng.integers(0, 256, (rows, depth // e.block, e.block_nbytes), dtype=np.uint8)
    for f in (*e.scales, *e.mins):
        at = [p.byte for p in f.pieces]
        if f.dtype is not None and f.dtype.text == "f16":
            raw[..., at[0]:at[0] + 2] = rng.uniform(0.01, 0.2, raw.shape[:2]).astype("<f2")[..., None].view(np.uint8)
        elif len(f.table) == 256:  # a table of exponents: those near 1
            least = next(k for k, v in enumerate(f.table) if isinstance(v, float) and v >= 0.01)
            raw[..., at[0]:at[0] + f.count] = rng.integers(least, least + 6, (*raw.shape[:2], f.count))
    return raw.reshape(rows, -1)


def depth_of(name: str) -> int:
    e = encoding(name)
    return e.block * (3 if e.block > 64 else 5)


def products(names: tuple[str, ...], numerics: str, rows: int = ROWS) -> tuple[CompiledGraph, dict[str, Array]]:
    """One product and one whole matrix of each encoding, all as one graph so that one compile serves them."""
    b, params, outputs = Builder("packed"), dict[str, Array](), []
    m = sym("M", 0, max(COUNTS))
    for name in names:
        depth = depth_of(name)
        params[name] = weights(name, rows, depth)
        w = b.param(name, params[name].shape, "u8")
        outputs += [b.input(f"x_{name}", (m, depth)).qmatmul(w, encoding=name, shape=(rows, depth)), w.dequantize(encoding=name, shape=(rows, depth)) * 1.0]
    f = compile(b.finish(*outputs), params, device="cpu", options=CompileOptions(weights="packed", numerics=numerics, debug=True))
    return f, params


def rounded(x: Array) -> Array:
    """What int8 keeps of left rows, in float64: blocks of 32, the greatest at 127."""
    blocks = x.reshape(len(x), x.shape[1] // 32, 32)
    greatest = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(greatest < 2.0**-120, np.float32(0), np.float32(127) / greatest)
    scale = greatest / np.float32(127)
    return np.asarray(np.rint(blocks * inverse).astype(np.float64) * scale).reshape(x.shape)


def size(name: str, dense: Array) -> Array:
    """The greatest size in each block, at every place: what offsets of a block's codes may add to an error."""
    blocks = np.abs(dense.astype(np.float64)).reshape(len(dense), -1, encoding(name).block)
    return np.broadcast_to(blocks.max(-1, keepdims=True), blocks.shape).reshape(dense.shape)


def to_bf16(x: Array) -> Array:
    return x.astype(DType.BF16.numpy).astype(np.float32)


def hold(f: CompiledGraph, params: dict[str, Array], numerics: str, on_tiles: int = max(COUNTS) + 1) -> None:
    """on_tiles: from so many rows on both operands are rounded to bf16."""
    rng = np.random.default_rng(1)
    for count in COUNTS:
        given = [rng.normal(size=(count, depth_of(name))).astype(np.float32) for name in params]
        results = f.run(*given)
        for k, (name, x) in enumerate(zip(params, given, strict=True)):
            got, dense = results[2*k], results[2*k + 1]
            exact = encoding(name).decode((params[name],), x.shape[1])
            assert (np.abs(dense - exact) <= 2.0**-22 * size(name, exact)).all(), f"{name}: the matrix"
            left = rounded(x) if numerics == "low" else x.astype(np.float64)
            if count >= on_tiles:
                left, exact = to_bf16(x).astype(np.float64), to_bf16(dense)
            error = np.abs(got - left @ exact.T.astype(np.float64))
            assert (error <= BOUND * (np.abs(left) @ size(name, exact).T)).all(), f"{name}, {count} rows, {numerics}: {error.max()}"


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    pool.set_threads(request.param)
    yield request.param
    pool.set_threads(None)


@pytest.fixture
def vectors() -> Iterator[None]:
    """No matrix units: those round both operands, and have tests of their own."""
    with settings.override(isa=VECTORS):
        yield


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("numerics", ["highest", "low"])
@pytest.mark.parametrize("names", [BLOCKS[k::3] for k in range(3)], ids=",".join)
def test_every_encoding(names: tuple[str, ...], numerics: str, threads: int) -> None:
    hold(*products(names, numerics), numerics)


@pytest.mark.parametrize("isa", [*ISAS[1:], *(f"{isa.name}+vnni_emulated" for isa in available() if isa.vector == 8)])
def test_every_instruction_set_of_this_machine(isa: str) -> None:
    with settings.override(isa=isa):
        for numerics in ("highest", "low"):
            hold(*products(KINDS, numerics), numerics)


@pytest.mark.parametrize("isa", [named(n) for n in ("avx512", "avx512+vnni", "avx2", "avx2+vnni", "sse4", "neon", "neon+dotprod", "portable")],
                         ids=lambda isa: "+".join((isa.name, *isa.features)))
def test_codes_are_handed_over_as_every_instruction_set_takes_them(isa: Isa) -> None:
    """Unsigned where a byte of either sign cannot be multiplied, and never beyond what a 16-bit sum of two products holds."""
    for name in BLOCKS:
        text = int8_reader(name, isa, 16, 0) + tile(name, isa, 16)
        assert ("rlx_part_add_signed" in text) != ("rlx_part_add(" in text), "one form for each encoding"
        if "vnni" in isa.features:
            assert "rlx_part_add(" in text
        if isa.vector < 8:
            assert "rlx_part_add_signed" in text


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("numerics", ["highest", "low"])
def test_rows_longer_than_a_panel(numerics: str) -> None:
    depth, rows = PANEL_DEPTH + 64, 19
    packed = weights("q4_0", rows, depth)
    b = Builder("long")
    f = compile(b.finish(b.input("x", (sym("M", 1, 64), depth)).qmatmul(b.param("w", packed.shape, "u8"), encoding="q4_0", shape=(rows, depth))), {"w": packed},
                device="cpu", options=CompileOptions(weights="packed", numerics=numerics, debug=True))
    dense = encoding("q4_0").decode((packed,), depth).astype(np.float64)
    for count in (1, 30, 64):
        x = np.random.default_rng(count).normal(size=(count, depth)).astype(np.float32)
        left = rounded(x) if numerics == "low" else x.astype(np.float64)
        assert (np.abs(f.run(x) - left @ dense.T) <= BOUND * np.abs(left).sum(-1, keepdims=True) * np.abs(dense).max()).all()


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("numerics", ["highest", "low"])
def test_a_gated_pair_of_two_encodings(numerics: str) -> None:
    rows, depth = 21, 512
    gate, up = weights("q4_k", rows, depth, 1), weights("q6_k", rows, depth, 2)
    b = Builder("gated")
    x = b.input("x", (sym("M", 1, 40), depth))
    g, u = (x.qmatmul(b.param(n, w.shape, "u8"), encoding=e, shape=(rows, depth)) for n, w, e in (("g", gate, "q4_k"), ("u", up, "q6_k")))
    f = compile(b.finish(g.silu() * u), {"g": gate, "u": up}, device="cpu", options=CompileOptions(weights="packed", numerics=numerics, debug=True))
    for count in (1, 3, 40):
        given = (np.random.default_rng(count).normal(size=(count, depth)) * 0.02).astype(np.float32)
        left = rounded(given) if numerics == "low" else given.astype(np.float64)
        y, z = (left @ encoding(e).decode((w,), depth).astype(np.float64).T for w, e in ((gate, "q4_k"), (up, "q6_k")))
        np.testing.assert_allclose(f.run(given), y / (1 + np.exp(-y)) * z, rtol=2e-4, atol=2e-4 * np.abs(y * z).max())


# ---- matrix units: where this CPU has none, the C that stands for them
TILES = next((isa.name for isa in available() if "amx" in isa.features), f"{ISAS[0]}+amx_emulated")
LEAST_ROWS = BF16.least_rows
ON_TILES = {"medium": LEAST_ROWS, "low": amx_packed.MANY.least_rows}
ROW_ON_TILES = {"medium": "amx", "low": "amx_bf16"}


def on_tiles(graph: Graph, params: dict[str, Array], numerics: str = "medium") -> CompiledGraph:
    with settings.override(isa=TILES):
        return compile(graph, params, device="cpu", options=CompileOptions(weights="packed", numerics=numerics, debug=True))


@pytest.mark.parametrize("numerics", ["medium", "low"])
@pytest.mark.parametrize("names", [BLOCKS[k::3] for k in range(3)], ids=",".join)
def test_every_encoding_on_tiles(names: tuple[str, ...], numerics: str, threads: int) -> None:
    with settings.override(isa=TILES):
        hold(*products(names, numerics), numerics, ON_TILES[numerics])


def test_tiles_serve_many_rows_and_the_report_says_so() -> None:
    some, many, most = LEAST_ROWS, ON_TILES["low"], max(COUNTS)
    for numerics, name, few, bands in (("medium", "q4_0", "cpu/qmatmul", {(some, most): "cpu/qmatmul.amx"}),
                                       ("low", "q4_0", "cpu/qmatmul.int8", {(some, many - 1): "cpu/qmatmul.amx_int8", (many, most): "cpu/qmatmul.amx_bf16"}),
                                       ("low", "q6_k", "cpu/qmatmul.int8", {(many, most): "cpu/qmatmul.amx_bf16"})):
        with settings.override(isa=TILES):
            f, _ = products((name,), numerics)
        (step,) = (s for s in f.plan.steps if s.node.op is Op.QMATMUL)
        assert (step.choice.name, {(least, to): c.name for ((_, least, to),), c in step.choice.bands}) == (few, bands)


PLANES = {"highest": (amx_packed.X6.least_rows, "amx_x6", BOUND), "high": (amx_packed.X3.least_rows, "amx_x3", 2.0**-15)}  # a bound of the sum of absolute products


@pytest.mark.parametrize("numerics", PLANES)
def test_planes_of_packed_weights(numerics: str) -> None:
    """Several encodings, more than one step of depth, more than one block of rows, an epilogue and a gated pair; few rows after many."""
    least, row, bound = PLANES[numerics]
    rows, depth, most = 21, 512, ROW_BLOCK + 5
    kinds = ("q8_0", "q4_k", "q6_k", "iq4_nl")
    params = {name: weights(name, rows, depth, k) for k, name in enumerate(kinds)}
    b = Builder("planes")
    x = b.input("x", (sym("M", 1, most), depth))
    made = {name: x.qmatmul(b.param(name, w.shape, "u8"), encoding=name, shape=(rows, depth)) for name, w in params.items()}
    f = on_tiles(b.finish(made["q8_0"], made["q4_k"].silu() * made["q6_k"], made["iq4_nl"] * 0.5 - 1.0), params, numerics)
    assert {c.name for s in f.plan.steps for _, c in s.choice.bands} == {f"cpu/{kind}.{row}" for kind in ("qmatmul", "fused.qmatmul", "fused.qgated_mlp")}
    dense = {name: encoding(name).decode((w,), depth).astype(np.float64) for name, w in params.items()}
    for count in (most, least, least - 1):
        given = np.random.default_rng(count).normal(size=(count, depth)).astype(np.float32)
        p = {name: given.astype(np.float64) @ d.T for name, d in dense.items()}
        error = {name: bound * (np.abs(given) @ size(name, dense[name]).T) for name in kinds}
        plain, gated, half = f.run(given)
        assert (np.abs(plain - p["q8_0"]) <= error["q8_0"]).all()
        assert (np.abs(half - (p["iq4_nl"] * 0.5 - 1)) <= error["iq4_nl"]).all()
        y, z = p["q4_k"], p["q6_k"]
        with np.errstate(over="ignore"):
            gate = y / (1 + np.exp(-y))
        assert (np.abs(gated - gate * z) <= 2 * error["q4_k"] * np.abs(z) + 2 * error["q6_k"] * np.abs(y) + 1e-5 * np.abs(y * z)).all()


def test_packed_weights_in_six_products_are_as_exact_as_f32() -> None:
    """Root mean square error against float64, beside NumPy's f32 product of the decoded weights."""
    packed = weights("q8_0", 32, 1536)
    x = np.random.default_rng(0).normal(size=(amx_packed.X6.least_rows, 1536)).astype(np.float32)
    b = Builder("exact")
    f = on_tiles(b.finish(b.input("x", x.shape).qmatmul(b.param("w", packed.shape, "u8"), encoding="q8_0", shape=(32, 1536))), {"w": packed}, "highest")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/qmatmul.amx_x6"]
    dense = encoding("q8_0").decode((packed,), 1536)
    want = x.astype(np.float64) @ dense.T.astype(np.float64)
    ours, theirs = (float(np.sqrt(np.mean((got - want) ** 2))) for got in (f.run(x), x @ dense.T))
    assert ours <= 1.05 * theirs


def test_long_rows_and_many_of_them_on_tiles() -> None:
    """More than one step of k, more than one block of rows, and rests of both."""
    depth, rows, most = BF16.depth * 32 + 96, 49, ROW_BLOCK + 5
    packed = weights("q5_0", rows, depth)
    b = Builder("long")
    f = on_tiles(b.finish(b.input("x", (sym("M", 1, most), depth)).qmatmul(b.param("w", packed.shape, "u8"), encoding="q5_0", shape=(rows, depth))), {"w": packed})
    dense = to_bf16(encoding("q5_0").decode((packed,), depth)).astype(np.float64)
    for count in (LEAST_ROWS, most):
        x = np.random.default_rng(count).normal(size=(count, depth)).astype(np.float32)
        left = to_bf16(x).astype(np.float64)
        assert (np.abs(f.run(x) - left @ dense.T) <= BOUND * np.abs(left).sum(-1, keepdims=True) * np.abs(dense).max()).all()


@pytest.mark.parametrize("numerics", ["medium", "low"])
def test_a_gated_pair_of_a_turned_operand_on_tiles(numerics: str) -> None:
    """Two encodings, a left operand whose rows are no one walk, an operand beside the products, and few rows after many."""
    rows, depth, least = 21, 512, ON_TILES[numerics]
    gate, up = weights("q4_k", rows, depth, 1), weights("q6_k", rows, depth, 2)
    b = Builder("gated")
    t = sym("T", 1, least + 24)
    x, beside = b.input("x", (t, 3, depth)).transpose(perm=(1, 0, 2)), b.input("beside", (3, t, rows))
    g, u = (x.qmatmul(b.param(n, w.shape, "u8"), encoding=e, shape=(rows, depth)) for n, w, e in (("g", gate, "q4_k"), ("u", up, "q6_k")))
    f = on_tiles(b.finish(g.silu() * u, (x.qmatmul(b.param("v", up.shape, "u8"), encoding="q6_k", shape=(rows, depth)) + beside).tanh()), {"g": gate, "u": up, "v": up}, numerics)
    assert {c.name for s in f.plan.steps for _, c in s.choice.bands} == {f"cpu/fused.{kind}.{ROW_ON_TILES[numerics]}" for kind in ("qgated_mlp", "qmatmul")}
    dense = [to_bf16(encoding(e).decode((w,), depth)).astype(np.float64) for w, e in ((gate, "q4_k"), (up, "q6_k"))]
    for count in (least, least + 21, 2):
        rng = np.random.default_rng(count)
        given, more = (rng.normal(size=(count, 3, depth)) * 0.02).astype(np.float32), rng.normal(size=(3, count, rows)).astype(np.float32)
        y, z = (to_bf16(given).astype(np.float64).swapaxes(0, 1) @ d.T for d in dense)
        within = 1e-3 if count >= least else 0.05
        gated, added = f.run(given, more)
        np.testing.assert_allclose(gated, y / (1 + np.exp(-y)) * z, rtol=within, atol=within * np.abs(y * z).max())
        np.testing.assert_allclose(added, np.tanh(z + more), rtol=0, atol=within * np.abs(z).max())


@pytest.mark.parametrize(("numerics", "row"), [("medium", "amx"), ("highest", "amx_x6")])
def test_extreme_rows_and_weights_on_tiles_are_multiplied_in_f32(numerics: str, row: str) -> None:
    """Infinities, NaN, huge and subnormal numbers on either side give what f32 gives of the rounded operands, and no row touches another."""
    rows, depth, count = 37, 160, 130
    packed = weights("q8_0", rows, depth)
    for column, worth in ((3, np.inf), (20, np.nan), (33, 2.0**-24)):
        packed[column, 34:36] = np.frombuffer(np.float16(worth).tobytes(), np.uint8)
    packed[33, 36:] = np.where(np.arange(depth // 32 * 34 - 36) % 34 < 32, 1, 0)  # a column of small numbers
    x = np.random.default_rng(3).normal(size=(count, depth)).astype(np.float32)
    x[1, 7], x[17, 40], x[33, 9], x[34], x[50], x[51, 3], x[66] = np.inf, np.nan, 3e38, 1e-38, 0, 1e35, 1e-41
    packed[3, 36:68], x[100] = 1, np.abs(x[100])  # infinities of one sign
    b = Builder("extreme")
    f = on_tiles(b.finish(b.input("x", (count, depth)).qmatmul(b.param("w", packed.shape, "u8"), encoding="q8_0", shape=(rows, depth))), {"w": packed}, numerics)
    assert [r["kernel"] for r in f.dispatch()] == [f"cpu/qmatmul.{row}"]
    decoded = encoding("q8_0").decode((packed,), depth)
    with np.errstate(all="ignore"):
        dense, left = (a.astype(np.float64) for a in ((to_bf16(decoded), to_bf16(x)) if numerics == "medium" else (decoded, x)))
        want, terms = left @ dense.T, np.abs(left) @ np.abs(dense).T
        dropped = 2.0**-133 * (np.abs(left).sum(axis=1)[:, None] + np.abs(dense).sum(axis=1))  # bf16 has no bits below 2^-133
        got = f.run(x)
    sure = terms < 1e38
    assert sure.sum() > 60 * 33
    assert (np.abs(got[sure] - want[sure]) <= BOUND * terms[sure] + dropped[sure]).all()
    assert not np.isfinite(got[~np.isfinite(want)]).any()
    assert got[100, 3] == want[100, 3] == np.inf
    assert not got[50, np.isfinite(dense).all(axis=1)].any()


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="tile instructions were not compiled: they are x86-64's")
@pytest.mark.parametrize(("numerics", "function"), [("medium", "rlx_tiles_q4_0_1("), ("low", "rlx_codes8_q4_0("), ("highest", "rlx_tiles_q4_0_3(")])
def test_the_real_instructions_compile(numerics: str, function: str) -> None:
    assert not isinstance(reason, str)
    cpu, b = Cpu(named("avx512+vnni+amx+amx_int8")), Builder("real")
    x = b.input("x", (sym("M", 1, 256), 256))
    graph = b.finish(*(x.qmatmul(b.param(e, weights(e, 33, 256).shape, "u8"), encoding=e, shape=(33, 256)) for e in ("q4_0", "q5_1", "q6_k")))
    plan, _, _ = lower(graph, replace(cpu.spec, facts={**cpu.spec.facts, "numerics": numerics}), CompileOptions(weights="packed", numerics=numerics))
    source = cpu.program(plan, cpu.isa).source
    assert function in source
    assert build(source, cpu.isa, reason).is_file()


def whole_numbers(name: str, rows: int, depth: int, rng: np.random.Generator) -> Array:
    """Packed rows with scales (and minimums) of 1 and few bits set, so that sums of thousands are exact in f32."""
    raw = np.zeros((rows, depth // 32, encoding(name).block_nbytes), np.uint8)
    raw[..., :2 * (1 + bool(encoding(name).mins))] = np.frombuffer(np.ones(1 + bool(encoding(name).mins), np.float16).tobytes(), np.uint8)
    codes = raw[..., 2 * (1 + bool(encoding(name).mins)):]
    codes[...] = rng.integers(-3, 4, codes.shape).astype(np.int8).view(np.uint8) if name == "q8_0" else rng.choice([0x01, 0x10, 0x21, 0x32], codes.shape)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize(("name", "count"), [("q8_0", 61), ("q4_0", amx_int8.ROW_BLOCK + 21), ("q4_1", 61)])
def test_whole_numbers_on_tiles_are_exact(name: str, count: int, threads: int) -> None:
    """More than one step of depth, more than one block of rows, rests of both; left rows that do not lie side by side; what follows; twice."""
    depth, rows = 32 * (amx_int8.BLOCK_DEPTH + 5), 49
    rng = np.random.default_rng(8)
    packed = whole_numbers(name, rows, depth, rng)
    dense = encoding(name).decode((packed,), depth).astype(np.int64)
    x = rng.integers(-2, 3, (depth, count)).astype(np.float32)
    x[::32] = 127 * rng.choice([-1, 1], x[::32].shape)  # the greatest of each block: its scale is 1
    bias = rng.integers(-99, 100, rows).astype(np.float32)
    b = Builder("whole")
    left = b.input("x", x.shape).T
    with settings.override(force_row=("cpu/fused.qmatmul.amx_int8",)):
        f = on_tiles(b.finish(left.qmatmul(b.param("w", packed.shape, "u8"), encoding=name, shape=(rows, depth)) * 2.0 + b.input("bias", bias.shape)), {"w": packed}, "low")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/fused.qmatmul.amx_int8"]
    want = 2 * (x.T.astype(np.int64) @ dense.T) + bias.astype(np.int64)
    assert np.abs(want).max() < 2**24
    for _ in range(2):
        np.testing.assert_array_equal(f.run(x, bias).astype(np.int64), want)


def test_extreme_rows_in_int8_on_tiles() -> None:
    """As with fewer rows: zeros stay zeros, tiny rows vanish, rows that are not finite give numbers that are not, and no row touches another."""
    rows, depth, count = 37, 160, 35
    packed = weights("q8_0", rows, depth)
    x = np.random.default_rng(5).normal(size=(count, depth)).astype(np.float32)
    b = Builder("extreme")
    f = on_tiles(b.finish(b.input("x", x.shape).qmatmul(b.param("w", packed.shape, "u8"), encoding="q8_0", shape=(rows, depth))), {"w": packed}, "low")
    alone = f.run(x)
    x[1], x[2], x[18, 7], x[33, 40] = 0, 1e-38, np.nan, np.inf
    got = f.run(x)
    assert (got[1] == 0).all()
    assert (np.abs(got[2]) < 1e-35).all()
    assert not np.isfinite(got[[18, 33]]).any()
    others = [k for k in range(count) if k not in (1, 2, 18, 33)]
    np.testing.assert_array_equal(got[others], alone[others])


def test_a_machine_whose_tiles_multiply_no_bytes_keeps_to_bf16() -> None:
    cpu, b = Cpu(named("avx512+vnni+amx")), Builder("bf16")
    graph = b.finish(b.input("x", (64, 256)).qmatmul(b.param("w", (33, 272), "u8"), encoding="q8_0", shape=(33, 256)))
    plan, _, _ = lower(graph, replace(cpu.spec, facts={**cpu.spec.facts, "numerics": "low"}), CompileOptions(weights="packed", numerics="low"))
    assert [s.choice.name for s in plan.steps] == ["cpu/qmatmul.amx_bf16"]


def test_int8_serves_low_numerics_alone_and_dispatch_says_so() -> None:
    for numerics, want in (("highest", "cpu/qmatmul"), ("high", "cpu/qmatmul"), ("medium", "cpu/qmatmul"), ("low", "cpu/qmatmul.int8")):
        f, _ = products(("q4_0",), numerics)
        assert want in {row["kernel"] for row in f.dispatch()}


def test_int8_of_extreme_rows() -> None:
    """Zeros stay zeros, tiny rows vanish, rows that are not finite give numbers that are not, and no row touches another."""
    f, _params = products(("q4_1",), "low")
    x = np.random.default_rng(5).normal(size=(6, depth_of("q4_1"))).astype(np.float32)
    alone = f.run(x)[0]
    x[1], x[2], x[3, 7], x[4, 40] = 0, 1e-38, np.nan, np.inf
    got = f.run(x)[0]
    assert (got[1] == 0).all()
    assert (np.abs(got[2]) < 1e-35).all()
    assert not np.isfinite(got[3:5]).any()
    np.testing.assert_array_equal(got[[0, 5]], alone[[0, 5]])


@pytest.mark.parametrize("value", [1e38, np.inf])
def test_float_products_of_huge_values_are_those_of_the_decoded_weights(value: float) -> None:
    f, params = products(("q4_1",), "highest")
    x = np.zeros((1, depth_of("q4_1")), np.float32)
    x[0, 3] = value
    column = encoding("q4_1").decode((params["q4_1"],), x.shape[1])[:, 3]
    np.testing.assert_allclose(f.run(x)[0][0], x[0, 3] * column, rtol=1e-6)


def test_logits_of_rounded_rows_point_the_same_way(smollm2_gguf: Path) -> None:
    ids = [1, 4093, 198, 1780, 346, 5345, 351, 253, 1165, 1789]
    logits = {}
    for numerics in ("highest", "low"):
        g = Generator.load(smollm2_gguf, device="cpu", weights="packed", numerics=numerics, context=32)
        logits[numerics] = g.conversation().feed(ids).astype(np.float64)
        assert {row["tier"] for row in g.graph.dispatch()} == {"kernel"}, "embedding and head stay packed too"
    a, b = logits.values()
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.995


def test_int8_of_a_dense_model_is_one_word(minilm_folder: Path) -> None:
    """Cosine to float32 embeddings, and the greatest error: docs/numerics.md promises 0.98 and 0.04."""
    texts = ["A cat sat on the mat.", "Quarterly revenue rose by 3 %", "def f(x): return x + 1", "x"]
    exact = Embedder.load(minilm_folder, device="cpu", length=32).embed(texts).vectors
    e = Embedder.load(minilm_folder, device="cpu", length=32, weights="int8")
    products = {str(row["kernel"]) for row in e.graph.dispatch() if "qmatmul" in str(row["kernel"])}
    assert products
    assert all(k.endswith(".int8_rows") for k in products)
    vectors = e.embed(texts).vectors
    cosines = (vectors * exact).sum(-1)
    assert cosines.min() > 0.98
    assert np.abs(vectors - exact).max() < 0.04
    assert not [row for row in e.graph.dispatch() if row["tier"] == "host"], "the table of words is packed too, and read in generated code"
    plain = Embedder.load(minilm_folder, device="cpu", length=32, weights="int8", numerics="highest").embed(texts).vectors
    assert (plain * exact).sum(-1).min() > cosines.min(), "rounding weights alone costs less than rounding both"
