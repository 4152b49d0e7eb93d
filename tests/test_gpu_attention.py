"""Attention on the simulated GPU against float64 NumPy: the cases of the cpu's tests, sizes known at run time, narrow and packed caches."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_device import fact, gpu as gpu, running
from sim_device import needs_clang
from test_cpu_attention import CASES, Case, check, oracle
from test_kv_cache import GROUPS, HEADS, WIDTH, attends, causal, kept

from rlxpy import Builder, CompileOptions, Value, compile, scan, sym
from rlxpy.backends.gpu import attention_few
from rlxpy.backends.gpu.attention_few import FEW, PART_KEYS
from rlxpy.backends.gpu.units import UNITS
from rlxpy.backends.templates import trimmed
from rlxpy.errors import DeviceError
from rlxpy.ir import functions as F

DEBUG = CompileOptions(debug=True)


def test_every_mask_and_shape(gpu: str) -> None:
    """In simulation every other case on each wave size: most of the time goes into compiling them."""
    b, cases = Builder("attention"), CASES if gpu == "cuda" else CASES[fact(gpu, "wave") == 64::2]
    graph = b.finish(*(c.emit(b, i) for i, c in enumerate(cases)))
    rng = np.random.default_rng(7)
    given = [c.arrays(rng) for c in cases]
    units = [f"gpu/attention.{u.name}_{d}" for u in UNITS for d in ("bf16", "f16") if fact(gpu, "arch") in u.archs]
    f = compile(graph, device=gpu, options=CompileOptions(debug=True, tune=tuple(f"{name}:keys=16" for name in units)))
    assert {v.choice.name for s in f.plan.steps for v in s.variants if s.node.op.text == "attention"} == {"gpu/attention", "gpu/attention.few", "gpu/attention.one", *units}
    want = [c.expected(a) for c, a in zip(cases, given, strict=True)]
    for _ in range(2):
        for got, expected, case in zip(f.run(*(a for arrays in given for a in arrays)), want, cases, strict=True):
            check(got, expected, case)


@pytest.mark.parametrize("kind", ["none", "causal"])
def test_one_compile_serves_prefill_and_decode(gpu: str, kind: str) -> None:
    """Queries few and many, keys that end within a tile, at its edge, and beyond a part."""
    t, s = sym("T", 0, 40), sym("S", 0, 2 * PART_KEYS + 9)
    b = Builder("sizes")
    q, k, v = b.input("q", (2, 4, t, 16)), b.input("k", (2, 2, s, 16)), b.input("v", (2, 2, s, 24))
    f = compile(b.finish(q.apply("attention", (q, k, v), {"scale": 0.3, "mask": kind})), device=gpu, options=DEBUG)
    rng = np.random.default_rng(0)
    for size in ((1, 1), (1, 2 * PART_KEYS + 9), (FEW, PART_KEYS), (FEW, PART_KEYS + 1), (FEW + 1, PART_KEYS + 1), (40, 32), (33, 77), (3, 0), (0, 5)):
        arrays = [rng.normal(size=n).astype(np.float32) for n in ((2, 4, size[0], 16), (2, 2, size[1], 16), (2, 2, size[1], 24))]
        np.testing.assert_allclose(f.run(*arrays), oracle(*arrays, scale=0.3, kind=kind), atol=2e-6, err_msg=str(size))


@pytest.mark.parametrize("stored", ["float32", "float16"])
def test_slices_that_begin_anywhere_are_not_read_16_bytes_at_once(gpu: str, stored: str) -> None:
    """Rows of channels lie a multiple of 16 bytes apart, but the slices of the loops around do not: of the outer one, and of what the inner one sees of it."""
    rng = np.random.default_rng(3)
    keys, q = (rng.normal(size=n).astype(stored) for n in ((3, 2, 9 * 16 + 1), (1, 1, 2, 16)))
    runs = []
    for device in (gpu, "reference"):
        b = Builder("slices")
        given, query = b.input("keys", keys.shape, stored), b.input("q", q.shape, stored)
        parts = F.reshape(given[:, :, 1:], (3, 2, 1, 1, 9, 16)).reverse(axes=(0,))

        def outer(total: Value, pair: Value, query: Value = query) -> tuple[Value, Value]:
            one = pair[1]
            return total + 1.0, scan(lambda c, k: (c + 1.0, query.attention(k, one, scale=0.25)), total, pair)[1]

        f = compile(b.finish(scan(outer, b.const(0.0), parts)[1]), device=device, options=DEBUG)
        runs.append(f.run(keys, q))
    np.testing.assert_allclose(runs[0].astype("f4"), runs[1].astype("f4"), atol=4e-3 if stored == "float16" else 1e-6)


def test_narrow_and_packed_caches_are_read_as_they_lie(gpu: str) -> None:
    for stored in ("q8_0", {32: "bf16", 64: "f16"}[fact(gpu, "wave")]):
        f, rng = attends(stored, gpu), np.random.default_rng(0)
        assert {f"gpu/fused.attention{form}" for form in ("", ".few", ".one")} <= {v.choice.name for s in f.plan.steps for v in s.variants}
        keys, values, past = np.zeros((1, GROUPS, 0, WIDTH)), np.zeros((1, GROUPS, 0, WIDTH)), 0
        for chunk in (20, 1, 3, 20, 20, 17):
            q, k, v = (rng.normal(size=(1, h, chunk, WIDTH)).astype(np.float32) for h in (HEADS, GROUPS, GROUPS))
            got = f.run(q, k, v, sizes={"P": past})
            past += chunk
            keys, values = np.concatenate([keys, kept(k, stored)], 2), np.concatenate([values, kept(v, stored)], 2)
            np.testing.assert_allclose(got, causal(q, keys, values), atol=3e-6)


@pytest.mark.parametrize("rows", [1, 30])
def test_nan_and_infinity_as_the_reference_has_them(gpu: str, rows: int) -> None:
    """A NaN that a query sees makes its result NaN and no other's; a score of infinity gives NaN; a score of -infinity is unseen."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=n).astype(np.float32) for n in ((5, 1, rows, 8), (5, 1, 300, 8), (5, 1, 300, 8)))
    mask = np.zeros((5, 1, 1, 300), np.float32)
    q[0, 0, 0, 3] = np.nan
    k[1, 0, 150, 2] = np.nan
    v[2, 0, 7, 1] = np.nan
    mask[3, ..., 4] = np.inf
    mask[4, ..., 5:] = -np.inf
    got = []
    for device in (gpu, "reference"):
        b = Builder("special")
        xs = tuple(b.input(n, a.shape) for n, a in (("q", q), ("k", k), ("v", v), ("mask", mask)))
        got.append(compile(b.finish(xs[0].apply("attention", xs, {"scale": 0.5})), device=device)(q, k, v, mask))
    np.testing.assert_allclose(got[0], got[1], atol=2e-6)
    assert np.isnan(got[0]).any(axis=(1, 2, 3)).tolist() == [True, True, True, True, False]


