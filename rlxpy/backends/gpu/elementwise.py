"""GPU kernels of elementwise nodes, alone or fused: a thread for each element."""
from __future__ import annotations

from collections.abc import Mapping

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import body_of, indent, unravel
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.cpu.loops import aligned, nest, offset
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Room, Site, arguments, params, quotient, symbols_used
from rlxpy.ir.dims import Dim, Shape, product


def emit(site: Site) -> Kernel:
    body, out = body_of(site), site.out
    walks = nest(out.shape, (*(aligned(o.shape, o.layout, out.shape) for o in site.ins), out.layout.strides))
    made = scalar.chain(body, {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)})
    lines = [*unravel(walks.sizes, "t"), *(load(k, o, f"x{k}[{offset(walks.strides[k])}]") for k, o in enumerate(site.ins)), *made.lines,
             f"y[{offset(walks.strides[-1])}] = {scalar.store(made.dtype, made.result)};"]
    return each(site, product(out.shape), lines)


def load(k: int, o: Operand, element: str) -> str:
    """Declares a{k}, an operand's element as a value to compute with."""
    return f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, element)};"


def each(site: Site, n: Dim, lines: list[str], *, more: Mapping[str, Room] = {}, symbols: Shape = (), needs: tuple[str, ...] = ()) -> Kernel:
    """`lines` for every t < n, each in a thread of its own.  more: further parameters, and what they are given;
    symbols: sizes that the lines mention beside those of the operands."""
    return Kernel((*params(site.ins, *site.outs), *more), over(n, lines), (*arguments(site.ins, *site.outs), *more.values()), (quotient(n, THREADS),), sizes=symbols_used(site, n, *symbols),
                  needs=needs)


def over(n: Dim, lines: list[str]) -> str:
    """`lines` for every t < n, a thread each."""
    return "\n".join(["const i64 t = rlx_thread();", f"if (t < {ctext.dim(n)}) {{", *indent(lines), "}"])
