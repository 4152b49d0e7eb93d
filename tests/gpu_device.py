"""GPUs that tests run on: simulated AMD ones, one of each wave size, and a card where there is one; what cannot run says why."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from samples import assert_close
from sim_device import lacking, no_device_compiler

from rlxpy import Builder, CompileOptions, compile
from rlxpy.backends.gpu.sim import Simulation, simulated
from rlxpy.backends.gpu.sim.device import By
from rlxpy.backends.gpu.vendor import CUDA, missing
from rlxpy.compiler.devices import backend
from rlxpy.ir.dtypes import Array, dtype
from rlxpy.tools.samples import as_tuple

WAVES = ("gfx1100", "gfx942")  # of 32 lanes and of 64


@pytest.fixture(params=WAVES)
def rocm(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    yield from opened(request.param)


@pytest.fixture(params=[*(f"rocm {arch}" for arch in WAVES), "cuda"])
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a device that runs."""
    with running(str(request.param)) as name:
        yield name


@contextmanager
def running(which: str) -> Iterator[str]:
    """The name of a device, of "rocm gfx942", "isa gfx942" (its machine code) or "cuda"."""
    name, _, arch = which.partition(" ")
    with ExitStack() as stack:
        why = missing(CUDA) if not arch else no_device_compiler() if name == "isa" else ""
        if why:
            pytest.skip(f"not run, because {why}")
        if arch:
            stack.enter_context(simulation(arch, "isa" if name == "isa" else "host"))
        yield "rocm" if arch else name


def fact(device: str, name: str) -> Any:
    """What kernel rows are told of a device: its wave, its arch."""
    return backend(device).spec.facts[name]


def opened(arch: str, by: By = "host") -> Iterator[Simulation]:
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    with simulated(arch, by=by) as device:
        yield device


simulation = contextmanager(opened)


def on_host(f: Any) -> set[str]:
    """Ops of a compiled graph that no kernel runs."""
    return {row["op"] for row in f.dispatch() if row["tier"] == "host"}


def agree(device: str, make: Callable[..., Any], given: Sequence[Array], *more: Sequence[Array], shapes: Sequence[Any] | None = None) -> Any:
    """The graph that `make` builds of inputs of these types gives on a GPU, twice over, what it gives op by op on the reference; for all
    values given, which are of the sizes that `shapes` allows.  Its kernels see poisoned memory, and none of it runs on the host."""
    runs = []
    for where, optimise in ((device, True), ("reference", False)):
        b = Builder("case")
        inputs = [b.input(f"x{k}", shape, dtype(a.dtype)) for k, (a, shape) in enumerate(zip(given, shapes or [a.shape for a in given], strict=True))]
        made = make(*inputs)
        runs.append(compile(b.finish(*(made if isinstance(made, (list, tuple)) else (made,))), device=where, options=CompileOptions(debug=True, optimise=optimise)))
    assert not on_host(runs[0]), on_host(runs[0])
    for arrays in (given, *more):
        want = as_tuple(runs[1](*arrays))
        for turn in range(2):
            for k, (a, w) in enumerate(zip(as_tuple(runs[0](*arrays)), want, strict=True)):
                assert_close(a, w, dtype(w.dtype), f"output {k}, run {turn}")
    return runs[0]
