"""Streams, events and graphs of the simulated HIP runtime: what a missing wait shows, what takes turns, what is replayed."""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sim_device import VADD, Ask, Hip, HipError, device as device, floats, hip as hip, needs_simulation

from rlxpy.backends.gpu.hip import api
from rlxpy.backends.gpu.sim import Simulation, simulated
from rlxpy.errors import DeviceError

pytestmark = needs_simulation


# ---- streams
def test_a_missing_wait_shows(hip: Hip) -> None:
    with simulated(lazy=True):
        stream, out = hip.streamCreate(), np.zeros(8, np.float32)
        at = hip.put(np.full(8, 1024, np.float32))
        hip.memcpyAsync(out, at, out.nbytes, hip.hip.hipMemcpyKind.hipMemcpyDeviceToHost, stream)
        assert (out == 0).all()
        hip.streamSynchronize(stream)
        assert (out == 1024).all()
        hip.streamDestroy(stream), hip.free(at)


def test_what_fails_when_nobody_waits_is_told_at_the_end(hip: Hip) -> None:
    def careless() -> None:
        with simulated():
            module, f = hip.kernel('extern "C" __global__ void f(float* x) { *x = 1; }', "f")
            hip.launch(f, 1, 1, (ctypes.c_void_p(64),))
            hip.moduleUnload(module)

    with pytest.raises(DeviceError, match=r"work that nobody waited for failed(?s:.*)kernel f, block .* is near no allocation"):
        careless()


def test_an_eager_device_hides_it(hip: Hip) -> None:
    with simulated(lazy=False):
        stream, out = hip.streamCreate(), np.zeros(8, np.float32)
        at = hip.put(np.full(8, 1024, np.float32))
        hip.memcpyAsync(out, at, out.nbytes, hip.hip.hipMemcpyKind.hipMemcpyDeviceToHost, stream)
        assert (out == 1024).all()
        hip.streamDestroy(stream), hip.free(at)


def test_pageable_memory_is_read_when_a_copy_is_asked_for(device: Simulation, hip: Hip) -> None:
    stream, a = hip.streamCreate(), np.ones(8, np.float32)
    at = int(hip.malloc(a.nbytes))
    hip.memcpyAsync(at, a, a.nbytes, hip.hip.hipMemcpyKind.hipMemcpyHostToDevice, stream)
    a[:] = 7
    hip.streamSynchronize(stream)
    np.testing.assert_array_equal(hip.get(at, a), np.ones(8))
    hip.streamDestroy(stream), hip.free(at)


@pytest.mark.parametrize("waits", [True, False])
def test_streams_wait_for_events_only_when_asked(hip: Hip, waits: bool) -> None:
    with simulated():
        one, two, event, out = hip.streamCreate(), hip.streamCreate(), hip.eventCreate(), np.zeros(4, np.uint8)
        at = hip.put(np.zeros(4, np.uint8))
        hip.memsetAsync(at, 9, 4, one)
        hip.eventRecord(event, one)
        if waits:
            hip.streamWaitEvent(two, event, 0)
        hip.memcpyAsync(out, at, 4, hip.hip.hipMemcpyKind.hipMemcpyDeviceToHost, two)
        hip.streamSynchronize(two)
        assert out.tolist() == [9 * waits] * 4
        hip.streamDestroy(one), hip.streamDestroy(two), hip.eventDestroy(event), hip.free(at)


@pytest.mark.parametrize("blocking", [True, False])
def test_the_null_stream_takes_turns_with_blocking_streams_only(hip: Hip, blocking: bool) -> None:
    with simulated():
        stream = hip.streamCreateWithFlags(0 if blocking else 1)
        at = hip.put(np.zeros(4, np.uint8))
        hip.memsetAsync(at, 3, 4, stream)
        assert hip.get(at, np.zeros(4, np.uint8)).tolist() == [3 * blocking] * 4
        hip.streamDestroy(stream), hip.free(at)


def test_polling_ends(device: Simulation, hip: Hip) -> None:
    stream, event = hip.streamCreate(), hip.eventCreate()
    at = int(hip.malloc(4))
    hip.memsetAsync(at, 3, 4, stream)
    hip.eventRecord(event, stream)
    asked = 0
    while int(hip.hip.hipEventQuery(event)[0]) == 600:
        asked += 1
    assert asked == 2
    hip.streamDestroy(stream), hip.eventDestroy(event), hip.free(at)


def test_two_threads_with_a_stream_each(device: Simulation, hip: Hip) -> None:
    module, f = hip.kernel(VADD, "vadd")
    wrong = []

    def work(seed: int) -> None:
        mine = np.random.default_rng(seed)
        stream = hip.streamCreate()
        for _ in range(10):
            a = mine.standard_normal(257).astype(np.float32)
            places = [hip.put(a), hip.put(a), int(hip.malloc(a.nbytes))]
            hip.launch(f, 2, 256, (*map(ctypes.c_void_p, places), 257), stream=stream)
            hip.streamSynchronize(stream)
            if not (hip.get(places[2], a) == a + a).all():
                wrong.append(seed)
            for p in places:
                hip.free(p)
        hip.streamDestroy(stream)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    hip.moduleUnload(module)
    assert not wrong


