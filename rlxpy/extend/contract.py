"""What the code of one resolved row depends on, frozen: the call, the row and its parameters, the machine.  Models and measurements are no part of it."""
from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rlxpy.extend.backend import BackendSpec, KernelLaunch
from rlxpy.extend.documents import ANY, COUNT, FLAG, TEXT, Many, Named, Shape, optional
from rlxpy.extend.kernels import Choice
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.builder import Builder
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.text import show


@dataclass(frozen=True)
class KernelContract:
    """row: library/row.  code: digest of the file that writes or is its launch.  call: op, parameters, types and encodings, as the text of a graph.
    walks: offset and strides of every operand, then of every result.  params: derived parameters, and a point of the tunables.
    device, facts: the machine, its numerics with it.  scratch_nbytes: at the largest sizes.
    launches: of a GPU, in order.  capture: whether they are recorded once and replayed."""

    row: str
    code: str
    call: str
    walks: tuple[str, ...]
    params: tuple[tuple[str, Any], ...]
    device: str
    facts: tuple[tuple[str, str], ...]
    align_nbytes: int
    scratch_nbytes: int
    launches: tuple[KernelLaunch, ...] = ()
    capture: bool = False

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        launches = [{**asdict(k), "grid": list(k.grid)} for k in self.launches]
        return {**data, "walks": list(self.walks), "params": dict(self.params), "facts": dict(self.facts), "launches": launches}

    @property
    def id(self) -> str:
        """Equal for equal contracts, in every process."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), default=str)
        return f"rk_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


LAUNCH: Shape = {"grid": Many(TEXT), "threads": COUNT, "fixed_lds_nbytes": optional(COUNT), "dynamic_lds_nbytes": TEXT}
DOCUMENT: Shape = {"row": TEXT, "code": TEXT, "call": TEXT, "walks": Many(TEXT), "params": Named(ANY), "device": TEXT, "facts": Named(TEXT), "align_nbytes": COUNT,
                   "scratch_nbytes": COUNT, "launches": Many(LAUNCH), "capture": FLAG}  # of a contract in a file


def contract_of(plan: Plan, step: Step, spec: BackendSpec, choice: Choice | None = None) -> KernelContract:
    """Of a step that a row runs: by itself, or by `choice`, the row of one band."""
    choice, node = choice or step.choice, step.node
    assert choice.row is not None, "a step of the backend's own generator has no row"
    layouts = [plan.places[r].layout for r in (*node.inputs, *node.refs)]
    scratch = plan.buffers[step.scratch].nbytes if step.scratch >= 0 else 0
    launched = spec.launched(plan, replace(step, choice=replace(choice, bands=())))
    return KernelContract(choice.name, code_of(choice.row.launch), show(call_graph(plan.graph, node)), tuple(f"{w.offset}+{list(map(str, w.strides))}" for w in layouts),
                          tuple(sorted(choice.params)), spec.device.name, _facts(spec.facts), spec.align_nbytes, scratch, launched.kernels, launched.captured)


def _facts(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, str(v)) for k, v in facts.items()))


def call_graph(graph: Graph, node: Node) -> Graph:
    """The node alone: weights are params, literals stay, everything else it reads is an input; all named for their positions."""
    b, new = Builder("call"), dict[Any, Any]()
    for k, r in enumerate(node.inputs):
        if r not in new:
            leaf = graph[r]
            name, t = f"in{k}", graph.type(r)
            new[r] = b.copy(leaf, ())[0] if leaf.op is Op.CONST else (b.param if leaf.op is Op.PARAM else b.input)(name, *t)
    assert node.op not in LEAVES, "a leaf is launched by nobody"
    return b.finish(*b.copy(node, [new[r] for r in node.inputs]))


def code_of(launch: Any) -> str:
    """A digest that another text of the kernel does not have: of the file its function is written in, or of a template's path."""
    while isinstance(launch, partial):
        launch = launch.func
    try:
        return _digest_of(str(inspect.getsourcefile(launch)))
    except (TypeError, OSError):  # no Python function, or one whose text is nowhere
        return hashlib.sha256(str(getattr(launch, "__qualname__", launch)).encode()).hexdigest()[:16]


@cache
def _digest_of(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
