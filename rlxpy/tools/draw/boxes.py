"""A node as a box: what it is called, what kind it is, and what a reader may ask about it."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlxpy.extend.backend import BackendSpec
from rlxpy.extend.kernels import Choice
from rlxpy.frozen import dataclass
from rlxpy.fusion.regions import PRODUCTS
from rlxpy.ir.attrs import Attrs, Custom, Named, field_types
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import ELEMENTWISE, LEAVES, Op
from rlxpy.ir.text import SHOW
from rlxpy.ir.types import TensorType
from rlxpy.tools.draw.folding import Fold, Path, scope_path

MOVES = frozenset({Op.PAD, Op.CONCAT, Op.GATHER, Op.TAKE_ALONG, Op.SCATTER_ADD, Op.KV_APPEND})  # beside those that are views
KINDS: tuple[tuple[str, str, Callable[[Node], bool]], ...] = (  # the first that holds; the texts are the legend's
    ("leaf", "input, state, counter", lambda n: n.op is not Op.CUSTOM and not n.inputs),
    ("fused", "fused chain: one kernel", lambda n: n.op is Op.FUSED),
    ("product", "product", lambda n: n.op in PRODUCTS),
    ("elementwise", "elementwise", lambda n: n.op in ELEMENTWISE),
    ("movement", "movement", lambda n: n.row.view is not None or n.op in MOVES),
    ("composite", "block of simpler ops", lambda n: callable(n.row.lower)),
    ("other", "reduction and others", lambda n: True),
)
LEGEND = {**{kind: text for kind, text, _ in KINDS}, "result": "output, new state", "fold": "several nodes in one box"}


@dataclass(frozen=True)
class Box:
    """operands: the weights and constants it reads, which have no boxes of their own.  facts: label and text.  fresh: this pass
    made it.  floats: it depends on no input.  body: the chain of a fused node."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    scope: Path = ()
    fresh: bool = False
    floats: bool = False
    body: Graph | None = None


def node_box(graph: Graph, n: Node, spec: BackendSpec, fresh: bool, floats: bool) -> Box:
    body = n.attrs.body if n.op is Op.FUSED else None  # type: ignore[attr-defined]
    attrs = attrs_text(n.attrs)
    chain = " > ".join(m.label for m in body if m.op not in LEAVES) if body else ""
    second = n.op.text if n.name else chain or attrs
    operands = tuple(operand_text(graph, r) for r in n.inputs if graph[r].op in (Op.PARAM, Op.CONST))
    return Box(next(kind for kind, _, holds in KINDS if holds(n)), n.name or n.label, tuple(filter(None, (second, types_text(n.types)))), operands,
               tuple((k, v) for k, v in _facts(graph, n, attrs, spec) if v), scope_path(n.loc.scope), fresh, floats, body)


def fold_box(f: Fold, count: int, fresh: bool, floats: bool) -> Box:
    return Box("fold", f.title, (f"{count} nodes",), (), (("shows", f.sentence),), f.scope, fresh, floats)


def output_box(name: str, t: TensorType) -> Box:
    return Box("result", name, (f"output {t}",), (), (("type", str(t)),))


def update_box(state: Node) -> Box:
    return Box("result", state.name, ("new state",), (), (("type", str(state.type)),), scope_path(state.loc.scope))


def _facts(graph: Graph, n: Node, attrs: str, spec: BackendSpec) -> Iterator[tuple[str, str]]:
    yield "value", f"%{n.id}"
    yield "op", f"{n.label}: {n.row.doc}" if n.row.doc else n.label
    yield "type", types_text(n.types)
    yield "reads", ", ".join(operand_text(graph, r, whole=True) for r in n.inputs)
    yield "attrs", attrs
    yield "line", f"{n.loc.file}:{n.loc.line}" if n.loc.file else ""
    yield "block", n.loc.scope
    yield "made by", ", then ".join(n.made_by)
    if n.op not in LEAVES:
        yield "kernel", kernel_text(graph, n, spec)
    read, written = sum(graph.type(r).max_nbytes for r in n.inputs), sum(t.max_nbytes for t in n.types)
    yield "bytes", f"at most {read:,} read, {written:,} written" if n.inputs else f"at most {written:,}"


def kernel_text(graph: Graph, n: Node, spec: BackendSpec) -> str:
    verdict = spec.verdict(graph, n)
    return f"{verdict.name}, {verdict.tier}" if isinstance(verdict, Choice) else f"none: {'; '.join(verdict.reasons)}"


def operand_text(graph: Graph, r: Ref, whole: bool = False) -> str:
    """An operand in few words: a number, the end of a weight's name and its type, or the value's number."""
    n, t = graph[r], graph.type(r)
    if n.op is Op.CONST and t.shape == ():
        return f"{n.attrs.value.array.item()!s:.12}"  # type: ignore[attr-defined]
    if n.name:
        return f"{n.name if whole else '.'.join(n.name.split('.')[-2:])} {t}"
    return f"constant {t}" if n.op is Op.CONST else f"{r} {t}"


def types_text(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))


def attrs_text(attrs: Attrs) -> str:
    """Parameters as the text form writes them, sub-graphs and literals left out."""
    if isinstance(attrs, Custom):
        return attrs_text(attrs.given)
    shown = {k: kind for k, kind in field_types(type(attrs)).items() if kind not in ("Graph", "Constant") and not isinstance(attrs, Named)}
    return ", ".join(f"{k}={_value(kind, getattr(attrs, k))}" for k, kind in shown.items())


def _value(kind: str, value: Any) -> str:
    return f"{value:.6g}" if kind == "float" else str(SHOW.get(kind, repr)(value))
