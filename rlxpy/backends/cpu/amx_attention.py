"""Kernels of attention on AMX: operands and weights of the sum as bf16 in tiles, scores and sums in f32; what tiles cannot hold goes through registers."""
from __future__ import annotations

from collections.abc import Callable
from math import e as EULER, log2

from rlxpy.backends.cpu import attention, ctext
from rlxpy.backends.cpu.amx import BF16, TILE_DEPTH, text
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Site
from rlxpy.backends.templates import render
from rlxpy.ir.dims import Shape, exact_quotient, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node

ROWS = 128  # queries times heads of a task: they share the keys and values that it lays into tiles
KEYS = 128  # whose scores, beside 32 rows, stay in the first cache


def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site, isa)


def _emit(site: Site, isa: Isa) -> tuple[Kernel, ...]:
    call = attention.call_of(site)
    if _tasks(call.shapes[0], call.shapes[1]) > site.scratch_nbytes:
        return attention.emit(call, site, isa)
    scale = call.attrs.scale
    touched = bool(attention.mask_facts(call)["touched"]) or scale <= 0  # else the greatest score is scaled after it is found
    facts = {"keys": KEYS, "touched": touched, "turns": ctext.literal(log2(EULER) * (1 if touched else scale), DType.F32)}
    return attention.emit(call, site, isa, attention.First("amx", ROWS, TILE_DEPTH, facts, (*text(BF16), render("cpu/attention_amx.h.j2"))))


def _tasks(q: Shape, k: Shape) -> int:
    """A byte of each says whether it is done."""
    (b, h, t, _), g = q, k[1]
    group = exact_quotient(h, g)
    assert group is not None, "the shape rule has checked it"
    return upper(product((b, g))) * -(-upper(t * group) // ROWS)


def scratch_nbytes(isa: Isa) -> Callable[[Graph, Node], int]:
    def room(graph: Graph, node: Node) -> int:
        q, k, _ = attention.shapes_of(graph, node)
        return max(_tasks(q, k), attention.scratch_nbytes(isa)(graph, node))
    return room
