"""A backend of one's own: an interpreter that claims a few ops; rlxpy rewrites or stages the rest.  Run: python examples/custom_backend.py"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import rlxpy
from rlxpy.extend import *
from rlxpy.ir.types import bind

CLAIMS = {op: {DType.F32} for op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.EXP, Op.MATMUL, Op.SUM)}


class Interpreter:
    """Takes from the plan its graph and its order; values live in a dict, so that a run is a function of what it is given."""

    def __init__(self, plan: Plan, params: dict) -> None:
        self.graph, self.steps, self.params = plan.graph, plan.steps, params

    def set_params(self, arrays: dict) -> None:
        self.params = {**self.params, **arrays}

    def new_state(self) -> tuple:
        return self, {n.refs[0]: np.zeros(n.type.shape, n.type.dtype.numpy) for n in self.graph.states}

    def run(self, inputs: list, sizes: dict, outputs: list, state: tuple) -> None:
        if not isinstance(state, tuple) or state[0] is not self:
            raise InputError("a state of another graph", fix="make it with new_state() of the graph that runs")
        given = {n.refs[0]: a for n, a in zip(self.graph.inputs, inputs, strict=True)} | {n.refs[0]: self.params[n.name] for n in self.graph.params}
        values = given | {n.refs[0]: n.attrs.value.array for n in self.graph if n.op is Op.CONST} | state[1]
        for node, row in ((s.node, s.choice.row) for s in self.steps):
            ins, attrs = [values[r] for r in node.inputs], node.attrs.bind(sizes).params()
            outs = [np.empty(bind(t.shape, sizes), t.dtype.numpy) for t in node.types]
            row.launch(ins, outs, attrs) if row else np.copyto(outs[0], node.row.ref(*ins, **attrs))
            values |= zip(node.refs, outs, strict=True)
        for out, r in zip(outputs, self.graph.outputs, strict=True):
            out[...] = values[r]
        state[1].update({kept: values[new] for kept, new in self.graph.updates})


@dataclass(frozen=True)
class Mine:
    spec: BackendSpec = with_host(BackendSpec(Device("mine"), native=supported_ops(CLAIMS), views=False))

    def missing(self) -> str | None:
        return None  # or why this machine cannot run it

    def load(self, plan: Plan, params: dict, *, debug: bool = False) -> Interpreter:
        return Interpreter(plan, params)


if __name__ == "__main__":
    register_backend(Device("mine"), Mine)
    x = Builder("m").input("x", (sym("T", 1, 8), 4))
    f = rlxpy.compile(x.builder.finish((x.silu() @ np.eye(4, 3, dtype=np.float32)).sort(axis=1)[0]), device="mine")
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(f(x), np.sort((x / (1 + np.exp(-x)))[:, :3], axis=1), rtol=1e-5)
    print(*(f"{s.node.label}: {s.choice.tier}" for s in f.plan.steps), sep=", ")
