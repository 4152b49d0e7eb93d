"""Plans: values alive together share no byte, the arena is near its lower bound, and large graphs take linear work."""
from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plans import SEEDS, SPEC, collisions, planned, some_plan

from rlxpy import Builder, Graph, Op, compile, sym
from rlxpy.errors import LegaliseError
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import KernelLibrary, KernelRow, KernelSearchPath
from rlxpy.extend.plan import Buffer, Plan, Space
from rlxpy.fusion.check_plan import check_plan
from rlxpy.fusion.plan import pack, plan
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.graph import Node, Ref
from rlxpy.ir.layout import Layout, row_major


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", [{}, {"optimise": True}, {"spec": replace(SPEC, views=False)}, {"spec": replace(SPEC, align_nbytes=256)}],
                         ids=["as written", "optimised", "no views", "wide"])
def test_values_alive_together_share_no_byte(seed: int, options: dict[str, Any]) -> None:
    p = some_plan(seed, **options)
    assert not list(collisions(p))
    assert check_plan(p, options.get("spec", SPEC).align_nbytes) is p
    align = options.get("spec", SPEC).align_nbytes
    assert all(b.offset % align == 0 and b.offset >= 0 for b in p.buffers)
    assert all(b.offset + b.nbytes <= p.nbytes[b.space] for b in p.buffers)
    assert set(p.places) == {r for n in p.graph for r in n.refs}
    assert some_plan(seed, **options).buffers == p.buffers


# ---- size ----------------------------------------------------------------------------------------------------------
def test_the_arena_is_near_its_lower_bound() -> None:
    """Never more than all buffers together, at most 1.7 times the bytes alive at once, 1.1 times on average."""
    shares = []
    for seed in range(100):
        p = some_plan(seed)
        arena = [(b, -(-b.nbytes // 64) * 64) for b in p.buffers if b.space is Space.ARENA]
        alive = max((sum(size for b, size in arena if b.first <= t <= b.last) for t in range(len(p.graph) + 1)), default=0)
        assert alive <= p.arena_nbytes <= sum(size for _, size in arena)
        shares.append(p.arena_nbytes / alive if alive else 1.0)
    assert max(shares) <= 1.7
    assert np.mean(shares) <= 1.1


def test_a_chain_needs_two_buffers() -> None:
    b = Builder()
    x = b.input("x", (100,))
    for _ in range(500):
        x = x.sin()
    p = planned(b.finish(x))
    assert p.arena_nbytes == 2 * 448


def test_memory_is_planned_at_the_largest_sizes() -> None:
    b = Builder()
    p = planned(b.finish(b.input("x", (sym("B", 1, 10), 16)).exp()))
    assert p.arena_nbytes == p.nbytes[Space.INPUT] == 640


def test_zero_sizes_take_nothing() -> None:
    b = Builder()
    p = check_plan(planned(b.finish(b.input("x", (0, 3)).exp(), b.input("y", (3, 0)).T)))
    assert p.arena_nbytes == 0


def test_packing_does_what_it_says() -> None:
    buffers = [Buffer(Space.ARENA, 0, n, first, last) for n, first, last in ((100, 0, 1), (10, 1, 5), (60, 2, 3), (1, 4, 4))]
    got, nbytes = pack([*buffers, Buffer(Space.STATE, 0, 3, 0, 9), Buffer(Space.STATE, 0, 3, 0, 9), Buffer(Space.PARAM, 0, 7, 0, 0)], 16)
    assert [b.offset for b in got] == [0, 112, 0, 0, 0, 16, 0]
    assert nbytes == {Space.ARENA: 128, Space.INPUT: 0, Space.STATE: 32, Space.PARAM: 16, Space.CONST: 0}


# ---- large graphs --------------------------------------------------------------------------------------------------
def large(nodes: int) -> Graph:
    """Sums of the last thirty values; made of nodes, since building is not what is measured."""
    b, rng = Builder(), np.random.default_rng(0)
    made = list(b.finish(b.input("x", (16,))).nodes)
    plus = Attrs()
    for k, back in enumerate(rng.integers(0, 30, (nodes - 1, 2)).tolist(), 1):
        inputs = tuple(Ref(max(0, k - 1 - j)) for j in back)
        made.append(Node(k, Op.ADD, inputs, made[0].types, plus, made[0].loc))
    return Graph("large", tuple(made), tuple(Ref(k) for k in range(nodes - 30, nodes)), tuple(f"y{k}" for k in range(30)))


def compiled_plan(g: Graph) -> Plan:
    return check_plan(planned(g, optimise=True), 64)


def calls(f: Callable[[], Any]) -> int:
    profile = cProfile.Profile()
    profile.runcall(f)
    return sum(entry.callcount for entry in profile.getstats())


def test_work_grows_with_the_graph_and_not_faster() -> None:
    """Python calls, not seconds, from graph to checked plan."""
    graphs = large(1500), large(3000)
    small, twice = calls(lambda: compiled_plan(graphs[0])), calls(lambda: compiled_plan(graphs[1]))
    assert twice < 2.3 * small


def test_a_hundred_thousand_nodes_meet_no_recursion_limit() -> None:
    g = large(100_000)
    limit, depth = sys.getrecursionlimit(), len(list(iter_frames()))
    sys.setrecursionlimit(depth + 60)
    try:
        p = plan(g, SPEC)
        check_plan(plan(large(10_000), SPEC), 64)
    finally:
        sys.setrecursionlimit(limit)
    assert len(p.steps) == 99_999
    assert p.arena_nbytes < 200 * 64


def iter_frames() -> Iterator[Any]:
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def test_a_chain_deeper_than_the_recursion_limit_compiles() -> None:
    b = Builder()
    x = b.input("x", (2,))
    for k in range(3000):
        x = (x + 1.0).sin() if k % 2 else x.reshape(shape=(1, 2)).reshape(shape=(2,)) * 0.5
    y = compile(b.finish(x)).run(np.ones(2, np.float32))
    assert np.isfinite(y).all()


# ---- refusals and reports ------------------------------------------------------------------------------------------
def test_a_graph_that_is_not_legal_is_refused_with_the_reasons() -> None:
    b = Builder()
    g = b.finish(b.input("x", (2,)).sin())
    with pytest.raises(LegaliseError, match="nobody cannot run sin") as e:
        plan(g, BackendSpec(Device("nobody"), KernelSearchPath((KernelLibrary("none", (KernelRow("exp", Op.EXP, ""),)),))))
    assert __file__ in e.value.where


def test_the_table_has_a_row_for_each_launch() -> None:
    b = Builder()
    x = b.input("x", (4, 4))
    p = planned(b.finish(x.T.exp() @ x))
    assert [(row["op"], row["kernel"], row["tier"]) for row in p.table()] == [("exp", "reference/exp", "kernel"), ("matmul", "reference/matmul", "kernel")]
    assert all(str(row["where"]).startswith(__file__) for row in p.table())


def test_layouts_of_a_row_major_array() -> None:
    assert row_major((2, 3, 4)) == Layout((12, 4, 1))
    assert row_major(()) == Layout(())
    assert Layout((5, 1)).is_contiguous((1, 3))
    assert not Layout((5, 1)).is_contiguous((2, 3))
