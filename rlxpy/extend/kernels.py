"""Kernel rows: how one op runs, as data that can say no, and the search path that chooses among them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlxpy.errors import InputError, RegistryError, nearest
from rlxpy.ir.attrs import Packed
from rlxpy.ir.dims import Dim, SymDim, divides, lower, upper
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

HostLaunch = Callable[[Sequence[Array], Sequence[Array], Mapping[str, Any]], None]  # (inputs, outputs to fill, attrs)
Launch = Callable[..., Any] | str  # a host function, an emitter of source, or the path of a template: what the serving backend takes


@dataclass(frozen=True)
class Constraint:
    """One condition on a call site: `Constraint("w.shape[-1]", "DIV", 128)`.

    Keys are operand facts ("x.dtype", "x.rank", "x.shape[0]", "x.shape[axis]" of an op with an axis), "attrs.name" and
    "device.name".  A symbolic size must satisfy the test at every value in its range; REACHES asks for one value, at least as great as its own."""

    key: str
    test: str
    value: Any

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        """Why these facts are not served; None when they are."""
        if self.key not in facts:
            return f"{self.key} {self.test} {self.value}: {self.key} is unknown"
        got = facts[self.key]
        return None if TESTS[self.test](got, self.value) else f"{self.key} {self.test} {self.value}: {self.key} = {got}"


def _sized(test: Callable[[Dim, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda got, want: isinstance(got, (int, SymDim)) and test(got, want)


TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": lambda got, want: bool(got == want),
    "IN": lambda got, want: got in want,
    "HAS": lambda got, want: want in got,
    "WITHIN": lambda got, want: set(got) <= set(want),
    "LE": _sized(lambda got, want: upper(got) <= want),
    "GE": _sized(lambda got, want: lower(got) >= want),
    "REACHES": _sized(lambda got, want: upper(got) >= want),
    "DIV": _sized(lambda got, want: divides(want, got)),
}


@dataclass(frozen=True)
class Tunable:
    """One axis of a kernel's settings: the legal values, and the one used until something better is measured."""

    name: str
    values: tuple[int, ...]
    default: int


