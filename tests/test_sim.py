"""The simulated HIP runtime under the real hip-python: kernels as host code, memory, launches, compilation, and what is refused."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim_device import (
    MATMUL,
    RMSNORM,
    SOFTMAX,
    VADD,
    Ask,
    Hip,
    HipError,
    device as device,
    floats,
    hip as hip,
    needs_clang,
    needs_simulation,
)

import rlxpy
from rlxpy import Builder, settings
from rlxpy.backends.gpu.api import answer
from rlxpy.backends.gpu.hip import api
from rlxpy.backends.gpu.sim import Simulation, build, current, simulated
from rlxpy.backends.gpu.vendor import ROCM, look
from rlxpy.errors import DeviceError, InputError

pytestmark = needs_simulation
INVALID, NO_DEVICE, NOT_FOUND, ILLEGAL_ADDRESS, TIMED_OUT, LAUNCH_FAILURE, BAD_HANDLE, WRONG_GPU = 1, 100, 500, 700, 702, 719, 400, 209


# ---- kernels give what NumPy gives
def test_addition_with_an_odd_size(device: Simulation, hip: Hip) -> None:
    a, b = floats(1003), floats(1003)
    c = hip.run(VADD, "vadd", 4, 256, [a, b, np.zeros_like(a)], 1003)[2]
    np.testing.assert_array_equal(c, a + b)


def test_a_tree_in_shared_memory(device: Simulation, hip: Hip) -> None:
    x = floats(3, 301) * 4
    y = hip.run(SOFTMAX, "softmax", 3, 256, [x, np.zeros_like(x)], 301)[1]
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), atol=1e-6)


def test_shuffles_of_the_devices_own_width(device: Simulation, hip: Hip) -> None:
    x, w = floats(3, 301), floats(301)
    y = hip.run(RMSNORM, "rmsnorm", 3, 256, [x, w, np.zeros_like(x)], 301, 1e-5)[2]
    np.testing.assert_allclose(y, x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * w, rtol=1e-5)


def test_two_dimensions_and_a_ragged_edge(device: Simulation, hip: Hip) -> None:
    a, b = floats(13, 11), floats(11, 19)
    c = hip.run(MATMUL, "matmul", (3, 2), (8, 8), [a, b, np.zeros((13, 19), np.float32)], 13, 19, 11)[2]
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_two_runs_are_one(device: Simulation, hip: Hip) -> None:
    x = floats(2, 77)
    first, second = (hip.run(SOFTMAX, "softmax", 2, 256, [x, np.zeros_like(x)], 77)[1] for _ in range(2))
    np.testing.assert_array_equal(first, second)


# ---- what it says of itself
def test_the_device_says_that_it_is_simulated(device: Simulation, hip: Hip) -> None:
    p = hip.getDeviceProperties(0)
    assert hip.getDeviceCount() == 1
    assert p.name == f"simulated {device.arch} (host code)"
    assert (p.gcnArchName, p.warpSize) == (device.arch, {"gfx1100": 32, "gfx942": 64}[device.arch])
    assert (p.sharedMemPerBlock, p.maxThreadsPerBlock, p.multiProcessorCount) == (65536, 1024, 2)
    assert tuple(p.maxGridSize) == (2**31 - 1, 65535, 65535)
    assert (p.major, p.minor) == ((11, 0) if device.arch == "gfx1100" else (9, 4))


def test_around_a_simulation_there_is_no_device(hip: Hip) -> None:
    with simulated():
        pass
    asks: tuple[Ask, ...] = (hip.getDeviceCount, lambda: hip.malloc(64), hip.streamCreate)
    for ask in asks:
        with pytest.raises(HipError, match="no device is simulated now") as e:
            ask()
        assert e.value.number == NO_DEVICE


def test_one_process_changes_from_device_to_device(hip: Hip) -> None:
    with simulated("gfx90a"):
        code = hip.compile(VADD)
        with simulated("gfx1201"):
            assert hip.getDeviceProperties(0).warpSize == 32
            with pytest.raises(HipError, match="compiled for gfx90a, whose wave has 64 lanes, not 32") as e:
                hip.moduleLoadData(bytearray(code))
            assert e.value.number == WRONG_GPU
        assert hip.getDeviceProperties(0).warpSize == 64


def test_names_and_numbers_of_errors_are_hips_own(device: Simulation, hip: Hip) -> None:
    known = {int(e): e.name for e in hip.hip.hipError_t}
    for number in (1, 2, 9, 17, 21, 98, 100, 101, 200, 209, 500, 600, 700, 701, 702, 719, 801, 900, 901, 903, 906):
        said = hip.hip.hipGetErrorName(hip.hip.hipError_t(number))[1]
        assert str(said) == known[number]


def test_the_setting_gives_a_device_to_whoever_asks_for_one(monkeypatch: pytest.MonkeyPatch, hip: Hip) -> None:
    monkeypatch.setenv("RLX_ROCM_SIM", "host:gfx90a:eager")
    assert current() == Simulation("gfx90a", lazy=False)
    assert look(ROCM).found == "simulated gfx90a, no card"
    with simulated("gfx1100") as inner:
        assert current() == inner
    assert hip.getDeviceProperties(0).gcnArchName == "gfx90a"
    monkeypatch.delenv("RLX_ROCM_SIM")
    assert current() is None
    assert "no device" in look(ROCM).lack


@pytest.mark.parametrize("value", ["gfx1100", "card:gfx1100", "host", "host:1100", "host:gfx1100:sometimes"])
def test_a_setting_that_means_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("RLX_ROCM_SIM", value)
    with pytest.raises(InputError, match="cannot be read"):
        current()
    assert "RLX_ROCM_SIM" in look(ROCM).lack


@pytest.mark.parametrize(("arch", "by", "said"), [("gfx12345", "host", "no AMD target"), ("gfx1100", "magic", "no way 'magic'")])
def test_what_cannot_be_simulated_is_an_error(arch: str, by: Any, said: str) -> None:
    with pytest.raises(InputError, match=said), simulated(arch, by=by):
        pass
    with pytest.raises(InputError, match="no patience of 0 s"), simulated(patience_s=0):
        pass


@pytest.mark.parametrize("arch", ["gfx1100", "gfx90a"])
def test_a_graph_runs_on_it(arch: str) -> None:
    b = Builder("g")
    x, y = b.input("x", (3, 37)), b.input("y", (3, 37))
    graph = b.finish((x + y).exp().sum(axes=(1,)))
    a, c = floats(3, 37), floats(3, 37)
    with simulated(arch):
        f = rlxpy.compile(graph, device="rocm")
        for _ in range(3):
            np.testing.assert_allclose(f(a, c), np.exp(a.astype(np.float64) + c).sum(1), rtol=1e-5)


def test_an_error_of_the_runtime_says_what_it_found() -> None:
    with simulated(), pytest.raises(DeviceError, match=r"simulated gfx\w+ \(host code\) answers hipErrorInvalidDevicePointer(?s:.*)is near no allocation"):
        answer(api()._hip.hipFree(64), api().name, api()._meaning)


# ---- memory
@pytest.mark.parametrize("n", [1, 100, (5 << 20) + 3])
def test_fresh_memory_holds_no_numbers(device: Simulation, hip: Hip, n: int) -> None:
    for _ in range(2):
        at = int(hip.malloc(4 * n))
        assert np.isnan(hip.get(at, np.zeros(n, np.float32))).all()
        hip.memset(at, 0, 4 * n)
        hip.free(at)


@pytest.mark.parametrize(("offset", "nbytes", "kind"), [(392, 32, "DeviceToHost"), (-8, 32, "DeviceToHost"), (392, 32, "HostToDevice"), (0, 401, "HostToDevice")])
def test_copies_outside_of_an_allocation_are_refused(device: Simulation, hip: Hip, offset: int, nbytes: int, kind: str) -> None:
    at, there = int(hip.malloc(400)), np.zeros(401, np.uint8)
    both = (there, at + offset) if kind == "DeviceToHost" else (at + offset, there)
    with pytest.raises(HipError, match=r"bytes (is not inside one allocation|before)") as e:
        hip.memcpy(*both, nbytes, getattr(hip.hip.hipMemcpyKind, f"hipMemcpy{kind}"))
    assert e.value.number == INVALID
    hip.free(at)


def test_a_wrong_direction_is_refused(device: Simulation, hip: Hip) -> None:
    at = hip.put(np.ones(4, np.float32))
    with pytest.raises(HipError, match="said to be on the host"):
        hip.memcpy(np.zeros(4, np.float32), at, 16, hip.hip.hipMemcpyKind.hipMemcpyHostToHost)
    hip.free(at)


def test_memory_ends(hip: Hip) -> None:
    with simulated(memory_nbytes=1 << 20):
        at = hip.malloc(1 << 19)
        with pytest.raises(HipError, match=r"out of memory.*524289 bytes asked for, 524288 of 1048576 in use"):
            hip.malloc((1 << 19) + 1)
        assert tuple(hip.memGetInfo()) == (1 << 19, 1 << 20)
        hip.free(at)


def test_memory_is_freed_once_and_by_its_start(device: Simulation, hip: Hip) -> None:
    at = int(hip.malloc(64))
    with pytest.raises(HipError, match="8 bytes into an allocation of 64"):
        hip.free(at + 8)
    hip.free(at)
    with pytest.raises(HipError, match="invalid device pointer"):
        hip.free(at)


def test_what_is_left_behind_is_counted(hip: Hip) -> None:
    with simulated() as s:
        before = s.alive()
        at, stream, event = hip.malloc(64), hip.streamCreate(), hip.eventCreate()
        assert (s.alive().allocations, s.alive().streams, s.alive().events) == (before.allocations + 1, before.streams + 1, before.events + 1)
        hip.free(at), hip.streamDestroy(stream), hip.eventDestroy(event)
        assert s.alive() == before


# ---- launches
def test_an_index_past_the_end_of_an_allocation_is_named(device: Simulation, hip: Hip) -> None:
    """`i <= n` where allocations end with their pages: all of 256 bytes are somebody's."""
    a = floats(640)
    with pytest.raises(HipError, match=r"kernel vadd, block \(2, 0, 0\), thread \(128, 0, 0\): access to memory that is not the device's: 0 bytes past the end of an allocation of 2560") as e:
        hip.run(VADD.replace("i < n", "i <= n"), "vadd", 3, 256, [a, a, a], a.size)
    assert e.value.number == ILLEGAL_ADDRESS


