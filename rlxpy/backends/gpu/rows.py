"""GPU kernels of softmax and norms: a block for each row, with the elementwise chain that feeds it and the one that follows."""
from __future__ import annotations

from collections.abc import Sequence

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import indent, unravel
from rlxpy.backends.cpu.folds import Fold, declared, least
from rlxpy.backends.cpu.lines import lines_of
from rlxpy.backends.cpu.loops import index, offset
from rlxpy.backends.cpu.rows import passes_of
from rlxpy.backends.gpu.kernel import Kernel, Site, arguments, params, symbols_used, threads_for
from rlxpy.backends.gpu.lines import alone, by_lines, steps
from rlxpy.backends.gpu.reduction import together
from rlxpy.backends.templates import render
from rlxpy.ir.op import Op


def emit(site: Site) -> Kernel:
    """Every pass deals the elements to the threads in the same way, so what a thread keeps in the result is its own."""
    made = passes_of(site, room=False)

    def total(lines: Sequence[str], name: str, operator: str, value: str, start: str = "0") -> str:
        fold = Fold(name, ctext.value(made.acc), operator, start, value)
        return "\n".join([*declared([fold]), *_over([*lines, fold.step(name, value)]), together(fold, "room")])

    def finish(value: str, lines: Sequence[str]) -> str:
        return "\n".join(_over(made.ending(value, lines)))

    text = render("gpu/rows.j2", width=ctext.dim(made.width), places=made.places, first=list(made.first), again=list(made.again), total=total, finish=finish, **made.facts())
    return Kernel(params(site.ins, *site.outs), text, arguments(site.ins, *site.outs), (made.rows,), threads_for(made.width), sizes=symbols_used(site))


def _over(lines: list[str]) -> list[str]:
    return ["for (i64 j = threadIdx.x; j < n; j += blockDim.x) {", *indent(lines), "}"]


def emit_softmax(site: Site) -> Kernel:
    """Along any axis: a thread or a block for each line."""
    (x,), out = site.ins, site.out
    if site.node.attrs.axis % len(x.shape) == len(x.shape) - 1:  # type: ignore[attr-defined]
        return emit(site)
    lines, acc = lines_of(site.node.attrs.axis, x, out), out.dtype.accumulator  # type: ignore[attr-defined]
    T, walks = ctext.value(acc), lines.walks
    element = scalar.load(x.dtype, f"p[{index(lines.steps[0], 'k')}]")
    one, folds = alone(lines), (Fold("top", T, "max", least(acc), "v"), Fold("sum", T, "+", "0", "rlx_exp(v - top)"))
    first, step = steps(one)
    loop, take = f"for (i64 k = {first}; k < {ctext.dim(lines.length)}; k += {step})", f"const {T} v = {element};"
    value, last = ("v - top - shift", "shift = rlx_log(sum)") if site.node.op is Op.LOG_SOFTMAX else ("rlx_exp(v - top)*scale", "scale = 1/sum")
    text = [*unravel(walks.sizes), f"const {x.c} *p = x0 + {offset(walks.strides[0])};", f"{out.c} *q = y + {offset(walks.strides[1])};",
            *([] if one else [f"__shared__ {T} room[RLX_WAVES];"])]
    for f in folds:
        text += [*declared([f]), f"{loop} {{ {take} {f.step(f.name, f.value)} }}", *([] if one else [together(f, "room")])]
    text += [f"const {T} {last};", f"{loop} {{ {take} q[{index(lines.steps[1], 'k')}] = {scalar.store(out.dtype, value)}; }}"]
    return by_lines(site, lines, text, one)
