"""Facts about ops that hold everywhere, for NaN, infinities and signed zeros too: each rule is `pattern, replacement`."""
from __future__ import annotations

from typing import Any

from rlxpy.errors import BuildError
from rlxpy.ir import functions as F
from rlxpy.ir.op import Op
from rlxpy.ir.pattern import RuleSet, rules, var

x, outer, inner = var("x"), var("outer"), var("inner")
V = Any  # a Value


def _integer(value: V) -> bool:
    return bool(value.dtype.is_integer)


def _unless_float(x: V, result: V) -> V | None:
    return result if _integer(x) else None


def _zero(x: V) -> V:
    return F.expand(F.constant(x, 0, x.dtype), x.shape)


def _compose_transpose(outer: V, inner: V, x: V) -> V:
    first, then = inner.node.attrs.perm, outer.node.attrs.perm
    return x.transpose(perm=tuple(first[p] for p in then))


def _identity_transpose(outer: V, x: V) -> V | None:
    return x if outer.node.attrs.perm == tuple(range(x.rank)) else None


def _whole_slice(outer: V, x: V) -> V | None:
    a = outer.node.attrs
    return x if outer.shape == x.shape and all(s == 1 for s in a.step) and all(s == 0 for s in a.start) else None


def _compose_slice(outer: V, inner: V, x: V) -> V | None:
    a, b = inner.node.attrs, outer.node.attrs
    start = tuple(lo + at * by for lo, at, by in zip(a.start, b.start, a.step, strict=True))
    step = tuple(p * q for p, q in zip(a.step, b.step, strict=True))
    # one past the last element taken keeps the count and stays inside
    stop = tuple(lo + (n - 1) * by + 1 for lo, n, by in zip(start, outer.shape, step, strict=True))
    try:
        return x.slice(start=start, stop=stop, step=step)
    except BuildError:  # perhaps nothing is taken, or it cannot be shown from the symbols' ranges that the ends are inside
        return None


def _no_pad(outer: V, x: V) -> V | None:
    return x if outer.shape == x.shape else None


CANONICAL: RuleSet = rules(
    # signed zero: -0.0 + 0.0 is 0.0, so only these neutral elements are safe for floats
    (x + -0.0, lambda x: x),
    (x - 0.0, lambda x: x),
    (x * 1.0, lambda x: x),
    (x / 1.0, lambda x: x),
    (1.0 / x, lambda x: x.recip()),
    (x + 0.0, lambda x: _unless_float(x, x)),
    (x * 0.0, lambda x: _zero(x) if _integer(x) else None),
    (x - x, lambda x: _zero(x) if _integer(x) else None),
    (x // 1.0, lambda x: _unless_float(x, x)),
    (Op.NEG(Op.NEG(x)), lambda x: x),
    (Op.ABS(Op.ABS(x).named("inner")), lambda inner: inner),
    (Op.ABS(Op.NEG(x)), lambda x: None if x.dtype.kind == "u" else x.abs()),  # -1 is 255 there
    (Op.RELU(Op.RELU(x).named("inner")), lambda inner: inner),
    (Op.LOGICAL_NOT(Op.LOGICAL_NOT(x)), lambda x: x),
    (Op.LOGICAL_AND(x, True), lambda x: x),
    (Op.LOGICAL_AND(x, False), lambda x: F.expand(F.constant(x, False, x.dtype), x.shape)),
    (Op.LOGICAL_OR(x, False), lambda x: x),
    (Op.LOGICAL_OR(x, True), lambda x: F.expand(F.constant(x, True, x.dtype), x.shape)),
    (Op.BIT_NOT(Op.BIT_NOT(x)), lambda x: x),
    (Op.MAXIMUM(x, x), lambda x: x),
    (Op.MINIMUM(x, x), lambda x: x),
    (Op.WHERE(var("c"), x, x).named("outer"), lambda outer, x: F.expand(x, outer.shape)),
    (Op.TRANSPOSE(Op.TRANSPOSE(x).named("inner")).named("outer"), _compose_transpose),
    (Op.TRANSPOSE(x).named("outer"), _identity_transpose),
    (Op.RESHAPE(Op.RESHAPE(x)).named("outer"), lambda outer, x: F.reshape(x, outer.shape)),
    (Op.RESHAPE(x).named("outer"), lambda outer, x: x if outer.shape == x.shape else None),
    (Op.EXPAND(Op.EXPAND(x)).named("outer"), lambda outer, x: F.expand(x, outer.shape)),
    (Op.EXPAND(x).named("outer"), lambda outer, x: x if outer.shape == x.shape else None),
    (Op.SLICE(x).named("outer"), _whole_slice),
    (Op.SLICE(Op.SLICE(x).named("inner")).named("outer"), _compose_slice),
    (Op.REVERSE(Op.REVERSE(x).named("inner")).named("outer"), lambda outer, inner, x: x if outer.node.attrs == inner.node.attrs else None),
    (Op.PAD(x).named("outer"), _no_pad),
    (Op.CONCAT(x), lambda x: x),
)
