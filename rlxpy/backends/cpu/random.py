"""Kernel of random words: blocks of a counter, independent of one another."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.templates import render
from rlxpy.ir.dims import product
from rlxpy.ir.random import GROUPS, PARITY, ROTATIONS

BLOCKS_PER_TASK = 1 << 12  # a power of two, so that a task's counters share their upper word


def emit_bits(site: Site) -> Kernel:
    (key,), out = site.ins, site.out
    numel = product(out.shape)
    text = render("cpu/random_bits.c.j2", groups=GROUPS, rotations=ROTATIONS, parity=PARITY, per_task=BLOCKS_PER_TASK, numel=ctext.dim(numel),
                  key_step=ctext.dim(key.layout.strides[0]))
    tasks = f"rlx_ceil_quotient({ctext.dim(numel)}, {2 * BLOCKS_PER_TASK})"
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), tasks, symbols_used(site))
