"""What the C99 target writes by itself, as rows; everything else is lowered until it is made of these."""
from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rlxpy.backends.cpu.control import refusal
from rlxpy.extend.backend import BackendSpec, Device
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow, KernelSearchPath
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Graph, Node
from rlxpy.ir.op import ELEMENTWISE, Op
from rlxpy.targets.c99 import compute, move, packed
from rlxpy.targets.c99.custom import own_kernel
from rlxpy.targets.c99.text import Emitter

NUMBERS = tuple(d.text for d in DType if d not in (DType.I4, DType.U4) and not d.is_complex)  # that it computes with
REDUCTIONS = (Op.SUM, Op.MEAN, Op.PROD, Op.MAX, Op.MIN, Op.ANY, Op.ALL)
MOVEMENT = tuple(op for op in Op if op.row.view)


def library() -> KernelLibrary:
    number, read, kept = Constraint("out.dtype", "IN", NUMBERS), Constraint("in0.dtype", "IN", NUMBERS), Constraint("out.dtype", "IN", (*NUMBERS, "i4", "u4"))

    def row(op: Op, emit: Emitter, *constraints: Constraint, scratch: Callable[[Graph, Node], int] | None = None) -> KernelRow:
        return KernelRow(op.text, op, emit, constraints=constraints, scratch_nbytes=scratch)

    return KernelLibrary("c99", (
        *(row(op, compute.elementwise, number, read) for op in Op if op in ELEMENTWISE),
        KernelRow("fused.elementwise", Op.FUSED, compute.elementwise, kind="elementwise", constraints=(Constraint("body.dtypes", "WITHIN", NUMBERS),)),
        *(row(op, compute.reduction, number) for op in REDUCTIONS),
        *(row(op, compute.extreme_index, read) for op in (Op.ARGMAX, Op.ARGMIN)),
        row(Op.CUMSUM, compute.cumsum, number),
        *(row(op, compute.order, number, scratch=compute.order_scratch) for op in (Op.SORT, Op.TOP_K)),
        row(Op.MATMUL, compute.matmul, number),
        row(Op.QMATMUL, packed.qmatmul, Constraint("out.dtype", "EQ", "f32"), Constraint("attrs.encoding", "IN", packed.WRITTEN)),
        row(Op.DEQUANTIZE, packed.dequantize, Constraint("attrs.encoding", "IN", packed.WRITTEN)),
        row(Op.QUANTIZE, packed.quantize, Constraint("attrs.encoding", "EQ", packed.ENCODING), Constraint("in0.dtype", "IN", ("f32", "f16", "bf16"))),
        *(row(op, move.copy, kept) for op in MOVEMENT),
        row(Op.CONCAT, move.concat, kept),
        row(Op.PAD, move.pad, number),
        row(Op.IOTA, move.iota, number),
        row(Op.SIZE, move.size),
        row(Op.GATHER, move.gather, kept),
        row(Op.TAKE_ALONG, move.take_along, kept),
        row(Op.SCATTER_ADD, move.scatter_add, number, scratch=move.scatter_scratch),
        row(Op.KV_APPEND, move.append, kept),
    ))


@cache
def spec() -> BackendSpec:
    return BackendSpec(Device("c99"), KernelSearchPath((library(),)), refusal, fuses=frozenset({"elementwise"}), extensions=own_kernel, inlines=True)
