"""A graph as steps: loop nests that read memories and fill one, with the elementwise ops around a fold computed where its sum is."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from rlxpy.backends.cpu.unit import unused, word
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.layout import Layout, ViewArgs, row_major
from rlxpy.ir.op import Op
from rlxpy.ir.types import TensorType
from rlxpy.targets.systemverilog import nest as nests
from rlxpy.targets.systemverilog.nest import Nest, Walk
from rlxpy.targets.systemverilog.subset import EXPRESSIONS, FOLDS, LEAVES, VIEWS, converted, elements, lies_whole, literal, neutral, widens

LONGEST_NAME = 48


@dataclass(frozen=True, eq=False)
class Memory:
    """`contents` of a weight or a constant; None where a run writes."""

    name: str
    dtype: DType
    depth: int
    contents: Array | None = None


@dataclass(frozen=True)
class Place:
    """Where a value lies.  What is stored may be narrower than the value: readers extend it."""

    memory: Memory
    layout: Layout


@dataclass(frozen=True)
class Read:
    """An operand: `stored` from a memory, along a walk, as a `dtype`."""

    name: str
    memory: Memory
    walk: Walk
    dtype: DType


@dataclass(frozen=True)
class Assign:
    """A variable of the expression."""

    name: str
    dtype: DType
    text: str
    comment: str


@dataclass(frozen=True)
class Fold:
    dtype: DType
    term: str
    combine: str
    neutral: int


@dataclass(frozen=True)
class Step:
    """constants: names, types and values of numbers in the expression.  result: the variable that is written."""

    words: tuple[str, ...]
    nest: Nest
    reads: tuple[Read, ...]
    fold: Fold | None
    constants: tuple[tuple[str, DType, int], ...]
    assigns: tuple[Assign, ...]
    result: str
    memory: Memory
    where: str


@dataclass(frozen=True)
class Design:
    """inputs and outputs by the graph's order; steps run one after another."""

    memories: tuple[Memory, ...]
    steps: tuple[Step, ...]
    inputs: tuple[Memory, ...]
    outputs: tuple[Memory, ...]

    @property
    def cycles(self) -> int:
        return sum(s.nest.cycles for s in self.steps)


def design(graph: Graph, params: Mapping[str, Array]) -> Design:
    """Of a graph of the subset (see subset.check)."""
    made = _Designer(graph, params, regions(graph))
    for n in graph:
        if n.op is Op.INPUT or made.root.get(n.id) == n.id:
            made.place(n.refs[0])
    outputs = tuple(made.output(r) for r in graph.outputs)
    return Design(tuple(made.memories), tuple(made.steps), tuple(made.places[n.refs[0]].memory for n in graph.inputs), outputs)


def regions(graph: Graph) -> dict[int, int]:
    """For every node that computes, the node whose step it is part of: its only user's where that one is elementwise and of the same shape.

    A step has one fold at most.  A cast that widens for several users, or for a fold or a view, is no step: they read the narrow value."""
    root: dict[int, int] = {}
    folds: set[int] = set()  # roots whose step has one
    for n in reversed(graph.nodes):
        if n.op not in EXPRESSIONS and n.op not in FOLDS:
            continue
        users = graph.users[n.id]
        user = graph[users[0]] if len(users) == 1 and n.id not in graph.escaping else None
        joins = user is not None and user.op in EXPRESSIONS and user.id in root and user.type.shape == n.type.shape
        if not joins and n.op is Op.CAST and widens(graph.type(n.inputs[0]).dtype, n.type.dtype):
            continue
        at = root[user.id] if joins and user is not None else n.id
        if n.op in FOLDS:
            at = n.id if at in folds else at
            folds.add(at)
        root[n.id] = at
    return root


