"""Attention on matrix units, or on the C that stands for them, against float64 over operands rounded to bf16: masks, views, packed caches, numbers that tiles cannot hold."""
from __future__ import annotations

import platform
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from test_cpu_attention import Case, oracle

from rlxpy import Builder, CompileOptions, compile, settings, sym
from rlxpy.backends.cpu.amx_attention import KEYS, ROWS
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.build import build
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.isa import available, named
from rlxpy.backends.cpu.threads import set_threads
from rlxpy.compiler.session import lower
from rlxpy.extend.plan import Plan
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.encoding import encoding
from rlxpy.ir.quantize import quantize

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
TILES = next((f"{isa.name}+amx" for isa in available() if "amx" in isa.features), f"{available()[0].name}+amx_emulated")
MANY = (2, 6, 2, 29, KEYS + 3, 20, 37)
CASES = (
    Case((1, 4, 2, 67, 70, 40, 64), "causal", heads_inside=True), Case(MANY, "window", KEYS - 5, softcap=1.5, mask=("bool", (2, 1, 29, KEYS + 3))), Case(MANY, mask=("f32", (KEYS + 3,))),
    Case(MANY, "window", 40, mask=("i32", (2, 6, 29, 2))), Case((1, 2, 2, 30, 4, 8, 8), "window", 2, scale=-0.25), Case(MANY, "causal", dtype="bf16", heads_inside=True),
)


def on_tiles(graph: Any, numerics: str) -> Any:
    with settings.override(isa=TILES):
        return compile(graph, device="cpu", options=CompileOptions(debug=True, numerics=numerics), wait=True)


def planned(graph: Any, numerics: str, isa: str) -> Plan:
    spec = Cpu(named(isa)).spec
    return lower(graph, replace(spec, facts={**spec.facts, "numerics": numerics}), CompileOptions(numerics=numerics))[0]


def rounded(a: Array) -> Array:
    return a.astype(DType.BF16.numpy).astype(np.float64)


def check(got: Array, v: Array, want: Array) -> None:
    """Beside rounding the operands, only weights are rounded, to bf16, and the result if it is bf16."""
    assert np.abs(got.astype(np.float64) - want).max(initial=0) <= 2.0**-9 * np.abs(v.astype(np.float64)).max(initial=0)


def test_every_mask_on_tiles() -> None:
    b, rng = Builder("tiles"), np.random.default_rng(3)
    f = on_tiles(b.finish(*(c.emit(b, i) for i, c in enumerate(CASES))), "medium")
    assert [r["kernel"] for r in f.dispatch() if r["op"] == "attention"] == ["cpu/attention.amx" if c.dtype == "bf16" else "cpu/attention.amx_bf16" for c in CASES]
    given = [c.arrays(rng) for c in CASES]
    for threads in (1, 2):
        set_threads(threads)
        for case, arrays, got in zip(CASES, given, f.run(*chain(*given)), strict=True):
            check(got, arrays[2], case.expected([*map(rounded, arrays[:3]), *arrays[3:]]))
            exact = case.expected(arrays)
            assert case.dtype == "bf16" or np.abs(got - exact).max() > 3e-5, "f32 arithmetic would be nearer: tiles did not do it"


def test_queries_few_and_many_and_keys_in_any_number() -> None:
    t, s = sym("T", 0, ROWS), sym("S", 0, 3*KEYS)
    b = Builder("sizes")
    q, k, v = b.input("q", (2, 4, t, 16)), b.input("k", (2, 2, s, 16)), b.input("v", (2, 2, s, 24))
    f = on_tiles(b.finish(q.apply("attention", (q, k, v), {"scale": 0.3, "mask": "causal"})), "medium")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/attention.amx_bf16"]
    rng = np.random.default_rng(0)
    for size in ((1, 300), (ROWS, 2*KEYS + 31), (9, KEYS), (40, 1), (33, 0), (0, 5), (8, 3*KEYS)):
        arrays = [rng.normal(size=n).astype(np.float32) for n in ((2, 4, size[0], 16), (2, 2, size[1], 16), (2, 2, size[1], 24))]
        q_, k_, v_ = map(rounded, arrays) if size[0] > 8 else arrays  # fewer are split over keys, in f32
        check(f.run(*arrays), v_, oracle(q_, k_, v_, scale=0.3, kind="causal"))


