"""Why each node runs as it does: for each band of sizes the winner, and what stood against every other row."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.bands import bands, within
from rlxpy.extend.hooks import ask
from rlxpy.extend.kernels import Choice, When, when_text
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Graph


@dataclass(frozen=True)
class Decision:
    """lost: the other rows for the op, in the order they were asked, each with the first constraint that refused it."""

    when: When
    winner: str
    tier: str
    does: str
    lost: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NodeSelection:
    """`inside` names the loop or branch whose graph the node belongs to; "" is the compiled graph itself."""

    node: int
    op: str
    type: str
    where: str
    decisions: tuple[Decision, ...]
    inside: str = ""

    @property
    def lines(self) -> list[str]:
        """Rows that the same thing stood against on one line."""
        lines = []
        for d in self.decisions:
            lines.append(f"  {when_text(d.when) + ': ' if d.when else ''}{d.winner} [{d.tier}]{f', {d.does}' if d.does else ''}")
            against: dict[str, list[str]] = {}
            for name, why in d.lost:
                against.setdefault(why, []).append(name)
            lines += [f"    not {', '.join(names)}: {why}" for why, names in against.items()]
        return lines


@dataclass(frozen=True)
class SelectionReport:
    device: str
    nodes: tuple[NodeSelection, ...]

    def of(self, name: str) -> SelectionReport:
        """Only the nodes of that number (%3) or op, alone or at the heart of a fused node."""
        return SelectionReport(self.device, tuple(n for n in self.nodes if name in (f"%{n.node}", str(n.node), n.op, n.op.removeprefix("fused "))))

    def __str__(self) -> str:
        """Equal decisions once, with how many nodes they are for: a model repeats its layers."""
        groups: dict[tuple[str, str, str, tuple[Decision, ...]], list[NodeSelection]] = {}
        for n in self.nodes:
            groups.setdefault((n.inside, n.op, n.type, n.decisions), []).append(n)
        lines = []
        for some in groups.values():
            n, more = some[0], f" and {len(some) - 1} more like it" if len(some) > 1 else ""
            lines += [f"%{n.node} {n.op} : {n.type}{f' in {n.inside}' if n.inside else ''}{more}{f'  ({n.where})' if n.where else ''}", *n.lines]
        return "\n".join(lines) or "no launches"


def selection(plan: Plan, spec: BackendSpec) -> SelectionReport:
    """Of a plan that was made for the spec."""
    return SelectionReport(spec.device.name, tuple(_nodes(plan, spec, "")))


def _nodes(plan: Plan, spec: BackendSpec, inside: str) -> Iterator[NodeSelection]:
    for s in plan.steps:
        n = s.node
        yield NodeSelection(n.id, n.label, str(n.type), n.where, tuple(_decisions(plan.graph, s, spec)), inside)
        for body in s.frame.bodies if s.frame else ():
            yield from _nodes(body, spec, f"{n.label} %{n.id}" + (f" of {inside}" if inside else ""))


def _decisions(graph: Graph, step: Step, spec: BackendSpec) -> Iterator[Decision]:
    measured = [(when, c) for when, c in step.choice.bands if c.source]
    choice = replace(step.choice, bands=tuple(b for b in step.choice.bands if b not in measured))
    found = bands(spec.kernels, graph, step.node, spec.facts, spec.resolve) if choice.bands else ()
    rest = [(b.when, choice.at({name: lo for name, lo, _ in b.when})) for b in found] or [((), choice)]
    for when, choice in (*measured, *rest):
        here, node = within(graph, step.node, when) if when else (graph, step.node)
        trials = list(spec.kernels.trials(here, node, spec.facts))
        lost = tuple((t.name, t.refusal or f"{choice.name} comes first") for t in trials if t.name != choice.name)
        yield Decision(when, choice.name, choice.tier, _does(graph, step, choice, spec), lost)


def _does(graph: Graph, step: Step, choice: Choice, spec: BackendSpec) -> str:
    row = choice.row
    if row is None:
        return spec.generates.get(step.node.op, "")
    params = ", ".join(f"{k} = {v}" for k, v in choice.params)
    return "; ".join(filter(None, (ask(row.name, "describe", row.describe, graph, step.node) if row.describe else row.doc, params, choice.source)))
