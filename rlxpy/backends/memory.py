"""A planned value as a NumPy array over the memory that the plan put it in."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlxpy.extend.plan import Plan, Space
from rlxpy.ir.dims import Sizes, at
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Ref
from rlxpy.ir.types import bind


def view(plan: Plan, r: Ref, sizes: Sizes, spaces: Mapping[Space, Array], fixed: Mapping[int, Array]) -> Array:
    """`spaces` are bytes; `fixed` has arrays that are a buffer by themselves, row-major: params, constants, what a caller lent.  A view of those cannot be written."""
    place, t = plan.places[r], plan.graph.type(r)
    buffer, item = plan.buffers[place.buffer], t.dtype.nbytes
    shape, strides = bind(t.shape, sizes), tuple(s * item for s in bind(place.layout.strides, sizes))
    offset = at(place.layout.offset, sizes) * item
    if 0 in shape:
        return np.empty(shape, t.dtype.numpy)
    if place.buffer not in fixed:
        return np.ndarray(shape, t.dtype.numpy, spaces[buffer.space], buffer.offset + offset, strides)
    base = fixed[place.buffer]
    if shape == base.shape and place.layout.is_contiguous(t.shape):
        return base
    shown: Array = np.ndarray(shape, t.dtype.numpy, base.reshape(-1).view(np.uint8), offset, strides)
    shown.flags.writeable = False
    return shown
