"""Memory that the cpu backend takes: caches page by page, an undo log only where something may fail late, mapped weights given back once packed, results kept."""
from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from samples import VECTORS

from rlxpy import Builder, CompileOptions, compile, settings, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.cpu.lanes import Lanes
from rlxpy.backends.cpu.packing import CHUNK_NBYTES, LEAST_CHUNK_NBYTES, Packed, Panels, pack
from rlxpy.backends.memory import address, zero_pages
from rlxpy.compiler.compiled import CompiledGraph
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import encoding
from rlxpy.pages import release, trim

reason = find_compiler()
compiled = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")

ROOM, WIDTH, WORDS = 8, 2, 4


# ---- what a failed run leaves behind
def cache(late: bool = False) -> CompiledGraph:
    """Rows of a table go into a cache behind P others.  late: a row of the cache is asked for by an index afterwards."""
    b = Builder()
    ids = b.input("ids", (sym("T", 1, 3),), "i64")
    kept = b.state("kv", (ROOM, WIDTH))
    full = kept.kv_append(b.param("table", (WORDS, WIDTH)).gather(ids, axis=0), b.emit("size", dim=sym("P", 0, 5)), axis=0)
    b.update(kept, full)
    more = (full.gather(b.input("pick", (), "i64"), axis=0),) if late else ()
    table = np.arange(WORDS * WIDTH, dtype=np.float32).reshape(WORDS, WIDTH) + 1
    return compile(b.finish(full * 1.0, *more), {"table": table}, device="cpu", wait=True)


def program(f: CompiledGraph) -> Any:
    return f._executable._running.program  # type: ignore[attr-defined]


@compiled
def test_a_run_that_fails_before_the_cache_is_touched_needs_no_log() -> None:
    f = cache()
    assert not program(f).undoes
    assert not any("rlx_fail(" in text for name, text in program(f).functions.items() if name.startswith("kv_append")), "the position fits, whatever the sizes"
    first = f.run([0, 1, 2], sizes={"P": 0})
    for bad in ([3, WORDS], [-WORDS - 1, 3]):
        with pytest.raises(IndexError):
            f.run(bad, sizes={"P": 1})
    np.testing.assert_array_equal(f.run([2], sizes={"P": 2}), first, "the failed runs wrote nothing")


@compiled
def test_a_run_that_may_fail_afterwards_keeps_one() -> None:
    f = cache(late=True)
    assert program(f).undoes
    first = f.run([0, 1, 2], 0, sizes={"P": 0})[0]
    with pytest.raises(IndexError):
        f.run([3, 3], ROOM, sizes={"P": 0})
    np.testing.assert_array_equal(f.run([2], 0, sizes={"P": 2})[0], first)


# ---- pages
def test_zero_pages_are_zeros_of_this_process_alone() -> None:
    memory = zero_pages(3 * mmap.PAGESIZE + 5, np.uint8)
    assert (memory.nbytes, bool(memory.any()), memory.flags.writeable) == (3 * mmap.PAGESIZE + 5, False, True)
    assert zero_pages(0, np.uint8).size == 0
    memory[7] = 1
    child = os.fork()
    if child == 0:
        memory[7] = 9
        os._exit(0)
    os.waitpid(child, 0)
    assert memory[7] == 1


