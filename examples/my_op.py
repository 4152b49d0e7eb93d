"""An op of one's own by its whole row, with a lowering: it fuses and runs on every device.  Run: python examples/my_op.py"""
from __future__ import annotations

import numpy as np

import rlxpy
from rlxpy.extend import *

MY_OP = OpExtension("mine.my_op", OpRow(
    1,
    shape=lambda x: x.shape,
    dtype=lambda x: x.dtype,
    ref=lambda x: x + x,           # what it means
    lower=lambda x: x + x,         # what it is made of; without it, bring a kernel
    doc="twice x"))


def main() -> None:
    register_op(MY_OP)             # register_op_strict raises when the name is taken
    b = Builder("m")
    x = b.input("x", (2, 3))
    y = b.custom_op("mine.my_op", x)
    assert isinstance(b.try_custom_op("mine.other_op", x), CustomOpError)  # returned, not raised
    f = rlxpy.compile(b.finish(y.exp()))

    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(f(x), np.exp(2 * x), rtol=1e-6)
    print("runs as", *(hit.text for hit in f.fusion.hits))


if __name__ == "__main__":
    main()
