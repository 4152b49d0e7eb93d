"""The CPU's kernel rows: which emitter serves which op, and what it asks of the operands."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from rlxpy.backends.cpu import (
    abreast,
    amx,
    amx_attention,
    amx_int8,
    amx_packed,
    append,
    attention,
    blocks,
    columns,
    conv,
    conv_amx,
    elementwise,
    encode,
    folds,
    fourier,
    indexed,
    matmul,
    movement,
    order,
    pool,
    quant,
    random,
    reduction,
    rope,
    rows,
    rows8,
)
from rlxpy.backends.cpu.isa import Isa
from rlxpy.backends.cpu.kernel import Emitter
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import APPEND
from rlxpy.ir.op import ELEMENTWISE, Op

REAL = tuple(d.text for d in DType if not d.is_complex)
FLOATS = ("f16", "bf16", "f32", "f64")
# products on AMX: how, the operands' type, and the numerics that permit it
AMX = (("amx_x6", amx.X6, "f32", ("highest",)), ("amx_x3", amx.X3, "f32", ("high",)), ("amx_bf16", amx.BF16, "f32", ("medium", "low")),
       ("amx", amx.BF16, "bf16", ("highest", "high", "medium", "low")))
AMX_PACKED = (("amx_x6", amx_packed.X6, ("highest",)), ("amx_x3", amx_packed.X3, ("high",)), ("amx", amx.BF16, ("medium",)), ("amx_bf16", amx_packed.MANY, ("low",)))
# convolutions on AMX: how, from so many channels of the result on, and the numerics that permit it
AMX_CONV = (("amx_x6", conv_amx.X6, 128, ("highest",)), ("amx_x3", conv_amx.X3, 64, ("high",)), ("amx_bf16", conv_amx.BF16, 32, ("medium", "low")))
# kinds of fused nodes around products, and what makes their emitter of that of a product with its epilogue
PRODUCTS: tuple[tuple[str, Callable[[Emitter], Emitter]], ...] = (("matmul", lambda each: each), ("gated_mlp", lambda each: each), ("products", abreast.emitter))
MOVEMENT = tuple(op for op in Op if op.row.view)


def library(isa: Isa) -> KernelLibrary:
    single, real = Constraint("out.dtype", "EQ", "f32"), Constraint("out.dtype", "IN", REAL)
    floating = Constraint("out.dtype", "IN", FLOATS)
    product, packed, rounded = matmul.emitter(isa), quant.emitter(isa), quant.int8_emitter(isa)
    panels, low = partial(matmul.scratch_nbytes, isa), Constraint("device.numerics", "EQ", "low")
    return KernelLibrary("cpu", tuple(replace(r, domain="cpu") for r in (
        *(KernelRow(op.text, op, elementwise.emit, doc="one loop nest") for op in Op if op in ELEMENTWISE),
        KernelRow("fused.elementwise", Op.FUSED, elementwise.emit, kind="elementwise", doc="one loop nest, one write"),
        KernelRow("fused.reduce", Op.FUSED, reduction.emit, kind="reduce", doc="a reduction with what feeds it and what follows"),
        KernelRow("fused.rows", Op.FUSED, rows.emit, kind="rows", doc="row by row, with what feeds it and what follows"),
        *(KernelRow(op.text, op, reduction.emit) for op in folds.OPERATOR),
        *_amx_rows(),
        *_amx_packed_rows(isa),
        *_amx_int8_rows(isa),
        *_rows8_rows(isa),
        KernelRow("matmul", Op.MATMUL, product, scratch_nbytes=panels, tunables=(matmul.ROW_BLOCK,), doc="register tiles, plain loops for integers"),
        *(KernelRow(f"fused.{kind}", Op.FUSED, of(product), kind=kind, constraints=(Constraint("body.ops", "HAS", "matmul"),),
                    scratch_nbytes=panels, tunables=(matmul.ROW_BLOCK,), doc="products and their epilogue")
          for kind, of in PRODUCTS),
        *(KernelRow(f"fused.q{kind}", Op.FUSED, of(packed), kind=kind, constraints=(single, *_packed(blocks.BLOCKS)),
                    doc="products with packed weights and their epilogue") for kind, of in PRODUCTS),
        *(KernelRow(f"fused.q{kind}.int8", Op.FUSED, of(rounded), kind=kind, constraints=(single, low, *_packed(blocks.BLOCKS)), priority=1,
                    scratch_nbytes=quant.scratch_nbytes, doc="left rows rounded to int8") for kind, of in PRODUCTS),
        KernelRow("qmatmul.int8", Op.QMATMUL, rounded, constraints=(single, low, Constraint("attrs.encoding", "IN", blocks.BLOCKS)), priority=1,
                  scratch_nbytes=quant.scratch_nbytes, doc="left rows rounded to int8"),
        KernelRow("qmatmul", Op.QMATMUL, packed, constraints=(single, Constraint("attrs.encoding", "IN", blocks.BLOCKS)), doc="weights decoded in registers, or by panels"),
        *_amx_conv_rows(isa),
        KernelRow("conv", Op.CONV, conv.emitter(isa), constraints=(real,), scratch_nbytes=conv.scratch_nbytes, doc="gathered windows through register tiles, or row by row"),
        KernelRow("fused.conv", Op.FUSED, conv.emitter(isa), kind="conv", constraints=(real,), scratch_nbytes=conv.scratch_nbytes, doc="a convolution and its epilogue"),
        *(KernelRow(op.text, op, pool.emit_pool, doc="tap by tap into a run of results") for op in (Op.MAX_POOL, Op.AVG_POOL)),
        KernelRow("resize", Op.RESIZE, pool.emit_resize, doc="places along the last axis once for many rows"),
        KernelRow("dequantize", Op.DEQUANTIZE, quant.dequantizer(isa), constraints=(Constraint("attrs.encoding", "IN", blocks.BLOCKS),)),
        KernelRow("quantize", Op.QUANTIZE, encode.emit, constraints=(Constraint("attrs.encoding", "IN", encode.WRITTEN),), doc="group by group"),
        *(KernelRow(op.text, op, rows.emit, constraints=(floating, Constraint("attrs.axis", "EQ", -1)), doc="row by row") for op in (Op.SOFTMAX, Op.LOG_SOFTMAX)),
        *(KernelRow(f"{op.text}.columns", op, columns.emit_softmax, constraints=(floating,), doc="columns side by side") for op in (Op.SOFTMAX, Op.LOG_SOFTMAX)),
        *(KernelRow(op.text, op, rows.emit, constraints=(floating,), doc="row by row") for op in (Op.LAYER_NORM, Op.RMS_NORM)),
        *_amx_attention_rows(isa),
        *(KernelRow(name, op, attention.emitter(isa), ("q", "k", "v", "mask"), kind=kind, scratch_nbytes=attention.scratch_nbytes(isa), constraints=(
            Constraint("out.dtype", "IN", ("f32", "f16", "bf16")), *(Constraint(f"{x}.shape[3]", "LE", attention.MOST_CHANNELS) for x in "qv"), *more), doc=doc)
          for name, op, kind, more, doc in (("attention", Op.ATTENTION, "", (), "online softmax by tiles, or split over keys"),
                                            ("fused.attention", Op.FUSED, "attention", (Constraint("body.encodings", "WITHIN", blocks.BLOCKS),), "narrow or packed keys and values"))),
        KernelRow("rope", Op.ROPE, rope.emit, constraints=(floating,), doc="angles in f64"),
        *(KernelRow(op.text, op, movement.emit_copy, doc="a copy, where no view says it") for op in MOVEMENT),
        KernelRow("concat", Op.CONCAT, movement.emit_concat),
        KernelRow("pad", Op.PAD, movement.emit_pad),
        KernelRow("gather", Op.GATHER, indexed.emit_gather),
        KernelRow("take_along", Op.TAKE_ALONG, indexed.emit_take_along),
        KernelRow("scatter_add", Op.SCATTER_ADD, indexed.emit_scatter_add, scratch_nbytes=indexed.scatter_scratch, doc="updates in their order"),
        *(KernelRow(op.text, op, order.emit_arg, doc="candidates side by side") for op in (Op.ARGMAX, Op.ARGMIN)),
        KernelRow("cumsum", Op.CUMSUM, order.emit_cumsum, scratch_nbytes=order.cumsum_scratch, doc="neighbouring lines at a time, long ones in blocks"),
        *(KernelRow(op.text, op, order.emit_sort, scratch_nbytes=order.sort_scratch, doc="by the digits of a key") for op in (Op.SORT, Op.TOP_K)),
        KernelRow("kv_append", Op.KV_APPEND, append.emit),
        KernelRow("fused.append", Op.FUSED, append.emit, kind=APPEND, constraints=(Constraint("body.encodings", "WITHIN", encode.WRITTEN),), doc="rows turned and rounded on their way into the cache"),
        KernelRow("iota", Op.IOTA, movement.emit_iota),
        KernelRow("size", Op.SIZE, movement.emit_size),
        *(KernelRow(op.text, op, fourier.emit, constraints=(Constraint("in0.shape[axis]", "IN", range(1, fourier.LONGEST + 1)),), scratch_nbytes=fourier.scratch_nbytes,
                    doc="mixed radices; Bluestein's convolution for large primes") for op in (Op.FFT, Op.IFFT, Op.RFFT)),
        KernelRow("irfft", Op.IRFFT, fourier.emit, constraints=(Constraint("attrs.n", "IN", range(1, fourier.LONGEST + 1)),), scratch_nbytes=fourier.scratch_nbytes,
                  doc="mixed radices; Bluestein's convolution for large primes"),
        KernelRow("random_bits", Op.RANDOM_BITS, random.emit_bits, doc="Threefry blocks in vectors"),
    )))


def _packed(encodings: Collection[str]) -> tuple[Constraint, ...]:
    """Of a fused node: products with packed weights, all in these encodings."""
    return Constraint("body.ops", "HAS", "qmatmul"), Constraint("body.encodings", "WITHIN", tuple(encodings))


def _rows8_rows(isa: Isa) -> Iterator[KernelRow]:
    """For int8 weights with a scale a row, where numerics permits to round the left operand: else they are decoded, and multiplied in floats."""
    low = Constraint("device.numerics", "EQ", "low")
    row = KernelRow("qmatmul.int8_rows", Op.QMATMUL, rows8.emitter(isa), constraints=(
        low, Constraint("out.dtype", "EQ", "f32"), Constraint("attrs.encoding", "EQ", rows8.ENCODING), Constraint("attrs.shape[-1]", "LE", rows8.DEEPEST)),
                    scratch_nbytes=rows8.scratch_nbytes, doc="left rows rounded to int8, whole numbers over the entire depth")
    yield row
    for kind, of in PRODUCTS:
        yield replace(row, name=f"fused.q{kind}.int8_rows", op=Op.FUSED, launch=of(rows8.emitter(isa)), kind=kind, doc=f"{row.doc}, and their epilogue", constraints=(
            low, Constraint("qmatmul.dtype", "EQ", "f32"), *_packed((rows8.ENCODING,)), Constraint("qmatmul.shape[-1]", "LE", rows8.DEEPEST)))


def _amx_rows() -> Iterator[KernelRow]:
    """Before the rows that any CPU has."""
    for name, scheme, dtype, numerics in AMX:
        enough = Constraint("device.features", "HAS", "amx"), Constraint("out.shape[-2]", scheme.fewer, scheme.least_rows)
        permitted, scratch = Constraint("device.numerics", "IN", numerics), partial(amx.scratch_nbytes, scheme)
        doc = "planes of bf16 on matrix units" if scheme.planes > 1 else "bf16 on matrix units"
        yield KernelRow(f"matmul.{name}", Op.MATMUL, amx.emitter(scheme), constraints=(*enough, permitted, Constraint("out.dtype", "EQ", dtype)), priority=1,
                        scratch_nbytes=scratch, doc=doc)
        for kind, of in PRODUCTS:
            yield KernelRow(f"fused.{kind}.{name}", Op.FUSED, of(amx.emitter(scheme)), kind=kind, priority=1, scratch_nbytes=scratch, doc=f"{doc}, and their epilogue", constraints=(
                *enough, permitted, Constraint("body.ops", "HAS", "matmul"), Constraint("matmul.dtype", "EQ", dtype)))


def _amx_conv_rows(isa: Isa) -> Iterator[KernelRow]:
    """The windows of a result are gathered for all channels: with few of them that costs more than the products."""
    for name, scheme, channels, numerics in AMX_CONV:
        asked = Constraint("device.features", "HAS", "amx"), Constraint("out.shape[1]", "GE", channels), Constraint("device.numerics", "IN", numerics)
        row = KernelRow(f"conv.{name}", Op.CONV, conv_amx.emitter(isa, scheme), constraints=(*asked, Constraint("attrs.groups", "EQ", 1), Constraint("out.dtype", "EQ", "f32")),
                        priority=1, scratch_nbytes=conv.scratch_nbytes, doc="gathered windows, planes of bf16 on matrix units")
        yield row
        yield replace(row, name=f"fused.{row.name}", op=Op.FUSED, kind="conv", doc=f"{row.doc}, and an epilogue", constraints=(
            *asked, Constraint("conv.groups", "EQ", 1), Constraint("conv.dtype", "EQ", "f32")))


def _amx_attention_rows(isa: Isa) -> Iterator[KernelRow]:
    """Queries, keys and values are rounded to bf16, and so are the weights of values: for bf16 results, or where the numerics permit it."""
    for name, dtype, numerics in (("amx_bf16", "f32", ("medium", "low")), ("amx", "bf16", ("highest", "high", "medium", "low"))):
        asked = (Constraint("device.features", "HAS", "amx"), Constraint("q.shape[2]", "REACHES", amx.BF16.least_rows), Constraint("device.numerics", "IN", numerics),
                 Constraint("out.dtype", "EQ", dtype), *(Constraint(f"{x}.shape[3]", "LE", attention.MOST_CHANNELS) for x in "qv"))
        row = KernelRow(f"attention.{name}", Op.ATTENTION, amx_attention.emitter(isa), ("q", "k", "v", "mask"), constraints=asked, priority=1,
                        scratch_nbytes=amx_attention.scratch_nbytes(isa), doc="online softmax, bf16 on matrix units")
        yield row
        yield replace(row, name=f"fused.{row.name}", op=Op.FUSED, kind="attention", constraints=(*asked, Constraint("body.encodings", "WITHIN", blocks.BLOCKS)),
                      doc=f"{row.doc}, narrow or packed keys and values")


def _amx_packed_rows(isa: Isa) -> Iterator[KernelRow]:
    """From so many rows on; with fewer at run time, the other rows of packed weights serve."""
    for name, scheme, numerics in AMX_PACKED:
        asked = (Constraint("device.features", "HAS", "amx"), Constraint("out.shape[-2]", "GE", scheme.least_rows), Constraint("device.numerics", "IN", numerics),
                 Constraint("out.dtype", "EQ", "f32"))
        row = KernelRow(f"qmatmul.{name}", Op.QMATMUL, amx_packed.emitter(isa, scheme), constraints=(*asked, Constraint("attrs.encoding", "IN", blocks.BLOCKS)), priority=3,
                        scratch_nbytes=partial(amx_packed.scratch_nbytes, scheme), doc="weights decoded to planes of bf16 on matrix units")
        yield row
        for kind, of in PRODUCTS:
            yield replace(row, name=f"fused.q{kind}.{name}", op=Op.FUSED, launch=of(amx_packed.emitter(isa, scheme)), kind=kind, constraints=(*asked, *_packed(blocks.BLOCKS)),
                          doc=f"{row.doc}, and their epilogue")


def _amx_int8_rows(isa: Isa) -> Iterator[KernelRow]:
    """For some rows, where numerics permits to round the left operand: with many, its sums cost more in floats, block by block, than bf16 does."""
    asked = (Constraint("device.features", "HAS", "amx_int8"), Constraint("out.shape[-2]", "GE", amx.BF16.least_rows), Constraint("device.numerics", "EQ", "low"),
             Constraint("out.dtype", "EQ", "f32"))
    row = KernelRow("qmatmul.amx_int8", Op.QMATMUL, amx_int8.emitter(isa), constraints=(*asked, Constraint("attrs.encoding", "IN", amx_int8.ENCODINGS)), priority=2,
                    scratch_nbytes=amx_int8.scratch_nbytes, doc="left rows rounded to int8, on matrix units")
    yield row
    for kind, of in PRODUCTS:
        yield replace(row, name=f"fused.q{kind}.amx_int8", op=Op.FUSED, launch=of(amx_int8.emitter(isa)), kind=kind, constraints=(*asked, *_packed(amx_int8.ENCODINGS)),
                      doc=f"{row.doc}, and their epilogue")
