"""Kernels of convolution: a product over gathered windows, or row by row; each with an elementwise epilogue."""
from __future__ import annotations

from itertools import product as every

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.elementwise import arguments, body_of, params
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.loops import TASK_NUMEL, aligned, nest
from rlxpy.backends.cpu.matmul import Tile
from rlxpy.backends.templates import render
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Conv, Fused
from rlxpy.ir.dims import Dim, Shape, lower, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.types import TensorType

RESULTS = 64      # of one channel in a task: whole panels of every instruction set
CHANNELS = 256    # of a task at most
DEPTH = 256       # of a panel: four panels and the weights of a tile stay in the first two caches
ENOUGH_TASKS = 8
MOST_TAPS = 64    # that are written one by one
CHUNK = 256       # results that tap after tap is added to
ALIGN_NBYTES = 64
SLACK_NBYTES = 2 * RESULTS * 8  # a task's results and a panel's width more, of the widest type


def spatial(values: Shape, fill: int) -> Shape:
    """Three axes of space, `fill` for those that are not there."""
    return (*(fill,) * (3 - len(values)), *values)


@dataclass(frozen=True)
class Source:
    """[outer, channels, 3 axes of space] as a kernel reads it: an operand where it lies, or its copy in scratch, behind which one may read on."""

    pointer: str
    dtype: DType
    strides: Shape
    slack: bool = False

    @property
    def c(self) -> str:
        return ctext.storage(self.dtype)


def in_place(o: Operand) -> Source:
    return Source(o.pointer, o.dtype, (*o.layout.strides[:2], *spatial(o.layout.strides[2:], 0)))


def laid_out(o: Operand, low: Shape, high: Shape, room: str) -> tuple[Kernel, Source]:
    """A copy in scratch memory, padded with zeros, in the type that sums are kept in; and the stage that makes it."""
    to = o.dtype.accumulator
    n, before, after = spatial(o.shape[2:], 1), spatial(low, 0), spatial(high, 0)
    sizes = tuple(d + a + b for d, a, b in zip(n, before, after, strict=True))
    source = in_place(o)
    text = render("cpu/lay_out.c.j2", channels=ctext.dim(o.shape[1]), c=o.c, T=ctext.value(to), at=ctext.walk(source.strides[:2], ("n", "c")), sizes=texts(sizes), low=before,
                  n=texts(n), strides=texts(source.strides[2:]), load=scalar.load(o.dtype, f"row[j*{ctext.dim(source.strides[4])}]"))
    pointer = f"({ctext.value(to)} *)({room})"
    stage = Kernel((f"const {o.c} *restrict x0", f"{ctext.value(to)} *restrict room"), text, (o.pointer, pointer), ctext.dim(o.shape[0] * o.shape[1]),
                   frozenset(ctext.names(*o.shape, *o.layout.strides)))
    return stage, Source(pointer, to, row_major((o.shape[0], o.shape[1], *sizes)).strides, slack=True)


def texts(dims: Shape) -> tuple[str, ...]: return tuple(map(ctext.dim, dims))


# ---- what a node asks for ------------------------------------------------------------------------------------------
def conv_in(node: Node) -> tuple[Node, int, int]:
    """The convolution that a node is or has in its chain, and the positions of x and w among the node's inputs."""
    if not isinstance(node.attrs, Fused):
        return node, 0, 1
    found = next(n for n in node.attrs.body if n.op is Op.CONV)
    places = {n.refs[0]: k for k, n in enumerate(node.attrs.body.inputs)}
    return found, places[found.inputs[0]], places[found.inputs[1]]


def is_product(x: TensorType, w: TensorType) -> bool:
    """Whether windows are gathered for register tiles, which are there for floats; of one channel there is too little to multiply."""
    return x.dtype.is_float and w.shape[1] != 1


def _room(x: TensorType, w: TensorType, attrs: Conv, plain_weights: bool) -> tuple[int, int]:
    """Bytes of scratch for x and for w; 0 for one that is read where it lies."""
    padded, wide = any((*attrs.low, *attrs.high)), x.dtype.accumulator
    copies_x = padded or (is_product(x, w) and x.dtype is not wide)
    copies_w = is_product(x, w) and not (plain_weights and w.dtype is wide)
    shape = (*x.shape[:2], *(n + a + b for n, a, b in zip(x.shape[2:], attrs.low, attrs.high, strict=True)))
    return copies_x * (_aligned(TensorType(shape, wide).max_nbytes) + SLACK_NBYTES), copies_w * _aligned(TensorType(w.shape, wide).max_nbytes)


