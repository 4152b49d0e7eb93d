"""The conformance suite: our backends and one made from nothing keep its laws, and each kind of broken backend is caught by the law it breaks."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rlxpy import CompileOptions, Op, compile
from rlxpy.backends.memory import space_bytes, view
from rlxpy.backends.reference import Reference
from rlxpy.backends.state import State, own
from rlxpy.errors import BackendMissing, InputError
from rlxpy.extend import (
    Backend,
    BackendSpec,
    Device,
    DType,
    ExecutableGraph,
    Plan,
    backend_registry,
    register_backend,
    supported_ops,
    with_host,
)
from rlxpy.extend.plan import Space
from rlxpy.ir.dtypes import Array
from rlxpy.ir.op import LEAVES
from rlxpy.tools.conform import conform

FLOATS = (DType.F32, DType.F64)
OWN: dict[Op, Callable[..., Any]] = {Op.ADD: np.add, Op.SUB: np.subtract, Op.MUL: np.multiply, Op.DIV: np.divide, Op.EXP: np.exp, Op.MAXIMUM: np.maximum, Op.MATMUL: np.matmul}


# A backend from nothing but a plan: about forty lines.
@dataclass(frozen=True)
class Toy:
    spec: BackendSpec = with_host(BackendSpec(Device("toy"), native=supported_ops(dict.fromkeys(OWN, FLOATS))))

    def missing(self) -> str | None:
        return None

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph:
        return ToyGraph(plan, params)


class ToyGraph:
    def __init__(self, plan: Plan, params: Mapping[str, Array]) -> None:
        self.plan, self.buffers = plan, {n.name: plan.places[n.refs[0]].buffer for n in plan.graph.params}
        self.fixed = {plan.places[n.refs[0]].buffer: n.attrs.value.array for n in plan.graph if n.op is Op.CONST}  # type: ignore[attr-defined]
        self.set_params(params)

    def set_params(self, arrays: Mapping[str, Array]) -> None:
        self.fixed = {**self.fixed, **{self.buffers[k]: np.ascontiguousarray(a) for k, a in arrays.items()}}

    def new_state(self) -> State:
        return State(self.plan)

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int], outputs: Sequence[Array], state: Any) -> None:
        kept, fixed = own(state, self.plan), self.fixed
        with kept.lock:
            spaces = {Space.STATE: kept.memory.copy(), **{s: space_bytes(self.plan, s) for s in (Space.ARENA, Space.INPUT)}}

            def at(r: Any) -> Array:
                return view(self.plan, r, sizes, spaces, fixed)

            for n, given in zip(self.plan.graph.inputs, inputs, strict=True):
                at(n.refs[0])[...] = given
            for step in self.plan.steps:
                self.launch(step, [at(r) for r in step.node.inputs], [at(r) for r in step.node.refs], step.node.attrs.bind(sizes).params())
            self.finish(kept, spaces, at, outputs)

    def launch(self, step: Any, ins: list[Array], outs: list[Array], params: Mapping[str, Any]) -> None:
        with np.errstate(all="ignore"):
            OWN[step.node.op](*ins, out=outs[0]) if step.choice.tier == "native" else step.choice.row.launch(ins, outs, params)

    def finish(self, kept: State, spaces: Mapping[Space, Array], at: Callable[[Any], Array], outputs: Sequence[Array]) -> None:
        moved = [at(new).copy() for new, _ in self.plan.commits]
        for out, r in zip(outputs, self.plan.graph.outputs, strict=True):
            out[...] = at(r)
        for value, (_, place) in zip(moved, self.plan.commits, strict=True):
            at(place)[...] = value
        kept.memory[...] = spaces[Space.STATE]


@pytest.fixture(autouse=True)
def _scope() -> Iterator[None]:
    with backend_registry():
        register_backend(Device("toy"), Toy)
        yield


# ---- who keeps them ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["reference", "toy"])
def test_every_law_over_every_op_is_kept(device: str) -> None:
    told = conform(device)
    assert told.kept, "\n".join(f"{f.law} {f.subject}: {f.why}" for f in told.of("broken"))
    assert not told.of("refused")
    assert {f.subject for f in told.findings if f.law == "ops"} == {op.text for op in set(Op) - LEAVES - {Op.CUSTOM}}


SOME = ["add", "softmax", "matmul", "sort", "gather", "scan", "fused"]


def test_the_cpu_keeps_them_over_ops_of_every_kind() -> None:
    told = conform("cpu", SOME)
    assert told.kept, "\n".join(f"{f.law} {f.subject}: {f.why}" for f in told.of("broken"))
    assert [f.subject for f in told.findings if f.law == "ops"] == SOME


def test_what_the_toy_claims_it_runs_and_the_rest_is_rewritten_or_staged() -> None:
    from rlxpy import Builder

    b = Builder()
    x = b.input("x", (3, 4))
    run = compile(b.finish((x * 2.0 + 1.0).silu(), x.cast(to="i32") + 1, x.sort(axis=0)[0]), device="toy", options=CompileOptions(debug=True))
    tiers = {(s.node.op, s.node.type.dtype): s.choice.tier for s in run.plan.steps}
    assert tiers[Op.MUL, DType.F32] == tiers[Op.EXP, DType.F32] == tiers[Op.DIV, DType.F32] == "native"
    assert tiers[Op.ADD, DType.I32] == tiers[Op.SORT, DType.F32] == "host"
    notes = {n.label: n.text for n in run.report.of("lowered", "host")}
    assert "it does not claim silu" in notes["silu"]
    assert "add takes f32, f64, not i32[3,4]" in notes["add"]


# ---- who does not --------------------------------------------------------------------------------------------------
class Broken(Toy):
    def __init__(self, graph: Callable[..., Any] = ToyGraph, **spec: Any) -> None:
        super().__init__(replace(Toy().spec, device=Device("broken"), **spec))
        object.__setattr__(self, "graph", graph)

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph:
        return self.graph(plan, params)  # type: ignore[attr-defined, no-any-return]


class DeafToWeights(ToyGraph):
    loaded = False

    def set_params(self, arrays: Mapping[str, Array]) -> None:
        if not self.loaded:
            super().set_params(arrays)
            self.loaded = True


class OneState(ToyGraph):
    """Every conversation in one memory."""

    only: Any = None

    def new_state(self) -> State:
        self.only = self.only or super().new_state()
        return self.only  # type: ignore[no-any-return]


class NoCommits(ToyGraph):
    def finish(self, kept: State, spaces: Mapping[Space, Array], at: Callable[[Any], Array], outputs: Sequence[Array]) -> None:
        for out, r in zip(outputs, self.plan.graph.outputs, strict=True):
            out[...] = at(r)


class CommitsOneByOne(ToyGraph):
    """States that trade places read what was just written."""

    def finish(self, kept: State, spaces: Mapping[Space, Array], at: Callable[[Any], Array], outputs: Sequence[Array]) -> None:
        for out, r in zip(outputs, self.plan.graph.outputs, strict=True):
            out[...] = at(r)
        for new, place in self.plan.commits:
            at(place)[...] = at(new)
        kept.memory[...] = spaces[Space.STATE]


class SharedArena(ToyGraph):
    """Threads write over one another; the sleep lets them."""

    arena: Any = None

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int], outputs: Sequence[Array], state: Any) -> None:
        self.arena = list(inputs)
        import time
        time.sleep(0.002)
        super().run(self.arena, sizes, outputs, self.new_state())


class AnyState(ToyGraph):
    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int], outputs: Sequence[Array], state: Any) -> None:
        super().run(inputs, sizes, outputs, state if isinstance(state, State) and state.plan is self.plan else self.new_state())


class FirstSizesForEver(ToyGraph):
    seen: Mapping[str, int] | None = None

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int], outputs: Sequence[Array], state: Any) -> None:
        self.seen = self.seen or sizes
        super().run(inputs, self.seen, outputs, state)


class LaunchesWrong(ToyGraph):
    """Its own ops go through `wrong`."""

    def launch(self, step: Any, ins: list[Array], outs: list[Array], params: Mapping[str, Any]) -> None:
        super().launch(step, ins, outs, params)
        self.wrong(step.node.op, outs[0])

    def wrong(self, op: Op, out: Array) -> None: ...


class LastRow(LaunchesWrong):
    """The tail of a product is left out, where there is more than one row."""

    def wrong(self, op: Op, out: Array) -> None:
        if op is Op.MATMUL and out.ndim > 1 and out.shape[-2] > 1:
            out[..., -1, :] = 0


class HalfPrecision(LaunchesWrong):
    def wrong(self, op: Op, out: Array) -> None:
        if op is Op.EXP:
            out[...] = out.astype(np.float16)


class Clamps(ToyGraph):
    """An index out of range becomes the last, in silence."""

    def launch(self, step: Any, ins: list[Array], outs: list[Array], params: Mapping[str, Any]) -> None:
        if step.node.op is Op.GATHER:
            n = ins[0].shape[params["axis"]]
            ins = [ins[0], np.clip(ins[1], -n, n - 1)]
        super().launch(step, ins, outs, params)


class WritesState(ToyGraph):
    """A run that fails has already counted."""

    def launch(self, step: Any, ins: list[Array], outs: list[Array], params: Mapping[str, Any]) -> None:
        try:
            super().launch(step, ins, outs, params)
        except Exception:
            self.undone()
            raise

    def run(self, inputs: Sequence[Array], sizes: Mapping[str, int], outputs: Sequence[Array], state: Any) -> None:
        self.state = state
        super().run(inputs, sizes, outputs, state)

    def undone(self) -> None:
        self.state.memory.view(np.float32)[...] += 1


FAULTS: dict[str, tuple[Callable[[], Backend], str, str]] = {  # who -> the law that catches it, and whom it names
    "deaf to weights": (lambda: Broken(DeafToWeights), "weights", "weights may be replaced"),
    "one state": (lambda: Broken(OneState), "states", "every state is its own"),
    "no commits": (lambda: Broken(NoCommits), "states", "states live from run to run and trade places"),
    "commits one by one": (lambda: Broken(CommitsOneByOne), "states", "states live from run to run and trade places"),
    "shared arena": (lambda: Broken(SharedArena), "threads", "threads may share a graph"),
    "any state": (lambda: Broken(AnyState), "states", "a state of another graph is refused"),
    "the first sizes for ever": (lambda: Broken(FirstSizesForEver), "sizes", "one compile serves every size"),
    "the last row": (lambda: Broken(LastRow), "ops", "matmul"),
    "half precision": (lambda: Broken(HalfPrecision), "ops", "exp"),
    "clamps": (lambda: Broken(Clamps), "errors", "an index out of range is told and the next run is right"),
    "writes the state": (lambda: Broken(WritesState), "states", "a run that raises leaves its state"),
    "fuses what nobody makes": (lambda: Broken(fuses=frozenset({"elemntwise"})), "contract", "its name and its parts"),
    "another name": (Toy, "contract", "its name and its parts"),
    "claims what it cannot": (lambda: Broken(native=supported_ops({Op.SIN: FLOATS})), "ops", "sin"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_backend_with_a_fault_breaks_the_law_made_for_it(fault: str) -> None:
    make, law, subject = FAULTS[fault]
    register_backend(Device("broken"), make)
    told = conform("broken", ["matmul", "exp", "sin", "gather"])
    assert not told.kept
    found = {(f.law, f.subject): f.why for f in told.of("broken")}
    assert (law, subject) in found, found
    assert found[law, subject]
    assert told.findings[-1].subject == "gather", "it went on to the end"


def test_the_guilty_cases_are_named_and_the_others_not() -> None:
    register_backend(Device("broken"), lambda: Broken(LastRow))
    (matmul,) = [f for f in conform("broken", ["matmul"]).findings if f.subject == "matmul"]
    assert "3x4 4x5, inputs as made: 5 of 15 values differ, first at [2, 0]: 0" in matmul.why
    assert matmul.why.count("\n") == 3
    assert "more" in matmul.why
    assert "1x4 6x4x1" not in matmul.why  # one row each


def test_what_is_refused_with_a_reason_is_no_fault() -> None:
    register_backend(Device("bare"), lambda: Toy(replace(Toy().spec, device=Device("bare"), host=None)))
    told = conform("bare", ["add", "sort"])
    verdicts = {f.subject: f for f in told.findings if f.law == "ops"}
    assert (verdicts["add"].verdict, verdicts["sort"].verdict) == ("refused", "refused")
    assert "add takes f32, f64, not" in verdicts["add"].why
    assert "f32" not in verdicts["add"].why.split(":")[1].split()
    assert "it does not claim sort" in verdicts["sort"].why


def test_who_cannot_run_here_or_is_nobody_is_told_so() -> None:
    register_backend(Device("absent"), lambda: Absent())
    with pytest.raises(BackendMissing, match="no card"):
        conform("absent")
    with pytest.raises(InputError, match="'tyo'"):
        conform("tyo")
    with pytest.raises(InputError, match=r"near it: .*add"):
        conform("toy", ["adds"])


@dataclass(frozen=True)
class Absent(Toy):
    spec: BackendSpec = field(default_factory=lambda: replace(Reference().spec, device=Device("absent")))

    def missing(self) -> str | None:
        return "no card"


def test_the_command_prints_tells_and_exits() -> None:
    done = subprocess.run([sys.executable, "-m", "rlxpy", "conform", "reference", "--ops", "add, matmul", "--json"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["kept"] is True
    assert {"law": "ops", "subject": "matmul", "verdict": "kept", "why": ""} in told["findings"]
    done = subprocess.run([sys.executable, "-m", "rlxpy", "conform", "reference", "--ops", "add"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("reference: ")
    assert done.stdout.endswith(" 0 refused, 0 broken\n")
    failed = subprocess.run([sys.executable, "-m", "rlxpy", "conform", "nowhere"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
