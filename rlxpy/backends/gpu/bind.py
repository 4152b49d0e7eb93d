"""A program at one set of sizes: launches with nothing left to decide, scans unrolled, and what waits for the host."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

from rlxpy.backends.gpu.api import Arguments, Held
from rlxpy.backends.gpu.blaslt import Prepared, Problem
from rlxpy.backends.gpu.gemm import WORKSPACE_NBYTES
from rlxpy.backends.gpu.kernel import Kernel, Room
from rlxpy.backends.gpu.launch import grid_of
from rlxpy.backends.gpu.places import Placed, Scope
from rlxpy.backends.gpu.program import Commit, Copy, HostStep, Launch, LibraryCall, Loop, Part, Program, RawLaunch
from rlxpy.backends.gpu.replay import Kept, Line, mentioned
from rlxpy.backends.memory import Spot, locate
from rlxpy.extend.kernels import HostLaunch
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Sizes, at
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.text import show_node
from rlxpy.notes import note_once

UNROLLED = 1 << 12  # launches of a scan, at most, that are kept to be replayed; those of a longer one are made anew in every run


@dataclass(frozen=True)
class Call:
    """A launch with nothing left to decide.  owner: the step of the whole plan whose time it takes; step, scope: whose results it makes."""

    name: str
    function: Any
    grid: tuple[int, int, int]
    threads: int
    shared_nbytes: int
    arguments: Arguments
    owner: Step | None = None
    step: Step | None = None
    scope: Scope | None = None


@dataclass(frozen=True)
class Product:
    """A call of the vendor's library with nothing left to decide."""

    name: str
    prepared: Prepared
    owner: Step
    step: Step
    scope: Scope


@dataclass
class Segment:
    """Launches that follow one another; `graph` is what replays them, once they ran a first time.  line: in its place, of launches that other sizes
    have too."""

    calls: tuple[Call | Product, ...]
    ran: bool = False
    graph: Held | None = None
    line: Line | None = None

    @cached_property
    def launches(self) -> tuple[Call, ...]:
        """All, where none is the library's; else none."""
        own = tuple(c for c in self.calls if isinstance(c, Call))
        return own if len(own) == len(self.calls) else ()


@dataclass(frozen=True)
class Host:
    """A step of the host tier: where its operands and results lie."""

    step: Step
    launch: HostLaunch
    ins: tuple[Placed, ...]
    outs: tuple[Placed, ...]
    attrs: dict[str, Any]


@dataclass(frozen=True)
class Branch:
    """A cond: its predicate's address, and what follows when it is true or false."""

    owner: Step
    flag: int
    ways: tuple[Items, Items]


@dataclass(frozen=True)
class Round:
    """Of a while: what makes the condition, its address, what follows while it is true, and what ends it."""

    asks: Items
    flag: int
    does: Items
    ends: Items


@dataclass(frozen=True)
class Repeat:
    """A while.  Rounds take turns: carries trade places between their slots."""

    owner: Step
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class Long:
    """A scan of more launches than are kept: its rounds are made while it runs.  fallible: whether one may note a bad index."""

    rounds: Callable[[], Iterator[Sequence[Item]]]
    fallible: bool


Item = Call | Product | Host | Branch | Repeat | Long
Items = tuple[Segment | Host | Branch | Repeat | Long, ...]


@dataclass(frozen=True)
class Bound:
    """A plan at one set of sizes, with one state.  nodes: by the number that a kernel gives with a bad index."""

    inputs: tuple[Placed, ...]
    outputs: tuple[Placed, ...]
    items: Items
    commits: Segment
    restores: tuple[Call, ...]
    nodes: Mapping[int, tuple[Graph, Node]]


@dataclass(frozen=True)
class Rooms:
    """Addresses of memory beside the plan's, and of the constants of loops by their plan and buffer."""

    notes: int
    undo: int
    staging: int
    literals: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Code:
    """What is launched: compiled functions by name, those of raw kernels by their source and symbol, and the host tier's."""

    functions: Mapping[str, Any]
    raw: Mapping[tuple[str, str], Any]
    hosted: Mapping[int, HostLaunch]
    prepare: Callable[[Problem, int, int], Prepared | str]  # the vendor's library, as GpuApi has it


