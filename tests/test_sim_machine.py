"""Through hip-python down to AMD's machine code in simulation, and bugs planted in kernels: which path sees which."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_device import MATMUL, RMSNORM, SOFTMAX, VADD, Hip, HipError, floats, hip as hip, needs_clang, needs_simulation

import rlxpy
from rlxpy import Builder
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.offline import ARCHS
from rlxpy.backends.gpu.sim import simulated
from rlxpy.backends.gpu.sim.device import _runtime
from rlxpy.backends.gpu.sim.machine import executor
from rlxpy.backends.gpu.vendor import VENDORS

pytestmark = [needs_simulation, needs_clang]


@pytest.mark.parametrize("arch", ARCHS)
def test_every_chip_runs_its_own_code(arch: str, hip: Hip) -> None:
    """gfx90a and gfx1030 through AMD's own hipRTC where that is installed."""
    x, w = floats(3, 301), floats(301)
    with simulated(arch, by="isa") as s:
        assert hip.getDeviceProperties(0).name == f"simulated {arch} (machine code)"
        before = s.alive()
        y = hip.run(RMSNORM, "rmsnorm", 3, 256, [x, w, np.zeros_like(x)], 301, 1e-5)[2]
        assert s.alive() == before
    np.testing.assert_allclose(y, x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * w, rtol=1e-5)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_a_graph_gives_one_result_both_ways(arch: str) -> None:
    b = Builder("g")
    x = b.input("x", (3, 37))
    graph = b.finish((x.exp() * 2).sum(axes=(1,)))
    a, results = floats(3, 37), []
    for by in ("host", "isa"):
        with simulated(arch, by=by):
            results.append(rlxpy.compile(graph, device="rocm")(a))
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], 2 * np.exp(a.astype(np.float64)).sum(1), rtol=1e-5)


class Recorder:
    """An executor that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, code: bytes) -> Recorder:
        return self

    def launch(self, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int], kernargs: bytes, shared_nbytes: int = 0, ranges: Sequence[tuple[int, int]] = ()) -> None:
        if grid[0] == 9:
            raise ValueError("nine is too many")
        self.asked.append((kernel, grid, block, kernargs, shared_nbytes, list(ranges)))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with simulated("gfx1201", by="isa"):
        made = Recorder()
        monkeypatch.setattr(_runtime().machine, "load", made)
        yield made


def test_the_executor_gets_arguments_at_their_offsets_and_the_memory_there_is(recorder: Recorder, hip: Hip) -> None:
    module, f = hip.kernel('extern "C" __global__ void f(char a, double b, short c, float* d) { d[0] = a + b + c; }', "f")
    at = hip.put(np.zeros(3, np.float32))
    hip.launch(f, (2, 3, 4), (5, 6, 1), (ctypes.c_char(1), ctypes.c_double(2.5), ctypes.c_short(3), ctypes.c_void_p(at)), shared=48)
    assert not recorder.asked  # nobody waited yet
    hip.deviceSynchronize()
    [(kernel, grid, block, kernargs, shared_nbytes, ranges)] = recorder.asked
    assert (kernel, grid, block, shared_nbytes) == ("f", (2, 3, 4), (5, 6, 1), 48)
    assert np.frombuffer(kernargs, np.dtype({"names": "abcd", "formats": ["i1", "f8", "i2", "u8"], "offsets": [0, 8, 16, 24], "itemsize": 32}))[0].tolist() == (1, 2.5, 3, at)
    assert (at, 12) in ranges
    hip.free(at), hip.moduleUnload(module)


def test_what_the_executor_says_reaches_the_caller(recorder: Recorder, hip: Hip) -> None:
    module, f = hip.kernel(VADD, "vadd")
    hip.launch(f, 9, 1, (ctypes.c_void_p(0),) * 3 + (0,))
    with pytest.raises(HipError, match=r"unspecified launch failure; simulated gfx1201 \(machine code\): nine is too many"):
        hip.deviceSynchronize()
    hip.moduleUnload(module)


@pytest.mark.parametrize(("damage", "said"), [
    (lambda code: b"MZ" + code[2:], "does not start as an ELF file"), (lambda code: code[:58] + b"\xff" * 2 + code[60:], "section table is damaged"),
    (lambda code: code[:40] + b"\xff" * 8 + code[48:], "section"), (lambda code: code[:200] + bytes(len(code) - 200), "invalid")])
def test_damaged_code_is_refused(damage: Callable[[bytes], bytes], said: str, hip: Hip) -> None:
    with simulated("gfx1100", by="isa"):
        code = hip.compile(VADD)
        with pytest.raises(HipError, match=said) as e:
            hip.moduleLoadData(bytearray(damage(code) + bytes(4096)))
        assert e.value.number == 200


def test_machine_code_is_refused_by_a_device_of_host_code(hip: Hip) -> None:
    with simulated("gfx1100", by="isa"):
        code = hip.compile(VADD)
    with simulated("gfx1100"), pytest.raises(HipError, match=r'simulated\(arch, by="isa"\) runs it') as e:
        hip.moduleLoadData(bytearray(code))
    assert e.value.number == 209


def test_a_process_ends_with_modules_loaded() -> None:
    """The runtime outlives the interpreter and calls it no more."""
    script = """
from sim_device import VADD, Hip
from rlxpy.backends.gpu.sim import simulated
device = simulated("gfx1100", by="isa")
device.__enter__()
held = Hip().kernel(VADD, "vadd")
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (0, "")


