"""Sample calls of every op, and how tests compare results."""
from __future__ import annotations

import numpy as np

from rlxpy import DType
from rlxpy.backends.cpu.isa import available
from rlxpy.ir.dtypes import Array
from rlxpy.tools.behaviour import CLOSE
from rlxpy.tools.cases import OPS, accepted, cases, samples
from rlxpy.tools.samples import Case, Sample, accepted_by, draw, layouts, plain

__all__ = ["CLOSE", "OPS", "Case", "Sample", "accepted", "accepted_by", "assert_close", "assert_same", "cases", "draw", "layouts", "plain", "samples"]


def assert_same(got: Array, want: Array, where: str = "") -> None:
    """Equal in type, shape, value and the sign of zeros; any NaN equals any other."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    np.testing.assert_array_equal(plain(got), plain(want), where)
    if plain(want).dtype.kind == "f":
        zero = plain(want) == 0
        np.testing.assert_array_equal(np.signbit(plain(got)[zero]), np.signbit(plain(want)[zero]), f"{where}: signs of zeros")


def assert_close(got: Array, want: Array, dt: DType, where: str = "") -> None:
    """Equal in type and shape, and in value to the tolerance of `dt`, relative and (for sums that cancel) absolute."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    np.testing.assert_allclose(plain(got), plain(want), rtol=CLOSE.get(dt, 0), atol=CLOSE.get(dt, 0), err_msg=where)

# instruction sets of this machine, those whose code differs, best first
ISAS = [isa.name for isa in reversed({isa.flags: isa for isa in reversed(available())}.values())]
VECTORS = "+".join((available()[0].name, *sorted(available()[0].features - {"amx", "amx_int8"})))  # the best of this machine without its matrix units
