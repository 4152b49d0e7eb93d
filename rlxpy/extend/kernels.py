"""Kernel rows: how one op runs, as data that can say no, and the search path that chooses among them."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from itertools import product, takewhile
from typing import Any

from rlxpy.errors import AmbiguousRank, InputError, RegistryError, nearest
from rlxpy.extend.constraints import Constraint as Constraint
from rlxpy.extend.hooks import ask
from rlxpy.extend.row_checks import check_library, check_row
from rlxpy.extend.schema import CallSite, OpSchema, schema_of, settle
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.ir.types import TensorType

HostLaunch = Callable[[Sequence[Array], Sequence[Array], Mapping[str, Any]], None]  # (inputs, outputs to fill, attrs)
Launch = Callable[..., Any] | str  # a host function, an emitter of source, or the path of a template: what the serving backend takes


@dataclass(frozen=True)
class Tunable:
    """One axis of a kernel's settings: the legal values, and the one used until something better is measured."""

    name: str
    values: tuple[int, ...]
    default: int


class LayoutAnswer(Enum):
    """What a row says of a weight: it lays it out anew (OK), reads it as it is stored, cannot, or never interprets the bytes (ANY)."""

    OK = "laid out anew"
    AS_STORED = "read as stored"
    WRONG_ENCODING = "not an encoding it knows"
    WRONG_SHAPE = "not a shape it can lay out"
    ANY = "bytes that nobody interprets"

    @property
    def refuses(self) -> bool:
        return self in (LayoutAnswer.WRONG_ENCODING, LayoutAnswer.WRONG_SHAPE)


@dataclass(frozen=True)
class WeightLayout:
    """A row's own order of a weight's bytes: made once, when weights are loaded, and again by set_param.

    relayout and unrelayout take and give arrays of the operand's shape and type; each undoes the other, bit for bit, which is
    checked at load: a kernel may move bytes, never change them.  layout(type) takes part in the selection."""

    operand: str
    relayout: Callable[[Array], Array]
    unrelayout: Callable[[Array], Array]
    layout: Callable[[TensorType], LayoutAnswer] = lambda t: LayoutAnswer.OK


