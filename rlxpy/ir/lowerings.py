"""`lower` cells: what the larger ops are made of.  Values in, Values out; this is what a backend without a kernel runs.

Narrow floats are widened to f32 for the whole chain and rounded once, as in the reference."""
from __future__ import annotations

from typing import Any

import numpy as np

from rlxpy.ir import functions as F
from rlxpy.ir.attention import rope_frequencies
from rlxpy.ir.dims import Dim, Shape
from rlxpy.ir.dtypes import DType

V = Any  # a Value; naming the class here would close an import circle with the op table


@F.widened
def sigmoid(x: V) -> V:
    e = (-x.abs()).exp()
    return (x >= 0.0).where(1.0 / (e + 1.0), e / (e + 1.0))


@F.widened
def silu(x: V) -> V: return x.eq(-np.inf).where(F.full_like(x, -0.0), x * x.sigmoid())


@F.widened
def softplus(x: V) -> V: return x.maximum(0.0) + (-x.abs()).exp().log1p()


@F.widened
def gelu(x: V) -> V: return x.eq(-np.inf).where(F.full_like(x, -0.0), x * (((x * float(np.sqrt(0.5))).erf() + 1.0) * 0.5))


@F.widened
def gelu_tanh(x: V) -> V:
    c = x.clamp(-20.0, 20.0)
    inner = (c + c * 0.044715 * c * c) * 0.7978845608028654
    return x.eq(-np.inf).where(F.full_like(x, -0.0), x * ((inner.tanh() + 1.0) * 0.5))


@F.widened
def fma(a: V, b: V, c: V) -> V: return a * b + c


@F.widened
def softmax(x: V, axis: int) -> V:
    if x.shape[axis] == 0:
        return x
    e = (x - x.max(axes=(axis,), keep=True)).exp()
    return e / e.sum(axes=(axis,), keep=True)


@F.widened
def log_softmax(x: V, axis: int) -> V:
    if x.shape[axis] == 0:
        return x
    shifted = x - x.max(axes=(axis,), keep=True)
    return shifted - shifted.exp().sum(axes=(axis,), keep=True).log()


@F.widened
def layer_norm(x: V, *params: V, eps: float) -> V:
    d = F.centred(x, (-1,))
    y = d * ((d * d).mean(axes=(-1,), keep=True) + eps).rsqrt()
    return _affine(y, params)


@F.widened
def rms_norm(x: V, *params: V, eps: float) -> V:
    return _affine(x * ((x * x).mean(axes=(-1,), keep=True) + eps).rsqrt(), params)


def _affine(y: V, params: tuple[V, ...]) -> V:
    for p, combine in zip(params, ("mul", "add"), strict=False):
        y = y.apply(combine, (y, p), {})
    return y


@F.widened
def attention(q: V, k: V, v: V, *mask: V, scale: float, **kind: Any) -> V:
    b, h, t, d = q.shape
    g, s = k.shape[1], k.shape[2]
    if s == 0:
        return F.expand(F.full_like(v, 0.0), (b, h, t, v.shape[3]))
    grouped = q if g == h else F.reshape(q, (b, g, h // g * t, d))
    scores = F.reshape(grouped @ F.swap(k), (b, h, t, s)) * scale
    if kind["softcap"]:
        scores = (scores / kind["softcap"]).tanh() * kind["softcap"]
    hidden = F.full_like(scores, -np.inf)
    for m in mask:
        scores = scores + m if m.dtype.is_float else (m if m.dtype is DType.BOOL else _within(m, s)).where(scores, hidden)
    if kind["mask"] != "none":
        back = F.iota(q, (t, s), 0) + F.size(q, s - t) - F.iota(q, (t, s), 1)
        seen = back >= 0
        if kind["mask"] == "window":
            seen = seen.logical_and(back < kind["window"])
        scores = seen.where(scores, hidden)
    top = scores.max(axes=(-1,), keep=True)
    e = (scores - top.eq(-np.inf).where(F.full_like(top, 0.0), top)).exp()
    total = e.sum(axes=(-1,), keep=True)
    p = e / total.eq(0.0).where(F.full_like(total, 1.0), total)
    return F.reshape(F.reshape(p, (b, g, h // g * t, s)) @ v, (b, h, t, v.shape[3]))


def _within(spans: V, s: Dim) -> V:
    """bool [.., s]: which keys lie from the first number to before the second."""
    start, stop = (part.cast(to=DType.I64) for part in F.split(spans, (1, 1), -1))
    keys = F.iota(spans, (s,), 0)
    return (keys >= start).logical_and(keys < stop)


@F.widened
def rope(x: V, position: V, *freq: V, theta: float, style: str, dims: int) -> V:
    n = dims or x.shape[-1]
    turn = freq[0].cast(to=DType.F64) if freq else F.constant(x, rope_frequencies(n // 2, theta))
    angle = F.unsqueeze(position.cast(to=DType.F64), -1) * turn
    cos, sin = angle.cos().cast(to=x.dtype), angle.sin().cast(to=x.dtype)
    head, rest = F.split(x, (n, x.shape[-1] - n), -1) if n != x.shape[-1] else (x, None)
    if style == "half":
        a, c = F.split(head, (n // 2, n // 2), -1)
        turned = F.concat((a * cos - c * sin, c * cos + a * sin), -1)
    else:
        pairs = F.reshape(head, (*head.shape[:-1], n // 2, 2))
        a, c = (F.squeeze(part, -1) for part in F.split(pairs, (1, 1), -1))
        turned = F.reshape(F.concat((F.unsqueeze(a * cos - c * sin, -1), F.unsqueeze(c * cos + a * sin, -1)), -1), head.shape)
    return turned if rest is None else F.concat((turned, rest), -1)


def qmatmul(x: V, *planes: V, encoding: str, shape: Shape) -> V:
    w = F.to_type(F.dequantize(planes, encoding, shape), x.dtype.accumulator)
    flat = F.to_type(x if len(x.shape) > 1 else F.reshape(x, (1, x.shape[0])), x.dtype.accumulator)
    return F.to_type(F.reshape(flat @ F.swap(w), (*x.shape[:-1], shape[0])), x.dtype)


def fused(*xs: V, kind: str, body: Any) -> Any:
    """Put the chain back."""
    return xs[0].builder.inline(body, xs)
