"""Builder: the only thing that grows.  It infers, checks, shares equal nodes and records the user's line."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np

from rlxpy.errors import BuildError, CustomOpError, RlxError, nearest
from rlxpy.ir import functions as F
from rlxpy.ir.attrs import Attrs, Custom, Literal, Named, field_types, make
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Dim, Shape, Symbol, SymDim, as_dim, as_shape, shape_text
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.expr import Expr
from rlxpy.ir.extension import extension, lookup
from rlxpy.ir.graph import Graph, Node, Ref, refs_of
from rlxpy.ir.op import LEAVES, Op
from rlxpy.ir.place import Loc, caller, placed
from rlxpy.ir.types import TensorType


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

    __array_ufunc__ = None  # so that NumPy leaves `array + value` to __radd__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError(f"a {self.type} has no numbers while its graph is being built; run the graph to get an array")

    def apply(self, op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        return self.builder.emit(op, *(x if isinstance(x, Value) else self.builder.lift(x, inputs, op) for x in inputs), **attrs)

    @placed
    def __getitem__(self, key: Any) -> Any:
        """Basic NumPy indexing: ints, slices with positive steps, None and one Ellipsis."""
        return _index(self, key if isinstance(key, tuple) else (key,))

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise TypeError(f"{self.type} has no fixed length")
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        """Whether it is this very value.  A number beside == is taken for a mistake: the op is x.eq(y)."""
        if isinstance(other, (bool, int, float, np.ndarray, np.generic)):
            raise TypeError(f"== does not compare a {self.type} element by element; write x.eq({other!r:.20}) or x.ne(..)")
        return self is other

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"a {self.type} cannot be looped over while its graph is being built; index it, or use split()")

    def __bool__(self) -> bool:
        raise TypeError(f"a {self.type} has no truth value while its graph is being built; use .where()")

    def __repr__(self) -> str:
        return f"<{self.ref} {self.node.label}: {self.type}>"


@lru_cache(maxsize=1 << 10)
def _scalar(x: complex, spelled: str, like: DType) -> Literal:
    """Made once, since the same few numbers stand beside values everywhere; `spelled` tells 0.0 from -0.0, 1 and True."""
    return Literal(Constant(x, like))


@lru_cache(maxsize=1 << 16)
def _infer(op: Op, attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    return op.row.infer(op.text, types, attrs)


def infer(op: Op, attrs: Attrs, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Output types by the row's rules, remembered for built-ins.  Raises BuildError."""
    return lookup(op, attrs).infer(attrs.name, types, attrs) if isinstance(attrs, Custom) else _infer(op, attrs, types)


INSIDE: ContextVar[Builder | None] = ContextVar("inside", default=None)  # the graph of the function that is being traced (ir/trace.py)


