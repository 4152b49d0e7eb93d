"""check_op: a right op passes on every backend, every kind of fault is found by the law that it breaks, and what did not run is told."""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlxpy import DType, Op
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.backends.reference import Reference
from rlxpy.cli.app import app
from rlxpy.errors import BuildError, InputError
from rlxpy.extend import (
    Constraint,
    Device,
    KernelLibrary,
    KernelRow,
    OpExtension,
    OpRow,
    backend_registry,
    kernel_registry,
    op,
    register_backend,
    register_cpu_kernel,
    register_kernel_library,
    register_op,
    registry,
)
from rlxpy.notes import note_once
from rlxpy.tools.check import check_op
from rlxpy.tools.dossier import Dossier
from rlxpy.tools.samples import Case

import_module("rlxpy.cli.check")


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with registry(), backend_registry(), kernel_registry():
        yield


def law(d: Dossier, name: str, on: str = "") -> str:
    (found,) = {c.result for c in d.checks if c.law == name and c.on.startswith(on)}
    return found


# ---- what is right passes ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["silu", "sort", "kv_append", "where"])
def test_built_in_ops_pass_on_every_backend(name: str) -> None:
    d = check_op(name)
    assert d.ok, d
    assert {c.on for c in d.checks if c.law == "as compiled"} >= {"reference"}
    assert d.reach == ("a batch", "odd sizes", "zero sizes", "several types")
    assert law(d, "types") == law(d, "text") == "ok"


def softcap_vjp(dy: Any, y: Any, x: Any, cap: float) -> Any: return (dy * (1.0 - (x / cap).tanh().square()),)
def softcap_jvp(dxs: Any, y: Any, x: Any, cap: float) -> Any: return dxs[0] * (1.0 - (x / cap).tanh().square())


def softcap(**hooks: Any) -> OpExtension:
    @op("acme.softcap", **{"vjp": softcap_vjp, "jvp": softcap_jvp, "vmap": lambda batched, x, cap: (x / cap).tanh() * cap, **hooks})
    def made(x: Any, cap: float = 30.0) -> Any:
        return (x / cap).tanh() * cap
    return made


def in_numpy(x: Any, cap: float) -> Any: return (np.tanh(x.astype(np.float64) / cap) * cap).astype(x.dtype)


def test_a_right_op_passes_by_every_route() -> None:
    softcap()
    register_cpu_kernel("acme.softcap", in_numpy)
    d = check_op("acme.softcap", oracle=lambda x, cap: np.tanh(x / cap) * cap)
    assert d.ok, d
    assert {c.law: c.result for c in d.checks if c.law not in ("as compiled", "kernels")} == dict.fromkeys(("types", "text", "meaning", "vjp", "jvp", "vmap", "lowering"), "ok")
    assert d.dtypes == ("f32", "f64", "f16", "bf16")
    assert "cap=0.5" in " ".join(d.calls), "parameters are tried beside their defaults"
    (on_cpu,) = (c for c in d.checks if (c.law, c.on) == ("as compiled", "cpu"))
    assert on_cpu.skipped or "acme.softcap.numpy" in on_cpu.how, on_cpu


def test_what_did_not_run_has_its_reason() -> None:
    @op("acme.twice")
    def twice(x: Any) -> Any: return x + x

    class Away(Reference):
        def missing(self) -> str | None: return "there is no such machine here"

    register_backend(Device("away"), Away)
    d = check_op(twice)
    assert d.ok, d
    skipped = {(c.law, c.on): c.skipped for c in d.of("not run")}
    assert "its lowering is differentiated" in skipped["vjp", "finite differences in f64"]
    assert skipped["kernels", "away"] == "there is no such machine here"
    assert all(reason in str(d) for reason in skipped.values())
    assert {c["result"] for c in d.to_json()["checks"]} == {"ok", "not run"}


def test_what_runs_on_a_simulated_device_is_called_so() -> None:
    spec = replace(Reference().spec, device=Device("sim"), facts={"simulated": True})
    register_backend(Device("sim"), lambda: Reference(spec))
    d = check_op("neg", devices=("sim",))
    assert {c.result for c in d.checks if c.on == "sim"} == {"ok in simulation"}
    assert "in simulation" in str(d)


# ---- every kind of fault is found by the law that it breaks --------------------------------------------------------
def plain_row(**cells: Any) -> OpRow:
    base = {"shape": lambda x: x.shape, "dtype": lambda x: x.dtype, "ref": np.tanh, "lower": lambda x: x.tanh()}
    return OpRow(1, **{**base, **cells})


def row(**cells: Any) -> Callable[[], OpExtension]: return lambda: register_op(OpExtension("acme.softcap", plain_row(**cells)))


def kernel(f: Any) -> Callable[[], OpExtension]:
    def made() -> OpExtension:
        softcap()
        kept: OpExtension = register_cpu_kernel("acme.softcap", f)
        return kept
    return made