def test_a_write_into_the_slack_behind_an_allocation_is_found(device: Simulation, hip: Hip) -> None:
    a = floats(100)
    with pytest.raises(HipError, match="f wrote byte 400 of an allocation of 400 bytes"):
        hip.run('extern "C" __global__ void f(float* x) { x[100 + threadIdx.x] = 1.0f; }', "f", 1, 1, [a])


def test_after_a_fault_the_device_goes_on(device: Simulation, hip: Hip) -> None:
    with pytest.raises(HipError, match="is near no allocation") as e:
        hip.run('extern "C" __global__ void f(float* x) { *(float*)64 = x[0]; }', "f", 1, 1, [floats(1)])
    assert e.value.number == ILLEGAL_ADDRESS
    test_addition_with_an_odd_size(device, hip)


def test_division_by_zero_of_integers_is_named(device: Simulation, hip: Hip) -> None:
    with pytest.raises(HipError, match=r"thread \(3, 0, 0\): integer division by zero") as e:
        hip.run('extern "C" __global__ void f(int* x) { x[threadIdx.x] = 7 / x[threadIdx.x]; }', "f", 1, 4, [np.array([1, 2, 3, 0], np.int32)])
    assert e.value.number == LAUNCH_FAILURE


def test_barriers_at_different_lines_are_named(device: Simulation, hip: Hip) -> None:
    divergent = 'extern "C" __global__ void f(int* x) {\n if (threadIdx.x < 5)\n  __syncthreads();\n else\n  __syncthreads();\n x[0] = 1; }'
    with pytest.raises(HipError, match=r"divergent barriers: thread \(0, 0, 0\) waits at line 3, thread \(5, 0, 0\) at line 5"):
        hip.run(divergent, "f", 1, 64, [np.zeros(1, np.int32)])


