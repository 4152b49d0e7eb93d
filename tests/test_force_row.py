"""A row forced on its op: it alone runs it, unfused, on every device; or an error says why it cannot; one shared option of the commands."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlxpy import Builder, CompileOptions, Graph, Op, Session, compile, force_row, settings, show, sym
from rlxpy.cli.app import app
from rlxpy.errors import InputError, LegaliseError
from rlxpy.extend import Constraint, KernelLibrary, KernelRow, kernel_registry, register_kernel_library

COMMANDS = ("run", "embed", "bench", "demo", "why", "opt", "emit", "tune", "viz")  # what compiles
for name in COMMANDS:
    import_module(f"rlxpy.cli.{name}")


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with kernel_registry():
        yield


def chain(op: Callable[[Any], Any] = lambda x: x.exp(), shape: Any = (2, 3)) -> Graph:
    b = Builder("chain")
    return b.finish(op(b.input("x", shape) * 2.0) + 1.0)


def rows(graph: Graph, device: str = "cpu") -> dict[str, str]:
    return {s.node.label: s.choice.name for s in compile(graph, device=device, wait=True).plan.steps}


@pytest.mark.parametrize(("device", "row", "op"), [("cpu", "cpu/exp", "exp"), ("cpu", "reference/exp", "exp"), ("reference", "reference/exp", "exp")])
def test_a_forced_row_runs_its_op_alone_and_gives_what_the_op_means(device: str, row: str, op: str) -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    assert op not in rows(chain(), device), "without a wish it is fused"
    with force_row(row):
        f = compile(chain(), device=device, wait=True)
    assert {s.node.label: s.choice.name for s in f.plan.steps}[op] == row
    for _ in range(2):
        np.testing.assert_allclose(f(x), np.exp(2 * x.astype(np.float64)) + 1, rtol=1e-6)
    assert op not in rows(chain(), device), "and none is left after the block"


def test_it_goes_before_the_hierarchy_and_before_priority() -> None:
    def seven(ins: Any, outs: Any, attrs: Any) -> None:
        outs[0][...] = 7

    register_kernel_library(KernelLibrary("mine", (KernelRow("best", Op.EXP, seven, priority=9), KernelRow("other", Op.EXP, seven))))
    graph = chain()
    assert rows(graph)["exp"] == "mine/best"
    for wish in ("mine/other", "cpu/exp"):
        with force_row(wish):
            assert rows(graph)["exp"] == wish
    with force_row("mine/other"):
        found = [d for n in compile(graph, device="cpu").selection().of("exp").nodes for d in n.decisions]
    assert ("mine/best", "mine/other is asked for") in found[0].lost
    assert ("cpu/exp", "mine/other is asked for") in found[0].lost


def test_a_row_that_cannot_is_an_error_with_its_reason_and_the_line() -> None:
    with force_row("cpu/softmax"), pytest.raises(LegaliseError, match=r"cpu/softmax is asked for and cannot run softmax\n  at: .*test_force_row.py:\d+") as caught:
        compile(chain(lambda x: x.softmax(axis=0)), device="cpu")
    assert "cpu/softmax refuses: attrs.axis EQ -1: attrs.axis = 0" in caught.value.why
    assert "columns" not in caught.value.why, "what others say is not asked"


def test_an_op_that_would_be_lowered_is_not_lowered_around_the_wish() -> None:
    def never(ins: Any, outs: Any, attrs: Any) -> None:
        raise AssertionError

    register_kernel_library(KernelLibrary("mine", (KernelRow("silu", Op.SILU, never, args=("x",), constraints=(Constraint("x.dtype", "EQ", "f64"),)),)))
    with force_row("mine/silu"), pytest.raises(LegaliseError, match=r"x\.dtype EQ f64: x\.dtype = f32"):
        compile(chain(lambda x: x.silu()), device="cpu")


def test_a_row_for_some_sizes_alone_does_not_serve_all() -> None:
    def exp(ins: Any, outs: Any, attrs: Any) -> None:
        np.exp(ins[0], out=outs[0])

    register_kernel_library(KernelLibrary("mine", (KernelRow("short", Op.EXP, exp, args=("x",), constraints=(Constraint("x.shape[0]", "LE", 8),)),)))
    with force_row("mine/short"):
        assert rows(chain(shape=(sym("T", 1, 8), 3)))["exp"] == "mine/short"
        with pytest.raises(LegaliseError, match=r"T in 9\.\.40: mine/short refuses"):
            compile(chain(shape=(sym("T", 1, 40), 3)), device="cpu")


def test_a_row_that_is_not_there_and_what_is_no_row() -> None:
    with pytest.raises(InputError, match=r"(?s)no kernel row 'cpu/softmx'.*of cpu, reference.*near it: cpu/softmax"):
        compile(chain(), device="cpu", options=CompileOptions(force_row=("cpu/softmx",)))
    with pytest.raises(InputError, match=r"(?s)force_row='cpu/exp'.*str is not a tuple of names of rows"):
        CompileOptions(force_row="cpu/exp")  # type: ignore[arg-type]


def test_a_wish_that_nothing_needs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    compile(chain(), device="cpu", options=CompileOptions(force_row=("cpu/cumsum",)))
    assert "cpu/cumsum is asked for and runs nothing of graph chain" in capsys.readouterr().err


def test_wishes_are_part_of_the_key_of_plans() -> None:
    plain, wished = (Session("cpu", CompileOptions(force_row=r)) for r in ((), ("cpu/exp",)))
    assert plain.options != wished.options
    assert hash(plain.options) != hash(wished.options)


# ---- the command line ----------------------------------------------------------------------------------------------
def rlx(*words: str) -> Any: return CliRunner().invoke(app, words)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "g.rlx"
    path.write_text(show(chain()))
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_compiles_has_both_options(command: str) -> None:
    said = rlx(command, "--help").stdout
    assert "--kernels" in said
    assert "--force-row" in said


def test_why_and_emit_follow_them(file: str) -> None:
    told = json.loads(rlx("why", file, "--device", "cpu", "--force-row", "reference/exp", "--json").stdout)
    assert "reference/exp" in [d["winner"] for n in told["nodes"] for d in n["decisions"]]
    told = json.loads(rlx("why", file, "--device", "cpu", "--kernels", "reference", "--json").stdout)
    assert {d["winner"].partition("/")[0] for n in told["nodes"] for d in n["decisions"]} == {"reference"}
    launches = json.loads(rlx("emit", file, "--force-row", "cpu/exp", "--json").stdout)["launches"]
    assert "cpu/exp" in [row["kernel"] for row in launches]


def test_options_hold_for_their_command_alone_and_go_before_the_environment(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_KERNELS", "nothing-like-it")
    assert rlx("why", file, "--device", "cpu").exit_code == 1
    assert rlx("why", file, "--device", "cpu", "--kernels", "builtin").exit_code == 0
    assert settings.setting("kernels") == ("nothing-like-it",)
    bad = rlx("bench", file, "--device", "cpu", "--kernels", "builtin", "--force-row", "cpu/expp")
    assert bad.exit_code == 1
    assert "no kernel row 'cpu/expp'" in bad.stderr
