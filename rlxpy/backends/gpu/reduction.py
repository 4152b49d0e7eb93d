"""GPU kernels of reductions, with the elementwise chain that feeds them and the one that follows."""
from __future__ import annotations

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import body_of, indent, unravel
from rlxpy.backends.cpu.folds import OPERATOR, Fold, declared, folds_of, result_of
from rlxpy.backends.cpu.loops import offset
from rlxpy.backends.cpu.reduction import loads, pointers, renamed, walks_of
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Site, arguments, params, quotient, symbols_used
from rlxpy.backends.gpu.lines import by_thread, steps
from rlxpy.ir.dims import product
from rlxpy.ir.graph import Ref

FOLD = {"+": "rlx_sum", "*": "rlx_prod", "max": "rlx_max", "min": "rlx_min", "|": "rlx_or", "&": "rlx_and",
        "rlx_mul_c64": "rlx_prod", "rlx_mul_c128": "rlx_prod"}  # of block.h, by the operator of cpu/folds.py


def emit(site: Site) -> Kernel:
    """A thread or a block for each result."""
    body = body_of(site)
    root = next(n for n in body if n.op in OPERATOR)
    source = body.type(root.inputs[0])
    axes = tuple(sorted(a % source.rank for a in root.attrs.axes))  # type: ignore[attr-defined]
    given = {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}
    feeding, ending = scalar.chain(body, given, root.inputs[0]), scalar.chain(body, {**given, root.refs[0]: "folded"})

    def read(reads: frozenset[Ref]) -> tuple[int, ...]:
        return tuple(k for k, n in enumerate(body.inputs) if n.refs[0] in reads)

    walks = walks_of(site, body, root, axes, read(feeding.reads), read(ending.reads))
    kept, gone = walks.kept, walks.gone
    folds = folds_of(root.op, source.dtype, feeding.result)
    rows, count = product(kept.sizes), product(gone.sizes)
    alone = by_thread(count, rows, any(s[-1] == 1 for s in walks.sources) and not any(s[-1] == 1 for s in gone.strides))
    first, step = steps(alone)
    value = scalar.rounded(root.type.dtype, result_of(root.op, source.dtype, ctext.dim(product(source.shape[a] for a in axes))))
    lines = [*unravel(kept.sizes), *pointers(site, walks.before, "p", "x", lambda i: offset(walks.sources[i])),
             *pointers(site, walks.after, "e", "x", lambda i: offset(walks.targets[i])), *declared(folds),
             f"for (i64 s = {first}; s < {ctext.dim(count)}; s += {step}) {{", *indent(renamed(unravel(gone.sizes, "s"))),
             *indent(loads(site, walks.before, lambda i, k: f"p{k}[{offset(gone.strides[i], 'g_')}]")), *indent([*feeding.lines]),
             *indent([f.step(f.name, f.value) for f in folds]), "}"]
    if not alone:
        lines += [line for f in folds for line in (f"__shared__ {f.c} {f.name}_room[RLX_WAVES];", together(f, f"{f.name}_room"))]
    after = [f"const {ctext.value(root.type.dtype)} folded = {value};", *loads(site, walks.after, lambda i, k: f"*e{k}"), *ending.lines,
             f"y[r] = {scalar.store(site.out.dtype, ending.result)};"]
    lines += after if alone else ["if (threadIdx.x == 0) {", *indent(after), "}"]
    text = ["const i64 r = rlx_thread();", f"if (r < {ctext.dim(rows)}) {{", *indent(lines), "}"] if alone else ["const i64 r = blockIdx.x;", *lines]
    return Kernel(params(site.ins, site.out), "\n".join(text), arguments(site.ins, site.out), (quotient(rows, THREADS) if alone else rows,), sizes=symbols_used(site))


def together(f: Fold, room: str) -> str:
    """What each thread of the block has folded becomes what all have; `room` is shared memory."""
    return f"{f.name} = rlx_block_fold<{FOLD[f.operator]}>({f.name}, {room});"
