"""Rows on their way into a cache: turned, rounded and written by one kernel, as the ops do it one by one, and by none where others read what is made on the way."""
from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from samples import ISAS
from test_cpu_rope import turned

from rlxpy import Builder, CompileOptions, Graph, compile, settings, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.backends.reference import Reference
from rlxpy.errors import IndexOutOfRange
from rlxpy.fusion.append import FuseAppend
from rlxpy.fusion.pipeline import fusion_report, run, standard
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Value
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.encoding import encoding
from rlxpy.ir.op import Op
from rlxpy.ir.trace import scan

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
FORMATS = ("f32", "bf16", "f16", "q8_0")
ROPES: tuple[dict[str, Any] | None, ...] = (None, {}, {"style": "interleaved", "dims": 6, "theta": 100.0})
CASES = tuple(product(FORMATS, ROPES))
NEXT, PAST, ROOM, WIDTH = sym("T", 0, 5), sym("P", 0, 9), 11, 64


def rounded(x: Value, stored: str) -> Value:
    return x if x.dtype.text == stored else x.quantize(encoding=stored) if stored == "q8_0" else x.cast(to=dtype(stored))


def append(b: Builder, name: str, x: Value, stored: str, rope: dict[str, Any] | None, freq: Value | None = None, at: Value | None = None, axis: int = 2) -> Value:
    """x [b, g, t, d] at row P of the state `name`, turned by its positions."""
    if rope is not None:
        position = x.builder.emit("iota", shape=(x.shape[-2],), axis=0, to=dtype("i64")) + F.size(x, PAST)
        x = x.apply("rope", (x, position) if freq is None else (x, position, freq), rope)
    row = rounded(x, stored)
    shape = tuple(ROOM if k == axis else d for k, d in enumerate(row.shape))
    kept = b.state(name, shape, row.dtype)
    full: Value = kept.kv_append(row, F.size(x, PAST) if at is None else at, axis=axis)
    b.update(kept, full)
    return full


def every(view: bool) -> Graph:
    """A cache for each format, turned or not; view: rows come with heads inside."""
    b = Builder("append")
    x = b.input("x", (len(CASES), *((2, NEXT, 3, WIDTH) if view else (2, 3, NEXT, WIDTH))))
    return b.finish(*(append(b, f"c{k}", x[k].transpose(perm=(0, 2, 1, 3)) if view else x[k], *case) for k, case in enumerate(CASES)))


def numbers(cache: Array, stored: str) -> Array:
    return np.asarray(encoding(stored).decode((cache,), WIDTH) if stored == "q8_0" else cache, np.float64)


@needs_compiler
@pytest.mark.parametrize(("isa", "view"), [(isa, k % 2 == 0) for k, isa in enumerate(ISAS)])
def test_caches_hold_what_the_ops_leave_one_by_one(isa: str, view: bool) -> None:
    """To the last byte what the same kernels leave unfused, and within a format's step what NumPy says in f64; chunks of every size, none included."""
    graph, rng = every(view), np.random.default_rng(0)
    with settings.override(isa=isa):
        fused, plain = (compile(graph, device="cpu", options=CompileOptions(debug=True, optimise=o)) for o in (True, False))
    kernels = [row["kernel"] for row in fused.dispatch()]
    assert kernels.count("cpu/fused.append") == len(CASES) - 1  # f32 as it is has nothing to fuse
    assert not {"cpu/rope", "cpu/cast", "cpu/quantize"} & set(kernels)
    past, wanted = 0, [np.zeros((2, 3, ROOM, WIDTH)) for _ in CASES]
    for chunk in (1, 5, 0, 3, 1):
        x = rng.normal(size=(len(CASES), *((2, chunk, 3, WIDTH) if view else (2, 3, chunk, WIDTH)))).astype(np.float32)
        x[:, 0] *= 100
        got, want = (f.run(x, sizes={"P": past}) for f in (fused, plain))
        for (stored, rope), given, g, w, held in zip(CASES, x, got, want, wanted, strict=True):
            assert g.tobytes() == w.tobytes(), (stored, rope)
            rows = given.transpose(0, 2, 1, 3) if view else given
            held[:, :, past:past + chunk] = rows if rope is None else turned(rows, past + np.arange(chunk), **rope)
            own, shared = {"f32": (0, 2e-7), "bf16": (2.0**-8, 2e-7), "f16": (2.0**-11, 2e-7), "q8_0": (0, 1 / 200)}[stored]  # of a number, of the greatest in its row
            assert (np.abs(numbers(g, stored) - held) <= own * np.abs(held) + shared * np.abs(held).max(-1, keepdims=True)).all(), (stored, rope)
        past += chunk


