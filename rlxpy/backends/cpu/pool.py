"""Kernels of pooling and resizing: run after run of results along the last axis."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.conv import CHUNK, in_place, spatial, texts
from rlxpy.backends.cpu.elementwise import arguments, params
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL
from rlxpy.backends.templates import render
from rlxpy.ir.attrs import AvgPool, Pool, Resize
from rlxpy.ir.dims import product, upper
from rlxpy.ir.spatial import least


def emit_pool(site: Site) -> Kernel:
    (x,), out, a = site.ins, site.out, site.node.attrs
    assert isinstance(a, Pool)
    wide, source, size, m = x.dtype.accumulator, in_place(x), spatial(a.size, 1), spatial(out.shape[2:], 1)
    mean = isinstance(a, AvgPool)
    counted = isinstance(a, AvgPool) and not a.count_pad and any((*a.low, *a.high))
    by = spatial(a.strides, 1)
    per_task = max(1, TASK_NUMEL // max(1, upper(m[2]) * upper(product(size))))
    text = render("cpu/pool.c.j2", channels=ctext.dim(x.shape[1]), c=x.c, T=ctext.value(wide), at=ctext.walk(source.strides[:2], ("n", "c")), m=texts(m), n=texts(spatial(x.shape[2:], 1)),
                  size=size, by=by, low=spatial(a.low, 0), dilation=spatial(a.dilation, 1), strides=texts(source.strides[2:]), per_task=per_task, chunk=CHUNK, counted=counted,
                  load=scalar.load(x.dtype, f"image[base + j*{ctext.dim(by[2] * source.strides[4])}]"), start="0" if mean else ctext.literal(least(x.dtype), wide),
                  step="made[j] += v;" if mean else f"made[j] = v > made[j]{' || v != v' if wide.is_float else ''} ? v : made[j];",
                  end=scalar.store(out.dtype, (f"made[j] / {'there[j]' if counted else ctext.literal(product(size), wide)}" if mean else "made[j]")))
    tasks = f"{ctext.dim(out.shape[0] * out.shape[1])}*rlx_ceil_quotient({ctext.dim(m[0] * m[1])}, {per_task})"
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), tasks, symbols_used(site))


def emit_resize(site: Site) -> Kernel:
    (x,), out, a = site.ins, site.out, site.node.attrs
    assert isinstance(a, Resize)
    wide, source, m = x.dtype.accumulator, in_place(x), spatial(out.shape[2:], 1)
    planes = out.shape[0] * out.shape[1]
    per_task = max(1, TASK_NUMEL // max(1, upper(m[2])))
    far = upper(x.shape[-1]) * max(abs(upper(source.strides[4])), 1) >= 2**31
    text = render("cpu/resize.c.j2", points=a.points, linear=a.method == "linear", planes=ctext.dim(planes), channels=ctext.dim(x.shape[1]), c=x.c, T=ctext.value(wide),
                  I="i64" if far else "i32", m=texts(m), n=texts(spatial(x.shape[2:], 1)), strides=texts(source.strides[2:]), origin=ctext.walk(source.strides[:2], ("n", "c")),
                  axes=len(a.shape), per_task=per_task, chunk=CHUNK, load=lambda t: scalar.load(x.dtype, t), store=lambda t: scalar.store(out.dtype, t))
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), f"rlx_ceil_quotient({ctext.dim(planes * m[0] * m[1])}, {per_task})", symbols_used(site))
