"""One C translation unit of a plan: the prelude, each distinct kernel once, and the steps that call them."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rlxpy.backends.cpu import control, ctext
from rlxpy.backends.cpu.dispatch import Task, dispatch
from rlxpy.backends.cpu.kernel import Addresses, Emitter, lent
from rlxpy.backends.cpu.packing import Packed
from rlxpy.backends.cpu.unit import Unit, unused, word
from rlxpy.extend.plan import Plan, Step
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import symbols
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.text import show_node


@dataclass(frozen=True)
class Program:
    """`source` exports rlx_run; `functions` are its kernels by name.  `symbols` is the order of sizes; `packs` are weights to lay out anew, after the plan's buffers in
    `fixed`; `lent` are buffers that the caller's arrays may stand for; `segments` are runs of launches, cut where a step belongs to
    the host; `fallible`: a run may raise half-way; `undoes`: it may after it wrote over what outlives it; `inner` are nodes of loops, whose numbers in errors follow those of the plan's graph."""

    source: str
    functions: Mapping[str, str]
    symbols: tuple[str, ...]
    packs: tuple[Packed, ...]
    lent: tuple[int, ...]
    launches: tuple[Launch, ...]
    segments: tuple[Segment, ...]
    fallible: bool
    undoes: bool
    inner: tuple[tuple[Graph, Node], ...] = ()


@dataclass(frozen=True)
class Launch:
    """One call of a C function: a stage of a step."""

    step: Step
    function: str


@dataclass(frozen=True)
class Segment:
    """Launches lo..hi of the C program, or one step of the host tier."""

    lo: int
    hi: int
    host: Step | None = None


def write(plan: Plan, prelude: str, emitter: Callable[[Step], Emitter | None]) -> Program:
    """`emitter` gives a step's emitter, None for the host tier."""
    names, lends = tuple(sorted(_symbols(plan))), lent(plan)
    unit = Unit(plan, Addresses({b: f"lent[{i}]" for i, b in enumerate(lends)}), names, emitter)
    launches: list[Launch] = []
    tasks: list[Task] = []  # of the switch over all launches
    walks: list[str] = []  # of the one over loops and branches
    segments: list[Segment] = []
    for step in (variant for s in plan.steps for variant in s.variants):
        if step.frame is None and emitter(step) is None:
            segments.append(Segment(len(tasks), len(tasks), step))
            continue
        first = len(tasks)
        said = ctext.comment(show_node(step.node)) + (f"  {ctext.comment(step.node.where)}" if step.node.where else "")
        if step.frame:
            function, text = control.write(unit, step)
            walks.append("\n".join([f"    case {len(tasks)}: /* {said} */", *(f"      {line}" for line in text.splitlines())]) + " break;")
            tasks.append(Task(said, "-1", ""))
            launches.append(Launch(step, function))
        else:
            for c in unit.calls(plan, step, unit.at):
                tasks.append(Task(said, c.tasks, c.text))
                launches.append(Launch(step, c.function))
        if segments and segments[-1].host is None:
            segments[-1] = Segment(segments[-1].lo, len(tasks))
        else:
            segments.append(Segment(first, len(tasks)))
    fixed = _fixed_names(plan, tuple(unit.packs))

    def named(text: str) -> str:
        return _FIXED.sub(lambda m: f"fixed[{fixed[int(m[1])]}]" if int(m[1]) in fixed else m[0], text)

    table, cases = dispatch([replace(t, call=named(t.call)) for t in tasks])
    sizes = "".join(f"  const i64 {ctext.size_name(n)} = size[{i}]; (void){ctext.size_name(n)};\n" for i, n in enumerate(names))
    run = RUN.replace("@LAUNCHES@", table).replace("@LOCALS@", LOCALS + sizes).replace("@CASES@", cases).replace("@WALKS@", named("\n".join(walks)))
    source = "\n".join([prelude, *unit.shared, *unit.constants, *unit.functions.values(), _enum(fixed), run])
    hosts = any(s.host for s in segments)
    fallible = hosts or any(FAIL in f for f in unit.functions.values())
    undoes = hosts or bool(plan.commits) or _fails_late([unit.functions.get(n.function) for n in launches])
    return Program(source, unit.functions, names, tuple(unit.packs), lends, tuple(launches), tuple(segments), fallible, undoes, tuple(unit.inner))


FAIL, KEEP = "rlx_fail(", "rlx_keep("  # what a kernel calls that meets a bad index, and one that writes over what outlives the run


def _fails_late(kernels: Sequence[str | None]) -> bool:
    """Whether one of these C functions, called in this order, may fail after another wrote over state.  None is a loop, which may do anything."""
    first = next((k for k, text in enumerate(kernels) if text is None or KEEP in text), len(kernels))
    return any(text is None or FAIL in text for text in kernels[first + 1:]) or None in kernels[first:]


LOCALS = """  char *const arena = pool->arena, *const state = pool->state;
  void *const *const lent = pool->lent, *const *const fixed = pool->fixed;
  const i64 *const size = pool->size;
  (void)arena; (void)lent; (void)state; (void)fixed; (void)size;
"""
RUN = """
/* The launches in their order: which case of rlx_task each is, and what is its own. */
@LAUNCHES@
/* Tasks t0..t1 of a step; with a negative t0, how many it has: -1 for a loop or branch.  It only passes on addresses: there is nothing
   to optimise. */
static RLX_AS_WRITTEN i64 rlx_task(const rlx_pool *pool, i64 step, i64 t0, i64 t1) {
@LOCALS@  const i64 *const at = rlx_launches[step].at;
  (void)at; (void)t1;
  switch (rlx_launches[step].which) {
@CASES@
  }
  return 0;
}

/* A loop or branch: every thread walks through it. */
static void rlx_walk(rlx_pool *pool, i64 step) {
@LOCALS@  const i64 lo = pool->lo; (void)lo;
  switch (step) {
@WALKS@
  }
}

static void rlx_steps(rlx_pool *pool, i64 first, i64 thread) { rlx_share(pool, first, thread, rlx_task, rlx_walk); }

RLX_EXPORT void rlx_run(rlx_pool *pool) { rlx_lead(pool, rlx_steps); }
"""


_FIXED = re.compile(r"fixed\[(\d+)\]")


def _fixed_names(plan: Plan, packs: Sequence[Packed]) -> dict[int, str]:
    """C names of the places in `fixed` that hold the user's weights, as they lie or laid out anew."""
    named: dict[int, str] = {}
    taken: set[str] = set()
    weights = {plan.places[n.refs[0]].buffer: n.name for n in plan.graph.params}
    for buffer, name in weights.items():
        named[buffer] = unused(f"w_{word(name)}", taken)
    for k, p in enumerate(packs):
        named[len(plan.buffers) + k] = unused(f"packed_{word(weights.get(p.buffer, str(p.buffer)))}", taken)
    return named


def _enum(named: Mapping[int, str]) -> str:
    entries = "".join(f"  {name} = {k},\n" for k, name in named.items())
    return f"/* Where weights are in `fixed`. */\nenum {{\n{entries}}};\n" if named else ""


def _symbols(plan: Plan) -> set[str]:
    found = set(plan.graph.symbols)
    for p in plan.places.values():
        found |= set(symbols((*p.layout.strides, p.layout.offset)))
    return found
