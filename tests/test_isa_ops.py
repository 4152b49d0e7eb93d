"""rlxpy's own kernels as machine code of every chip that they are compiled for: through hip-python, checked for ranges, races and unwritten memory."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_device import agree, simulation
from sim_device import needs_clang

from rlxpy.backends.gpu.offline import ARCHS

pytestmark = needs_clang
RNG = np.random.default_rng(23)


def graph(x: Any, w: Any, at: Any, narrow: Any) -> list[Any]:
    """A kernel of each kind: products, rows, reductions, order, movement, by index, fused chains, and types of 16 bits."""
    y = x.matmul(w)
    return [y.gelu(), y.softmax(axis=-1), x.rms_norm(eps=1e-5), x.sum(axes=(0,)), *x.sort(axis=1), x.argmax(axis=0), x.T.gather(at, axis=0), x.cumsum(axis=1), (narrow * 2.0).exp().sum(axes=(1,)),
            x.scatter_add(at, x[:3] * 0.5, axis=0)]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_of_each_kind_gives_what_it_means(arch: str) -> None:
    given = [RNG.normal(size=(5, 70)).astype(np.float32), RNG.normal(size=(70, 33)).astype(np.float32), np.array([4, 0, 2], np.int32), RNG.normal(size=(3, 21)).astype(ml_dtypes.bfloat16)]
    with simulation(arch, "isa"):
        agree("rocm", graph, given)
