"""What one sees of a graph on a GPU: its source for chips that are not here, times by launch, kernels that are waited for, NaN that was made."""
from __future__ import annotations

import numpy as np
import pytest
from gpu_device import gpu as gpu

import rlxpy
from rlxpy import Builder, CompileOptions, Graph
from rlxpy.cli.bench import profile_text
from rlxpy.errors import IndexOutOfRange, InputError
from rlxpy.ir.dtypes import Array
from rlxpy.tools.emit import emit
from rlxpy.tools.profile import profile


def layer() -> tuple[Graph, dict[str, Array]]:
    b = Builder("layer")
    x, w = b.input("x", (6, 40)), b.param("w", (40, 24))
    return b.finish((x @ w).relu().softmax(axis=-1), x.log()), {"w": np.linspace(-1, 1, 960, dtype="f4").reshape(40, 24)}


@pytest.mark.parametrize(("device", "chip"), [("rocm", "gfx942"), ("rocm", "gfx1151"), ("cuda", "sm_90"), ("rocm", "")])
def test_source_is_written_for_chips_that_are_not_here(device: str, chip: str) -> None:
    made = emit(layer()[0], device, isa=chip)
    assert made.device == device
    assert all(f" {name}(" in made.text for name in made.kernels)
    assert any(row["where"].startswith(__file__) for row in made.launches)
    assert made.text == emit(layer()[0], device, isa=chip).text


@pytest.mark.parametrize(("device", "chip", "what"), [("rocm", "gfx9999", "no AMD target"), ("cuda", "9.0", "no NVIDIA chip"), ("reference", "gfx942", "isa='gfx942' with device")])
def test_what_is_no_chip_is_refused(device: str, chip: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        emit(layer()[0], device, isa=chip)


def test_a_profile_has_every_launch_once_in_order(gpu: str) -> None:
    graph, params = layer()
    f = rlxpy.compile(graph, params, device=gpu)
    x = np.random.default_rng(0).uniform(0.1, 1, (6, 40)).astype("f4")
    want = f(x)
    for _ in range(2):
        spans = f.profile(x)
        assert {s.step.node.id for s in spans} == {s.node.id for s in f.plan.steps}
        assert all(a.begin_ns <= a.end_ns for a in spans)
        assert [s.begin_ns for s in spans] == sorted(s.begin_ns for s in spans)
    assert profile_text(profile(f, x, rounds=1), "op").startswith(f"- on {gpu}: ")  # and no word of threads
    for a, b in zip(f(x), want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr("rlxpy.backends.gpu.execute.note_once", lines.append)
    return lines


def test_debug_mode_tells_who_made_nan_and_not_who_passed_it_on(gpu: str, said: list[str]) -> None:
    b = Builder("nan")
    x = b.input("x", (5,))
    f = rlxpy.compile(b.finish(x.log().softmax(axis=0), x * 2.0), device=gpu, options=CompileOptions(debug=True, optimise=False))
    f(np.ones(5, "f4"))
    assert not said
    f(np.array([1, -1, 2, 3, 4], "f4"))
    assert len(said) == 1
    assert "log" in said[0]
    assert __file__ in said[0]
    f(np.array([1, np.nan, 2, 3, 4], "f4"))
    assert len(said) == 1


def test_debug_mode_does_not_take_what_a_bad_index_left_for_nan(gpu: str, said: list[str]) -> None:
    b = Builder("bad index")
    f = rlxpy.compile(b.finish(b.input("x", (4, 3)).gather(b.input("i", (2,), "i64"), axis=0) * 2.0), device=gpu, options=CompileOptions(debug=True))
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match="index 4"):
            f(np.ones((4, 3), "f4"), np.array([1, 4]))
    assert not said
