"""A pass: soft caps that were written out become acme.softcap, which brings its lowering with it."""
from __future__ import annotations

from acme.ops import softcap
from rlxpy.extend import *

x, cap = var("x"), var("cap")


def capped(x: Value, cap: Value) -> Value | None:
    """None declines: a cap that is no one number in the graph."""
    value = cap.node.attrs.value.filled_with() if cap.node.op is Op.CONST else None
    return softcap(x, cap=float(value)) if isinstance(value, float) and x.type.dtype in (DType.F32, DType.F64) else None


FIND = register_ir_pass(Canonicalise(rules(((x / cap).tanh() * cap, capped)), name="acme.find-softcap"), before=("lower-extensions",))
