"""Kernels of products on AMX: operands as sums of bf16 planes in tiles, every pair of planes that matters multiplied."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.elementwise import arguments, indent, params, unravel
from rlxpy.backends.cpu.kernel import Emitter, Kernel, Operand, Site, symbols_used
from rlxpy.backends.cpu.matmul import ends, is_weight, packed, plain
from rlxpy.backends.cpu.packing import Packed, Take
from rlxpy.backends.cpu.products import Products, Walk, batch_offset, epilogue, products, walk
from rlxpy.backends.memory import ALIGN_NBYTES
from rlxpy.backends.templates import read, render
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import product, upper
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.layout import row_major
from rlxpy.ir.types import TensorType

TILE = 16             # rows, or columns, of a tile
TILE_DEPTH = 32       # bf16 of one row
ROW_BLOCK = 128       # rows whose planes stay in the second cache
SPLIT_ROWS = 4        # of a task that splits them: several threads share the few rows of a short product
SHORT_ROWS = 256      # from here on it splits whole tiles, which lie one after another
RESIDENT_NBYTES = 1 << 20  # of right planes in the second cache beside a block of rows; processors with AMX have 2 MiB
FEW_ROWS = 4          # up to here a call waits for its weights, and tiles would be mostly empty
LEAST, MOST = 2.0**-30, 2.0**30  # of a row's or column's greatest magnitude, for sums by planes; templates/cpu/planes.h.j2


@dataclass(frozen=True)
class Scheme:
    """planes: of each operand.  pairs: which (left, right) planes are multiplied, small products first.  depth: tiles of k that go together,
    few enough for the right ones to stay in the first cache.
    least_rows: of a product that is worth it.  fewer: how that is asked; REACHES takes fewer at run time, too, GE leaves them to a kernel that reads
    fewer bytes of weights, for which those are kept in its own form as well."""

    planes: int
    pairs: tuple[tuple[int, int], ...]
    depth: int
    least_rows: int
    fewer: str = "REACHES"


BF16 = Scheme(1, ((0, 0),), 48, 16)
X3 = Scheme(2, ((1, 0), (0, 0), (0, 1)), 12, 16)
X6 = Scheme(3, ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)), 12, 32, "GE")


@dataclass(frozen=True)
class Tiles:
    """[batch][column tiles][k tiles][planes][16 pairs of rows][16 columns][2], then for each column tile whether its numbers may be summed by planes."""

    planes: int

    @property
    def c(self) -> str:
        return "u16"

    def pack(self, weights: Array, take: Take) -> Array:
        batch, depth, columns = weights.shape
        across, down = -(-columns // TILE), -(-depth // TILE_DEPTH)
        rest = np.zeros((batch, down * TILE_DEPTH, across * TILE), np.float32)
        rest[:, :depth, :columns] = weights
        most = (rest.view(np.uint32) & 0x7fffffff).max(axis=1, initial=0).view(np.float32)
        body = batch * across * down * self.planes * TILE * TILE_DEPTH
        out = take(2 * (body + batch * across)).view(np.uint16)
        tiles = out[:body].reshape(batch, across, down, self.planes, TILE, TILE, 2)
        for p in range(self.planes):
            head, rest = split(rest)
            tiles[:, :, :, p] = head.reshape(batch, down, TILE, 2, across, TILE).transpose(0, 4, 1, 2, 5, 3)
        out[body:] = by_planes(most).reshape(batch * across, TILE).all(axis=1)
        return out


def by_planes(most: Array) -> Array:
    """Whether numbers of these greatest magnitudes have products that can be summed plane by plane."""
    return np.asarray((most == 0) | ((most >= LEAST) & (most <= MOST)))


def split(x: Array) -> tuple[Array, Array]:
    """The leading bf16 of each f32, as its bits, and the rest.  It never rounds to infinity; nothing remains of what is not finite."""
    bits = x.view(np.uint32)
    finite = (bits & 0x7fffffff) < 0x7f800000
    near = np.where(finite, (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, np.where(np.isnan(x), (bits >> 16) | 0x40, bits >> 16))
    head = np.where(finite & ((near & 0x7fff) >= 0x7f80), bits >> 16, near).astype(np.uint32)
    with np.errstate(invalid="ignore"):
        rest = np.where(finite, x - (head << 16).view(np.float32), np.float32(0))
    return head.astype(np.uint16), rest


def emitter(scheme: Scheme) -> Emitter:
    return lambda site: _emit(site, scheme)


def scratch_nbytes(scheme: Scheme, graph: Graph, node: Node) -> int:
    """Memory for the planes of the left operand, and of right operands that are no weights."""
    left, rights = ends(graph, node)
    return sum(pieces(scheme, node.type, graph.type(left), [graph.type(r) for r in rights if not is_weight(graph, r)]))


def pieces(scheme: Scheme, out: TensorType, left: TensorType, rights: list[TensorType]) -> list[int]:
    """Bytes of the parts of the scratch memory, each a whole number of cache lines."""
    down = -(-upper(left.shape[-1]) // TILE_DEPTH)
    matrices = [(out.shape[:-2], out.shape[-2]), *((r.shape[:-2], r.shape[-1]) for r in rights)]
    tiles = [upper(product(lead)) * -(-upper(width) // TILE) for lead, width in matrices]
    return [-(-n * (2 * down * scheme.planes * TILE * TILE_DEPTH + TILE) // ALIGN_NBYTES) * ALIGN_NBYTES for n in tiles]  # a byte for each row, two for 16 columns


def _emit(site: Site, scheme: Scheme) -> Kernel | tuple[Kernel, ...]:
    p = products(site)
    sources = [packed(r, Tiles(scheme.planes)) or r for r in p.rights]
    fresh = list(dict.fromkeys(s for s in sources if isinstance(s, Operand)))
    parts = pieces(scheme, site.node.type, TensorType(p.left.shape, p.left.dtype), [TensorType(o.shape, o.dtype) for o in fresh])
    if sum(parts) > site.scratch_nbytes:
        return plain(site, p)
    places = [f"(u16 *)({site.scratch} + {sum(parts[:k])})" for k in range(len(parts))]
    left = Operand(p.left.ref, p.left.shape, DType.BF16, row_major(p.left.shape), places[0])
    planes = dict(zip(fresh, places[1:], strict=True))
    w = walk(p, p.left)
    given = tuple(s if isinstance(s, Packed) else planes[s] for s in sources)
    return (split_left(site, scheme, p, w, left), *(_split_right(site, scheme, o, place) for o, place in planes.items()), multiply(site, scheme, p, w, left, given))


@cache
def text(scheme: Scheme) -> tuple[str, ...]:
    """C functions of a scheme, with what splits operands of each type: one text, however many types a unit multiplies."""
    sources = [("f32", "f32", "%s"), ("bf16", ctext.storage(DType.BF16), "rlx_load_bf16(%s)")]
    return read("cpu/amx.h"), render("cpu/turn16.h.j2"), render("cpu/planes.h.j2", P=scheme.planes, products=scheme.pairs, sources=sources)


def split_left(site: Site, scheme: Scheme, p: Products, w: Walk, planes: Operand) -> Kernel:
    rows, depth = ctext.dim(w.rows), ctext.dim(p.depth)
    tile_numel, step, count = scheme.planes * TILE * TILE_DEPTH, ctext.dim(w.row_step), ctext.dim(w.count)
    some = f"({rows} < {SHORT_ROWS} ? (i64){SPLIT_ROWS} : {TILE})"
    at = f"x0 + {batch_offset(w, 0)} + m0*{step}, {step}, {ctext.dim(w.depth_step)}, y + (batch*tiles + m0/16)*next + m0%16*32, sure + m0"
    lines = [f"const i64 M = {rows}, K = {depth}, tiles = rlx_ceil_quotient(M, (i64)16), some = {some}, tasks = rlx_ceil_quotient(M, some), next = rlx_ceil_quotient(K, (i64)32)*{tile_numel};",
             "for (i64 t = t0; t < t1; t++) {", "  const i64 m0 = t % tasks*some, m1 = m0 + some, batch = t / tasks;", *indent(w.indices),
             f"  u8 *const sure = (u8 *)(y + {count}*tiles*next) + batch*tiles*16;",
             f"  rlx_left_{p.left.dtype.text}_{scheme.planes}(rlx_least(some, M - m0), K, {at});",
             "  if (m1 >= M) for (i64 m = M; m < tiles*16; m++) sure[m] = 1;  /* rows that are not there */", "}"]
    return Kernel(params((p.left,), planes), "\n".join(lines), arguments((p.left,), planes), f"{count}*rlx_ceil_quotient({rows}, {some})", symbols_used(site),
                  needs=text(scheme))


def _split_right(site: Site, scheme: Scheme, right: Operand, place: str) -> Kernel:
    *lead, depth, columns = right.shape
    *steps, row, column = right.layout.strides
    count, tiles = ctext.dim(product(lead)), f"rlx_ceil_quotient({ctext.dim(columns)}, (i64)16)"
    at = " + ".join(["0", *(f"i{k}*{ctext.dim(s)}" for k, s in enumerate(steps) if s != 0)])
    planes = Operand(right.ref, right.shape, DType.BF16, row_major(right.shape), place)
    lines = [f"const i64 N = {ctext.dim(columns)}, K = {ctext.dim(depth)}, tiles = {tiles}, next = rlx_ceil_quotient(K, (i64)32)*{scheme.planes * TILE * TILE_DEPTH};",
             f"u16 *sure = y + {count}*tiles*next;", "for (i64 t = t0; t < t1; t++) {", "  const i64 j = t % tiles*16, batch = t / tiles;", *indent(unravel(tuple(lead), "batch")),
             f"  sure[t] = rlx_right_{right.dtype.text}_{scheme.planes}(K, rlx_least(N - j, (i64)16), x0 + {at} + j*{ctext.dim(column)}, {ctext.dim(row)}, {ctext.dim(column)}, y + t*next);", "}"]
    return Kernel(params((right,), planes), "\n".join(lines), arguments((right,), planes), f"{count}*{tiles}", symbols_used(site), needs=text(scheme))


def multiply(site: Site, scheme: Scheme, p: Products, w: Walk, left: Operand, rights: tuple[str | Packed, ...],
             row_block: int = ROW_BLOCK, decode: Sequence[Mapping[str, object]] = (), needs: tuple[str, ...] = ()) -> Kernel:
    """decode: of rights that are packed, how each is laid into tiles; templates/cpu/amx.c.j2.  needs: C functions that do it, else those of the planes."""
    parts = epilogue(site, p.body, p.nodes, lambda k: f"before{k}[i*32 + jj]")
    operands, rows, columns = (left, *parts.operands), ctext.dim(w.rows), ctext.dim(p.columns)
    body = render("cpu/amx.c.j2", M=rows, N=columns, K=ctext.dim(p.depth), P=scheme.planes, MC=row_block, KC=scheme.depth, several=upper(p.depth) > scheme.depth * TILE_DEPTH,
                  whole=isinstance(p.columns, int) and p.columns % (2 * TILE) == 0, FEW=FEW_ROWS, resident=RESIDENT_NBYTES, products=len(p.nodes),
                  matrices=ctext.dim(w.count), batch=w.indices, at=[batch_offset(w, 1 + k) for k in range(len(p.nodes))],
                  counts=[ctext.dim(product(r.shape[:-2])) for r in p.rights], row=parts.row, inner=parts.inner, decode=decode)
    weights = tuple(f"const {'u8' if decode else 'u16'} *restrict w{k}" for k in range(len(rights)))
    count = f"{ctext.dim(w.count)}*rlx_ceil_quotient({rows}, (i64){row_block})*rlx_ceil_quotient({columns}, (i64)32)"
    return Kernel((*weights, *params(operands, site.out)), body, (*rights, *arguments(operands, site.out)), count, symbols_used(site), needs=needs or text(scheme))
