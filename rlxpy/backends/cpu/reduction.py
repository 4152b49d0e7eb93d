"""Kernels of reductions, with the elementwise chain that feeds them, and of rows: softmax, norms."""
from __future__ import annotations

from dataclasses import dataclass

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, indent, params, unravel
from rlxpy.backends.cpu.kernel import Kernel, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned, nest
from rlxpy.ir.dims import Dim, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op


@dataclass(frozen=True)
class Fold:
    """How one reduction is computed: start, one step, how two partial results join, the end.  {a}: accumulator, {v}: value, {n}: count."""

    start: str
    step: str
    end: str = "{a}"
    simd: str = ""      # the operator of an OpenMP reduction clause; "" where partial results do not join by one


def least(d: DType) -> str:
    return ctext.literal(-float("inf") if d.is_float else d.range[0], d)


def greatest(d: DType) -> str:
    return ctext.literal(float("inf") if d.is_float else d.range[1], d)


def fold_of(op: Op, d: DType) -> Fold:
    """A NaN is carried beside an extreme (`nan`), since comparisons lose it."""
    table = {
        Op.SUM: Fold("0", "{a} += {v};", simd="+"),
        Op.MEAN: Fold("0", "{a} += {v};", "{a}/({T})({n})", "+"),
        Op.PROD: Fold("1", "{a} *= {v};", simd="*"),
        Op.MAX: Fold(least(d), "{a} = {v} > {a} ? {v} : {a};", simd="max"),
        Op.MIN: Fold(greatest(d), "{a} = {v} < {a} ? {v} : {a};", simd="min"),
        Op.ANY: Fold("0", "{a} |= {v};", simd="|"),
        Op.ALL: Fold("1", "{a} &= {v};", simd="&"),
    }
    return table[op]


def emit(site: Site) -> Kernel:
    """One pass over the source: the last reduced axis is the inner loop when it is contiguous, else kept neighbours are."""
    body, out = body_of(site), site.out
    root = body[body.outputs[0]]
    source = body.type(root.inputs[0])
    axes = tuple(sorted(a % source.rank for a in root.attrs.axes))  # type: ignore[attr-defined]
    kept_axes = tuple(a for a in range(source.rank) if a not in axes)
    walks = [aligned(o.shape, o.layout, source.shape) for o in site.ins]
    kept = nest(tuple(source.shape[a] for a in kept_axes), (*(tuple(w[a] for a in kept_axes) for w in walks), row_major(tuple(source.shape[a] for a in kept_axes)).strides))
    gone = nest(tuple(source.shape[a] for a in axes), tuple(tuple(w[a] for a in axes) for w in walks))
    fold, acc = fold_of(root.op, source.dtype), ctext.value(source.dtype.accumulator)
    feeding = scalar.chain(body, {n.refs[0]: f"a{k}" for k, n in enumerate(body.inputs)}, root.inputs[0])
    count = ctext.dim(product(source.shape[a] for a in axes))
    loads = [f"const {ctext.value(o.dtype)} a{k} = {scalar.load(o.dtype, f'g{k}[{gone.step(k)}]')};" for k, o in enumerate(site.ins)]
    per_task = max(1, TASK_NUMEL // max(1, upper(product(source.shape[a] for a in axes))))
    extreme = root.op in (Op.MAX, Op.MIN) and source.dtype.is_float
    clause = f"RLX_SIMD_REDUCE({fold.simd}, acc{', nan' if extreme else ''})" if not extreme else f"RLX_SIMD_EXTREME({fold.simd}, acc, nan)"
    step = [*loads, *feeding.lines, fold.step.format(a="acc", v=feeding.result)] + ([f"nan |= {feeding.result} != {feeding.result};"] if extreme else [])
    end = fold.end.format(a="acc", T=acc, n=count)
    final = f"(nan ? ({acc})__builtin_nan(\"\") : {end})" if extreme else end
    lines = [
        f"const i64 rows = {ctext.dim(product(kept.sizes))}, r1 = rlx_least(t1*{per_task}, rows);",
        f"for (i64 r = t0*{per_task}; r < r1; r++) {{",
        *indent(unravel(kept.sizes)),
        *indent([f"const {o.c} *p{k} = x{k} + {_offset(kept.strides[k])};" for k, o in enumerate(site.ins)]),
        f"  {acc} acc = {fold.start};" + (" int nan = 0;" if extreme else ""),
        f"  for (i64 s = 0; s < {ctext.dim(product(gone.outer))}; s++) {{",
        *indent(_renamed(unravel(gone.outer, "s"), "i", "g_"), 2),
        *indent([f"const {o.c} *g{k} = p{k} + {_offset(gone.strides[k][:-1], 'g_')};" for k, o in enumerate(site.ins)], 2),
        f"    {clause}",
        f"    for (i64 j = 0; j < {ctext.dim(gone.inner)}; j++) {{", *indent(step, 3), "    }",
        "  }",
        f"  y[r] = {scalar.store(out.dtype, final)};",
        "}"]
    return Kernel(params(site.ins, out), "\n".join(lines), arguments(site.ins, out), f"rlx_ceil_quotient({ctext.dim(product(kept.sizes))}, {per_task})",
                  symbols_used(site))


def _offset(strides: tuple[Dim, ...], index: str = "i") -> str:
    return " + ".join(f"{index}{k}*{ctext.dim(s)}" for k, s in enumerate(strides) if s != 0) or "0"


def _renamed(lines: list[str], old: str, new: str) -> list[str]:
    return [line.replace(f"i64 {old}", f"i64 {new}").replace("rest", "left") for line in lines]