@dataclass(frozen=True)
class KernelRow:
    """One way to run one op.  `kind` names an extension op or a kind of fused node; `launch` is what the backend
    that serves the row takes: a host function, an emitter of source text, or a template.

    args        names of the operands in constraints; without them those of the op's schema, and in0, in1.. in any case
    domain      who launches it: "host" is a NumPy function, which every backend can stage; else the name of a device
    weights     the row's own orders of weights
    init, fini  init(graph, node) is called once for each executable and step; launch finds what it gave in attrs["state"], and
                fini gets it when the executable is gone.  Rows of the host domain only
    replaces    of a fused row, the one chain of plain ops that it computes, as a function of Values: served is a node whose body is this
                chain and no other, and the results must be the chain's byte for byte
    tune_valid  whether a point of the tunables can be launched at all; the point chosen is in attrs
    describe    describe(graph, node) says in a report what the row will do there
    opd_shapes  calls that the row is made for, each by the shapes of its operands: where it refuses everyday ones, tools run it on these"""

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
    weights: tuple[WeightLayout, ...] = ()
    init: Callable[[Graph, Node], Any] | None = None
    fini: Callable[[Any], None] | None = None
    replaces: Callable[..., Any] | None = None
    tune_valid: Callable[[Mapping[str, int]], bool] | None = None
    describe: Callable[[Graph, Node], str] | None = None
    opd_shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def refusal(self, facts: Mapping[str, Any], derived: frozenset[str] = frozenset()) -> str | None:
        """The first constraint that refuses; those on derived parameters set a value and refuse nothing."""
        return next((r for c in self.constraints if c.key not in derived and (r := c.refusal(facts))), None)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Two rows of one library that agree here could never be told apart."""
        return self.op, self.kind, self.domain, self.constraints, self.priority, self.replaces

    @property
    def label(self) -> str:
        return self.kind if self.op is Op.CUSTOM else f"fused {self.kind}" if self.op is Op.FUSED else self.op.text


ABI_VERSION = 1  # of KernelRow and KernelLibrary: raised when a field changes its meaning


@dataclass(frozen=True, eq=False)
class KernelLibrary:
    """Rows in order of declaration.  `reference` libraries come last and serve only when asked for, or when nothing else does.

    needs  constraints on device facts alone: a machine that refuses one does without the library, and reports say why
    ops    schemas of extension ops, or names of parameters; the first library that declares an op's schema fixes it
    foreign  its rows call code that is not the backend's own, as a vendor's: "builtin" leaves it out"""

    name: str
    rows: tuple[KernelRow, ...]
    reference: bool = False
    needs: tuple[Constraint, ...] = ()
    ops: tuple[OpSchema, ...] = ()
    abi: int = ABI_VERSION
    foreign: bool = False
    by_op: Mapping[tuple[Op, str], tuple[KernelRow, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_library(self, KernelRow)
        seen: dict[tuple[Any, ...], KernelRow] = {}
        table: dict[tuple[Op, str], list[KernelRow]] = {}
        for r in self.rows:
            check_row(self, r)
            if (other := seen.setdefault(r.identity, r)) is not r:
                raise RegistryError(f"library {self.name!r}: rows {other.name!r} and {r.name!r} cannot be told apart",
                                    why=f"both serve {r.op.text} {r.kind} with the same constraints and priority {r.priority}", fix="give one a constraint or a priority")
            table.setdefault((r.op, r.kind), []).append(r)
        ordered = {k: tuple(sorted(rows, key=lambda r: -r.priority)) for k, rows in table.items()}  # sorted is stable: ties keep declaration order
        object.__setattr__(self, "by_op", ordered)

    def declines(self, device: Mapping[str, Any]) -> str | None:
        """Why the library has nothing for a machine."""
        facts = {f"device.{k}": v for k, v in device.items()}
        return next((r for c in self.needs if (r := c.refusal(facts))), None)


When = tuple[tuple[str, int, int], ...]  # of some symbols, the sizes least..most


def holds(when: When, sizes: Sizes) -> bool:
    return all(lo <= sizes[name] <= hi for name, lo, hi in when)


def when_text(when: When) -> str:
    return ", ".join(f"{name} = {lo}" if lo == hi else f"{name} in {lo}..{hi}" for name, lo, hi in when) or "every size"


@dataclass(frozen=True)
class Choice:
    """How a node will run.  tier: "kernel" (a row), "native" (the backend's own generator) or "host" (staged through NumPy).

    params  what the winner's constraints say of derived parameters, and its point of the tunables: in attrs at the launch
    bands   sizes for which another row is better; the first that holds them counts
    source  where its point of the tunables comes from, "" for the defaults"""

    row: KernelRow | None
    library: str = ""
    tier: str = "kernel"
    lost: tuple[tuple[str, str], ...] = ()  # (row, the first constraint that refused it, or what it lost to)
    params: tuple[tuple[str, Any], ...] = ()
    bands: tuple[tuple[When, Choice], ...] = ()
    source: str = ""

    @property
    def name(self) -> str:
        return f"{self.library}/{self.row.name}" if self.row else self.tier

    def at(self, sizes: Sizes) -> Choice:
        """The choice for a run of these sizes."""
        return next((c for when, c in self.bands if holds(when, sizes)), self)

    @property
    def every(self) -> tuple[Choice, ...]:
        """All that may be launched."""
        return (*(c for _, c in self.bands), self) if self.bands else (self,)


@dataclass(frozen=True)
class Refusal:
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """One row's answer to one node: `refusal` is the first thing that stood against it, None when nothing did."""

    library: str
    row: KernelRow
    refusal: str | None
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.library}/{self.row.name}"


