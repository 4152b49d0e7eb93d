"""Conditions on a call site, and the facts about it that they are asked of."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlxpy.errors import RegistryError, nearest
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Packed
from rlxpy.ir.dims import Dim, SymDim, divides, lower, upper
from rlxpy.ir.graph import Graph, Node


@dataclass(frozen=True)
class Constraint:
    """One condition on a call site: `Constraint("w.shape[-1]", "DIV", 128)`.

    Keys are operand facts ("x.dtype", "x.rank", "x.shape[0]", "x.shape[axis]" of an op with an axis), "attrs.name",
    "device.name", and the names that the op's schema gives to some of them ("K").
    A symbolic size must satisfy the test at every value in its range, or in a part of it (extend/bands.py); REACHES asks for one value, at
    least as great as its own."""

    key: str
    test: str
    value: Any

    def __post_init__(self) -> None:
        if self.test not in TESTS:
            raise RegistryError(f"constraint {self.key} {self.test} {self.value!r}: no test {self.test!r}", why=f"there are {', '.join(TESTS)}", fix=f"near it: {nearest(self.test, list(TESTS))}")
        wanted, fits = WANTS.get(self.test, ("anything", lambda v: True))
        if not fits(self.value):
            raise RegistryError(f"constraint {self.key} {self.test} {self.value!r}", why=f"{self.test} compares with {wanted}, not {type(self.value).__name__}",
                                fix=f"Constraint({self.key!r}, 'EQ', {self.value!r}) asks for equality")

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        """Why these facts are not served; None when they are."""
        if self.key not in facts:
            return f"{self.key} {self.test} {self.value}: {self.key} is unknown"
        got = facts[self.key]
        return None if TESTS[self.test](got, self.value) else f"{self.key} {self.test} {self.value}: {self.key} = {got}"


def _sized(test: Callable[[Dim, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda got, want: isinstance(got, (int, SymDim)) and test(got, want)


TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": lambda got, want: bool(got == want) or (isinstance(got, SymDim) and lower(got) == upper(got) == want),
    "IN": lambda got, want: got in want,
    "HAS": lambda got, want: want in got,
    "WITHIN": lambda got, want: set(got) <= set(want),
    "LE": _sized(lambda got, want: upper(got) <= want),
    "GE": _sized(lambda got, want: lower(got) >= want),
    "REACHES": _sized(lambda got, want: upper(got) >= want),
    "DIV": _sized(lambda got, want: divides(want, got)),
}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


WANTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("LE", "GE", "REACHES"), ("a whole number", _whole)),
    "DIV": ("a whole number above 0", lambda v: _whole(v) and v > 0),
    **dict.fromkeys(("IN", "WITHIN"), ("a collection", lambda v: not isinstance(v, str) and hasattr(v, "__contains__") and hasattr(v, "__iter__"))),
}
EDGED = ("LE", "GE", "EQ")  # tests whose answer changes at a size, so that a range is cut there


def facts_of(graph: Graph, node: Node, args: tuple[str, ...], device: Mapping[str, Any]) -> dict[str, Any]:
    """What constraints may ask about: operands by the row's names (and as in0, in1..), the first output as out, attrs, device.

    Of sizes among attrs each one, too: "attrs.shape[-1]".
    Of a fused node also "body.ops", "body.dtypes", "body.encodings", and its members' result types and attrs, as in "matmul.dtype", "qmatmul.encoding"."""
    facts: dict[str, Any] = {f"device.{k}": v for k, v in device.items()}
    facts |= _params("attrs", node)
    names = [(f"in{i}", graph.type(r)) for i, r in enumerate(node.inputs)] + [(n, graph.type(r)) for n, r in zip(args, node.inputs, strict=False)]
    for _, body in node.attrs.graphs():
        facts["body.ops"] = tuple(n.op.text for n in body)
        facts["body.dtypes"] = tuple(sorted({t.dtype.text for n in body for t in n.types}))
        facts["body.encodings"] = tuple(sorted({n.attrs.encoding for n in body if isinstance(n.attrs, Packed)}))
        facts |= {f"{n.op.text}.dtype": n.type.dtype.text for n in body}
        for n in body:
            facts |= _params(n.op.text, n)
    for name, t in [*names, ("out", node.type)]:
        facts |= {f"{name}.dtype": t.dtype.text, f"{name}.rank": t.rank}
        for i, d in enumerate(t.shape):
            facts[f"{name}.shape[{i}]"] = facts[f"{name}.shape[{i - t.rank}]"] = d
        if isinstance(axis := facts.get("attrs.axis"), int) and -t.rank <= axis < t.rank:
            facts[f"{name}.shape[axis]"] = t.shape[axis]
    return facts


def _params(name: str, node: Node) -> dict[str, Any]:
    """Attrs by their names, and what tuples of them have at each place."""
    found = {f"{name}.{k}": v for k, v in node.attrs.params().items()}
    return found | {f"{k}[{i}]": v for k, vs in found.items() if isinstance(vs, tuple) for n, v in enumerate(vs) for i in (n, n - len(vs))}
