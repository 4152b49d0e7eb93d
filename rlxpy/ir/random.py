"""Random numbers from keys and counters: equal keys give equal bits on every backend, and no draw depends on another.

A key is u32[2] and serves one draw; `split` makes more of it.  The generator is Threefry-2x32 of 20 rounds: Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC11."""
from __future__ import annotations

from math import prod, tau
from typing import Any

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.ir import functions as F
from rlxpy.ir.dims import Dim, Shape, as_shape, product
from rlxpy.ir.dtypes import Array, DType, dtype
from rlxpy.ir.place import placed

V = Any  # a Value (see ir/lowerings.py)
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # by turns, four rounds each
GROUPS = 5
PARITY = 0x1BD11BDA  # makes the third word of the key
SIGNIFICAND_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}


def threefry(k0: Any, k1: Any, c0: Any, c1: Any) -> tuple[Any, Any]:
    """The two words of block (c0, c1) under a key.  All are u32, arrays or Values alike."""
    key = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = c0 + k0, c1 + k1
    for group in range(GROUPS):
        for by in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << by) | (x1 >> (32 - by))) ^ x0
        x0, x1 = x0 + key[(group + 1) % 3], x1 + key[(group + 2) % 3] + (group + 1)
    return x0, x1


def bits_ref(key: Array, shape: tuple[int, ...]) -> Array:
    """Words 2j and 2j + 1 of the result are block j."""
    numel = prod(shape)
    block = np.arange((numel + 1) // 2, dtype=np.uint64)
    words = threefry(key[:1], key[1:], block.astype(np.uint32), (block >> np.uint64(32)).astype(np.uint32))
    return np.stack(words, -1).reshape(-1)[:numel].reshape(shape)


def bits_lower(key: V, shape: Shape) -> V:
    """Leading axes of the key, if it has some, lead the result."""
    numel, lead = product(shape), key.shape[:-1]
    pairs = (numel + 1) // 2
    block = F.iota(key, (pairs,), 0)
    k0, k1 = F.split(key, (1, 1), -1)
    words = F.stack(threefry(k0, k1, block.cast(to=DType.U32), (block >> 32).cast(to=DType.U32)), -1)
    return F.reshape(F.cut(F.reshape(words, (*lead, pairs * 2)), -1, 0, numel), (*lead, *shape))


def bits_vmap(batched: Any, key: V, shape: Shape) -> V: return bits_lower(key, shape)


# ---- what models draw ----------------------------------------------------------------------------------------------
@placed
def split(key: V, count: Dim = 2) -> V:
    """Keys u32[count, 2] made of one, which is then used up."""
    return key.random_bits(shape=(count, 2))


@placed
def uniform(key: V, shape: Any, to: DType | str = DType.F32) -> V:
    """At least 0 and less than 1, in steps of the type's precision.  Raises BuildError for types without one."""
    d, size = dtype(to), as_shape(shape)
    if d not in SIGNIFICAND_BITS:
        raise BuildError(f"uniform numbers in {d}", why=f"{d} is not among {', '.join(t.text for t in SIGNIFICAND_BITS)}", fix="draw f32 and cast")
    kept = SIGNIFICAND_BITS[d]
    if d is DType.F64:
        high, low = F.split(key.random_bits(shape=(*size, 2)), (1, 1), -1)
        return F.squeeze((high >> 5).cast(to=d) * 2.0 ** -27 + (low >> 6).cast(to=d) * 2.0 ** -53, -1)
    return F.to_type((key.random_bits(shape=size) >> (32 - kept)).cast(to=DType.F32) * 2.0 ** -kept, d)


@placed
def normal(key: V, shape: Any, to: DType | str = DType.F32) -> V:
    """Mean 0, variance 1: the cosine half of Box and Muller's pair, from f32 (f64 for f64)."""
    d, size = dtype(to), as_shape(shape)
    wide = DType.F64 if d is DType.F64 else DType.F32
    radius, angle = F.split(uniform(key, (*size, 2), wide), (1, 1), -1)
    drawn = F.squeeze(((1.0 - radius).log() * -2.0).sqrt() * (angle * tau).cos(), -1)
    return F.to_type(drawn, d)


@placed
def bernoulli(key: V, p: V | float, shape: Any) -> V:
    """bool, true with probability p, which is a number or broadcasts to `shape`."""
    return uniform(key, shape) < p


@placed
def categorical(key: V, logits: V, axis: int = -1) -> V:
    """i64 indices along an axis, each with the probability that softmax gives it: the greatest of logits plus Gumbel noise."""
    u = (key.random_bits(shape=logits.shape) >> 9).cast(to=DType.F32) * 2.0 ** -23 + 2.0 ** -24  # inside 0..1, both ends left out
    return (F.to_type(logits, DType.F32) - (-u.log()).log()).argmax(axis=axis)
