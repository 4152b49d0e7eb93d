"""Textual IR.  `parse(show(g)) == g` for every graph; tests, `rlx opt` and bug reports rely on it.

    graph main(B in 1..8, S in 16..512 step 16) {
      %0 = input {name='x'} : f32[B,S]
      %1 = const {value=f32(0.5)} : f32[]
      %2 = mul %0, %1 : f32[B,S]
      return y=%2
    }

A second output is %2#1; a sub-graph follows its node's type as `body { .. }`; `//` starts a comment."""
from __future__ import annotations

import ast
import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlxpy.errors import BuildError, nearest
from rlxpy.ir.attrs import Attrs, Custom, field_types
from rlxpy.ir.constant import Constant
from rlxpy.ir.dims import Dim, parse_dim, sym
from rlxpy.ir.dtypes import DType, dtype
from rlxpy.ir.extension import extension
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
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
    return f"%{node.id} = {node.op.text}{args}{' {' + attrs + '}' if attrs else ''} : {', '.join(map(str, node.types))}"


def _graph_lines(graph: Graph, indent: str, locs: bool) -> Iterator[str]:
    syms = ", ".join(f"{s} in {s.lo}..{s.hi}" + (f" step {s.step}" if s.step > 1 else "") for _, s in sorted(graph.symbols.items()))
    yield f"{indent}graph {graph.name}({syms}) {{"
    for n in graph:
        bodies = list(n.attrs.graphs())
        comment = f"  // {n.where}" if locs and n.where else ""
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
    return text if text.isidentifier() else repr(text)


def _attrs_text(attrs: Attrs) -> str:
    if isinstance(attrs, Custom):
        return ", ".join(filter(None, (f"name={attrs.name!r}", _attrs_text(attrs.given))))
    return ", ".join(f"{k}={SHOW.get(kind, repr)(getattr(attrs, k))}" for k, kind in field_types(type(attrs)).items() if kind != "Graph")


