"""Textual IR.  `parse(show(g)) == g` for every graph; tests, `rlx opt` and bug reports rely on it.

    graph main(B in 1..8, S in 16..512 step 16) {
      %0 = input {name='x'} : f32[B,S]
      %1 = const {value=f32(0.5)} : f32[]
      %2 = mul %0, %1 : f32[B,S]
      return y=%2
    }

A second output is %2#1; an extension's op is written by its name, `acme.softcap %0 {cap=30.0}`; a sub-graph follows its node's type
as `body { .. }`; names that are not words are quoted as in Python; `//` starts a comment."""
from __future__ import annotations

import ast
import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlxpy.errors import BuildError, RlxError, nearest
from rlxpy.ir.attrs import GRAPHS, Attrs, Custom, field_types
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Dim, parse_dim, sym
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.extension import extension
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.kinds import converter
from rlxpy.ir.op import Op
from rlxpy.ir.place import Loc
from rlxpy.ir.types import TensorType

INLINE_NUMEL = 16  # a constant of more elements is written as base64


# ---- writing -------------------------------------------------------------------------------------------------------
def show(graph: Graph, *, locs: bool = False) -> str:
    """The graph as text; `locs` adds each node's user line and passes as a comment."""
    return "\n".join(_graph_lines(graph, "", locs))


def show_node(node: Node) -> str:
    """One node on one line, without sub-graphs."""
    args = f" {', '.join(map(str, node.inputs))}" if node.inputs else ""
    attrs = _attrs_text(node.attrs)
    op = node.attrs.name if isinstance(node.attrs, Custom) else node.op.text
    return f"%{node.id} = {op}{args}{' {' + attrs + '}' if attrs else ''} : {', '.join(map(str, node.types))}"


def _graph_lines(graph: Graph, indent: str, locs: bool) -> Iterator[str]:
    syms = ", ".join(f"{s} in {s.lo}..{s.hi}" + (f" step {s.step}" if s.step > 1 else "") for _, s in sorted(graph.symbols.items()))
    yield f"{indent}graph {_name(graph.name)}({syms}) {{"
    for n in graph:
        bodies = list(n.attrs.graphs())
        comment = f"  // {' '.join(n.where.split())}" if locs and n.where else ""
        yield f"{indent}  {show_node(n)}{f' {bodies[0][0]} {{' if bodies else ''}{comment}"
        for k, (_, body) in enumerate(bodies):
            yield from _graph_lines(body, indent + "    ", locs)
            yield f"{indent}  }}{f' {bodies[k + 1][0]} {{' if k + 1 < len(bodies) else ''}"
    for state, new in graph.updates:
        yield f"{indent}  update {state} = {new}"
    outs = ", ".join(f"{_name(n)}={r}" for n, r in zip(graph.output_names, graph.outputs, strict=True))
    yield f"{indent}  return {outs}".rstrip()
    yield f"{indent}}}"


