"""The laws of all backends, on the simulated GPU: states, sizes, weights, ownership, threads, fusion."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from gpu_device import rocm as rocm

from rlxpy.backends.gpu.sim import Simulation
from rlxpy.tools.behaviour import BEHAVIOUR

LAWS = {f"{law}: {subject}": trial for law, subjects in BEHAVIOUR.items() for subject, trial in subjects.items()}


@pytest.mark.parametrize("trial", LAWS.values(), ids=LAWS)
def test_a_law_of_all_backends(rocm: Simulation, trial: Callable[[str], None]) -> None:
    trial("rocm")