def in_c(text: str) -> Callable[[], OpExtension]:
    def made() -> OpExtension:
        softcap(dtypes=(frozenset({DType.F32}),), vjp=None, jvp=None, vmap=None)
        return register_cpu_kernel("acme.softcap", text)
    return made


def only_first(x: Any, cap: float) -> Any:
    y = in_numpy(x, cap)
    return y if y.ndim < 3 else np.concatenate([y[:1], np.zeros_like(y[1:])])


def at_least_one(x: Any, cap: float) -> Any: return in_numpy(x, cap) if x.size else x.reshape(-1)[0]
def narrow(x: Any, cap: float) -> Any: return in_numpy(x.astype(np.float16), cap).astype(x.dtype)
def deaf(x: Any, cap: float) -> Any: return in_numpy(x, 30.0)


def lasting(x: Any, cap: float) -> Any:
    global TIMES
    TIMES += 1
    return in_numpy(x, cap) + (TIMES > 80)


TIMES = 0
C_TAIL = "#include <math.h>\nvoid rlx_custom(const float *x, float *out, i64 x_numel, double cap) { for (i64 i = 0; i + 3 < x_numel; i++) out[i] = (float)(tanh(x[i] / cap) * cap); }"
FAULTS: list[tuple[str, str, Callable[[], OpExtension], str]] = [
    ("a shape rule that promises too much", "types", row(ref=lambda x: np.tanh(x).sum(-1) if x.ndim else np.tanh(x)), r"its rules promise"),
    ("a dtype rule that promises another", "types", row(ref=lambda x: np.tanh(x).astype(np.float64), dtypes=(frozenset({DType.F32}),)), r"gives float64\[.*promise float32"),
    ("a lowering that is another function", "lowering", row(lower=lambda x: x.sigmoid()), r"meant is"),
    ("a gradient with a wrong factor", "vjp", lambda: softcap(vjp=lambda dy, y, x, cap: (dy * 2.0,)), r"differences give"),
    ("a gradient of the wrong sign, forward", "jvp", lambda: softcap(jvp=lambda dxs, y, x, cap: -dxs[0]), r"differences give"),
    ("a batching rule that forgets the batch", "vmap", lambda: softcap(vmap=lambda batched, x, cap: (x.reverse(axes=(0,)) / cap).tanh() * cap), r"batched \(True,\)"),
    ("a kernel for a batch of one", "as compiled", kernel(only_first), r"2x\d.*meant is"),
    ("a kernel that fails on nothing", "as compiled", kernel(at_least_one), r"0.*IndexError"),
    ("a kernel that calculates in half the width", "as compiled", kernel(narrow), r"f32.*meant is"),
    ("a kernel that is deaf to a parameter", "as compiled", kernel(deaf), r"cap=0.5.*meant is"),
    ("a kernel that remembers", "as compiled", kernel(lasting), r"meant is"),
    ("a kernel in C that stops before the tail", "as compiled", in_c(C_TAIL), r"gives nan, meant is"),
]


