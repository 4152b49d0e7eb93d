"""The laws of all backends, on the simulated GPU: states, sizes, weights, ownership, threads, fusion."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from gpu_device import rocm as rocm
from sim_device import needs_clang, needs_simulation

from rlxpy.backends.gpu.sim import Simulation, simulated
from rlxpy.tools.behaviour import BEHAVIOUR

LAWS = {f"{law}: {subject}": trial for law, subjects in BEHAVIOUR.items() for subject, trial in subjects.items()}


@pytest.mark.parametrize("trial", LAWS.values(), ids=LAWS)
def test_a_law_of_all_backends(rocm: Simulation, trial: Callable[[str], None]) -> None:
    trial("rocm")


@needs_simulation
@needs_clang
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1201"])
@pytest.mark.parametrize("trial", [t for name, t in LAWS.items() if name.startswith("fusion")], ids=[n for n in LAWS if n.startswith("fusion")])
def test_what_is_fused_as_machine_code(arch: str, trial: Callable[[str], None]) -> None:
    """gfx90a through AMD's own hipRTC where that is installed, gfx1201 through clang."""
    with simulated(arch, by="isa"):
        trial("rocm")