@dataclass(frozen=True)
class KernelRow:
    """One way to run one op.  `kind` names an extension op or a kind of fused node; `launch` is what the backend
    that serves the row takes: a host function, an emitter of source text, or a template.  `domain` says where operands live."""

    name: str
    op: Op
    launch: Launch
    args: tuple[str, ...] = ()
    kind: str = ""
    constraints: tuple[Constraint, ...] = ()
    domain: str = "host"
    priority: int = 0
    tunables: tuple[Tunable, ...] = ()
    scratch_nbytes: Callable[[Graph, Node], int] | None = None
    doc: str = ""
    source: str = ""  # paper, repository or author the algorithm comes from

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        """The first constraint that refuses."""
        return next((r for c in self.constraints if (r := c.refusal(facts))), None)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Two rows of one library that agree here could never be told apart."""
        return self.op, self.kind, self.domain, self.constraints, self.priority


@dataclass(frozen=True)
class KernelLibrary:
    """Rows in order of declaration.  `reference` libraries come last and serve only when asked for, or when nothing else does."""

    name: str
    rows: tuple[KernelRow, ...]
    reference: bool = False
    by_op: Mapping[tuple[Op, str], tuple[KernelRow, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen: dict[tuple[Any, ...], KernelRow] = {}
        table: dict[tuple[Op, str], list[KernelRow]] = {}
        for r in self.rows:
            if (other := seen.setdefault(r.identity, r)) is not r:
                raise RegistryError(f"library {self.name!r}: rows {other.name!r} and {r.name!r} cannot be told apart",
                                    why=f"both serve {r.op.text} {r.kind} with the same constraints and priority {r.priority}", fix="give one a constraint or a priority")
            table.setdefault((r.op, r.kind), []).append(r)
        ordered = {k: tuple(sorted(rows, key=lambda r: -r.priority)) for k, rows in table.items()}  # sorted is stable: ties keep declaration order
        object.__setattr__(self, "by_op", ordered)


@dataclass(frozen=True)
class Choice:
    """How a node will run.  tier: "kernel" (a row), "native" (the backend's own generator) or "host" (staged through NumPy)."""

    row: KernelRow | None
    library: str = ""
    tier: str = "kernel"
    lost: tuple[tuple[str, str], ...] = ()  # (row, the first constraint that refused it, or what it lost to)

    @property
    def name(self) -> str:
        return f"{self.library}/{self.row.name}" if self.row else self.tier


@dataclass(frozen=True)
class Refusal:
    reasons: tuple[str, ...]


def facts_of(graph: Graph, node: Node, args: tuple[str, ...], device: Mapping[str, Any]) -> dict[str, Any]:
    """What constraints may ask about: operands by the row's names (and as in0, in1..), the first output as out, attrs, device.

    Of a fused node also "body.ops", "body.dtypes", "body.encodings", and its members' result types and attrs, as in "matmul.dtype", "qmatmul.encoding"."""
    facts: dict[str, Any] = {f"device.{k}": v for k, v in device.items()}
    facts |= {f"attrs.{k}": v for k, v in node.attrs.params().items()}
    names = [(f"in{i}", graph.type(r)) for i, r in enumerate(node.inputs)] + [(n, graph.type(r)) for n, r in zip(args, node.inputs, strict=False)]
    for _, body in node.attrs.graphs():
        facts["body.ops"] = tuple(n.op.text for n in body)
        facts["body.dtypes"] = tuple(sorted({t.dtype.text for n in body for t in n.types}))
        facts["body.encodings"] = tuple(sorted({n.attrs.encoding for n in body if isinstance(n.attrs, Packed)}))
        facts |= {f"{n.op.text}.dtype": n.type.dtype.text for n in body}
        facts |= {f"{n.op.text}.{k}": v for n in body for k, v in n.attrs.params().items()}
    for name, t in [*names, ("out", node.type)]:
        facts |= {f"{name}.dtype": t.dtype.text, f"{name}.rank": t.rank}
        for i, d in enumerate(t.shape):
            facts[f"{name}.shape[{i}]"] = facts[f"{name}.shape[{i - t.rank}]"] = d
        if isinstance(axis := facts.get("attrs.axis"), int) and -t.rank <= axis < t.rank:
            facts[f"{name}.shape[axis]"] = t.shape[axis]
    return facts


@dataclass(frozen=True)
class KernelSearchPath:
    """Libraries in order of preference: the first with a row that accepts a node supplies it; priority acts inside one library only."""

    libraries: tuple[KernelLibrary, ...]

    def resolve(self, graph: Graph, node: Node, device: Mapping[str, Any]) -> Choice | Refusal:
        """Pure: the same answer for the same data."""
        key = (node.op, node.kind)
        lost: list[tuple[str, str]] = []
        for library in self.libraries:
            for row in library.by_op.get(key, ()):
                why = row.refusal(facts_of(graph, node, row.args, device)) if row.constraints else None
                if why is None:
                    return Choice(row, library.name, lost=tuple(lost))
                lost.append((f"{library.name}/{row.name}", why))
        return Refusal(tuple(f"{name} refuses: {why}" for name, why in lost) or (f"no kernel row serves {node.label}",))

    def prefer(self, names: tuple[str, ...]) -> KernelSearchPath:
        """The same libraries, the named ones first and alone.  Raises InputError for a name that is none of them."""
        known = {lib.name: lib for lib in self.libraries}
        for n in names:
            if n not in known:
                raise InputError(f"no kernel library {n!r}", why=f"there are {', '.join(known)}", fix=f"near it: {nearest(n, list(known))}")
        return KernelSearchPath(tuple(known[n] for n in names)) if names else self
