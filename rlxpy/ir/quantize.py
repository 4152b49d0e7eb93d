"""Round-to-nearest quantiser ("rtn"): chooses codes, scales and minimums for encodings with one scale per group."""
from __future__ import annotations

from math import lcm, prod

import numpy as np

from rlxpy.errors import BuildError, InputError
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.encoding import Encoding, Field, encoding
from rlxpy.ir.encoding.field import write


def quantize(values: Array, to: Encoding | str, *, finite: bool = True) -> tuple[Array, ...]:
    """The planes of `values` [..., columns] in an encoding: what `Encoding.decode` reads.

    Groups of zeros stay zeros and stored scales are finite; the bytes are those of ggml's quantize_row_*_ref wherever f16 holds its scales.
    finite: NaN and infinity are an InputError; otherwise their group gets a scale of NaN, and decodes to it.  Raises BuildError for an encoding that rounding alone cannot serve."""
    enc = encoding(to) if isinstance(to, str) else to
    if reason := refusal(enc):
        raise BuildError(f"round-to-nearest cannot write {enc.name}", why=reason, fix="use a quantiser made for it")
    try:
        values = np.asarray(values, np.float32)
    except (TypeError, ValueError) as e:
        raise InputError(f"{enc.name}: {type(values).__name__} holds no numbers", why=str(e), fix="give an array [.., columns] of numbers") from None
    if not values.ndim:
        raise InputError(f"{enc.name}: a single number", why="its groups lie along the last axis", fix="give an array [.., columns]")
    if finite and not np.isfinite(values).all():
        raise InputError(f"{enc.name}: the values hold NaN or infinity", fix="replace them before quantising")
    layout, rows, columns = enc.planes(values.shape), prod(values.shape[:-1]), values.shape[-1]
    if 0 in values.shape:
        return tuple(np.zeros(shape, dtype.numpy) for _, shape, dtype in layout)
    unit = lcm(*(p.record_columns or 1 for p in enc.stored))
    full = np.pad(values.reshape(rows, columns), ((0, 0), (0, -columns % unit)), mode="edge")  # copies of a value move no extreme
    codes, scale, least = _choose(enc, full.reshape(-1, enc.share(enc.scales[0]) or full.shape[1]))
    records = [np.zeros((rows, (full.shape[1] // (p.record_columns or full.shape[1])) * p.record_nbytes), np.uint8) for p in enc.stored]
    for field, bits in ((enc.code, codes), (enc.scales[0], scale), *((f, least) for f in enc.mins)):
        write(field, bits.reshape(-1, field.count), records[field.plane].reshape(-1, enc.stored[field.plane].record_nbytes))
    return tuple(
        np.ascontiguousarray(r[:, : p.row_nbytes(columns)]).view(dtype.numpy).reshape(shape)
        for r, p, (_, shape, dtype) in zip(records, enc.stored, layout, strict=True)
    )


def refusal(enc: Encoding) -> str:
    """Why rounding to nearest cannot write an encoding; "" when it can."""
    levels = (*enc.scales, *enc.mins)
    checks = (
        (len(enc.scales) == 1 and len(enc.mins) <= 1, f"it has {len(enc.scales)} scale levels and {len(enc.mins)} minimum levels"),
        (not (enc.sign or enc.zero or enc.transform or enc.code.table), "its codes have a table, signs, stored zeros or a transform"),
        (all(f.dtype is not None and f.dtype.is_float for f in levels), "its scales are not floats"),
        (len({enc.share(f) for f in levels}) == 1, "scales and minimums have different groups"),
        (all(p.rows == 1 for p in enc.stored), "rows share scales"),
    )
    return next((reason for holds, reason in checks if not holds), "")


def _choose(enc: Encoding, groups: Array) -> tuple[Array, Array, Array]:
    """Bits of the codes [n, per_group], of the scales [n, 1] and of the minimums [n, 1].

    A minimum moves the range's lower end to code 0; a constant zero point lets the value of greatest size sit on code 0, where there is one
    more step; signed codes are symmetric."""
    lost = ~np.isfinite(groups).all(-1, keepdims=True)
    groups = np.where(lost, np.float32(0), groups)
    signed = enc.code.dtype is not None
    top = 2 ** (enc.code.bits - signed) - 1
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    base = np.zeros_like(low)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if enc.mins:
            base = _clipped(enc.mins[0], low)
            step = (high - low) / np.float32(top)
        elif enc.code.zero:
            greatest = np.abs(groups).argmax(-1, keepdims=True)
            step = np.take_along_axis(groups, greatest, -1) / np.float32(-enc.code.zero)
        else:
            step = np.maximum(-low, high) / np.float32(top)
        step = _clipped(enc.scales[0], step)
        scale = _bits(enc.scales[0], step)
        inverse = np.float32(1) / step
        scaled = (groups - base) * np.where((scale != 0) & np.isfinite(inverse), inverse, np.float32(0))
        codes = _half_away(scaled) if signed else np.trunc(scaled + np.float32(enc.code.zero + 0.5))
    codes = codes.clip(-top if signed else 0, top).astype(np.int32).astype(enc.code.word)
    scale = np.where(lost, _bits(enc.scales[0], np.full(1, np.nan, np.float32)), scale)
    return codes, scale, _bits(enc.mins[0], -base / np.float32(enc.mins[0].factor)) if enc.mins else base


def _half_away(x: Array) -> Array:
    """C's roundf."""
    rounded: Array = np.trunc(x) + np.trunc(2 * (x - np.trunc(x)))
    return rounded


def _dtype(field: Field) -> DType:
    assert field.dtype is not None  # refusal saw to it
    return field.dtype


def _clipped(field: Field, x: Array) -> Array:
    """Within the finite range of the stored type, and no negative zero."""
    import ml_dtypes

    limit = float(ml_dtypes.finfo(_dtype(field).numpy).max)  # type: ignore[no-untyped-call]
    return np.asarray(x.clip(-limit, limit) + np.float32(0), np.float32)


def _bits(field: Field, x: Array) -> Array:
    return x.astype(_dtype(field).numpy).view(field.word)
