"""THE op table.  One row is the whole definition of a built-in op; nothing else names it.  Columns: ir/row.py."""
from __future__ import annotations

from enum import Enum, unique
from typing import Any

import numpy as np

from rlxpy.errors import BuildError
from rlxpy.ir import (
    attention,
    attrs as A,
    batching as B,
    control,
    control_values as CV,
    derivatives as D,
    fourier,
    layout,
    lowerings,
    random,
    refs,
    shapes as S,
    spatial,
    spatial_values as SV,
)
from rlxpy.ir.place import caller
from rlxpy.ir.row import (
    ANYTHING,
    BITS,
    BOOL,
    COMPLEX,
    FLOAT,
    INDEX,
    INTEGER,
    INTEGER_OUTPUT,
    LEAF,
    NUMBER,
    PRIMITIVE,
    REAL,
    WORD,
    Cell,
    OpRow,
    Why,
)

LN2 = 0.6931471805599453
COMMUTATIVE = {np.add, np.multiply, np.equal, np.not_equal, np.logical_and, np.logical_or, np.logical_xor,
               np.bitwise_and, np.bitwise_or, np.bitwise_xor}  # not maximum and minimum: of 0.0 and -0.0 NumPy keeps the one on a certain side


def unary(ref: Any, scalar: str, dtypes: Any = FLOAT, *, slope: Any = None, lower: Cell = PRIMITIVE, doc: str = "") -> OpRow:
    """slope: (y, x) -> dy/dx."""
    return OpRow(1, S.first, S.same, refs.lifted(ref) if dtypes is FLOAT else ref, scalar, **D.unary(slope), vmap=B.ALIGNED, lower=lower, dtypes=(dtypes,), doc=doc)


def binary(ref: Any, scalar: str, dtypes: Any = NUMBER, *, slopes: Any = None, doc: str = "") -> OpRow:
    """slopes: (y, a, b) -> (dy/da, dy/db)."""
    return OpRow(2, S.spread, S.same, refs.lifted(ref), scalar, **D.elementwise(slopes), vmap=B.ALIGNED, dtypes=(dtypes,), commutes=ref in COMMUTATIVE, doc=doc)


def discrete(arity: int, dtype: Any, ref: Any, scalar: str, dtypes: Any) -> OpRow:
    return OpRow(arity, S.spread, dtype, ref, scalar, vjp=INTEGER_OUTPUT, jvp=INTEGER_OUTPUT, vmap=B.ALIGNED, dtypes=(dtypes,), commutes=ref in COMMUTATIVE)


def compare(ref: Any, scalar: str, dtypes: Any = ANYTHING) -> OpRow: return discrete(2, S.boolean, ref, scalar, dtypes)
def predicate(ref: Any, scalar: str) -> OpRow: return discrete(1, S.boolean, ref, scalar, FLOAT)
def bits(arity: int, ref: Any, scalar: str, dtypes: Any = BITS) -> OpRow: return discrete(arity, S.same, ref, scalar, dtypes)


def reduction(ref: Any, dtypes: Any = NUMBER, shape: Any = S.reduced, *, slope: Any = INTEGER_OUTPUT, doc: str = "") -> OpRow:
    """slope: (y with its axes kept, x, axes) -> dy/dx at each element."""
    cells = {"vjp": slope, "jvp": slope} if isinstance(slope, Why) else D.reduction(slope)
    return OpRow(1, shape, S.same, refs.reduce_with(ref), **cells, vmap=B.AXES, dtypes=(dtypes,), attrs=A.Axes, doc=doc)


def extreme_index(ref: Any, doc: str) -> OpRow:
    return OpRow(1, S.reduced_one, S.index, refs.arg_with(ref), vjp=INTEGER_OUTPUT, jvp=INTEGER_OUTPUT, vmap=B.AXIS, dtypes=(REAL,), attrs=A.KeepAxis, doc=doc)


def leaf(attrs: Any, ref: Any = LEAF, shape: Any = S.first, dtype: Any = S.same, doc: str = "") -> OpRow:
    return OpRow(0, shape, dtype, ref, vjp=LEAF, jvp=LEAF, vmap=LEAF, lower=LEAF, attrs=attrs, doc=doc)


def movement(attrs: Any, shape: Any, ref: Any, derived: D.Cells, vmap: Cell, view: Any = None, doc: str = "") -> OpRow:
    return OpRow(1, shape, S.of_first, ref, **derived, vmap=vmap, attrs=attrs, view=view, doc=doc)


