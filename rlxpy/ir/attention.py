"""What attention and rotary positions mean, in NumPy."""
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from rlxpy.ir.dtypes import Array


def attention(q: Array, k: Array, v: Array, *mask: Array, scale: float, **kind: Any) -> Array:
    """softmax(q k^T scale + mask) v with q [b, h, t, d], k and v [b, g, s, d], h a multiple of g.

    Causal is anchored bottom-right: the last query sees every key.  A row that may see nothing gives zeros.
    Integer masks [.., 2] are spans: a query sees the keys from the first number to before the second."""
    if mask and mask[0].dtype.kind in "iu":
        return _spanned(q, k, v, mask[0], scale=scale, **kind)
    b, h, t, d = q.shape
    g, s = k.shape[1], k.shape[2]
    if q.size == 0 or s == 0:
        return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    scores = (q.reshape(b, g, h // g * t, d) @ k.swapaxes(-1, -2)).reshape(b, h, t, s) * q.dtype.type(scale)
    if kind["softcap"]:
        scores = np.tanh(scores / q.dtype.type(kind["softcap"])) * q.dtype.type(kind["softcap"])
    for m in mask:
        scores = np.where(m, scores, -np.inf) if m.dtype == np.bool_ else scores + m
    if (seen := visible(t, s, kind["mask"], kind["window"])) is not None:
        scores = np.where(seen, scores, scores.dtype.type(-np.inf))
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    p = (e / np.where(total == 0, 1, total)).astype(q.dtype, copy=False)
    return np.asarray((p.reshape(b, g, h // g * t, s) @ v).reshape(b, h, t, v.shape[3]))


def _spanned(q: Array, k: Array, v: Array, spans: Array, *, scale: float, softcap: float, **kind: Any) -> Array:
    """By runs of queries with one span, so that sequences packed into one cost what they would alone."""
    (b, h, t, _), s = q.shape, k.shape[2]
    ends = np.broadcast_to(spans, (b, h, t, 2)).clip(0, s).astype(np.int64)
    seen = visible(t, s, kind["mask"], kind["window"])
    if (ends != ends[:, :1]).any():
        keys = np.arange(s)
        within = (keys >= ends[..., :1]) & (keys < ends[..., 1:])
        return attention(q, k, v, within if seen is None else within & seen, scale=scale, softcap=softcap, mask="none", window=0)
    out = np.zeros((b, h, t, v.shape[3]), q.dtype)
    for i in range(b if h else 0):
        edges = [0, *(np.flatnonzero((np.diff(ends[i, 0], axis=0) != 0).any(-1)) + 1), t]
        for first, last in pairwise(edges):
            lo, hi = ends[i, 0, first] if first < t else (0, 0)
            rows, cut = slice(first, last), slice(lo, max(lo, hi))
            mask = () if seen is None else (seen[rows, cut],)
            out[i, :, rows] = attention(q[i:i + 1, :, rows], k[i:i + 1, :, cut], v[i:i + 1, :, cut], *mask, scale=scale, softcap=softcap, mask="none", window=0)[0]
    return out


def visible(t: int, s: int, mask: str, window: int) -> Array | None:
    """bool [t, s]: which key each query may see; None when all."""
    if mask == "none" or (t == 1 and mask == "causal"):
        return None
    back = np.arange(t)[:, None] + (s - t) - np.arange(s)[None, :]  # how far behind its query a key lies
    seen = back >= 0
    return np.asarray(seen & (back < window) if mask == "window" else seen)


def rope_frequencies(half: int, theta: float) -> Array:
    """f64 [half]: radians a position turns each pair."""
    return np.asarray(theta ** (-np.arange(half, dtype=np.float64) / half))


def rope(x: Array, position: Array, *freq: Array, theta: float, style: str, dims: int) -> Array:
    """Rotate channel pairs by position.  Su et al. 2021, arXiv:2104.09864.  Angles are f64, so far positions keep their digits."""
    n = dims or x.shape[-1]
    turn = freq[0].astype(np.float64) if freq else rope_frequencies(n // 2, theta)
    angle = position[..., None].astype(np.float64) * turn
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    pick = (slice(0, n // 2), slice(n // 2, n)) if style == "half" else (slice(0, n, 2), slice(1, n, 2))
    out = np.array(x)
    a, b = x[..., pick[0]], x[..., pick[1]]
    out[..., pick[0]] = a * cos - b * sin
    out[..., pick[1]] = b * cos + a * sin
    return out
