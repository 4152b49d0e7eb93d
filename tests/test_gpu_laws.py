"""The laws of all backends, on the simulated GPU: states, sizes, weights, ownership, threads, fusion."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from gpu_device import rocm as rocm
from sim_device import needs_clang, needs_simulation

from rlxpy.backends.gpu.sim import Simulation, simulated
from rlxpy.tools.behaviour import BEHAVIOUR

LAWS = {f"{law}: {subject}": trial for law, subjects in BEHAVIOUR.items() for subject, trial in subjects.items()}
FUSED = [law for law in LAWS if law.startswith("fusion")]


@pytest.mark.parametrize("trial", LAWS.values(), ids=LAWS)
def test_a_law_of_all_backends(rocm: Simulation, trial: Callable[[str], None]) -> None:
    trial("rocm")


@needs_simulation
@needs_clang
@pytest.mark.parametrize(("law", "arch"), [(law, arch) for k, law in enumerate(FUSED) for arch in (("gfx90a", "gfx942", "gfx942")[k % 3], "gfx1201")])
def test_what_is_fused_as_machine_code(law: str, arch: str) -> None:
    """gfx90a through AMD's own hipRTC where that is installed, the others through clang, which takes a quarter of the time."""
    with simulated(arch, by="isa"):
        LAWS[law]("rocm")
