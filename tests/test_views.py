"""Movement ops as views: NumPy's walks over the same bytes, and no copy where NumPy makes none."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plans import SPEC, planned

from rlxpy import Builder, CompileOptions, DType, Op, Value, compile, sym
from rlxpy.ir.dims import Dim, Sizes, at
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Ref
from rlxpy.ir.layout import Layout
from rlxpy.ir.refs import evaluate
from rlxpy.ir.types import bind


def walk(base: Array, layout: Layout, shape: tuple[int, ...], sizes: Sizes) -> Array:
    offset, strides = at(layout.offset, sizes), tuple(s * base.itemsize for s in bind(layout.strides, sizes))
    return np.lib.stride_tricks.as_strided(base[offset:] if 0 not in shape else base, shape, strides)


def movement(x: Value, rng: np.random.Generator) -> Any:
    rank, shape = len(x.shape), x.shape
    kind = rng.integers(6)
    if kind == 0:
        return x.transpose(perm=tuple(map(int, rng.permutation(rank))))
    if kind == 1:
        start = tuple(int(rng.integers(0, int(d))) if isinstance(d, int) and d else 0 for d in shape)
        return x.slice(start=start, stop=shape, step=tuple(int(rng.choice([1, 1, 2])) for _ in shape))
    if kind == 2:
        return x.reverse(axes=tuple(i for i in range(rank) if rng.random() < 0.5))
    if kind == 3:
        return x.expand(shape=(*([2] if rank < 4 and rng.random() < 0.5 else []), *(3 if d == 1 and rng.random() < 0.5 else d for d in shape)))
    dims: list[Dim] = list(shape)
    i = int(rng.integers(rank)) if rank else 0
    if kind == 4 and rank > 1:
        i = int(rng.integers(rank - 1))
        dims[i:i + 2] = [dims[i] * dims[i + 1]]
    elif rank and isinstance(d := dims[i], int):
        part = int(rng.choice([k for k in range(1, d + 1) if d % k == 0] or [1]))
        dims[i:i + 1] = [part, d // part] if d else [1, 0]
    return x.reshape(shape=tuple(dims))


@pytest.mark.parametrize("seed", range(300))
def test_chains_of_views_are_numpys(seed: int) -> None:
    """Bytes and strides, and no copy where NumPy makes none."""
    rng = np.random.default_rng(seed)
    shape: tuple[Dim, ...] = tuple(int(d) for d in rng.choice([1, 2, 3, 4, 6], int(rng.integers(1, 4))))
    symbolic = seed % 3 == 0
    if symbolic:
        shape = (sym("S", 2, 6), *shape)
    b = Builder()
    x = b.input("x", shape, DType.I64)
    for _ in range(int(rng.integers(1, 6))):
        x = movement(x, rng)
    p = planned(b.finish(x))
    for size in (2, 5):
        sizes = {"S": size}
        g = p.graph.bind(sizes)
        base = np.arange(int(np.prod(bind(shape, sizes)))) * 7 + 1
        held: dict[Ref, Array] = {Ref(0): base.reshape(bind(shape, sizes))}
        memory = {p.places[Ref(0)].buffer: base}
        for n in g.nodes[1:]:
            (want,) = evaluate(replace(g, outputs=(n.refs[0],)), {0: held[Ref(0)]})
            place, numpys = p.places[n.refs[0]], n.row.ref(held[n.inputs[0]], **n.attrs.params())  # type: ignore[operator, misc]
            if any(s.node.id == n.id for s in p.steps):
                assert symbolic or not np.shares_memory(numpys, held[n.inputs[0]]) or want.size == 0, f"copies where NumPy does not: {n}"
                memory[place.buffer] = want.reshape(-1).copy()
            held[n.refs[0]] = walk(memory[place.buffer], place.layout, want.shape, sizes)
            np.testing.assert_array_equal(held[n.refs[0]], want)


def test_only_what_is_a_walk_is_a_view() -> None:
    b = Builder()
    x = b.input("x", (4, 6))
    views = [x.T, x[1:, ::2], x.reverse(axes=(0,)), x.reshape(shape=(2, 2, 6)), x.T.reshape(shape=(6, 2, 2)), x[:, :1].expand(shape=(4, 5)), x[::2].reshape(shape=(2, 2, 3))]
    copies = [x.T.reshape(shape=(24,)), x[:, :3].reshape(shape=(12,)), x[:, :1].expand(shape=(4, 5)).reshape(shape=(20,))]
    p = planned(b.finish(*views, *copies))
    assert {p.places[v.ref].buffer for v in views} == {p.places[x.ref].buffer}
    assert [s.node.op for s in p.steps] == [Op.RESHAPE] * 3
    assert len(planned(b.finish(*views), replace(SPEC, views=False)).steps) == len(planned(b.finish(*views)).graph) - 1


def test_a_view_keeps_what_it_shows_alive() -> None:
    b = Builder()
    x = b.input("x", (8, 8))
    y = (x.exp() + 1.0).T[1:]
    z = x
    for _ in range(6):
        z = z.sin()
    p = planned(b.finish(y, z))
    assert p.buffer(y.ref).last == len(p.graph)
    got = compile(b.finish(y, z), options=CompileOptions(debug=True, optimise=False)).run(np.ones((8, 8), np.float32))
    np.testing.assert_allclose(got[0], np.full((7, 8), np.e + 1), rtol=1e-6)
