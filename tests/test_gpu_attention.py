"""Attention on the simulated GPU against float64 NumPy: the cases of the cpu's tests, sizes known at run time, narrow and packed caches."""
from __future__ import annotations

import numpy as np
import pytest
from gpu_device import fact, gpu as gpu
from test_cpu_attention import CASES, check, oracle
from test_kv_cache import GROUPS, HEADS, WIDTH, attends, causal, kept

from rlxpy import Builder, CompileOptions, compile, sym
from rlxpy.backends.gpu.attention_few import FEW, PART_KEYS
from rlxpy.backends.gpu.units import UNITS

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