def bound(program: Program, code: Code, rooms: Rooms, plan: Plan, base: Mapping[int, int], sizes: Sizes, kept: Kept[Call] | None = None) -> Bound:
    """base: where each buffer of the plan begins.  kept: of earlier bindings of these; without, each launch is made anew and knows the values of these sizes."""
    b = _Binder(code, rooms, sizes, kept)
    scope = Scope(plan, base, b.spot)
    commits = tuple(c for k in program.commits for c in b.back(k, scope))
    return Bound(tuple(scope.placed(n.refs[0]) for n in plan.graph.inputs), tuple(map(scope.placed, plan.graph.outputs)),
                 gathered(chain(b.items(program.parts, scope), (c for k in program.commits for c in b.aside(k, scope)))), Segment(commits),
                 tuple(c for p in program.restores for c in b.launched(p, scope)), b.nodes)


def gathered(items: Iterable[Item]) -> Items:
    """Launches that follow one another together."""
    made: list[Any] = []
    calls: list[Call | Product] = []
    for item in items:
        if isinstance(item, (Call, Product)):
            calls.append(item)
            continue
        made += [*([Segment(tuple(calls))] if calls else []), item]
        calls = []
    return (*made, Segment(tuple(calls))) if calls else tuple(made)


class _Binder:
    def __init__(self, code: Code, rooms: Rooms, sizes: Sizes, kept: Kept[Call] | None) -> None:
        self.code, self.rooms, self.sizes, self._kept = code, rooms, sizes, kept
        self.nodes: dict[int, tuple[Graph, Node]] = {}  # in the order of their launches: of several bad indices the first has the least number
        self._number = 0
        self._spots: dict[tuple[int, Ref], Spot] = {}
        self._shapes: dict[int, tuple[tuple[int, int, int], int, tuple[int, ...]]] = {}  # of kernels: grid, shared bytes, sizes

    def spot(self, plan: Plan, ref: Ref) -> Spot:
        """A value's place does not change from round to round, but for where its buffer begins."""
        key = id(plan), ref
        if key not in self._spots:
            self._spots[key] = locate(plan, ref, self.sizes)
        return self._spots[key]

    # ---- launches
    def items(self, parts: Sequence[Part], scope: Scope) -> Iterator[Item]:
        for p in parts:
            if not p.step.applies(self.sizes):
                continue
            if isinstance(p, Loop):
                yield from self.loop(p, scope)
            elif isinstance(p, HostStep):
                n = p.step.node
                yield Host(p.step, self.code.hosted[id(p)], tuple(map(scope.placed, n.inputs)), tuple(map(scope.placed, n.refs)), n.attrs.bind(self.sizes).params())
            elif isinstance(p, LibraryCall):
                yield from self.library(p, scope)
            else:
                yield from self.raw(p, scope) if isinstance(p, RawLaunch) else self.launched(p, scope)

    def call(self, function: str, k: Kernel, values: Sequence[int], owner: Step | None = None, step: Step | None = None, scope: Scope | None = None) -> Iterator[Call]:
        """Nothing to launch where the grid is empty."""
        if id(k) not in self._shapes:
            grid = grid_of(function, tuple(at(d, self.sizes) for d in k.blocks), k.threads)
            self._shapes[id(k)] = grid, at(k.shared_nbytes, self.sizes), tuple(self.sizes[s] for s in sorted(k.sizes))
        grid, shared, numbers = self._shapes[id(k)]
        if prod(grid):
            yield Call(function, self.code.functions[function], grid, k.threads, shared, Arguments.words((*values, *numbers)), owner, step, scope)

    def kept(self, of: Hashable, k: Kernel, refs: Sequence[Ref], scope: Scope, make: Callable[[], Iterable[Call]], number: int = 0) -> Iterable[Call]:
        """Rounds of a loop are bound anew: they differ in where their memory begins."""
        if self._kept is None or scope.owner:
            return make()
        return self._kept.calls(of, lambda: mentioned(k, [scope.plan.places[r].layout.offset for r in refs]), number, self.sizes, make)

    def launched(self, p: Launch, scope: Scope) -> Iterable[Call]:
        told = Room.NODE in p.kernel.call
        if told:
            self._number += 1
            self.nodes[self._number] = scope.plan.graph, p.step.node
        refs = [a for a in p.kernel.call if not isinstance(a, Room)]
        return self.kept(id(p), p.kernel, refs, scope, lambda: self.generated(p, scope), self._number if told else 0)

    def generated(self, p: Launch, scope: Scope) -> Iterator[Call]:
        rooms = {Room.FAULT: self.rooms.notes, Room.NOTE: self.rooms.notes + p.note, Room.UNDO: self.rooms.undo + p.undo, Room.NODE: self._number, Room.SCRATCH: scope.scratch(p.step)}
        return self.call(p.function, p.kernel, [rooms[a] if isinstance(a, Room) else scope.at(a) for a in p.kernel.call], scope.owner or p.step, p.step, scope)

    def library(self, p: LibraryCall, scope: Scope) -> Iterator[Call | Product]:
        """Kernels of our own, and a note, where the library has nothing for these sizes."""
        asked = p.gemm.problems(self.sizes, scope.at)
        answers = [asked] if isinstance(asked, str) else [self.code.prepare(a, scope.scratch(p.step), WORKSPACE_NBYTES) for a in asked]
        if why := next((a for a in answers if isinstance(a, str)), ""):
            note_once(f"{p.step.choice.name} leaves {show_node(p.step.node)} to kernels of our own: {why}")
            for launch in p.own:
                yield from self.launched(launch, scope)
            return
        yield from (Product(a.name, a, scope.owner or p.step, p.step, scope) for a in answers if isinstance(a, Prepared))

    def raw(self, p: RawLaunch, scope: Scope) -> Iterator[Call]:
        """Its arena begins at the operand that lies lowest: offsets from there are never negative."""
        owner = scope.owner or p.step
        staged = {s.ref: self.rooms.staging + s.offset for s in p.staged}
        for s in p.staged:
            yield from self.call(s.function, s.kernel, (scope.at(s.ref), staged[s.ref]), owner, p.step, scope)
        refs = (*p.step.node.inputs, *p.step.node.refs)
        where = {name: staged.get(r) or scope.at(r) for (name, _), r in zip(p.launch.operands, refs, strict=True)}
        if p.step.scratch >= 0:
            where["scratch"] = scope.scratch(p.step)
        arena = min(where.values())
        shape, data = p.launch(arena, {name: a - arena for name, a in where.items()}, self.sizes)
        if prod(grid_of(p.launch.kernel.name, shape.grid, shape.block)):
            words = Arguments.of(data, [a.offset for a in p.launch.args])
            yield Call(p.launch.kernel.name, self.code.raw[p.launch.code], shape.grid, shape.block, shape.shared_nbytes, words, owner, p.step, scope)

    def aside(self, c: Commit, scope: Scope) -> Iterable[Call]:
        """All new values are aside before the first state changes: one may be what another was."""
        return self.kept((id(c), "aside"), c.kernel, [c.new], scope, lambda: self.call(c.function, c.kernel, (scope.at(c.new), self.rooms.staging + c.offset)))

    def back(self, c: Commit, scope: Scope) -> Iterable[Call]:
        return self.kept((id(c), "back"), c.back_kernel, [c.old], scope, lambda: self.call(c.back, c.back_kernel, (self.rooms.staging + c.offset, scope.at(c.old))))

    # ---- loops
    def loop(self, p: Loop, scope: Scope) -> Iterator[Item]:
        return {Op.SCAN: self._scan, Op.WHILE: self._while, Op.COND: self._cond}[p.step.node.op](_Frame(p, scope), p, scope)

    def _copies(self, f: _Frame, copies: Iterable[Copy], ends: Iterable[tuple[int, int]]) -> Iterator[Call]:
        for c, addresses in zip(copies, ends, strict=True):
            yield from self.call(c.function, c.kernel, addresses, f.owner)

    def _scan(self, f: _Frame, p: Loop, scope: Scope) -> Iterator[Item]:
        a: Any = p.step.node.attrs
        length = at(a.length, self.sizes)
        order = range(length)[::-1] if a.reverse else range(length)

        def rounds(number: int | None = None) -> Iterator[Sequence[Item]]:
            slots = f.slots
            for i in order:
                self._number = self._number if number is None else number
                inner = self._body(f, 0, slots, i)
                results = inner.plan.graph.outputs[a.carries:]
                yield [*self.items(p.bodies[0], inner), *self._moved(f, p, inner, slots),
                       *self._copies(f, p.gives[0], ((inner.at(r), f.slice(a.carries + k, i)) for k, r in enumerate(results)))]
                slots = f.swapped(slots)

        yield from self._entered(f, p, scope)
        made, first = rounds(), self._number
        one = next(made, [])
        if len(one) * length <= UNROLLED:
            yield from chain(one, chain.from_iterable(made))
        else:
            yield Long(lambda: rounds(first), self._number > first)
        yield from self._left(f, p, scope, f.slots if length % 2 == 0 else f.swapped(f.slots))

    def _while(self, f: _Frame, p: Loop, scope: Scope) -> Iterator[Item]:
        yield from self._entered(f, p, scope)
        rounds = []
        for slots in (f.slots, f.swapped(f.slots)) if p.moves else (f.slots,):
            asking, doing = self._body(f, 0, slots), self._body(f, 1, slots)
            rounds.append(Round(gathered(self.items(p.bodies[0], asking)), asking.at(asking.plan.graph.outputs[0]),
                                gathered(chain(self.items(p.bodies[1], doing), self._moved(f, p, doing, slots))), gathered(self._left(f, p, scope, slots))))
        yield Repeat(f.owner, tuple(rounds))

    def _cond(self, f: _Frame, p: Loop, scope: Scope) -> Iterator[Item]:
        ways = []
        for k, (parts, gives) in enumerate(zip(p.bodies, p.gives, strict=True)):
            inner = self._body(f, k, ())
            ends = zip(map(inner.at, inner.plan.graph.outputs), map(scope.at, p.step.node.refs), strict=True)
            ways.append(gathered(chain(self.items(parts, inner), self._copies(f, gives, ends))))
        yield Branch(f.owner, scope.at(p.step.node.inputs[0]), (ways[0], ways[1]))

    def _body(self, f: _Frame, which: int, slots: Slots, i: int = 0) -> Scope:
        return Scope(f.frame.bodies[which], f.base(which, slots, i, self.rooms.literals), self.spot, f.owner)

    def _entered(self, f: _Frame, p: Loop, scope: Scope) -> Iterator[Call]:
        return self._copies(f, p.enters, zip(map(scope.at, p.step.node.inputs), (now for now, _ in f.slots), strict=False))

    def _left(self, f: _Frame, p: Loop, scope: Scope, slots: Slots) -> Iterator[Call]:
        return self._copies(f, p.leaves, zip((now for now, _ in slots), map(scope.at, p.step.node.refs), strict=False))

    def _moved(self, f: _Frame, p: Loop, inner: Scope, slots: Slots) -> Iterator[Call]:
        return self._copies(f, p.moves.values(), ((inner.at(inner.plan.graph.outputs[k]), slots[k][1]) for k in p.moves))


