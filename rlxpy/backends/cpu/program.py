"""One C translation unit of a plan: the prelude, each distinct kernel once, and the steps that call them."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Emitter, Kernel, lent, site_of
from rlxpy.backends.cpu.packing import Packed
from rlxpy.extend.plan import Plan, Step
from rlxpy.ir.dims import symbols
from rlxpy.ir.graph import Node
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.text import show_node


@dataclass(frozen=True)
class Program:
    """`source` exports rlx_run; `functions` are its kernels by name.  `symbols` is the order of sizes; `packs` are weights to lay out anew, after the plan's buffers in
    `fixed`; `lent` are buffers that the caller's arrays may stand for; `segments` are runs of launches, cut where a step belongs to
    the host; `fallible`: a run may raise half-way."""

    source: str
    functions: Mapping[str, str]
    symbols: tuple[str, ...]
    packs: tuple[Packed, ...]
    lent: tuple[int, ...]
    launches: tuple[Launch, ...]
    segments: tuple[Segment, ...]
    fallible: bool


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
    kernels: dict[tuple[Any, ...], str] = {}
    functions: dict[str, str] = {}
    taken: set[str] = set()
    shared: dict[str, None] = {}
    launches: list[Launch] = []
    calls: list[str] = []
    packs: list[Packed] = []
    segments: list[Segment] = []
    for step in plan.steps:
        emit = emitter(step)
        if emit is None:
            segments.append(Segment(len(calls), len(calls), step))
            continue
        made = emit(site_of(plan, step, lends))
        first = len(calls)
        for k in made if isinstance(made, tuple) else (made,):
            shared |= dict.fromkeys(k.needs)
            key = (k.params, k.body, k.sizes)
            if key not in kernels:
                kernels[key] = _unused(function_name(step.node), taken)
                functions[kernels[key]] = _function(kernels[key], k, names, f"{step.choice.name}: {show_node(step.node)}")
            args = ", ".join(_argument(a, packs, len(plan.buffers)) for a in k.call)
            calls.append(f"    case {len(calls)}: /* {ctext.comment(show_node(step.node))}{'  ' + ctext.comment(step.node.where) if step.node.where else ''} */\n"
                         f"      RLX_TASKS({k.tasks}, {kernels[key]}(size, {args}, t0, t1)) break;")
            launches.append(Launch(step, kernels[key]))
        if segments and segments[-1].host is None:
            segments[-1] = Segment(segments[-1].lo, len(calls))
        else:
            segments.append(Segment(first, len(calls)))
    fixed = _fixed_names(plan, packs)
    sizes = "".join(f"  const i64 {ctext.size_name(n)} = size[{i}]; (void){ctext.size_name(n)};\n" for i, n in enumerate(names))
    cases = _FIXED.sub(lambda m: f"fixed[{fixed[int(m[1])]}]" if int(m[1]) in fixed else m[0], "\n".join(calls))
    source = "\n".join([prelude, *shared, *functions.values(), _enum(fixed), RUN.replace("@SIZES@", sizes).replace("@CASES@", cases)])
    fallible = any(s.host for s in segments) or any("rlx_fail(" in f for f in functions.values())
    return Program(source, functions, names, tuple(packs), lends, tuple(launches), tuple(segments), fallible)


RUN = """
/* Steps `first`..hi in order; every thread of a run goes through them. */
static void rlx_steps(rlx_pool *pool, i64 first) {
  char *const arena = pool->arena, *const state = pool->state;
  void *const *const lent = pool->lent, *const *const fixed = pool->fixed;
  const i64 *const size = pool->size;
  const i64 lo = pool->lo, hi = pool->hi;
  (void)arena; (void)lent; (void)state; (void)fixed; (void)size; (void)lo;
  RLX_JOIN
@SIZES@  for (i64 step = first; step < hi; step++) {
    switch (step) {
@CASES@
    }
  }
}

RLX_EXPORT void rlx_run(rlx_pool *pool) { rlx_lead(pool, rlx_steps); }
"""


def _function(name: str, k: Kernel, names: tuple[str, ...], title: str) -> str:
    sizes = "".join(f"  const i64 {ctext.size_name(n)} = size[{names.index(n)}];\n" for n in sorted(k.sizes))
    body = "\n".join("  " + line for line in k.body.splitlines())
    return (f"/* {ctext.comment(title)} */\nstatic RLX_NOINLINE void {name}(const i64 *size, {', '.join(k.params)}, i64 t0, i64 t1) {{\n"
            f"  (void)size;\n{sizes}{body}\n}}\n")


def _argument(a: str | Packed, packs: list[Packed], buffers: int) -> str:
    if isinstance(a, str):
        return a
    if a not in packs:
        packs.append(a)
    return f"(const {a.form.c} *)fixed[{buffers + packs.index(a)}]"


_FIXED = re.compile(r"fixed\[(\d+)\]")
LONGEST_NAME = 60


def function_name(node: Node) -> str:
    """What a kernel computes and how much of it, as a C identifier: matmul_add_gelu_Bx128x1536."""
    inside = [n for _, body in node.attrs.graphs() for n in body if n.op not in LEAVES]
    words = "_".join(n.op.text for n in inside) if node.op is Op.FUSED else node.label
    shape = "x".join(map(str, node.type.shape)) or "scalar"
    return f"{_word(words)[:LONGEST_NAME].rstrip('_')}_{_word(shape)}"


def _fixed_names(plan: Plan, packs: Sequence[Packed]) -> dict[int, str]:
    """C names of the places in `fixed` that hold the user's weights, as they lie or laid out anew."""
    named: dict[int, str] = {}
    taken: set[str] = set()
    weights = {plan.places[n.refs[0]].buffer: n.name for n in plan.graph.params}
    for buffer, name in weights.items():
        named[buffer] = _unused(f"w_{_word(name)}", taken)
    for k, p in enumerate(packs):
        named[len(plan.buffers) + k] = _unused(f"packed_{_word(weights.get(p.buffer, str(p.buffer)))}", taken)
    return named


def _enum(named: Mapping[int, str]) -> str:
    entries = "".join(f"  {name} = {k},\n" for k, name in named.items())
    return f"/* Where weights are in `fixed`. */\nenum {{\n{entries}}};\n" if named else ""


def _unused(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken; from now on it is."""
    free = next(n for n in chain([name], (f"{name}_{k}" for k in count(2))) if n not in taken)
    taken.add(free)
    return free


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII)


def _symbols(plan: Plan) -> set[str]:
    found = set(plan.graph.symbols)
    for p in plan.places.values():
        found |= set(symbols((*p.layout.strides, p.layout.offset)))
    return found
