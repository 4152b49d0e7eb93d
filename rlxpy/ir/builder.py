"""Builder: the only thing that grows.  It infers, checks, shares equal nodes and records the user's line."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlxpy.errors import BuildError, NotRegistered, RlxError
from rlxpy.ir import functions as F
from rlxpy.ir.attrs import Attrs, Custom, Literal, Named, make
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Dim, Shape, shape_text
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.expr import Expr
from rlxpy.ir.extension import extension, lookup
from rlxpy.ir.graph import Graph, Loc, Node, Ref
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.types import TensorType

PACKAGE = str(Path(__file__).parents[1]) + os.sep


class Value(Expr):
    """A handle to one output of one node while its graph is being built."""

    __slots__ = ("builder", "ref")

    def __init__(self, builder: Builder, ref: Ref) -> None:
        self.builder, self.ref = builder, ref

    @property
    def type(self) -> TensorType: return self.builder.nodes[self.ref.node].types[self.ref.out]
    @property
    def shape(self) -> Shape: return self.type.shape
    @property
    def dtype(self) -> DType: return self.type.dtype
    @property
    def rank(self) -> int: return len(self.type.shape)
    @property
    def node(self) -> Node: return self.builder.nodes[self.ref.node]
    @property
    def T(self) -> Any: return F.swap(self)

    def apply(self, op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        return self.builder.emit(op, *(x if isinstance(x, Value) else self.builder.lift(x, inputs) for x in inputs), **attrs)

    def __getitem__(self, key: Any) -> Any:
        """Basic NumPy indexing: ints, slices with positive steps, None and one Ellipsis."""
        return _index(self, key if isinstance(key, tuple) else (key,))

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise TypeError(f"{self.type} has no fixed length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"a {self.type} cannot be looped over while its graph is being built; index it, or use split()")

    def __bool__(self) -> bool:
        raise TypeError(f"a {self.type} has no truth value while its graph is being built; use .where()")

    def __repr__(self) -> str:
        return f"<{self.ref} {self.node.label}: {self.type}>"


@lru_cache(maxsize=1 << 16)
def _infer(op: Op, attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    return op.row.infer(op.text, types, attrs)


def infer(op: Op, attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Output types by the row's rules, remembered for built-ins.  Raises BuildError."""
    return lookup(op, attrs).infer(attrs.name, types, attrs) if isinstance(attrs, Custom) else _infer(op, attrs, types)


