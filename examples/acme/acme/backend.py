"""A backend: device "exact" multiplies and adds up in f64; what it has no kernel for runs on rlxpy's NumPy tier, and reports say so."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlxpy.backends.custom import extension_row
from rlxpy.backends.host import LIBRARY
from rlxpy.backends.reference import Reference
from rlxpy.extend import *


def wide(f):
    """A kernel of f in f64, rounded once to the type of the result."""
    def launch(ins, outs, attrs):
        outs[0][...] = f(*(a.astype(np.float64) for a in ins), **attrs)
    return launch


F32 = (Constraint("out.dtype", "EQ", "f32"),)
ROWS = KernelLibrary("exact", (
    KernelRow("matmul", Op.MATMUL, wide(np.matmul), constraints=F32),
    KernelRow("sum", Op.SUM, wide(lambda x, axes, keepdims: x.sum(axis=axes, keepdims=keepdims)), constraints=F32),
))


@dataclass(frozen=True)
class Exact(Reference):
    """Plans for these rows, run by the executor of the reference."""

    spec: BackendSpec = BackendSpec(Device("exact"), KernelSearchPath((ROWS,)), host=KernelSearchPath((LIBRARY,)), staged=extension_row)