@needs_compiler
@pytest.mark.parametrize("name", ["f16", "bf16", "f64"])
def test_frequencies_narrow_rows_and_other_axes(name: str) -> None:
    """Rows that need no rounding, given frequencies, a cache along the first axis and one of rank 2."""
    b = Builder("append")
    x, freq = b.input("x", (4, NEXT, 6), name), b.input("freq", (3,))
    first = b.input("first", (2, 4, 6), name)
    y, z = append(b, "a", x, name, {}, freq, axis=1), append(b, "b", first, name, {"dims": 4}, axis=0)
    w = append(b, "c", first.reshape(shape=(8, 6)), name, {}, axis=0, at=b.const(3, "i64"))
    fused, plain = (compile(b.finish(y, z, w), device="cpu", options=CompileOptions(debug=True, optimise=o)) for o in (True, False))
    assert [row["kernel"] for row in fused.dispatch()].count("cpu/fused.append") == 3
    rng = np.random.default_rng(1)
    for past, chunk in ((0, 5), (5, 1), (2, 4)):
        given = [rng.normal(size=s).astype(dtype(name).numpy) for s in ((4, chunk, 6), (2, 4, 6))]
        calls = [f.run(given[0], np.array([1.0, 0.1, 3.0], np.float32), given[1], sizes={"P": past}) for f in (fused, plain)]
        for g, p in zip(*calls, strict=True):
            assert g.tobytes() == p.tobytes()


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=needs_compiler)])
@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("bad", [-1, 8, 2**40])
def test_a_place_outside_is_an_error_and_changes_nothing(stored: str, device: str, bad: int) -> None:
    b = Builder("append")
    x = b.input("x", (1, 3, 4, WIDTH))
    full = append(b, "c", x, stored, {}, at=b.input("at", (), "i64"))
    f = compile(b.finish(full * 1 if stored != "q8_0" else full.reverse(axes=(0,))), device=device, options=CompileOptions(debug=True))
    rows = np.random.default_rng(0).normal(size=(1, 3, 4, WIDTH)).astype(np.float32)
    before = f.run(rows, np.int64(7), sizes={"P": 7})
    with pytest.raises(IndexOutOfRange, match="cache"):
        f.run(rows + 1, np.int64(bad), sizes={"P": 0})
    np.testing.assert_array_equal(f.run(rows, np.int64(7), sizes={"P": 7}), before)


@needs_compiler
def test_a_run_that_fails_later_puts_the_rows_back() -> None:
    """The kernel that fails comes after the one that wrote."""
    b = Builder("append")
    full = append(b, "c", b.input("x", (2, 3, 4, WIDTH)), "q8_0", {})
    table, at = b.input("table", (5, 2)), b.input("at", (3,), "i64")
    f = compile(b.finish(full.reverse(axes=(0,)), table.gather(at, axis=0)), device="cpu", options=CompileOptions(debug=True))
    rng = np.random.default_rng(0)
    old, new = (rng.normal(size=(2, 3, 4, WIDTH)).astype(np.float32) for _ in range(2))
    given = np.zeros((5, 2), np.float32)
    before, _ = f.run(old, given, np.arange(3), sizes={"P": 0})
    with pytest.raises(IndexOutOfRange):
        f.run(new, given, np.array([0, 9, 1]), sizes={"P": 2})
    after, _ = f.run(old, given, np.arange(3), sizes={"P": 4})  # rows 4..7 are what they were, too
    np.testing.assert_array_equal(after[:, :, :4], before[:, :, :4])
    assert not after[:, :, 8:].any()


@needs_compiler
def test_an_old_cache_that_is_read_again_keeps_its_rows() -> None:
    """Then the new one lies elsewhere, and holds the old rows, too."""
    b = Builder("append")
    x = b.input("x", (2, 1, 3, WIDTH))
    kept = b.state("c", (2, 1, ROOM, WIDTH), "bf16")
    full = kept.kv_append(x.rope(b.input("p", (3,), "i64")).cast(to=dtype("bf16")), F.size(x, PAST), axis=2)
    b.update(kept, full)
    f = compile(b.finish(kept.cast(to=dtype("f32")), full.cast(to=dtype("f32"))), device="cpu", options=CompileOptions(debug=True))
    assert "cpu/fused.append" in [row["kernel"] for row in f.dispatch()]
    held, rng = np.zeros((2, 1, ROOM, WIDTH), dtype("bf16").numpy), np.random.default_rng(0)
    for past in (0, 3, 1):
        rows, at = rng.normal(size=(2, 1, 3, WIDTH)).astype(np.float32), past + np.arange(3)
        old, new = f.run(rows, at, sizes={"P": past})
        np.testing.assert_array_equal(old, held.astype(np.float32))
        held[:, :, past:past + 3] = turned(rows, at).astype(np.float32).astype(held.dtype)
        np.testing.assert_allclose(new, held.astype(np.float32), rtol=2**-8)


