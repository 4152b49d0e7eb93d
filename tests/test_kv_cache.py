"""Caches of keys and values in f32, bf16, f16 and q8_0: the same model on the reference and on cpu, error laws, and the memory they take."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import ISAS

from rlxpy import Builder, CompileOptions, Generator, compile, settings, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import BuildError, InputError
from rlxpy.flow.core import ModelFlow
from rlxpy.flow.ctx import FlowCtx
from rlxpy.flow.families.llama import LlamaConfig, llama
from rlxpy.ir.builder import Value
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.ir.encoding import encoding
from rlxpy.ir.quantize import quantize

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
DEVICES = ["reference", pytest.param("cpu", marks=needs_compiler)]
FORMATS = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "q8_0": 34 / 32}  # bytes an element
NEXT, CAPACITY, HEADS, GROUPS, WIDTH = sym("T", 1, 20), 320, 6, 2, 64
PAST = sym("P", 0, CAPACITY - 20)


class Attends:
    """q [1, 6, T, 64] over a cache that k and v [1, 2, T, 64] are appended to; heads merged."""

    name = "attends"

    def __init__(self, stored: str) -> None:
        self.stored = stored

    def emit_layer(self, ctx: FlowCtx, q: Value) -> Value:
        k, v = (ctx.kv_cache(n, ctx.input(n), PAST, CAPACITY, self.stored) for n in "kv")
        return ctx.merge_heads(ctx.attention(q, k, v, causal=True))


def attends(stored: str, device: str, numerics: str = "highest") -> Any:
    shapes = {n: (1, h, NEXT, WIDTH) for n, h in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))}
    flow = ModelFlow("attends")
    for n, shape in shapes.items():
        flow = flow.input(n, shape)
    return compile(flow.then(Attends(stored)).build().graph, device=device, options=CompileOptions(debug=True, numerics=numerics))


def kept(a: Array, stored: str) -> Array:
    """What a cache gives back, in f64."""
    if stored == "q8_0":
        return np.asarray(encoding(stored).decode(quantize(a, stored), a.shape[-1]), np.float64).reshape(a.shape)
    return a.astype(dtype(stored).numpy).astype(np.float64)


def causal(q: Array, k: Array, v: Array) -> Array:
    """[1, T, 6 * 64] of the last T positions, in f64."""
    out = np.zeros((1, q.shape[2], HEADS, WIDTH))
    for h in range(HEADS):
        for i in range(q.shape[2]):
            seen = k.shape[2] - q.shape[2] + i + 1
            score = k[0, h * GROUPS // HEADS, :seen] @ q[0, h, i].astype(np.float64) * WIDTH ** -0.5
            e = np.exp(score - score.max())
            out[0, i, h] = e / e.sum() @ v[0, h * GROUPS // HEADS, :seen]
    return out.reshape(1, q.shape[2], HEADS * WIDTH)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stored", FORMATS)
def test_every_format_holds_what_it_says(stored: str, device: str) -> None:
    """Results are those of exact attention over the rounded keys and values: nothing else is lost."""
    f, rng = attends(stored, device), np.random.default_rng(0)
    keys, values, past = np.zeros((1, GROUPS, 0, WIDTH)), np.zeros((1, GROUPS, 0, WIDTH)), 0
    for chunk in (20, 1, 1, 3, 20, 20, 20, 20, 1, 17):
        q, k, v = (rng.normal(size=(1, h, chunk, WIDTH)).astype(np.float32) for h in (HEADS, GROUPS, GROUPS))
        got = f.run(q, k, v, sizes={"P": past})
        past += chunk
        keys, values = np.concatenate([keys, kept(k, stored)], 2), np.concatenate([values, kept(v, stored)], 2)
        np.testing.assert_allclose(got, causal(q, keys, values), atol=3e-6)
    assert f.memory()["state_nbytes"] == 2 * GROUPS * CAPACITY * WIDTH * FORMATS[stored]


@needs_compiler
@pytest.mark.parametrize("stored", FORMATS)
def test_a_narrow_cache_is_read_as_it_lies(stored: str) -> None:
    f = attends(stored, "cpu")
    assert {row["tier"] for row in f.dispatch()} == {"kernel"}
    assert "fused attention" in {row["op"] for row in f.dispatch()}
    assert not {"cast", "dequantize"} & {n.label for n in f.plan.graph if n.type.shape[:1] == (1,) and n.type.dtype.text == "f32"}


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_packing_gives_the_bytes_of_the_reference(isa: str) -> None:
    """Zeros, subnormals, values whose scale overflows f16, halves, NaN and infinity, and views."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, 96)).astype(np.float32) * np.array([1, 0, 1e-44, 1e-7, 1e30, 127, 3, 1, 1], np.float32)[:, None]
    rows[5] = np.arange(96) / 2
    rows[7, 40], rows[8, 5] = np.nan, -np.inf
    b = Builder("pack")
    x, y = b.input("x", (9, 96)), b.input("y", (96, 9), "f16")
    graph = b.finish(x.quantize(encoding="q8_0"), y.T.quantize(encoding="q8_0"))
    with settings.override(isa=isa):
        f = compile(graph, device="cpu", options=CompileOptions(debug=True))
    assert {row["tier"] for row in f.dispatch()} == {"kernel"}
    with np.errstate(over="ignore"):
        given = rows, np.ascontiguousarray(rows.T).astype(np.float16)
    for got, want in zip(f.run(*given), compile(graph, device="reference").run(*given), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rounding_is_within_half_a_step_and_nan_is_kept_to_its_group() -> None:
    x = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    x[1, 40], x[2, 3] = np.nan, np.inf
    b = Builder("pack")
    f = compile(b.finish(b.input("x", (5, 64)).quantize(encoding="q8_0").dequantize(encoding="q8_0", shape=(5, 64))), device="reference")
    got = f(x).reshape(5, 2, 32)
    groups = x.reshape(5, 2, 32)
    lost = ~np.isfinite(groups).all(-1)
    assert np.isnan(got[lost]).all()
    step = np.abs(groups[~lost]).max(-1, keepdims=True) / 127
    assert (np.abs(got[~lost] - groups[~lost]) <= step * (0.5 + 127 * 2.0 ** -11)).all()  # half a step, and the scale's own rounding


@pytest.mark.parametrize(("name", "shape", "said"), [
    ("q6_k", (2, 256), "round-to-nearest|scale"), ("q8_0", (2, 33), "multiple of its block"), ("q8_0", (), "last axis"), ("q9", (2, 32), "no encoding"),
])
def test_what_cannot_be_packed_is_an_error(name: str, shape: tuple[int, ...], said: str) -> None:
    b = Builder("bad")
    with pytest.raises(BuildError, match=said):
        b.input("x", shape).quantize(encoding=name)


def test_heads_that_do_not_hold_whole_blocks_are_refused() -> None:
    with pytest.raises(InputError, match=r"20 channels.*blocks hold 32"):
        llama(LlamaConfig(1, 2, 2, 20, 8, 1e-5, 1e4, 64, True), cache="q8_0")


@pytest.mark.parametrize("device", DEVICES)
def test_smollm2_with_every_cache(smollm2_gguf: Path, device: str) -> None:
    """Logits move as little as the format says, and the state shrinks as it says."""
    ids, logits, nbytes = [1, 42, 7, 1000, 321, 9, 88, 4096, 512, 3], {}, {}
    for stored in FORMATS:
        g = Generator.load(smollm2_gguf, device=device, context=64, cache=stored, weights="packed" if device == "cpu" else "dense")
        talk = g.conversation()
        talk.feed(ids[:7])
        logits[stored], nbytes[stored] = [talk.feed([i]) for i in ids[7:]][-1], g.graph.memory()["state_nbytes"]
    spread = float(np.ptp(logits["f32"]))
    for stored, share in (("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 1e-2)):
        assert 0 < np.abs(logits[stored] - logits["f32"]).max() < share * spread, stored
        assert nbytes[stored] == nbytes["f32"] * FORMATS[stored] / 4
        assert logits[stored].argmax() == logits["f32"].argmax()
