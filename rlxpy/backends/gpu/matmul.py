"""GPU kernels of products: tiles of sums in registers for many rows, lanes along the depth for few; packed weights decoded as they are read."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlxpy.backends.cpu import ctext, scalar
from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.cpu.products import Products, Walk, batch_offset, epilogue, products, walk
from rlxpy.backends.gpu import packed
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Site, params, quotient, symbols_used
from rlxpy.backends.templates import trimmed
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Fused, Packed
from rlxpy.ir.dims import lower, product, upper
from rlxpy.ir.dtypes import DType
from rlxpy.ir.encoding import encoding
from rlxpy.ir.layout import Layout
from rlxpy.ir.op import Op

FEW = 8                      # rows whose sums a thread keeps for one column
TILE, DEPTH, SPAN = 64, 16, 4  # rows and columns of a block's tile; how deep its share of the operands is; rows and columns of a thread
DEEP_LANES, WIDE_LANES = 32, 8  # that share a column: neighbours along the depth, or along the columns


@dataclass(frozen=True)
class Right:
    """A right operand as a kernel reads it.  encoding: of packed weights, "" for plain numbers.  deep: neighbours lie along the depth."""

    operand: Operand
    encoding: str
    row_step: str  # bytes of a packed row; else elements from one depth to the next
    column_step: str

    @property
    def deep(self) -> bool:
        return bool(self.encoding) or self.row_step == "1"

    @property
    def needs(self) -> tuple[str, ...]:
        return packed.needs(self.encoding) if self.encoding else ()

    def value(self, base: str, k: str, j: str) -> str:
        """C for the number at depth k and column j of the matrix at `base`."""
        if self.encoding:
            return packed.element(self.encoding, f"{base} + {j}*{self.row_step}", k)
        return scalar.load(self.operand.dtype, f"{base}[{k}*{self.row_step} + {j}*{self.column_step}]")

    def in_chunk(self, row: str, k: str, part: str, lane: str) -> str:
        """C for code `lane` of a chunk, the one numbered `part` from depth k on; whole blocks of any product begin at k."""
        e = encoding(self.encoding)
        each = e.block // packed.CHUNK
        return packed.value(self.encoding, f"{row} + ({k}/{e.block} + {part}/{each})*{e.block_nbytes}", f"{part}%{each}", lane)


@dataclass(frozen=True)
class Call:
    """A node's products, and what every form of kernel says of them."""

    site: Site
    p: Products
    rights: tuple[Right, ...]

    @property
    def sums(self) -> DType:
        return self.p.nodes[0].type.dtype.accumulator

    @property
    def walk(self) -> Walk:
        return walk(self.p, self.p.left, [Layout(o.layout.strides[:-2]) for o in self.p.rights])

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for r in self.rights for n in r.needs))


def call_of(site: Site) -> Call:
    nodes = site.node.attrs.body if isinstance(site.node.attrs, Fused) else (site.node,)
    p = products(site, next(n.op for n in nodes if n.op in (Op.MATMUL, Op.QMATMUL)))
    return Call(site, p, tuple(_right(o, n.attrs.encoding if isinstance(n.attrs, Packed) else "") for o, n in zip(p.rights, p.nodes, strict=True)))


def _right(o: Operand, name: str) -> Right:
    if name:
        return Right(o, name, packed.row_step(o), "")
    return Right(o, "", *(ctext.dim(s) for s in o.layout.strides[-2:]))


def emit_few(most: int, site: Site) -> Kernel:
    """For at most so many rows of each matrix; where a batch joins many of them to one walk, they go through tiles after all."""
    call = call_of(site)
    if lower(call.walk.rows) > FEW:
        return emit_tiles(site)
    joined = upper(product(call.p.out.shape[:-2])) // max(upper(call.walk.count), 1)
    rows = max(1, min(FEW, most*joined, upper(call.walk.rows)))
    deep, packs = all(r.deep for r in call.rights), all(r.encoding for r in call.rights)
    lanes = packed.CHUNK if packs else DEEP_LANES if deep else WIDE_LANES
    columns = THREADS // lanes
    facts = {"ROWS": rows, "LANES": lanes, "COLUMNS": columns, "deep": deep, "packs": packs,
             "step": max(encoding(r.encoding).block for r in call.rights) if packs else 1, "chunk": packed.CHUNK}
    return kernel(call, "gpu/matmul_few.cu.j2", facts, rows, columns, lambda k: f"c{k}")


def emit_tiles(site: Site) -> Kernel:
    call = call_of(site)
    facts = {"TILE": TILE, "DEPTH": DEPTH, "SPAN": SPAN, "left_deep": call.p.left.layout.strides[-1] == 1}
    return kernel(call, "gpu/matmul.cu.j2", facts, TILE, TILE, lambda k: f"c{k}[a][b]")


def kernel(call: Call, template: str, facts: Mapping[str, Any], high: int, wide: int, tile: Callable[[int], str], needs: tuple[str, ...] = ()) -> Kernel:
    """high, wide: rows and columns of a block; tile: C for a sum when the epilogue runs; needs: text beside what the weights need."""
    p, site, w = call.p, call.site, call.walk
    parts = epilogue(site, p.body, p.nodes, tile)
    operands, sums = (p.left, *parts.operands), call.sums
    left = scalar.load(p.left.dtype, "@").split("@")
    text = trimmed(template, **facts, M=ctext.dim(w.rows), N=ctext.dim(p.columns), K=ctext.dim(p.depth), THREADS=THREADS, A=ctext.value(sums), C=p.left.c, high=high, wide=wide,
                   row_step=ctext.dim(w.row_step), depth_step=ctext.dim(w.depth_step), load=left, rights=call.rights, batch=w.indices,
                   at=[batch_offset(w, k) for k in range(1 + len(p.nodes))], fma=fma(sums), row=parts.row, inner=parts.inner)
    weights = tuple(f"const {o.c} *__restrict__ w{k}" for k, o in enumerate(p.rights))
    given = tuple(o.ref for o in (*operands, *p.rights, site.out))
    names = params(operands, site.out)
    return Kernel((*names[:-1], *weights, names[-1]), text, given, (quotient(w.rows, high) * quotient(p.columns, wide) * w.count,), sizes=symbols_used(site), needs=(*call.needs, *needs))


def fma(sums: DType) -> Callable[[str, str, str], str]:
    """C for sum + a*b."""
    if sums.is_float:
        return lambda a, b, total: f"rlx_fma({a}, {b}, {total})"
    return lambda a, b, total: f"({ctext.value(sums)})({total} + {a}*{b})"
