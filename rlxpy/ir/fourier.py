"""The cells of fft, ifft, rfft and irfft: discrete Fourier transforms along one axis; the inverse ones divide by its length."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.ir import functions as F
from rlxpy.ir.derivatives import LINEAR
from rlxpy.ir.dims import Dim, Shape, lower
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.shapes import axis_of
from rlxpy.ir.types import TensorType

V = Any  # a Value (see ir/lowerings.py)
COMPLEX_OF = {DType.F32: DType.C64, DType.F64: DType.C128}
REAL_OF = {c: r for r, c in COMPLEX_OF.items()}
WIDE = frozenset(COMPLEX_OF)


def to_complex(x: TensorType, **_: Any) -> DType: return COMPLEX_OF[x.dtype]
def to_real(x: TensorType, **_: Any) -> DType: return REAL_OF[x.dtype]


def transformed(x: TensorType, *, axis: int) -> Shape:
    _some(x, axis, x.shape[axis_of(axis, x.rank)])
    return x.shape


def halved(x: TensorType, *, axis: int) -> Shape:
    return _resized(transformed(x, axis=axis), axis, x.shape[axis_of(axis, x.rank)] // 2 + 1)


def doubled(x: TensorType, *, n: Dim, axis: int) -> Shape:
    found = x.shape[axis_of(axis, x.rank)]
    _some(x, axis, n)
    if found != n // 2 + 1:
        raise BuildError(f"irfft of {x} to {n} points", why=f"axis {axis} has {found} frequencies, {n} points have {n // 2 + 1}", fix="cut or pad the axis, or change n")
    return _resized(x.shape, axis, n)


def _some(x: TensorType, axis: int, points: Dim) -> None:
    if lower(points) < 1:
        raise BuildError(f"Fourier transform of {x}", why=f"axis {axis} may have {lower(points)} points", fix="transform one point or more; narrow the range of the symbol")


def _resized(shape: Shape, axis: int, size: Dim) -> Shape:
    at = axis_of(axis, len(shape))
    return (*shape[:at], size, *shape[at + 1:])


def ref(name: str) -> Callable[..., Array]:
    """NumPy's function of that name, which NumPy imports at first use."""
    return lambda x, axis, **size: np.asarray(getattr(np.fft, name)(x, axis=axis, **size))


def rfft_vjp(dy: V, y: V, x: V, axis: int) -> tuple[V]:
    """The frequencies that were cut off are zeros."""
    at = axis_of(axis, len(x.shape))
    more = tuple(n - k if i == at else 0 for i, (n, k) in enumerate(zip(x.shape, y.shape, strict=True)))
    return (dy.pad(low=(0,) * len(more), high=more).fft(axis=axis).cast(to=x.dtype),)


def irfft_vjp(dy: V, y: V, x: V, n: Dim, axis: int) -> tuple[V]:
    """Every frequency stands for two, but the first and, of an even number of points, the last."""
    at = axis_of(axis, len(x.shape))
    place = F.iota(x, tuple(d if i == at else 1 for i, d in enumerate(x.shape)), at)
    alone = place.eq(0).logical_or((place * 2).eq(n if isinstance(n, int) else F.size(x, n)))
    weight = alone.where(F.full_like(y, 1.0), F.full_like(y, 2.0)).cast(to=x.dtype)
    return (F.cut(dy.cast(to=x.dtype).ifft(axis=axis), axis, 0, x.shape[at]) * weight,)


FFT: dict[str, Any] = {"ref": ref("fft"), "vjp": lambda dy, y, x, axis: (dy.fft(axis=axis),), "jvp": LINEAR}
IFFT: dict[str, Any] = {"ref": ref("ifft"), "vjp": lambda dy, y, x, axis: (dy.ifft(axis=axis),), "jvp": LINEAR}
RFFT: dict[str, Any] = {"ref": ref("rfft"), "vjp": rfft_vjp, "jvp": LINEAR}
IRFFT: dict[str, Any] = {"ref": ref("irfft"), "vjp": irfft_vjp, "jvp": LINEAR}
