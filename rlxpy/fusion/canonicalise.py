"""One form for equal things: rules to a fixed point, constants folded, equal nodes shared, dead ones dropped."""
from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from rlxpy.errors import RlxError
from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.rules import CANONICAL
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.pattern import RuleSet, match
from rlxpy.ir.place import Loc
from rlxpy.ir.types import TensorType

GENERATED = LEAVES | {Op.IOTA, Op.SIZE}  # cheap to make again, so never folded into memory
MAX_CHAIN = 64  # rules fired on one node before we call the rule set endless


@dataclass(frozen=True)
class Canonicalise(NotingPass):
    """Rules to a fixed point, constants folded, equal nodes shared, dead ones dropped.

    `fold_numel` bounds how many elements a folded constant may have beyond what its operands had."""

    ruleset: RuleSet = CANONICAL
    fold_numel: int = 4096
    name: str = "canonicalise"
    idempotent = True

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        b = Simplifier(graph.name, self)
        new: dict[Ref, Ref] = {}
        for n in graph:
            b.source = n
            try:
                new |= zip(n.refs, b.simplest(b.put(n, tuple([new[r] for r in n.inputs]))), strict=True)
            except RecursionError:
                raise RlxError(f"rules did not settle on {n.label}", where=n.where, why="one makes what it, or another, replaces again", fix="remove the rule that undoes another") from None
        result = b.finish(*(Value(b, new[r]) for r in graph.outputs), names=graph.output_names,
                          updates=[(Value(b, new[s]), Value(b, new[v])) for s, v in graph.updates])
        return (graph if result == graph else result), tuple(b.notes)


class Simplifier(Builder):
    """A builder in which every new node is replaced by the simplest equal value as it is made."""

    def __init__(self, name: str, options: Canonicalise) -> None:
        super().__init__(name)
        self.options, self.notes = options, list[Note]()
        self.source: Node | None = None
        self._simple: dict[int, tuple[Ref, ...]] = {}  # by node: what stands for its outputs

    def _add(self, op: Op, inputs: tuple[Ref, ...], types: tuple[TensorType, ...], attrs: Attrs,
             loc: Loc | None = None, made_by: tuple[str, ...] = ()) -> int:
        if loc is None and self.source is not None:  # a rule made it: it stands where the node it replaces stood
            loc, made_by = self.source.loc, self.source.through(self.options.name)
        return super()._add(op, inputs, types, attrs, loc, made_by)

    def emit(self, op: str | Op, /, *xs: Value, **attrs: Any) -> Any:
        made = super().emit(op, *xs, **attrs)
        simple = tuple(Value(self, r) for r in self.simplest((made[0] if isinstance(made, tuple) else made).ref.node))
        return simple[0] if len(simple) == 1 else simple

    def simplest(self, at: int) -> tuple[Ref, ...]:
        """What stands for the outputs of a node."""
        if at not in self._simple:
            self._simple[at] = self.nodes[at].refs  # what a rule finds that makes this very node again
            self._simple[at] = self._simplify(self._simple[at])
        return self._simple[at]

    def _simplify(self, refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        for _ in range(MAX_CHAIN):
            node = self.nodes[refs[0].node]
            if node.op in GENERATED:
                return refs
            better = self._ordered(node) or self._folded(node) or self._ruled(node)
            if better is None:
                return refs
            refs = better
        raise RlxError(f"rules did not settle on {node.label}", where=node.where, why=f"{MAX_CHAIN} fired on one node", fix="remove the rule that undoes another")

    def _ordered(self, node: Node) -> tuple[Ref, ...] | None:
        """Constants go to the right of an op that commutes."""
        if len(node.inputs) == 2 and self._is_const(node.inputs[0]) and not self._is_const(node.inputs[1]) and node.row.commutes:
            return (Ref(self._add(node.op, node.inputs[::-1], node.types, node.attrs, node.loc, node.made_by)),)
        return None

    def _folded(self, node: Node) -> tuple[Ref, ...] | None:
        if not node.inputs or not all(self._is_const(r) for r in node.inputs):
            return None
        room = self.options.fold_numel + sum(prod(self.nodes[r.node].attrs.value.shape) for r in node.inputs)  # type: ignore[attr-defined, misc]
        if not all(_numel(t) <= room for t in node.types) or not callable(node.row.ref):
            return None
        try:
            with np.errstate(all="ignore"):
                got = node.row.ref(*(self.nodes[r.node].attrs.value.array for r in node.inputs), **node.attrs.params())  # type: ignore[attr-defined]
        except RlxError:  # an index out of range, say: it must be the run that raises
            return None
        arrays = got if isinstance(got, tuple) else (got,)
        self._note("folded", node, f"{len(node.inputs)} constants into {', '.join(map(str, node.types))}")
        return tuple(self.const(np.asarray(a), t.dtype).ref for a, t in zip(arrays, node.types, strict=True))

    def _ruled(self, node: Node) -> tuple[Ref, ...] | None:
        rules = self.options.ruleset.by_op.get(node.op, ())
        operands = {self.nodes[r.node].op for r in node.inputs} if rules else set[Op]()
        for rule in rules:
            found = match(rule.pattern, self.nodes, Ref(node.id)) if rule.pattern.operand_ops <= operands else None
            if found is None:
                continue
            value = rule.build(*(Value(self, found[w]) for w in rule.wants))
            if value is not None and value.type == node.type and value.ref.node != node.id:
                self._note("rewritten", node, f"to {value.node.label}")
                return (value.ref,)
        return None

    def _note(self, kind: str, node: Node, text: str) -> None:
        self.notes.append(note(self.options.name, kind, node.label, node, text))

    def _is_const(self, r: Ref) -> bool:
        return self.nodes[r.node].op is Op.CONST


def _numel(t: TensorType) -> float:
    return prod(d for d in t.shape if isinstance(d, int)) if all(isinstance(d, int) for d in t.shape) else float("inf")


