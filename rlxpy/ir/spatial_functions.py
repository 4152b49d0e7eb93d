"""Convolution, pooling and resizing as one writes them: one number for all axes, padding by name, a bias."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from rlxpy.errors import BuildError
from rlxpy.ir import functions as F
from rlxpy.ir.dims import Dim, Shape, as_shape, divides
from rlxpy.ir.place import placed
from rlxpy.ir.spatial import reach

V = Any  # a Value (see ir/lowerings.py)
Each: TypeAlias = "int | Sequence[int]"  # one for all spatial axes, or one for each
Padding: TypeAlias = "str | int | Sequence[int | tuple[int, int]]"  # "valid", "same", or elements on both sides, or (before, behind), of each axis


@placed
def conv(x: V, w: V, bias: V | None = None, *, strides: Each = 1, padding: Padding = "valid", dilation: Each = 1, groups: int = 1) -> V:
    """x [n, c, *space] with w [out, c / groups, *size], and bias [out].

    "same" makes ceil(size / stride) results, the odd element of padding behind."""
    y = x.conv(w, **_slide(x.shape[2:], w.shape[2:], strides, padding, dilation), groups=groups)
    return y if bias is None else y + _for_channels(bias, y)


@placed
def conv_transpose(x: V, w: V, bias: V | None = None, *, strides: Each = 1, padding: Padding = "valid", dilation: Each = 1, groups: int = 1, extra: Each = 0) -> V:
    """x [n, c, *space] with w [c, out / groups, *size]; padding is cut off, and `extra` elements are added behind, fewer than the stride.

    "same" makes size * stride results."""
    rank = len(x.shape) - 2
    by, far = _each(strides, rank, "strides"), _each(extra, rank, "extra")
    full = tuple(m * s for m, s in zip(x.shape[2:], by, strict=True))
    slide = _slide(full, w.shape[2:], by, padding, dilation)
    reaches = [reach(int(k), d) for k, d in zip(w.shape[2:], slide["dilation"], strict=True)]
    natural = ((m - 1) * s + k - a - b + e for m, s, k, a, b, e in zip(x.shape[2:], by, reaches, slide["low"], slide["high"], far, strict=True))
    y = x.conv_transpose(w, shape=full if padding == "same" else tuple(natural), **slide, groups=groups)
    return y if bias is None else y + _for_channels(bias, y)


@placed
def max_pool(x: V, size: Each, *, strides: Each | None = None, padding: Padding = "valid", dilation: Each = 1) -> V:
    """The greatest of each window; strides None are the window's size."""
    sizes = _each(size, len(x.shape) - 2, "size")
    return x.max_pool(size=sizes, **_slide(x.shape[2:], sizes, sizes if strides is None else strides, padding, dilation))


@placed
def avg_pool(x: V, size: Each, *, strides: Each | None = None, padding: Padding = "valid", dilation: Each = 1, count_pad: bool = True) -> V:
    """The mean of each window, of its real elements alone when count_pad is False; strides None are the window's size."""
    sizes = _each(size, len(x.shape) - 2, "size")
    return x.avg_pool(size=sizes, count_pad=count_pad, **_slide(x.shape[2:], sizes, sizes if strides is None else strides, padding, dilation))


@placed
def resize(x: V, shape: Sequence[Dim] | None = None, *, scale: Each | None = None, method: str = "nearest", points: str = "half_pixel") -> V:
    """To spatial sizes, or to whole multiples of what they are."""
    if (shape is None) == (scale is None):
        raise BuildError(f"resize of {x.type} to {shape} by {scale}", why="either sizes or a scale say how large the result is", fix="give one of them")
    to = as_shape(shape) if scale is None else tuple(n * s for n, s in zip(x.shape[2:], _each(scale, len(x.shape) - 2, "scale"), strict=True))
    return x.resize(shape=to, method=method, points=points)


def _each(value: Each, rank: int, name: str) -> tuple[int, ...]:
    given = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(given) != rank:
        raise BuildError(f"{name} {given}", why=f"{len(given)} numbers for {rank} spatial axes", fix=f"give one, or {rank}")
    return given


def _slide(space: Shape, size: Sequence[Dim], strides: Each, padding: Padding, dilation: Each) -> dict[str, tuple[int, ...]]:
    """The attrs that conv and pooling share."""
    by, apart = _each(strides, len(space), "strides"), _each(dilation, len(space), "dilation")
    sides = _sides(space, size, by, padding, apart)
    return {"strides": by, "low": tuple(a for a, _ in sides), "high": tuple(b for _, b in sides), "dilation": apart}


def _sides(space: Shape, size: Sequence[Dim], strides: Sequence[int], padding: Padding, dilation: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(space)
    if padding == "same":
        return [_same(n, reach(k, d), s) for n, k, s, d in zip(space, size, strides, dilation, strict=True)]  # type: ignore[arg-type]  # conv refuses symbolic windows
    if isinstance(padding, str):
        raise BuildError(f"padding {padding!r}", fix="valid, same, a number, or a number or (before, behind) for each spatial axis")
    given = [padding] * len(space) if isinstance(padding, int) else list(padding)
    if len(given) != len(space):
        raise BuildError(f"padding {given}", why=f"{len(given)} for {len(space)} spatial axes", fix="give one for each, a number or (before, behind)")
    return [(p, p) if isinstance(p, int) else (p[0], p[1]) for p in given]


def _same(n: Dim, reached: int, stride: int) -> tuple[int, int]:
    """Padding for ceil(n / stride) windows."""
    if isinstance(n, int):
        total = max((-(-n // stride) - 1) * stride + reached - n, 0)
    elif divides(stride, n):
        total = max(reached - stride, 0)
    else:
        raise BuildError(f"padding 'same' of a size {n} with stride {stride}", why=f"how much it takes depends on the rest of {n} by {stride}",
                         fix=f"promise a multiple, as in sym('N', step={stride}), or give the padding in numbers")
    return total // 2, total - total // 2


def _for_channels(bias: V, y: V) -> V: return F.reshape(bias, (bias.shape[0], *(1,) * (len(y.shape) - 2)))
