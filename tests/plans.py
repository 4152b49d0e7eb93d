"""Plans of random graphs, and an oracle for them that shares nothing with planner or checker."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from random_graphs import random_graph

from rlxpy import Graph, Op
from rlxpy.backends.reference import Reference
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import KernelLibrary, KernelSearchPath
from rlxpy.extend.plan import Plan, Space
from rlxpy.fusion.pipeline import run, standard
from rlxpy.fusion.plan import plan
from rlxpy.ir.op import LEAVES

SPEC = Reference().spec
SEEDS = range(60)


def planned(g: Graph, spec: BackendSpec = SPEC, *, optimise: bool = False) -> Plan:
    return plan(run(g, standard(spec, optimise=optimise))[0], spec)


def some_plan(seed: int, **options: Any) -> Plan:
    return planned(random_graph(seed, 60).graph, **options)


def collisions(p: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of buffers that share bytes while both are needed, by comparing every buffer with every other."""
    needed: dict[int, list[int]] = {i: [] for i in range(len(p.buffers))}
    for n in p.graph:
        for r in n.refs:
            if n.op in LEAVES or any(s.node is n for s in p.steps):
                needed[p.places[r].buffer].append(n.id)
        if any(s.node is n for s in p.steps):
            for r in n.inputs:
                needed[p.places[r].buffer].append(n.id)
    for r in p.graph.results:
        needed[p.places[r].buffer].append(len(p.graph))
    for s in p.steps:
        if s.scratch >= 0:
            needed[s.scratch].append(s.node.id)
    for i, a in enumerate(p.buffers):
        for j, b in enumerate(p.buffers[:i]):
            shared = a.space is b.space is Space.ARENA and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
            if shared and needed[i] and needed[j] and min(needed[i]) <= max(needed[j]) and min(needed[j]) <= max(needed[i]):
                yield j, i


def scratching(op: Op, nbytes: int) -> BackendSpec:
    """The reference, whose kernels of one op ask for scratch."""
    rows = [replace(r, scratch_nbytes=lambda graph, node: nbytes) if r.op is op else r for lib in SPEC.kernels.libraries for r in lib.rows]
    return BackendSpec(Device("scratch"), KernelSearchPath((KernelLibrary("scratch", tuple(rows)),)))