def resident(array: Array) -> int:
    """Bytes of an array's mapping that are in this process's memory, as Linux counts them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head:
            low, high = (int(x, 16) for x in head.split("-"))
            inside = low <= array.ctypes.data < high
        elif inside and head == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="pages were not counted: only Linux tells")
def test_mapped_weights_go_back_to_the_system_and_can_be_read_again(tmp_path: Path) -> None:
    nbytes = 1 << 20
    want = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    (tmp_path / "w").write_bytes(want.tobytes())
    mapped = np.asarray(np.memmap(tmp_path / "w", np.uint8, "r")[100:-100])
    assert mapped.sum(dtype=np.int64) == want[100:-100].sum(dtype=np.int64)
    assert resident(mapped) >= nbytes // 2
    release(mapped)
    assert resident(mapped) <= 4 * mmap.PAGESIZE, "the first and the last page hold other bytes too"
    np.testing.assert_array_equal(mapped, want[100:-100])


def test_what_no_file_would_give_back_stays(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(3 * mmap.PAGESIZE))
    copied = np.memmap(tmp_path / "w", np.uint8, "c")  # its writes are in memory alone
    private = zero_pages(3 * mmap.PAGESIZE, np.uint8)
    for a in (copied, private, np.zeros(3 * mmap.PAGESIZE, np.uint8)):
        a[:] = 5
        a.flags.writeable = False
        release(a)
        release(a[::2])
        assert (a == 5).all()


def test_freed_memory_goes_back_and_used_memory_stays() -> None:
    kept = [np.full(1024, i) for i in range(2000)]
    del kept[::2]
    for _ in range(2):
        trim()
    assert all((a == i).all() for a, i in zip(kept, range(1, 2000, 2), strict=True))


# ---- packed weights
def dense(stored: Array, name: str) -> Array:
    return encoding(name).decode((stored,), stored.shape[1] // encoding(name).block_nbytes * encoding(name).block)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "iq4_nl"])
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_every_row_is_found_in_its_lane(name: str, rows: int) -> None:
    """Bytes are moved, none is changed, and lanes after the last row are zeros."""
    lanes, blocks, size = 8, 3, encoding(name).block_nbytes
    head = size % 4 or 4
    stored = np.random.default_rng(1).integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    wide = np.zeros((2, rows + 1, blocks * size + 3), np.uint8)
    wide[1, :rows, :-3] = stored
    (made,) = pack({0: wide}, [Packed(0, (1, rows, blocks * size), (0, blocks * size + 3, 1), wide[0].size, Lanes(name, lanes))], [None])
    made = made.reshape(-1, blocks, lanes * size)
    assert made.shape[0] == -(-rows // lanes)
    for row in range(made.shape[0] * lanes):
        for block in range(blocks):
            record, lane = made[row // lanes, block], row % lanes
            got = [*(record[u*lanes + lane*2:][:2] for u in range(0, head, 2)), *(record[head*lanes + u*lanes + lane*4:][:4] for u in range(0, size - head, 4))]
            want = stored[row].reshape(blocks, size)[block] if row < rows else np.zeros(size, np.uint8)
            np.testing.assert_array_equal(np.concatenate(got), want)


@pytest.mark.parametrize("name", ["q5_0", "q5_1"])
def test_single_bits_are_turned_in_their_lane(name: str) -> None:
    """Bit k of byte i is of code 4k + i; all other bytes are moved alone."""
    lanes, rows, size = 4, 5, encoding(name).block_nbytes
    head, stored = size - 20, np.random.default_rng(1).integers(0, 256, (rows, size), dtype=np.uint8)
    (made,) = pack({0: stored}, [Packed(0, (1, rows, size), (0, size, 1), 0, Lanes(name, lanes))], [None])
    for row in range(rows):
        record, lane = made.reshape(-1, lanes * size)[row // lanes], row % lanes
        bits = np.unpackbits(record[head*lanes + lane*4:][:4], bitorder="little").reshape(4, 8)  # [byte, bit]
        np.testing.assert_array_equal(bits.T.ravel(), np.unpackbits(stored[row, head:head + 4], bitorder="little"))
        words = [record[u*lanes + lane*4:][:4] for u in range(head + 4, size, 4)]
        np.testing.assert_array_equal(np.concatenate(words), stored[row, head + 4:])


def test_many_weights_lie_together_and_kept_ones_stay() -> None:
    form, count = Panels(DType.F32, 16), 5
    arrays = {k: np.full((1, 300, 1000), k, np.float32) for k in range(count)}
    packs = [Packed(k, (1, 300, 1000), (0, 1000, 1), 0, form) for k in arrays]
    assert LEAST_CHUNK_NBYTES < sum(a.nbytes for a in arrays.values()) < CHUNK_NBYTES
    made = pack(arrays, packs, [None] * count)
    starts = [m.ctypes.data for m in made]
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] < CHUNK_NBYTES
    assert all(s % 64 == 0 for s in starts)
    assert [float(m.max()) for m in made] == [0, 1, 2, 3, 4]
    again = pack(arrays, packs, [*made[:2], None, *made[3:]])
    assert [a is m for a, m in zip(again, made, strict=True)] == [True, True, False, True, True]


@compiled
def test_weights_that_load_cannot_lay_out_are_read_as_they_lie() -> None:
    """A matrix that a run brings, beside the same one as a weight, over the numbers of left rows at which kernels change; and set_param lays out anew."""
    name, depth, rows = "q4_1", 160, 37
    stored = np.random.default_rng(2).integers(0, 256, (2, rows, 5, 20), dtype=np.uint8)
    stored[..., :4] = np.random.default_rng(3).uniform(0.01, 0.2, (2, rows, 5, 2)).astype("<f2").view(np.uint8)
    first, second = stored.reshape(2, rows, 100)
    b = Builder()
    x = b.input("x", (sym("M", 0, 9), depth))
    with settings.override(isa=VECTORS):
        f = compile(b.finish(*(x.qmatmul(w, encoding=name, shape=(rows, depth)) for w in (b.param("w", first.shape, "u8"), b.input("given", first.shape, "u8")))), {"w": first},
                    device="cpu", options=CompileOptions(weights="packed", numerics="low", debug=True), wait=True)
    assert f.memory()["packed_nbytes"] == -(-rows // 8) * 8 * 100
    for now in (first, second):
        f.set_param("w", now)
        for count in (0, 1, 4, 9):
            given = np.random.default_rng(count).normal(size=(count, depth)).astype(np.float32)
            laid, lies = f.run(given, now)
            np.testing.assert_allclose(laid, lies, rtol=0, atol=2e-5 * (1 + np.abs(lies).max(initial=0)))
            np.testing.assert_allclose(laid, given @ dense(now, name).T, rtol=0, atol=0.02 * (1 + np.abs(lies).max(initial=0)))


# ---- results
TWO_RESULTS = """
import resource
import numpy as np
from rlxpy import Builder, compile
b = Builder()
x = b.input("x", (512, 600))
f = compile(b.finish(x + 1.0, x * 2.0), device="cpu", wait=True)
given = np.ones((512, 600), np.float32)
for calls in (5, 50):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls): f(given)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not run, because what is counted here is what glibc does")
@compiled
def test_results_that_are_dropped_together_are_not_mapped_anew_for_every_call() -> None:
    """In a process that never freed anything larger: 600 page faults a call otherwise."""
    told = subprocess.run([sys.executable, "-c", TWO_RESULTS], capture_output=True, text=True, check=True)
    assert float(told.stdout) < 20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
def test_where_an_array_lies(dtype: str) -> None:
    a = np.zeros((3, 4, 5), np.dtype(getattr(ml_dtypes, dtype, dtype)))
    only_read = a.view()
    only_read.flags.writeable = False
    for shown in (a, only_read, a[1:], a[:, ::2], a.T, a[2, 3, 4], a[3:], a[..., :0], np.asarray(a[0, 0, 0])):
        array = np.asarray(shown)
        assert address(array) == array.ctypes.data
