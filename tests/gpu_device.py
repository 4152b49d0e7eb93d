"""GPUs that tests run on: simulated AMD ones, one of each wave size, and a card where there is one; what cannot run says why."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sim_device import lacking

from rlxpy.backends.gpu.sim import Simulation, simulated
from rlxpy.backends.gpu.sim.device import By
from rlxpy.backends.gpu.vendor import CUDA, missing

WAVES = ("gfx1100", "gfx942")  # of 32 lanes and of 64


@pytest.fixture(params=WAVES)
def rocm(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    yield from opened(request.param)


@pytest.fixture(params=[*(f"rocm {arch}" for arch in WAVES), "cuda"])
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a device that runs."""
    name, _, arch = str(request.param).partition(" ")
    with ExitStack() as stack:
        if arch:
            stack.enter_context(simulation(arch))
        elif why := missing(CUDA):
            pytest.skip(f"not run, because {why}")
        yield name


def opened(arch: str, by: By = "host") -> Iterator[Simulation]:
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    with simulated(arch, by=by) as device:
        yield device


simulation = contextmanager(opened)
