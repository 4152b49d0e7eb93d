"""GPU kernels of convolution, pooling and resizing: a thread for each result."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.conv import conv_in, epilogue, geometry, in_place, spatial, texts
from rlxpy.backends.gpu.elementwise import each, over
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Site, arguments, params, quotient, symbols_used
from rlxpy.backends.templates import render
from rlxpy.ir.attrs import AvgPool, Conv, Pool, Resize
from rlxpy.ir.dims import product
from rlxpy.ir.spatial import least


def emit_conv(site: Site) -> Kernel:
    """Straight from the operands, and with its epilogue."""
    conv, at_x, at_w = conv_in(site.node)
    x, w, a, out = site.ins[at_x], site.ins[at_w], conv.attrs, site.out
    assert isinstance(a, Conv)
    image, weights, parts, wide = in_place(x), in_place(w), epilogue(site), x.dtype.accumulator
    taken = scalar.load(x.dtype, f"image[{ctext.walk((image.strides[1], *image.strides[2:]), ('c', 'd', 'h', 'v'))}]")
    by = scalar.load(w.dtype, f"weight[{ctext.walk(weights.strides[1:], ('c', 'a', 'b', 'e'))}]")
    text = render("gpu/conv.j2", out=ctext.dim(out.shape[1]), space=ctext.dim(product(out.shape[2:])), w_type=w.c, x_type=x.c, w_o=ctext.dim(weights.strides[0]), T=ctext.value(wide),
                  size_in=texts(spatial(x.shape[2:], 1)), low=spatial(a.low, 0), by=spatial(a.strides, 1), dilation=spatial(a.dilation, 1), row=parts.row, inner=parts.inner,
                  tap=f"made = rlx_fma({taken}, {by}, made);" if wide.is_float else f"made += {taken}*{by};", **geometry(site, a, w.shape, image))
    n = product(out.shape)
    return Kernel((f"const {w.c} *__restrict__ w", f"const {x.c} *__restrict__ x", *params(parts.operands, out)), over(n, text.splitlines()),
                  (w.ref, x.ref, *arguments(parts.operands, out)), (quotient(n, THREADS),), sizes=symbols_used(site))


def emit_pool(site: Site) -> Kernel:
    (x,), out, a = site.ins, site.out, site.node.attrs
    assert isinstance(a, Pool)
    wide, source, size = x.dtype.accumulator, in_place(x), spatial(a.size, 1)
    mean = isinstance(a, AvgPool)
    counted = isinstance(a, AvgPool) and not a.count_pad and any((*a.low, *a.high))
    text = render("gpu/pool.j2", channels=ctext.dim(x.shape[1]), c=x.c, T=ctext.value(wide), at=ctext.walk(source.strides[:2], ("n", "c")), m=texts(spatial(out.shape[2:], 1)),
                  size_in=texts(spatial(x.shape[2:], 1)), size=size, by=spatial(a.strides, 1), low=spatial(a.low, 0), dilation=spatial(a.dilation, 1), counted=counted,
                  load=scalar.load(x.dtype, f"image[{ctext.walk(source.strides[2:], ('d', 'h', 'w'))}]"), start="0" if mean else ctext.literal(least(x.dtype), wide),
                  step="made += v;" if mean else f"made = v > made{' || v != v' if wide.is_float else ''} ? v : made;",
                  end=scalar.store(out.dtype, f"made / {'there' if counted else ctext.literal(product(size), wide)}" if mean else "made"))
    return each(site, product(out.shape), text.splitlines())


def emit_resize(site: Site) -> Kernel:
    (x,), out, a = site.ins, site.out, site.node.attrs
    assert isinstance(a, Resize)
    source = in_place(x)
    text = render("gpu/resize.j2", points=a.points, linear=a.method == "linear", channels=ctext.dim(x.shape[1]), c=x.c, T=ctext.value(x.dtype.accumulator),
                  m=texts(spatial(out.shape[2:], 1)), n=texts(spatial(x.shape[2:], 1)), strides=texts(source.strides[2:]), origin=ctext.walk(source.strides[:2], ("n", "c")),
                  axes=len(a.shape), load=lambda t: scalar.load(x.dtype, t), store=lambda t: scalar.store(out.dtype, t))
    return each(site, product(out.shape), text.splitlines())
