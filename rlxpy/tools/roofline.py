"""What this machine can do at most: f32 products a second, and bytes read a second; measured once and kept."""
from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import Any

import numpy as np

from rlxpy.backends.cache import kept
from rlxpy.backends.cpu.build import build, prelude
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import Isa, cpu_flags, detect
from rlxpy.backends.memory import aligned_bytes
from rlxpy.backends.templates import read
from rlxpy.errors import BackendMissing
from rlxpy.frozen import dataclass

CHAINS = 10
PEAK_ROUNDS = 4_000_000
STREAM_NBYTES = 128 << 20  # of all threads: more than the caches hold
TRIES = 7


@dataclass(frozen=True)
class Roofline:
    """gflops: fused multiply-adds in f32 registers, two operations each; gbytes: gigabytes a second read from memory; by all threads together."""

    threads: int
    gflops: float
    gbytes: float

    def seconds(self, flops: int, nbytes: int) -> float:
        """The least time for so much work on so much memory."""
        return max(flops / (self.gflops * 1e9), nbytes / (self.gbytes * 1e9))


def roofline(threads: int) -> Roofline:
    """Of this machine, from the cache or measured now, which takes a second.  Raises BackendMissing without a C compiler."""
    isa = detect()
    facts = json.dumps([sorted(cpu_flags()), isa.name, threads, read("cpu/roofline.c")])
    key = hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
    path = kept("code", f"roofline-{key}", ".json", lambda out: _keep(out, isa, threads))
    return Roofline(**json.loads(path.read_text()))


def _keep(out: Path, isa: Isa, threads: int) -> None:
    out.write_text(json.dumps(asdict(measure(isa, threads))))


def measure(isa: Isa, threads: int) -> Roofline:
    """The best of some tries: what others do on the machine only takes away."""
    compiler = find_compiler()
    if not isinstance(compiler, Compiler):
        raise BackendMissing("the machine's limits are measured by generated C", why=compiler, fix="pip install 'rlxpy[cc]'")
    library = ctypes.CDLL(str(build("\n".join([prelude(), read("cpu/roofline.c")]), isa, compiler)))
    library.rlx_peak.argtypes, library.rlx_peak.restype = (ctypes.c_int64,), ctypes.c_float
    library.rlx_stream.argtypes, library.rlx_stream.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_float
    count = STREAM_NBYTES // 4 // threads // 1024 * 1024
    memory = [aligned_bytes(4 * count).view(np.float32) for _ in range(threads)]
    for m in memory:
        m.fill(1)
    peak = _best(threads, lambda k: library.rlx_peak(PEAK_ROUNDS))
    stream = _best(threads, lambda k: library.rlx_stream(memory[k].ctypes.data, count))
    return Roofline(threads, threads * PEAK_ROUNDS * CHAINS * isa.vector * 2 / peak / 1e9, threads * count * 4 / stream / 1e9)


def _best(threads: int, work: Callable[[int], Any]) -> float:
    """Seconds from the first thread's begin to the last one's end, the least of the tries."""
    begin = Barrier(threads)

    def one(k: int) -> tuple[float, float]:
        begin.wait()
        start = perf_counter()
        work(k)
        return start, perf_counter()

    with ThreadPoolExecutor(threads) as pool:
        tries = [list(pool.map(one, range(threads))) for _ in range(TRIES)]
    return min(max(end for _, end in spans) - min(start for start, _ in spans) for spans in tries)