@pytest.mark.parametrize(("broken", "make", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_found_by_its_law(broken: str, make: Callable[[], OpExtension], words: str) -> None:
    if broken == "as compiled" and isinstance(why := find_compiler(), str):
        pytest.skip(f"kernels of the cpu did not run: {why}")
    d = check_op(make(), devices=("cpu",) if broken == "as compiled" else ())
    assert not d.ok
    failed = [c for c in d.of("FAILED") if c.law == broken]
    assert failed, d
    assert any(re.search(words, line) for c in failed for line in c.failures), d
    assert failed[0].failures[0] in str(d)


@pytest.mark.parametrize(("f", "words"), [
    (lambda ins, outs, attrs: np.copyto(outs[0], np.ndarray(ins[0].shape, ins[0].dtype, np.ascontiguousarray(ins[0]).T.tobytes())), "operands transposed"),
    (lambda ins, outs, attrs: np.copyto(outs[0][..., :-1], ins[0][..., :-1]) if ins[0].ndim else np.copyto(outs[0], ins[0]), "nan"),
], ids=["a kernel that does not ask for strides", "a kernel that leaves its tail unwritten"])
def test_faults_of_a_row_that_a_backend_serves(f: Any, words: str) -> None:
    register_op(OpExtension("acme.same", plain_row(ref=lambda x: x, lower=lambda x: x.reverse(axes=()))))

    def launch(ins: Any, outs: Any, attrs: Any) -> None:
        if "transposed" in words and (ins[0].ndim < 2 or ins[0].flags.c_contiguous):
            np.copyto(outs[0], ins[0])
        else:
            f(ins, outs, attrs)

    register_kernel_library(KernelLibrary("acme", (KernelRow("fast", Op.CUSTOM, launch, kind="acme.same"),)))
    d = check_op("acme.same", devices=("reference",))
    failed = {c.law: c.failures for c in d.of("FAILED")}
    assert failed.keys() == {"kernel acme/fast", "as compiled"}, d
    assert all(words in " ".join(lines) for lines in failed.values()), d


def test_an_independent_oracle_finds_a_wrong_meaning() -> None:
    softcap()
    d = check_op("acme.softcap", oracle=lambda x, cap: np.clip(x, -cap, cap), devices=())
    assert [c.law for c in d.of("FAILED")] == ["meaning"]


def test_a_row_that_takes_nothing_is_told_with_its_reason() -> None:
    register_kernel_library(KernelLibrary("acme", (KernelRow("wide", Op.NEG, "", args=("x",), constraints=(Constraint("x.shape[-1]", "DIV", 4096),)),)))
    d = check_op("neg", devices=("reference",))
    (c,) = (c for c in d.checks if c.law == "kernel acme/wide")
    assert c.result == "not run"
    assert "DIV 4096" in c.skipped


# ---- inputs --------------------------------------------------------------------------------------------------------
def test_inputs_that_nobody_could_guess_are_asked_for() -> None:
    @op("acme.pairs")
    def pairs(x: Any) -> Any:
        if x.shape != (11, 6):
            raise BuildError("x must be 11x6", why=f"it is {x.shape}")
        return x * 2.0

    with pytest.raises(InputError, match=r"no inputs are known that acme.pairs takes\n.*x must be 11x6.*\n.*cases="):
        check_op(pairs)
    d = check_op(pairs, cases=[Case(((11, 6),))], devices=("reference",))
    assert d.ok, d
    assert "no zero sizes" in d.reach


def test_calls_that_an_op_refuses_are_told_not_passed_over() -> None:
    @op("acme.shrink", dtypes=(frozenset({DType.F64}),))
    def shrink(x: Any, by: float = 2.0) -> Any: return x / by

    for case, why in ((Case(((3, 5),), {"by": "much"}), "text is not a number"), (Case(((3, 5), (3, 5))), "takes 1 inputs, got 2"), (Case(((3,),), {"to": 1}), "no parameter to")):
        with pytest.raises(InputError, match=f"acme.shrink takes no such call[^$]*{why}"):
            check_op(shrink, cases=[Case(((3, 5),)), case], devices=("reference",))


@pytest.mark.parametrize("name", ["input", "param", "const", "state"])
def test_what_is_no_call_of_an_op_is_not_checked(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is not checked by itself"):
        check_op(name, devices=("reference",))


def test_an_unknown_op_names_what_is_near() -> None:
    with pytest.raises(InputError, match=r"near it: softmax, log_softmax, max$"):
        check_op("softmaxx")
    with pytest.raises(InputError, match=r"no op 'acme.nothing'[^$]*rlx check NAME --module FILE"):
        check_op("acme.nothing")


# ---- the command ---------------------------------------------------------------------------------------------------
MODULE = '''
from rlxpy.extend import *

@op("acme.shrink", vjp=lambda dy, y, x, by: (dy * {factor},))
def shrink(x, by: float = 2.0): return x / by
'''


def run(*args: str) -> Any: return CliRunner().invoke(app, ["check", *args])


def test_the_command_checks_an_op_of_a_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(MODULE.format(factor="(1.0 / by)"))
    bad.write_text(MODULE.format(factor="by"))
    note_once.cache_clear()
    told = run("acme.shrink", "--module", str(good), "--device", "reference")
    assert told.exit_code == 0, told.output
    assert "rlxpy:" not in told.stderr  # that a device of its own is the reference underneath is no news
    assert "vjp" in told.stdout
    told = run("acme.shrink", "-m", str(bad), "--device", "reference", "--shapes", "3x5", "--shapes", "scalar", "--set", "by=4", "--json")
    assert told.exit_code == 1
    assert run("acme.shrink", "-m", str(good), "--device", "reference", "--shapes", "3", "--set", "by=-inf").exit_code == 0
    data = json.loads(told.stdout)
    assert not data["ok"]
    assert data["calls"] == ["3x5 by=4", "scalar by=4"]
    assert [c["law"] for c in data["checks"] if c["result"] == "FAILED"] == ["vjp"]


@pytest.mark.parametrize(("args", "words"), [
    (("softmaxx",), "near it: softmax"), (("neg", "--shapes", "3by5"), "as in --shapes 3x5,5"), (("neg", "--set", "axis=1"), "add --shapes"),
    (("neg", "--shapes", "3", "--set", "axis"), "NAME=VALUE"), (("neg", "-m", "none.py"), "no file 'none.py'"), (("neg", "-m", "no_such_module"), "No module named"),
], ids=str)
def test_misuse_is_told(args: tuple[str, ...], words: str) -> None:
    told = run(*args)
    assert told.exit_code == 1
    assert words in told.stderr


def test_a_module_that_fails_is_told_by_its_line(tmp_path: Path) -> None:
    for text, line in (("x = 1\ny = nothing\n", 2), ("x = (\n", 1)):
        path = tmp_path / "broken.py"
        path.write_text(text)
        told = run("neg", "-m", str(path))
        assert told.exit_code == 1
        assert f"{path}:{line}" in told.stderr
