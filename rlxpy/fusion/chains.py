"""Put the fused row of a library in the place of the chain that it replaces."""
from __future__ import annotations

from collections.abc import Sequence
from inspect import signature

from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.chains import chain_of, in_order
from rlxpy.extend.hooks import ask
from rlxpy.extend.kernels import Choice, KernelRow
from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.pattern import Pat, match, var


@dataclass(frozen=True)
class FuseChains(NotingPass):
    """A chain becomes one node of the row's kind if the row takes it there, and if nobody else reads what is made on the way."""

    spec: BackendSpec
    name: str = "fuse-chains"

    @property
    def rows(self) -> tuple[KernelRow, ...]:
        return tuple(r for lib in self.spec.kernels.libraries for r in lib.rows if r.replaces is not None)

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        notes: list[Note] = []
        for row in self.rows:
            graph = self._fused(graph, row, notes)
        return graph, tuple(notes)

    def _fused(self, graph: Graph, row: KernelRow, notes: list[Note]) -> Graph:
        assert row.replaces is not None, "one of `rows`"
        names = tuple(signature(row.replaces).parameters)
        pattern = ask(row.name, "replaces", row.replaces, *map(var, names))
        if not isinstance(pattern, Pat):
            return graph
        taken: set[int] = set()  # nodes of chains found so far

        def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Value | None:
            found = match(pattern, graph.nodes, n.refs[0]) if n.op is pattern.op else None
            if found is None:
                return None
            reads = tuple(found[name] for name in names)
            members = _between(graph, n, frozenset(reads))
            why = self._refusal(graph, row, n, members, reads) if not any(graph[i].op is not Op.CONST for i in taken & members) else "a node of it is in another chain"
            if why:
                notes.append(note(self.name, "near miss", row.kind, n, why))
                return None
            taken.update(members)
            notes.append(note(self.name, "fused", row.kind, n, " ".join(graph[i].label for i in sorted(members))))
            body = chain_of(row.replaces, tuple(graph.type(r) for r in reads))
            made: Value = b.emit(Op.FUSED, *(new[r] for r in reads), kind=row.kind, body=body)
            return made

        return rebuild(graph, replace, self.name)

    def _refusal(self, graph: Graph, row: KernelRow, root: Node, members: frozenset[int], reads: tuple[Ref, ...]) -> str | None:
        """Why these nodes stay as they are."""
        for i in members - {root.id}:
            if graph[i].op is not Op.CONST and (i in graph.escaping or not members.issuperset(graph.users[i])):
                return f"others read %{i} {graph[i].label}"
        b = Builder("body")
        new = {r: b.input(f"in{k}", *graph.type(r)) for k, r in enumerate(reads)}
        for i in sorted(members):
            new |= zip(graph[i].refs, b.copy(graph[i], [new[r] for r in graph[i].inputs]), strict=True)
        body = in_order(b.finish(new[root.refs[0]]))
        trial = Builder("trial")
        trial.emit(Op.FUSED, *(trial.input(f"in{k}", *graph.type(r)) for k, r in enumerate(reads)), kind=row.kind, body=body)
        alone = trial.finish(Value(trial, Ref(len(reads))))
        choice = self.spec.verdict(alone, alone[len(reads)])
        return None if isinstance(choice, Choice) else "; ".join(choice.reasons)


def _between(graph: Graph, root: Node, reads: frozenset[Ref]) -> frozenset[int]:
    """The nodes of a chain, from its root down to what it reads."""
    found, todo = {root.id}, list(root.inputs)
    while todo:
        r = todo.pop()
        if r not in reads and r.node not in found:
            found.add(r.node)
            todo += graph[r].inputs
    return frozenset(found)
