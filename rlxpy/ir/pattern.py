"""Patterns are written with the same ops that build graphs: `(Op.NEG(Op.NEG(x)), lambda x: x)`."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir.expr import Expr
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Pat(Expr):
    """`op` None matches any value.  `given` are parameters that must be equal; `free` ones are not looked at."""

    op: Op | None = None
    inputs: tuple[Pat, ...] = ()
    name: str | None = None
    given: tuple[tuple[str, Any], ...] = ()
    value: float | None = None   # a constant filled with exactly this value (bit for bit: 0.0 is not -0.0)
    test: Callable[[Node], bool] | None = None

    def apply(self, op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Pat:
        lift = tuple(x if isinstance(x, Pat) else Pat(Op.CONST, value=float(x)) for x in inputs)
        return Pat(Op[op.upper()], lift, given=tuple(attrs.items()))

    @cached_property
    def ops(self) -> frozenset[Op]:
        """Every op the pattern needs somewhere."""
        return frozenset({self.op} if self.op else ()).union(*(p.ops for p in self.inputs))

    def named(self, name: str) -> Pat:
        return replace(self, name=name)

    def where(self, test: Callable[[Node], bool]) -> Pat:
        """Only nodes that pass `test`."""
        return replace(self, test=test)


def var(name: str) -> Pat:
    return Pat(name=name)


Found = dict[str, Ref]


def match(pat: Pat, nodes: Sequence[Node], ref: Ref, found: Found | None = None) -> Found | None:
    """What each name of `pat` is bound to at `ref`, or None.  A name used twice must bind one value."""
    found = {} if found is None else found
    node = nodes[ref.node]
    if pat.op is not None:
        if node.op is not pat.op or ref.out or (pat.value is None and len(node.inputs) != len(pat.inputs)):
            return None
        if any(getattr(node.attrs, k, None) != v for k, v in pat.given):
            return None
        if pat.value is not None and not _filled_with(node, pat.value):
            return None
        for p, r in zip(pat.inputs, node.inputs, strict=True):
            if match(p, nodes, r, found) is None:
                return None
    if pat.test is not None and not pat.test(node):
        return None
    if pat.name is not None and found.setdefault(pat.name, ref) != ref:
        return None
    return found


def _filled_with(node: Node, value: float) -> bool:
    got = node.attrs.value.filled_with()  # type: ignore[attr-defined]
    return isinstance(got, (int, float)) and not isinstance(got, bool) and got == value and str(float(got)) == str(value)


@dataclass(frozen=True)
class Rule:
    """`build` is called with the Values its parameter names were bound to; None declines.  It may not change a type."""

    pattern: Pat
    build: Callable[..., Any]
    doc: str = ""

    @cached_property
    def wants(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.build).parameters)


@dataclass(frozen=True)
class RuleSet:
    rules: tuple[Rule, ...]

    def __add__(self, more: RuleSet) -> RuleSet:
        return RuleSet(self.rules + more.rules)

    @cached_property
    def by_op(self) -> Mapping[Op, tuple[Rule, ...]]:
        table: dict[Op, tuple[Rule, ...]] = {}
        for r in self.rules:
            if r.pattern.op is None:
                raise BuildError("a rule's pattern must start with an op", why=f"{r.pattern} matches every value")
            table[r.pattern.op] = (*table.get(r.pattern.op, ()), r)
        return table


def rules(*pairs: tuple[Any, Callable[..., Any]]) -> RuleSet:
    return RuleSet(tuple(Rule(p, f) for p, f in pairs))
