"""Kernels that calculate: elementwise chains, reductions, products, order along an axis."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import body_of
from rlxpy.backends.cpu.kernel import Site
from rlxpy.backends.cpu.lines import lines_of
from rlxpy.backends.cpu.loops import aligned, index, nest
from rlxpy.ir.dims import lower, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op
from rlxpy.targets.c99.text import Function, at, chain, function, indented, literal, loops, read, typed, wrapped, write


def elementwise(site: Site) -> tuple[Function, ...]:
    """A single op, or a chain of them: one loop nest, one write."""
    body, out = body_of(site), site.out
    walks = nest(out.shape, (*(aligned(o.shape, o.layout, out.shape) for o in site.ins), out.layout.strides))
    given = {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}
    made = chain(body, given)
    loads = [f"const {ctext.value(o.dtype)} a{k} = {read(o, f'x{k}', at(walks.strides[k]))};"
             for k, (o, r) in enumerate(zip(site.ins, given, strict=True)) if r in made.reads]
    return (function(site, loops(walks.sizes, [*loads, *made.lines, write(out.dtype, f"y[{at(walks.strides[-1])}]", made.result)])),)


def accumulated(op: Op, d: DType, acc: str, v: str) -> str:
    """C for what a reduction's accumulator is once `v` is in it.  d: the accumulator's type."""
    match op:
        case Op.SUM | Op.MEAN | Op.CUMSUM: return wrapped(d, "({0} + {1})", acc, v)
        case Op.PROD: return wrapped(d, "({0} * {1})", acc, v)
        case Op.ANY: return f"{acc} || {v}"
        case Op.ALL: return f"{acc} && {v}"
        case _: return typed(f"rlx_{'maximum' if op is Op.MAX else 'minimum'}({{0}}, {{1}})", d).format(acc, v)


def reduction(site: Site) -> tuple[Function, ...]:
    """Axes that stay outside, axes that go inside."""
    (x,), out, op = site.ins, site.out, site.node.op
    rank, d = len(x.shape), x.dtype.accumulator
    axes = tuple(sorted(a % rank for a in site.node.attrs.axes))  # type: ignore[attr-defined]
    left = tuple(a for a in range(rank) if a not in axes)
    sizes = tuple(x.shape[a] for a in left)
    kept = nest(sizes, (tuple(x.layout.strides[a] for a in left), row_major(sizes).strides))
    gone = nest(tuple(x.shape[a] for a in axes), (tuple(x.layout.strides[a] for a in axes),))
    start = {Op.PROD: 1, Op.ALL: 1, Op.MAX: -float("inf") if d.is_float else d.range[0], Op.MIN: float("inf") if d.is_float else d.range[1]}.get(op, 0)
    count = ctext.dim(product(x.shape[a] for a in axes))
    value = f"acc / ({ctext.value(d)}){count}" if op is Op.MEAN else "acc"
    step = f"acc = {accumulated(op, d, 'acc', read(x, 'x0', _plus(at(kept.strides[0]), at(gone.strides[0], 'r'))))};"
    body = loops(kept.sizes, [f"{ctext.value(d)} acc = {literal(start, d)};", *loops(gone.sizes, [step], "r"), write(out.dtype, f"y[{at(kept.strides[1])}]", value)])
    if op in (Op.MAX, Op.MIN) and any(lower(x.shape[a]) == 0 for a in axes):
        return (function(site, [f"if ({count} == 0) return 1;", *body], fails=True),)
    return (function(site, body),)


def extreme_index(site: Site) -> tuple[Function, ...]:
    """The first of the greatest or least; NaN counts as more extreme than any number."""
    (x,), greatest = site.ins, site.node.op is Op.ARGMAX
    a = site.node.attrs.axis % len(x.shape)  # type: ignore[attr-defined]
    lines, c = lines_of(a, x, site.out), ctext.value(x.dtype)
    nan = " || (v != v && top == top)" if x.dtype.is_float else ""
    n, step = ctext.dim(lines.length), index(lines.steps[0], "k")
    row = [f"const {x.c} *line = x0 + {at(lines.walks.strides[0])};", f"{c} top = {read(x, 'line', '0')};", "i64 best = 0;", f"for (i64 k = 1; k < {n}; k++) {{",
           f"  const {c} v = {read(x, 'line', step)};", f"  if (v {'>' if greatest else '<'} top{nan}) {{ top = v; best = k; }}", "}", f"y[{at(lines.walks.strides[1])}] = best;"]
    if lower(lines.length) == 0:
        return (function(site, [f"if ({n} == 0) return 1;", *loops(lines.walks.sizes, row)], fails=True),)
    return (function(site, loops(lines.walks.sizes, row)),)


def cumsum(site: Site) -> tuple[Function, ...]:
    (x,), out = site.ins, site.out
    lines, d = lines_of(site.node.attrs.axis, x, out), x.dtype.accumulator  # type: ignore[attr-defined]
    from_x, to_y = (f"{at(lines.walks.strides[k])} + {index(lines.steps[k], 'k')}" for k in range(2))
    step = [f"acc = {accumulated(Op.CUMSUM, d, 'acc', read(x, 'x0', from_x))};", write(out.dtype, f"y[{to_y}]", "acc")]
    return (function(site, loops(lines.walks.sizes, [f"{ctext.value(d)} acc = 0;", f"for (i64 k = 0; k < {ctext.dim(lines.length)}; k++) {{", *indented(step), "}"])),)


def order_scratch(graph: Graph, node: Node) -> int:
    """Two permutations of a line."""
    shape = graph.type(node.inputs[0]).shape
    return 2 * 8 * max(1, upper(shape[node.attrs.axis % len(shape)]))  # type: ignore[attr-defined]


def order(site: Site) -> tuple[Function, ...]:
    """Sort and top_k: a stable merge sort of the indices of each line."""
    (x,), (values, indices), a = site.ins, site.outs, site.node.attrs
    descending = site.node.op is Op.TOP_K or a.descending  # type: ignore[attr-defined]
    lines, c = lines_of(a.axis, x, values, indices), ctext.value(x.dtype)  # type: ignore[attr-defined]
    taken = ctext.dim(values.shape[a.axis % len(x.shape)])  # type: ignore[attr-defined]
    nan = " || (left != left && right == right)" if x.dtype.is_float else ""
    step = lines.steps[0]
    element = (read(x, "line", place if step == 1 else f"{place}*{ctext.dim(step)}") for place in ("from[a]", "from[b]"))
    outs = [f"{name}[{at(walk)} + {index(to, 'k')}]" for name, walk, to in zip(("y0", "y1"), lines.walks.strides[1:], lines.steps[1:], strict=True)]
    line = [f"const {x.c} *line = x0 + {at(lines.walks.strides[0])};", "i64 *from = work, *to = work + n;", "for (i64 k = 0; k < n; k++) from[k] = k;",
            "for (i64 width = 1; width < n; width *= 2) {", "  for (i64 first = 0; first < n; first += 2*width) {",
            "    const i64 middle = rlx_least(first + width, n), last = rlx_least(first + 2*width, n);", "    i64 a = first, b = middle;",
            "    for (i64 k = first; k < last; k++) {", "      int second = a == middle;", "      if (!second && b < last) {",
            f"        const {c} left = {next(element)}, right = {next(element)};", f"        second = (right {'>' if descending else '<'} left){nan};", "      }",
            "      to[k] = second ? from[b++] : from[a++];", "    }", "  }", "  i64 *sorted = to;", "  to = from;", "  from = sorted;", "}",
            f"for (i64 k = 0; k < {taken}; k++) {{", f"  {outs[0]} = line[from[k]{'' if step == 1 else f'*{ctext.dim(step)}'}];", f"  {outs[1]} = from[k];", "}"]
    return (function(site, [f"const i64 n = {ctext.dim(lines.length)};", *loops(lines.walks.sizes, line)], work="i64"),)


def matmul(site: Site) -> tuple[Function, ...]:
    """Rows of sums where neighbouring columns of the right operand lie side by side, else one sum at a time."""
    (left, right), out = site.ins, site.out
    d, lead = out.dtype.accumulator, out.shape[:-2]
    columns, depth, c = ctext.dim(out.shape[-1]), ctext.dim(left.shape[-1]), ctext.value(out.dtype.accumulator)
    wa, wb = (aligned(o.shape, o.layout, (*lead, *o.shape[-2:])) for o in (left, right))
    rows = nest(out.shape[:-1], (wa[:-1], (*wb[:-2], 0), row_major(out.shape).strides[:-1]))
    a = read(left, "x0", _plus(at(rows.strides[0]), index(wa[-1], "k")))
    b = read(right, "x1", _plus(at(rows.strides[1]), index(wb[-2], "k"), index(wb[-1], "j")))
    place = f"y[{_plus(at(rows.strides[2]), 'j')}]"
    if wb[-1] == 1 and d is out.dtype:
        sums = [f"for (i64 j = 0; j < {columns}; j++) {place} = 0;", f"for (i64 k = 0; k < {depth}; k++) {{", f"  const {c} a = {a};",
                f"  for (i64 j = 0; j < {columns}; j++) {place} = {wrapped(d, '({0} + {1}*{2})', place, 'a', b)};", "}"]
    else:
        sums = [f"for (i64 j = 0; j < {columns}; j++) {{", f"  {c} sum = 0;", f"  for (i64 k = 0; k < {depth}; k++) sum = {wrapped(d, '({0} + {1}*{2})', 'sum', a, b)};",
                f"  {write(out.dtype, place, 'sum')}", "}"]
    return (function(site, loops(rows.sizes, sums)),)


def _plus(*terms: str) -> str:
    return " + ".join(t for t in terms if t != "0") or "0"