def _shape_text(shape: tuple[Dim, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _constant_text(c: Constant) -> str:
    """f32(0.5), f32(1.0, 2.0, shape=(2,)) or f32(base64='..', shape=(64, 64))."""
    shape = [f"shape={_shape_text(c.shape)}"] if c.shape else []
    if c.array.size <= INLINE_NUMEL and c.dtype.kind != "c":
        numbers = map(repr, c.array.reshape(-1).astype(_plain(c.dtype)).tolist())  # floats round trip; nan and inf are read as names
        inline = f"{c.dtype}({', '.join([*numbers, *shape])})"
        if _constant(ast.parse(inline, mode="eval").body) == c:  # a NaN with a payload has no decimal text
            return inline
    raw = base64.b64encode(c.array.tobytes()).decode()
    return f"{c.dtype}({', '.join([f'base64={raw!r}', *shape])})"


def _plain(d: DType) -> Any:
    return np.float64 if d.is_float else d.numpy if d.kind == "b" or d.bits == 64 else np.int64


SHOW: dict[str, Callable[[Any], str]] = {"DType": str, "Dim": str, "Shape": _shape_text, "Constant": _constant_text}


# ---- reading -------------------------------------------------------------------------------------------------------
_LINE = re.compile(r"%(\d+) = (\w+)(?: ((?:%\d+(?:#\d+)?(?:, )?)+))?(?: (\{.*\}))? : (.+?)( \w+ \{)?$")
_HEAD = re.compile(r"graph (\S*?)\((.*)\) \{$")
_SYM = re.compile(r"(\w+) in (\d+)\.\.(\d+)(?: step (\d+))?$")
_TYPE = re.compile(r"(\w+)\[([^\]]*)\]")


class _Reader:
    """Lines with their numbers, so that an error says where."""

    def __init__(self, text: str) -> None:
        stripped = ((i, _uncomment(line).strip()) for i, line in enumerate(text.splitlines(), 1))
        self.lines = [(i, line) for i, line in stripped if line]
        self.at = 0

    def peek(self) -> str:
        if self.at >= len(self.lines):
            raise BuildError("the graph text ends too early", why="a closing } or a return is missing")
        return self.lines[self.at][1]

    def next(self) -> str:
        line = self.peek()
        self.at += 1
        return line

    @property
    def where(self) -> str:
        i, line = self.lines[max(self.at - 1, 0)] if self.lines else (0, "")
        return f"line {i}: {line}"


def _uncomment(line: str) -> str:
    """Drop a // comment, but not one inside quotes."""
    quote = ""
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote and line[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        elif line.startswith("//", i) and (i == 0 or line[i - 1].isspace()):
            return line[:i]
    return line


def parse(text: str) -> Graph:
    """Read one graph.  Raises BuildError with the line."""
    reader = _Reader(text)
    graph = _graph(reader)
    if reader.at != len(reader.lines):
        reader.next()
        raise BuildError("text after the end of the graph", where=reader.where)
    return graph


def _graph(reader: _Reader) -> Graph:
    head = _HEAD.match(reader.next())
    if head is None:
        raise BuildError("expected 'graph name(SYMBOL in lo..hi, ..) {'", where=reader.where)
    known = dict(_symbol(part, reader) for part in head[2].split(", ") if part)
    nodes: list[Node] = []
    while not reader.peek().startswith(("return", "update")):
        nodes.append(_node(reader, known, nodes))
    updates = []
    while reader.peek().startswith("update"):
        state, _, new = reader.next().removeprefix("update ").partition(" = ")
        updates.append((_ref(state, nodes, reader), _ref(new, nodes, reader)))
    outs = [(name, _ref(r, nodes, reader)) for name, r in _returned(reader.next().removeprefix("return").strip())]
    if reader.next() != "}":
        raise BuildError("expected }", where=reader.where)
    return Graph(head[1], tuple(nodes), tuple(r for _, r in outs), tuple(name for name, _ in outs), tuple(updates))


def _returned(line: str) -> Iterator[tuple[str, str]]:
    """(name, ref) pairs of a return line; names may be any quoted text."""
    for m in re.finditer(r"(\w+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")=(%\d+(?:#\d+)?)(?:, |$)", line):
        yield (ast.literal_eval(m[1]) if m[1][0] in "'\"" else m[1]), m[2]


def _symbol(part: str, reader: _Reader) -> tuple[str, Dim]:
    m = _SYM.match(part)
    if m is None:
        raise BuildError(f"cannot read symbol {part!r}", where=reader.where, fix="write S in 1..512 step 16")
    return m[1], sym(m[1], int(m[2]), int(m[3]), int(m[4] or 1))


def _node(reader: _Reader, known: dict[str, Dim], nodes: list[Node]) -> Node:
    m = _LINE.match(reader.next())
    if m is None or int(m[1]) != len(nodes):
        raise BuildError("cannot read this line", where=reader.where, why=f"a node %{len(nodes)} = op .. : type is expected")
    where = reader.where
    if m[2].upper() not in Op.__members__:
        raise BuildError(f"no op {m[2]!r}", where=where, fix=f"near it: {nearest(m[2], [o.text for o in Op])}")
    op = Op[m[2].upper()]
    inputs = tuple(_ref(r, nodes, reader) for r in (m[3] or "").split(", ") if r)
    types = tuple(TensorType(_dims(dims, known, reader), dtype(d)) for d, dims in _TYPE.findall(m[5]))
    call = _expression(f"f({m[4][1:-1]})" if m[4] else "f()", reader)
    given: dict[str, Any] = {k.arg or "": k.value for k in call.keywords}
    more = m[6]
    while more:
        given[more.strip(" {")] = _graph(reader)
        closing = reader.next()
        if not closing.startswith("}"):
            raise BuildError("expected } after a sub-graph", where=reader.where)
        more = closing[1:]
    return Node(len(nodes), op, inputs, types, _attrs(op.row.attrs, given, known, where))


def _attrs(cls: type[Attrs], given: dict[str, Any], known: dict[str, Dim], where: str) -> Attrs:
    if cls is Custom:
        name = ast.literal_eval(given.pop("name"))
        return Custom(name, _attrs(extension(name).row.attrs, given, known, where))
    kinds = field_types(cls)
    if set(given) - set(kinds):
        raise BuildError(f"unknown parameter {', '.join(set(given) - set(kinds))}", where=where, fix=f"parameters are {', '.join(kinds) or 'none'}")
    try:
        return cls(**{k: v if isinstance(v, Graph) else READ.get(kinds[k], _literal)(v, known) for k, v in given.items()})
    except (TypeError, ValueError) as e:
        raise BuildError("cannot read the parameters", where=where, why=str(e)) from None


def _expression(text: str, reader: _Reader) -> ast.Call:
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError as e:
        raise BuildError("cannot read this line", where=reader.where, why=e.msg) from None
    assert isinstance(call, ast.Call)
    return call


def _dims(text: str, known: dict[str, Dim], reader: _Reader) -> tuple[Dim, ...]:
    try:
        return tuple(parse_dim(d, known) for d in text.split(",") if d)
    except (BuildError, SyntaxError) as e:
        raise BuildError(f"cannot read shape [{text}]", where=reader.where, why=str(e)) from None


def _ref(text: str, nodes: list[Node], reader: _Reader) -> Ref:
    node, _, out = text.strip().lstrip("%").partition("#")
    if not node.isdigit() or int(node) >= len(nodes) or int(out or 0) >= len(nodes[int(node)].types):
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
    return ast.literal_eval(node)


def _shape(node: ast.expr, known: dict[str, Dim]) -> tuple[Dim, ...]:
    if not isinstance(node, ast.Tuple):
        raise ValueError(f"{ast.unparse(node)} is not a shape")
    return tuple(parse_dim(e, known) for e in node.elts)


def _constant(node: ast.expr, known: dict[str, Dim] | None = None) -> Constant:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(f"{ast.unparse(node)} is not a constant")
    d, named = dtype(node.func.id), {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    shape = named.get("shape", ())
    if "base64" in named:
        return Constant(np.frombuffer(base64.b64decode(named["base64"]), d.numpy).reshape(shape))
    return Constant(np.array([_literal(a, {}) for a in node.args], _plain(d)).astype(d.numpy).reshape(shape))


READ: dict[str, Callable[[ast.expr, dict[str, Dim]], Any]] = {
    "DType": lambda node, known: dtype(ast.unparse(node)), "Dim": parse_dim, "Shape": _shape, "Constant": _constant,
}