@pytest.mark.parametrize("stored", ["bf16", "q8_0"])
def test_narrow_caches_and_merged_heads(stored: str) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=n).astype(np.float32) for n in ((2, 4, 21, 64), (2, 2, 45, 64), (2, 2, 45, 64)))
    b, packed = Builder("cache"), stored == "q8_0"
    kept = [quantize(a, stored)[0].reshape(2, 2, 45, -1) if packed else a.astype(dtype(stored).numpy) for a in (k, v)]
    names = [b.input(n, a.shape, "u8" if packed else stored) for n, a in zip("kv", kept, strict=True)]
    wide = [x.dequantize(encoding=stored, shape=k.shape) if packed else x.cast(to="f32") for x in names]
    q_in = b.input("q", q.shape)
    y = q_in.apply("attention", (q_in, *wide), {"scale": 0.125}).transpose(perm=(0, 2, 1, 3)).reshape(shape=(2, 21, 256))
    f = on_tiles(b.finish(y), "medium")
    assert [r["kernel"] for r in f.dispatch()] == ["cpu/fused.attention.amx_bf16"]
    k, v = (np.asarray(encoding(stored).decode(quantize(a, stored), 64)).reshape(a.shape) if packed else a.astype(dtype(stored).numpy) for a in (k, v))
    check(f.run(*kept, q), v, oracle(rounded(q), rounded(k), rounded(v), scale=0.125).swapaxes(1, 2).reshape(2, 21, 256))


def test_numbers_that_tiles_cannot_hold_go_through_registers() -> None:
    """Of five batches the first four have some; the fifth is on tiles."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=n).astype(np.float32) for n in ((5, 1, 30, 8), (5, 1, 200, 8), (5, 1, 200, 8)))
    q[0, 0, 0, 3], k[1, 0, 150, 2], v[2, 0, 7, 1] = np.nan, np.inf, -3.4e38
    v[3] *= np.float32(1e-37)
    b = Builder("special")
    xs = tuple(b.input(n, a.shape) for n, a in (("q", q), ("k", k), ("v", v)))
    graph = b.finish(xs[0].apply("attention", xs, {"scale": 0.5}))
    got, want = on_tiles(graph, "medium")(q, k, v), compile(graph, device="reference")(q, k, v)
    np.testing.assert_allclose(got[:4], want[:4], rtol=2e-4, atol=1e-42)  # bf16 would be some 1e-3 away
    assert np.isnan(got).any(axis=(1, 2, 3)).tolist() == [True, True, False, False, False]
    assert 1e-5 < np.abs(got[4] - want[4]).max() < 0.05


def test_masks_that_are_not_finite_and_scores_far_apart() -> None:
    """A score of infinity gives NaN, one of -infinity is unseen; the greatest score comes last, is 9984, and rescales what came before."""
    q, k = np.ones((3, 1, 20, 1), np.float32), np.broadcast_to(np.linspace(-9984, 9984, 300, dtype=np.float32)[None, None, :, None], (3, 1, 300, 1))
    v = rounded(np.random.default_rng(0).normal(size=(3, 1, 300, 5))).astype(np.float32)
    mask = np.zeros((3, 1, 1, 300), np.float32)
    mask[1, ..., 4], mask[2, ..., 100:] = np.inf, -np.inf
    b = Builder("far")
    xs = tuple(b.input(n, a.shape) for n, a in (("q", q), ("k", k), ("v", v), ("m", mask)))
    got = on_tiles(b.finish(xs[0].apply("attention", xs, {"scale": 1.0})), "medium")(q, k, v, mask)
    for batch, last in ((0, 299), (2, 99)):
        np.testing.assert_allclose(got[batch], np.broadcast_to(v[batch, :, last:last + 1], (1, 20, 5)), rtol=1e-6)
    assert np.isnan(got[1]).all()


def test_which_rows_serve() -> None:
    def serving(d: str, queries: int, numerics: str) -> str:
        b = Builder("rows")
        q, k = b.input("q", (1, 2, queries, 8), d), b.input("k", (1, 2, 30, 8), d)
        (step,) = planned(b.finish(q.apply("attention", (q, k, k), {"scale": 1.0})), numerics, TILES).steps
        return step.choice.name

    assert [serving("f32", 30, n) for n in ("low", "medium", "high")] == ["cpu/attention.amx_bf16", "cpu/attention.amx_bf16", "cpu/attention"]
    assert [serving("bf16", 30, "highest"), serving("bf16", 15, "highest"), serving("f16", 30, "low")] == ["cpu/attention.amx", "cpu/attention", "cpu/attention"]


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="tile instructions were not compiled: they are x86-64's")
def test_the_real_instructions_compile() -> None:
    assert not isinstance(reason, str)
    cpu, b = Cpu(named("avx512+amx")), Builder("real")
    source = cpu.program(planned(b.finish(CASES[1].emit(b, 0)), "medium", "avx512+amx"), cpu.isa).source
    assert "rlx_columns_tile(" in source
    assert build(source, cpu.isa, reason).is_file()


@pytest.fixture(autouse=True)
def all_threads() -> Any:
    yield
    set_threads(None)