def _aligned(nbytes: int) -> int: return -(-nbytes // ALIGN_NBYTES) * ALIGN_NBYTES


def scratch_nbytes(graph: Graph, node: Node) -> int:
    conv, x, w = conv_in(node)
    assert isinstance(conv.attrs, Conv)
    maker = graph[node.inputs[w]]
    return sum(_room(graph.type(node.inputs[x]), graph.type(node.inputs[w]), conv.attrs, maker.op in LEAVES or maker.row.view is None))


# ---- kernels -------------------------------------------------------------------------------------------------------
def emitter(isa: Isa) -> Emitter:
    return lambda site: _emit(site, isa)


def _emit(site: Site, isa: Isa) -> tuple[Kernel, ...]:
    conv, at_x, at_w = conv_in(site.node)
    x, w, attrs = site.ins[at_x], site.ins[at_w], conv.attrs
    assert isinstance(attrs, Conv)
    tx, tw = TensorType(x.shape, x.dtype), TensorType(w.shape, w.dtype)
    for_x, for_w = _room(tx, tw, attrs, w.layout.is_contiguous(w.shape))
    stages: list[Kernel] = []
    image, weights = in_place(x), in_place(w)
    if for_x:
        stage, image = laid_out(x, attrs.low, attrs.high, site.scratch)
        stages.append(stage)
    if for_w:
        stage, weights = laid_out(w, (), (), f"{site.scratch} + {for_x}")
        stages.append(stage)
    emit = _product if is_product(tx, tw) else _direct
    return (*stages, emit(site, isa, attrs, w.shape, image, weights))


@dataclass(frozen=True)
class Epilogue:
    """What is done with the sum `made` of channel o and result p of item n: `row` once a channel, `inner` once a result."""

    row: list[str]
    inner: list[str]
    operands: tuple[Operand, ...]


def epilogue(site: Site) -> Epilogue:
    body, out = body_of(site), site.out
    conv = next(n for n in body if n.op is Op.CONV)
    space, elsewhere = out.shape[2:], {r for n in body if n is not conv for r in n.inputs}
    given = {conv.refs[0]: scalar.rounded(conv.type.dtype, "made")}
    row, loads, operands = list[str](), list[str](), list[Operand]()
    for n, o in zip(body.inputs, site.ins, strict=True):
        if n.refs[0] not in elsewhere:
            continue
        k, walk = len(operands), aligned(o.shape, o.layout, out.shape)
        operands.append(o)
        row.append(f"const {o.c} *e{k} = x{k} + {ctext.walk(walk[:2], ('n', 'o'))};")
        loads.append(f"const {ctext.value(o.dtype)} a{n.id} = {scalar.load(o.dtype, f'e{k}[{_at_result(space, walk[2:])}]')};")
        given[n.refs[0]] = f"a{n.id}"
    made = scalar.chain(body, given)
    row.append(f"{out.c} *q = y + (n*{ctext.dim(out.shape[1])} + o)*{ctext.dim(product(space))};")
    return Epilogue(row, [*loads, *made.lines, f"q[p] = {scalar.store(made.dtype, made.result)};"], tuple(operands))


def _at_result(space: Shape, strides: Shape) -> str:
    """Offset of result p, which counts through all axes of space."""
    walk = nest(space, (strides,))
    if len(walk.sizes) == 1:
        return ctext.walk(walk.strides[0], ("p",))
    inside = [product(walk.sizes[k + 1:]) for k in range(len(walk.sizes))]
    return ctext.walk(walk.strides[0], tuple(f"(p / {ctext.dim(i)} % {ctext.dim(d)})" for i, d in zip(inside, walk.sizes, strict=True)))


def geometry(site: Site, attrs: Conv, w: Shape, image: Source) -> dict[str, object]:
    """What the templates say of sizes and of steps through the image."""
    space = image.strides[2:]
    return {"groups": attrs.groups, "group_in": ctext.dim(w[1]), "group_out": ctext.dim(w[0] // attrs.groups), "m": texts(spatial(site.out.shape[2:], 1)),
            "x_n": ctext.dim(image.strides[0]), "x_c": ctext.dim(image.strides[1]), "size": spatial(w[2:], 1),
            "step": texts(tuple(s * by for s, by in zip(space, spatial(attrs.strides, 1), strict=True))),
            "apart": texts(tuple(s * by for s, by in zip(space, spatial(attrs.dilation, 1), strict=True)))}


def _product(site: Site, isa: Isa, attrs: Conv, w: Shape, image: Source, weights: Source) -> Kernel:
    out, parts, tile = site.out.shape, epilogue(site), Tile(isa, image.dtype, image.dtype)
    results, value = product(out[2:]), ctext.value(image.dtype)
    block = channels(w[0] // attrs.groups, attrs.groups * lower(out[0]) * -(-lower(results) // RESULTS), tile.rows)
    most = max(min(block, upper(w[0] // attrs.groups)), 1)
    height = -(-most // -(-most // tile.rows))  # tiles of one height: 4 and 4 channels rather than 6 and 2
    text = render("cpu/conv.c.j2", T=value, K=ctext.dim(product(w[1:])), taps=product(w[2:]), MR=height, NR=tile.columns, OB=block, PB=RESULTS, KC=DEPTH, slack=image.slack,
                  row=parts.row, inner=parts.inner, **geometry(site, attrs, w, image))
    tasks = f"{ctext.dim(out[0])}*{attrs.groups}*rlx_ceil_quotient({ctext.dim(results)}, {RESULTS})*rlx_ceil_quotient({ctext.dim(w[0] // attrs.groups)}, {block})"
    return Kernel((f"const {value} *restrict w", f"const {value} *restrict x", *params(parts.operands, site.out)), text,
                  (weights.pointer, image.pointer, *arguments(parts.operands, site.out)), tasks, symbols_used(site), needs=(tile.text,))


def channels(out: Dim, others: int, mr: int) -> int:
    """Channels of a task, whole tiles: equal parts, and more of them where there are few other tasks."""
    share = max(1, -(-upper(out) // CHANNELS), min(-(-ENOUGH_TASKS // max(others, 1)), upper(out) // (4 * mr)))
    return -(-max(upper(out), 1) // (share * mr)) * mr


def _direct(site: Site, isa: Isa, attrs: Conv, w: Shape, image: Source, weights: Source) -> Kernel:
    out, parts = site.out.shape, epilogue(site)
    wide = image.dtype.accumulator
    size, m = spatial(w[2:], 1), spatial(out[2:], 1)
    def tap(x: str, by: str) -> str:
        return f"made = RLX_FMA({x}, {by}, made);" if wide.is_float else f"made += {x}*{by};"

    def weight(*at: str) -> str: return scalar.load(weights.dtype, f"weight[{ctext.walk(weights.strides[1:], at)}]")
    def seen(text: str) -> str: return scalar.load(image.dtype, text)

    apart = tuple(s * by for s, by in zip(image.strides[2:], spatial(attrs.dilation, 1), strict=True))
    step = ctext.dim(image.strides[4] * attrs.strides[-1])
    places = [tuple(map(str, at)) for at in every(*map(range, size))] if w[1] == 1 and product(size) <= MOST_TAPS else []
    taps = [tap(seen(f"from[j*{step} + {ctext.walk(apart, at)}]"), weight("0", *at)) for at in places]
    per_task = max(1, TASK_NUMEL // max(1, upper(m[2] * product(w[1:]))))
    text = render("cpu/conv_direct.c.j2", out=ctext.dim(out[1]), w_type=weights.c, x_type=image.c, w_o=ctext.dim(weights.strides[0]), per_task=per_task, T=ctext.value(wide),
                  chunk=CHUNK, taps=taps, tap=tap(seen(f"seen[j*{step}]"), "by"), weight=weight("c", "a", "b", "e"), row=parts.row, inner=parts.inner,
                  **geometry(site, attrs, w, image))
    tasks = f"{ctext.dim(out[0] * out[1])}*rlx_ceil_quotient({ctext.dim(m[0] * m[1])}, {per_task})"
    return Kernel((f"const {weights.c} *restrict w", f"const {image.c} *restrict x", *params(parts.operands, site.out)), text,
                  (weights.pointer, image.pointer, *arguments(parts.operands, site.out)), tasks, symbols_used(site))
