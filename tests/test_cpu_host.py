"""What the cpu backend leaves to NumPy: no op of the table, extension ops with only a `ref`, and the errors of what runs there."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from samples import OPS, assert_same, samples

from rlxpy import Builder, CompileOptions, DType, compile, sym
from rlxpy.backends.cpu.backend import Cpu
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import InputError, RlxError
from rlxpy.extend.kernels import Refusal
from rlxpy.ir.dtypes import Array
from rlxpy.ir.extension import OpExtension, register_op, registry
from rlxpy.ir.row import OpRow

reason = find_compiler()
compiles = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")


def test_no_op_of_the_table_runs_on_the_host_tier() -> None:
    """Each has a generated kernel for every type that it takes, or is lowered to ops that have, or is a loop written around them."""
    spec = Cpu().spec
    spec = replace(spec, facts={**spec.facts, "numerics": "highest"})
    found = {(op.text, s.dtype.text) for op in OPS for s in samples(op) for graph in (s.graph(),)
             for n in graph if n.op is op and not callable(n.row.lower) and isinstance(spec.verdict(graph, n), Refusal)}
    assert not found, f"write a kernel: {sorted(found)}"


# ---- extensions ----------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry():
        yield


def parts_ref(x: Array) -> tuple[Array, Array]:
    return x - np.floor(x), np.floor(x).astype(np.int32)


def extension(ref: Any, shape: Any = lambda x: x.shape, dtype: Any = lambda x: x.dtype) -> OpExtension:
    return register_op(OpExtension("acme.own", OpRow(1, shape, dtype, ref=ref)))


@compiles
@pytest.mark.parametrize("optimise", [True, False])
def test_an_extension_with_only_a_reference_runs_between_kernels(optimise: bool) -> None:
    parts = extension(parts_ref, lambda x: [x.shape, x.shape], lambda x: [x.dtype, DType.I32])
    b = Builder("parts")
    x = b.input("x", (sym("N", 0, 9), 4))
    fraction, whole = parts((x * 2.0).T)
    f = compile(b.finish(fraction.exp(), whole + 1, whole), device="cpu", options=CompileOptions(debug=True, optimise=optimise))
    assert [(row["kernel"], row["tier"]) for row in f.dispatch() if row["op"] == "acme.own"] == [("host/acme.own", "host")]
    for n in (9, 1, 0, 3):
        given = np.linspace(-3, 5, 4 * n, dtype=np.float32).reshape(n, 4)
        a, w = parts_ref((given * 2).T)
        got = f.run(given)
        np.testing.assert_allclose(got[0], np.exp(a), rtol=1e-6)
        np.testing.assert_array_equal(got[1], w + 1)
        np.testing.assert_array_equal(got[2], w)


@compiles
def test_what_an_extension_raises_names_the_user_s_line() -> None:
    def spoils(x: Array) -> Array:
        x[...] = 0  # not its own
        return x
    b = Builder("spoils")
    f = compile(b.finish(extension(spoils)(b.input("x", (3,)) + 1.0)), device="cpu")
    with pytest.raises(RlxError, match=r"acme.own : f32\[3\] failed\n  at: .*test_cpu_host.py:\d+\n  because: kernel host/acme.own raised ValueError: .*read-only"):
        f.run(np.ones(3, np.float32))


# ---- one meaning on every path -------------------------------------------------------------------------------------
@compiles
@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float], ids=str)
def test_zeros_of_both_signs(dtype: DType) -> None:
    """docs/numerics.md: the second operand; and the sign of a zero is 0.0."""
    zeros, turned = (np.array(z * 9, np.float32).astype(dtype.numpy) for z in ([0.0, -0.0], [-0.0, 0.0]))
    want = {"relu": np.zeros_like(zeros), "sign": np.zeros_like(zeros), "maximum": turned, "minimum": turned}
    for device in ("cpu", "reference"):
        b = Builder("zeros")
        x, y = b.input("x", zeros.shape, dtype), b.input("y", zeros.shape, dtype)
        got = compile(b.finish(x.relu(), x.sign(), x.maximum(y), x.minimum(y)), device=device).run(zeros, turned)
        for (name, w), a in zip(want.items(), got, strict=True):
            assert_same(a, w, f"{name} on {device}")


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=compiles)])
def test_memory_that_is_not_there_is_said_in_bytes(device: str) -> None:
    b = Builder("vast")
    x = b.input("x", (sym("N", 1, 2**58),))
    f = compile(b.finish((x + 1.0).cumsum(axis=0).sum(axes=(0,))), device=device)
    with pytest.raises(InputError, match=r"no memory for \d+ bytes of (arena|input)\n  at: .*test_cpu_host.py:\d+\n  because: that is what N up to \d+ may need\n  try: narrow"):
        f.run(np.ones(3, np.float32))
