"""Recorded evidence: what it claims was recorded, of texts that are told when they change; nothing claims an AMD card."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from gpu_device import simulation
from sim_device import lacking, no_device_compiler

from rlxpy.backends.gpu.backend import Gpu
from rlxpy.errors import CompileError, InputError
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.tools import evidence
from rlxpy.tools.behaviour import Broken
from rlxpy.tools.cases import OPS
from rlxpy.tools.evidence import LEVELS, Form, Record, backend_of, by_dtype, claims, merged, recorded, records, trial_on, written
from rlxpy.tools.samples import Sample

FORMS: tuple[Form, ...] = ("host code", "machine code")
DRAWN = 5  # of a thousand claims for each chip
MI300 = backend_of("rocm", "gfx942")


def taken(cases: Sequence[Sample]) -> None: """Nothing against it."""


def made(trial: evidence.Trial = taken, ops: Sequence[str] = ("add", "exp"), backend: Gpu = MI300) -> Record:
    return recorded("compiled", backend, "a compiler: 1.0", trial, ops)


def test_levels_end_at_the_card_that_there_is() -> None:
    assert LEVELS == ("compiled", "executed in simulation", "ran on H200")
    assert not any("AMD" in r.level or (r.device == "rocm" and r.level == "ran on H200") for r in records())


def test_what_is_shipped_names_ops_and_chips_that_there_are() -> None:
    for r in records():
        assert r.level in LEVELS
        backend_of(r.device, r.target)
        for op in r.ops:
            by_dtype(op)
        assert set(r.sources) == set(r.ops)


def test_a_claim_is_a_kernel_that_nothing_spoke_against() -> None:
    found = {(c.op, c.kernel): c for c in claims([made()])}
    assert "f32" in found["add", "gpu/add"].dtypes
    assert "c64" in found["add", "gpu/add"].dtypes
    assert not any(c.stale for c in found.values())


@pytest.mark.parametrize("error", [Broken("one differs"), CompileError("it does not compile")])
def test_what_fails_is_no_claim_and_only_the_guilty_type_is_named(error: Exception) -> None:
    def trial(cases: Sequence[Sample]) -> None:
        if any(s.dtype.text == "f16" for s in cases):
            raise error

    r = made(trial, ["exp"])
    assert r.ops["exp"]["broken"] == ["f16"]
    assert all("f16" not in c.dtypes for c in claims([r]))
    assert any("f32" in c.dtypes for c in claims([r]))


def test_why_a_type_is_broken_is_kept_until_its_op_is_recorded_again() -> None:
    def trial(cases: Sequence[Sample]) -> None:
        if any(s.dtype.text in ("f16", "f64") for s in cases):
            raise Broken("one differs\nand more")

    first, other = made(trial, ["exp", "log"]), made(trial, ["exp"])
    assert first.reasons == {f"{op} {d}": "one differs" for op in ("exp", "log") for d in ("f16", "f64")}
    both, = merged([first], made(ops=["exp"]))
    assert both.reasons == {f"log {d}": "one differs" for d in ("f16", "f64")}
    assert set(merged([both], other)[0].reasons) == set(first.reasons)


def test_host_code_and_machine_code_are_told_apart() -> None:
    runs = [recorded("executed in simulation", MI300, f"simulated ({form})", taken, ["exp"], form=form) for form in FORMS]
    assert len(merged(merged((), runs[0]), runs[1])) == 2
    assert {c.words for c in claims(runs)} == {f"executed in simulation, as {form}" for form in FORMS}


MACHINE = [r for r in records() if (r.level, r.form) == ("executed in simulation", "machine code")]


def test_machine_code_of_both_waves_has_run() -> None:
    assert {backend_of(r.device, r.target).target.wave for r in MACHINE} == {32, 64}  # type: ignore[union-attr]


@pytest.mark.parametrize("record", MACHINE, ids=lambda r: r.target)
def test_what_was_recorded_of_machine_code_still_holds(record: Record) -> None:
    """A few ops in one type each, drawn anew for each chip, as one module; all of them take minutes."""
    if why := no_device_compiler() or lacking():
        pytest.skip(f"not run, because {why}")
    claimed = [(op, d) for op, by_kernel in sorted(record.ops.items()) for kernel, types in by_kernel.items() if "/" in kernel for d in types]
    drawn = Random(record.target).sample(claimed, DRAWN)
    cases = [s for op, d in drawn for s in by_dtype(op)[dtype(d)]]
    with simulation(record.target, "isa"):
        trial_on(record.device, cases)


def test_a_kernel_that_is_wrong_as_machine_code_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := no_device_compiler() or lacking():
        pytest.skip(f"not run, because {why}")
    monkeypatch.setattr("rlxpy.backends.gpu.elementwise.scalar.store", lambda d, text: f"({text})*1.001f")
    with simulation("gfx942", "isa"), pytest.raises(Broken, match="exp f32"):
        trial_on("rocm", by_dtype("exp")[DType.F32])


def test_a_text_that_has_changed_since_is_told() -> None:
    r = made(ops=["exp"])
    assert [c.stale for c in claims([replace(r, sources={"exp": "0" * 12})])] == [True]


def test_digests_of_all_ops_are_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLX_CACHE", str(tmp_path))
    monkeypatch.setattr(evidence, "OPS", some := OPS[:3])
    said: list[str] = []
    first, second = (evidence.digests("rocm", "gfx942", said.append) for _ in range(2))
    assert first == second == {op.text: evidence.digest(MI300, op.text) for op in some}
    assert said == ["writing every op's kernels for gfx942, to tell which have changed"]


def test_a_chip_of_another_text_has_another_digest_only_where_texts_differ() -> None:
    assert evidence.digest(MI300, "exp") == evidence.digest(backend_of("rocm", "gfx1100"), "exp")
    assert evidence.digest(MI300, "exp") != evidence.digest(MI300, "log")


def test_a_record_replaces_its_like_op_by_op_and_is_read_back(tmp_path: Path) -> None:
    first, second = made(ops=["add", "exp"]), made(ops=["exp", "log"])
    other = replace(first, target="gfx90a")
    both = merged(merged([first], other), second)
    assert [r.target for r in both] == ["gfx90a", "gfx942"]
    assert set(next(r for r in both if r.target == "gfx942").ops) == {"add", "exp", "log"}
    file = tmp_path / "evidence.json"
    file.write_text(written(both))
    assert written(records(file)) == file.read_text()
    assert records(tmp_path / "none.json") == ()


def test_an_unknown_op_is_refused_with_its_nearest() -> None:
    with pytest.raises(InputError, match="add"):
        by_dtype("addd")
