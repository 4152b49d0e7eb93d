"""Recorded evidence: what it claims was recorded, of texts that are told when they change; nothing claims an AMD card."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlxpy.backends.gpu.backend import Gpu
from rlxpy.errors import CompileError, InputError
from rlxpy.tools import evidence
from rlxpy.tools.behaviour import Broken
from rlxpy.tools.evidence import LEVELS, Record, backend_of, by_dtype, claims, merged, recorded, records, written
from rlxpy.tools.samples import Sample

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
    assert "c64" not in found["add", "gpu/add"].dtypes  # the host tier's
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


def test_a_text_that_has_changed_since_is_told() -> None:
    r = made(ops=["exp"])
    assert [c.stale for c in claims([replace(r, sources={"exp": "0" * 12})])] == [True]


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
