"""GPU kernel that packs values into q8_0, as a cache of keys and values keeps them: a block of the encoding a thread."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import unravel
from rlxpy.backends.cpu.encode import ENCODING as ENCODING
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import Kernel, Site
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product
from rlxpy.ir.encoding import encoding


def emit(site: Site) -> Kernel:
    (x,), (*lead, width), e = site.ins, site.ins[0].shape, encoding(ENCODING)
    assert isinstance(width, int), "the shape rule has checked it"
    blocks = width // e.block
    *outer, step = x.layout.strides
    index = tuple(f"i{k}" for k in range(len(lead)))
    text = render("cpu/quantize_block.j2", block=e.block, element=scalar.load(x.dtype, f"p[j*{ctext.dim(step)}]"))
    return each(site, product(lead) * blocks, [
        f"const i64 r = t / {blocks}, k = t % {blocks};", *unravel(tuple(lead)), f"const {x.c} *p = x0 + {ctext.walk(tuple(outer), index)} + k*{ctext.dim(e.block * step)};",
        f"u8 *q = y + t*{e.block_nbytes};", *text.splitlines()])
