"""The table of launches of a program: read back it says every call as it was, and depth adds rows to it and no code."""
from __future__ import annotations

import re

import numpy as np
import pytest

from rlxpy import Builder, compile, sym
from rlxpy.backends.cpu.dispatch import Task, dispatch
from rlxpy.ir.graph import Graph

CALLS = [
    Task("embed", "1", "gather(size, (u8 *)(fixed[w_table]), (i64 *)(lent[0]), (u8 *)(arena + 0), 2, t0, t1)"),
    Task("first", "rlx_ceil_quotient(dim_T, 192)*18", "matmul(size, (const u8 *)fixed[packed_a], (f32 *)(arena + 0) + (576*dim_T + -576), (f32 *)(arena + 640), t0, t1)"),
    Task("cache", "1", "append(size, (f32 *)(state + 0), (i64 *)(arena + 512), (f32 *)(state + 0), 24, t0, t1)"),
    Task("loop", "-1", ""),
    Task("second", "rlx_ceil_quotient(dim_T, 192)*18", "matmul(size, (const u8 *)fixed[packed_b], (f32 *)(arena + 0) + (576*dim_T + -576), (f32 *)(arena + 0), t0, t1)"),
    Task("other count", "rlx_ceil_quotient(dim_T, 96)*18", "matmul(size, (const u8 *)fixed[packed_b], (f32 *)(arena + 0) + (576*dim_T + -576), (f32 *)(arena + 0), t0, t1)"),
    Task("other text", "rlx_ceil_quotient(dim_T, 192)*18", "matmul(size, (const u8 *)fixed[packed_b], (f32 *)(arena + 0) + (577*dim_T + -576), (f32 *)(arena + 0), t0, t1)"),
    Task("unnamed", "1", "gather(size, (u8 *)(fixed[7]), (i64 *)(lent[0]), (u8 *)(arena + 64), 2, t0, t1)"),
    Task("cache", "1", "append(size, (f32 *)(state + 4096), (i64 *)(arena + 512), (f32 *)(state + 4096), 27, t0, t1)"),
    Task("loop", "-1", ""),
    Task("first again", "rlx_ceil_quotient(dim_T, 192)*18", "matmul(size, (const u8 *)fixed[packed_a], (f32 *)(arena + 0) + (576*dim_T + -576), (f32 *)(arena + 640), t0, t1)"),
]


def read_back(table: str, cases: str) -> list[Task]:
    """The launches as a C compiler reads them."""
    texts = {int(k): (count, call) for k, count, call in re.findall(r"case (\d+):\n      RLX_TASKS\(((?:[^()]|\([^()]*\))*?), (.*)\) break;", cases)}
    found = []
    for which, at, said in re.findall(r"^  \{(\d+), \{([^}]*)\}\}, /\* \d+: (.*) \*/$", table, re.MULTILINE):
        own, (count, call) = at.split(", "), texts[int(which)]
        found.append(Task(said, count, re.sub(r"at\[(\d+)\]", lambda m, own=own: own[int(m[1])], call)))  # type: ignore[misc]
    return found


@pytest.mark.parametrize("tasks", [CALLS, CALLS[::-1], CALLS[:1], CALLS * 3], ids=["once", "backwards", "one", "thrice"])
def test_the_table_and_its_cases_say_every_call_as_it_was(tasks: list[Task]) -> None:
    assert read_back(*dispatch(tasks)) == tasks


def test_launches_that_differ_in_places_alone_share_a_case() -> None:
    table, cases = dispatch(CALLS)
    assert cases.count("case ") == 6
    assert "fixed[at[0]]" in cases
    assert "(arena + 512)" in cases, "what all of them have stands in the case"
    assert "packed_a" not in cases
    assert "at[3]; }" in table, "the two caches and the node that an error names"


def tower(layers: int) -> Graph:
    b = Builder("tower")
    x = b.input("x", (sym("B", 1, 8), 24))
    for k in range(layers):
        with b.scope(f"layers.{k}"):
            x = (x @ b.param(f"w{k}", (24, 24)) + b.param(f"b{k}", (24,))).gelu().layer_norm(eps=1e-5) + x
    return b.finish(x)


def test_depth_adds_no_code_and_every_layer_reads_its_own_weights() -> None:
    rng, texts = np.random.default_rng(5), {}
    for layers in (4, 9):
        graph = tower(layers)
        params = {n.name: rng.normal(size=n.type.shape).astype(np.float32) for n in graph.params}
        f = compile(graph, params, device="cpu", wait=True)
        x = rng.normal(size=(3, 24)).astype(np.float32)
        want = compile(graph, params, device="reference").run(x)
        for _ in range(2):
            np.testing.assert_allclose(f.run(x), want, rtol=2e-5, atol=2e-6)
        texts[layers] = f._executable._running.program.source  # type: ignore[attr-defined]
    assert texts[4].count("RLX_TASKS(") == texts[9].count("RLX_TASKS(")
    assert texts[9].count("\n  {") - texts[4].count("\n  {") >= 5 * 2, "rows of the table"
