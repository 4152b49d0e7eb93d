"""Persistent memory of one conversation.  Executables of one plan, such as the tiers of a graph, read it alike."""
from __future__ import annotations

import threading
from typing import Any

from rlxpy.backends.memory import space_bytes, zero_pages
from rlxpy.errors import InputError
from rlxpy.extend.plan import Plan, Space


class State:
    """The lock keeps its calls apart.  `bound`: what an executable keeps with it between calls."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.memory, self.lock = plan, space_bytes(plan, Space.STATE, zero_pages), threading.Lock()
        self.address = self.memory.ctypes.data
        self.bound: Any = None


def own(state: Any, plan: Plan) -> State:
    """Raises InputError for a state of another graph."""
    if not isinstance(state, State) or state.plan is not plan:
        raise InputError(f"state {state!r} is not one of this graph", why="memory of another graph has another layout",
                         fix="make it with new_state() of the graph that runs")
    return state
