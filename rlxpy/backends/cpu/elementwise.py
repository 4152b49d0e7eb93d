"""Kernels of elementwise nodes, alone or fused: one loop nest, one write."""
from __future__ import annotations

from collections.abc import Sequence

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.kernel import Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import Nest, aligned, nest, tasks
from rlxpy.ir.attrs import Fused
from rlxpy.ir.builder import Builder
from rlxpy.ir.dims import Shape, upper
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op

SLOW = frozenset({  # tens of cycles from operand to result
    Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG1P, Op.SIN, Op.COS, Op.TAN, Op.ASIN, Op.ACOS, Op.ATAN, Op.ATAN2, Op.SINH, Op.COSH, Op.TANH, Op.ERF,
    Op.SIGMOID, Op.SILU, Op.GELU, Op.GELU_TANH, Op.SOFTPLUS, Op.POW, Op.MOD, Op.FLOOR_DIV})
STRIP = 256  # elements that several loops in turn go over: what they keep for one another stays in the first cache


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
    made = scalar.chain(body, {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)})
    loads = {n.refs[0]: f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, f'p{k}[{walks.step(k)}]')};"
             for k, (n, o) in enumerate(zip(body.inputs, site.ins, strict=True))}
    turn = turns(made.nodes) if upper(walks.inner) > STRIP else dict.fromkeys((n.refs[0] for n in made.nodes), 0)
    kept = [n for n in made.nodes if any(n.refs[0] in m.inputs and turn[m.refs[0]] > turn[n.refs[0]] for m in made.nodes)]
    loops = []
    for k in range(max(turn.values()) + 1):
        now = {n.refs[0]: line for n, line in zip(made.nodes, made.lines, strict=True) if turn[n.refs[0]] == k}
        read = {r for n in made.nodes if n.refs[0] in now for r in n.inputs}
        loops.append([*(line for r, line in loads.items() if r in read),
                      *(f"const {ctext.value(n.type.dtype)} v{n.id} = kept{n.id}[j - s];" for n in kept if n.refs[0] in read and n.refs[0] not in now),
                      *now.values(), *(f"kept{n.id}[j - s] = v{n.id};" for n in kept if n.refs[0] in now)])
    loops[-1].append(f"q[{walks.step(len(site.ins))}] = {scalar.store(made.dtype, made.result)};")
    return loop_kernel(site, walks, *loops, kept=[f"{ctext.value(n.type.dtype)} kept{n.id}[{STRIP}] RLX_ALIGNED;" for n in kept])


def turns(nodes: Sequence[Node]) -> dict[Ref, int]:
    """Which of several loops computes each value: a slow op begins another where its operands took one already.

    A processor looks a few hundred instructions ahead: in a loop with a single slow op that is several elements, each waiting for itself."""
    slow: dict[Ref, int] = {}
    for n in nodes:
        slow[n.refs[0]] = max((slow.get(r, 0) for r in n.inputs), default=0) + (n.op in SLOW)
    return {r: max(0, count - 1) for r, count in slow.items()}


def loop_kernel(site: Site, walks: Nest, *loops: list[str], kept: Sequence[str] = ()) -> Kernel:
    """loops: statements at an index j, of one loop after the other; with several, what they keep for one another is declared in `kept`
    and lies at j - s."""
    deal = tasks(walks)
    ins, out = site.ins, site.out
    pointers = [f"const {o.c} *p{k} = x{k} + {walks.offset(k)};" for k, o in enumerate(ins)] + [f"{out.c} *q = y + {walks.offset(len(ins))};"]
    width = ctext.dim(walks.inner)
    lines: list[str] = []
    if deal.block:
        lines += ["for (i64 t = t0; t < t1; t++) {", *indent(pointers),
                  f"  const i64 j0 = t*{deal.block}, j1 = rlx_least(j0 + {deal.block}, {width});", *indent(_strips("j0", "j1", loops, kept)), "}"]
    else:
        rows = " * ".join(map(ctext.dim, walks.outer)) or "1"
        lines += [f"const i64 rows = {rows}, r1 = rlx_least(t1*{deal.rows}, rows);", f"for (i64 r = t0*{deal.rows}; r < r1; r++) {{",
                  *indent(unravel(walks.outer)), *indent(pointers), *indent(_strips("0", width, loops, kept)), "}"]
    return Kernel(params(ins, out), "\n".join(lines), arguments(ins, out), deal.count, symbols_used(site))


def _strips(first: str, last: str, loops: Sequence[list[str]], kept: Sequence[str]) -> list[str]:
    if len(loops) == 1:
        return _loop(first, last, loops[0])
    return [*kept, f"for (i64 s = {first}; s < {last}; s += {STRIP}) {{", f"  const i64 end = rlx_least(s + {STRIP}, {last});",
            *indent([line for lines in loops for line in _loop("s", "end", lines)]), "}"]


def _loop(first: str, last: str, lines: list[str]) -> list[str]:
    return ["RLX_SIMD", f"for (i64 j = {first}; j < {last}; j++) {{", *indent(lines), "}"]


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