def _name(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else repr(text)


def _attrs_text(attrs: Attrs) -> str:
    if isinstance(attrs, Custom):
        return _attrs_text(attrs.given)
    return ", ".join(f"{k}={SHOW.get(kind, repr)(getattr(attrs, k))}" for k, kind in field_types(type(attrs)).items() if kind not in GRAPHS)


def _shape_text(shape: tuple[Dim, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _constant_text(c: Constant) -> str:
    """f32(0.5), f32(1.0, 2.0, shape=(2,)) or f32(base64='..', shape=(64, 64))."""
    shape = [f"shape={_shape_text(c.shape)}"] if c.shape else []
    if c.array.size <= INLINE_NUMEL and c.dtype.kind != "c":
        with np.errstate(invalid="ignore"):  # a signalling NaN
            numbers = map(repr, c.array.reshape(-1).astype(_plain(c.dtype)).tolist())  # floats round trip; nan and inf are read as names
        inline = f"{c.dtype}({', '.join([*numbers, *shape])})"
        if _constant(ast.parse(inline, mode="eval").body, {}) == c:  # a NaN with a payload has no decimal text
            return inline
    raw = base64.b64encode(c.array.tobytes()).decode()
    return f"{c.dtype}({', '.join([f'base64={raw!r}', *shape])})"


def _plain(d: DType) -> Any:
    return np.float64 if d.is_float else d.numpy if d.kind == "b" or d.bits == 64 else np.int64


SHOW: dict[str, Callable[[Any], str]] = {"DType": str, "Dim": str, "Shape": _shape_text, "Constant": _constant_text}


# ---- reading -------------------------------------------------------------------------------------------------------
_STRING = r"""'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+\""""
_NAME = rf"\w+|{_STRING}"
_REF = r"%[0-9]{1,9}(?:#[0-9]{1,9})?"
_CODE = re.compile(rf"(?:{_STRING}|(?!(?:^|\s)//).)*+")
_HEAD = re.compile(rf"graph ({_NAME})\((.*)\) \{{$")
_SYM = re.compile(r"(\w+) in ([0-9]{1,18})\.\.([0-9]{1,18})(?: step ([0-9]{1,18}))?$")
_LINE = re.compile(rf"%([0-9]{{1,9}}) = ([\w.]+)(?: ({_REF}(?:, {_REF})*))?(?: (\{{.*\}}))? : (.+?)( \w+ \{{)?$")
_TYPE = re.compile(r"(\w+)\[([^\]]*)\](?:, |$)")
_UPDATE = re.compile(rf"update ({_REF}) = ({_REF})$")
_OUTPUT = re.compile(rf"({_NAME})=({_REF})(?:, |$)")
_CLOSING = re.compile(r"\}( \w+ \{)?$")


class _Reader:
    """Lines with their numbers, so that an error says where."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        stripped = ((i, _CODE.match(line.strip())[0].strip()) for i, line in enumerate(text.splitlines(), 1))  # type: ignore[index]
        self.lines = [(i, line) for i, line in stripped if line]
        self.at = 0

    def peek(self) -> str:
        if self.at >= len(self.lines):
            raise BuildError("the graph text ends too early", where=self.where, why="a closing } or a return is missing")
        return self.lines[self.at][1]

    def next(self) -> str:
        line = self.peek()
        self.at += 1
        return line

    def take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """The next line, which must look like `what`."""
        m = pattern.match(self.next())
        if m is None:
            raise BuildError("cannot read this line", where=self.where, why=f"{what} is expected")
        return m

    @property
    def where(self) -> str:
        i, line = self.lines[max(self.at - 1, 0)] if self.lines else (0, "")
        return f"line {i}: {line}"

    @property
    def loc(self) -> Loc:
        return Loc(self.file, self.lines[self.at - 1][0]) if self.file else Loc()


def parse(text: str, file: str = "") -> Graph:
    """Read one graph; nodes come from the lines of `file`, if it is named.  Raises BuildError with the line.  Types are read, not inferred: `verify` compares them."""
    if not isinstance(text, str):
        raise BuildError(f"cannot read a graph from {type(text).__name__}", why=f"{text!r} is not text", fix="parse(show(graph)) is the graph")
    reader = _Reader(text, file)
    try:
        graph = _graph(reader)
    except RecursionError:
        raise BuildError("the graph text is nested too deeply", where=reader.where) from None
    if reader.at != len(reader.lines):
        reader.next()
        raise BuildError("text after the end of the graph", where=reader.where)
    return graph


def _graph(reader: _Reader) -> Graph:
    head = reader.take(_HEAD, "graph name(SYMBOL in lo..hi, ..) {")
    name = _unquoted(head[1], reader)
    known = dict(_symbol(part, reader) for part in head[2].split(", ") if part)
    nodes: list[Node] = []
    while reader.peek().startswith("%"):
        nodes.append(_node(reader, known, nodes))
    updates = []
    while reader.peek().startswith("update"):
        m = reader.take(_UPDATE, "update %state = %new")
        updates.append((_ref(m[1], nodes, reader), _ref(m[2], nodes, reader)))
    line = reader.take(re.compile(r"return(?: (.*))?$"), f"%{len(nodes)} = op .. : type, or return name=%value, ..")[1]
    outs = [(_unquoted(m[1], reader), _ref(m[2], nodes, reader)) for m in _each(_OUTPUT, line or "", "name=%value, ..", reader)]
    reader.take(re.compile(r"\}$"), "}")
    return Graph(name, tuple(nodes), tuple(r for _, r in outs), tuple(name for name, _ in outs), tuple(updates))


def _each(pattern: re.Pattern[str], line: str, what: str, reader: _Reader) -> Iterator[re.Match[str]]:
    """Matches that cover the whole line, with nothing between them."""
    at = 0
    while at < len(line):
        m = pattern.match(line, at)
        if m is None:
            raise BuildError(f"cannot read {line[at:]!r}", where=reader.where, why=f"{what} is expected")
        yield m
        at = m.end()


def _told(e: RlxError, where: str) -> RlxError:
    """The same error at a line of the text: no line of Python is to blame."""
    return type(e)(e.what, where=where, why=e.why, fix=e.fix)


def _unquoted(name: str, reader: _Reader) -> str:
    try:
        return str(ast.literal_eval(name)) if name[0] in "'\"" else name
    except (SyntaxError, ValueError) as e:
        raise BuildError(f"cannot read the name {name}", where=reader.where, why=str(e), fix="quote it as Python does") from None


def _symbol(part: str, reader: _Reader) -> tuple[str, Dim]:
    m = _SYM.match(part)
    if m is None:
        raise BuildError(f"cannot read symbol {part!r}", where=reader.where, fix="write S in 1..512 step 16")
    try:
        return m[1], sym(m[1], int(m[2]), int(m[3]), int(m[4] or 1))
    except BuildError as e:
        raise _told(e, reader.where) from None


def _node(reader: _Reader, known: dict[str, Dim], nodes: list[Node]) -> Node:
    m = reader.take(_LINE, f"%{len(nodes)} = op .. : type")
    where, loc = reader.where, reader.loc
    if int(m[1]) != len(nodes):
        raise BuildError(f"%{m[1]} is out of order", where=where, why=f"%{len(nodes)} comes next")
    if "." not in m[2] and m[2].upper() not in Op.__members__:
        raise BuildError(f"no op {m[2]!r}", where=where, fix=f"near it: {nearest(m[2], [o.text for o in Op])}")
    inputs = tuple(_ref(r, nodes, reader) for r in (m[3] or "").split(", ") if r)
    types = tuple(_type(t[1], t[2], known, reader) for t in _each(_TYPE, m[5], "f32[2,S], ..", reader))
    given: dict[str, Any] = _keywords(m[4] or "{}", reader)
    more = m[6]
    while more:
        given[more.strip(" {")] = _graph(reader)
        more = reader.take(_CLOSING, "} after a sub-graph")[1]
    try:
        if "." in m[2]:
            return Node(len(nodes), Op.CUSTOM, inputs, types, Custom(m[2], _attrs(extension(m[2]).row.attrs, given, known)), loc)
        op = Op[m[2].upper()]
        return Node(len(nodes), op, inputs, types, _attrs(op.row.attrs, given, known), loc)
    except RlxError as e:
        raise _told(e, where) from None


def _keywords(braced: str, reader: _Reader) -> dict[str, ast.expr]:
    """`{a=1, b=(2, 3)}` as names and unread values."""
    try:
        call = ast.parse(f"f({braced[1:-1]})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:  # what Python's parser raises on bad or endless text
        raise BuildError("cannot read the parameters", where=reader.where, why=str(e)) from None
    if not isinstance(call, ast.Call) or call.args or not all(k.arg for k in call.keywords) or not isinstance(call.func, ast.Name):
        raise BuildError("cannot read the parameters", where=reader.where, why="{name=value, ..} is expected")
    given = {str(k.arg): k.value for k in call.keywords}
    if len(given) < len(call.keywords):
        raise BuildError("a parameter is given twice", where=reader.where, why=", ".join(str(k.arg) for k in call.keywords))
    return given


def _attrs(cls: type[Attrs], given: dict[str, Any], known: dict[str, Dim]) -> Attrs:
    if cls is Custom:
        raise BuildError("an extension's op is written by its name", fix="%2 = vendor.op %0 {..} : type")
    kinds = field_types(cls)
    if unknown := sorted(set(given) - set(kinds)):
        raise BuildError(f"unknown parameter {', '.join(unknown)}", fix=f"parameters are {', '.join(kinds) or 'none'}")
    try:
        absent = {k: None for k, kind in kinds.items() if kind == "Graph | None"}
        return cls(**absent | {k: _value(kinds[k], v, known) for k, v in given.items()})
    except (TypeError, ValueError, OverflowError) as e:
        raise BuildError("cannot read the parameters", why=str(e), fix=f"parameters are {', '.join(f'{k}: {t}' for k, t in kinds.items()) or 'none'}") from None


def _value(kind: str, given: Any, known: dict[str, Dim]) -> Any:
    if isinstance(given, Graph) != (kind in GRAPHS):
        raise ValueError(f"{kind} is wanted" if isinstance(given, Graph) else "a sub-graph is written after the type, as body { .. }")
    if isinstance(given, Graph) or kind in READ:
        return given if isinstance(given, Graph) else READ[kind](given, known)
    value, convert = _literal(given, known), converter(kind)
    return convert(value) if convert else value


def _type(name: str, dims: str, known: dict[str, Dim], reader: _Reader) -> TensorType:
    try:
        shape = tuple(parse_dim(d, known) for d in dims.split(",")) if dims else ()
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise BuildError(f"no shape [{dims}]", why="sizes are 0 or more")
        return TensorType(shape, dtype(name))
    except BuildError as e:
        raise _told(e, reader.where) from None


def _ref(text: str, nodes: list[Node], reader: _Reader) -> Ref:
    node, _, out = text[1:].partition("#")
    if int(node) >= len(nodes) or int(out or 0) >= len(nodes[int(node)].types):
        raise BuildError(f"no value {text}", where=reader.where, why="it must be defined above")
    return Ref(int(node), int(out or 0))


def _literal(node: ast.expr, known: dict[str, Dim]) -> Any:
    match node:
        case ast.Name(id="nan" | "inf" as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_literal(x, known)
        case ast.Tuple(elts=elts):
            return tuple(_literal(e, known) for e in elts)
        case ast.Constant(value=value):
            return value
    raise ValueError(f"{ast.unparse(node)} is not a plain value")


def _exactly(kind: type, *also: type) -> Callable[[ast.expr, dict[str, Dim]], Any]:
    def read(node: ast.expr, known: dict[str, Dim]) -> Any:
        value = _literal(node, known)
        if type(value) not in (kind, *also):
            raise ValueError(f"{ast.unparse(node)} is not {kind.__name__}")
        return kind(value)
    return read


def _elements(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Tuple):
        raise ValueError(f"{ast.unparse(node)} is not a tuple")
    return node.elts


def _constant(node: ast.expr, known: dict[str, Dim]) -> Constant:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(f"{ast.unparse(node)} is not a constant")
    d, named = dtype(node.func.id), {k.arg: k.value for k in node.keywords}
    shape = READ["tuple[int, ...]"](named.pop("shape", ast.Tuple([])), {})
    raw = named.pop("base64", None)
    if named or min(shape, default=0) < 0 or (raw is not None and node.args):
        raise ValueError(f"{ast.unparse(node)} is not a constant")
    if raw is not None:
        return Constant(np.frombuffer(base64.b64decode(_literal(raw, {}), validate=True), d.numpy).reshape(shape))
    values = [READ[{"b": "bool", "i": "int", "u": "int"}.get(d.kind, "float")](a, {}) for a in node.args]
    if d.is_integer and not all(d.range[0] <= v <= d.range[1] for v in values):
        raise ValueError(f"{d} holds {d.range[0]}..{d.range[1]}")
    return Constant(np.array(values, _plain(d)).astype(d.numpy).reshape(shape))


READ: dict[str, Callable[[ast.expr, dict[str, Dim]], Any]] = {
    "int": _exactly(int), "bool": _exactly(bool), "float": _exactly(float, int), "str": _exactly(str),
    "DType": lambda node, known: dtype(ast.unparse(node)), "Dim": parse_dim, "Constant": _constant,
    "Shape": lambda node, known: tuple(parse_dim(e, known) for e in _elements(node)),
    "tuple[int, ...]": lambda node, known: tuple(READ["int"](e, known) for e in _elements(node)),
}