# ---- graphs
def captured(hip: Hip, f: Any, places: list[int], n: int, stream: Any) -> Any:
    """c = a + b, then a = c + b."""
    a, b, c = map(ctypes.c_void_p, places)
    hip.streamBeginCapture(stream, hip.hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal)
    hip.launch(f, 4, 256, (a, b, c, n), stream=stream)
    hip.launch(f, 4, 256, (c, b, a, n), stream=stream)
    return hip.streamEndCapture(stream)


def test_a_captured_graph_is_replayed(device: Simulation, hip: Hip) -> None:
    a, b, n = floats(1000), floats(1000), 1000
    module, f = hip.kernel(VADD, "vadd")
    places, stream = [hip.put(a), hip.put(b), int(hip.malloc(a.nbytes))], hip.streamCreate()
    graph = captured(hip, f, places, n, stream)
    np.testing.assert_array_equal(hip.get(places[0], a), a)  # noted, not run
    exec_ = hip.graphInstantiateWithFlags(graph, 0)
    hip.graphDestroy(graph)
    want = a.copy()
    for _ in range(3):
        hip.graphLaunch(exec_, stream)
        want = (want + b) + b
    hip.streamSynchronize(stream)
    np.testing.assert_array_equal(hip.get(places[0], a), want)
    hip.graphExecDestroy(exec_), hip.streamDestroy(stream), hip.moduleUnload(module)
    for p in places:
        hip.free(p)


def node_params(hip: Hip, f: Any, places: Sequence[int], n: int) -> tuple[Any, list[Any]]:
    """The parameters of a kernel node, and what they point to, which must be held as long as they are read."""
    values = [*map(ctypes.c_void_p, places), ctypes.c_int(n)]
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    p = hip.hip.hipKernelNodeParams(func=f, kernelParams=pointers, sharedMemBytes=0)
    p.gridDim.x, p.gridDim.y, p.gridDim.z = 4, 1, 1
    p.blockDim.x, p.blockDim.y, p.blockDim.z = 256, 1, 1
    return p, [values, pointers]


def test_a_kernel_of_an_instantiated_graph_gets_other_arguments(device: Simulation, hip: Hip) -> None:
    """The graph that it came from keeps its own."""
    a, n = floats(1000), 1000
    module, f = hip.kernel(VADD, "vadd")
    one, two, out = hip.put(a), hip.put(2 * a), int(hip.malloc(a.nbytes))
    graph = hip.graphCreate(0)
    first, held = node_params(hip, f, (one, one, out), n)
    node = hip.graphAddKernelNode(graph, None, 0, first)
    held.clear()  # the graph has a copy
    exec_, again = hip.graphInstantiateWithFlags(graph, 0), hip.graphInstantiateWithFlags(graph, 0)
    other, held = node_params(hip, f, (one, two, out), n)
    hip.graphExecKernelNodeSetParams(exec_, node, other)
    held.clear()
    for launched, want in ((exec_, a + 2 * a), (again, a + a)):
        hip.graphLaunch(launched, None)
        np.testing.assert_array_equal(hip.get(out, a), want)
    with pytest.raises(HipError, match="no kernel of this graph"):
        hip.graphExecKernelNodeSetParams(exec_, graph, first)
    hip.graphExecDestroy(exec_), hip.graphExecDestroy(again), hip.graphDestroy(graph), hip.moduleUnload(module)
    for p in (one, two, out):
        hip.free(p)


@pytest.mark.parametrize(("mode", "goes_on"), [("Global", False), ("ThreadLocal", True), ("Relaxed", True)])
def test_another_thread_may_disturb_a_capture_only_of_all_threads(device: Simulation, hip: Hip, mode: str, goes_on: bool) -> None:
    stream, said = hip.streamCreate(), list[str]()

    def other() -> None:
        try:
            hip.free(hip.malloc(64))
        except HipError as e:
            said.append(str(e))

    hip.streamBeginCapture(stream, getattr(hip.hip.hipStreamCaptureMode, f"hipStreamCaptureMode{mode}"))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert bool(said) is not goes_on
    if goes_on:
        hip.graphDestroy(hip.streamEndCapture(stream))
    else:
        with pytest.raises(HipError, match="previous error during capture"):
            hip.streamEndCapture(stream)
    hip.streamDestroy(stream)


def test_memory_that_is_given_back_during_a_capture_voids_it_not() -> None:
    """Python collects garbage when it likes to."""
    with simulated():
        gpu = api()
        at = gpu.alloc(64)
        gpu.replay(gpu.capture(lambda: gpu.free(at)))
        gpu.sync()


def test_what_may_not_happen_during_capture_voids_it(device: Simulation, hip: Hip) -> None:
    stream = hip.streamCreate()
    asks: tuple[Ask, ...] = (lambda: hip.malloc(4), lambda: hip.streamSynchronize(stream), hip.deviceSynchronize)
    for ask in asks:
        hip.streamBeginCapture(stream, hip.hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal)
        with pytest.raises(HipError, match="the capture is void") as e:
            ask()
        assert e.value.number == 900
        with pytest.raises(HipError) as e:
            hip.streamEndCapture(stream)
        assert e.value.number == 901
    hip.streamDestroy(stream)
