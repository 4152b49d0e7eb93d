"""Patterns are written with the same ops that build graphs: `(Op.NEG(Op.NEG(x)), lambda x: x)`."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from rlxpy.errors import BuildError
from rlxpy.frozen import dataclass
from rlxpy.ir.expr import Expr
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Pat(Expr):
    """`op` None matches any value, or what one of `choices` matches.  `given` are parameters that must be equal; others are not looked at.

    The operands of an op that commutes match in either order."""

    op: Op | None = None
    inputs: tuple[Pat, ...] = ()
    name: str | None = None
    given: tuple[tuple[str, Any], ...] = ()
    value: float | None = None   # a constant filled with exactly this value (bit for bit: 0.0 is not -0.0)
    test: Callable[[Node], bool] | None = None
    choices: tuple[Pat, ...] = ()

    def apply(self, op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Pat:
        lift = tuple(x if isinstance(x, Pat) else Pat(Op.CONST, value=x if isinstance(x, bool) else float(x)) for x in inputs)
        return Pat(Op[op.upper()], lift, given=tuple(attrs.items()))

    @cached_property
    def ops(self) -> frozenset[Op]:
        """Every op the pattern needs somewhere."""
        always = frozenset.intersection(*(p.ops for p in self.choices)) if self.choices else frozenset()
        return always.union({self.op} if self.op else (), *(p.ops for p in self.inputs))

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything that a match may bind."""
        return frozenset({self.name} if self.name else ()).union(*(p.names for p in (*self.inputs, *self.choices)))

    @cached_property
    def operand_ops(self) -> frozenset[Op]:
        """Ops that must be among a node's operands: asked first, since it tells most nodes apart."""
        return frozenset(p.op for p in self.inputs if p.op is not None)

    def named(self, name: str) -> Pat:
        return replace(self, name=name)

    def where(self, test: Callable[[Node], bool]) -> Pat:
        """Only nodes that pass `test`."""
        return replace(self, test=test)


def var(name: str) -> Pat:
    return Pat(name=name)


def either(*choices: Pat) -> Pat:
    """One meaning in several spellings; the first that matches is taken."""
    return Pat(choices=choices)


Found = dict[str, Ref]


def match(pat: Pat, nodes: Sequence[Node], ref: Ref, found: Found | None = None) -> Found | None:
    """What each name of `pat` is bound to at `ref` besides those already `found`, or None.  A name used twice must bind one value."""
    found = {} if found is None else found
    node = nodes[ref.node]
    if pat.choices:
        chosen = next((m for p in pat.choices if (m := match(p, nodes, ref, found)) is not None), None)
        if chosen is None:
            return None
        found = chosen
    if pat.op is not None:
        if node.op is not pat.op or ref.out or (pat.value is None and len(node.inputs) != len(pat.inputs)):
            return None
        if any(getattr(node.attrs, k, None) != v for k, v in pat.given):
            return None
        if pat.value is not None and not _filled_with(node, pat.value):
            return None
        operands = _match_inputs(pat, nodes, node.inputs, found)
        if operands is None and len(node.inputs) == 2 and node.row.commutes:
            operands = _match_inputs(pat, nodes, node.inputs[::-1], found)
        if operands is None:
            return None
        found = operands
    if pat.test is not None and not pat.test(node):
        return None
    if pat.name is None:
        return found
    return {**found, pat.name: ref} if found.get(pat.name, ref) == ref else None


def _match_inputs(pat: Pat, nodes: Sequence[Node], refs: Sequence[Ref], found: Found) -> Found | None:
    for p, r in zip(pat.inputs, refs, strict=True):  # most fail here, before anything is followed
        if p.op is not None and nodes[r.node].op is not p.op:
            return None
    for p, r in zip(pat.inputs, refs, strict=True):
        got = match(p, nodes, r, found)
        if got is None:
            return None
        found = got
    return found


def _filled_with(node: Node, value: float) -> bool:
    got = node.attrs.value.filled_with()  # type: ignore[attr-defined]
    if isinstance(value, bool) or isinstance(got, bool):
        return got is value
    return isinstance(got, (int, float)) and got == value and str(float(got)) == str(value)


@dataclass(frozen=True)
class Rule:
    """`build` is called with the Values its parameter names were bound to; None declines, and so does a Value of another type."""

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
            assert r.pattern.op is not None, "rules() has seen to it"
            table[r.pattern.op] = (*table.get(r.pattern.op, ()), r)
        return table


def rules(*pairs: tuple[Any, Callable[..., Any]]) -> RuleSet:
    """Raises BuildError for what is no pattern with a function of its names."""
    return RuleSet(tuple(_rule(pair) for pair in pairs))


def _rule(pair: Any) -> Rule:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], Pat) or pair[0].op is None or not callable(pair[1]):
        raise BuildError(f"{pair!r:.100} is no rule", why="a pattern that starts with an op, and a function of its names, are wanted in a tuple", fix="as in (Op.NEG(Op.NEG(x)), lambda x: x)")
    made = Rule(*pair)
    if unknown := [w for w in made.wants if w not in made.pattern.names]:
        raise BuildError(f"a rule's function asks for {', '.join(unknown)}", why=f"its pattern names {', '.join(sorted(made.pattern.names)) or 'nothing'}",
                         fix="parameters are the names of the pattern: var('x'), .named('y')")
    return made
