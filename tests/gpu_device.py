"""A simulated AMD GPU as device "rocm", one of each wave size; a test that asks for it says why it did not run where it cannot."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from sim_device import lacking

from rlxpy.backends.gpu.sim import Simulation, simulated

WAVES = ("gfx1100", "gfx942")  # of 32 lanes and of 64


@pytest.fixture(params=WAVES)
def rocm(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    yield from opened(request.param)


def opened(arch: str) -> Iterator[Simulation]:
    if why := lacking():
        pytest.skip(f"not run, because {why}")
    with simulated(arch) as device:
        yield device
