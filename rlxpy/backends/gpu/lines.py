"""How GPU kernels go along lines: a thread for each, or the threads of a block together."""
from __future__ import annotations

from rlxpy.backends.cpu.lines import Lines
from rlxpy.backends.gpu.elementwise import each
from rlxpy.backends.gpu.kernel import WAVE, Kernel, Site, arguments, params, symbols_used
from rlxpy.ir.dims import Dim, product, upper

FEW = 64  # elements of a line, up to which a thread goes along it alone


def by_thread(length: Dim, lines: Dim, beside: bool) -> bool:
    """Whether lines are short, or many that lie side by side in memory: a wave reads neighbours then."""
    return upper(length) <= FEW or (beside and upper(lines) >= WAVE)


def alone(lines: Lines) -> bool:
    """The same of lines along an axis."""
    return by_thread(lines.length, product(lines.walks.sizes), lines.lanes[0] == 1 and lines.steps[0] != 1)


def steps(one: bool) -> tuple[str, str]:
    """Of a loop over a line's elements, for a thread alone or for those of a block: the first index, and from each to the next."""
    return ("0", "1") if one else ("threadIdx.x", "blockDim.x")


def by_lines(site: Site, lines: Lines, text: list[str], one: bool) -> Kernel:
    """`text` for each line r, by a thread or by a block."""
    rows = product(lines.walks.sizes)
    if one:
        return each(site, rows, ["const i64 r = t;", *text])
    return Kernel(params(site.ins, *site.outs), "\n".join(["const i64 r = blockIdx.x;", *text]), arguments(site.ins, *site.outs), (rows,), sizes=symbols_used(site))
