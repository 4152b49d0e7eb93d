"""Kernels of reductions, with the elementwise chain that feeds them and the one that follows."""
from __future__ import annotations

from collections.abc import Callable

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, indent, params, unravel
from rlxpy.backends.cpu.folds import OPERATOR, Fold, declared, folded, folds_of, result_of
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, Nest, aligned, index, nest, offset
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Shape, product, upper
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major

COLUMNS = 128  # results that one task makes side by side, where neighbours in memory are folded into neighbouring results


@dataclass(frozen=True)
class Walks:
    """Loops over what is kept and over what is folded.  Of `before` (the operands that the chain before the reduction reads): their
    strides along both; `after`: those of the operands that the chain behind it reads, along what is kept."""

    kept: Nest
    gone: Nest
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def sources(self) -> tuple[Shape, ...]:
        return self.kept.strides[:len(self.before)]

    @property
    def targets(self) -> tuple[Shape, ...]:
        return self.kept.strides[len(self.before):]


def emit(site: Site) -> Kernel:
    """One pass over the source.  The inner loop runs over folded neighbours, or over the results where kept neighbours are contiguous."""
    body = body_of(site)
    root = next(n for n in body if n.op in OPERATOR)
    shape = body.type(root.inputs[0]).shape
    axes = tuple(sorted(a % len(shape) for a in root.attrs.axes))  # type: ignore[attr-defined]
    given = {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}
    feeding, ending = scalar.chain(body, given, root.inputs[0]), scalar.chain(body, {**given, root.refs[0]: "folded"})
    places = [n.refs[0] for n in body.inputs]
    walks = walks_of(site, body, root, axes, tuple(k for k, r in enumerate(places) if r in feeding.reads), tuple(k for k, r in enumerate(places) if r in ending.reads))
    columns = any(s[-1] == 1 for s in walks.sources) and not any(s[-1] == 1 for s in walks.gone.strides)
    folds = folds_of(root.op, body.type(root.inputs[0]).dtype, feeding.result)
    count = ctext.dim(product(shape[a] for a in axes))
    before = [*loads(site, walks.before, lambda i, k: f"g{k}[{index((walks.sources if columns else walks.gone.strides)[i][-1])}]"), *feeding.lines]
    value = scalar.rounded(root.type.dtype, result_of(root.op, body.type(root.inputs[0]).dtype, count))
    after = [f"const {ctext.value(root.type.dtype)} folded = {value};",
             *loads(site, walks.after, lambda i, k: f"e{k}[{index(walks.targets[i][-1])}]" if columns else f"*e{k}"), *ending.lines,
             f"y[{'at + j' if columns else 'r'}] = {scalar.store(site.out.dtype, ending.result)};"]
    write = _columns if columns else _rows
    lines, tasks = write(site, walks, folds, before, after)
    return Kernel(params(site.ins, site.out), "\n".join(lines), arguments(site.ins, site.out), tasks, symbols_used(site))


