"""Kernels of Fourier transforms: mixed radices in Stockham's order, which needs no permutation; Bluestein's convolution where a factor is a large prime."""
from __future__ import annotations

from collections.abc import Iterable
from math import cos, pi, sin
from typing import Any

import numpy as np

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import arguments, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Shape, product
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op
from rlxpy.ir.types import TensorType

LONGEST = 1 << 14   # points: the tables are part of the C text
RADICES = (4, 2, 3, 5, 7, 11, 13)
SLOTS = 16          # tasks of a call, each with memory of its own


@dataclass(frozen=True)
class Pass:
    """One sweep over the points: `groups` butterflies of `radix` points, each for `stride` neighbours."""

    radix: int
    stride: int
    groups: int


def passes(points: int) -> tuple[Pass, ...] | None:
    """None where a factor is none of the radices."""
    found, stride = [], 1
    for radix in RADICES:
        while points % radix == 0:
            points //= radix
            found.append(Pass(radix, stride, points))
            stride *= radix
    return tuple(found) if points == 1 else None


def length(points: int) -> int:
    """Points that the passes run over: for Bluestein's convolution a power of two that holds two of the length."""
    return points if passes(points) is not None else 1 << (2 * points - 2).bit_length()


def points_of(x: TensorType, node: Node) -> int:
    a: Any = node.attrs
    n = a.n if node.op is Op.IRFFT else x.shape[a.axis]
    assert isinstance(n, int), "the row asks for a size that is known"
    return n


def scratch_nbytes(graph: Graph, node: Node) -> int:
    x = graph.type(node.inputs[0])
    return SLOTS * 4 * length(points_of(x, node)) * real_of(x.dtype).nbytes


def real_of(d: DType) -> DType:
    return DType.F64 if d in (DType.F64, DType.C128) else DType.F32


@dataclass(frozen=True)
class Transform:
    """What templates/cpu/fourier_row.j2 says of a node, and its tables: turns of the unit circle, and of Bluestein's convolution the chirp
    and its transform."""

    points: int
    length: int
    real: DType
    lead: Shape
    tables: tuple[str, ...]
    facts: dict[str, Any]


def transform_of(site: Site) -> Transform:
    (x,), out, op = site.ins, site.out, site.node.op
    n = points_of(TensorType(x.shape, x.dtype), site.node)
    axis, real = site.node.attrs.axis % len(x.shape), real_of(x.dtype)  # type: ignore[attr-defined]
    size, lead = length(n), (*x.shape[:axis], *x.shape[axis + 1:])
    sweeps = passes(size)
    assert sweeps is not None, "a power of two, or what has passes"
    k = np.arange(n)
    chirp = np.exp(-1j * pi * (k * k % (2 * n)) / n)
    wrapped = np.zeros(size, complex)
    if size != n:
        wrapped[:n], wrapped[size - n + 1:] = chirp.conj(), chirp.conj()[:0:-1]
    tables = [np.exp(-2j * pi * np.arange(size) / size), *([chirp, np.fft.fft(wrapped)] if size != n else [])]
    facts = {"n": n, "N": size, "kind": op.text, "T": real.text, "rows": ctext.dim(product(lead)), "unravel": unravel(lead), "convolved": size != n,
             "x_at": _at(x, axis), "y_at": _at(out, axis), "x_step": ctext.dim(x.layout.strides[axis]), "y_step": ctext.dim(out.layout.strides[axis]), "passes": sweeps,
             "butterfly": butterfly, "scale": ctext.literal(1 / n, real), "filter_scale": ctext.literal(1 / size, real)}
    return Transform(n, size, real, lead, tuple(_table(t, real) for t in tables), facts)


def emit(site: Site) -> Kernel:
    t = transform_of(site)
    text = render("cpu/fourier.c.j2", slots=SLOTS, restrict="restrict", sync="", loop=lambda count, first=0: f"for (i64 j = {first}; j < {count}; j++)",
                  **dict(zip(("turns", "chirp", "filter"), t.tables, strict=False)), **t.facts)
    return Kernel((*params(site.ins, site.out), "char *scratch"), text, (*arguments(site.ins, site.out), site.scratch), f"rlx_least({SLOTS}, {t.facts['rows']})", symbols_used(site))


def _at(o: Operand, axis: int) -> str:
    strides = (*o.layout.strides[:axis], *o.layout.strides[axis + 1:])
    return " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(strides) if s != 0) or "0"


def _table(values: Iterable[complex], real: DType) -> str:
    """Real and imaginary parts, one after the other."""
    return ", ".join(ctext.literal(part, real) for v in values for part in (v.real, v.imag))


def butterfly(radix: int, real: str) -> list[str]:
    """C that makes of the points a0r, a0i, a1r, .. their transform b0r, b0i, b1r, .."""
    if radix == 2:
        return [f"const {real} b0{c} = a0{c} + a1{c}, b1{c} = a0{c} - a1{c};" for c in "ri"]
    if radix == 4:
        return [*(f"const {real} s{c} = a0{c} + a2{c}, d{c} = a0{c} - a2{c}, t{c} = a1{c} + a3{c}, e{c} = a1{c} - a3{c};" for c in "ri"),
                *(f"const {real} b0{c} = s{c} + t{c}, b2{c} = s{c} - t{c};" for c in "ri"),
                f"const {real} b1r = dr + ei, b1i = di - er, b3r = dr - ei, b3i = di + er;"]
    return list(_odd(radix, real))


def _odd(radix: int, real: str) -> Iterable[str]:
    """Points k and radix - k meet in sums and differences, which cosines and sines weigh."""
    d, half = dtype(real), range(1, radix // 2 + 1)
    for k in half:
        for c in "ri":
            yield f"const {real} s{k}{c} = a{k}{c} + a{radix - k}{c}, d{k}{c} = a{k}{c} - a{radix - k}{c};"
    for c in "ri":
        yield f"const {real} b0{c} = a0{c} + {' + '.join(f's{k}{c}' for k in half)};"
    for j in half:
        turn = {k: 2 * pi * (j * k % radix) / radix for k in half}
        for c in "ri":
            yield f"const {real} p{j}{c} = a0{c} + {' + '.join(f'{ctext.literal(cos(turn[k]), d)}*s{k}{c}' for k in half)};"
            yield f"const {real} q{j}{c} = {' + '.join(f'{ctext.literal(sin(turn[k]), d)}*d{k}{c}' for k in half)};"
        yield f"const {real} b{j}r = p{j}r + q{j}i, b{j}i = p{j}i - q{j}r, b{radix - j}r = p{j}r - q{j}i, b{radix - j}i = p{j}i + q{j}r;"
