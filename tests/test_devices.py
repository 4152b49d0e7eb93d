"""Which backend runs a graph: what is known, what works here, and why the rest does not (A28)."""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlxpy import Builder, CompileOptions, Graph, RlxError, Session, available_backends, backend_report, compile, settings
from rlxpy.backends.reference import Reference
from rlxpy.cli.app import app
from rlxpy.compiler.devices import BUILT_IN, choose
from rlxpy.errors import BackendMissing, CompileError, InputError, RegistryError
from rlxpy.extend.backend import Backend, BackendSpec, Device, ExecutableGraph, supported_ops
from rlxpy.extend.devices import backend_registry, register_backend
from rlxpy.extend.plan import Plan
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.op import Op
from rlxpy.notes import note_once


@dataclass(frozen=True)
class Fake:
    """The reference under another name; `reason` says why it cannot run here."""

    device: str
    reason: str | None = None

    @property
    def spec(self) -> BackendSpec:
        return replace(Reference().spec, device=Device(self.device))

    def missing(self) -> str | None:
        return self.reason

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph:
        return Reference().load(plan, params, debug=debug)


def broken() -> Backend:
    raise ImportError("libfake.so.1: cannot open shared object file")


class Raising(Fake):
    def missing(self) -> str | None:
        raise OSError("no /dev/fake")


DRIVER = "driver 11 is older than the 12 it needs"


@pytest.fixture(autouse=True)
def fakes() -> Iterator[None]:
    with backend_registry():
        register_backend(Device("fake"), lambda: Fake("fake"))
        register_backend(Device("old"), lambda: Fake("old", DRIVER))
        register_backend(Device("broken"), broken)
        register_backend(Device("raising"), lambda: Raising("raising"))
        yield


def double() -> Graph:
    b = Builder()
    return b.finish(b.input("x", (3,)) * 2.0)


def test_the_chosen_device_is_public_and_runs() -> None:
    for device in ("reference", "fake", ["fake", "reference"], ("fake",)):
        run = compile(double(), device=device)
        assert run.device == (device if isinstance(device, str) else device[0])
        assert run.passed_over == ()
        assert f"device {run.device}" in run.explain()
        np.testing.assert_array_equal(run([1, 2, 3]), [2, 4, 6])
    assert Session("fake").device == "fake"


def test_auto_is_one_of_those_that_work_here() -> None:
    assert compile(double(), device="auto").device in available_backends()
    assert compile(double()).device in BUILT_IN


def test_a_list_is_tried_in_its_order_and_says_what_it_passed_over() -> None:
    run = compile(double(), device=["old", "raising", "fake", "reference"])
    assert run.device == "fake"
    first, second = run.passed_over
    assert first == f"old: {DRIVER}"
    assert "OSError: no /dev/fake" in second
    assert all(p in run.explain() for p in run.passed_over)
    assert compile(double(), device=["old", "auto"]).passed_over == (f"old: {DRIVER}",)


@pytest.mark.parametrize(("device", "why"), [("old", DRIVER), ("broken", "ImportError: libfake.so.1"), ("raising", "OSError: no /dev/fake"), (["old", "broken"], DRIVER)])
def test_a_named_backend_that_cannot_run_raises_with_its_reason_and_never_falls_back(device: Any, why: str) -> None:
    with pytest.raises(BackendMissing) as caught:
        compile(double(), device=device)
    assert why in caught.value.why
    assert all(d in caught.value.what for d in ([device] if isinstance(device, str) else device))
    assert "reference" in caught.value.fix
    assert "fake" in caught.value.fix
    assert "old" not in caught.value.fix
    assert __file__ in caught.value.where


@pytest.mark.parametrize(("device", "says"), [
    ("fke", "fake"), ("Reference", "reference"), ("", "reference"), (["fake", "fke"], ""), (["old", "fke"], "fake"), ([], "auto"), ((), "auto"), (3, "auto"), ([3], "auto"),
    ({"fake": 1}, "auto"), (b"fake", "auto")])
def test_an_unknown_device_lists_the_known(device: Any, says: str) -> None:
    if not says:  # never reached: the first of the list works
        assert compile(double(), device=device).device == "fake"
        return
    with pytest.raises(InputError) as caught:
        compile(double(), device=device)
    assert says in str(caught.value)
    assert __file__ in caught.value.where


def test_the_report_has_every_backend_with_its_reason() -> None:
    rows = {s.device: s for s in backend_report()}
    assert {"reference", "fake", "old", "broken", "raising"} <= set(rows)
    assert (rows["reference"].missing, rows["reference"].built_in) == ("", True)
    assert (rows["fake"].missing, rows["fake"].built_in) == ("", False)
    assert rows["old"].missing == DRIVER
    assert "libfake.so.1" in rows["broken"].missing
    assert "no /dev/fake" in rows["raising"].missing
    assert {"reference", "fake"} <= set(available_backends())
    assert not {"old", "broken", "raising"} & set(available_backends())