class Builder:
    """Names of inputs, params and states are the user's and must be unique; everything else is found by value."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.loc: Loc | None = None            # set by passes: where new nodes come from
        self.made_by: tuple[str, ...] = ()     # set by passes: who makes them
        self.scope_path = ""
        self.parent: Builder | None = None     # of a function's graph: the one around it
        self._seen: dict[Any, int] = {}
        self._leaves: dict[tuple[Op, str], TensorType] = {}
        self._symbols: dict[str, Symbol] = {}
        self._updates: dict[Ref, Ref] = {}

    # ---- leaves
    def input(self, name: str, shape: Sequence[Dim], dtype: DType | str = DType.F32) -> Value:
        return self._leaf(Op.INPUT, name, shape, dtype)

    def param(self, name: str, shape: Sequence[Dim], dtype: DType | str = DType.F32) -> Value:
        return self._leaf(Op.PARAM, name, shape, dtype)

    def state(self, name: str, shape: Sequence[Dim], dtype: DType | str = DType.F32) -> Value:
        """Memory that lives from run to run, zero at first; `update` says what it holds next.

        Its bytes stay where they are when a size changes, so only axis 0 may have a symbolic one.  Raises BuildError."""
        if any(not isinstance(d, int) for d in tuple(shape)[1:]):
            raise BuildError(f"state {name!r} of shape {shape_text(tuple(shape))}", where=str(caller()), why="a size behind axis 0 is symbolic",
                             fix="use its upper bound, and slice what is filled")
        return self._leaf(Op.STATE, name, shape, dtype)

    @placed
    def update(self, state: Value, new: Value) -> None:
        self.own((state, new))
        if state.node.op is not Op.STATE or state.type != new.type:
            raise BuildError(f"update of {state.node.label} {state.node.name!r} : {state.type} with {new.type}",
                             why="the first must be a state and both types equal", fix="update(state, new value)")
        if self._updates.setdefault(state.ref, new.ref) != new.ref:
            raise BuildError(f"state {state.node.name!r} is updated twice", why=f"with {self._updates[state.ref]} and with {new.ref}",
                             fix="update it once, with its last value")

    @placed
    def const(self, value: Any, dt: DType | str | None = None) -> Value:
        """A constant; Python floats are f32 and Python ints i64 unless a dtype is named.  Raises BuildError for what does not fit."""
        literal = Constant(value, dtype(dt) if dt is not None else None)
        return Value(self, Ref(self._add(Op.CONST, (), (TensorType(literal.shape, literal.dtype),), Literal(literal))))

    @placed
    def lift(self, x: Any, others: Sequence[Any], op: str = "") -> Value:
        """A Python scalar takes the dtype of the Value beside it; a scalar that would lose its meaning is an error, which knows the parameters of `op`."""
        like = next(o for o in reversed(others) if isinstance(o, Value)).dtype
        if not isinstance(x, (bool, int, float, complex, np.generic, np.ndarray)):
            named = ", ".join(f"{k}=.." for k in field_types(_op(op).row.attrs)) if op else ""
            raise BuildError(f"{x!r} is not a value", why=f"{type(x).__name__} is neither a Value nor a number nor an array",
                             fix=f"pass one of these{f'; parameters go by name: x.{op}({named})' if named else ''}")
        if isinstance(x, (np.generic, np.ndarray)):
            return self.const(x)
        small = {complex: "c", float: "fc"}.get(type(x), like.kind)
        if like.kind not in small or isinstance(x, bool) != (like is DType.BOOL):
            raise BuildError(f"{x!r} beside a {like} value", why=f"{type(x).__name__} does not become {like} on its own",
                             fix=f"cast the value, or write builder.const({x!r}, ...)")
        return Value(self, Ref(self._add(Op.CONST, (), (TensorType((), like),), _scalar(x, repr(x), like))))

    # ---- ops
    def emit(self, op: str | Op, /, *xs: Value, **attrs: Any) -> Any:
        """A node, checked.  Gives a Value, or a tuple of Values for several outputs."""
        try:
            kind = op if isinstance(op, Op) else _op(op)
            if kind in LEAVES:
                raise BuildError(f"{kind.text} is not an op on values", why="it is a leaf: it has no inputs",
                                 fix=f"builder.{kind.text}(...)")
            packed = make(kind.row.attrs, kind.text, attrs)
            values = self.add(kind, xs, packed)
        except RlxError as e:
            raise e.at(str(self.loc or caller(self.scope_path))) from None
        return values[0] if len(values) == 1 else values

    def add(self, op: Op, xs: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
        """`emit` with ready attrs, and always a tuple.  Raises BuildError without a place."""
        if INSIDE.get() is not None or any(getattr(x, "builder", self) is not self for x in xs):
            home = self.home(xs)
            if home is not self:
                return home.add(op, xs, attrs)
            xs = [self.adopt(x) for x in xs]
        self.own(xs)
        types = infer(op, attrs, tuple([x.type for x in xs]))
        return self._values(self._add(op, tuple([x.ref for x in xs]), types, attrs))

    @placed
    def custom_op(self, name: str, /, *xs: Value, **params: Any) -> Any:
        """An extension op by name.  Raises NotRegistered."""
        return self.emit(Op.CUSTOM, *xs, name=name, given=make(extension(name).row.attrs, name, params))

    def try_custom_op(self, name: str, /, *xs: Value, **params: Any) -> Any | CustomOpError:
        """Like custom_op, but an unknown name, or another number of inputs, is returned as the error, not raised."""
        try:
            return self.custom_op(name, *xs, **params)
        except CustomOpError as e:
            return e

    @staticmethod
    def custom_fn(body: Any, vjp: Any = None, jvp: Any = None) -> Any:
        """A function of Values with derivatives of its own: ir/custom_fn.py."""
        from rlxpy.ir.custom_fn import custom_fn

        return custom_fn(body, vjp, jvp)

    def copy(self, node: Node, xs: Sequence[Value]) -> tuple[Value, ...]:
        """A node of another graph on new inputs of the same types, keeping where it came from."""
        return self._values(self.put(node, tuple([x.ref for x in xs])))

    def put(self, node: Node, inputs: tuple[Ref, ...]) -> int:
        """`copy` for passes that handle whole graphs: refs in, the node's position out."""
        if node.op in LEAVES and node.op is not Op.CONST:
            self._declare(node.op, node.name, node.type)
        return self._add(node.op, inputs, node.types, node.attrs, node.loc, node.made_by)

    def around(self) -> tuple[Builder, ...]:
        """This graph and those that it is inside of, innermost first: what a function in a loop may use."""
        return (self, *self.parent.around()) if self.parent else (self,)

    def home(self, xs: Sequence[Any]) -> Builder:
        """Where an op on `xs` belongs: the innermost of their graphs and this one; the graph of the function being traced, if that sees them."""
        inner, traced = max((self, *(x.builder for x in xs if isinstance(x, Value))), key=lambda b: len(b.around())), INSIDE.get()
        return traced if traced is not None and inner in traced.around() else inner

    def adopt(self, x: Any) -> Value:
        """x as a value of this graph.  Raises BuildError where it cannot be one."""
        self.own((x,))
        return x  # type: ignore[no-any-return]

    def own(self, xs: Sequence[Any]) -> None:
        """Raises BuildError for what is not a value of this graph."""
        for x in xs:
            if not isinstance(x, Value):
                several = isinstance(x, (tuple, list)) and any(isinstance(v, Value) for v in x)
                raise BuildError(f"{x!r} is not a value", why="values are what builder.input(...) and ops on values give",
                                 fix="give them one by one, as in finish(y, z)" if several else "wrap a number: builder.const(...)")
            if x.builder is not self:
                inner = self in x.builder.around()
                raise BuildError(f"a value of graph {x.builder.name!r} used in graph {self.name!r}", why=f"{x!r} belongs to another Builder",
                                 fix="return it from the function that makes it" if inner else "pass it as an input")

    def inline(self, graph: Graph, xs: Sequence[Value]) -> Any:
        """The nodes of `graph` here, its inputs replaced by `xs`."""
        new: dict[Ref, Value] = {n.refs[0]: x for n, x in zip(graph.inputs, xs, strict=True)}
        for n in graph:
            if n.op is not Op.INPUT:
                new |= zip(n.refs, self.copy(n, [new[r] for r in n.inputs]), strict=True)
        out = tuple(new[r] for r in graph.outputs)
        return out[0] if len(out) == 1 else out

    # ---- the end
    @placed
    def finish(self, *outputs: Value, names: Sequence[str] = (), updates: Sequence[tuple[Value, Value]] = ()) -> Graph:
        """Freeze, dropping what no output or state needs; inputs stay, since they are the signature."""
        self.own((*outputs, *(v for pair in updates for v in pair)))
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

        def moved(r: Ref) -> Ref:
            return refs_of(new[r.node], r.out + 1)[r.out]

        nodes = tuple(keep) if len(keep) == len(self.nodes) else tuple(
            Node(new[n.id], n.op, tuple(map(moved, n.inputs)), n.types, n.attrs, n.loc, n.made_by) for n in keep)
        return Graph(self.name, nodes, tuple(moved(o.ref) for o in outputs), _output_names(names, len(outputs)),
                     tuple((moved(s), moved(v)) for s, v in pairs.items()))

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes made inside belong to the block `name`: errors, profiles and drawings say so."""
        before, self.scope_path = self.scope_path, f"{self.scope_path}.{name}" if self.scope_path else name
        try:
            yield
        finally:
            self.scope_path = before

    # ---- inside
    @placed
    def _leaf(self, op: Op, name: str, shape: Sequence[Dim], dt: DType | str) -> Value:
        if not isinstance(name, str):
            raise BuildError(f"{op.text} name {name!r} is not text", why=f"it is {type(name).__name__}", fix="name it with a string")
        t = TensorType(as_shape(shape), dtype(dt))
        if any(isinstance(d, int) and d < 0 for d in t.shape):
            raise BuildError(f"{op.text} {name!r} of shape {shape_text(t.shape)}", why="sizes are 0 or more",
                             fix="use sym() for an unknown size")
        for symbol in (s for d in t.shape if isinstance(d, SymDim) for s in d.symbols()):
            if (first := self._symbols.setdefault(symbol.name, symbol)) != symbol:
                raise BuildError(f"symbol {symbol.name} has two ranges", why=f"{first.bounds} and, in {op.text} {name!r}, {symbol.bounds}",
                                 fix="use one sym() object for one size")
        self._declare(op, name, t)
        return Value(self, Ref(self._add(op, (), (t,), Named(name))))

    def _declare(self, op: Op, name: str, t: TensorType) -> None:
        if (first := self._leaves.setdefault((op, name), t)) != t:
            raise BuildError(f"{op.text} {name!r} is declared twice", why=f"as {first} and as {t}", fix="give one of them another name")

    def _add(self, op: Op, inputs: tuple[Ref, ...], types: tuple[TensorType, ...], attrs: Attrs,
             loc: Loc | None = None, made_by: tuple[str, ...] = ()) -> int:
        """Position of the node: an equal one's, or a new one's."""
        key = (op, inputs, attrs)  # which decide the types; names of leaves have one type each
        at = self._seen.get(key)
        if at is None:
            at = self._seen[key] = len(self.nodes)
            if loc is None:
                loc, made_by = self.loc or caller(self.scope_path), self.made_by
            self.nodes.append(Node(at, op, inputs, types, attrs, loc, made_by))
        return at

    def _values(self, at: int) -> tuple[Value, ...]:
        return tuple([Value(self, r) for r in self.nodes[at].refs])


def _op(name: str) -> Op:
    if not isinstance(name, str) or name.upper() not in Op.__members__:
        raise BuildError(f"no op {name!r}", why=f"there are {len(Op)} ops", fix=f"near it: {nearest(str(name), [o.text for o in Op])}")
    return Op[name.upper()]


def _output_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    full = (*given, *(f"out{k}" for k in range(len(given), count)))
    if len(full) != count or not all(isinstance(n, str) for n in full) or len(set(full)) != count:
        raise BuildError(f"output names {', '.join(map(repr, full))}", why=f"{count} different names are needed",
                         fix="finish(y, z, names=('y', 'z'))")
    return full


def _index(x: Value, key: tuple[Any, ...]) -> Any:
    """ints drop an axis, None adds one, Ellipsis fills up."""
    given = sum(k is not None and k is not Ellipsis for k in key)
    if given > x.rank or sum(k is Ellipsis for k in key) > 1:
        raise BuildError(f"{given} indices into {x.type}", why=f"it has {x.rank} axes, and one ... may stand for several",
                         fix="drop an index")
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
    """start, stop and step of one index."""
    if isinstance(k, slice):
        start, stop, step = (None if v is None else as_dim(v) for v in (k.start, k.stop, k.step))
        by = 1 if step is None else step
        if not isinstance(by, int) or by < 1:
            raise BuildError(f"slice with step {by} of {x.type}", why="steps are whole numbers above 0",
                             fix="flip with x.reverse(axes=...)")
        if isinstance(size, int) and not any(isinstance(v, SymDim) for v in (start, stop)):
            first, last, by = k.indices(size)
            return first, max(first, last), by
        return _end(start, 0, size), _end(stop, size, size), by
    if isinstance(k, (Value, bool, list, np.ndarray)):
        raise BuildError(f"index {k!r} into {x.type}", why=f"{type(k).__name__} is not a whole number",
                         fix="use x.gather(indices, axis=...) for indices that are values or arrays")
    at = as_dim(k)
    if isinstance(at, int) and at < 0:
        at = size + at
    if isinstance(at, int) and isinstance(size, int) and not 0 <= at < size:
        raise BuildError(f"index {k} into {x.type}", why=f"the axis has {size} elements, so indices are {-size}..{size - 1}",
                         fix="index inside the axis")
    return at, at + 1, 1


def _end(given: Dim | None, default: Dim, size: Dim) -> Dim:
    """One end of a slice: absent, from the front, or negative from the back."""
    if given is None:
        return default
    return size + given if isinstance(given, int) and given < 0 else given