WIDE = (Case((1, 12, 1, 3, PART_KEYS + 1, 64, 64), "causal"), Case((2, 10, 2, 1, 2 * PART_KEYS, 300, 512), dtype="f16"), Case((1, 6, 3, 4, PART_KEYS - 1, 8, 16), "window", 9, dtype="bf16"),
        Case((1, 18, 2, 2, 9, 40, 24), "causal", dtype="bf16", heads_inside=True), Case((1, 20, 1, 4, 131, 16, 16), mask=("bool", (1, 20, 4, 131))))


@pytest.mark.parametrize("where", ["isa gfx942", "isa gfx1201", "cuda"])
def test_few_queries_of_many_heads_and_wide_channels(where: str) -> None:
    """Rows of several blocks, two threads' worth of channels, keys that end at a part and beside it; two runs give the same bits."""
    with running(where) as device:
        b, rng = Builder("few"), np.random.default_rng(2)
        given = [c.arrays(rng) for c in WIDE]
        f = compile(b.finish(*(c.emit(b, i) for i, c in enumerate(WIDE))), device=device, options=DEBUG)
        assert {v.choice.name for s in f.plan.steps for v in s.variants if s.node.op.text == "attention"} == {"gpu/attention.one", "gpu/attention.few"}
        first, second = (f.run(*(a for arrays in given for a in arrays)) for _ in range(2))
        for got, again, arrays, case in zip(first, second, given, WIDE, strict=True):
            check(got, case.expected(arrays), case)
            np.testing.assert_array_equal(got.view("u1"), again.view("u1"))


@needs_clang
@pytest.mark.parametrize(("before", "after", "said"), [
    ("__syncthreads();\nfor (int t = threadIdx.x; t < 16;", "for (int t = threadIdx.x; t < 16;", "nobody has written"), ("s < to && ", "", "above"),
    ("__syncthreads();  // factors may still be read", "", "race"), ("factors[t / 1][r] = rlx_exp(", "factors[t / 1][r] = (", "above"),
])
def test_faults_planted_in_kernels_of_few_queries_are_seen(monkeypatch: pytest.MonkeyPatch, before: str, after: str, said: str) -> None:
    """Of barriers, of keys past the end, of what parts and groups are worth beside one another."""
    planted = list[bool]()

    def text(*path: str, **facts: Any) -> str:
        made = trimmed(*path, **facts)
        planted.append(before in made)
        return made.replace(before, after)

    monkeypatch.setattr(attention_few, "trimmed", text)
    case = Case((1, 1, 1, 1, 200*PART_KEYS, 8, 8)) if "factors may" in before else Case((1, 1, 1, 1, 2*PART_KEYS + 5, 64, 64), "window", 200)
    with running("isa gfx942") as device:
        b, arrays = Builder("planted"), case.arrays(np.random.default_rng(0))
        with pytest.raises((DeviceError, AssertionError), match=said):
            check(compile(b.finish(case.emit(b, 0)), device=device, options=DEBUG).run(*arrays), case.expected(arrays), case)
    assert any(planted)