# ---- planted bugs
def softmax(hip: Hip, source: str) -> bool:
    x = np.sort(floats(3, 301) * 4)  # the greatest last: the first thread's own is never right by chance
    y = hip.run(source, "softmax", 3, 256, [x, np.zeros_like(x)], 301)[1]
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return np.allclose(y, e / e.sum(1, keepdims=True), atol=1e-6)


def rmsnorm(hip: Hip, source: str) -> bool:
    x, w = floats(3, 301), floats(301)
    y = hip.run(source, "rmsnorm", 3, 256, [x, w, np.zeros_like(x)], 301, 1e-5)[2]
    return np.allclose(y, x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * w, rtol=1e-4)


def matmul(hip: Hip, source: str) -> bool:
    a, b = floats(13, 27), floats(27, 19)
    c = hip.run(source, "matmul", (3, 2), (8, 8), [a, b, np.zeros((13, 19), np.float32)], 13, 19, 27)[2]
    return np.allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def addition(hip: Hip, source: str) -> bool:
    a = floats(100)
    return bool((hip.run(source, "vadd", 1, 256, [a, a, np.zeros_like(a)], 100)[2] == a + a).all())


def broadcast(hip: Hip, source: str) -> bool:
    return bool((hip.run(source, "f", 1, 64, [np.zeros(64, np.float32)])[0] == 5).all())


BROADCAST = 'extern "C" __global__ void f(float* x) { __shared__ float s; if (threadIdx.x == 0) s = 5; __syncthreads(); x[threadIdx.x] = s; }'
PLANTED: dict[str, tuple[Callable[[Hip, str], bool], str, str, str]] = {  # what is run; its source; what is replaced, by what
    "softmax: no barrier before the tree": (softmax, SOFTMAX, "red[t] = m; __syncthreads();", "red[t] = m;"),
    "softmax: no barrier inside of it": (softmax, SOFTMAX, "red[t] = fmaxf(red[t], red[t + s]); __syncthreads();", "red[t] = fmaxf(red[t], red[t + s]);"),
    "softmax: no barrier in the sum": (softmax, SOFTMAX, "red[t] += red[t + s]; __syncthreads();", "red[t] += red[t + s];"),
    "rmsnorm: 32 lanes for a wave": (rmsnorm, RMSNORM, "int o = warpSize / 2", "int o = 16"),
    "matmul: no barrier behind the tile": (matmul, MATMUL, "as[y][i], bs[i][x], sum);\n        __syncthreads();", "as[y][i], bs[i][x], sum);"),
    "addition: one too far": (addition, VADD, "i < n", "i <= n"),
    "broadcast: no barrier": (broadcast, BROADCAST, "s = 5; __syncthreads();", "s = 5;"),
}
SEEN = {  # device, way -> what it says of each bug above: "" nothing, "wrong" result, or a part of the error
    ("gfx1100", "host"): ("", "wrong", "wrong", "", "wrong", "an allocation of 400 bytes", "wrong"),
    ("gfx942", "host"): ("", "wrong", "wrong", "wrong", "wrong", "an allocation of 400 bytes", "wrong"),
    ("gfx1100", "isa"): ("nobody has written", "races", "races", "", "races", "memory that it was not given", "nobody has written"),
    ("gfx942", "isa"): ("nobody has written", "races", "races", "wrong", "", "memory that it was not given", "nobody has written"),  # a block of the matmul is one wave of 64
}


def verdict(run: Callable[[Hip, str], bool], hip: Hip, source: str) -> str:
    try:
        return "" if run(hip, source) else "wrong"
    except HipError as e:
        return str(e)


@pytest.mark.parametrize(("arch", "by"), SEEN)
def test_planted_bugs_are_seen(arch: str, by: Any, hip: Hip) -> None:
    """Each kernel is right as it stands; with its bug in it, this is what shows."""
    with simulated(arch, by=by):
        assert not [name for name, (run, source, *_) in PLANTED.items() if verdict(run, hip, source)]
        got = [verdict(run, hip, source.replace(old, new)) for run, source, old, new in PLANTED.values()]
    assert all(old in source for _, source, old, _ in PLANTED.values())
    for name, said, want in zip(PLANTED, got, SEEN[arch, by], strict=True):
        assert want in said if want else not said, f"{name}: {said}"


def test_memory_that_is_given_back_while_machine_code_runs_does_not_begin_what_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may collect garbage in the middle of a launch."""
    with simulated("gfx1100", by="isa"):
        api = Gpu(VENDORS["rocm"]).api()
        machine = _runtime().machine

        class Interrupted:
            def __init__(self, code: bytes) -> None:
                self.inner = executor(code)

            def launch(self, *given: Any) -> None:
                api.free(api.alloc(64))
                self.inner.launch(*given)

        monkeypatch.setattr(machine, "load", Interrupted)
        b = Builder("order")
        x = b.input("x", (5,))
        f = rlxpy.compile(b.finish((x * 2.0).cumsum(axis=0).softmax(axis=0).cumsum(axis=0)), device="rocm")
        each = np.exp(np.cumsum(np.arange(5.0) * 2) - 20)
        want = np.cumsum(each / each.sum())
        for _ in range(3):
            np.testing.assert_allclose(f(np.arange(5, dtype=np.float32)), want, rtol=1e-5)
