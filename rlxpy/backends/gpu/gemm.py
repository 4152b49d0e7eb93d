"""Large products by the vendor's library: which rows there are, and what of a node the library is asked for at one set of sizes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product as every

from rlxpy.backends.cpu.kernel import Operand
from rlxpy.backends.gpu import units
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.arch import FAMILIES
from rlxpy.backends.gpu.blaslt import DIALECTS, Matrix, Problem
from rlxpy.backends.gpu.kernel import Kernel, Site
from rlxpy.backends.gpu.matmul import call_of, emit_tiles
from rlxpy.extend.kernels import Constraint, KernelLibrary, KernelRow
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, Shape, Sizes, at, product
from rlxpy.ir.dtypes import DType
from rlxpy.ir.graph import Ref
from rlxpy.ir.layout import row_major
from rlxpy.ir.op import Op

LEAST = 128  # rows, and columns: two tiles of ours each way.  Below that a launch waits for memory, which no library shortens
WORKSPACE_NBYTES = 32 << 20  # what cuBLASLt's documentation recommends for Hopper
NARROW = {v: tuple(a for u in units.UNITS if u.vendor == v and u.exact for a in u.archs) for v in DIALECTS}  # chips whose matrix units keep subnormal f16 and bf16
TF32 = {"nvidia": NARROW["nvidia"], "amd": FAMILIES["gfx9-4-generic"]}
ADDED = tuple((*("input",) * (2 + n), "matmul", *("add",) * n) for n in (1, 2))  # a product, and what is added to it: a bias, a value of its own shape
Place = Callable[[Ref], int]  # a value's address


@dataclass(frozen=True)
class Walked:
    """The matrices of one operand: steps in elements along `rows`, along `columns`, and along each axis of the batch."""

    ref: Ref
    rows: Dim
    columns: Dim
    row_step: Dim
    column_step: Dim
    batch: Shape

    def matrix(self, sizes: Sizes, place: Place, nbytes: int, index: tuple[int, ...]) -> Matrix | None:
        """As the library counts: its columns are our rows.  index: of the outer batch axes.  None where neither rows nor columns lie side by side."""
        rows, columns, row_step, column_step, *outer, stride = (at(d, sizes) for d in (self.rows, self.columns, self.row_step, self.column_step, *self.batch))
        address = place(self.ref) + nbytes * sum(i * s for i, s in zip(index, outer, strict=True))
        if stride >= 0 and column_step == 1 and row_step >= columns:
            return Matrix(address, row_step, stride)
        if stride >= 0 and row_step == 1 and column_step >= rows:
            return Matrix(address, column_step, stride, transposed=True)
        return None


@dataclass(frozen=True)
class Gemm:
    """left @ right + added + bias, for each index of `batch`.  refusal: why no library does it, "" where one may; own: kernels that do it then."""

    dtype: DType
    compute: str
    batch: Shape
    left: Walked
    right: Walked
    out: Walked
    added: Walked | None
    bias: Ref | None
    refusal: str
    own: tuple[Kernel, ...]

    def problems(self, sizes: Sizes, place: Place) -> list[Problem] | str:
        """What the library is asked for: one call, and more where the batch has axes that no one step joins.  A text says why it cannot be asked."""
        rows, columns, depth, *outer, count = (at(d, sizes) for d in (self.out.rows, self.out.columns, self.left.columns, *self.batch))
        if 0 in (rows, columns, *outer, count):
            return []
        if self.refusal or depth == 0:
            return self.refusal or "its depth is 0"
        bias, found = place(self.bias) if self.bias else 0, list[Problem]()
        for index in every(*map(range, outer)):
            left, right, out = (w.matrix(sizes, place, self.dtype.nbytes, index) for w in (self.left, self.right, self.out))
            added = self.added.matrix(sizes, place, self.dtype.nbytes, index) if self.added else None
            if left is None or right is None or out is None:
                return "an operand has steps along its rows and along its columns"
            found.append(Problem(self.dtype.text, self.compute, columns, rows, depth, count, right, left, out, added, bias))
        return found


def emit(compute: str, site: Site) -> Gemm:
    call = call_of(site)
    p, w = call.p, call.walk
    (right,), (row_step, column_step) = p.rights, p.rights[0].layout.strides[-2:]
    left_steps, right_steps = w.batch.strides
    steps = tuple(s * w.rows * p.columns for s in row_major(w.batch.sizes).strides)
    added, bias, why = _added(site)

    def whole(o: Operand) -> Walked:
        return Walked(o.ref, w.rows, p.columns, p.columns, 1, steps)

    return Gemm(site.out.dtype, compute, w.batch.sizes, Walked(p.left.ref, w.rows, p.depth, w.row_step, w.depth_step, left_steps),
                Walked(right.ref, p.depth, p.columns, row_step, column_step, right_steps), whole(site.out),
                whole(added) if added else None, bias.ref if bias else None, why, (emit_tiles(site),))


def _added(site: Site) -> tuple[Operand | None, Operand | None, str]:
    """What a fused node adds to its product: an operand of its shape, and a number for each column; or why that is not what it adds."""
    out, added, bias = site.out.shape, list[Operand](), list[Operand]()
    for _, body in site.node.attrs.graphs():
        given = {n.refs[0]: o for n, o in zip(body.inputs, site.ins, strict=True)}
        for others in ([given[r] for r in n.inputs if r in given] for n in body if n.op is Op.ADD):
            for o in others:
                if o.shape == out and o.layout.is_contiguous(out):
                    added.append(o)
                elif product(o.shape) == out[-1] == o.shape[-1] and o.layout.strides[-1] == 1:
                    bias.append(o)
            if len(others) != 1 or max(len(added), len(bias)) > 1 or others[0] not in (*added, *bias):
                return None, None, "what it adds is not one bias and one row-major value of its shape"
    return added[0] if added else None, bias[0] if bias else None, ""


def library(target: GpuTarget, domain: str) -> KernelLibrary:
    """Before our own rows, on machines that have the library.  Of what may follow a product it does sums alone: its relu does not promise to keep
    NaN, and its gelu is approximate."""
    dialect = DIALECTS[target.vendor]
    fused = (Constraint("body.ops", "IN", ADDED), Constraint("in2.shape[-1]", "GE", LEAST))
    rows = (*_rows(target, domain, Op.MATMUL, "", "out.dtype", ()), *_rows(target, domain, Op.FUSED, "matmul", "matmul.dtype", fused))
    return KernelLibrary(dialect.name, rows, needs=(Constraint("device.gemm", "EQ", dialect.name),), foreign=True)


def _rows(target: GpuTarget, domain: str, op: Op, kind: str, typed: str, more: tuple[Constraint, ...]) -> Iterator[KernelRow]:
    """One for each type, and two for f32: as exact as it is, or by TF32 where numerics permits it."""
    exact, narrow = (Constraint("device.numerics", "IN", ("highest", "high")),), (Constraint("device.arch", "IN", NARROW[target.vendor]),)
    rounded = (Constraint("device.numerics", "IN", ("medium", "low")), Constraint("device.arch", "IN", TF32[target.vendor]))
    large = tuple(Constraint(f"out.shape[{axis}]", "GE", LEAST) for axis in (-2, -1))
    doc = f"by {DIALECTS[target.vendor].title}, or by tiles of ours where it has no algorithm"
    for form, dtype, compute, numerics in (("f32", "f32", "f32", exact), ("tf32", "f32", "tf32", rounded), ("f16", "f16", "f32", narrow), ("bf16", "bf16", "f32", narrow)):
        name = f"fused.matmul.{form}" if kind else f"matmul.{form}"
        yield KernelRow(name, op, partial(emit, compute), kind=kind, constraints=(Constraint(typed, "EQ", dtype), *numerics, *more, *large), domain=domain,
                        scratch_nbytes=lambda graph, node: WORKSPACE_NBYTES, doc=doc)