class Builder:
    """Names of inputs, params and states are the user's and must be unique; everything else is found by value."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.loc: Loc | None = None            # set by passes: where new nodes come from
        self.made_by: tuple[str, ...] = ()     # set by passes: who makes them
        self.scope_path = ""
        self._seen: dict[Any, int] = {}
        self._leaves: dict[str, TensorType] = {}
        self._updates: dict[Ref, Ref] = {}

    # ---- leaves
    def input(self, name: str, shape: Sequence[Dim], dtype: DType | str = DType.F32) -> Value:
        return self._leaf(Op.INPUT, name, shape, dtype)

    def param(self, name: str, shape: Sequence[Dim], dtype: DType | str = DType.F32) -> Value:
        return self._leaf(Op.PARAM, name, shape, dtype)

    def state(self, name: str, shape: Sequence[Dim], dtype: DType | str = DType.F32) -> Value:
        """Memory that lives from run to run, zero at first; `update` says what it holds next."""
        return self._leaf(Op.STATE, name, shape, dtype)

    def update(self, state: Value, new: Value) -> None:
        if state.node.op is not Op.STATE or state.type != new.type:
            raise BuildError(f"update of {state.node.label} {state.node.name!r} : {state.type} with {new.type}", where=str(_caller()),
                             why="the first must be a state and both types equal")
        self._updates[state.ref] = new.ref

    def const(self, value: Any, dt: DType | str | None = None) -> Value:
        """A constant; Python floats are f32 and Python ints i64 unless a dtype is named."""
        if dt is None and isinstance(value, (bool, int, float)):
            dt = DType.BOOL if isinstance(value, bool) else DType.I64 if isinstance(value, int) else DType.F32
        literal = Constant(value, dtype(dt) if dt is not None else None)
        return self._add(Op.CONST, (), (TensorType(literal.shape, literal.dtype),), Literal(literal))[0]

    def lift(self, x: Any, others: Sequence[Any]) -> Value:
        """A Python scalar takes the dtype of the Value beside it; a scalar that would lose its meaning is an error."""
        like = next(o for o in reversed(others) if isinstance(o, Value)).dtype
        if not isinstance(x, (bool, int, float, complex, np.generic, np.ndarray)):
            raise BuildError(f"{type(x).__name__} {x!r} is not a value", where=str(_caller()), fix="pass a Value, a number or an array (builder.const)")
        if isinstance(x, (np.generic, np.ndarray)):
            return self.const(x)
        if (isinstance(x, float) and not (like.is_float or like.is_complex)) or isinstance(x, bool) != (like is DType.BOOL):
            raise BuildError(f"{x!r} beside a {like} value", where=str(_caller()), why=f"{type(x).__name__} does not become {like} on its own",
                             fix=f"cast the value, or write builder.const({x!r}, ...)")
        if like.is_integer and not like.range[0] <= x <= like.range[1]:  # type: ignore[operator]
            raise BuildError(f"{x} beside a {like} value", where=str(_caller()), why=f"{like} holds {like.range[0]}..{like.range[1]}")
        return self.const(x, like)

    # ---- ops
    def emit(self, op: str | Op, *xs: Value, **attrs: Any) -> Any:
        """A node, checked.  Gives a Value, or a tuple of Values for several outputs."""
        kind = op if isinstance(op, Op) else Op[op.upper()]
        try:
            packed = Custom(**attrs) if kind is Op.CUSTOM else make(kind.row.attrs, kind.text, attrs)
            values = self.add(kind, xs, packed)
        except RlxError as e:
            raise e.at(str(self.loc or _caller(self.scope_path))) from None
        return values[0] if len(values) == 1 else values

    def add(self, op: Op, xs: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
        """`emit` with ready attrs, and always a tuple.  Raises BuildError without a place."""
        for x in xs:
            if x.builder is not self:
                raise BuildError(f"{op.text}: a value of graph {x.builder.name!r} used in {self.name!r}", fix="pass it as an input")
        return self._add(op, tuple(x.ref for x in xs), infer(op, attrs, tuple(x.type for x in xs)), attrs)

    def custom_op(self, name: str, *xs: Value, **params: Any) -> Any:
        """An extension op by name.  Raises NotRegistered."""
        return self.emit(Op.CUSTOM, *xs, name=name, given=make(extension(name).row.attrs, name, params))

    def try_custom_op(self, name: str, *xs: Value, **params: Any) -> Any | NotRegistered:
        """Like custom_op, but an unknown name is returned as the error, not raised."""
        try:
            return self.custom_op(name, *xs, **params)
        except NotRegistered as e:
            return e

    def copy(self, node: Node, xs: Sequence[Value]) -> tuple[Value, ...]:
        """A node of another graph on new inputs of the same types, keeping where it came from."""
        if node.op in LEAVES and node.op is not Op.CONST:
            return (self._leaf(node.op, node.name, *node.type, loc=node.loc, made_by=node.made_by),)
        return self._add(node.op, tuple(x.ref for x in xs), node.types, node.attrs, node.loc, node.made_by)

    def inline(self, graph: Graph, xs: Sequence[Value]) -> Any:
        """The nodes of `graph` here, its inputs replaced by `xs`."""
        new: dict[Ref, Value] = {n.refs[0]: x for n, x in zip(graph.inputs, xs, strict=True)}
        for n in graph:
            if n.op is not Op.INPUT:
                new |= zip(n.refs, self.copy(n, [new[r] for r in n.inputs]), strict=True)
        out = tuple(new[r] for r in graph.outputs)
        return out[0] if len(out) == 1 else out

    # ---- the end
    def finish(self, *outputs: Value, names: Sequence[str] = (), updates: Sequence[tuple[Value, Value]] = ()) -> Graph:
        """Freeze, dropping what no output or state needs; inputs stay, since they are the signature."""
        pairs = {**self._updates, **{s.ref: v.ref for s, v in updates}}
        live = bytearray(len(self.nodes))
        todo = [o.ref.node for o in outputs] + [i for s, v in pairs.items() for i in (s.node, v.node)]
        while todo:
            i = todo.pop()
            if not live[i]:
                live[i] = 1
                todo += [r.node for r in self.nodes[i].inputs]
        keep = [n for n in self.nodes if live[n.id] or n.op is Op.INPUT]
        new = {n.id: k for k, n in enumerate(keep)}
        nodes = tuple(keep) if len(keep) == len(self.nodes) else tuple(
            Node(new[n.id], n.op, tuple(Ref(new[r.node], r.out) for r in n.inputs), n.types, n.attrs, n.loc, n.made_by) for n in keep)
        return Graph(self.name, nodes, tuple(Ref(new[o.ref.node], o.ref.out) for o in outputs), _output_names(names, len(outputs)),
                     tuple((Ref(new[s.node], s.out), Ref(new[v.node], v.out)) for s, v in pairs.items()))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes made inside belong to the block `name`: errors, profiles and drawings say so."""
        before, self.scope_path = self.scope_path, f"{self.scope_path}.{name}" if self.scope_path else name
        try:
            yield
        finally:
            self.scope_path = before

    # ---- inside
    def _leaf(self, op: Op, name: str, shape: Sequence[Dim], dt: DType | str, loc: Loc | None = None, made_by: tuple[str, ...] = ()) -> Value:
        if not isinstance(name, str):
            raise BuildError(f"{op.text} name {name!r} is not text", where=str(_caller()))
        t = TensorType(tuple(shape), dtype(dt))
        if any(isinstance(d, int) and d < 0 for d in t.shape):
            raise BuildError(f"{op.text} {name!r} of shape {shape_text(t.shape)}", where=str(_caller()), why="sizes are 0 or more", fix="use sym() for an unknown size")
        key = f"{op.text} {name}"
        if self._leaves.setdefault(key, t) != t:
            raise BuildError(f"{op.text} {name!r} is declared twice", where=str(_caller()), why=f"as {self._leaves[key]} and as {t}")
        return self._add(op, (), (t,), Named(name), loc, made_by)[0]

    def _add(self, op: Op, inputs: tuple[Ref, ...], types: tuple[TensorType, ...], attrs: Attrs,
             loc: Loc | None = None, made_by: tuple[str, ...] = ()) -> tuple[Value, ...]:
        key = (op, inputs, types, attrs)
        at = self._seen.get(key)
        if at is None:
            at = self._seen[key] = len(self.nodes)
            if loc is None:
                loc, made_by = self.loc or _caller(self.scope_path), self.made_by
            self.nodes.append(Node(at, op, inputs, types, attrs, loc, made_by))
        return tuple(Value(self, Ref(at, k)) for k in range(len(types)))



