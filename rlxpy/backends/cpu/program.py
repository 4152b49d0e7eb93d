"""One C translation unit of a plan: the prelude, each distinct kernel once, and the steps that call them."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Packed, lent, site_of
from rlxpy.backends.cpu.quant import decoder
from rlxpy.extend.plan import Plan, Step
from rlxpy.ir.dims import symbols
from rlxpy.ir.text import show_node


@dataclass(frozen=True)
class Program:
    """`source` exports rlx_run.  `symbols` is the order of sizes; `packs` are weights to lay out anew, after the plan's buffers in
    `fixed`; `lent` are buffers that the caller's arrays may stand for; `segments` are runs of steps in C, cut where a step belongs to
    the host; `fallible`: a run may raise half-way."""

    source: str
    symbols: tuple[str, ...]
    packs: tuple[Packed, ...]
    lent: tuple[int, ...]
    segments: tuple[Segment, ...]
    fallible: bool


@dataclass(frozen=True)
class Segment:
    """Steps lo..hi of the C program, or one step of the host tier."""

    lo: int
    hi: int
    host: Step | None = None


def write(plan: Plan, prelude: str, emitter: Callable[[Step], Emitter | None]) -> Program:
    """`emitter` gives a step's emitter, None for the host tier."""
    names, lends = tuple(sorted(_symbols(plan))), lent(plan)
    kernels: dict[tuple[Any, ...], str] = {}
    functions: list[str] = []
    decoders: set[str] = set()
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
            decoders |= k.needs
            key = (k.params, k.body, k.sizes)
            if key not in kernels:
                kernels[key] = f"k{len(kernels)}_{_word(step.node.kind or step.node.op.text)}"
                functions.append(_function(kernels[key], k, names, show_node(step.node)))
            args = ", ".join(_argument(a, packs, len(plan.buffers)) for a in k.call)
            calls.append(f"    case {len(calls)}: /* {ctext.comment(show_node(step.node))}{'  ' + ctext.comment(step.node.where) if step.node.where else ''} */\n"
                         f"      RLX_TASKS({k.tasks}, {kernels[key]}(size, {args}, t0, t1)) break;")
        if segments and segments[-1].host is None:
            segments[-1] = Segment(segments[-1].lo, len(calls))
        else:
            segments.append(Segment(first, len(calls)))
    sizes = "".join(f"  const i64 {ctext.size_name(n)} = size[{i}]; (void){ctext.size_name(n)};\n" for i, n in enumerate(names))
    source = "\n".join([prelude, *map(decoder, sorted(decoders)), *functions, RUN.replace("@SIZES@", sizes).replace("@CASES@", "\n".join(calls))])
    fallible = any(s.host for s in segments) or any("rlx_fail(" in f for f in functions)
    return Program(source, names, tuple(packs), lends, tuple(segments), fallible)


RUN = """
/* Steps `first`..hi in order; every thread of a run goes through them. */
static void rlx_steps(rlx_pool *pool, i64 first) {
  char *const arena = pool->arena, *const state = pool->state;
  void *const *const lent = pool->lent, *const *const fixed = pool->fixed;
  const i64 *const size = pool->size;
  const i64 lo = pool->lo, hi = pool->hi;
  (void)arena; (void)lent; (void)state; (void)fixed; (void)size; (void)lo;
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
    return f"(const f32 *)fixed[{buffers + packs.index(a)}]"


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text)


def _symbols(plan: Plan) -> set[str]:
    found = set(plan.graph.symbols)
    for p in plan.places.values():
        found |= set(symbols((*p.layout.strides, p.layout.offset)))
    return found
