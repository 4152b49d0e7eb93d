"""The GPUs' kernel rows: which emitter serves which op, and what it asks of the operands.  One source for both vendors."""
from __future__ import annotations

from collections.abc import Iterator

from rlxpy.backends.cpu import blocks
from rlxpy.backends.cpu.folds import OPERATOR
from rlxpy.backends.cpu.library import NUMBERS
from rlxpy.backends.gpu import attention, elementwise, matmul, packed, reduction
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow
from rlxpy.ir.op import ELEMENTWISE, Op

DOMAIN = "device"  # of rows that write GPU source


def library(target: GpuTarget) -> KernelLibrary:
    return KernelLibrary("gpu", tuple(_rows(target)))


def _rows(target: GpuTarget) -> list[KernelRow]:
    number, read, inside = Constraint("out.dtype", "IN", NUMBERS), Constraint("in0.dtype", "IN", NUMBERS), Constraint("body.dtypes", "WITHIN", NUMBERS)
    return [
        *(KernelRow(op.text, op, elementwise.emit, constraints=(number, read), domain=DOMAIN, doc="a thread for each element") for op in Op if op in ELEMENTWISE),
        KernelRow("fused.elementwise", Op.FUSED, elementwise.emit, kind="elementwise", constraints=(inside,), domain=DOMAIN, doc="a thread for each element, one write"),
        *(KernelRow(op.text, op, reduction.emit, constraints=(number,), domain=DOMAIN, doc="a block or a thread for each result") for op in OPERATOR),
        KernelRow("fused.reduce", Op.FUSED, reduction.emit, kind="reduce", constraints=(inside,), domain=DOMAIN, doc="a reduction with what feeds it and what follows"),
        *_products(),
        *_attention(),
        KernelRow("dequantize", Op.DEQUANTIZE, packed.emit_dequantize, constraints=(Constraint("attrs.encoding", "IN", blocks.BLOCKS),), domain=DOMAIN, doc="a thread for each value"),
    ]


def _products() -> Iterator[KernelRow]:
    """Of numbers and of packed weights, alone and with their epilogue; few rows before many."""
    number, single, inside = Constraint("out.dtype", "IN", NUMBERS), Constraint("out.dtype", "EQ", "f32"), Constraint("body.dtypes", "WITHIN", NUMBERS)
    plain, stored = Constraint("body.ops", "HAS", "matmul"), Constraint("qmatmul.encoding", "IN", blocks.BLOCKS)
    few = Constraint("out.shape[-2]", "LE", matmul.FEW)
    kinds = ("matmul", "gated_mlp")
    asked = ((Op.MATMUL, "matmul", "", (number,)), *((Op.FUSED, f"fused.{k}", k, (inside, plain)) for k in kinds),
             (Op.QMATMUL, "qmatmul", "", (single, Constraint("attrs.encoding", "IN", blocks.BLOCKS))), *((Op.FUSED, f"fused.q{k}", k, (single, stored)) for k in kinds))
    for op, name, kind, constraints in asked:
        yield KernelRow(f"{name}.few", op, matmul.few_or_tiles, kind=kind, constraints=(*constraints, few), priority=2, domain=DOMAIN, doc="lanes along the depth of a column")
        yield KernelRow(name, op, matmul.emit_tiles, kind=kind, constraints=constraints, domain=DOMAIN, doc="tiles of sums in registers")


def _attention() -> Iterator[KernelRow]:
    """Few queries before many."""
    asked = (Constraint("out.dtype", "IN", ("f32", "f16", "bf16")), *(Constraint(f"{x}.shape[3]", "LE", attention.MOST_CHANNELS) for x in "qv"))
    names, few = ("q", "k", "v", "mask"), Constraint("q.shape[2]", "LE", attention.FEW)
    for op, name, kind, more in ((Op.ATTENTION, "attention", "", ()), (Op.FUSED, "fused.attention", "attention", (Constraint("body.encodings", "WITHIN", blocks.BLOCKS),))):
        yield KernelRow(f"{name}.few", op, attention.emit_few, names, kind=kind, constraints=(*asked, *more, few), priority=1, scratch_nbytes=attention.scratch_nbytes, domain=DOMAIN,
                        doc="keys in parts, and what joins them")
        yield KernelRow(name, op, attention.emit, names, kind=kind, constraints=(*asked, *more), domain=DOMAIN, doc="online softmax by tiles of keys")
