"""Attention on matrix units against float64 NumPy: which lane holds what, every mask, sizes known at run time, caches, and faults planted in it."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from gpu_device import fact, opened, running
from sim_device import needs_clang
from test_cpu_attention import Case, oracle
from test_gpu_products import kernels_of
from test_kv_cache import GROUPS, HEADS, WIDTH, attends, causal, kept

from rlxpy import Builder, CompileOptions, Op, compile, sym
from rlxpy.backends.gpu import attention_units, units
from rlxpy.backends.gpu.backend import spec_of
from rlxpy.backends.templates import trimmed
from rlxpy.errors import DeviceError
from rlxpy.extend.kernels import KernelRow, points
from rlxpy.ir.dtypes import Array, dtype

T = TypeVar("T")
DEBUG = CompileOptions(debug=True)
STEP = {"bf16": 2.0**-8, "f16": 2.0**-11}  # what rounding to a type loses of a number, at most
SMALL = (2, 6, 2, 11, 35, 20, 37)
CASES = (
    Case(SMALL), Case((1, 4, 1, 20, 70, 32, 48), "causal"), Case(SMALL, "window", 5, softcap=1.5), Case((1, 2, 1, 9, 4, 8, 16), "causal", heads_inside=True),
    Case(SMALL, "causal", mask=("bool", (1, 6, 11, 35))), Case(SMALL, mask=("bool", (2, 1, 1, 35))), Case(SMALL, mask=("add", (6, 11, 35)), softcap=2.0),
    Case(SMALL, "window", 20, mask=("i32", (2, 1, 11, 2))), Case((1, 2, 2, 5, 0, 8, 8)), Case((2, 4, 2, 0, 8, 8, 8)), Case((0, 4, 2, 9, 8, 8, 8)), Case((1, 2, 2, 5, 9, 0, 3)),
)
FEW = CASES[1:3]


def check(device: str, d: str, cases: tuple[Case, ...], numerics: str = "medium", tune: tuple[str, ...] = ()) -> Any:
    """Results are those of exact attention over the rounded operands, but for the rounding of weights and of results; two runs, poisoned memory."""
    cases = tuple(replace(c, dtype=d, mask=(d, c.mask[1]) if c.mask and c.mask[0] == "add" else c.mask) for c in cases)
    b, rng, narrow = Builder("units"), np.random.default_rng(3), "bf16" if d == "f32" else d
    f = compile(b.finish(*(c.emit(b, i) for i, c in enumerate(cases))), device=device, options=CompileOptions(debug=True, numerics=numerics, tune=tune))
    given = [c.arrays(rng) for c in cases]
    for _ in range(2):
        got = f.run(*(a for arrays in given for a in arrays))
        for result, arrays, c in zip(got if isinstance(got, tuple) else (got,), given, cases, strict=True):
            exact = [a.astype(dtype(narrow).numpy) for a in arrays[:3]] + arrays[3:]
            want, size = (c.expected([*exact[:2], v, *exact[3:]]) for v in (exact[2], np.abs(exact[2])))
            lost = STEP[narrow]*size + STEP.get(d, 0)*np.abs(want) + 2e-6
            assert (np.abs(result.astype(np.float64) - want) <= lost).all(), (c, np.abs(result - want).max(), lost.max())
    return f


@pytest.fixture(params=["isa gfx942", "isa gfx1201", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of each wave size one that runs machine code, and a card where there is one."""
    with running(request.param) as name:
        yield name


def share(device: str, items: tuple[T, ...]) -> tuple[T, ...]:
    """In simulation every other one on each wave size: most of the time goes into compiling them."""
    return items if device == "cuda" else items[fact(device, "wave") == 64::2]


@pytest.mark.parametrize("d", ["bf16", "f32"])
def test_every_mask_and_shape(device: str, d: str) -> None:
    f = check(device, d, share(device, CASES) if d == "bf16" else CASES[1:8:3], tune=(f"gpu/attention.{form(device, d)}:keys=16", f"gpu/attention.{form(device, d)}:waves=2"))
    assert f"gpu/attention.{form(device, d)}" in kernels_of(f)


def form(device: str, d: str) -> str:
    unit = next(u for u in units.UNITS if fact(device, "arch") in u.archs)
    return unit.name if d == "f32" else f"{unit.name}_{d}"


@needs_clang
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201"])
def test_each_unit_as_machine_code(arch: str) -> None:
    for _ in opened(arch, "isa"):
        for d, keys in (("f16", 16), ("bf16", 32)):
            name = f"gpu/attention.{form('rocm', d)}"
            assert name in kernels_of(check("rocm", d, CASES[1:2], tune=(f"{name}:keys={keys}",)))


