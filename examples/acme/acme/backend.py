"""A backend: device "exact" multiplies and adds up in f64; what it has no kernel for runs on rlxpy's NumPy tier, and reports say so."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlxpy.backends.reference import Reference
from rlxpy.extend import *


def wide(f):
    """A kernel of an op's meaning in f64, rounded once to the type of the result."""
    def launch(ins, outs, attrs):
        outs[0][...] = f(*(a.astype(np.float64) for a in ins), **attrs)
    return launch


F32 = (Constraint("out.dtype", "EQ", "f32"),)
ROWS = KernelLibrary("exact", (
    KernelRow("matmul", Op.MATMUL, wide(Op.MATMUL.row.ref), constraints=F32),
    KernelRow("sum", Op.SUM, wide(Op.SUM.row.ref), constraints=F32),
))


@dataclass(frozen=True)
class Exact(Reference):
    """Plans for these rows, run by the executor of the reference."""

    spec: BackendSpec = with_host(BackendSpec(Device("exact"), KernelSearchPath((ROWS,))))
