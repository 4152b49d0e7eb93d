"""Ops of downstream packages written as functions: the signature says inputs and parameters, the body what they are made of."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import field, make_dataclass
from functools import lru_cache
from typing import Any

from rlxpy.errors import BuildError, HookMismatch, RlxError
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Attrs
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.extension import OpExtension, check_name, register_op
from rlxpy.ir.graph import Graph
from rlxpy.ir.kinds import KINDS, annotation, converter
from rlxpy.ir.place import placed
from rlxpy.ir.refs import evaluate
from rlxpy.ir.row import ANYTHING, OpRow, Why
from rlxpy.ir.types import TensorType

VALUES = {"", "Value", "TensorType", "Array", "Any", "Value | None", "TensorType | None", "Array | None"}  # annotations of inputs
OPAQUE = Why("its author gave its types, and kernels")
Dtypes = tuple[frozenset[DType], ...]
DEEPEST = 100  # bodies inside bodies
_depth: ContextVar[int] = ContextVar("rlxpy_bodies", default=0)


@placed
def op(name: str, *, vjp: Any = None, jvp: Any = None, vmap: Any = None, dtypes: Dtypes = (ANYTHING,)) -> Callable[[Callable[..., Any]], OpExtension]:
    """An op by its composition: a function of Values.

        @op("acme.softcap")
        def softcap(x, cap: float = 30.0): return (x / cap).tanh() * cap

    Parameters without an annotation are inputs, `= None` makes one optional and `*xs` stands for any number; annotated ones are
    parameters of the op.  A tuple gives several outputs.  Types and meaning follow from the body.
    Raises HookMismatch where function and hooks do not fit, BuildError for a name that is not vendor.op."""
    check_name(name)

    @placed
    def define(f: Callable[..., Any]) -> OpExtension:
        s = read_signature(name, f)
        body = _Body(name, f)
        row = OpRow(s.arity, body.types, None, ref=body.run, lower=f, vjp=vjp, jvp=jvp, vmap=vmap, dtypes=dtypes, attrs=s.attrs, doc=inspect.getdoc(f) or "")
        return register_op(OpExtension(name, row, s.inputs))
    return define


@placed
def declare_op(name: str, *, vjp: Any = None, jvp: Any = None, vmap: Any = None, dtypes: Dtypes = (ANYTHING,)) -> Callable[[Callable[..., Any]], OpExtension]:
    """An op by its types: a function of TensorTypes that gives the result's, or a tuple of several.  Kernels run it: register_cpu_kernel.

        @declare_op("acme.median")
        def median(x): return TensorType(x.shape[:-1], x.dtype)

    The signature is read as by @op."""
    check_name(name)

    @placed
    def define(f: Callable[..., Any]) -> OpExtension:
        s = read_signature(name, f)
        row = OpRow(s.arity, f, None, lower=OPAQUE, vjp=vjp, jvp=jvp, vmap=vmap, dtypes=dtypes, attrs=s.attrs, doc=inspect.getdoc(f) or "")
        return register_op(OpExtension(name, row, s.inputs))
    return define


@dataclass(frozen=True)
class Signature:
    arity: int | tuple[int, int | None]
    inputs: tuple[str, ...]
    attrs: type[Attrs]


def read_signature(name: str, f: Callable[..., Any]) -> Signature:
    """Raises HookMismatch for what is neither an input nor a parameter."""
    if not callable(f):
        raise HookMismatch(f"op {name!r} is made from {type(f).__name__}", why="a function is wanted", fix=f"@op({name!r}) above a def")
    required, optional, several = list[str](), list[str](), False
    params: list[tuple[str, str, Any]] = []
    for p in inspect.signature(f).parameters.values():
        kind = "" if p.annotation is p.empty else annotation(p.annotation)
        value = kind in VALUES
        if p.kind is p.VAR_POSITIONAL and value:
            several = True
        elif value and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default in (p.empty, None) and not params:
            (required if p.default is p.empty else optional).append(p.name)
        elif not value and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and converter(kind):
            params.append((p.name, kind, _default(name, p, kind)))
        else:
            raise HookMismatch(f"op {name!r}: {p} in {f.__name__}{inspect.signature(f)}", why=_unclear(p, kind, bool(params)),
                               fix=f"inputs come first, without annotations; parameters are annotated: {KINDS}")
    if optional and several:
        raise HookMismatch(f"op {name!r}: {f.__name__}{inspect.signature(f)}", why="optional inputs before any number of others cannot be told apart", fix="make them required")
    most = None if several else len(required) + len(optional)
    return Signature(most if most == len(required) else (len(required), most), (*required, *optional), _attrs_class(name, tuple(params)) if params else Attrs)


def _unclear(p: inspect.Parameter, kind: str, late: bool) -> str:
    if kind in VALUES:
        return "an input stands behind a parameter" if late else f"an input cannot be {p.kind.description}" + (f" with default {p.default!r}" if p.default is not p.empty else "")
    return f"a parameter cannot be {p.kind.description}" if converter(kind) else f"{kind} has no text form"


def _default(name: str, p: inspect.Parameter, kind: str) -> Any:
    """In its converted form; REQUIRED where there is none."""
    if p.default is p.empty:
        return REQUIRED
    try:
        return converter(kind)(p.default)  # type: ignore[misc]
    except (TypeError, ValueError, OverflowError, RlxError) as e:
        raise HookMismatch(f"op {name!r}: default {p.name} = {p.default!r}", why=f"{p.name} is {kind}: {e}", fix="give a default of that kind") from None


REQUIRED = inspect.Parameter.empty


@lru_cache(maxsize=1024)
def _attrs_class(name: str, params: tuple[tuple[str, str, Any], ...]) -> type[Attrs]:
    """One class for equal parameters, so that graphs made before and after a definition is run again are equal."""
    made = [(k, kind, field()) if default is REQUIRED else (k, kind, field(default=default)) for k, kind, default in params]
    title = "".join(word.capitalize() for word in name.replace(".", "_").split("_"))
    return make_dataclass(title, made, bases=(Attrs,), frozen=True, kw_only=True)


def _raised(e: Exception) -> str:
    """Where, file and line."""
    at = e.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else "an unknown place"


@dataclass(frozen=True)
class _Body:
    """What follows from a lowering: the types of its results, and their values in NumPy."""

    name: str
    lower: Callable[..., Any]

    def graph(self, types: Sequence[TensorType], params: dict[str, Any]) -> tuple[Graph, bool]:
        """The body for inputs of these types, and whether it gives a tuple.  Raises BuildError naming the line of the body."""
        b, depth = Builder(self.name), _depth.get()
        token = _depth.set(depth + 1)
        try:
            if depth >= DEEPEST:
                raise RecursionError
            made = self.lower(*(b.input(f"x{k}", *t) for k, t in enumerate(types)), **params)
            results = made if isinstance(made, tuple) else (made,)
            if not results or not all(isinstance(v, Value) for v in results):
                raise HookMismatch(f"the body gives {', '.join(type(v).__name__ for v in results) or 'an empty tuple'}", why="a Value is wanted, or a tuple of several",
                                   fix="return the result; wrap a number: x.builder.const(...)")
            return b.finish(*results), isinstance(made, tuple)
        except RecursionError:
            if depth:
                raise
            raise BuildError(f"the body of {self.name} never ends", why=f"there is always another op of this kind inside, {DEEPEST} deep", fix="make an op of simpler ones, never of itself") from None
        except RlxError as e:
            raise type(e)(e.what, why="; ".join(filter(None, (e.why, f"inside the op, {e.where}" if e.where else ""))), fix=e.fix) from None
        except Exception as e:
            raise BuildError(f"the body of {self.name} failed", why=f"{type(e).__name__}: {e}; at {_raised(e)}", fix="a body takes Values and gives Values") from e
        finally:
            _depth.reset(token)

    def types(self, *ts: TensorType, **params: Any) -> tuple[TensorType, ...]:
        return self.graph(ts, params)[0].output_types

    def run(self, *arrays: Any, **params: Any) -> Any:
        graph, several = self.graph([TensorType(a.shape, dtype(a.dtype)) for a in arrays], params)
        made = evaluate(graph, {n.id: a for n, a in zip(graph.inputs, arrays, strict=True)})
        return made if several else made[0]
