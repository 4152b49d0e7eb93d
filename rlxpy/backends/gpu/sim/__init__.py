"""A simulated AMD GPU: a HIP runtime of our own under the real hip-python.  What ran here was executed in simulation, never on a card."""
from __future__ import annotations

from rlxpy.backends.gpu.sim.device import Alive, Simulation, current, missing, simulated

__all__ = ["Alive", "Simulation", "current", "missing", "simulated"]
