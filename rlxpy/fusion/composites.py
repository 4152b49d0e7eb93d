"""Find composites that a user wrote out in plain ops: softmax, layer_norm, rms_norm, attention.

Each pattern's replacement is a row whose `lower` is that chain: the chain is its documentation, its fallback and its oracle.
What looks like a composite but is not one becomes a near miss with the reason."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import shape_text
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.pattern import Found, Pat, match, var

x, eps = var("x"), var("eps")
q, kt, v, mask, scale, fill = (var(n) for n in ("q", "kt", "v", "mask", "scale", "fill"))


def last_axis(node: Node) -> bool:
    a, rank = node.attrs, len(node.types[0].shape)
    return bool(getattr(a, "keep", False)) and tuple(i % rank for i in a.axes) == (rank - 1,)  # type: ignore[attr-defined]


def last_softmax(node: Node) -> bool:
    return node.attrs.axis in (-1, len(node.type.shape) - 1)  # type: ignore[attr-defined]


def scalar_const(node: Node) -> bool:
    return node.op is Op.CONST and node.attrs.value.filled_with() is not None  # type: ignore[attr-defined]


def mean_of(p: Pat) -> Pat:
    return Pat(Op.MEAN, (p,)).where(last_axis)


def _normed(d: Pat, label: str) -> tuple[Pat, ...]:
    """d / sqrt(mean(d^2) + eps), in the ways people write it."""
    squares = (d * d, Op.SQUARE(d))
    out: list[Pat] = []
    for s in squares:
        spread = mean_of(s) + eps.where(scalar_const)
        out += [d * Op.RSQRT(spread), Op.RSQRT(spread) * d, d / Op.SQRT(spread), d * Op.RECIP(Op.SQRT(spread))]
    return tuple(p.named(label) for p in out)


centred = x - mean_of(x)
shifted = Op.EXP(x - Op.MAX(x).named("top")).named("e")
NORMS = frozenset({Op.LAYER_NORM, Op.RMS_NORM})
Check = Callable[[Graph, Found], str | None]
Build = Callable[[dict[str, Value], dict[str, Node]], Any]


@dataclass(frozen=True)
class Composite:
    """`patterns` share a meaning; `refuse` gives the reason of a near miss; `build` makes the row op."""

    name: str
    patterns: tuple[Pat, ...]
    build: Build
    refuse: Check = lambda graph, found: None


def _number(node: Node) -> float:
    return float(node.attrs.value.filled_with())  # type: ignore[attr-defined]


def _build_softmax(at: dict[str, Value], node: dict[str, Node]) -> Any:
    axes = node["total"].attrs.axes  # type: ignore[attr-defined]
    return at["x"].softmax(axis=axes[0])


def _softmax_refusal(graph: Graph, found: Found) -> str | None:
    total, top = graph[found["total"]].attrs, graph[found["top"]].attrs
    if len(total.axes) != 1 or not total.keep or total != top:  # type: ignore[attr-defined]
        return f"max over {top.axes} and sum over {total.axes} are not one kept axis"  # type: ignore[attr-defined]
    return None


def _attention(scale_of: str, masked: str) -> tuple[Pat, ...]:
    product, s = (q @ kt).named("product"), scale.where(scalar_const)
    scaled = {"mul": product * s, "div": product / s, "none": product}[scale_of]
    scores = {"none": scaled, "add": scaled + mask, "where": Op.WHERE(mask, scaled, fill.where(scalar_const))}[masked].named("scores")
    return (Op.SOFTMAX(scores).where(last_softmax).named("probs") @ v,)


def _build_attention(scale_of: str, masked: str) -> Build:
    def build(at: dict[str, Value], node: dict[str, Node]) -> Any:
        factor = _number(node["scale"]) if scale_of != "none" else 1.0
        operands = [at["q"], F.swap(at["kt"]), at["v"]] + ([at["mask"]] if masked != "none" else [])
        return at["q"].apply("attention", tuple(operands), {"scale": 1.0 / factor if scale_of == "div" else factor})
    return build


def _attention_refusal(masked: str) -> Check:
    def refuse(graph: Graph, found: Found) -> str | None:
        shapes = [graph.type(found[n]).shape for n in ("q", "kt", "v")]
        if any(len(s) != 4 for s in shapes):
            return f"q, k, v of rank {', '.join(str(len(s)) for s in shapes)}; attention takes [batch, heads, length, channels]"
        if shapes[0][:2] != shapes[1][:2] or shapes[1][:2] != shapes[2][:2]:
            return f"batch and heads broadcast: {', '.join(map(shape_text, shapes))}"
        if masked == "where" and _number(graph[found["fill"]]) != float("-inf"):
            return f"hidden scores are filled with {_number(graph[found['fill']])}, not -inf"
        if masked != "none":
            product, scores = graph.type(found["product"]), graph.type(found["scores"])
            if product.shape != scores.shape:
                return f"the mask widens the scores from {product} to {scores}"
        for name in ("product", "scores", "probs"):
            node = graph[found[name]]
            if node.id in graph.escaping or len(graph.users[node.id]) > 1:
                return f"the {name} {node.type} are read by others too"
        return None
    return refuse


COMPOSITES: tuple[Composite, ...] = (
    Composite("softmax", (shifted / Op.SUM(shifted).named("total"),), _build_softmax, _softmax_refusal),
    Composite("layer_norm", _normed(centred, "y"), lambda at, node: at["x"].layer_norm(eps=_number(node["eps"]))),
    Composite("rms_norm", _normed(x, "y"), lambda at, node: at["x"].rms_norm(eps=_number(node["eps"]))),
    *(Composite("attention", _attention(s, m), _build_attention(s, m), _attention_refusal(m))
      for s in ("mul", "div", "none") for m in ("add", "where", "none")),
)


@dataclass(frozen=True)
class FindComposites(NotingPass):
    composites: tuple[Composite, ...] = COMPOSITES
    name: str = "find-composites"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        notes: list[Note] = []
        found = dict(self._search(graph, notes))

        def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Any:
            if n.id not in found:
                return None
            composite, at = found[n.id]
            value = composite.build({k: new[r] for k, r in at.items() if r in new}, {k: graph[r] for k, r in at.items()})
            if value.type != n.type:
                return None
            notes.append(note(self.name, "fused", composite.name, n, f"{n.type} from plain ops"))
            return value

        composed = rebuild(graph, replace, self.name) if found else graph
        absorbed, more = _absorb_affine(composed, self.name)
        return absorbed, (*notes, *more)

    def _search(self, graph: Graph, notes: list[Note]) -> Iterator[tuple[int, tuple[Composite, Found]]]:
        """Matches by node; a pattern whose ops the graph does not even contain is not tried."""
        present = {n.op for n in graph}
        by_op: dict[Op | None, list[tuple[Composite, Pat]]] = {}
        for c in self.composites:
            for p in c.patterns:
                if p.ops <= present:
                    by_op.setdefault(p.op, []).append((c, p))
        for n in graph:
            declined: dict[str, str] = {}
            for c, p in by_op.get(n.op, ()):
                at = match(p, graph.nodes, Ref(n.id)) if c.name not in declined else None
                if at is None:
                    continue
                if why := c.refuse(graph, at):
                    declined[c.name] = why
                    continue
                yield n.id, (c, at)
                declined.clear()
                break
            notes.extend(note(self.name, "near miss", name, n, why) for name, why in declined.items())


def _absorb_affine(graph: Graph, name: str) -> tuple[Graph, tuple[Note, ...]]:
    """scale and bias that follow a norm become its operands, when they are exactly one value for each channel."""
    notes: list[Note] = []
    if not any(n.op in NORMS for n in graph):
        return graph, ()

    def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Any:
        if n.op not in (Op.MUL, Op.ADD):
            return None
        for i, norm in enumerate(xs):
            if norm.node.op not in NORMS or (norm.node.op is Op.RMS_NORM and n.op is Op.ADD):
                continue
            if len(norm.node.inputs) != (1 if n.op is Op.MUL else 2):
                continue
            other = xs[1 - i]
            old = graph[n.inputs[i]]
            if other.shape != norm.shape[-1:]:
                if other.node.op is not Op.CONST and other.shape != norm.shape:
                    what = "scale" if n.op is Op.MUL else "bias"
                    notes.append(note(name, "near miss", norm.node.label, n, f"{what} {other.type} is not {shape_text(norm.shape[-1:])}, one value for each channel"))
                continue
            if old.id in graph.escaping or len(graph.users[old.id]) > 1:
                notes.append(note(name, "near miss", norm.node.label, n, f"the value before the {'scale' if n.op is Op.MUL else 'bias'} is read by others too"))
                continue
            operands = [Value(b, r) for r in norm.node.inputs]
            return norm.apply(norm.node.op.text, (*operands, other), {"eps": norm.node.attrs.eps})  # type: ignore[attr-defined]
        return None

    return rebuild(graph, replace, name), tuple(notes)
