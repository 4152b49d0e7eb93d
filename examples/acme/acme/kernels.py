"""A kernel library: an exp that is computed in f64 and rounded once, in the place of the bundled one."""
from __future__ import annotations

import numpy as np

from rlxpy.extend import *


def exp_once(ins, outs, attrs):
    outs[0][...] = np.exp(ins[0].astype(np.float64))


LIBRARY = KernelLibrary("acme", (
    KernelRow("exp_once", Op.EXP, exp_once, args=("x",), constraints=(Constraint("x.dtype", "EQ", "f32"),), doc="f64 inside, rounded once"),
))
