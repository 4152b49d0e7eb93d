"""Tuning: every point is checked before it is timed, what won is kept under the whole contract of a call, and nothing changes before it is accepted."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlxpy import Builder, CompiledGraph, CompileOptions, DType, Graph, Op, compile, settings, show, sym
from rlxpy.backends.cpu.matmul import ROW_BLOCK
from rlxpy.backends.gpu.backend import Gpu, target_of
from rlxpy.backends.gpu.vendor import ROCM
from rlxpy.cli.app import app
from rlxpy.compiler import tuned
from rlxpy.compiler.session import lower
from rlxpy.errors import InputError
from rlxpy.extend import KernelLibrary, KernelRow, Tunable, kernel_registry, register_kernel_library
from rlxpy.extend.contract import DOCUMENT, KernelContract, contract_of
from rlxpy.extend.documents import fault
from rlxpy.extend.plan import Step
from rlxpy.ir.dtypes import Array
from rlxpy.notes import note_once
from rlxpy.tools.emit import emit
from rlxpy.tools.tune import Candidate, Tuning, accept, tune

import_module("rlxpy.cli.tune")
import_module("rlxpy.cli.why")
SLOW, FAST, WRONG, TAIL, RAISES = range(5)


def exp(ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """What each point does is plain to see, to a test and to a clock."""
    np.exp(ins[0], out=outs[0])
    match attrs["way"]:
        case 0: sleep(2e-3)
        case 2: outs[0][...] = 7
        case 3: outs[0].reshape(-1)[-1:] *= np.float32(1.001)
        case 4: raise KeyError("no such way")
        case _: pass


ROW = KernelRow("exp", Op.EXP, exp, tunables=(Tunable("way", (SLOW, FAST, WRONG, TAIL, RAISES), SLOW),))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with kernel_registry(), settings.override(cache=tmp_path / "cache"):
        yield tmp_path / "cache"


def exps(shape: Any = (3, 5), dtype: Any = DType.F32) -> Graph:
    b = Builder("exps")
    return b.finish(b.input("x", shape, dtype).exp())


def mine(row: KernelRow = ROW) -> None:
    register_kernel_library(KernelLibrary("mine", (row,)))


def ways(f: CompiledGraph, **sizes: int) -> list[Any]:
    return [dict(s.choice.at(sizes).params)["way"] for s in f.plan.steps]


# ---- measured ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_wrong_points_are_told_and_never_timed_and_the_fastest_right_one_wins(device: str) -> None:
    mine()
    (found,) = tune(exps(), device=device, rounds=4)
    assert [bool(c.seconds) for c in found.candidates] == [True, True, False, False, False]
    faults = {dict(c.point)["way"]: c.fault for c in found.candidates}
    assert faults[SLOW] == faults[FAST] == ""
    assert "from the reference" in faults[WRONG]
    assert "from the reference" in faults[TAIL], "one element in fifteen, by a thousandth"
    assert faults[RAISES].endswith("exp : f32[3,5] failed")
    assert found.best is not None
    assert dict(found.best.point) == {"way": FAST}
    assert (found.contract.row, found.launches, found.sizes) == ("mine/exp", 1, ())


def test_equal_calls_are_measured_once_and_others_apart() -> None:
    mine(replace(ROW, tunables=(Tunable("way", (FAST,), FAST),)))
    b = Builder("several")
    x, y = b.input("x", (3, 5)), b.input("y", (4, 5))
    found = tune(b.finish(x.exp(), x.exp().exp(), y.exp()), device="reference", rounds=2)
    assert sorted((t.type, t.launches) for t in found) == [("f32[3,5]", 2), ("f32[4,5]", 1)]
    assert [t.best for t in found] == [None, None]


def test_a_wrong_default_stops_it() -> None:
    mine(replace(ROW, tunables=(Tunable("way", (WRONG, FAST), WRONG),)))
    (found,) = tune(exps(), device="reference", rounds=2)
    assert found.best is None
    assert [bool(c.fault) for c in found.candidates] == [True]


def test_a_win_inside_the_spread_is_none() -> None:
    (measured,) = tune_nothing()
    for default, other, wins in (((10, 11, 12, 13), (8, 9, 10, 11), False), ((10, 11, 12, 13), (6, 7, 8, 9), True), ((10, 10), (10, 10), False)):
        t = replace(measured, candidates=(Candidate((("way", 0),), tuple(map(float, default))), Candidate((("way", 1),), tuple(map(float, other)))))
        assert (t.best is not None) is wins


def test_each_loser_says_how_it_lost() -> None:
    (found,) = tune_nothing()
    times = (10.0, 12.0), (5.0, 5.0), (6.0, 6.0), (9.0, 11.5), (22.0, 22.0), ()
    lost = replace(found, candidates=tuple(Candidate((("way", k),), t, "" if t else "it raised") for k, t in enumerate(times))).rejected
    assert [(dict(r.point)["way"], r.gate, r.why) for r in lost] == [
        (2, "operator", "1.83 times as fast as by default, another point is faster"), (3, "operator", "1.07 times as fast as by default, no more than both vary"),
        (4, "operator", "0.50 times as fast as by default"), (5, "correct", "it raised")]


def tune_nothing() -> tuple[Tuning, ...]:
    with kernel_registry():
        mine(replace(ROW, tunables=(Tunable("way", (FAST,), FAST),)))
        return tune(exps(), device="reference", rounds=2)


def test_sizes_are_those_that_the_graph_takes() -> None:
    mine()
    with pytest.raises(InputError, match="sizes of T are missing"):
        tune(exps((sym("T", 1, 8), 3)), device="reference")


# ---- kept ----------------------------------------------------------------------------------------------------------
def test_nothing_changes_before_it_is_accepted_and_off_forgets(cache: Path) -> None:
    mine()
    found = tune(exps(), device="cpu", rounds=4)
    assert ways(compile(exps(), device="cpu")) == [SLOW]
    assert accept(found) == 1
    f = compile(exps(), device="cpu")
    assert ways(f) == [FAST]
    assert "times as fast as by default" in str(f.selection())
    assert ways(compile(exps(), device="cpu", options=CompileOptions(tune=("off",)))) == [SLOW]
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_allclose(f(x), np.exp(x), rtol=1e-6)


def test_it_is_for_that_call_on_that_machine_alone(cache: Path) -> None:
    mine()
    accept(tune(exps(), device="reference", rounds=4))
    assert ways(compile(exps(), device="reference")) == [FAST]
    for other in (exps((3, 6)), exps((5, 3)), exps(dtype=DType.F64), exps((sym("T", 3, 4), 5))):
        assert ways(compile(other, device="reference")) == [SLOW]
    assert ways(compile(exps(), device="cpu")) == [SLOW]
    assert ways(compile(exps(), device="reference", options=CompileOptions(numerics="low"))) == [SLOW]


def test_at_one_size_of_many_it_holds_for_that_size(cache: Path) -> None:
    mine()
    graph = exps((sym("T", 1, 20), 3))
    accept(tune(graph, device="cpu", sizes={"T": 8}, rounds=4))
    f = compile(graph, device="cpu")
    assert [ways(f, T=n) for n in (1, 7, 8, 9, 20)] == [[SLOW], [SLOW], [FAST], [SLOW], [SLOW]]
    for rows in (8, 9, 8):
        np.testing.assert_allclose(f(np.ones((rows, 3), np.float32)), np.e, rtol=1e-6)


def test_damaged_stale_and_foreign_files_are_passed_over(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine()
    accept(tune(exps(), device="reference", rounds=4))
    (path,) = (cache / "tune").glob("*.json")
    whole = json.loads(path.read_text())
    for k, bad in enumerate(({**whole, "point": {"way": 99}}, {**whole, "point": {"gone": 1}}, {**whole, "contract": {}}, {**whole, "format": 99}, [], {"a": 1}, "cut")):
        text = json.dumps(bad)
        path.write_text(text[:-1] if bad == "cut" else text)
        note_once.cache_clear()
        assert ways(compile(exps(), device="reference")) == [SLOW]
        assert str(path) in capsys.readouterr().err, k
    path.write_text(json.dumps(whole))
    assert ways(compile(exps(), device="reference")) == [FAST]


@pytest.mark.parametrize(("damage", "words"), [
    ({"format": 1}, "format is 1, 2 is wanted"), ({"seconds": "fast"}, 'seconds is "fast", a number above 0 is wanted'), ({"seconds": 0}, "seconds is 0, a number above 0"),
    ({"default_seconds": float("nan")}, "default_seconds is NaN"), ({"point": {"way": True}}, "point.way is true, a whole number is wanted"),
    ({"point": {"way": 1.5}}, "point.way is 1.5, a whole number"), ({"point": [1]}, r"point is \[1\], an object is wanted"), ({"sizes": {"T": "8"}}, 'sizes.T is "8", a whole number from 0'),
    ({"gates": ["correct"]}, r"gates are \['correct'\], a point that is used passes correct, operator"), ({"gates": ["quick"]}, r'gates\[0\] is "quick", one of correct, operator, model'),
    ({"rejected": [{"point": {"way": FAST}, "gate": "correct", "why": "it was wrong"}]}, "its own point was rejected: it was wrong"),
    ({"rejected": [{"point": {}, "gate": "correct"}]}, r"rejected\[0\].why is missing, a text is wanted"), ({"speed": 2}, "speed is unknown, there are format, contract"),
    ({"point": {"way": 99}}, "way=99 of exp is none of 0, 1"),
])
def test_a_kept_file_is_held_to_its_shape_and_never_half_used(cache: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, Any], words: str) -> None:
    mine()
    whole = kept_file(cache)
    write(cache, {**whole, **damage})
    assert ways(compile(exps(), device="reference")) == [SLOW]
    assert re.search(words, capsys.readouterr().err)
    write(cache, whole)
    assert ways(compile(exps(), device="reference")) == [FAST]


def test_each_field_that_is_missing_is_named_in_a_contract_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine()
    whole = kept_file(cache)
    for at, part in (("", whole), ("contract.", whole["contract"])):
        for name in list(part):
            value = part.pop(name)
            write(cache, whole)
            assert ways(compile(exps(), device="reference")) == [SLOW]
            assert f"{at}{name} is missing" in capsys.readouterr().err
            part[name] = value


# ---- rejected
@pytest.mark.parametrize("gate", ["wrong", "slower"])
def test_what_was_rejected_is_kept_as_rejected(cache: Path, gate: str) -> None:
    mine()
    data = kept_file(cache)
    found = {r["point"]["way"]: r for r in data["rejected"]}
    assert sorted(found) == [WRONG, TAIL, RAISES]
    assert all(r["gate"] == "correct" and r["why"] for r in found.values())
    assert data["gates"] == ["correct", "operator"]
    lost = measured(slow=(1.0, 1.0), fast=(2.0, 2.0)) if gate == "slower" else replace(measured(slow=(1.0, 1.0), fast=()), candidates=(
        Candidate((("way", SLOW),), (1.0, 1.0)), Candidate((("way", FAST),), fault="y is 7 from the reference")))
    assert lost.best is None
    assert accept((lost,)) == 0
    (path,) = (cache / "tune").glob("*.json")
    data = json.loads(path.read_text())
    assert (data["point"], data["gates"]) == ({}, [])
    assert [(r["gate"], r["point"]) for r in data["rejected"]] == [("operator" if gate == "slower" else "correct", {"way": FAST})]
    assert ways(compile(exps(), device="reference")) == [SLOW], "the earlier winner is gone"


def test_a_point_that_was_wrong_is_not_chosen_by_itself_again(cache: Path) -> None:
    mine()
    (found,) = tune(exps(), device="reference", rounds=4)
    wrong = replace(found, candidates=(found.candidates[0], replace(found.candidates[1], seconds=(), fault="y is 7 from the reference")))
    assert accept((wrong,)) == 0
    (again,) = tune(exps(), device="reference", rounds=4)
    assert again.candidates[FAST].seconds, "it is right now, and timed"
    assert again.best is None
    assert {r.why for r in again.rejected if dict(r.point) == {"way": FAST}} == {"y is 7 from the reference"}
    assert accept((again,)) == 0
    assert accept(tune(exps(), device="reference", rounds=4)) == 0, "it is remembered from file to file"
    assert ways(compile(exps(), device="reference", options=CompileOptions(tune=(f"mine/exp:way={FAST}",)))) == [FAST], "who asks for it gets it"


def test_a_wrong_default_keeps_nothing(cache: Path) -> None:
    mine(replace(ROW, tunables=(Tunable("way", (WRONG, FAST), WRONG),)))
    assert accept(tune(exps(), device="reference", rounds=2)) == 0
    assert tuned.state() == 0


def kept_file(cache: Path) -> dict[str, Any]:
    accept(tune(exps(), device="reference", rounds=4))
    (path,) = (cache / "tune").glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def write(cache: Path, data: Any) -> None:
    (path,) = (cache / "tune").glob("*.json")
    path.write_text(json.dumps(data))
    note_once.cache_clear()


def measured(slow: tuple[float, ...], fast: tuple[float, ...]) -> Tuning:
    """Of the call that is kept, with other times."""
    (found,) = tune(exps(), device="reference", rounds=2)
    return replace(found, candidates=(Candidate((("way", SLOW),), slow), Candidate((("way", FAST),), fast)))


# ---- pinned --------------------------------------------------------------------------------------------------------
def test_a_pin_goes_before_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    mine()
    accept(tune(exps(), device="reference", rounds=4))
    monkeypatch.setenv("RLX_TUNE", f"mine/exp:way={TAIL}")
    f = compile(exps(), device="reference")
    assert ways(f) == [TAIL]
    assert "pinned" in str(f.selection())


@pytest.mark.parametrize(("pin", "words"), [
    ("mine/expp:way=1", "no kernel row 'mine/expp'(.|\n)*near it: mine/exp"), ("mine/exp:way=9", "way=9 of exp is none of 0, 1, 2, 3, 4"),
    ("mine/exp:speed=1", "exp has no tunable 'speed', there are way"), ("mine/exp:way=fast", "library/row:tunable=number(.|\n)*way of 0, 1"),
    ("mine/exp", "tunable=number"), ("mine/exp:way=3", r"exp cannot be launched at \{'way': 3\}"),
])
def test_a_pin_that_cannot_be_says_what_can(pin: str, words: str) -> None:
    mine(replace(ROW, tune_valid=lambda p: p["way"] != TAIL))
    with pytest.raises(InputError, match=words):
        compile(exps(), device="reference", options=CompileOptions(tune=(pin,)))


def test_the_cpus_emitters_get_the_point_and_give_the_same_sums() -> None:
    b = Builder("product")
    graph = b.finish(b.input("x", (100, 33)) @ b.param("w", (33, 17)))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(100, 33)).astype(np.float32), rng.normal(size=(33, 17)).astype(np.float32)
    results, texts = set(), set()
    for block in ROW_BLOCK.values:
        options = CompileOptions(tune=(f"cpu/matmul:row_block={block}",), force_row=("cpu/matmul",))
        results.add(compile(graph, {"w": w}, device="cpu", options=options, wait=True)(x).tobytes())
        texts.add(emit(graph, "cpu", options=options).text)
    assert len(results) == 1
    assert len(texts) == len(ROW_BLOCK.values) - 1  # by default it is one of the others, which depends on the depth


# ---- contracts -----------------------------------------------------------------------------------------------------
def contract(graph: Graph, device: str = "reference", **options: Any) -> KernelContract:
    f = compile(graph, device=device, options=CompileOptions(**options))
    step: Step = f.plan.steps[0]
    return contract_of(f.plan, step, f.spec)


def softmax(axis: int = -1, shape: Any = (3, 5), dtype: Any = DType.F32) -> Graph:
    b = Builder("any name")
    return b.finish(b.input("x", shape, dtype).softmax(axis=axis))


def test_a_contract_is_the_call_the_row_and_the_machine_and_no_more() -> None:
    one = contract(softmax())
    b = Builder("another model")
    same = b.finish(b.input("other", (3, 5)).softmax(axis=-1))
    assert contract(same) == one
    others = [contract(softmax(0)), contract(softmax(shape=(5, 3))), contract(softmax(dtype=DType.F64)), contract(softmax(), "cpu"), contract(softmax(), numerics="low"),
              contract(softmax(shape=(sym("T", 1, 3), 5)))]
    assert len({c.id for c in (one, *others)}) == 7
    turned = Builder("turned")
    assert contract(turned.finish(turned.input("x", (5, 3)).transpose(perm=(1, 0)).softmax(axis=-1)), optimise=False).walks != one.walks


def test_a_contract_of_a_gpu_says_how_it_is_launched() -> None:
    graph = softmax(shape=(sym("T", 1, 3), 500))
    spec = Gpu(ROCM, target_of("rocm", "gfx1100")).spec
    plan, _, _ = lower(graph, spec, CompileOptions())
    made = contract_of(plan, plan.steps[0], spec)
    (launch,) = made.launches
    assert (launch.grid, launch.fixed_lds_nbytes, launch.dynamic_lds_nbytes) == (("T",), None, "0")
    assert launch.threads % 32 == 0
    assert made.capture
    data = json.loads(json.dumps(made.to_json()))
    assert fault(data, DOCUMENT) is None
    assert fault(data | {"launches": [{**data["launches"][0], "threads": -1}]}, DOCUMENT) == "launches[0].threads is -1, a whole number from 0 is wanted"
    others = [replace(made, launches=(replace(launch, **change),)) for change in ({"dynamic_lds_nbytes": "64"}, {"fixed_lds_nbytes": 64}, {"grid": ("1",)}, {"threads": 32})]
    assert len({c.id for c in (made, replace(made, capture=False), *others)}) == 6
    on_host = contract(graph)
    assert (on_host.launches, on_host.capture) == ((), False)


def test_its_name_is_the_same_in_every_process() -> None:
    text = ("from rlxpy import *; from rlxpy.extend.contract import contract_of; b = Builder('m'); g = b.finish(b.input('x', (3, 5)).softmax(axis=-1)); "
            "f = compile(g, device='reference'); print(contract_of(f.plan, f.plan.steps[0], f.spec).id)")
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()
    assert said == contract(softmax()).id
    assert said.startswith("rk_")
    assert len(said) == 27


def test_another_text_of_the_kernel_is_another_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    ids = set()
    for k, body in enumerate(("np.exp(ins[0], out=outs[0])", "np.exp(ins[0],  out=outs[0])")):
        (tmp_path / f"kernels_{k}.py").write_text(f"import numpy as np\ndef exp(ins, outs, attrs):\n    {body}\n")
        with kernel_registry():
            mine(KernelRow("exp", Op.EXP, import_module(f"kernels_{k}").exp))
            ids.add(contract(exps()).id)
    assert len(ids) == 2


# ---- the command line ----------------------------------------------------------------------------------------------
def test_the_command_measures_keeps_and_why_tells(tmp_path: Path) -> None:
    mine()
    file = tmp_path / "exps.rlx"
    file.write_text(show(exps((sym("T", 1, 8), 3))))

    def rlx(*words: str) -> Any: return CliRunner().invoke(app, words)

    told = rlx("tune", str(file), "--device", "reference", "--sizes", "T=4", "--rounds", "4", "--json")
    data = json.loads(told.stdout)
    assert (data["kept"], data["calls"][0]["best"], data["calls"][0]["sizes"]) == (0, {"way": FAST}, {"T": 4})
    assert tuned.state() == 0, "nothing was kept"
    said = rlx("tune", str(file), "--device", "reference", "--sizes", "T=4", "--rounds", "4", "--keep")
    assert said.exit_code == 0, said.output
    assert "way = 1" in said.stdout
    assert "1 of 1 calls" in said.stderr
    assert "rejected, correct: " in said.stdout
    told = rlx("why", str(file), "--device", "reference").stdout
    assert "T = 4: mine/exp [kernel]" in told
    assert "gates passed: correct, operator; not run: model" in told
