"""GPU kernels of order along an axis: argmax and argmin, sort, top_k; and of running sums."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import count, takewhile

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import unravel
from rlxpy.backends.cpu.lines import Lines, lines_of
from rlxpy.backends.cpu.loops import index, offset
from rlxpy.backends.cpu.order import key
from rlxpy.backends.gpu.elementwise import each, over
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Room, Site, arguments, params, quotient, symbols_used, threads_for
from rlxpy.backends.gpu.lines import alone, by_lines
from rlxpy.backends.templates import read, render
from rlxpy.ir.dims import Dim, product, upper
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import Op

RUN = 1024        # items that a block sorts in shared memory: two times 16 KiB
ITEM_NBYTES = 16  # rlx_item


def emit_arg(site: Site) -> Kernel:
    (x,), out = site.ins, site.out
    lines = lines_of(site.node.attrs.axis, x, out)  # type: ignore[attr-defined]
    places = [*unravel(lines.walks.sizes), f"const {x.c} *p = x0 + {offset(lines.walks.strides[0])};", f"i64 *q = y + {offset(lines.walks.strides[1])};"]
    text = render("gpu/arg.j2", n=ctext.dim(lines.length), places=places, T=ctext.value(x.dtype), alone=alone(lines), threads=THREADS, floating=x.dtype.is_float,
                  than=">" if site.node.op is Op.ARGMAX else "<", element=lambda k: scalar.load(x.dtype, f"p[{index(lines.steps[0], k)}]"))
    return by_lines(site, lines, text.splitlines(), alone(lines))


# ---- running sums --------------------------------------------------------------------------------------------------
def emit_cumsum(site: Site) -> Kernel:
    """A thread from the start to the end of its line; or a block, stretch after stretch."""
    (x,), out = site.ins, site.out
    lines = lines_of(site.node.attrs.axis, x, out)  # type: ignore[attr-defined]
    T, n = ctext.value(x.dtype.accumulator), ctext.dim(lines.length)
    places = [*unravel(lines.walks.sizes), f"const {x.c} *p = x0 + {offset(lines.walks.strides[0])};", f"{out.c} *q = y + {offset(lines.walks.strides[1])};", f"{T} sum = 0;"]
    element, to = scalar.load(x.dtype, f"p[{index(lines.steps[0], 'k')}]"), f"q[{index(lines.steps[1], 'k')}]"
    one = [f"for (i64 k = 0; k < {n}; k++) {{ sum += {element}; {to} = {scalar.store(out.dtype, 'sum')}; }}"]
    together = [f"__shared__ {T} room[{THREADS}];", f"for (i64 k0 = 0; k0 < {n}; k0 += {THREADS}) {{", "  const i64 k = k0 + threadIdx.x;",
                f"  const {T} before = rlx_block_scan(k < {n} ? ({T}){element} : ({T})0, room);", f"  if (k < {n}) {to} = {scalar.store(out.dtype, f'({T})(sum + before)')};",
                f"  sum += room[{THREADS - 1}];", "}"]
    return by_lines(site, lines, [*places, *(one if alone(lines) else together)], alone(lines))


# ---- sort, top_k ---------------------------------------------------------------------------------------------------
def emit_sort(site: Site) -> tuple[Kernel, ...]:
    """Runs sorted in shared memory; those of long lines merged two by two, each item by a search for its place; then the elements by index."""
    x, values, a = site.ins[0], site.outs[0], site.node.attrs
    lines = lines_of(a.axis, x, values)  # type: ignore[attr-defined]
    kept: Dim = getattr(a, "k", lines.length)
    if kept == 0:
        return ()
    widths = _widths(lines.length)
    results = [f"{values.c} *q = y0 + {offset(lines.walks.strides[1])};", f"i64 *to = y1 + {offset(lines.walks.strides[1])};"]
    write = f"q[{index(lines.steps[1], 'i')}] = p[{index(lines.steps[0], 'from')}]; to[{index(lines.steps[1], 'i')}] = from;"
    if not widths:
        return (_runs(site, lines, kept, results, write),)
    total, rows = product(lines.walks.sizes) * lines.length, product(lines.walks.sizes)
    halves = "0", ctext.dim(total)
    merges = (_merge(site, lines, total, width, halves[k % 2], halves[(k + 1) % 2]) for k, width in enumerate(widths))
    last = each(site, rows * kept, [
        f"const i64 i = t % {ctext.dim(kept)}, r = t / {ctext.dim(kept)}, from = items[{halves[len(widths) % 2]} + r*{ctext.dim(lines.length)} + i].at;",
        *unravel(lines.walks.sizes), f"const {x.c} *p = x0 + {offset(lines.walks.strides[0])};", *results, write], more={"const rlx_item *items": Room.SCRATCH})
    return _runs(site, lines), *merges, last


def _widths(length: Dim) -> tuple[int, ...]:
    """Of the runs that are merged, merge after merge; none where a line is one run."""
    return tuple(takewhile(lambda width: width < upper(length), (RUN << k for k in count())))


def _runs(site: Site, lines: Lines, kept: Dim | None = None, results: Sequence[str] = (), write: str = "") -> Kernel:
    """kept, results, write: how many elements of a line that is one run are written, and how; without them the runs go to the scratch."""
    (x,), a, whole = site.ins, site.node.attrs, kept is not None
    run = max(1, min(upper(lines.length), RUN))
    text = render("gpu/sort.j2", run=run, n=ctext.dim(lines.length), whole=whole, kept=ctext.dim(kept or 0), write=write, T=ctext.value(x.dtype),
                  value=scalar.load(x.dtype, f"p[{index(lines.steps[0], '(first + i)')}]"), key=key(x.dtype, 64, getattr(a, "descending", True)),
                  places=[*unravel(lines.walks.sizes), f"const {x.c} *p = x0 + {offset(lines.walks.strides[0])};", *results])
    names, given = (params(site.ins, *site.outs), arguments(site.ins, *site.outs)) if whole else ((*params(site.ins), "rlx_item *items"), (x.ref, Room.SCRATCH))
    blocks = product(lines.walks.sizes) * (1 if whole else quotient(lines.length, RUN))
    return Kernel(names, text, given, (blocks,), threads_for(run), sizes=symbols_used(site), needs=(read("cpu/keys.h"), read("gpu/order.h")))


def _merge(site: Site, lines: Lines, total: Dim, width: int, source: str, target: str) -> Kernel:
    """An item a thread, from one half of the scratch into the other."""
    text = over(total, [f"const i64 n = {ctext.dim(lines.length)}, p = t % n;", f"const rlx_item *const from = items + {source} + (t - p);",
                        f"items[{target} + (t - p) + rlx_merged(from, n, {width}, p)] = from[p];"])
    return Kernel(("rlx_item *items",), text, (Room.SCRATCH,), (quotient(total, THREADS),), sizes=symbols_used(site))


def sort_scratch(graph: Graph, node: Node) -> int:
    """Two places for the items of lines that are more than one run."""
    t = graph.type(node.inputs[0])
    return 2 * ITEM_NBYTES * upper(t.numel) if _widths(t.shape[node.attrs.axis]) else 0  # type: ignore[attr-defined]