def _output_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    full = (*names, *(f"out{k}" for k in range(len(names), count)))
    if len(full) != count or len(set(full)) != count:
        raise BuildError(f"output names {', '.join(full)}", why=f"{count} different names are needed")
    return full


def _caller(scope: str = "") -> Loc:
    """The nearest frame outside rlxpy."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return Loc(frame.f_code.co_filename, frame.f_lineno, scope)


def _index(x: Value, key: tuple[Any, ...]) -> Any:
    """ints drop an axis, None adds one, Ellipsis fills up."""
    given = sum(k is not None and k is not Ellipsis for k in key)
    if given > x.rank or key.count(Ellipsis) > 1:
        raise BuildError(f"{given} indices into {x.type}", where=str(_caller()))
    fill = [slice(None)] * (x.rank - given)
    at = next((i for i, k in enumerate(key) if k is Ellipsis), len(key))
    full = [*key[:at], *fill, *key[at + 1:]]
    start, stop, step, shape = [], [], [], list[Dim]()
    axis = 0
    for k in full:
        if k is None:
            shape.append(1)
            continue
        lo, hi, by = _bounds(k, x.shape[axis], x)
        start.append(lo)
        stop.append(hi)
        step.append(by)
        if isinstance(k, slice):
            shape.append((hi - lo + (by - 1)) // by)
        axis += 1
    whole = all(lo == 0 and hi == d and by == 1 for lo, hi, by, d in zip(start, stop, step, x.shape, strict=True))
    cut = x if whole else x.slice(start=tuple(start), stop=tuple(stop), step=tuple(step))
    return F.reshape(cut, tuple(shape))


def _bounds(k: Any, size: Dim, x: Value) -> tuple[Dim, Dim, int]:
    if isinstance(k, slice):
        if isinstance(size, int) and all(isinstance(v, (int, type(None))) for v in (k.start, k.stop, k.step)) and (k.step or 1) > 0:
            first, last, by = k.indices(size)
            return first, max(first, last), by
        return _end(k.start, 0, size), _end(k.stop, size, size), 1 if k.step is None else k.step
    if isinstance(k, Value) or not (isinstance(k, (int, np.integer)) or hasattr(k, "symbols")):
        raise BuildError(f"index {k!r} into {x.type}", where=str(_caller()), fix="use x.gather(indices, axis=...) for an index that is a value")
    at: Dim = size + int(k) if isinstance(k, (int, np.integer)) and k < 0 else k
    if isinstance(at, int) and isinstance(size, int) and not 0 <= at < size:
        raise BuildError(f"index {k} into axis of {size} of {x.type}", where=str(_caller()))
    return at, at + 1, 1


def _end(given: Any, default: Dim, size: Dim) -> Dim:
    """One end of a slice: absent, from the front, or negative from the back."""
    if given is None:
        return default
    return size + given if isinstance(given, int) and given < 0 else given
