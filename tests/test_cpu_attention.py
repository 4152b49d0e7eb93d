"""Attention on the CPU backend against float64 NumPy written here: masks, shared key heads, views, symbolic sizes, many keys, every instruction set."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from samples import CLOSE, ISAS

from rlxpy import Builder, CompileOptions, compile, settings, sym
from rlxpy.backends.cpu.attention import PART_KEYS, TILE_KEYS
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.threads import set_threads
from rlxpy.ir.dtypes import Array, dtype

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
every_isa = pytest.mark.parametrize("isa", ISAS)


def oracle(q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float, kind: str = "none", window: int = 0, softcap: float = 0.0) -> Array:
    """One query at a time, in f64, over the keys that it may see and no others."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    (b, h, t, _), (g, s) = q.shape, k.shape[1:3]
    out = np.zeros((b, h, t, v.shape[3]))
    full = None if mask is None else np.broadcast_to(mask, (b, h, t, 2 if mask.dtype.kind == "i" else s))
    for i in np.ndindex(b, h, t):
        sees = np.ones(s, bool)
        back = i[2] + s - t - np.arange(s)
        if kind != "none":
            sees &= back >= 0
        if kind == "window":
            sees &= back < window
        score = k[i[0], i[1] // (h // g)] @ q[i] * scale
        if softcap:
            score = np.tanh(score / softcap) * softcap
        if full is not None and full.dtype == bool:
            sees &= full[i]
        elif full is not None and full.dtype.kind == "i":
            sees &= (np.arange(s) >= full[i][0]) & (np.arange(s) < full[i][1])
        elif full is not None:
            score = score + full[i].astype(np.float64)
            sees &= score > -np.inf
        if sees.any():
            e = np.exp(score[sees] - score[sees].max())
            out[i] = e / e.sum() @ v[i[0], i[1] // (h // g)][sees]
    return out


@dataclass(frozen=True)
class Case:
    """b, h, g, t, s, d, e; mask: "" or a dtype and a shape."""

    sizes: tuple[int, int, int, int, int, int, int]
    kind: str = "none"
    window: int = 0
    softcap: float = 0.0
    mask: tuple[str, tuple[int, ...]] | None = None
    dtype: str = "f32"
    heads_inside: bool = False  # operands are [b, t, h, d] in memory
    scale: float = 0.25

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        b, h, g, t, s, d, e = self.sizes
        plain = (b, h, t, d), (b, g, s, d), (b, g, s, e)
        return tuple((n[0], n[2], n[1], n[3]) for n in plain) if self.heads_inside else plain

    def emit(self, b: Builder, at: int) -> Any:
        xs = [b.input(f"c{at}x{i}", shape, self.dtype) for i, shape in enumerate(self.shapes())]
        if self.heads_inside:
            xs = [x.transpose(perm=(0, 2, 1, 3)) for x in xs]
        if self.mask:
            xs.append(b.input(f"c{at}m", self.mask[1], self.mask[0]))
        return xs[0].apply("attention", tuple(xs), {"scale": self.scale, "mask": self.kind, "window": self.window, "softcap": self.softcap})

    def arrays(self, rng: np.random.Generator) -> list[Array]:
        given = [rng.normal(size=shape).astype(dtype(self.dtype).numpy) for shape in self.shapes()]
        return given + ([self.drawn(rng)] if self.mask else [])

    def drawn(self, rng: np.random.Generator) -> Array:
        """A mask with rows that see nothing, if it has more than one row."""
        assert self.mask
        name, shape = self.mask
        if name == "bool":
            seen = rng.random(shape) < 0.6
            seen[..., -1:, :] = shape[-2] == 1
            return np.asarray(seen)
        if name == "i32":
            return np.sort(rng.integers(0, self.sizes[4] + 1, shape), -1).astype(np.int32)
        return np.where(rng.random(shape) < 0.2, -np.inf, rng.normal(size=shape)).astype(dtype(name).numpy)

    def expected(self, arrays: list[Array]) -> Array:
        q, k, v = (a.swapaxes(1, 2) if self.heads_inside else a for a in arrays[:3])
        return oracle(q, k, v, *arrays[3:], scale=self.scale, kind=self.kind, window=self.window, softcap=self.softcap)


MANY, LONG = (2, 6, 2, 29, 131, 20, 37), (1, 3, 1, 1, 2 * PART_KEYS + 17, 36, 40)
CASES = (
    *(Case(sizes, kind, window) for sizes in (MANY, LONG, (2, 4, 4, 40, 40, 32, 32), (1, 8, 1, 3, 7, 5, 1)) for kind, window in (("none", 0), ("causal", 0), ("window", 5))),
    *(Case(MANY, "window", w, softcap=1.5) for w in (1, TILE_KEYS + 3)),
    Case((1, 2, 1, 9, 4, 8, 8), "causal"), Case((1, 2, 2, 30, 4, 8, 8), "window", 2),  # more queries than keys: the first see nothing
    *(Case(MANY, kind, mask=("bool", shape)) for kind in ("none", "causal") for shape in ((2, 1, 1, 131), (1, 6, 29, 131), (29, 1), (2, 1, 29, 131))),
    *(Case(sizes, mask=("bool", shape)) for sizes, shape in ((LONG, (1, 1, 1, LONG[4])), (LONG, (1, 3, 1, LONG[4])))),
    *(Case(MANY, mask=(name, shape), softcap=2.0) for name, shape in (("f32", (131,)), ("f32", (2, 6, 29, 131)), ("f32", (6, 1, 1)))),
    *(Case(sizes, "causal", dtype=d, heads_inside=inside) for sizes in (MANY, LONG) for d in ("f32", "f16", "bf16") for inside in (False, True)),
    *(Case(sizes, kind, window, mask=("i32", shape)) for sizes, shape in ((MANY, (29, 2)), (MANY, (2, 6, 29, 2)), (MANY, (2, 1, 1, 2)), (LONG, (1, 2)))
      for kind, window in (("none", 0), ("causal", 0), ("window", 40))),
    Case(MANY, mask=("f16", (29, 131)), dtype="f16"),
    Case((1, 2, 2, 17, 300, 512, 48), "causal", scale=512**-0.5), Case((1, 4, 2, 2, 0, 8, 8)), Case((2, 4, 2, 0, 8, 8, 8)), Case((0, 4, 2, 3, 8, 8, 8)), Case((1, 2, 2, 5, 9, 0, 3)),
)


def check(got: Array, want: Array, case: Case) -> None:
    error = np.abs(got.astype(np.float64) - want).max(initial=0.0)
    bound = max(CLOSE[dtype(case.dtype)], 4e-6) * max(1.0, np.abs(want).max(initial=0.0))
    assert error <= bound, f"{case}: {error:.3g} above {bound:.3g}"


@every_isa
def test_every_mask_and_shape(isa: str) -> None:
    b = Builder("attention")
    graph = b.finish(*(c.emit(b, i) for i, c in enumerate(CASES)))
    rng = np.random.default_rng(7)
    given = [c.arrays(rng) for c in CASES]
    want = [c.expected(a) for c, a in zip(CASES, given, strict=True)]
    with settings.override(isa=isa):
        f = compile(graph, device="cpu", options=CompileOptions(debug=True))
    assert {row["tier"] for row in f.dispatch() if row["op"] == "attention"} == {"kernel"}
    for threads in (1, 2, None):
        set_threads(threads)
        for got, expected, case in zip(f.run(*(a for arrays in given for a in arrays)), want, CASES, strict=True):
            check(got, expected, case)


@pytest.mark.parametrize("kind", ["none", "causal"])
def test_one_compile_serves_prefill_and_decode(kind: str) -> None:
    """Queries few and many, keys that end within a tile, at its edge, and beyond a part."""
    t, s = sym("T", 0, 70), sym("S", 0, 2 * PART_KEYS)
    b = Builder("sizes")
    q, k, v = b.input("q", (2, 4, t, 16)), b.input("k", (2, 2, s, 16)), b.input("v", (2, 2, s, 24))
    f = compile(b.finish(q.apply("attention", (q, k, v), {"scale": 0.3, "mask": kind})), device="cpu", options=CompileOptions(debug=True))
    rng = np.random.default_rng(0)
    for size in ((1, 1), (1, 2 * PART_KEYS), (4, PART_KEYS), (5, PART_KEYS + 1), (70, TILE_KEYS), (33, 200), (3, 0), (0, 5)):
        arrays = [rng.normal(size=n).astype(np.float32) for n in ((2, 4, size[0], 16), (2, 2, size[1], 16), (2, 2, size[1], 24))]
        np.testing.assert_allclose(f.run(*arrays), oracle(*arrays, scale=0.3, kind=kind), atol=2e-6, err_msg=str(size))


@pytest.mark.parametrize("rows", [1, 30])
def test_nan_and_infinity_as_the_reference_has_them(rows: int) -> None:
    """A NaN that a query sees makes its result NaN and no other's; a score of infinity gives NaN; a score of -infinity is unseen."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=n).astype(np.float32) for n in ((5, 1, rows, 8), (5, 1, 200, 8), (5, 1, 200, 8)))
    mask = np.zeros((5, 1, 1, 200), np.float32)
    q[0, 0, 0, 3] = np.nan
    k[1, 0, 150, 2] = np.nan
    v[2, 0, 7, 1] = np.nan
    mask[3, ..., 4] = np.inf
    mask[4, ..., 5:] = -np.inf
    got = []
    for device in ("cpu", "reference"):
        b = Builder("special")
        xs = tuple(b.input(n, a.shape) for n, a in (("q", q), ("k", k), ("v", v), ("mask", mask)))
        got.append(compile(b.finish(xs[0].apply("attention", xs, {"scale": 0.5})), device=device)(q, k, v, mask))
    np.testing.assert_allclose(got[0], got[1], atol=2e-6)
    assert np.isnan(got[0]).any(axis=(1, 2, 3)).tolist() == [True, True, True, True, False]


def test_scores_far_apart_and_far_from_zero() -> None:
    """Online softmax: the greatest score comes last, is 10,000, and rescales what came before."""
    q, k = np.ones((1, 1, 20, 1), np.float32), np.linspace(-1e4, 1e4, 300, dtype=np.float32).reshape(1, 1, 300, 1)
    v = np.random.default_rng(0).normal(size=(1, 1, 300, 5)).astype(np.float32)
    b = Builder("far")
    xs = tuple(b.input(n, a.shape) for n, a in (("q", q), ("k", k), ("v", v)))
    f = compile(b.finish(xs[0].apply("attention", xs, {"scale": 1.0})), device="cpu")
    np.testing.assert_allclose(f(q, k, v), np.broadcast_to(v[:, :, -1:], (1, 1, 20, 5)), rtol=1e-6)
    np.testing.assert_allclose(f(-q, k, v), np.broadcast_to(v[:, :, :1], (1, 1, 20, 5)), rtol=1e-6)


@pytest.fixture(autouse=True)
def all_threads() -> Any:
    yield
    set_threads(None)
