"""Everything that acme adds, used as any user would once it is installed.  Run: python examples/acme/try_it.py"""
from __future__ import annotations

import numpy as np
from acme.block import CappedMlp
from acme.ops import use

import rlxpy
from rlxpy.extend import *
from rlxpy.extend.quantisers import pack, packing_error, quantiser
from rlxpy.ir.encoding import encoding
from rlxpy.plugins import plugins

DEVICES = tuple(d for d in ("reference", "cpu", "exact") if d in rlxpy.available_backends())
rng = np.random.default_rng(0)
X = (rng.normal(size=(5, 64)) * 40).astype(np.float32)
CAPPED = np.tanh(X.astype(np.float64) / 30) * 30


def capped_graph() -> Graph:
    """The soft cap written out: no name of acme is in it."""
    b = Builder("written-out")
    x = b.input("x", (sym("T", 1, 64), 64))
    return b.finish((x / 30.0).tanh() * 30.0)


def routes() -> dict[str, str]:
    """One op, three routes, one result; the row that ran it on the cpu."""
    ran = {}
    for route in ("lowering", "numpy", "c"):
        with registry():
            use(route)
            for device in DEVICES:
                b = Builder("m")
                f = rlxpy.compile(b.finish(b.custom_op("acme.softcap", b.input("x", X.shape), cap=30.0)), device=device)
                np.testing.assert_allclose(f(X), CAPPED, rtol=1e-5)
                ran[f"{route} on {device}"] = f.plan.steps[0].choice.name
    return ran


def found_by_pass() -> str:
    """The op that stands where a soft cap was written out."""
    f = rlxpy.compile(capped_graph(), device="cpu")
    np.testing.assert_allclose(f(X), CAPPED, rtol=1e-5)
    return f.plan.steps[0].node.label


def overridden() -> str:
    """The row that serves exp, which is exact to the last bit."""
    b = Builder("m")
    f = rlxpy.compile(b.finish(b.input("x", X.shape).exp()), device="cpu")
    small = X / 64
    np.testing.assert_array_equal(f(small), np.exp(small.astype(np.float64)).astype(np.float32))
    return f.plan.steps[0].choice.name


def block() -> tuple[str, ...]:
    """CappedMlp with weights in acme's encoding, chosen by acme's quantiser, on acme's device."""
    weights = {f"{k}.weight": rng.normal(size=s).astype(np.float32) for k, s in (("g", (32, 64)), ("u", (32, 64)), ("d", (64, 32)))}
    flow = ModelFlow("m").input("x", (sym("T", 1, 64), 64)).layer_stage(CappedMlp("g", "u", "d")).output("y")
    model = flow.build(Rounded(open_weights(weights), "acme.nibbles", "acme.search:steps=5"))
    outs = [rlxpy.compile(model.graph, model.params, device=d).run(X / 40) for d in DEVICES]
    for y, gate in outs[1:]:
        np.testing.assert_allclose(y, outs[0][0], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(gate, outs[0][1], rtol=1e-4, atol=1e-4)
    return model.output_names()


def quantised() -> bool:
    """Whether acme's quantiser loses less than rounding to nearest."""
    w, nibbles = rng.standard_t(3, size=(8, 64)).astype(np.float32), encoding("acme.nibbles")
    nearest, searched = (packing_error(w, pack(quantiser(q), w, nibbles), nibbles).relative for q in ("rtn", "acme.search"))
    return searched < nearest


if __name__ == "__main__":
    print("devices:", *DEVICES)
    for how, row in routes().items():
        print(f"softcap by {how}: {row}")
    print("found by pass:", found_by_pass())
    print("exp:", overridden())
    print("block:", *block())
    print("nearer than rtn:", quantised())
    for p in plugins():
        print(f"plug-in {p.group}: {p.package} {p.version} {p.state}", *filter(None, [p.reason]))
