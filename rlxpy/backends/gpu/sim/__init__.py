"""A simulated AMD GPU: a HIP runtime of our own under the real hip-python.  What ran here was executed in simulation, never on a card."""
from __future__ import annotations

from rlxpy.backends.gpu.sim.device import Alive, Simulation, from_settings, simulated

__all__ = ["Alive", "Simulation", "from_settings", "simulated"]
