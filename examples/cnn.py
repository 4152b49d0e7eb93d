"""A small residual network for images as a flow, with weights drawn at random.  Run: python examples/cnn.py"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import rlxpy
from rlxpy.extend import *

WIDTHS = (16, 32, 64)  # channels of the stages; each but the first halves the image
CLASSES = 10


@dataclass(frozen=True)
class Residual:
    """Two convolutions beside the identity, or beside a 1x1 convolution where the shape changes."""

    name: str
    stride: int = 1

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        y = ctx.relu(ctx.conv(x, f"{self.name}.a", strides=self.stride, padding=1))
        side = ctx.conv(x, f"{self.name}.side", strides=self.stride) if ctx.has(f"{self.name}.side.weight") else x
        return ctx.relu(ctx.residual(ctx.conv(y, f"{self.name}.b", padding=1), side))


@dataclass(frozen=True)
class Head:
    """The mean of every channel, and a score for each class."""

    name: str = "head"

    def emit_layer(self, ctx: FlowCtx, x: Value) -> Value:
        return ctx.linear(x.mean(axes=(2, 3)), self.name)


def flow() -> ModelFlow:
    stem = ModelFlow("cnn").input("image", (sym("N", 1, 64), 3, 32, 32)).layer_stage(Residual("stage0"))
    return stem.repeat(len(WIDTHS) - 1, lambda i: Residual(f"stage{i + 1}", stride=2)).layer_stage(Head()).output("scores")


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng, found, channels = np.random.default_rng(seed), dict[str, np.ndarray](), 3
    for i, width in enumerate(WIDTHS):
        for part, shape in (("a", (width, channels, 3, 3)), ("b", (width, width, 3, 3)), ("side", (width, channels, 1, 1))):
            found[f"stage{i}.{part}.weight"] = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
            found[f"stage{i}.{part}.bias"] = rng.normal(0, 0.1, width).astype(np.float32)
        channels = width
    return found | {"head.weight": rng.normal(0, 0.1, (CLASSES, channels)).astype(np.float32)}


if __name__ == "__main__":
    model = flow().build(weights())
    run = rlxpy.compile(model.graph, model.params)
    print(run(np.random.default_rng(1).normal(size=(4, 3, 32, 32)).astype(np.float32)).argmax(1))
