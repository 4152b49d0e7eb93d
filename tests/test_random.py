"""Random numbers: published words of the generator, the same bits everywhere, and the moments of what is drawn from them."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import ISAS

from rlxpy import Builder, CompileOptions, compile, sym
from rlxpy.backends.cpu import threads
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.compiler.devices import backend
from rlxpy.errors import BuildError
from rlxpy.ir import random
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.settings import override

reason = find_compiler()
needs_compiler = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
DEVICES = ("reference", pytest.param("cpu", marks=needs_compiler))
PUBLISHED = {  # kat_vectors of Random123: key, counter, words
    ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)): (0x1CB996FC, 0xBB002BE7),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)): (0xC4923A9C, 0x483DF7A0),
}


def drawn(make: Any, device: str = "reference", seed: int = 7) -> Array:
    b = Builder("draw")
    f = compile(b.finish(make(b.input("key", (2,), "u32"))), device=device, options=CompileOptions(debug=True))
    return np.asarray(f.run(np.array([0, seed], np.uint32)))


@pytest.mark.parametrize("case", PUBLISHED)
def test_blocks_are_the_published_ones(case: tuple[tuple[int, int], tuple[int, int]]) -> None:
    words = random.threefry(*(np.array([w], np.uint32) for pair in case for w in pair))
    assert tuple(int(w[0]) for w in words) == PUBLISHED[case]


@pytest.mark.parametrize("device", DEVICES)
def test_draws_begin_with_the_published_block(device: str) -> None:
    assert tuple(drawn(lambda key: key.random_bits(shape=(2,)), device, seed=0)) == PUBLISHED[(0, 0), (0, 0)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 2])
@needs_compiler
def test_every_instruction_set_and_thread_count_gives_the_same_words(isa: str, count: int) -> None:
    b = Builder("symbolic")
    keys = b.input("keys", (2, 3), "u32")
    graph = b.finish(keys.T[1].random_bits(shape=(sym("N", 0, 40000),)))  # a key that is a column
    given = np.array([[1, 3, 8], [2, 5, 9]], np.uint32)
    with override(isa=isa):
        f = compile(graph, device="cpu", options=CompileOptions(debug=True))
        assert backend("cpu").spec.facts["isa"] == isa
    assert {row["kernel"] for row in f.dispatch()} == {"cpu/random_bits"}
    threads.set_threads(count)
    try:
        for size in (0, 1, 2, 31, 8191, 8192, 8193, 24577):
            np.testing.assert_array_equal(f.run(given, sizes={"N": size}), random.bits_ref(given[:, 1], (size,)))
    finally:
        threads.set_threads(None)


def test_counters_go_on_beyond_32_bits() -> None:
    """The block after 2^32 - 1 differs from block 0 in its upper word."""
    key = np.array([1, 2], np.uint32)
    low, high = np.array([0, 0], np.uint32), np.array([0, 1], np.uint32)
    first, second = np.stack(random.threefry(key[:1], key[1:], low, high), -1)
    assert (first == random.bits_ref(key, (2,))).all()
    assert (first != second).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", ["f32", "f64", "f16", "bf16"])
def test_uniform_stays_below_one_and_is_even(device: str, to: str) -> None:
    got = drawn(lambda key: random.uniform(key, (40, 500), to), device)
    assert got.dtype == dtype(to).numpy
    x = got.astype(np.float64)
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 4 / np.sqrt(12 * x.size)
    counts = np.histogram(x, 16, (0, 1))[0]
    assert ((counts - x.size / 16) ** 2 / (x.size / 16)).sum() < 44  # chi squared of 15 degrees at 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", ["f32", "f64"])
def test_normal_has_the_moments_of_its_name(device: str, to: str) -> None:
    x = drawn(lambda key: random.normal(key, (100, 401), to), device).astype(np.float64)
    assert np.isfinite(x).all()
    for power, want, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x ** power).mean() - want) < 4.5 * np.sqrt(variance / x.size), power


@pytest.mark.parametrize("device", DEVICES)
def test_bernoulli_and_categorical_meet_their_probabilities(device: str) -> None:
    n = 40000
    hits = drawn(lambda key: random.bernoulli(key, 0.3, (n,)), device)
    assert abs(hits.mean() - 0.3) < 4.5 * np.sqrt(0.21 / n)
    p = np.array([0.1, 0.2, 0.7])
    picks = drawn(lambda key: random.categorical(key, key.builder.const(np.log(p).astype(np.float32)).expand(shape=(n, 3))), device)
    assert (np.abs(np.bincount(picks, minlength=3) / n - p) < 4.5 * np.sqrt(p * (1 - p) / n)).all()


def test_split_keys_draw_apart() -> None:
    keys = drawn(lambda key: random.split(key, 3))
    assert keys.shape == (3, 2)
    streams = [random.bits_ref(k, (64,)) for k in keys]
    assert len({s.tobytes() for s in streams}) == 3
    assert sum(bin(int(a) ^ int(b)).count("1") for a, b in zip(streams[0], streams[1], strict=True)) == pytest.approx(1024, abs=4.5 * np.sqrt(512))


def test_what_is_no_key_and_what_is_no_type_are_refused() -> None:
    b = Builder()
    with pytest.raises(BuildError, match=r"u32\[2\], this one has shape \[3,2\]"):
        b.input("keys", (3, 2), "u32").random_bits(shape=(4,))
    with pytest.raises(BuildError, match="i32 is not among f64, f32, f16, bf16"):
        random.uniform(b.input("key", (2,), "u32"), (4,), "i32")