def test_nvidias_lanes_as_host_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for mma.sync, whose lanes have two rows each, on a simulated chip that multiplies by its table."""
    monkeypatch.setattr(units, "UNITS", tuple(replace(u, vendor="amd", archs=("gfx1030",), calls=dict.fromkeys(u.calls, "z")) if u.vendor == "nvidia" else u for u in units.UNITS))
    spec_of.cache_clear()
    units.needs.cache_clear()
    for _ in opened("gfx1030"):
        assert "gpu/attention.mma_bf16" in kernels_of(check("rocm", "bf16", FEW, tune=("gpu/attention.mma_bf16:keys=32", "gpu/attention.mma_bf16:waves=2")))
    spec_of.cache_clear()
    units.needs.cache_clear()


def test_one_compile_serves_every_size(device: str) -> None:
    t, s, rng = sym("T", 0, 90), sym("S", 0, 200), np.random.default_rng(0)
    for kind in share(device, ("none", "causal")):
        b = Builder("sizes")
        q, k, v = b.input("q", (2, 4, t, 16), "f16"), b.input("k", (2, 2, s, 16), "f16"), b.input("v", (2, 2, s, 24), "f16")
        f = compile(b.finish(q.apply("attention", (q, k, v), {"scale": 0.3, "mask": kind})), device=device, options=DEBUG)
        assert kernels_of(f) >= {f"gpu/attention.{form(device, 'f16')}", "gpu/attention.few", "gpu/attention.one"}
        for size in ((5, 1), (5, 200), (32, 64), (33, 65), (90, 63), (40, 7), (5, 0), (3, 9), (0, 5)):
            arrays = [rng.normal(size=n).astype(np.float16) for n in ((2, 4, size[0], 16), (2, 2, size[1], 16), (2, 2, size[1], 24))]
            np.testing.assert_allclose(f.run(*arrays), oracle(*arrays, scale=0.3, kind=kind), atol=4e-3, err_msg=str(size))


def test_caches_are_rounded_as_they_are_read(device: str) -> None:
    """Queries of f32 under medium: what is lost is what bf16 loses of queries, keys, values and weights."""
    for stored in share(device, ("f16", "q8_0", "f32")):
        caches(device, stored)


def caches(device: str, stored: str) -> None:
    f, rng = attends(stored, device, numerics="medium"), np.random.default_rng(0)
    assert kernels_of(f) & {f"gpu/{kind}attention.{form(device, 'f32')}" for kind in ("", "fused.")}
    keys, values, past = np.zeros((1, GROUPS, 0, WIDTH)), np.zeros((1, GROUPS, 0, WIDTH)), 0
    for chunk in (20, 20, 5):
        q, k, v = (rng.normal(size=(1, h, chunk, WIDTH)).astype(np.float32) for h in (HEADS, GROUPS, GROUPS))
        got = f.run(q, k, v, sizes={"P": past})
        past += chunk
        keys, values = np.concatenate([keys, rounded(kept(k, stored))], 2), np.concatenate([values, rounded(kept(v, stored))], 2)
        np.testing.assert_allclose(got, causal(rounded(q), keys, values), atol=STEP["bf16"] * np.abs(values).max())


def rounded(a: Array) -> Array:
    return a.astype(dtype("bf16").numpy).astype(np.float64)


def test_nan_and_infinity_as_the_reference_has_them(device: str) -> None:
    rng, b = np.random.default_rng(1), Builder("special")
    q, k, v = (rng.normal(size=n).astype(dtype("bf16").numpy) for n in ((5, 1, 9, 8), (5, 1, 70, 8), (5, 1, 70, 8)))
    mask = np.zeros((5, 1, 1, 70), dtype("bf16").numpy)
    q[0, 0, 0, 3] = k[1, 0, 50, 2] = v[2, 0, 7, 1] = np.nan
    mask[3, ..., 4] = np.inf
    mask[4, ..., 5:] = -np.inf
    xs = tuple(b.input(n, a.shape, "bf16") for n, a in (("q", q), ("k", k), ("v", v), ("mask", mask)))
    graph = b.finish(xs[0].apply("attention", xs, {"scale": 0.5}))
    got, want = (np.asarray(compile(graph, device=where)(q, k, v, mask), np.float64) for where in (device, "reference"))
    np.testing.assert_allclose(got, want, atol=3e-2)
    assert np.isnan(got).any(axis=(1, 2, 3)).tolist() == [True, True, True, True, False]
    assert np.isnan(got[0]).any(axis=(0, 2)).tolist() == [True] + [False]*8


@needs_clang
@pytest.mark.parametrize(("before", "after", "said"), [
    ("__syncthreads();  // the tile before may still be read", "", "race"), ("__syncthreads();\n  if (s0", "if (s0", "race"),
    ("{ start = rlx_least(start, lo); stop = rlx_most(stop, hi); }", "{ start = lo; stop = hi - 1; }", "Case"), ("rlx_xor_lane(most[a], 32)", "most[a]", "Case"),
    ("sum[a] *= keep[a];", "", "Case"), ("s >= low[a] && s < high[a]", "s < n", "Case"),
])
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch, before: str, after: str, said: str) -> None:
    """Of barriers, of what a wave may skip, of what lanes tell one another, of what is kept from one tile to the next."""
    def planted(*path: str, **facts: Any) -> str:
        text = trimmed(*path, **facts)
        assert before in text
        return text.replace(before, after)

    monkeypatch.setattr(attention_units, "trimmed", planted)
    for _ in opened("gfx942", "isa"):
        with pytest.raises((DeviceError, AssertionError), match=said):
            check("rocm", "bf16", CASES[1:2], tune=("gpu/attention.mfma_bf16:keys=16",))


@pytest.mark.parametrize("unit", units.UNITS, ids=lambda u: u.name)
def test_every_point_fits_a_block(unit: units.Unit) -> None:
    for d, e in ((0, 1), (64, 64), (80, 33), (128, 128), (192, 128), (256, 256)):
        for point in points(KernelRow("row", Op.ATTENTION, lambda: None, tunables=attention_units.tunables(unit))):
            t = attention_units.tile_of(unit, d, e, **point)
            assert t.fits, t
            assert t.waves * unit.lanes in range(64, 513, 64)
            assert (t.waves, t.keys) <= (point["waves"], 128)
