"""A plan as GPU source: the prelude, each distinct kernel once, and the launches that call them."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Operand, Site
from rlxpy.backends.cpu.unit import function_name, unused
from rlxpy.backends.gpu.gemm import Gemm
from rlxpy.backends.gpu.kernel import FAULT_NBYTES, NOTE_NBYTES, Emitter, Kernel
from rlxpy.backends.gpu.launch import GpuLaunch, largest
from rlxpy.backends.gpu.movement import copied, emit_restore, in_place
from rlxpy.backends.templates import flat
from rlxpy.extend.backend import KernelLaunch
from rlxpy.extend.plan import Plan, Space, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Shape, upper
from rlxpy.ir.graph import Ref
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.ir.text import show_node
from rlxpy.ir.types import TensorType

PRELUDE = "gpu/prelude.h"
ALIGN_NBYTES = 256


@dataclass(frozen=True)
class Launch:
    """One call of a generated kernel: a stage of a step."""

    step: Step
    function: str
    kernel: Kernel
    undo: int = -1  # of a kv_append: where its overwritten rows go, in bytes from the start of the undo memory
    note: int = -1  # and that they did, in bytes from the start of the notes


@dataclass(frozen=True)
class Staged:
    """An operand of a raw kernel that is not row-major where it lies: copied to `offset` of the staging memory first."""

    ref: Ref
    function: str
    kernel: Kernel
    offset: int


@dataclass(frozen=True)
class RawLaunch:
    """One call of a downstream package's kernel, whose source is a module by itself."""

    step: Step
    launch: GpuLaunch
    staged: tuple[Staged, ...]


@dataclass(frozen=True)
class LibraryCall:
    """A product by the vendor's library.  own: launches that do it at sizes for which the library has nothing."""

    step: Step
    gemm: Gemm
    own: tuple[Launch, ...]


@dataclass(frozen=True)
class HostStep:
    """A step of the host tier: operands come from the device and results go back."""

    step: Step


@dataclass(frozen=True)
class Commit:
    """A new value to be kept, by way of the staging memory: states may trade places."""

    new: Ref
    old: Ref
    function: str
    kernel: Kernel
    back: str
    back_kernel: Kernel
    offset: int


@dataclass(frozen=True)
class Result:
    """An output that is not row-major where it lies: copied to `offset` of the staging memory, for readers that know no strides."""

    ref: Ref
    function: str
    kernel: Kernel
    offset: int


@dataclass(frozen=True)
class Copy:
    """A value to where it is wanted, each in a layout of its own."""

    function: str
    kernel: Kernel


@dataclass(frozen=True)
class Loop:
    """A scan, while or cond: what its graphs do, in the order of the op's parameters, and the copies that hand values on.

    enters: of each carry's first value into its slot, and leaves: of the last into the result.
    moves: of a carry's next value into the slot that nobody reads, by its number; a body may change others where they lie.
    gives: of a body's results, for a scan into their slices; for a cond those of either graph into the whole results."""

    step: Step
    bodies: tuple[tuple[Part, ...], ...]
    enters: tuple[Copy, ...]
    leaves: tuple[Copy, ...]
    moves: Mapping[int, Copy]
    gives: tuple[tuple[Copy, ...], ...]


Part = Launch | LibraryCall | RawLaunch | HostStep | Loop


@dataclass(frozen=True)
class Program:
    """`source` is one module; `functions` are its kernels by name; `parts` are what a run does, in order.

    restores: kernels that put overwritten rows back, the last first.  undo_nbytes, staging_nbytes: memory beside the plan's.
    notes_nbytes: what kernels say of a run, zero before it: the first bad index, then a note of each kv_append."""

    source: str
    functions: Mapping[str, str]
    parts: tuple[Part, ...]
    restores: tuple[Launch, ...]
    commits: tuple[Commit, ...]
    results: tuple[Result, ...]
    undo_nbytes: int
    staging_nbytes: int
    notes_nbytes: int
    fallible: bool

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Those of a library's products among them, which may yet be needed."""
        return tuple(launch for p in self.every for launch in ((p,) if isinstance(p, Launch) else p.own if isinstance(p, LibraryCall) else ()))

    @property
    def raw(self) -> tuple[RawLaunch, ...]:
        return tuple(p for p in self.every if isinstance(p, RawLaunch))

    @property
    def every(self) -> Iterator[Part]:
        """Parts of loops too, each behind its own."""
        return _every(self.parts)


def _every(parts: Sequence[Part]) -> Iterator[Part]:
    for p in parts:
        yield p
        for body in p.bodies if isinstance(p, Loop) else ():
            yield from _every(body)