@dataclass(frozen=True)
class KernelSearchPath:
    """Libraries in order of preference: the first with a row that accepts a node supplies it; priority acts inside one library only.

    domains: rows of other domains are refused; empty serves all.  forced: rows, as library/row, that alone may run their op.  Raises SchemaConflict when two libraries disagree about an op."""

    libraries: tuple[KernelLibrary, ...]
    domains: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_schemas", settle([(lib.name, s) for lib in self.libraries for s in lib.ops]))

    def schema(self, op: Op, kind: str) -> OpSchema | None:
        schemas: Mapping[tuple[Op, str], OpSchema] = self._schemas  # type: ignore[attr-defined]
        return schemas.get((op, kind)) or schema_of(op, kind)

    def trials(self, graph: Graph, node: Node, device: Mapping[str, Any]) -> Iterator[Trial]:
        """Every row's answer, in the order of preference."""
        schema, forced = self.schema(node.op, node.kind), self.forced_for(node)
        site = CallSite(graph, node, schema, device)
        for library in self.libraries:
            rows = library.by_op.get((node.op, node.kind), ())
            declined = library.declines(device) if rows and library.needs else None
            for row in rows:
                passed = f"{', '.join(forced)} is asked for" if forced and f"{library.name}/{row.name}" not in forced else declined
                yield Trial(library.name, row, passed) if passed else self._trial(library, row, schema, graph, node, site)

    def _trial(self, library: KernelLibrary, row: KernelRow, schema: OpSchema | None, graph: Graph, node: Node, site: CallSite) -> Trial:
        derived = schema.derived if schema else frozenset()
        why = f"domain: its launch is for {row.domain}, served are {', '.join(self.domains)}" if self.domains and row.domain not in self.domains else None
        if why is None and row.constraints:
            why = row.refusal(site.facts(row.args), derived)
        why = why or _layout_refusal(row, schema, graph, node) or _chain_refusal(row, graph, node)
        params = {c.key: c.value for c in row.constraints if c.key in derived and c.test == "EQ"} | {t.name: t.default for t in row.tunables}
        return Trial(library.name, row, why, tuple(params.items()))

    def resolve(self, graph: Graph, node: Node, device: Mapping[str, Any]) -> Choice | Refusal:
        """Pure: the same answer for the same data.  Raises AmbiguousRank."""
        lost, trials = list[tuple[str, str]](), self.trials(graph, node, device)
        for t in trials:
            if t.refusal is None:
                _check_rank(t, trials, self.schema(node.op, node.kind), node)
                return Choice(t.row, t.library, lost=tuple(lost), params=t.params)
            lost.append((t.name, t.refusal))
        forced = self.forced_for(node)
        return Refusal(tuple(f"{name} refuses: {why}" for name, why in lost if not forced or name in forced) or (f"no kernel row serves {node.label}",))

    def forced_for(self, node: Node) -> tuple[str, ...]:
        """The rows of which one is to run the node, whatever else could; () where nobody asked for one."""
        if not self.forced:
            return ()
        named = (f"{lib.name}/{r.name}" for lib in self.libraries for r in lib.by_op.get((node.op, node.kind), ()))
        return tuple(dict.fromkeys(n for n in named if n in self.forced))

    def forcing(self, names: tuple[str, ...], known: Sequence[KernelLibrary]) -> KernelSearchPath:
        """With these rows alone for their ops; those of known libraries that are not on the path come last.  Raises InputError for an unknown name."""
        rows = {f"{lib.name}/{r.name}": (lib, r) for lib in known for r in lib.rows}
        for n in names:
            if n not in rows:
                raise InputError(f"no kernel row {n!r}", why=f"there are {len(rows)}, of {', '.join(dict.fromkeys(lib.name for lib in known))}",
                                 fix=f"near it: {nearest(n, list(rows))}; `rlx why` names those of a graph")
        more = (KernelLibrary(lib.name, tuple(r for r in lib.rows if f"{lib.name}/{r.name}" in names), ops=lib.ops, needs=lib.needs)
                for lib in dict.fromkeys(rows[n][0] for n in names) if lib not in self.libraries)
        return replace(self, libraries=(*self.libraries, *more), forced=names)

    def prefer(self, names: tuple[str, ...], groups: Mapping[str, tuple[str, ...]] | None = None) -> KernelSearchPath:
        """The named libraries alone, in that order; all but the reference ones first where none is named.

        groups: names that stand for several libraries.  Raises InputError for a name that is none of them."""
        known, groups = {lib.name: lib for lib in self.libraries}, groups or {}
        if not names:
            return replace(self, libraries=tuple(sorted(self.libraries, key=lambda lib: lib.reference)))
        for n in names:
            if n not in known and n not in groups:
                raise InputError(f"no kernel library {n!r}", why=f"there are {', '.join((*known, *groups))}", fix=f"near it: {nearest(n, [*known, *groups])}")
        wanted = dict.fromkeys(k for n in names for k in groups.get(n, (n,)))
        return replace(self, libraries=tuple(known[n] for n in wanted))