@needs_compiler
def test_caches_of_loops() -> None:
    """The cache is a carry: of two slots, or changed where it lies."""
    def step(carry: tuple[Value, Value], x: Value) -> tuple[tuple[Value, Value], None]:
        cache, i = carry
        row = x.rope(F.unsqueeze(i, 0)).cast(to=dtype("f16"))
        return (cache.kv_append(row, i, axis=1), i + 1), None

    b = Builder("loop")
    xs = b.input("xs", (7, 3, 1, 10))
    (cache, _), _ = scan(step, (b.const(np.zeros((3, 8, 10), np.float16)), b.const(1, "i64")), xs)
    graph, rows = b.finish(cache), np.random.default_rng(0).normal(size=(7, 3, 1, 10)).astype(np.float32)
    f = compile(graph, device="cpu", options=CompileOptions(debug=True))
    want = np.zeros((3, 8, 10), np.float16)
    for i in range(7):
        want[:, i + 1:i + 2] = turned(rows[i], np.array([i + 1]))
    for _ in range(2):
        np.testing.assert_allclose(f.run(rows).astype(np.float64), want.astype(np.float64), atol=2e-3)
    assert "append" in {n.kind for _, body in next(n for n in f.plan.graph if n.op is Op.SCAN).attrs.graphs() for n in body}


# ---- the pass
def chains(read_too: str = "") -> Graph:
    b = Builder("pass")
    x = b.input("x", (1, 2, 3, WIDTH))
    roped = x.rope(b.input("p", (3,), "i64"))
    row = roped.cast(to=dtype("f16"))
    kept = b.state("c", (1, 2, ROOM, WIDTH), "f16")
    full = kept.kv_append(row, F.size(x, PAST), axis=2)
    b.update(kept, full)
    return b.finish(full, *{"": [], "roped": [roped], "row": [row]}[read_too])


@pytest.mark.parametrize(("read_too", "inside"), [("", ["rope", "cast", "kv_append"]), ("roped", ["cast", "kv_append"]), ("row", [])])
def test_what_others_read_is_made_on_its_own(read_too: str, inside: list[str]) -> None:
    graph = chains(read_too)
    after, notes = FuseAppend().noted(graph)
    found = [n for n in after if n.kind == "append"]
    assert [[m.op.text for m in n.attrs.body if m.op is not Op.INPUT] for n in found] == ([inside] if inside else [])  # type: ignore[attr-defined]
    assert [(n.kind, n.label) for n in notes] == [("fused", "append")] * len(found)
    assert (after is graph) is not bool(inside)
    x, p = np.random.default_rng(0).normal(size=(1, 2, 3, WIDTH)).astype(np.float32), np.arange(3)
    want, got = (compile(g, device="reference").run(x, p, sizes={"P": 4}) for g in (graph, after))
    for w, g in zip(*(a if isinstance(a, tuple) else (a,) for a in (want, got)), strict=True):
        np.testing.assert_array_equal(g, w)


def test_casts_that_lose_nothing_and_rows_of_other_types_stay() -> None:
    b = Builder("pass")
    x, kept = b.input("x", (2, 3), "f16"), b.state("c", (5, 3))
    b.update(kept, kept.kv_append(x.cast(to=dtype("f32")), b.input("at", (), "i64"), axis=0))
    graph = b.finish(x)
    assert FuseAppend()(graph) is graph


@needs_compiler
def test_who_says_so_gets_it_and_reports_tell() -> None:
    cpu = compile(chains(), device="cpu")
    assert any("rope cast kv_append" in str(hit) for hit in fusion_report(cpu.report).hits)
    assert {s.choice.name for s in cpu.plan.steps if s.node.kind == "append"} == {"cpu/fused.append"}
    for spec in (Reference().spec, Gpu(VENDORS["cuda"]).spec):
        assert "append" not in {n.kind for n in run(chains(), standard(spec))[0]}
