"""Kernels of convolution on AMX: weights packed as planes in left tiles, windows gathered into right ones."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlxpy.backends.cpu import amx, conv, ctext
from rlxpy.backends.cpu.amx import TILE, TILE_DEPTH, Scheme, by_planes, split, text
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Abreast, Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.packing import Packed, Take
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Conv
from rlxpy.ir.dims import lower, product
from rlxpy.ir.dtypes import Array
from rlxpy.ir.types import TensorType

RESULTS = 32  # of a task: two column tiles
PAIR = 32     # channels that go together: two row tiles
# a task gathers the windows of so many tiles of k at a time
BF16, X3, X6 = replace(amx.BF16, depth=16), replace(amx.X3, depth=4), replace(amx.X6, depth=4)


@dataclass(frozen=True)
class LeftTiles:
    """[row tiles][k tiles][planes][16 rows][32], rows being columns of what is packed; then for each row whether its numbers may be summed by planes, in a byte."""

    planes: int

    @property
    def c(self) -> str:
        return "u16"

    def pack(self, weights: Array, take: Take) -> Array:
        _, depth, rows = weights.shape
        across, down = -(-rows // TILE), -(-depth // TILE_DEPTH)
        rest = np.zeros((across * TILE, down * TILE_DEPTH), np.float32)
        rest[:rows, :depth] = weights[0].T
        most = (rest.view(np.uint32) & 0x7fffffff).max(axis=1, initial=0).view(np.float32)
        body = across * down * self.planes * TILE * TILE_DEPTH
        out = take(2 * body + across * TILE)
        tiles = out[:2 * body].view(np.uint16).reshape(across, down, self.planes, TILE, TILE_DEPTH)
        for p in range(self.planes):
            head, rest = split(rest)
            tiles[:, :, p] = head.reshape(across, TILE, down, TILE_DEPTH).swapaxes(1, 2)
        out[2 * body:] = by_planes(most)
        return out


def emitter(isa: Isa, scheme: Scheme) -> Emitter:
    return lambda site: _emit(site, isa, scheme)


def _emit(site: Site, isa: Isa, scheme: Scheme) -> Kernel | tuple[Kernel | Abreast, ...]:
    node, at_x, at_w = conv.conv_in(site.node)
    x, w, attrs = site.ins[at_x], site.ins[at_w], node.attrs
    assert isinstance(attrs, Conv)
    weights = _packed(w, scheme)
    if weights is None or not conv.is_product(TensorType(x.shape, x.dtype), TensorType(w.shape, w.dtype)):
        return conv.emitter(isa)(site)
    stages, image = list[Kernel](), conv.in_place(x)
    if any((*attrs.low, *attrs.high)):
        stage, image = conv.laid_out(x, attrs.low, attrs.high, site.scratch)
        stages.append(stage)
    return (*stages, _product(site, scheme, attrs, w, image, weights))


def _packed(w: Operand, scheme: Scheme) -> Packed | None:
    """None for weights that a run makes, or that do not lie one after another."""
    sizes = (w.shape[0], product(w.shape[1:]), w.layout.offset)
    if w.param is None or not w.layout.is_contiguous(w.shape) or not all(isinstance(d, int) for d in sizes):
        return None
    out, depth, offset = map(int, sizes)
    return Packed(w.param, (1, depth, out), (0, 1, depth), offset, LeftTiles(scheme.planes))


def _product(site: Site, scheme: Scheme, attrs: Conv, w: Operand, image: conv.Source, weights: Packed) -> Kernel:
    out, parts = site.out.shape, conv.epilogue(site)
    results = product(out[2:])
    block = conv.channels(w.shape[0], lower(out[0]) * -(-lower(results) // RESULTS), PAIR)
    body = render("cpu/conv_amx.c.j2", T=ctext.value(image.dtype), K=ctext.dim(product(w.shape[1:])), taps=product(w.shape[2:]), P=scheme.planes, KC=scheme.depth, OB=block, PB=RESULTS,
                  NR=RESULTS, slack=image.slack, row=parts.row, inner=parts.inner, **conv.geometry(site, attrs, w.shape, image))
    tasks = f"{ctext.dim(out[0])}*rlx_ceil_quotient({ctext.dim(results)}, {RESULTS})*rlx_ceil_quotient({ctext.dim(w.shape[0])}, {block})"
    return Kernel(("const u16 *restrict w", f"const {ctext.value(image.dtype)} *restrict x", *params(parts.operands, site.out)), body,
                  (weights, image.pointer, *arguments(parts.operands, site.out)), tasks, symbols_used(site),
                  needs=(*text(scheme), render("cpu/conv_amx.h.j2", P=scheme.planes)))
