"""The plan checker: it accepts what the planner makes, and sees every kind of fault in what is made of that."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plans import SEEDS, SPEC, collisions, planned, scratching, some_plan

from rlxpy import Builder, Op
from rlxpy.errors import VerifyError
from rlxpy.extend.plan import Place, Plan, Space
from rlxpy.fusion.check_plan import check_plan
from rlxpy.fusion.plan import pack
from rlxpy.ir.graph import Ref
from rlxpy.ir.layout import Layout


def moved(p: Plan, i: int, **changes: Any) -> Plan:
    return replace(p, buffers=tuple(replace(b, **changes) if k == i else b for k, b in enumerate(p.buffers)))


def placed(p: Plan, r: Ref, place: Place) -> Plan:
    return replace(p, places={**p.places, r: place})


def refuses(p: Plan, words: str) -> None:
    with pytest.raises(VerifyError, match=words):
        check_plan(p)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_checker_refuses_moved_buffers_exactly_when_they_collide(seed: int) -> None:
    p, rng = some_plan(seed), np.random.default_rng(seed)
    arena = [i for i, b in enumerate(p.buffers) if b.space is Space.ARENA and b.nbytes]
    verdicts = set()
    for _ in range(12):
        i, j = (int(rng.choice(arena)) for _ in range(2))
        wrong = moved(p, i, offset=p.buffers[j].offset)
        if rng.random() < 0.3:
            wrong = moved(wrong, j, offset=p.buffers[i].offset)
        wrong = replace(wrong, nbytes={**p.nbytes, Space.ARENA: 1 << 30})
        collide = bool(list(collisions(wrong)))
        verdicts.add(collide)
        if collide:
            refuses(wrong, "after it was overwritten")
        else:
            check_plan(wrong)
    assert verdicts


def arena_refs(p: Plan) -> list[Ref]:
    return [r for n in p.graph for r in n.refs if p.buffer(r).space is Space.ARENA and p.buffer(r).nbytes]


@pytest.mark.parametrize("seed", range(20))
def test_the_checker_refuses_every_kind_of_fault(seed: int) -> None:
    p = some_plan(seed, optimise=bool(seed % 2))
    read = next(r for r in reversed(arena_refs(p)) if r in p.graph.results)
    i, place = p.places[read].buffer, p.places[read]
    refuses(moved(p, i, offset=-64), "outside its space or misaligned")
    refuses(moved(p, i, offset=p.arena_nbytes), "outside its space")
    with pytest.raises(VerifyError, match="misaligned"):
        check_plan(moved(p, i, offset=p.buffers[i].offset + 1), SPEC.align_nbytes)
    refuses(moved(p, i, last=len(p.graph) - 1), "outside its lifetime")
    refuses(moved(p, i, first=len(p.graph)), "outside its lifetime")
    refuses(moved(p, i, nbytes=0), "walks out of its buffer")
    walk = place.layout
    refuses(placed(p, read, Place(i, Layout(walk.strides, walk.offset + p.buffers[i].nbytes))), "walks out of its buffer")
    refuses(placed(p, read, Place(i, Layout(walk.strides, -1))), "walks out of its buffer")
    k = next(k for k, s in enumerate(p.steps) if s.node.row.view is None)
    refuses(replace(p, steps=p.steps[:k] + p.steps[k + 1:]), "nothing computes")
    refuses(replace(p, steps=p.steps[::-1]), "not the graph's nodes in order")
    refuses(replace(p, steps=(*p.steps, p.steps[-1])), "not the graph's nodes in order")


def test_the_checker_refuses_writes_into_what_must_stay() -> None:
    b = Builder()
    x, w, s = b.input("x", (4, 4)), b.param("w", (4, 4)), b.state("s", (4, 4))
    c = b.const(np.eye(4, dtype=np.float32))
    y = x.exp()
    p = planned(b.finish(y, x, w + s, c + 1.0))
    for leaf in (x, w, s, c):
        refuses(placed(p, y.ref, p.places[leaf.ref]), f"reads {leaf.ref} after it was overwritten")


def test_the_checker_refuses_a_step_that_writes_over_its_own_operand_or_scratch() -> None:
    """Nobody reads the operand later; a matmul would read what it has just written all the same."""
    b = Builder()
    h = b.input("x", (4, 4)).exp()
    y = h @ h
    p = planned(b.finish(y))
    refuses(moved(p, p.places[y.ref].buffer, offset=p.buffer(h.ref).offset), "matmul reads %1 after it was overwritten")
    values, at = b.input("z", (4, 4)).sort(axis=0, descending=False)
    p = planned(b.finish(values, at.sum(axes=(0,))))
    refuses(moved(p, p.places[p.graph.outputs[0]].buffer, offset=p.buffer(p.steps[0].node.refs[1]).offset), "sort reads")
    p = planned(b.finish(h), scratching(Op.EXP, 256))
    refuses(moved(p, p.steps[0].scratch, offset=p.buffer(p.graph.outputs[0]).offset), "the scratch of %1 exp is overwritten")


def test_the_checker_refuses_a_lifetime_cut_short_and_packed_again() -> None:
    caught = 0
    for seed in SEEDS:
        p = some_plan(seed)
        rng = np.random.default_rng(seed)
        i = int(rng.choice([i for i, b in enumerate(p.buffers) if b.space is Space.ARENA and b.last > b.first]))
        buffers, nbytes = pack([replace(b, last=b.first) if k == i else b for k, b in enumerate(p.buffers)], 64)
        refuses(replace(p, buffers=buffers, nbytes=nbytes), "overwritten|outside its lifetime")
        caught += bool(list(collisions(replace(p, buffers=buffers, nbytes=nbytes))))
    assert caught > 5  # not by the lifetime alone


def test_the_checker_refuses_transposed_results() -> None:
    b = Builder()
    x = b.input("x", (3, 4))
    p = planned(b.finish(x.exp()))
    refuses(placed(p, Ref(1), Place(p.places[Ref(1)].buffer, Layout((1, 3)))), "not written in row-major order")
    refuses(placed(p, Ref(1), Place(p.places[Ref(1)].buffer, Layout((0, 0)))), "not written in row-major order")


def test_the_checker_refuses_a_state_that_gets_no_value_or_a_wrong_one() -> None:
    b = Builder()
    s, other, kept = b.state("s", (4,)), b.state("t", (4,)), b.state("kept", (4,))
    new = s + 1.0
    p = planned(b.finish(new.exp(), kept.neg(), other.abs(), updates=[(s, new), (other, other * 2.0)]))
    assert len(p.commits) == 2
    check_plan(p)
    refuses(replace(p, commits=p.commits[:1]), "never gets its new value")
    refuses(replace(p, commits=(*p.commits, (new.ref, kept.ref))), "copies into states what the graph does not say")
    refuses(replace(p, commits=(p.commits[0], p.commits[0], p.commits[1])), "copies into states")
    into_kept = placed(p, p.steps[0].node.refs[0], p.places[next(n for n in p.graph if n.name == "kept").refs[0]])
    refuses(into_kept, "after it was overwritten")


def test_the_checker_refuses_an_update_in_place_while_the_old_value_is_needed() -> None:
    b = Builder()
    cache, new, pos = b.state("cache", (8, 2)), b.input("new", (1, 2)), b.input("pos", (), "i64")
    grown = cache.kv_append(new, pos, axis=0)
    p = planned(b.finish(grown, cache * 1.5, updates=[(cache, grown)]))
    assert p.places[grown.ref].buffer != p.places[cache.ref].buffer
    refuses(placed(p, grown.ref, p.places[cache.ref]), "reads .* after it was overwritten")


def test_scratch_is_planned_and_checked() -> None:
    b = Builder()
    x = b.input("x", (64,))
    y = x.exp()
    p = planned(b.finish(y, (y + x).exp()), scratching(Op.EXP, 1000))
    scratch = [s.scratch for s in p.steps if s.node.op is Op.EXP]
    assert [p.buffers[i].nbytes for i in scratch] == [1000, 1000]
    assert not list(collisions(check_plan(p, 64)))
    refuses(moved(p, scratch[1], offset=p.buffer(y.ref).offset), "after it was overwritten")
