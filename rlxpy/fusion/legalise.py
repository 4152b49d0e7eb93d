"""Make every node one the backend takes: keep it, lower it, or give it to the host tier; or say all the reasons why not."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlxpy.errors import LegaliseError
from rlxpy.extend.backend import BackendSpec, nothing, remembering
from rlxpy.extend.kernels import Refusal
from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.types import TensorType

MAX_ROUNDS = 64  # lowerings of lowerings


@dataclass(frozen=True)
class LowerExtensions(NotingPass):
    """Extension ops without a kernel here become plain ops, before fusion, so that they truly fuse."""

    spec: BackendSpec
    name: str = "lower-extensions"

    @property
    def inside(self) -> LowerExtensions:
        """What it does to the graphs of loops and branches: those call no kernel outside the generated code where a lowering does."""
        return replace(self, spec=_inside(self.spec))

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        return _lower(graph, lambda n: n.op is Op.CUSTOM, self.spec, self.name)


@dataclass(frozen=True)
class Legalise(NotingPass):
    """Lowering repeats until nothing is refused: every step is to simpler ops."""

    spec: BackendSpec
    name: str = "legalise"
    idempotent = True

    @property
    def inside(self) -> Legalise:
        return replace(self, spec=_inside(self.spec))

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        return _lower(graph, lambda n: True, self.spec, self.name)


def _inside(spec: BackendSpec) -> BackendSpec:
    return spec if spec.inlines else replace(spec, extensions=nothing)


def _lower(graph: Graph, concerned: Callable[[Node], bool], spec: BackendSpec, name: str) -> tuple[Graph, tuple[Note, ...]]:
    spec, notes = remembering(spec), list[Note]()
    for _ in range(MAX_ROUNDS):
        refused = {n.id: v for n in graph if n.op not in LEAVES and concerned(n) and isinstance(v := spec.verdict(graph, n), Refusal)}
        if unwilling := [(graph[i], why, forced) for i, why in refused.items() if (forced := spec.kernels.forced_for(graph[i]))]:
            raise _unwilling(unwilling)
        staged = {i: why for i, why in refused.items() if not callable(graph[i].row.lower)}
        missing = [(graph[i], why) for i, why in staged.items() if spec.host_choice(graph, graph[i]) is None]
        if missing:
            raise _missing(spec, missing)
        if len(staged) == len(refused):  # what is left runs on the host tier
            notes += [note(name, "host", graph[i].label, graph[i], "; ".join(why.reasons)) for i, why in staged.items()]
            return graph, tuple(notes)
        last = [graph[i] for i in refused]
        graph = _lower_once(graph, refused, name, notes)
    names = ", ".join(sorted({n.label for n in last}))
    raise LegaliseError(f"lowering for {spec.device} never ends", where=last[0].where, why=f"after {MAX_ROUNDS} rounds it still meets {names}",
                        fix="lower an op to simpler ones, never to itself")


def _lower_once(graph: Graph, refused: dict[int, Refusal], name: str, notes: list[Note]) -> Graph:
    def lowered(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Any:
        if n.id not in refused or not callable(n.row.lower):
            return None
        notes.append(note(name, "lowered", n.label, n, "; ".join(refused[n.id].reasons)))
        return _lowered(n, xs)

    return rebuild(graph, lowered, name)


def _lowered(node: Node, xs: Sequence[Value]) -> Any:
    """A lowering that fails, or gives another type than the op promised, is caught where it happens."""
    try:
        made = node.row.lower(*xs, **node.attrs.params())  # type: ignore[operator, misc]
        types: tuple[TensorType, ...] = tuple(v.type for v in (made if isinstance(made, tuple) else (made,)))
    except Exception as e:  # whatever an extension's code raises
        raise LegaliseError(f"lower of {node.label} failed", where=node.where, why=f"{type(e).__name__}: {e}", fix="`lower` takes Values and gives Values") from e
    if types != node.types:
        raise LegaliseError(f"lower of {node.label} gives {', '.join(map(str, types))}", where=node.where,
                            why=f"its row promises {', '.join(map(str, node.types))}", fix="make `lower` and the shape and dtype rules agree")
    return made


def _unwilling(nodes: list[tuple[Node, Refusal, tuple[str, ...]]]) -> LegaliseError:
    """Nodes that a row was asked to run which cannot, all at once."""
    lines = [f"{n.label} : {n.type} at {n.where}: {'; '.join(why.reasons)}" for n, why, _ in nodes]
    n, _, forced = nodes[0]
    return LegaliseError(f"{', '.join(forced)} is asked for and cannot run {n.label}", where=n.where, why="\n    ".join(lines), fix="ask for another row (`rlx why` lists them), or for none")


def _missing(spec: BackendSpec, missing: list[tuple[Node, Refusal]]) -> LegaliseError:
    """All of them at once, so that one look tells what a backend lacks."""
    lines = [f"{n.label} : {n.type} at {n.where}: {'; '.join(why.reasons)}" for n, why in missing]
    own = sorted({n.label for n, _ in missing if n.op is Op.CUSTOM})
    return LegaliseError(f"{spec.device} cannot run {len(missing)} node{'s' * (len(missing) > 1)}", where=missing[0][0].where, why="\n    ".join(lines),
                         fix="add a kernel row or a `lower` cell for the op, or allow the host tier" + (f"; register_cpu_kernel gives {', '.join(own)} a kernel" if own else ""))