WAITS = {  # each for the flag that a thread sets which comes later, or never
    "a block for the next": ("if (blockIdx.x == 2) { while (!flag[3]) {} } flag[blockIdx.x] = 1;", 2),
    "a block for the next, between barriers": ("if (blockIdx.x == 2) do __syncthreads(); while (!flag[3]); flag[blockIdx.x] = 1;", 2),
    "a block for the next, between votes": ("if (blockIdx.x == 2) while (!__any(flag[3])) {} flag[blockIdx.x] = 1;", 2),
    "a thread for another of its block": (
        "__shared__ volatile int s; s = 0; __syncthreads(); if (blockIdx.x == 1) { if (threadIdx.x == 5) while (s == 0) {} __syncthreads(); s = 1; }", 1),
    "a loop without an end": ("if (blockIdx.x == 3) while (flag[3] == 0) {}", 3),
}


@pytest.mark.parametrize(("body", "block"), WAITS.values(), ids=WAITS)
def test_a_kernel_that_waits_for_ever_is_ended_and_named(hip: Hip, body: str, block: int) -> None:
    with simulated("gfx942", patience_s=0.05):
        with pytest.raises(HipError, match=rf"kernel f, block \({block}, 0, 0\), thread \(\d+, 0, 0\): no thread ended in 0.05 s; {block} blocks before this one are done") as e:
            hip.run(f'extern "C" __global__ void f(volatile int* flag) {{ {body} }}', "f", 4, 64, [np.zeros(4, np.int32)])
        assert e.value.number == TIMED_OUT
        np.testing.assert_array_equal(hip.run(VADD, "vadd", 1, 64, [np.ones(3, np.float32)] * 3, 3)[2], 2)


