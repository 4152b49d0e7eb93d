"""The shape of an op's row: every column, and type inference from its cells."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlxpy.errors import ArityMismatch, BuildError, HookMismatch, RlxError
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.dims import SymDim
from rlxpy.ir.dtypes import DType
from rlxpy.ir.types import TensorType

FLOAT = frozenset(d for d in DType if d.is_float)
INTEGER = frozenset(d for d in DType if d.is_integer and d.bits >= 8)  # i4 and u4 store: cast them to calculate
BOOL = frozenset({DType.BOOL})
REAL = FLOAT | INTEGER
COMPLEX = frozenset(d for d in DType if d.is_complex)
NUMBER = REAL | COMPLEX
ANYTHING = frozenset(DType)
BITS = INTEGER | BOOL
BYTES = frozenset({DType.U8})
WORD = frozenset({DType.U32})
INDEX = frozenset({DType.I32, DType.I64, DType.U32, DType.U8, DType.I8, DType.I16, DType.U16, DType.U64})


@dataclass(frozen=True)
class Why:
    """The written reason for a cell that holds nothing."""

    reason: str


@dataclass(frozen=True)
class Family:
    """A cell that many ops share: it is called with the op's own name first."""

    cell: Callable[..., Any]


PRIMITIVE = Why("primitive: made of nothing simpler")
INTEGER_OUTPUT = Why("not differentiable: integer or bool output")
LEAF = Why("a leaf has no inputs")
Cell = Callable[..., Any] | Family | Why | None  # None is owed: nobody has written it yet
CELLS = ("ref", "vjp", "jvp", "vmap", "lower")


@dataclass(frozen=True, eq=False)
class OpRow:
    """One op, whole.  ts are TensorTypes, xs Values, attrs arrive as keywords.

    arity    number of inputs, or (least, most) with most None for any
    shape    (*ts, **attrs) -> Shape, or a list of Shapes for several outputs; raises BuildError
    dtype    (*ts, **attrs) -> DType, or a list of them; None where `shape` gives a whole TensorType, or a tuple or list of several
    ref      (*arrays, **attrs) -> array or tuple of arrays: the op's meaning, in NumPy
    scalar   C-family expression over {0}, {1}..: present exactly for elementwise ops, which makes them fusible
    vjp      (dy, y, *xs, **attrs) -> a tuple with a gradient Value of its shape and dtype, or None, for each input
    jvp      (dxs, y, *xs, **attrs) -> the tangent of y; at least one of dxs is not None
    vmap     (batched, *xs, **attrs) -> Value or tuple: axis 0 of every input that `batched` is true for, and of the result, is the batch
    lower    (*xs, **attrs) -> Value or tuple: the same from simpler ops
    dtypes   accepted element types for each input; the last entry repeats
    view     (ViewArgs) -> Layout or None: the output as another walk over the input's bytes (ir/layout.py)
    inplace  the input whose memory the output takes over when nothing else reads it
    commutes whether f(a, b) is f(b, a): constants then move to the right

    In vjp and jvp None is a zero, and integers and bools have nothing else.  Of an op with several outputs dy, y and the
    tangent are tuples with one entry each, and at least one of dy is not None.
    """

    arity: int | tuple[int, int | None]
    shape: Callable[..., Any]
    dtype: Callable[..., Any] | None
    ref: Cell = None
    scalar: str | None = None
    vjp: Cell = None
    jvp: Cell = None
    vmap: Cell = None
    lower: Cell = PRIMITIVE
    dtypes: tuple[frozenset[DType], ...] = (ANYTHING,)
    attrs: type[Attrs] = Attrs
    view: Callable[..., Any] | None = None
    inplace: int | None = None
    commutes: bool = False
    doc: str = ""

    def of(self, name: str) -> OpRow:
        """The row of the op `name`: Family cells are bound to it."""
        shared: dict[str, Any] = {c: partial(cell.cell, name) for c in CELLS if isinstance(cell := getattr(self, c), Family)}
        return replace(self, **shared) if shared else self

    def infer(self, name: str, ts: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
        """Output types.  Raises BuildError or ArityMismatch with both sides."""
        self._check_inputs(name, ts)
        params = attrs.params()
        try:
            shapes = self.shape(*ts, **params)
            dtypes = self.dtype(*ts, **params) if self.dtype else None
        except RlxError as e:
            raise e.at("", prefix=f"{name}({', '.join(map(str, ts))}): ") from None
        except RecursionError:  # of an op made of itself: told once, by its outermost call
            raise
        except Exception as e:  # whatever an extension's rule raises
            raise BuildError(f"the shape or dtype rule of {name} failed", why=f"{type(e).__name__}: {e}", fix="give a tuple of sizes and a DType, or raise BuildError") from e
        return typed(name, shapes) if self.dtype is None else paired(name, shapes, dtypes)

    def _check_inputs(self, name: str, ts: Sequence[TensorType]) -> None:
        least, most = self.arity if isinstance(self.arity, tuple) else (self.arity, self.arity)
        if len(ts) < least or (most is not None and len(ts) > most):
            wanted = str(least) if least == most else f"{least} to {most}" if most is not None else f"{least} or more"
            raise ArityMismatch(f"{name} takes {wanted} inputs, got {len(ts)}", why=f"given: {', '.join(map(str, ts)) or 'nothing'}",
                                fix="parameters go by keyword, values by position")
        for i, t in enumerate(ts):
            accepted = self.dtypes[min(i, len(self.dtypes) - 1)]
            if t.dtype not in accepted:
                names = ", ".join(d.text for d in DType if d in accepted)
                raise BuildError(f"{name}: input {i} is {t}", why=f"{t.dtype} is not among {names}", fix="cast it, as in x.cast(to='f32')")


def paired(name: str, shapes: Any, dtypes: Any) -> tuple[TensorType, ...]:
    """What a shape rule and a dtype rule gave, as types.  Raises BuildError."""
    many = isinstance(shapes, list)
    if many != isinstance(dtypes, list) or (many and len(shapes) != len(dtypes)):
        raise HookMismatch(f"the rules of {name} disagree", why=f"shape gives {shapes!r}, dtype gives {dtypes!r}", fix="for several outputs give two lists of one length")
    for shape, d in zip(shapes, dtypes, strict=True) if many else ((shapes, dtypes),):
        if not _is_shape(shape) or not isinstance(d, DType):
            raise HookMismatch(f"the rules of {name} give no type", why=f"shape gives {shape!r}, dtype gives {d!r}", fix="give a tuple of sizes and a DType")
    return tuple(map(TensorType, shapes, dtypes)) if many else (TensorType(shapes, dtypes),)


def typed(name: str, made: Any) -> tuple[TensorType, ...]:
    """What a rule for whole types gave.  Raises BuildError."""
    types = (made,) if isinstance(made, TensorType) or not isinstance(made, (tuple, list)) else tuple(made)
    for t in types or (None,):
        if not isinstance(t, TensorType) or not _is_shape(t.shape) or not isinstance(t.dtype, DType):
            raise HookMismatch(f"the type rule of {name} gives no type", why=f"it gives {made!r:.200}", fix="return TensorType(shape, dtype), or several in a tuple")
    return types


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(isinstance(s, SymDim) or (isinstance(s, int) and s >= 0) for s in shape)
