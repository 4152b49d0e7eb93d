"""GPU kernel of random words: a block of the counter a thread."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import Kernel, Site, quotient
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product
from rlxpy.ir.random import GROUPS, PARITY, ROTATIONS


def emit_bits(site: Site) -> Kernel:
    (key,), numel = site.ins, product(site.out.shape)
    text = render("gpu/random_bits.j2", groups=GROUPS, rotations=ROTATIONS, parity=PARITY, numel=ctext.dim(numel), key_step=ctext.dim(key.layout.strides[0]))
    return each(site, quotient(numel, 2), text.splitlines())