@unique
class Op(Enum):
    # leaves: the type is given, not inferred
    INPUT = leaf(A.Named, doc="what the caller passes to run()")
    PARAM = leaf(A.Named, doc="a weight, loaded once")
    STATE = leaf(A.Named, doc="memory that lives from one run to the next; zero at first")
    CONST = leaf(A.Literal, refs.literal, doc="an array written into the graph")
    IOTA = leaf(A.Index, refs.iota, S.filled, S.asked, doc="0, 1, 2, .. along one axis")
    SIZE = leaf(A.Size, lambda dim: np.asarray(dim, np.int64), S.scalar, S.index, doc="a symbolic size as an i64 scalar")

    # elementwise, one input
    NEG = unary(np.negative, "(-{0})", NUMBER, slope=lambda y, x: -1.0)
    ABS = unary(np.abs, "rlx_abs({0})", REAL, slope=lambda y, x: x.sign())
    SIGN = unary(refs.lifted(np.sign), "rlx_sign({0})", REAL, slope=D.flat)
    SQUARE = unary(np.square, "({0}*{0})", NUMBER, slope=lambda y, x: x * 2.0)
    RECIP = unary(refs.recip, "(1/{0})", slope=lambda y, x: -(y * y))
    SQRT = unary(np.sqrt, "rlx_sqrt({0})", slope=lambda y, x: 0.5 / y)
    RSQRT = unary(refs.rsqrt, "(1/rlx_sqrt({0}))", slope=lambda y, x: y / x * -0.5)
    EXP = unary(np.exp, "rlx_exp({0})", slope=lambda y, x: y)
    EXP2 = unary(np.exp2, "rlx_exp2({0})", slope=lambda y, x: y * LN2)
    EXPM1 = unary(np.expm1, "rlx_expm1({0})", slope=lambda y, x: x.exp())
    LOG = unary(np.log, "rlx_log({0})", slope=lambda y, x: 1.0 / x)
    LOG2 = unary(np.log2, "rlx_log2({0})", slope=lambda y, x: 1.0 / (x * LN2))
    LOG1P = unary(np.log1p, "rlx_log1p({0})", slope=lambda y, x: 1.0 / (x + 1.0))
    SIN = unary(np.sin, "rlx_sin({0})", slope=lambda y, x: x.cos())
    COS = unary(np.cos, "rlx_cos({0})", slope=lambda y, x: -x.sin())
    TAN = unary(np.tan, "rlx_tan({0})", slope=lambda y, x: y * y + 1.0)
    ASIN = unary(np.arcsin, "rlx_asin({0})", slope=lambda y, x: ((1.0 - x) * (x + 1.0)).rsqrt())
    ACOS = unary(np.arccos, "rlx_acos({0})", slope=lambda y, x: -((1.0 - x) * (x + 1.0)).rsqrt())
    ATAN = unary(np.arctan, "rlx_atan({0})", slope=lambda y, x: 1.0 / (x * x + 1.0))
    SINH = unary(np.sinh, "rlx_sinh({0})", slope=lambda y, x: x.cosh())
    COSH = unary(np.cosh, "rlx_cosh({0})", slope=lambda y, x: x.sinh())
    TANH = unary(np.tanh, "rlx_tanh({0})", slope=lambda y, x: (1.0 - y) * (y + 1.0))
    ERF = unary(refs.erf, "rlx_erf({0})", slope=lambda y, x: (-(x * x)).exp() * 1.1283791670955126)
    FLOOR = unary(np.floor, "rlx_floor({0})", slope=D.flat)
    CEIL = unary(np.ceil, "rlx_ceil({0})", slope=D.flat)
    TRUNC = unary(np.trunc, "rlx_trunc({0})", slope=D.flat)
    ROUND = unary(np.rint, "rlx_rint({0})", slope=D.flat, doc="halves go to the even neighbour")
    RELU = unary(refs.lifted(lambda x: np.maximum(x, x.dtype.type(0))), "rlx_maximum({0},0)", REAL, slope=lambda y, x: x > 0.0, doc="NaN stays NaN")
    SIGMOID = unary(refs.sigmoid, "rlx_sigmoid({0})", slope=lambda y, x: y * (1.0 - y), lower=lowerings.sigmoid)
    SILU = unary(refs.silu, "rlx_silu({0})", slope=D.silu, lower=lowerings.silu, doc="x * sigmoid(x)")
    GELU = unary(refs.gelu, "rlx_gelu({0})", slope=D.gelu, lower=lowerings.gelu, doc="the erf form")
    GELU_TANH = unary(refs.gelu_tanh, "rlx_gelu_tanh({0})", slope=D.gelu_tanh, lower=lowerings.gelu_tanh, doc="the tanh form, arXiv:1606.08415")
    SOFTPLUS = unary(refs.softplus, "rlx_softplus({0})", slope=lambda y, x: x.sigmoid(), lower=lowerings.softplus, doc="log(1 + exp(x)), finite for large x")
    IS_NAN = predicate(np.isnan, "rlx_isnan({0})")
    IS_INF = predicate(np.isinf, "rlx_isinf({0})")
    IS_FINITE = predicate(np.isfinite, "rlx_isfinite({0})")
    LOGICAL_NOT = bits(1, np.logical_not, "(!{0})", BOOL)
    BIT_NOT = bits(1, np.invert, "rlx_bit_not({0})")
    CAST = OpRow(1, S.first, S.asked, refs.cast, "rlx_cast({0})", vjp=D.cast_vjp, jvp=D.cast_jvp, vmap=B.ALIGNED, attrs=A.Cast,
                  doc="float to int saturates and NaN gives 0; int to int wraps")

    # elementwise, several inputs
    ADD = binary(np.add, "({0}+{1})", slopes=lambda y, a, b: (1.0, 1.0))
    SUB = binary(np.subtract, "({0}-{1})", slopes=lambda y, a, b: (1.0, -1.0))
    MUL = binary(np.multiply, "({0}*{1})", slopes=lambda y, a, b: (b, a))
    DIV = binary(np.true_divide, "({0}/{1})", FLOAT | NUMBER - REAL, slopes=lambda y, a, b: (1.0 / b, -y / b))
    FLOOR_DIV = binary(np.floor_divide, "rlx_floor_div({0},{1})", REAL, slopes=lambda y, a, b: (None, None), doc="rounds down; an integer by zero is 0")
    MOD = binary(np.mod, "rlx_mod({0},{1})", REAL, slopes=lambda y, a, b: (1.0, -(a // b)), doc="has the divisor's sign; an integer by zero is 0")
    POW = binary(np.power, "rlx_pow({0},{1})", FLOAT, slopes=D.power)
    ATAN2 = binary(np.arctan2, "rlx_atan2({0},{1})", FLOAT, slopes=D.atan2)
    MAXIMUM = binary(refs.lifted(np.maximum), "rlx_maximum({0},{1})", REAL, slopes=D.maximum, doc="NaN if either is")
    MINIMUM = binary(refs.lifted(np.minimum), "rlx_minimum({0},{1})", REAL, slopes=D.minimum, doc="NaN if either is")
    EQ = compare(np.equal, "({0}=={1})")
    NE = compare(np.not_equal, "({0}!={1})")
    LT = compare(np.less, "({0}<{1})", REAL)
    LE = compare(np.less_equal, "({0}<={1})", REAL)
    GT = compare(np.greater, "({0}>{1})", REAL)
    GE = compare(np.greater_equal, "({0}>={1})", REAL)
    LOGICAL_AND = bits(2, np.logical_and, "({0}&&{1})", BOOL)
    LOGICAL_OR = bits(2, np.logical_or, "({0}||{1})", BOOL)
    LOGICAL_XOR = bits(2, np.logical_xor, "({0}!={1})", BOOL)
    BIT_AND = bits(2, np.bitwise_and, "({0}&{1})")
    BIT_OR = bits(2, np.bitwise_or, "({0}|{1})")
    BIT_XOR = bits(2, np.bitwise_xor, "({0}^{1})")
    SHIFT_LEFT = bits(2, np.left_shift, "rlx_shl({0},{1})", INTEGER)
    SHIFT_RIGHT = bits(2, np.right_shift, "rlx_shr({0},{1})", INTEGER)
    WHERE = OpRow(3, S.spread, S.of_rest, lambda c, a, b: np.where(c, a, b), "({0}?{1}:{2})", **D.elementwise(D.where), vmap=B.ALIGNED, dtypes=(BOOL, ANYTHING))
    CLAMP = OpRow(3, S.spread, S.same, refs.lifted(lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi)), "rlx_minimum(rlx_maximum({0},{1}),{2})",
                  **D.elementwise(D.clamp), vmap=B.ALIGNED, lower=lambda x, lo, hi: x.maximum(lo).minimum(hi), dtypes=(REAL,), doc="x held between two bounds")
    FMA = OpRow(3, S.spread, S.same, refs.lifted(lambda a, b, c: a * b + c), "({0}*{1}+{2})",
                **D.elementwise(lambda y, a, b, c: (b, a, 1.0)), vmap=B.ALIGNED, lower=lowerings.fma, dtypes=(NUMBER,), doc="a * b + c, each rounded")

    # reductions and order
    SUM = reduction(np.sum, slope=lambda y, x, axes: 1.0, doc="narrow floats accumulate in f32; integers wrap")
    PROD = reduction(np.prod, slope=D.prod)
    MEAN = reduction(refs.mean, FLOAT, slope=D.mean)
    MAX = reduction(refs.extreme(np.max), REAL, S.reduced_nonempty, slope=D.extreme, doc="NaN if any is")
    MIN = reduction(refs.extreme(np.min), REAL, S.reduced_nonempty, slope=D.extreme, doc="NaN if any is")
    ANY = reduction(np.any, BOOL)
    ALL = reduction(np.all, BOOL)
    ARGMAX = extreme_index(np.argmax, "first index of the greatest; NaN is greatest")
    ARGMIN = extreme_index(np.argmin, "first index of the least; NaN is least")
    SOFTMAX = OpRow(1, S.along_axis, S.same, refs.lifted(refs.softmax), **D.SOFTMAX, vmap=B.AXIS, lower=lowerings.softmax, dtypes=(FLOAT,), attrs=A.Axis)
    LOG_SOFTMAX = OpRow(1, S.along_axis, S.same, refs.lifted(refs.log_softmax), **D.LOG_SOFTMAX, vmap=B.AXIS, lower=lowerings.log_softmax, dtypes=(FLOAT,), attrs=A.Axis)
    CUMSUM = OpRow(1, S.along_axis, S.same, refs.lifted(refs.cumsum), **D.CUMSUM, vmap=B.AXIS, dtypes=(NUMBER,), attrs=A.Axis)
    SORT = OpRow(1, S.sorted_pair, S.value_and_index, refs.sort, **D.ORDERED, vmap=B.AXIS, dtypes=(REAL,), attrs=A.Sorting, doc="values and i64 indices; stable, NaN last")
    TOP_K = OpRow(1, S.top, S.value_and_index, refs.top_k, **D.ORDERED, vmap=B.AXIS, dtypes=(REAL,), attrs=A.TopK,
                   doc="the k greatest and their indices; ties to the lower index")

    # products
    MATMUL = OpRow(2, S.contracted, S.same, refs.keeping_type(np.matmul), **D.MATMUL, vmap=B.ALIGNED, dtypes=(NUMBER,),
                    doc="[.., m, k] @ [.., k, n], leading axes broadcast")
    QMATMUL = OpRow((2, None), S.packed_product, S.of_first, refs.qmatmul, lower=lowerings.qmatmul, dtypes=(FLOAT, ANYTHING), attrs=A.Packed,
                    doc="x @ w^T with w [rows, columns] packed")
    DEQUANTIZE = OpRow((1, None), S.unpacked, S.single, refs.dequantize, vjp=Why("packed weights are not differentiable"),
                       jvp=Why("packed weights are not differentiable"), attrs=A.Packed, doc="packed planes to f32")

    QUANTIZE = OpRow(1, S.packed, S.packed_dtype, refs.quantize, vjp=Why("rounding is not differentiable"), jvp=Why("rounding is not differentiable"),
                     vmap=B.quantize, dtypes=(FLOAT,), attrs=A.Encode, doc="to the nearest codes of an encoding; a group with NaN or infinity decodes to NaN")

    # movement
    RESHAPE = movement(A.Sized, S.reshaped, lambda x, shape: x.reshape(shape), D.RESHAPE, B.reshape, layout.reshape)
    EXPAND = movement(A.Sized, S.expanded, lambda x, shape: np.broadcast_to(x, shape), D.EXPAND, B.expand, layout.expand, "stretch axes of size 1; new axes lead")
    TRANSPOSE = movement(A.Perm, S.permuted, lambda x, perm: x.transpose(perm), D.TRANSPOSE, B.transpose, layout.transpose)
    SLICE = movement(A.Slice, S.sliced, refs.slice_, D.SLICE, B.slice_, layout.slice_, "start:stop:step on every axis, step > 0")
    REVERSE = movement(A.Flip, S.flipped, lambda x, axes: np.flip(x, axes), D.REVERSE, B.AXES, layout.reverse)
    PAD = movement(A.Pad, S.padded, refs.pad, D.PAD, B.pad)
    CONCAT = OpRow((1, None), S.joined, S.same, lambda *xs, axis: np.concatenate(xs, axis), **D.CONCAT, vmap=B.concat, attrs=A.Axis)
    GATHER = OpRow(2, S.gathered, S.of_first, refs.gather, **D.GATHER, vmap=B.gather, dtypes=(ANYTHING, INDEX), attrs=A.Axis,
                    doc="rows by index; -1 is the last, beyond is an error")
    TAKE_ALONG = OpRow(2, S.taken, S.of_first, refs.take_along, **D.TAKE_ALONG, vmap=B.take_along, dtypes=(ANYTHING, INDEX), attrs=A.Axis,
                        doc="element by element, as sort's indices are used")
    SCATTER_ADD = OpRow(3, S.scattered, lambda x, at, u, axis: S.same(x, u), refs.scatter_add, **D.SCATTER_ADD, dtypes=(NUMBER, INDEX, NUMBER), attrs=A.Axis,
                        doc="add updates at indices; repeated indices add up")
    KV_APPEND = OpRow(3, S.appended, lambda cache, new, pos, axis: S.same(cache, new), refs.kv_append, **D.KV_APPEND, dtypes=(ANYTHING, ANYTHING, INDEX),
                      attrs=A.Axis, inplace=0, doc="new rows written into a cache at a position")

    # spatial axes: values are [batch, channels, *space] with one to three axes of space
    WINDOWS = movement(A.Windows, spatial.windows_shape, spatial.windows, SV.WINDOWS, B.AXIS, layout.windows, "overlapping runs of one axis, on a new last axis")
    CONV = OpRow(2, spatial.conv_shape, S.same, spatial.conv, **SV.CONV, vmap=SV.CONV_BATCHES, lower=SV.conv, dtypes=(NUMBER,), attrs=A.Conv,
                 doc="x [n, c, *space] with w [out, c / groups, *size], as correlation: w is not flipped")
    CONV_TRANSPOSE = OpRow(2, spatial.conv_transpose_shape, S.same, spatial.conv_transpose, **SV.CONV_TRANSPOSE, vmap=SV.CONV_BATCHES,
                           lower=SV.conv_transpose, dtypes=(NUMBER,), attrs=A.ConvTranspose, doc="the transpose of conv: x [n, c, *space] with w [c, out / groups, *size]")
    MAX_POOL = OpRow(1, spatial.pool_shape, S.same, spatial.max_pool, **SV.MAX_POOL, vmap=SV.BATCHES, lower=SV.max_pool, dtypes=(REAL,), attrs=A.Pool,
                     doc="the greatest of each window; NaN if any is")
    AVG_POOL = OpRow(1, spatial.pool_shape, S.same, spatial.avg_pool, **SV.AVG_POOL, vmap=SV.BATCHES, lower=SV.avg_pool, dtypes=(FLOAT,), attrs=A.AvgPool,
                     doc="the mean of each window")
    RESIZE = OpRow(1, spatial.resize_shape, S.same, spatial.resize, **SV.RESIZE, vmap=SV.BATCHES, lower=SV.resize, dtypes=(FLOAT,), attrs=A.Resize,
                   doc="to other spatial sizes, by the nearest element or on straight lines between neighbours")

    # model blocks
    LAYER_NORM = OpRow((1, 3), S.normed, S.same, refs.lifted(refs.layer_norm), **D.LAYER_NORM, vmap=B.NORM, lower=lowerings.layer_norm,
                       dtypes=(FLOAT,), attrs=A.Eps, doc="last axis to mean 0 and variance 1, times scale, plus bias; arXiv:1607.06450")
    RMS_NORM = OpRow((1, 2), S.normed, S.same, refs.lifted(refs.rms_norm), **D.RMS_NORM, vmap=B.NORM, lower=lowerings.rms_norm,
                     dtypes=(FLOAT,), attrs=A.Eps, doc="last axis to mean square 1, times scale; arXiv:1910.07467")
    ATTENTION = OpRow((3, 4), S.attended, S.attended_dtype, refs.lifted(attention.attention), lower=lowerings.attention, dtypes=(FLOAT, FLOAT, FLOAT, FLOAT | BOOL | INDEX),
                      attrs=A.Attend, doc="grouped-query attention [b, h, t, d]; the mask is bool, added, or [.., t, 2]: first key seen and the one past the last; who sees none is zeros")
    ROPE = OpRow((2, 3), S.rotated, S.of_first, refs.lifted(attention.rope), lower=lowerings.rope, dtypes=(FLOAT, INDEX, FLOAT), attrs=A.Rope,
                 doc="rotary positions on the last axis; arXiv:2104.09864")

    # Fourier transforms
    FFT = OpRow(1, fourier.transformed, S.of_first, **fourier.FFT, vmap=B.AXIS, dtypes=(COMPLEX,), attrs=A.Axis, doc="the discrete Fourier transform along an axis, exp(-2 pi i j k / n)")
    IFFT = OpRow(1, fourier.transformed, S.of_first, **fourier.IFFT, vmap=B.AXIS, dtypes=(COMPLEX,), attrs=A.Axis, doc="its inverse: exp(2 pi i j k / n) / n")
    RFFT = OpRow(1, fourier.halved, fourier.to_complex, **fourier.RFFT, vmap=B.AXIS, dtypes=(fourier.WIDE,), attrs=A.Axis, doc="fft of reals: the first n // 2 + 1 frequencies")
    IRFFT = OpRow(1, fourier.doubled, fourier.to_real, **fourier.IRFFT, vmap=B.AXIS, dtypes=(COMPLEX,), attrs=A.RealPoints, doc="n reals from their first n // 2 + 1 frequencies")

    # numbers from nothing
    RANDOM_BITS = OpRow(1, S.drawn, S.word, random.bits_ref, vjp=INTEGER_OUTPUT, jvp=INTEGER_OUTPUT, vmap=random.bits_vmap, lower=random.bits_lower,
                        dtypes=(WORD,), attrs=A.Sized, doc="u32 words of a key u32[2] used once; Threefry-2x32-20, doi:10.1145/2063384.2063405")

    # control flow, with graphs as parameters
    SCAN = OpRow((0, None), *control.SCAN, vjp=CV.scan_vjp, jvp=CV.scan_jvp, attrs=A.Scan,
                 doc="a graph run once for every slice of its inputs, carrying values from step to step")
    WHILE = OpRow((1, None), *control.WHILE, vjp=Why("how many steps there are is known only when they are done, so nothing keeps their values"),
                  jvp=CV.while_jvp, attrs=A.While, doc="a graph run on its own results while another says so")
    COND = OpRow((1, None), *control.COND, vjp=CV.cond_vjp, jvp=CV.cond_jvp, dtypes=(BOOL, ANYTHING), attrs=A.Branch,
                 doc="one of two graphs, chosen by a bool; the other does not run")

    # made by the compiler, and the one door for extensions
    FUSED = OpRow((0, None), S.body_shapes, S.body_dtypes, refs.run_body, lower=lowerings.fused, attrs=A.Fused,
                  vjp=Why("differentiate before fusing"), jvp=Why("differentiate before fusing"), vmap=Why("batch before fusing"),
                  doc="a chain of plain ops that one kernel runs")
    CUSTOM = leaf(A.Custom, doc="an extension's op; its row is looked up by name (ir/extension.py)")

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python call, met millions of times

    def __init__(self, row: OpRow) -> None:
        self.text = self.name.lower()
        self.row = row.of(self.text)

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """One spelling for two jobs: on Values it builds a node, on Pats it builds a pattern."""
        owner = next((x for x in inputs if hasattr(x, "apply")), None)
        if owner is None:
            raise BuildError(f"{self.text} of {', '.join(map(repr, inputs)) or 'nothing'}", where=str(caller()), why="none of them is a value of a graph",
                             fix="lift one with builder.const(...)")
        return owner.apply(self.text, inputs, attrs)

    def __repr__(self) -> str:
        return f"Op.{self.name}"


ELEMENTWISE = frozenset(op for op in Op if op.row.scalar)
LEAVES = frozenset({Op.INPUT, Op.PARAM, Op.STATE, Op.CONST})
CONTROL = frozenset({Op.SCAN, Op.WHILE, Op.COND})  # their graphs are code to run, where a fused node's is the chain it stands for