def _exact(row: KernelRow, schema: OpSchema | None) -> bool:
    """Whether a row is for one geometry alone: an EQ for every size that the op's schema names."""
    fixed = {c.key for c in row.constraints if c.test == "EQ"}
    sizes = [p.name for p in schema.params if not p.derived] if schema else []
    return bool(sizes) and fixed.issuperset(sizes)


def _check_rank(won: Trial, later: Iterator[Trial], schema: OpSchema | None, node: Node) -> None:
    """Of rows for one geometry alone, declaration order decides nothing, unless one asks for all that the other asks for and more."""
    if not _exact(won.row, schema):
        return
    for t in takewhile(lambda t: t.library == won.library and t.row.priority == won.row.priority, later):
        a, b = won.row.constraints, t.row.constraints
        if t.refusal is None and _exact(t.row, schema) and not (all(c in b for c in a) or all(c in a for c in b)):
            said = "; ".join(f"{x.name} asks for {', '.join(f'{c.key} {c.test} {c.value}' for c in mine if c not in other)}" for x, mine, other in ((won, a, b), (t, b, a)))
            raise AmbiguousRank(f"{won.name} and {t.name} both are for exactly this {node.label} : {node.type}", where=node.where, why=f"{said}, and both have priority {t.row.priority}",
                                fix="give one a higher priority, or the constraint that tells them apart")


def operand_index(row: KernelRow, schema: OpSchema | None, name: str) -> int:
    """The position of an operand that a row names."""
    names = row.args or (schema.operands if schema else ())
    return names.index(name) if name in names else int(name.removeprefix("in"))


def _layout_refusal(row: KernelRow, schema: OpSchema | None, graph: Graph, node: Node) -> str | None:
    for w in row.weights:
        at = operand_index(row, schema, w.operand)
        if at >= len(node.inputs):
            return f"layout of {w.operand}: the node has {len(node.inputs)} operands"
        t = graph.type(node.inputs[at])
        answer = ask(row.name, "layout", w.layout, t)
        if not isinstance(answer, LayoutAnswer):
            raise RegistryError(f"row {row.name}: its layout of {w.operand} is {answer!r:.60}", why=f"{type(answer).__name__} is no LayoutAnswer", fix="LayoutAnswer.OK, or one that says why not")
        if answer.refuses:
            return f"layout of {w.operand}: {answer.name}, {t} is {answer.value}"
        if answer is LayoutAnswer.OK and graph[node.inputs[at]].op is not Op.PARAM:
            return f"layout of {w.operand}: it is made by {graph[node.inputs[at]].label}, only a param is laid out at load"
    return None


def _chain_refusal(row: KernelRow, graph: Graph, node: Node) -> str | None:
    if row.replaces is None:
        return None
    from rlxpy.extend.chains import chain_of, in_order  # they build graphs, which few rows need

    (_, body), = node.attrs.graphs()
    chain = ask(row.name, "replaces", chain_of, row.replaces, tuple(graph.type(r) for r in node.inputs))
    return None if chain == in_order(body) else f"replaces {_ops(chain)}: the node is {_ops(body)}"


def _ops(body: Graph | None) -> str:
    return "nothing of these types" if body is None else " ".join(n.label for n in body if n.op is not Op.INPUT)


def points(row: KernelRow) -> Iterator[dict[str, int]]:
    """Every launchable point of a row's tunables, the default one first."""
    default = {t.name: t.default for t in row.tunables}
    yield default
    for values in product(*(t.values for t in row.tunables)):
        point = dict(zip(default, values, strict=True))
        if point != default and (row.tune_valid is None or ask(row.name, "tune_valid", row.tune_valid, point)):
            yield point
