"""The GPUs' kernel rows: which emitter serves which op, and what it asks of the operands.  One source for both vendors."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rlxpy.backends.cpu import blocks
from rlxpy.backends.cpu.folds import OPERATOR
from rlxpy.backends.cpu.fourier import LONGEST
from rlxpy.backends.cpu.indexed import scatter_scratch
from rlxpy.backends.cpu.library import FLOATS, MOVEMENT, REAL
from rlxpy.backends.gpu import (
    attention,
    attention_few,
    attention_units,
    elementwise,
    encode,
    fourier,
    indexed,
    matmul,
    movement,
    order,
    packed,
    random,
    reduction,
    rope,
    rows,
    spatial,
    units,
)
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.kernel import Emitter
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType
from rlxpy.ir.op import ELEMENTWISE, Op

SINGLE = Constraint("out.dtype", "EQ", "f32")
MATRIX = Constraint("out.rank", "GE", 2)
DOMAIN = "device"  # of rows that write GPU source
LOOPS = {Op.SCAN: "its rounds one after another, recorded", Op.WHILE: "its condition read back before every round", Op.COND: "its predicate read back"}


def library(target: GpuTarget) -> KernelLibrary:
    return KernelLibrary("gpu", tuple(replace(r, domain=DOMAIN) for r in _rows(target)))


def _rows(target: GpuTarget) -> list[KernelRow]:
    floating, real = Constraint("out.dtype", "IN", FLOATS), Constraint("out.dtype", "IN", REAL)
    return [
        *(KernelRow(op.text, op, elementwise.emit, doc="a thread for each element") for op in Op if op in ELEMENTWISE),
        KernelRow("fused.elementwise", Op.FUSED, elementwise.emit, kind="elementwise", doc="a thread for each element, one write"),
        *(KernelRow(op.text, op, reduction.emit, doc="a block or a thread for each result") for op in OPERATOR),
        KernelRow("fused.reduce", Op.FUSED, reduction.emit, kind="reduce", doc="a reduction with what feeds it and what follows"),
        *_products(target),
        *_attention(target),
        KernelRow("dequantize", Op.DEQUANTIZE, packed.emit_dequantize, constraints=(Constraint("attrs.encoding", "IN", blocks.BLOCKS),), doc="a thread for each value"),
        *(KernelRow(op.text, op, rows.emit_softmax, constraints=(floating,), doc="a block for each row, or a thread for each column") for op in (Op.SOFTMAX, Op.LOG_SOFTMAX)),
        *(KernelRow(op.text, op, rows.emit, constraints=(floating,), doc="a block for each row") for op in (Op.LAYER_NORM, Op.RMS_NORM)),
        KernelRow("fused.rows", Op.FUSED, rows.emit, kind="rows", doc="a block for each row, with what feeds it and what follows"),
        KernelRow("rope", Op.ROPE, rope.emit, constraints=(floating,), doc="a pair of channels a thread, angles in f64"),
        *(KernelRow(op.text, op, movement.emit_copy, doc="a copy, where no view says it") for op in MOVEMENT),
        KernelRow("concat", Op.CONCAT, movement.emit_concat, doc="a copy for each source"),
        KernelRow("pad", Op.PAD, movement.emit_pad, doc="filled, then a copy"),
        KernelRow("iota", Op.IOTA, movement.emit_iota),
        KernelRow("size", Op.SIZE, movement.emit_size),
        KernelRow("kv_append", Op.KV_APPEND, movement.emit_append, doc="overwritten rows are kept until the run is over"),
        KernelRow("gather", Op.GATHER, indexed.emit_gather, doc="an element a thread"),
        KernelRow("take_along", Op.TAKE_ALONG, indexed.emit_take_along, doc="an element a thread"),
        KernelRow("scatter_add", Op.SCATTER_ADD, indexed.emit_scatter_add, scratch_nbytes=scatter_scratch, doc="updates in their order"),
        *(KernelRow(op.text, op, order.emit_arg, doc="a block or a thread for each line") for op in (Op.ARGMAX, Op.ARGMIN)),
        KernelRow("cumsum", Op.CUMSUM, order.emit_cumsum, doc="a block or a thread for each line"),
        *(KernelRow(op.text, op, order.emit_sort, scratch_nbytes=order.sort_scratch, doc="runs in shared memory, merged") for op in (Op.SORT, Op.TOP_K)),
        *(KernelRow(op.text, op, fourier.emit, constraints=(Constraint(points, "IN", range(1, LONGEST + 1)),), scratch_nbytes=fourier.scratch_nbytes, doc="a row a block")
          for ops, points in (((Op.FFT, Op.IFFT, Op.RFFT), "in0.shape[axis]"), ((Op.IRFFT,), "attrs.n")) for op in ops),
        KernelRow("random_bits", Op.RANDOM_BITS, random.emit_bits, doc="a Threefry block a thread"),
        KernelRow("conv", Op.CONV, spatial.emit_conv, constraints=(real,), doc="a thread for each result"),
        KernelRow("fused.conv", Op.FUSED, spatial.emit_conv, kind="conv", constraints=(real,), doc="a convolution and its epilogue"),
        *(KernelRow(op.text, op, spatial.emit_pool, doc="a thread for each result") for op in (Op.MAX_POOL, Op.AVG_POOL)),
        KernelRow("resize", Op.RESIZE, spatial.emit_resize, doc="a thread for each result"),
        KernelRow("quantize", Op.QUANTIZE, encode.emit, constraints=(Constraint("attrs.encoding", "IN", encode.WRITTEN),), doc="a group a thread"),
    ]


def _products(target: GpuTarget) -> Iterator[KernelRow]:
    """Of numbers and of packed weights, alone and with their epilogue: few rows, matrix units, tiles."""
    plain, stored = (Constraint("body.ops", "HAS", "matmul"),), (SINGLE, Constraint("body.ops", "HAS", "qmatmul"), Constraint("body.encodings", "WITHIN", blocks.BLOCKS))
    kinds = ("matmul", "gated_mlp")
    asked = (Product(Op.MATMUL, "matmul", "", (), "out.dtype"), *(Product(Op.FUSED, f"fused.{k}", k, plain, "matmul.dtype") for k in kinds),
             Product(Op.QMATMUL, "qmatmul", "", (SINGLE, Constraint("attrs.encoding", "IN", blocks.BLOCKS))), *(Product(Op.FUSED, f"fused.q{k}", k, stored) for k in kinds))
    for p in asked:
        for form, most, priority in (("one", 1, 3), ("few", matmul.FEW, 2)):
            yield p.row(form, partial(matmul.emit_few, most), (Constraint("out.shape[-2]", "LE", most),), priority, "lanes along the depth of a column")
        yield from (row for unit in units.UNITS if unit.vendor == target.vendor for row in _on_unit(p, unit))
        yield p.row("", matmul.emit_tiles, (), 0, "tiles of sums in registers")


@dataclass(frozen=True)
class Product:
    """dtype: the fact that says what is multiplied, "" for packed weights."""

    op: Op
    name: str
    kind: str
    constraints: tuple[Constraint, ...]
    dtype: str = ""

    def row(self, form: str, emit: Emitter, more: tuple[Constraint, ...], priority: int, doc: str) -> KernelRow:
        return KernelRow(f"{self.name}.{form}".rstrip("."), self.op, emit, kind=self.kind, constraints=(*self.constraints, MATRIX, *more), priority=priority, doc=doc)


def _on_unit(p: Product, unit: units.Unit) -> Iterator[KernelRow]:
    for form, narrow, asked in _narrow(unit, p.dtype):
        yield p.row(form, partial(units.emit, unit, narrow), asked, 1, f"{narrow.text} on matrix units")


def _narrow(unit: units.Unit, dtype: str) -> Iterator[tuple[str, DType, tuple[Constraint, ...]]]:
    """The forms of a row on a unit: numbers of a narrow type as they are; those of f32 and packed weights rounded to bf16, where numerics permits it.  dtype: as of a Product."""
    there, permitted = (Constraint("device.arch", "IN", unit.archs), Constraint("device.wave", "EQ", unit.lanes)), Constraint("device.numerics", "IN", ("medium", "low"))
    for narrow in unit.calls if dtype else ():
        yield f"{unit.name}_{narrow.text}", narrow, (*there, Constraint(dtype, "EQ", narrow.text), *(() if unit.exact else (permitted,)))
    yield unit.name, DType.BF16, (*there, permitted, *((Constraint(dtype, "EQ", "f32"),) if dtype else ()))


def _attention(target: GpuTarget) -> Iterator[KernelRow]:
    """One query, few, then many, on matrix units where the chip has them and the channels are not too many."""
    asked = (Constraint("out.dtype", "IN", ("f32", "f16", "bf16")), *_channels(attention.MOST_CHANNELS))
    names = ("q", "k", "v", "mask")
    for op, name, kind, more in ((Op.ATTENTION, "attention", "", ()), (Op.FUSED, "fused.attention", "attention", (Constraint("body.encodings", "WITHIN", blocks.BLOCKS),))):
        for form, most, priority in (("one", 1, 3), ("few", attention_few.FEW, 2)):
            yield KernelRow(f"{name}.{form}", op, attention_few.emit, names, kind=kind, constraints=(*asked, *more, Constraint("q.shape[2]", "LE", most)), priority=priority,
                            scratch_nbytes=attention_few.scratch_nbytes, doc="keys in parts, and what joins them")
        for unit in units.UNITS:
            for form, narrow, there in _narrow(unit, "out.dtype") if unit.vendor == target.vendor else ():
                yield KernelRow(f"{name}.{form}", op, partial(attention_units.emit, unit, narrow), names, kind=kind, constraints=(*more, *there, *_channels(attention_units.MOST_CHANNELS)),
                                priority=1, tunables=attention_units.tunables(unit), doc=f"online softmax by tiles of keys, {narrow.text} on matrix units")
        yield KernelRow(name, op, attention.emit, names, kind=kind, constraints=(*asked, *more), doc="online softmax by tiles of keys")


def _channels(most: int) -> tuple[Constraint, ...]:
    return tuple(Constraint(f"{x}.shape[3]", "LE", most) for x in "qv")
