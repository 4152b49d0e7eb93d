"""CappedMlp: a gated block whose gate has a soft limit."""
from __future__ import annotations

from dataclasses import dataclass

from acme.ops import softcap
from rlxpy.extend import *


@dataclass(frozen=True)
class CappedMlp:
    """down(silu(softcap(gate(x))) * up(x)); the capped gate is an output of its own."""

    gate: str
    up: str
    down: str
    cap: float = 30.0
    name: str = "capped_mlp"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        g = softcap(ctx.linear(x, self.gate), cap=self.cap)
        ctx.publish_side_output("gate", g)
        return ctx.linear(ctx.mul(ctx.silu(g), ctx.linear(x, self.up)), self.down)