def test_a_device_that_calls_itself_otherwise_is_told_once_and_listed_under_the_name_one_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    import_module("rlxpy.cli.devices")
    register_backend(Device("outer"), lambda: Fake("inner"))
    note_once.cache_clear()
    with settings.override(device=("outer",)):
        told = json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)
        assert told["default"] == "outer"
        assert [d["device"] for d in told["devices"] if d["device"] in ("outer", "inner")] == ["outer"]
        shown = CliRunner().invoke(app, ["devices"]).stdout
    assert [line.split()[:3] for line in shown.splitlines() if "yes" in line.split()[2:3]] == [["outer", "yes", "yes"]]
    note_once.cache_clear()
    for _ in range(2):
        assert choose("outer").name == "outer"
    assert capsys.readouterr().err.count("device outer is called inner by its own spec") == 1
    capsys.readouterr()
    choose("fake")
    assert not capsys.readouterr().err


@dataclass(frozen=True)
class Odd(Fake):
    """The reference with parts of other kinds."""

    made: Any = None

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> Any:
        return self.made(plan)


@pytest.mark.parametrize(("made", "why"), [
    (lambda plan: None, "gave no ExecutableGraph[^$]*NoneType lacks"), (lambda plan: 1 // 0, "cannot load the plan[^$]*ZeroDivisionError"),
    (lambda plan, more: 3, "cannot load the plan[^$]*TypeError")])
def test_a_backend_that_cannot_load_is_named(made: Any, why: str) -> None:
    register_backend(Device("odd"), lambda: Odd("odd", None, made))
    with pytest.raises(CompileError, match=f"device odd {why}") as caught:
        compile(double(), device="odd")
    assert "rlx conform odd" in caught.value.fix
    assert __file__ in caught.value.where


@pytest.mark.parametrize("spec", [None, "odd", Device("odd")])
def test_a_backend_without_its_parts_is_a_reason_like_any_other(spec: Any) -> None:
    register_backend(Device("odd"), type("NoSpec", (), {"spec": spec, "missing": lambda self: None, "load": lambda self, plan, params, *, debug=False: None}))
    register_backend(Device("bare"), object)  # type: ignore[arg-type]
    with pytest.raises(BackendMissing, match="odd: its backend is broken: NoSpec lacks"):
        compile(double(), device="odd")
    run = compile(double(), device=["odd", "bare", "fake"])
    assert (run.device, len(run.passed_over)) == ("fake", 2)


def claiming(native: Any) -> None:
    register_backend(Device("odd"), lambda: type("Claiming", (Fake,), {"spec": BackendSpec(Device("odd"), native=native)})("odd"))
    compile(double(), device="odd")


@pytest.mark.parametrize("claim", [False, True, "", 3])
def test_a_claim_is_none_or_a_reason(claim: Any) -> None:
    with pytest.raises(RegistryError, match=f"what odd claims of mul is {claim!r}") as caught:
        claiming(lambda spec, graph, node: claim)
    assert __file__ in caught.value.where


@pytest.mark.parametrize(("native", "why"), [(lambda spec, graph, node: 1 // 0, "ZeroDivisionError"), (lambda graph, node: None, "3 were given")])
def test_a_claim_that_raises_names_device_and_node(native: Any, why: str) -> None:
    with pytest.raises(RegistryError, match=f"what odd claims of mul cannot be told[^$]*{why}"):
        claiming(native)


@pytest.mark.parametrize("claims", [{"add": {DType.F32}}, {Op.ADD: {"f32"}}, {Op.ADD: "f32"}, {Op.ADD: DType.F32}, {Op.ADD: None}, [Op.ADD]])
def test_claims_of_another_kind_are_refused_when_they_are_made(claims: Any) -> None:
    with pytest.raises(RegistryError, match="supported_ops of "):
        supported_ops(claims)


def test_the_setting_chooses_too_and_the_argument_wins() -> None:
    with settings.override(device=("old", "fake")):
        assert compile(double()).device == "fake"
        assert compile(double()).passed_over == (f"old: {DRIVER}",)
        assert compile(double(), device="reference").device == "reference"


def test_the_environment_chooses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_DEVICE", "old, fake")
    assert compile(double()).device == "fake"
    monkeypatch.setenv("RLX_DEVICE", "nowhere")
    with pytest.raises(InputError, match="nowhere"):
        compile(double())


def test_names_are_taken_once_and_forgotten_with_their_block() -> None:
    with pytest.raises(RegistryError, match="'fake'"):
        register_backend(Device("fake"), broken)
    with backend_registry():
        register_backend(Device("inner"), lambda: Fake("inner"))
        assert compile(double(), device="inner").device == "inner"
    with pytest.raises(InputError, match="inner"):
        compile(double(), device="inner")


def test_a_block_is_not_seen_by_other_threads() -> None:
    seen: list[Sequence[str]] = []
    thread = Thread(target=lambda: seen.append(available_backends()))
    thread.start()
    thread.join()
    assert "fake" in available_backends()
    assert "fake" not in seen[0]


def test_unknown_kernel_libraries_are_named() -> None:
    with pytest.raises(InputError, match="'refrence'") as caught:
        compile(double(), options=CompileOptions(kernels=("refrence",)))
    assert "reference" in caught.value.fix
    assert compile(double(), device="reference", options=CompileOptions(kernels=("reference",)))([1, 2, 3]).tolist() == [2, 4, 6]


@pytest.mark.parametrize("given", ["reference", ("reference", 3), 3, None])
def test_kernels_are_a_tuple_of_names_not_letters(given: Any) -> None:
    with pytest.raises(RlxError, match="kernels="):
        CompileOptions(kernels=given)
