"""Kernels of order along an axis: argmax and argmin, sort, top_k; and of running sums."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.lines import Lines, lines_of
from rlxpy.backends.cpu.loops import TASK_NUMEL, Nest
from rlxpy.backends.templates import render
from rlxpy.ir.dims import Dim, lower, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

COLUMNS = 64      # lines that lie side by side, in vectors
ROWS = 8          # lines that lie one after the other
SORT_TASKS = 32   # sorting needs room of its own in every task
HEAP_SHARE = 8    # a heap serves when at most one in so many elements is kept
LONG = 4 * TASK_NUMEL   # a line of running sums worth splitting
FEW = 16                # when there are fewer lines than this


def emit_arg(site: Site) -> Kernel:
    (x,), out = site.ins, site.out
    lines = lines_of(site.node.attrs.axis, x, out)  # type: ignore[attr-defined]
    columns = lines.lanes[0] == 1
    lanes, value = COLUMNS if columns else 32, ctext.value(x.dtype)
    wide = x.dtype.bits == 64 or upper(lines.length) >= 2**31
    text = render("cpu/arg.c.j2", n=ctext.dim(lines.length), lanes=lanes, columns=columns, T=value, I="i64" if wide else "i32", c=x.c, step=ctext.dim(lines.steps[0]),
                  x_lane=ctext.dim(lines.lanes[0]), y_lane=ctext.dim(lines.lanes[1]), floating=x.dtype.is_float, than=">" if site.node.op is Op.ARGMAX else "<",
                  element=lambda index: scalar.load(x.dtype, f"p[{index}]"), head=lines.head((x, out), ("x0", "y"), COLUMNS if columns else 1))
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), lines.count(COLUMNS if columns else 1), symbols_used(site))


# ---- running sums --------------------------------------------------------------------------------------------------
def emit_cumsum(site: Site) -> Kernel | tuple[Kernel, ...]:
    """Every line from its start; a few long lines in blocks, whose sums come first."""
    (x,), out = site.ins, site.out
    lines = lines_of(site.node.attrs.axis, x, out)  # type: ignore[attr-defined]
    if site.scratch:
        return _split_sums(site, lines)
    vector = lines.lanes == (1, 1)
    lanes = COLUMNS if vector else ROWS
    text = render("cpu/cumsum.c.j2", n=ctext.dim(lines.length), lanes=lanes, vector=vector, c=x.c, T=ctext.value(x.dtype.accumulator), x_lane=ctext.dim(lines.lanes[0]),
                  y_lane=ctext.dim(lines.lanes[1]), y_step=ctext.dim(lines.steps[1]), element=scalar.load(x.dtype, f"p[k*{ctext.dim(lines.steps[0])} + l*{ctext.dim(lines.lanes[0])}]"),
                  store=lambda t: scalar.store(out.dtype, t), head=lines.head((x, out), ("x0", "y"), lanes))
    return Kernel(params(site.ins, out), text, arguments(site.ins, out), lines.count(lanes), symbols_used(site))


def _split_sums(site: Site, lines: Lines) -> tuple[Kernel, ...]:
    """Sums of blocks, running sums of those, then each block from where the one before ends: the same for any number of threads."""
    (x,), out = site.ins, site.out
    T, n, rows = ctext.value(x.dtype.accumulator), ctext.dim(lines.length), ctext.dim(product(lines.walks.sizes))
    blocks, walks = f"rlx_ceil_quotient({n}, {TASK_NUMEL})", lines.walks
    element = scalar.load(x.dtype, f"p[k*{ctext.dim(lines.steps[0])}]")
    place = "\n".join([f"const i64 blocks = {blocks}, r = t / blocks, b = t % blocks, k0 = b*{TASK_NUMEL}, k1 = rlx_least(k0 + {TASK_NUMEL}, {n});",
                       *unravel(walks.sizes), f"const {x.c} *p = x0 + {at_line(walks, 0)};"])
    text = {
        "sums": f"for (i64 t = t0; t < t1; t++) {{\n{place}\n{T} sum = 0;\nfor (i64 k = k0; k < k1; k++) sum += {element};\nsums[t] = sum;\n}}",
        "starts": f"const i64 blocks = {blocks};\nfor (i64 t = t0; t < t1; t++) {{\n{T} sum = 0;\n"
                  f"for (i64 b = 0; b < blocks; b++) {{ const {T} own = sums[t*blocks + b]; sums[t*blocks + b] = sum; sum += own; }}\n}}",
        "runs": f"for (i64 t = t0; t < t1; t++) {{\n{place}\n{out.c} *q = y + {at_line(walks, 1)};\n{T} sum = sums[t];\n"
                f"for (i64 k = k0; k < k1; k++) {{ sum += {element}; q[k*{ctext.dim(lines.steps[1])}] = {scalar.store(out.dtype, 'sum')}; }}\n}}",
    }
    sums, used = (f"{T} *sums", f"({T} *)({site.scratch})"), symbols_used(site)
    read = params(site.ins)[0], arguments(site.ins)[0]
    both = params(site.ins, out), arguments(site.ins, out)
    return (Kernel((read[0], sums[0]), text["sums"], (read[1], sums[1]), f"{rows}*{blocks}", used),
            Kernel((sums[0],), text["starts"], (sums[1],), rows, used),
            Kernel((*both[0], sums[0]), text["runs"], (*both[1], sums[1]), f"{rows}*{blocks}", used))


def cumsum_scratch(graph: Graph, node: Node) -> int:
    """One sum a block, where lines are split."""
    t, axis = graph.type(node.inputs[0]), node.attrs.axis  # type: ignore[attr-defined]
    longest, rows = upper(t.shape[axis]), product(d for a, d in enumerate(t.shape) if a != axis % t.rank)
    return upper(rows) * -(-longest // TASK_NUMEL) * t.dtype.accumulator.nbytes if longest >= LONG and upper(rows) < FEW else 0


# ---- sort, top_k ---------------------------------------------------------------------------------------------------
def emit_sort(site: Site) -> Kernel:
    """Items of key and index, sorted by their digits; the few of a top_k through a heap."""
    (x,), (values, at) = site.ins, site.outs
    a = site.node.attrs
    lines = lines_of(a.axis, x, values)  # type: ignore[attr-defined]
    n, rows = ctext.dim(lines.length), ctext.dim(product(lines.walks.sizes))
    half = 64 if _is_wide(x.dtype, lines.length) else 32
    kept, few = getattr(a, "k", lines.length), _is_heap(site.node, lines.length)
    text = render("cpu/sort.c.j2", n=n, rows=rows, Item="u128" if half == 64 else "u64", half=half, c=x.c, T=ctext.value(x.dtype), few=few, block=64,
                  digits=x.dtype.accumulator.bits // 8, count=ctext.dim(kept), room=_room(site.node, lines.length), unravel=unravel(lines.walks.sizes),
                  value=scalar.load(x.dtype, f"p[i*{ctext.dim(lines.steps[0])}]"), key=key(x.dtype, half, getattr(a, "descending", True)),
                  x_at=at_line(lines.walks, 0), y_at=at_line(lines.walks, 1), x_step=ctext.dim(lines.steps[0]), y_step=ctext.dim(lines.steps[1]))
    tasks = f"rlx_most(1, rlx_least({SORT_TASKS}, rlx_least({rows}, rlx_ceil_quotient({rows}*{n}, {TASK_NUMEL}))))"  # a divisor
    return Kernel((*params(site.ins, values, at), "char *scratch", "i64 tasks"), text, (*arguments(site.ins, values, at), site.scratch or "0", tasks),
                  tasks if kept != 0 else "0", symbols_used(site))


def key(d: DType, half: int, descending: bool) -> str:
    """C of an unsigned number of `half` bits that is less the earlier v comes."""
    if d.is_float:
        own = d.accumulator
        return f"(u{half})rlx_key_{own.text}(v, {f'(u{own.bits})-1' if descending else '0'})"
    least, greatest = (f"(u{half}){ctext.literal(bound, d)}" for bound in d.range)
    return f"({greatest} - (u{half})v)" if descending else f"((u{half})v - {least})"


def _is_wide(d: DType, length: Dim) -> bool:
    return d.bits == 64 or upper(length) >= 2**32


def _is_heap(node: Node, length: Dim) -> bool:
    return bool(node.op is Op.TOP_K and node.attrs.k * HEAP_SHARE <= lower(length))  # type: ignore[attr-defined]


def _room(node: Node, length: Dim) -> int:
    """Items that one task needs room for."""
    return node.attrs.k if _is_heap(node, length) else 2 * upper(length)  # type: ignore[attr-defined]


def sort_scratch(graph: Graph, node: Node) -> int:
    t, axis = graph.type(node.inputs[0]), node.attrs.axis % graph.type(node.inputs[0]).rank  # type: ignore[attr-defined]
    rows = upper(product(d for a, d in enumerate(t.shape) if a != axis))
    return min(SORT_TASKS, rows) * _room(node, t.shape[axis]) * (16 if _is_wide(t.dtype, t.shape[axis]) else 8)


def at_line(walks: Nest, operand: int) -> str:
    """C of an operand's offset at a line whose indices are i0, i1, .. over all axes of the walk."""
    return " + ".join(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(walks.strides[operand]) if s != 0) or "0"

