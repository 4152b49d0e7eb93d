"""A pass of one's own: products of two exponentials become the exponential of a sum.  Run: python examples/fuse_my_pattern.py"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import rlxpy
from rlxpy.extend import *


@dataclass(frozen=True)
class FuseMyPattern:
    """exp(x) * exp(y) -> exp(x + y), which may overflow later; a graph without the pattern comes back as it is."""

    name: str = "mine.fuse-my-pattern"

    def __call__(self, graph: Graph) -> Graph:
        def replace(b: Builder, node: Node, inputs: list[Value], new: dict) -> Value | None:
            if node.op is not Op.MUL or {v.node.op for v in inputs} != {Op.EXP}:
                return None  # it stays
            x, y = (Value(b, v.node.inputs[0]) for v in inputs)
            return (x + y).exp()

        return rebuild(graph, replace, self.name)


def main() -> None:
    register_ir_pass(FuseMyPattern(), before=("fuse",))
    b = Builder("m")
    x, y = b.input("x", (4,)), b.input("y", (4,))
    f = rlxpy.compile(b.finish(x.exp() * y.exp()))

    x, y = np.linspace(-1, 1, 4, dtype=np.float32), np.linspace(0, 2, 4, dtype=np.float32)
    np.testing.assert_allclose(f(x, y), np.exp(x + y), rtol=1e-6)
    print("left:", *(hit.text for hit in f.fusion.hits))


if __name__ == "__main__":
    main()