Slots = tuple[tuple[int, int], ...]  # of each carry: where its value is, and where the next one goes


class _Frame:
    """A loop's memory in a scope."""

    def __init__(self, p: Loop, scope: Scope) -> None:
        assert p.step.frame is not None, "the plan made room for it"
        self.p, self.scope, self.frame, self.node = p, scope, p.step.frame, p.step.node
        self.owner = scope.owner or p.step
        self._start = scope.scratch(p.step)
        self.slots: Slots = tuple((self._start + now, self._start + after) for now, after in self.frame.slots)

    def swapped(self, slots: Slots) -> Slots:
        """After a round: carries that the body changed where they lie stay there."""
        return tuple((after, now) if k in self.p.moves else (now, after) for k, (now, after) in enumerate(slots))

    def slice(self, k: int, i: int) -> int:
        """Address of a scan's slice of its result k."""
        return self.scope.at(self.node.refs[k]) + i * self._step(self.node.refs[k])

    def _step(self, ref: Ref) -> int:
        return self.scope.spot(self.scope.plan, ref).strides[0]

    def base(self, which: int, slots: Slots, i: int, literals: Mapping[tuple[int, int], int]) -> dict[int, int]:
        """Where the buffers of one of its graphs begin, in round i of a scan."""
        body, first = self.frame.bodies[which], int(self.node.op is Op.COND)  # a cond's graphs do not see its predicate
        found = {k: self._start + self.frame.arenas[which] + b.offset for k, b in enumerate(body.buffers) if b.space is Space.ARENA}
        mapped = len(slots) + (self.node.attrs.mapped if self.node.op is Op.SCAN else 0)  # type: ignore[attr-defined]
        for k, (leaf, ref) in enumerate(zip(body.graph.inputs, self.node.inputs[first:], strict=True)):
            inside = self.scope.spot(body, leaf.refs[0])
            whole = self.scope.spot(self.scope.plan, ref)
            found[inside.buffer] = (slots[k][0] if k < len(slots) else self.scope.at(ref) + i * whole.strides[0] - inside.offset if k < mapped else self.scope.base[whole.buffer])
        return found | {k: literals[id(body), k] for k, b in enumerate(body.buffers) if b.space is Space.CONST}
