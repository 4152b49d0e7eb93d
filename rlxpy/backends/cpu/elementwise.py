"""Kernels of elementwise nodes, alone or fused: one loop nest, one write."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import Nest, aligned, nest, tasks
from rlxpy.ir.attrs import Fused
from rlxpy.ir.builder import Builder
from rlxpy.ir.dims import Shape
from rlxpy.ir.graph import Graph


def body_of(site: Site) -> Graph:
    """The chain of a fused node; a single op is a chain of one."""
    if isinstance(site.node.attrs, Fused):
        return site.node.attrs.body
    b = Builder("one")
    xs = [b.input(f"in{k}", o.shape, o.dtype) for k, o in enumerate(site.ins)]
    return b.finish(*b.add(site.node.op, xs, site.node.attrs))


def emit(site: Site) -> Kernel:
    body, out = body_of(site), site.out
    walks = nest(out.shape, (*(aligned(o.shape, o.layout, out.shape) for o in site.ins), out.layout.strides))
    given = {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}
    made = scalar.chain(body, given)
    loads = [f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, f'p{k}[{walks.step(k)}]')};" for k, o in enumerate(site.ins)]
    inner = [*loads, *made.lines, f"q[{walks.step(len(site.ins))}] = {scalar.store(made.dtype, made.result)};"]
    return loop_kernel(site, walks, inner)


def loop_kernel(site: Site, walks: Nest, inner: list[str]) -> Kernel:
    deal = tasks(walks)
    ins, out = site.ins, site.out
    pointers = [f"const {o.c} *p{k} = x{k} + {walks.offset(k)};" for k, o in enumerate(ins)] + [f"{out.c} *q = y + {walks.offset(len(ins))};"]
    width = ctext.dim(walks.inner)
    lines: list[str] = []
    if deal.block:
        lines += ["for (i64 t = t0; t < t1; t++) {", *indent(pointers),
                  f"  const i64 j0 = t*{deal.block}, j1 = rlx_least(j0 + {deal.block}, {width});",
                  "  RLX_SIMD", "  for (i64 j = j0; j < j1; j++) {", *indent(inner, 2), "  }", "}"]
    else:
        rows = " * ".join(map(ctext.dim, walks.outer)) or "1"
        lines += [f"const i64 rows = {rows}, r1 = rlx_least(t1*{deal.rows}, rows);", f"for (i64 r = t0*{deal.rows}; r < r1; r++) {{",
                  *indent(unravel(walks.outer)), *indent(pointers), "  RLX_SIMD", f"  for (i64 j = 0; j < {width}; j++) {{", *indent(inner, 2), "  }", "}"]
    return Kernel(params(ins, out), "\n".join(lines), arguments(ins, out), deal.count, symbols_used(site))


def unravel(outer: Shape, row: str = "r") -> list[str]:
    """Indices i0, i1, .. of a row number."""
    if len(outer) == 1:
        return [f"const i64 i0 = {row};"]
    lines = ["i64 rest = " + row + ";"] if outer else []
    for k in reversed(range(len(outer))):
        lines.append(f"const i64 i{k} = rest % {ctext.dim(outer[k])}; rest /= {ctext.dim(outer[k])};" if k else "const i64 i0 = rest;")
    return lines


def params(ins: tuple[Operand, ...], *outs: Operand, first: int = 0) -> tuple[str, ...]:
    names = ["y"] if len(outs) == 1 else [f"y{k}" for k in range(len(outs))]
    return (*(f"const {o.c} *restrict x{k}" for k, o in enumerate(ins, first)), *(f"{o.c} *restrict {n}" for o, n in zip(outs, names, strict=True)))


def arguments(ins: tuple[Operand, ...], *outs: Operand) -> tuple[str, ...]:
    return tuple(o.pointer for o in (*ins, *outs))


def indent(lines: list[str], depth: int = 1) -> list[str]:
    return ["  " * depth + line for line in lines]