@dataclass
class _Unit:
    """What a module gathers while its steps are written."""

    plan: Plan
    emitter: Callable[[Step], Emitter | None]
    functions: dict[str, str] = field(default_factory=dict)
    shared: dict[str, None] = field(default_factory=dict)
    restores: list[Launch] = field(default_factory=list)
    undo: int = 0
    notes: int = FAULT_NBYTES
    staging: int = 0
    _kernels: dict[tuple[object, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def function(self, k: Kernel, name: str, title: str) -> str:
        self.shared |= dict.fromkeys(k.needs)
        key = (k.params, k.body, k.sizes, k.threads)
        if key not in self._kernels:
            own = self._kernels[key] = unused(name, self._taken)
            given = ", ".join((*k.params, *(f"i64 {ctext.size_name(s)}" for s in sorted(k.sizes))))
            body = "\n".join("  " + line for line in k.body.splitlines())
            self.functions[own] = f"// {ctext.comment(title)}\nextern \"C\" __global__ void __launch_bounds__({k.threads}) {own}({given}) {{\n{body}\n}}\n"
        return self._kernels[key]

    def copy(self, c: str, ref: Ref, *, out: bool = False) -> tuple[str, Kernel]:
        """A value into row-major memory, or back out of it."""
        t, strides = self.plan.graph.type(ref), self.plan.places[ref].layout.strides
        made = self.copies(t, *((row_major(t.shape).strides, strides) if out else (strides, row_major(t.shape).strides)))
        return made.function, made.kernel

    def copies(self, t: TensorType, source: Shape, target: Shape) -> Copy:
        """A value from one walk to another."""
        c = ctext.storage(t.dtype)
        kernel = copied(c, t.shape, source, target)
        return Copy(self.function(kernel, f"copy_{c}", f"copy of {t}"), kernel)

    def parts(self, plan: Plan) -> Iterator[Part]:
        """What a run does with a plan, or a round of a loop with that of its body."""
        for step in (variant for s in plan.steps for variant in s.variants):
            row = step.choice.row
            if step.frame is not None:
                yield loop(self, plan, step)
            elif row is not None and isinstance(row.launch, GpuLaunch):
                yield _raw(self, plan, step, row.launch)
            elif (emit := self.emitter(step)) is None:
                yield HostStep(step)
            else:
                yield from self._generated(plan, step, emit)

    def _generated(self, plan: Plan, step: Step, emit: Emitter) -> Iterator[Launch | LibraryCall]:
        site = site_of(plan, step)
        name, title, made = function_name(step.node), f"{step.choice.name}: {show_node(step.node)}", emit(site)
        if isinstance(made, Gemm):
            title = f"{title}, where the library has nothing"
        launches = tuple(Launch(step, self.function(k, name, title), k, self.undo, self.notes) for k in _stages(made))
        yield from (LibraryCall(step, made, launches),) if isinstance(made, Gemm) else launches
        if step.node.op is not Op.KV_APPEND:
            return
        if plan is self.plan and in_place(site):  # a loop appends to memory of its own
            k = emit_restore(site)
            self.restores.insert(0, Launch(step, self.function(k, f"restore_{name}", f"undoes {title}"), k, self.undo, self.notes))
        rows = plan.graph.type(step.node.inputs[1])
        self.undo += _aligned(upper(rows.numel) * rows.dtype.nbytes)
        self.notes += NOTE_NBYTES


def write(plan: Plan, emitter: Callable[[Step], Emitter | None], *, in_order: bool = False) -> Program:
    """`emitter` gives a step's emitter, None for the host tier.  in_order: whether outputs are to be made row-major."""
    unit = _Unit(plan, emitter)
    parts = tuple(unit.parts(plan))
    results, end = _results(unit) if in_order else ((), 0)
    commits, used = _commits(unit, end)
    fallible = any("rlx_fault(" in f for f in unit.functions.values())
    source = "\n".join([flat(PRELUDE), *unit.shared, *unit.functions.values()])
    return Program(source, unit.functions, parts, tuple(unit.restores), commits, results, unit.undo, max(unit.staging, used), unit.notes, fallible)


def loop(unit: _Unit, plan: Plan, step: Step) -> Loop:
    """Its graphs' parts, and the copies between them."""
    assert step.frame is not None, "the plan made room for it"
    node, frame, carries = step.node, step.frame, len(step.frame.slots)
    bodies = tuple(tuple(unit.parts(body)) for body in frame.bodies)
    whole = [(plan.graph.type(r), plan.places[r].layout.strides) for r in node.refs]

    def into(body: Plan, r: Ref, target: Shape) -> Copy:
        return unit.copies(body.graph.type(r), body.places[r].layout.strides, target)

    def slot(k: int) -> Shape:
        return row_major(whole[k][0].shape).strides

    if node.op is Op.COND:
        return Loop(step, bodies, (), (), {}, tuple(tuple(into(b, r, to) for r, (_, to) in zip(b.graph.outputs, whole, strict=True)) for b in frame.bodies))
    body = frame.bodies[-1]
    outs, own = body.graph.outputs, [n.refs[0] for n in body.graph.inputs]
    slices = tuple(into(body, r, to[1:]) for r, (_, to) in zip(outs[carries:], whole[carries:], strict=True))
    return Loop(step, bodies, tuple(unit.copies(whole[k][0], plan.places[node.inputs[k]].layout.strides, slot(k)) for k in range(carries)),
                tuple(unit.copies(*whole[k][:1], slot(k), whole[k][1]) for k in range(carries)),
                {k: into(body, outs[k], slot(k)) for k in range(carries) if body.places[outs[k]] != body.places[own[k]]}, (slices,))


def _stages(made: Kernel | tuple[Kernel, ...] | Gemm) -> tuple[Kernel, ...]:
    """Without those that have nothing to do, at any size."""
    kernels = made.own if isinstance(made, Gemm) else made if isinstance(made, tuple) else (made,)
    return tuple(k for k in kernels if 0 not in k.blocks)


def shapes_of(plan: Plan, step: Step, emitter: Callable[[Step], Emitter | None]) -> tuple[KernelLaunch, ...]:
    """Of a step's launches by its own choice; a raw kernel's at the largest sizes; none of the host tier, and none of a library, whose own they are."""
    row = step.choice.row
    if row is not None and isinstance(row.launch, GpuLaunch):
        raw = row.launch
        at = raw.geometry(largest(raw.operands, raw.attrs))
        return (KernelLaunch(tuple(map(str, at.grid)), at.block, raw.kernel.contract.own_lds_nbytes, str(at.shared_nbytes)),)
    emit = emitter(step)
    made = emit(site_of(plan, step)) if emit else ()
    stages = () if isinstance(made, Gemm) else _stages(made)
    return tuple(KernelLaunch(tuple(map(str, k.blocks)), k.threads, None, str(k.shared_nbytes)) for k in stages)


def site_of(plan: Plan, step: Step) -> Site:
    def operand(ref: Ref) -> Operand:
        place, t = plan.places[ref], plan.graph.type(ref)
        buffer = plan.buffers[place.buffer]
        fixed = place.buffer if buffer.space in (Space.PARAM, Space.CONST) else None
        return Operand(ref, t.shape, t.dtype, place.layout, f"{buffer.space.value}[{place.buffer}] + {place.layout.offset}", fixed, steps=buffer.steps)

    ins, outs = (tuple(operand(r) for r in refs) for refs in (step.node.inputs, step.node.refs))
    scratch = (f"scratch[{step.scratch}]", plan.buffers[step.scratch].nbytes) if step.scratch >= 0 else ("", 0)
    return Site(step.node, ins, outs, *scratch, params=dict(step.choice.params))


def _raw(unit: _Unit, plan: Plan, step: Step, launch: GpuLaunch) -> RawLaunch:
    """Raw kernels read operands row-major: others are copied to the staging memory."""
    staged, used = list[Staged](), 0
    for ref in step.node.inputs:
        t, layout = plan.graph.type(ref), plan.places[ref].layout
        if not layout.is_contiguous(t.shape):
            made = unit.copies(t, layout.strides, row_major(t.shape).strides)
            staged.append(Staged(ref, made.function, made.kernel, used))
            used += _aligned(upper(t.numel) * t.dtype.nbytes)
    unit.staging = max(unit.staging, used)
    return RawLaunch(step, launch, tuple(staged))


def _results(unit: _Unit) -> tuple[tuple[Result, ...], int]:
    made, used = dict[Ref, Result](), 0
    for ref in unit.plan.graph.outputs:
        t = unit.plan.graph.type(ref)
        if ref not in made and not unit.plan.places[ref].layout.is_contiguous(t.shape):
            made[ref] = Result(ref, *unit.copy(ctext.storage(t.dtype), ref), used)
            used += _aligned(upper(t.numel) * t.dtype.nbytes)
    return tuple(made.values()), used


def _commits(unit: _Unit, used: int) -> tuple[tuple[Commit, ...], int]:
    """From `used` bytes of the staging memory on."""
    made = list[Commit]()
    for new, old in unit.plan.commits:
        t = unit.plan.graph.type(new)
        there, back = unit.copy(ctext.storage(t.dtype), new), unit.copy(ctext.storage(t.dtype), old, out=True)
        made.append(Commit(new, old, *there, *back, used))
        used += _aligned(upper(t.numel) * t.dtype.nbytes)
    return tuple(made), used


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGN_NBYTES


