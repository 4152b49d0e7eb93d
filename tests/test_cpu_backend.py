"""The CPU backend against the reference: every op, random graphs, and the golden models, compiled by this machine's C compiler."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_graphs import random_arrays, random_graph, random_sizes
from samples import OPS, Sample, assert_close, samples

from rlxpy import Builder, CompileOptions, DType, Op, compile
from rlxpy.backends.cpu.compilers import find_compiler

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
        assert_close(got, want, sample.graph.output_types[k].dtype, f"{sample} output {k}")
