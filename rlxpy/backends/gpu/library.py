"""The GPUs' kernel rows: which emitter serves which op, and what it asks of the operands.  One source for both vendors."""
from __future__ import annotations

from rlxpy.backends.cpu.folds import OPERATOR
from rlxpy.backends.cpu.library import NUMBERS
from rlxpy.backends.gpu import elementwise, reduction
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
    ]
