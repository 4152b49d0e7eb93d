"""GPU kernels of elementwise nodes, alone or fused: a thread for each element."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import body_of, indent, unravel
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.cpu.loops import aligned, nest, offset
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Site, arguments, params, quotient, symbols_used
from rlxpy.ir.dims import Dim, product


def emit(site: Site) -> Kernel:
    body, out = body_of(site), site.out
    walks = nest(out.shape, (*(aligned(o.shape, o.layout, out.shape) for o in site.ins), out.layout.strides))
    made = scalar.chain(body, {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)})
    lines = [*unravel(walks.sizes, "t"), *(load(k, o, f"x{k}[{offset(walks.strides[k])}]") for k, o in enumerate(site.ins)), *made.lines,
             f"y[{offset(walks.strides[-1])}] = {scalar.store(made.dtype, made.result)};"]
    return each(site, out.shape, lines)


def load(k: int, o: Operand, element: str) -> str:
    """Declares a{k}, an operand's element as a value to compute with."""
    return f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, element)};"


def each(site: Site, shape: tuple[Dim, ...], lines: list[str], needs: tuple[str, ...] = ()) -> Kernel:
    """`lines` for every t < product(shape), each in a thread of its own."""
    n = product(shape)
    text = "\n".join([f"const i64 t = rlx_thread();\nif (t < {ctext.dim(n)}) {{", *indent(lines), "}"])
    return Kernel(params(site.ins, *site.outs), text, arguments(site.ins, *site.outs), (quotient(n, THREADS),), sizes=symbols_used(site, *shape), needs=needs)