def test_a_kernel_may_take_longer_than_one_waits_for_a_thread(hip: Hip) -> None:
    """And its blocks may wait for those before them."""
    slow = 'extern "C" __global__ void f(volatile int* flag) { if (blockIdx.x) while (!flag[blockIdx.x - 1]) {} for (volatile int i = 0; i < 1000000; i++) {} flag[blockIdx.x] = 1; }'
    with simulated("gfx942", patience_s=0.02):
        np.testing.assert_array_equal(hip.run(slow, "f", 2, 64, [np.zeros(2, np.int32)])[0], 1)


def test_threads_that_have_ended_hold_up_no_barrier(device: Simulation, hip: Hip) -> None:
    source = 'extern "C" __global__ void f(int* x) { __shared__ int s; int i = threadIdx.x; if (i > 40) return; if (i == 0) s = 5; __syncthreads(); x[i] = s; }'
    x = hip.run(source, "f", 1, 64, [np.zeros(64, np.int32)])[0]
    np.testing.assert_array_equal(x, np.where(np.arange(64) > 40, 0, 5))


@pytest.mark.parametrize(("grid", "block", "shared", "number", "said"), [
    (1, 2048, 0, INVALID, "2048 threads in a block, at most 1024"),
    (1, 0, 0, INVALID, "a grid of (1, 1, 1) blocks of (0, 1, 1) threads"),
    (0, 32, 0, INVALID, "a grid of (0, 1, 1) blocks"),
    ((1, 65536), 32, 0, 9, "at most 65535 in y and z"),
    (1 << 27, 32, 0, 9, "2^32 or more"),
    (1, 32, 65537, INVALID, "65537 bytes of shared memory, at most 65536"),
])
def test_launches_that_no_card_takes(device: Simulation, hip: Hip, grid: Any, block: int, shared: int, number: int, said: str) -> None:
    module, f = hip.kernel(VADD, "vadd")
    with pytest.raises(HipError) as e:
        hip.launch(f, grid, block, (ctypes.c_void_p(0),) * 3 + (0,), shared=shared)
    assert (e.value.number, said in str(e.value)) == (number, True), str(e.value)
    hip.moduleUnload(module)


def test_a_block_larger_than_its_launch_bounds_is_refused(device: Simulation, hip: Hip) -> None:
    with pytest.raises(HipError, match="128 threads in a block, __launch_bounds__ promises at most 64"):
        hip.run(MATMUL, "matmul", 1, (16, 8), [floats(4)] * 3, 1, 1, 1)


@pytest.mark.parametrize(("count", "nbytes"), [(3, 24), (5, 32)])
def test_arguments_are_counted(device: Simulation, hip: Hip, count: int, nbytes: int) -> None:
    module, f = hip.kernel(VADD, "vadd")
    with pytest.raises(HipError, match=rf"vadd takes 28 bytes of arguments \(4 of them\), {nbytes + 8 * (count - 4) if count > 4 else nbytes} were given"):
        hip.launch(f, 1, 32, (ctypes.c_void_p(0),) * count)
    hip.moduleUnload(module)


def test_kernels_are_found_by_their_names(device: Simulation, hip: Hip) -> None:
    module, _ = hip.kernel(VADD + "__global__ void plain(int* x) { *x = 1; }", "vadd")
    for name in (b"nope", b"plain"):
        with pytest.raises(HipError, match=f"the module has no kernel {name.decode()}") as e:
            hip.moduleGetFunction(module, name)
        assert e.value.number == NOT_FOUND
    hip.moduleUnload(module)


