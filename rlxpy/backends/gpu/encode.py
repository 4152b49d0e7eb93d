"""GPU kernel that rounds rows to the nearest codes of an encoding: a group of values with one scale a thread."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import unravel
from rlxpy.backends.cpu.encode import WRITTEN as WRITTEN, encoding_of, group, groups, starts
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import Kernel, Site
from rlxpy.ir.dims import product


def emit(site: Site) -> Kernel:
    (x,), (*lead, width) = site.ins, site.ins[0].shape
    assert isinstance(width, int), "the shape rule has checked it"
    count = groups(encoding_of(site), width)
    *outer, step = x.layout.strides
    return each(site, product(lead) * count, [
        f"const i64 r = t / {count}, k = t % {count};", *unravel(tuple(lead)), f"const {x.c} *p = x0 + {ctext.walk(tuple(outer), tuple(f'i{k}' for k in range(len(lead))))};",
        *group(encoding_of(site), width, starts(site), lambda i: scalar.load(x.dtype, f"p[({i})*{ctext.dim(step)}]"))])
