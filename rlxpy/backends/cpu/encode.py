"""The kernel that packs values into q8_0, as a cache of keys and values keeps them."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product
from rlxpy.ir.encoding import encoding

ENCODING = "q8_0"


def emit(site: Site) -> Kernel:
    (x,), (*lead, width), e = site.ins, site.ins[0].shape, encoding(ENCODING)
    assert isinstance(width, int), "the shape rule has checked it"
    rows, per_task = ctext.dim(product(lead)), max(1, TASK_NUMEL // max(1, width))
    *outer, step = x.layout.strides
    text = render("cpu/quantize.c.j2", rows=rows, per_task=per_task, unravel=unravel(tuple(lead)), c=x.c, at=ctext.walk(tuple(outer), tuple(f"i{k}" for k in range(len(lead)))),
                  blocks=width // e.block, block=e.block, block_nbytes=e.block_nbytes, element=scalar.load(x.dtype, f"p[(k*{e.block} + j)*{ctext.dim(step)}]"))
    return Kernel(params(site.ins, site.out), text, arguments(site.ins, site.out), f"rlx_ceil_quotient({rows}, {per_task})", symbols_used(site))