def test_two_modules_keep_their_own_code(device: Simulation, hip: Hip) -> None:
    loaded = [hip.kernel(f'extern "C" __global__ void f(int* x) {{ x[0] = {n}; }}', "f") for n in (1, 2)]
    at = hip.put(np.zeros(1, np.int32))
    for n, (module, f) in enumerate(loaded, 1):
        hip.launch(f, 1, 1, (ctypes.c_void_p(at),))
        assert hip.get(at, np.zeros(1, np.int32))[0] == n
        hip.moduleUnload(module)
    hip.free(at)


def test_a_kernel_of_an_unloaded_module_is_refused(device: Simulation, hip: Hip) -> None:
    module, f = hip.kernel(VADD, "vadd")
    hip.moduleUnload(module)
    with pytest.raises(HipError, match="is no kernel of a loaded module") as e:
        hip.launch(f, 1, 1, ())
    assert e.value.number == BAD_HANDLE


# ---- hipRTC
def test_one_source_is_compiled_once(hip: Hip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(), settings.override(cache=tmp_path):
        first = hip.compile(VADD)
        monkeypatch.setattr(build, "run", None)  # nobody may compile any more
        assert hip.compile(VADD) == first
        assert len(list(tmp_path.rglob("*.so"))) == 1
        with pytest.raises(HipError):
            hip.compile(VADD + "// another")


def test_what_does_not_compile_has_a_log_with_its_line(device: Simulation, hip: Hip) -> None:
    with pytest.raises(HipError, match=r"(?s):2:.*error.*lost") as e:
        hip.compile('extern "C" __global__ void f(int* x) {\n x[0] = lost; }')
    assert e.value.number == 6


@needs_clang
def test_what_the_device_compiler_refuses_the_host_refuses(device: Simulation, hip: Hip) -> None:
    with pytest.raises(HipError, match=r"(?i)local memory.*exceeds limit|exceeds"):
        hip.compile('extern "C" __global__ void f(float* x) { __shared__ float big[20000]; big[threadIdx.x] = x[0]; __syncthreads(); x[0] = big[threadIdx.x ^ 1]; }')


# ---- the machine that it runs on
PORTABLE = """
import sys
from rlxpy.backends.gpu.sim import build, simulated
build.LIBRARY = (*build.LIBRARY, "-DRLX_SIM_UCONTEXT")
import numpy as np
from sim_device import SOFTMAX, Hip
x = np.frombuffer(sys.stdin.buffer.read(), np.float32).reshape(3, 301)
with simulated("gfx942"):
    sys.stdout.buffer.write(Hip().run(SOFTMAX, "softmax", 3, 256, [x, np.zeros_like(x)], 301)[1].tobytes())
"""


def test_threads_change_places_without_this_processors_instructions(hip: Hip) -> None:
    """<ucontext.h> in place of a few x86-64 instructions, in a process of its own: the same bits."""
    x = floats(3, 301)
    with simulated("gfx942"):
        here = hip.run(SOFTMAX, "softmax", 3, 256, [x, np.zeros_like(x)], 301)[1]
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    there = subprocess.run([sys.executable, "-c", PORTABLE], input=x.tobytes(), capture_output=True, check=True, env={**os.environ, "PYTHONPATH": path}).stdout
    assert there == here.tobytes()


def test_another_runtime_under_hip_python_is_an_error(tmp_path: Path) -> None:
    """A process whose hip-python has opened a library of its own cannot be given ours."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "other.c").write_text('#ifdef __cplusplus\nextern "C"\n#endif\nint hipGetDeviceCount(int *n) { *n = 7; return 0; }\n')
    subprocess.run([*build.cxx().argv, "-shared", "-fPIC", "-o", str(tmp_path / "lib/libamdhip64.so"), str(tmp_path / "other.c")], check=True)
    script = """
import sys
from rocm.bindings import hip
from rlxpy.backends.gpu.sim import simulated
assert hip.hipGetDeviceCount()[1] == 7
try:
    with simulated(): pass
except Exception as e: sys.exit(f"{type(e).__name__}: {e}")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ROCM_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert "BackendMissing: hip-python already talks to another HIP runtime" in done.stderr
