"""What an op's operands and parameters are called where kernel rows speak of them, and who may say so."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from rlxpy.errors import SchemaConflict
from rlxpy.extend.constraints import facts_of
from rlxpy.frozen import dataclass
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Param:
    """`of` is the fact that the name stands for, as "x.shape[-1]"; without one the parameter is derived: nobody supplies it, and the row that
    wins says its value by an EQ constraint."""

    name: str
    of: str = ""

    @property
    def derived(self) -> bool:
        return not self.of


@dataclass(frozen=True)
class OpSchema:
    """Operands by position, and names for the sizes that decide which kernel is good: `Constraint("K", "DIV", 128)`."""

    op: Op
    operands: tuple[str, ...] = ()
    params: tuple[Param, ...] = ()
    kind: str = ""
    doc: str = ""

    @property
    def derived(self) -> frozenset[str]:
        return frozenset(p.name for p in self.params if p.derived)


def _sizes(**of: str) -> tuple[Param, ...]:
    return tuple(Param(name, fact) for name, fact in of.items())


BUILT_IN: Mapping[tuple[Op, str], OpSchema] = {(s.op, s.kind): s for s in (
    OpSchema(Op.MATMUL, ("x", "w"), _sizes(M="x.shape[-2]", K="x.shape[-1]", N="w.shape[-1]"), doc="[.., M, K] @ [.., K, N]"),
    OpSchema(Op.QMATMUL, ("x", "w"), _sizes(M="x.shape[-2]", K="x.shape[-1]", N="out.shape[-1]"), doc="packed weights [N, K]"),
    OpSchema(Op.ATTENTION, ("q", "k", "v", "mask"), _sizes(B="q.shape[0]", H="q.shape[1]", T="q.shape[2]", E="q.shape[3]", HK="k.shape[1]", S="k.shape[2]"),
             doc="[B, H, T, E] over keys [B, HK, S, E]"),
    OpSchema(Op.CONV, ("x", "w"), _sizes(C="x.shape[1]", O="out.shape[1]"), doc="[B, C, ..] to [B, O, ..]"),
    *(OpSchema(op, ("x",), _sizes(N="x.shape[axis]")) for op in (Op.SOFTMAX, Op.LOG_SOFTMAX)),
    OpSchema(Op.LAYER_NORM, ("x", "scale", "bias"), _sizes(N="x.shape[-1]")),
    OpSchema(Op.RMS_NORM, ("x", "scale"), _sizes(N="x.shape[-1]")),
    OpSchema(Op.GATHER, ("x", "index")),
)}


def schema_of(op: Op, kind: str) -> OpSchema | None:
    """The schema that rlxpy itself declares."""
    return BUILT_IN.get((op, kind))


def settle(declared: Iterable[tuple[str, OpSchema]]) -> dict[tuple[Op, str], OpSchema]:
    """One schema for each op: rlxpy's own, else the first declared, by (library, schema).  Raises SchemaConflict when a later one differs."""
    owners = {key: ("rlxpy", s) for key, s in BUILT_IN.items()}
    for library, schema in declared:
        first, known = owners.setdefault((schema.op, schema.kind), (library, schema))
        if differences := _differences(known, schema):
            raise SchemaConflict(f"two schemas of {schema.kind or schema.op.text}: of {first!r} and of {library!r}", why="; ".join(differences),
                                 fix=f"use the names of {first!r}, which comes first, or leave one library out")
    return {key: s for key, (_, s) in owners.items()}


def _differences(a: OpSchema, b: OpSchema) -> list[str]:
    pairs = ((f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(OpSchema) if f.name != "doc")
    return [f"{name} {_text(x)} and {_text(y)}" for name, x, y in pairs if x != y]


def _text(value: Any) -> str:
    items = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{p.name} = {p.of or 'derived'}" if isinstance(p, Param) else str(p) for p in items) or "none"


class CallSite:
    """One node as rows ask about it: those that call its operands the same share its facts."""

    def __init__(self, graph: Graph, node: Node, schema: OpSchema | None, device: Mapping[str, Any]) -> None:
        self._graph, self._node, self._schema, self._device = graph, node, schema, device
        self._known: dict[tuple[str, ...], Mapping[str, Any]] = {}

    def facts(self, args: tuple[str, ...]) -> Mapping[str, Any]:
        """What constraints may ask about, the sizes that the schema names among it.  args: what a row calls the operands, () as the schema does."""
        if args not in self._known:
            facts = facts_of(self._graph, self._node, args or (self._schema.operands if self._schema else ()), self._device)
            self._known[args] = facts | {p.name: facts[p.of] for p in (self._schema.params if self._schema else ()) if p.of in facts}
        return self._known[args]
