"""The CPU backend against the reference: every op, random graphs, and the golden models, compiled by this machine's C compiler."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import assert_same, random_arrays, random_graph, random_sizes
from samples import OPS, Sample, assert_close, samples

from rlxpy import Builder, CompileOptions, DType, Embedder, Generator, Op, compile, sym
from rlxpy.backends.cpu.compilers import find_compiler
from rlxpy.errors import IndexOutOfRange, InputError
from rlxpy.ir.quantize import quantize

reason = find_compiler()
pytestmark = pytest.mark.skipif(isinstance(reason, str), reason=f"the cpu backend did not run: {reason}")
EVERYDAY = frozenset({DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL, DType.F8E5M2, DType.U64, DType.C64})


def together(op: Op) -> tuple[Any, list[Sample]]:
    """All samples of an op as one graph, so that one compile serves them."""
    b, every = Builder(op.text), list(samples(op, EVERYDAY))
    outputs: list[Any] = []
    for k, s in enumerate(every):
        xs = [b.input(f"s{k}x{i}", *t) for i, t in enumerate(s.input_types())]
        made = b.emit(op, *xs, **s.case.attrs)
        outputs += made if isinstance(made, tuple) else (made,)
    return b.finish(*outputs), every


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.text)
def test_every_op_gives_what_the_reference_gives(op: Op) -> None:
    graph, every = together(op)
    f = compile(graph, device="cpu", options=CompileOptions(debug=True))
    for seed in range(2):
        given = [s.arrays(seed) for s in every]
        got = f.run(*(a for arrays in given for a in arrays))
        results = iter(got if isinstance(got, tuple) else (got,))
        for s, arrays in zip(every, given, strict=True):
            for want in s.reference(arrays):
                assert_close(next(results), want, s.dtype, f"{s} seed {seed}")


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs(seed: int) -> None:
    sample = random_graph(seed)
    rng = np.random.default_rng(seed)
    sizes = random_sizes(sample.graph, rng)
    params = random_arrays(sample.graph.params, sizes, rng)
    inputs = random_arrays(sample.graph.inputs, sizes, rng)
    runs = [compile(sample.graph, params, device=d, options=CompileOptions(debug=True)).run(inputs, sizes=sizes) for d in ("cpu", "reference")]
    for k, (got, want) in enumerate(zip(*(r if isinstance(r, tuple) else (r,) for r in runs), strict=True)):
        dtype, name = sample.graph.output_types[k].dtype, sample.graph.output_names[k]
        if name in sample.loose_outputs:
            assert_same(got, want, dtype, f"{sample} output {k}", loose=True)
        else:
            assert_close(got, want, dtype, f"{sample} output {k}")


def append_graph() -> Any:
    """A cache of 4 rows, a row put at a position, and a gather that may fail after it."""
    b = Builder("append")
    s, x, p, i = b.state("s", (4, 2)), b.input("x", (1, 2)), b.input("p", (), "i64"), b.input("i", (1,), "i64")
    n = s.kv_append(x, p, axis=0)
    b.update(s, n)
    return b.finish(n, n.gather(i, axis=0))


@pytest.mark.parametrize(("position", "index"), [(-1, 0), (4, 0), (2**63 - 1, 0), (0, 4), (0, -5), (0, 2**62)])
def test_an_index_out_of_range_is_named_as_the_reference_names_it(position: int, index: int) -> None:
    said = []
    for device in ("cpu", "reference"):
        with pytest.raises(IndexOutOfRange) as caught:
            compile(append_graph(), device=device).run(np.ones((1, 2), np.float32), position, [index])
        said.append((caught.value.what, caught.value.why, caught.value.fix))
    assert said[0] == said[1]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("index", [2**64 - 1, 2**63])
def test_an_unsigned_index_never_wraps(device: str, index: int) -> None:
    b = Builder("u64")
    f = compile(b.finish(b.input("t", (5, 2)).gather(b.input("i", (1,), "u64"), axis=0)), device=device)
    with pytest.raises(IndexOutOfRange, match=str(index)):
        f.run(np.ones((5, 2), np.float32), np.array([index], np.uint64))


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_failed_run_leaves_the_state_as_it_was(device: str, axis: int) -> None:
    """Rows are appended twice, over each other, and then an index is out of range."""
    b = Builder("undo")
    shape = (3, 4, 5)
    s, x, i = b.state("s", shape), b.input("x", tuple(sym("N", 1, 3) if k == axis else d for k, d in enumerate(shape))), b.input("i", (1,), "i64")
    n = s.kv_append(x, b.input("p", (), "i64"), axis=axis).kv_append(x * 2.0, b.input("q", (), "i64"), axis=axis)
    b.update(s, n)
    f = compile(b.finish(n * 1.0, n.gather(i, axis=0)), device=device)
    rng = np.random.default_rng(axis)

    def rows(count: int) -> Any:
        return rng.standard_normal([count if k == axis else d for k, d in enumerate(shape)]).astype(np.float32)

    before = f.run(rows(2), [0], 0, 1)[0]
    for bad in ({"i": [9], "p": 0, "q": 1}, {"i": [0], "p": 0, "q": 9}, {"i": [-4], "p": 1, "q": 0}):
        with pytest.raises(IndexOutOfRange):
            f.run({"x": rows(2), **bad})
    one = rows(1)
    after, want = f.run(one, [0], 2, 2)[0], before.copy()
    want[tuple(slice(2, 3) if k == axis else slice(None) for k in range(3))] = 2 * one
    np.testing.assert_array_equal(after, want)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_nothing_has_no_greatest(device: str) -> None:
    b = Builder("empty")
    f = compile(b.finish(b.input("x", (3, sym("N", 0, 8))).max(axes=(1,))), device=device)
    with pytest.raises(InputError, match="greatest"):
        f.run(np.ones((3, 0), np.float32))


def test_golden_embedding(minilm_folder: Path) -> None:
    case = json.loads((Path(__file__).parent / "golden" / "minilm.json").read_text())["cases"][0]
    got = Embedder.load(minilm_folder, device="cpu").embed([case["text"]]).vectors[0]
    assert np.abs(got - np.array(case["embedding"])).max() < 2e-5


def test_golden_tokens_with_packed_weights(smollm2_gguf: Path) -> None:
    case = json.loads((Path(__file__).parent / "golden" / "smollm2.json").read_text())["cases"][0]
    g = Generator.load(smollm2_gguf, device="cpu", weights="packed", context=64)
    assert {row["tier"] for row in g.graph.dispatch()} == {"kernel"}
    assert g.generate(case["ids"], max_tokens=12).ids == case["greedy"][:12]


STRIDED: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: x.T.softmax(axis=-1), ((5, 7),)),
    "log_softmax of a reversed axis": (lambda x: x.reverse(axes=(1,)).log_softmax(axis=-1), ((5, 7),)),
    "rms_norm": (lambda x, g: x.T.rms_norm(g.reverse(axes=(0,)), eps=1e-5), ((5, 7), (5,))),
    "layer_norm": (lambda x, g, b: x[:, ::2].layer_norm(g[::2], b[::2], eps=1e-5), ((5, 7), (7,), (7,))),
    "keys": (lambda q, k, v: q.apply("attention", (q, k.T, v), {"scale": 0.3}), ((1, 2, 3, 4), (1, 2, 4, 5), (1, 2, 5, 6))),
    "values": (lambda q, k, v: q.apply("attention", (q, k, v.T), {"scale": 0.3}), ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 6, 5))),
    "matmul": (lambda a, b: a.T @ b.reverse(axes=(1,)), ((5, 3), (5, 4))),
    "gather": (lambda x: x.T.gather(x.builder.const([0, 2, 1]), axis=0), ((5, 7),)),
    "concat": (lambda x, y: x.apply("concat", (x.T, y.reverse(axes=(0,))), {"axis": 0}), ((5, 7), (3, 5))),
    "sum": (lambda x: x.T.sum(axes=(0,)), ((5, 7),)),
    "qmatmul": (lambda x: x.T.qmatmul(packed(x), encoding="q4_1", shape=(6, 32)), ((32, 5),)),
    "qmatmul of every other weight row": (lambda x: x.qmatmul(packed(x)[::2], encoding="q4_1", shape=(3, 32)), ((5, 32),)),
    "dequantize of every other row": (lambda x: packed(x)[1::2].dequantize(encoding="q4_1", shape=(3, 32)) + x, ((3, 32),)),
}


def packed(like: Any) -> Any:
    return like.builder.const(quantize(np.random.default_rng(3).normal(size=(6, 32)).astype(np.float32), "q4_1")[0])


@pytest.mark.parametrize("case", STRIDED)
def test_operands_that_are_views(case: str) -> None:
    make, shapes = STRIDED[case]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    got = []
    for device in ("cpu", "reference"):
        b = Builder("views")
        graph = b.finish(make(*(b.input(f"x{k}", s) for k, s in enumerate(shapes))))
        got.append(compile(graph, device=device, options=CompileOptions(weights="packed")).run(*arrays))
    assert_close(got[0], got[1], DType.F32, case)
