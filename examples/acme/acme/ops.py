"""acme.softcap, an op with three routes: made of other ops, in NumPy, in C."""
from __future__ import annotations

import numpy as np

from rlxpy.extend import *

C_KERNEL = """
#include <math.h>
void rlx_custom(const x_type *x, out_type *out, i64 out_numel, double cap) {
  for (i64 i = 0; i < out_numel; i++) out[i] = (out_type)(tanh(x[i] / cap) * cap);
}"""


@op("acme.softcap", dtypes=(frozenset({DType.F32, DType.F64}),))
def softcap(x, cap: float = 30.0):
    """A soft limit at +-cap."""
    return (x / cap).tanh() * cap


def numpy_kernel(x, cap):
    return np.tanh(x / x.dtype.type(cap)) * x.dtype.type(cap)


def use(route: str) -> OpExtension:
    """Register the op with one of its routes for the cpu: "lowering", "numpy" or "c".  Every other device lowers it."""
    kernels = {"numpy": numpy_kernel, "c": C_KERNEL}
    return register_cpu_kernel(register_op(softcap), kernels[route]) if route in kernels else register_op(softcap)


use("c")