def _rows(site: Site, walks: Walks, folds: tuple[Fold, ...], before: list[str], after: list[str]) -> tuple[list[str], str]:
    """A result at a time: the last of the folded axes is the inner loop."""
    kept, gone = walks.kept, walks.gone
    rows, width = ctext.dim(product(kept.sizes)), ctext.dim(gone.inner)
    per_task = max(1, TASK_NUMEL // max(1, upper(product(gone.sizes))))
    outer = ctext.dim(product(gone.outer))
    inner = [*pointers(site, walks.before, "g", "p", lambda i: offset(gone.strides[i][:-1], "g_")), *folded(width, before, folds)]
    loop = inner if outer == "1" else [f"for (i64 s = 0; s < {outer}; s++) {{", *indent(renamed(unravel(gone.outer, "s"))), *indent(inner), "}"]
    lines = [f"const i64 rows = {rows}, r1 = rlx_least(t1*{per_task}, rows);", f"for (i64 r = t0*{per_task}; r < r1; r++) {{", *indent(unravel(kept.sizes)),
             *indent(pointers(site, walks.before, "p", "x", lambda i: offset(walks.sources[i]))),
             *indent(pointers(site, walks.after, "e", "x", lambda i: offset(walks.targets[i]))),
             *indent(declared(folds)), *indent(loop), *indent(after), "}"]
    return lines, f"rlx_ceil_quotient({rows}, {per_task})"


def _columns(site: Site, walks: Walks, folds: tuple[Fold, ...], before: list[str], after: list[str]) -> tuple[list[str], str]:
    """Neighbouring results at a time, each with its accumulators in the first cache."""
    kept, gone = walks.kept, walks.gone
    width, blocks = ctext.dim(kept.inner), f"rlx_ceil_quotient({ctext.dim(kept.inner)}, {COLUMNS})"
    rename = [f"{f.name}s[j]" for f in folds]
    steps = [*before, *(f.step(into, f.value) for f, into in zip(folds, rename, strict=True))]
    lines = ["for (i64 t = t0; t < t1; t++) {", f"  const i64 blocks = {blocks}, r = t / blocks, j0 = t % blocks*{COLUMNS}, n = rlx_least({COLUMNS}, {width} - j0);",
             f"  const i64 at = r*{width} + j0;", *indent(unravel(kept.outer)),
             *indent(pointers(site, walks.before, "p", "x", lambda i: f"{offset(walks.sources[i][:-1])} + {index(walks.sources[i][-1], 'j0')}")),
             *indent(pointers(site, walks.after, "e", "x", lambda i: f"{offset(walks.targets[i][:-1])} + {index(walks.targets[i][-1], 'j0')}")),
             *(f"  {f.c} {f.name}s[{COLUMNS}] RLX_ALIGNED;" for f in folds),
             f"  for (i64 j = 0; j < n; j++) {{ {' '.join(f'{into} = {f.start};' for f, into in zip(folds, rename, strict=True))} }}",
             f"  for (i64 s = 0; s < {ctext.dim(product(gone.sizes))}; s++) {{", *indent(renamed(unravel(gone.sizes, "s")), 2),
             *indent(pointers(site, walks.before, "g", "p", lambda i: offset(gone.strides[i], "g_")), 2),
             "    RLX_SIMD", "    for (i64 j = 0; j < n; j++) {", *indent(steps, 3), "    }", "  }",
             "  RLX_SIMD", "  for (i64 j = 0; j < n; j++) {", *indent([f"const {f.c} {f.name} = {into};" for f, into in zip(folds, rename, strict=True)], 2),
             *indent(after, 2), "  }", "}"]
    return lines, f"{ctext.dim(product(kept.outer))}*{blocks}"


def walks_of(site: Site, body: Graph, root: Node, axes: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> Walks:
    shape, result = body.type(root.inputs[0]).shape, root.type.shape
    left = tuple(a for a in range(len(shape)) if a not in axes)
    places = left if root.attrs.keep else tuple(range(len(left)))  # type: ignore[attr-defined]
    sizes = tuple(shape[a] for a in left)
    sources = [aligned(site.ins[k].shape, site.ins[k].layout, shape) for k in before]
    more = [aligned(site.ins[k].shape, site.ins[k].layout, result) for k in after]
    kept = nest(sizes, (*(tuple(w[a] for a in left) for w in sources), *(tuple(w[a] for a in places) for w in more), row_major(sizes).strides))
    return Walks(kept, nest(tuple(shape[a] for a in axes), tuple(tuple(w[a] for a in axes) for w in sources)), before, after)


def loads(site: Site, operands: tuple[int, ...], element: Callable[[int, int], str]) -> list[str]:
    """element(position among the operands, operand): C of an element in memory."""
    return [f"const {ctext.value(site.ins[k].dtype)} a{k} = {scalar.load(site.ins[k].dtype, element(i, k))};" for i, k in enumerate(operands)]


def pointers(site: Site, operands: tuple[int, ...], name: str, base: str, offset: Callable[[int], str]) -> list[str]:
    return [f"const {site.ins[k].c} *{name}{k} = {base}{k} + {offset(i)};" for i, k in enumerate(operands)]


def renamed(lines: list[str]) -> list[str]:
    """Indices g_0, g_1, .. of what is folded, beside those of what is kept."""
    return [line.replace("i64 i", "i64 g_").replace("rest", "left") for line in lines]