@dataclass
class _Designer:
    graph: Graph
    params: Mapping[str, Array]
    root: Mapping[int, int]
    memories: list[Memory] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    places: dict[Ref, Place] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    given_out: set[str] = field(default_factory=set)  # memories that are an output already

    def place(self, r: Ref) -> Place:
        """Where a value lies, once there is a step that puts it there."""
        if r not in self.places:
            n = self.graph[r]
            self.places[r] = self._leaf(n) if n.op in LEAVES else self._computed(n) if self.root.get(n.id) == n.id else self._seen(n)
        return self.places[r]

    def output(self, r: Ref) -> Memory:
        """A memory that holds one output alone, whole and in order."""
        t, p = self.graph.type(r), self.place(r)
        whole = lies_whole(p.layout.strides, p.layout.offset, t, p.memory.depth)  # type: ignore[arg-type]  # sizes are not symbolic
        is_result = any(s.memory is p.memory for s in self.steps) and p.memory.dtype is t.dtype
        memory = p.memory if whole and is_result and p.memory.name not in self.given_out else self._copy(r, t, p)
        self.given_out.add(memory.name)
        return memory

    def _memory(self, name: str, t: TensorType, contents: Array | None = None) -> Memory:
        self.memories.append(Memory(unused(name[:LONGEST_NAME], self.taken), t.dtype, elements(t), contents))
        return self.memories[-1]

    def _leaf(self, n: Node) -> Place:
        contents = self.params[n.name] if n.op is Op.PARAM else getattr(n.attrs, "value").array if n.op is Op.CONST else None  # noqa: B009
        return Place(self._memory(f"{n.op.text}_{word(n.name)}" if n.name else n.op.text, n.type, contents), row_major(n.type.shape))

    def _seen(self, n: Node) -> Place:
        """A view, or a cast that whoever reads does.  A reshape that no walk can say starts from a copy."""
        source, t = self.place(n.inputs[0]), self.graph.type(n.inputs[0])
        if n.op not in VIEWS:
            return source
        for p in (source, None):
            p = p or Place(self._copy(n.inputs[0], t, source), row_major(t.shape))
            layout = n.row.view(ViewArgs(p.layout, t, n.type, n.attrs.params()))  # type: ignore[misc]  # VIEWS have one
            if layout is not None:
                return Place(p.memory, layout)
        raise AssertionError(f"{n.label} is no view of a whole memory")  # pragma: no cover

    def _copy(self, r: Ref, t: TensorType, p: Place) -> Memory:
        region = _Region(self, nests.elementwise(t), t.rank)
        return self._step(region, ("copy",), region.operand(r, t), t, self.graph[r])

    def _computed(self, n: Node) -> Place:
        """A step for the node and those that are part of it."""
        members = [self.graph[i] for i in sorted(i for i, at in self.root.items() if at == n.id)]
        fold = next((m for m in members if m.op in FOLDS), None)
        region = self._of_fold(fold) if fold else _Region(self, nests.elementwise(n.type), n.type.rank)
        for m in members:
            if m is not fold:
                region.compute(m)
        memory = self._step(region, tuple(m.op.text for m in members), region.names[n.refs[0]], n.type, n)
        return Place(memory, row_major(n.type.shape))

    def _of_fold(self, n: Node) -> _Region:
        places = [self.place(r) for r in n.inputs]
        nest, walks = nests.of_fold(self.graph, n, [p.layout for p in places])
        region = _Region(self, nest, n.type.rank)
        region.folds(n, places, walks)
        return region

    def _step(self, region: _Region, words: tuple[str, ...], result: str, t: TensorType, n: Node) -> Memory:
        memory = self._memory(f"result{len(self.steps)}", t)
        self.steps.append(Step(words, region.nest, tuple(region.reads), region.fold, tuple(region.constants), tuple(region.assigns), result, memory, n.where))
        return memory


@dataclass
class _Region:
    """One step while it grows."""

    designer: _Designer
    nest: Nest
    rank: int
    reads: list[Read] = field(default_factory=list)
    constants: list[tuple[str, DType, int]] = field(default_factory=list)
    assigns: list[Assign] = field(default_factory=list)
    fold: Fold | None = None
    names: dict[Ref, str] = field(default_factory=dict)

    def folds(self, n: Node, places: Sequence[Place], walks: Sequence[Walk]) -> None:
        terms = [self._read(p, walk, n.type.dtype) for p, walk in zip(places, walks, strict=True)]
        self.fold = Fold(n.type.dtype, " * ".join(terms), FOLDS[n.op], neutral(n))
        self.names[n.refs[0]] = "total"

    def compute(self, n: Node) -> None:
        args = [self.operand(r, self.designer.graph.type(r)) for r in n.inputs]
        d = self.designer.graph.type(n.inputs[0]).dtype
        text = "{0} != {zero}" if n.op is Op.CAST and n.type.dtype is DType.BOOL else EXPRESSIONS[n.op]
        name = f"t{len(self.assigns)}"
        self.assigns.append(Assign(name, n.type.dtype, text.format(*args, zero=literal(0, d), one=literal(1, d), cast=converted(args[0], d, n.type.dtype)), n.op.text))
        self.names[n.refs[0]] = name

    def operand(self, r: Ref, t: TensorType) -> str:
        """The variable of a value: one that the step computes, a number, or what it reads."""
        if r not in self.names:
            n = self.designer.graph[r]
            number = getattr(n.attrs, "value").filled_with() if n.op is Op.CONST else None  # noqa: B009
            self.names[r] = self._number(int(number), t.dtype) if number is not None else self._reads(r, t)
        return self.names[r]

    def _reads(self, r: Ref, t: TensorType) -> str:
        p = self.designer.place(r)
        return self._read(p, self.nest.over_result(p.layout, tuple(map(int, t.shape)), self.rank), t.dtype)

    def _number(self, value: int, dtype: DType) -> str:
        self.constants.append((f"C{len(self.constants)}", dtype, value))
        return self.constants[-1][0]

    def _read(self, p: Place, walk: Walk, dtype: DType) -> str:
        for known in self.reads:
            if (known.memory, known.walk, known.dtype) == (p.memory, walk, dtype):
                return known.name
        self.reads.append(Read(f"x{len(self.reads)}", p.memory, walk, dtype))
        return self.reads[-1].name


def ports(steps: tuple[Step, ...], memory: Memory) -> Iterator[tuple[Any, ...]]:
    """For each port that a memory is read through, the steps and operands which do so: a step has as many as it has walks."""
    reading = [(k, [r for r in s.reads if r.memory is memory]) for k, s in enumerate(steps)]
    for port in range(max((len(rs) for _, rs in reading), default=0)):
        yield tuple((k, rs[port]) for k, rs in reading if port < len(rs))
