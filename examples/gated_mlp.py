"""A block of one's own: the gated MLP, composed of what FlowCtx offers.  Run: python examples/gated_mlp.py"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import rlxpy
from rlxpy.extend import *


@dataclass(frozen=True)
class GatedMlp:
    """down(silu(gate(x)) * up(x)).  The fields are weight keys."""

    gate: str
    up: str
    down: str
    name: str = "gated_mlp"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> tuple[Value, StageArtifacts]:
        g = ctx.silu(ctx.linear(x, self.gate))
        h = ctx.mul(g, ctx.linear(x, self.up))
        return ctx.linear(h, self.down), StageArtifacts.hidden_only(x.shape)


def main() -> None:
    rng = np.random.default_rng(0)
    gate, up, down = (rng.normal(size=s).astype(np.float32) for s in ((32, 16), (32, 16), (16, 32)))
    flow = ModelFlow("my_model").input("x", (sym("T", 1, 128), 16)).layer_stage(GatedMlp("g", "u", "d"))
    model = flow.build({"g.weight": gate, "u.weight": up, "d.weight": down})
    f = rlxpy.compile(model.graph, model.params)

    x = rng.normal(size=(5, 16)).astype(np.float32)
    g = x.astype(np.float64) @ gate.T
    np.testing.assert_allclose(f(x), (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T, rtol=1e-4, atol=1e-4)
    print("fused into", *(hit.label for hit in f.fusion.hits))


if __name__ == "__main__":
    main()
