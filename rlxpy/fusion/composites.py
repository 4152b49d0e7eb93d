"""Find composites that a user wrote out in plain ops: softmax, layer_norm, rms_norm, attention.

Each pattern's replacement is a row whose `lower` is that chain: the chain is its documentation, its fallback and its oracle.
What looks like a composite but is not one becomes a near miss with the reason.  Results agree within rounding: a composite keeps
its inner values in f32 where the chain rounds them to a narrow type.  One difference is policy: an attention row that sees no key
at all gives zeros, where the chain, a softmax of nothing but -inf, gives NaN."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose
from typing import Any, TypeAlias

from rlxpy.extend.passes import Note, NotingPass, note
from rlxpy.frozen import dataclass
from rlxpy.fusion.rebuild import rebuild
from rlxpy.ir import functions as F
from rlxpy.ir.builder import Builder, Value
from rlxpy.ir.dims import Dim, shape_text
from rlxpy.ir.graph import Graph, Node, Ref
from rlxpy.ir.op import Op
from rlxpy.ir.pattern import Found, Pat, either, match, var

NORMS = frozenset({Op.LAYER_NORM, Op.RMS_NORM})
MAX_ROUNDS = 4  # a composite may be part of another, as softmax is of attention
Values: TypeAlias = dict[str, Value]  # by the names in a pattern
Nodes: TypeAlias = dict[str, Node]


@dataclass(frozen=True)
class Composite:
    """`patterns` share a meaning; `refuse` gives the reason of a near miss, None when there is none; `build` makes the row op."""

    name: str
    patterns: tuple[Pat, ...]
    build: Callable[[Values, Nodes], Any]
    refuse: Callable[[Graph, Found], str | None]


def number(node: Node) -> float | None:
    """The value of a constant of one element; None for anything else."""
    one = node.op is Op.CONST and node.type.numel == 1
    return float(node.attrs.value.filled_with()) if one else None  # type: ignore[attr-defined]


def _first(*reasons: str | None) -> str | None:
    return next((r for r in reasons if r), None)


# ---- softmax and norms ---------------------------------------------------------------------------------------------
x, eps = var("x"), var("eps")


def mean(p: Pat, name: str) -> Pat:
    """The reduction is bound to `name`, what it is divided by to `name.count`, what it is multiplied by to `name.share`."""
    total = Op.SUM(p).named(name)
    return either(Op.MEAN(p).named(name), total / var(f"{name}.count"), total * var(f"{name}.share"))


def _normed(d: Pat) -> tuple[Pat, ...]:
    """d / sqrt(mean(d^2) + eps)"""
    variance = mean(either(d * d, Op.SQUARE(d), Op.POW(d, 2.0)), "spread")
    spread = either(variance + eps, variance)
    return d * either(Op.RSQRT(spread), Op.RECIP(Op.SQRT(spread)), Op.POW(spread, -0.5)), d / either(Op.SQRT(spread), Op.POW(spread, 0.5))


def _norm_refusal(graph: Graph, found: Found) -> str | None:
    return _first(*(_mean_refusal(graph, found, name) for name in ("centre", "spread") if name in found), _number_refusal(graph, found, "eps"))


def _mean_refusal(graph: Graph, found: Found, name: str) -> str | None:
    node = graph[found[name]]
    shape = graph.type(node.inputs[0]).shape
    if tuple(a % len(shape) for a in node.attrs.axes) != (len(shape) - 1,) or not node.attrs.keep:  # type: ignore[attr-defined]
        return f"its {node.label} is over axes {node.attrs.axes} of rank {len(shape)}, not over the last one, kept"  # type: ignore[attr-defined]
    if f"{name}.count" in found:
        return _count_refusal(number(graph[found[f"{name}.count"]]), shape[-1])
    if f"{name}.share" in found:
        return _count_refusal(1 / (number(graph[found[f"{name}.share"]]) or float("nan")), shape[-1])
    return None


def _count_refusal(count: float | None, size: Dim) -> str | None:
    """A sum is a mean when it is divided by how many were summed; one less is the unbiased variance (ddof=1)."""
    if count is not None and isinstance(size, int) and isclose(count, size, rel_tol=1e-5):
        return None
    return f"its sum over {size} elements is divided by {'a value' if count is None else f'{count:g}'}"


def _number_refusal(graph: Graph, found: Found, name: str) -> str | None:
    return None if name not in found or number(graph[found[name]]) is not None else f"its {name} {graph.type(found[name])} is not one number"


def _build_norm(op: Op) -> Callable[[Values, Nodes], Any]:
    return lambda at, node: at["x"].apply(op.text, (at["x"],), {"eps": number(node["eps"]) if "eps" in node else 0.0})


powers = Op.EXP(either(x - Op.MAX(x).named("top"), x))
total = Op.SUM(powers).named("total")


def _build_softmax(at: Values, node: Nodes) -> Any:
    return at["x"].softmax(axis=node["total"].attrs.axes[0])  # type: ignore[attr-defined]


def _softmax_refusal(graph: Graph, found: Found) -> str | None:
    if "top" not in found:
        return "the greatest value is not subtracted first, so that large values overflow where softmax's do not"
    over, top = graph[found["total"]].attrs, graph[found["top"]].attrs
    one = len(over.axes) == 1 and over.keep and over == top  # type: ignore[attr-defined]
    return None if one else f"max over {top.axes} and sum over {over.axes} are not one kept axis"  # type: ignore[attr-defined]


# ---- attention -----------------------------------------------------------------------------------------------------
q, kt, v, mask, seen, hidden, fill = (var(n) for n in ("q", "kt", "v", "mask", "seen", "hidden", "fill"))
product = (q @ kt).named("product")
scaled = either(product * var("scale"), product / var("divisor"), product).named("scaled")
scores = either(scaled + mask, Op.WHERE(seen, scaled, fill), Op.WHERE(hidden, fill, scaled), scaled).named("scores")


def _attention_refusal(graph: Graph, found: Found) -> str | None:
    types = [graph.type(found[n]) for n in ("q", "kt", "v")]
    product, scores = graph.type(found["product"]), graph.type(found["scores"])
    masked = found.keys() & {"mask", "seen", "hidden"}
    fill = number(graph[found["fill"]]) if "fill" in found else float("-inf")
    return _first(
        None if 2 <= types[0].rank <= 4 else f"q, k, v of rank {types[0].rank}; attention takes [batch, heads, length, channels]",
        None if len({t.shape[:-2] for t in types}) == 1 else f"batch and heads broadcast: {', '.join(shape_text(t.shape) for t in types)}",
        _number_refusal(graph, found, "scale"),
        _number_refusal(graph, found, "divisor"),
        None if not masked or product.shape == scores.shape else f"the mask widens the scores from {product} to {scores}",
        None if fill == float("-inf") else f"hidden scores are filled with {fill}, not -inf: a row hidden whole would be the mean of all values, not zeros",
        None if graph[found["probs"]].attrs.axis % scores.rank == scores.rank - 1  # type: ignore[attr-defined]
        else f"softmax is over axis {graph[found['probs']].attrs.axis} of the scores, not over the keys",  # type: ignore[attr-defined]
        *(f"the {name} {graph.type(found[name])} are read by others too" for name in ("product", "scaled", "scores", "probs")
          if found[name].node in graph.escaping or len(graph.users[found[name].node]) > 1))


def _build_attention(at: Values, node: Nodes) -> Any:
    """Fewer than four axes get leading ones; the mask lines up from the right."""
    lead = (1,) * (4 - at["q"].rank)
    operands = [F.reshape(x, (*lead, *x.shape)) for x in (at["q"], F.swap(at["kt"]), at["v"])]
    operands += [at[n] for n in ("mask", "seen") if n in at] + ([at["hidden"].logical_not()] if "hidden" in at else [])
    scale = number(node["scale"]) if "scale" in node else 1.0 / (number(node["divisor"]) or float("nan")) if "divisor" in node else 1.0
    y = operands[0].apply("attention", tuple(operands), {"scale": scale})
    return F.reshape(y, y.shape[len(lead):])


# ---- all -----------------------------------------------------------------------------------------------------------
COMPOSITES: tuple[Composite, ...] = (
    Composite("softmax", (powers / total, powers * Op.RECIP(total)), _build_softmax, _softmax_refusal),
    Composite("layer_norm", _normed(x - mean(x, "centre")), _build_norm(Op.LAYER_NORM), _norm_refusal),
    Composite("rms_norm", _normed(x), _build_norm(Op.RMS_NORM), _norm_refusal),
    Composite("attention", (Op.SOFTMAX(scores).named("probs") @ v,), _build_attention, _attention_refusal),
)


@dataclass(frozen=True)
class FindComposites(NotingPass):
    composites: tuple[Composite, ...] = COMPOSITES
    name: str = "find-composites"

    def noted(self, graph: Graph) -> tuple[Graph, tuple[Note, ...]]:
        hits: list[Note] = []
        for _ in range(MAX_ROUNDS):
            found, missed = self._search(graph)
            composed = _compose(graph, found, self.name, hits) if found else graph
            if composed is graph:
                break
            graph = composed
        absorbed, more = _absorb_affine(graph, self.name)
        return absorbed, (*hits, *missed, *more)

    def _search(self, graph: Graph) -> tuple[dict[int, tuple[Composite, Found]], list[Note]]:
        """Matches by node, and near misses; a pattern whose ops the graph does not even contain is not tried."""
        found: dict[int, tuple[Composite, Found]] = {}
        missed: list[Note] = []
        present = {n.op for n in graph}
        by_op: dict[Op | None, list[tuple[Composite, Pat]]] = {}
        for c in self.composites:
            for p in c.patterns:
                if p.ops <= present:
                    by_op.setdefault(p.op, []).append((c, p))
        for n in graph:
            candidates = by_op.get(n.op)
            if candidates is None:
                continue
            declined: list[Note] = []
            operands = {graph[r].op for r in n.inputs}
            for c, p in candidates:
                at = match(p, graph.nodes, Ref(n.id)) if p.operand_ops <= operands else None
                if at is None:
                    continue
                if why := c.refuse(graph, at):
                    declined.append(note(self.name, "near miss", c.name, n, why))
                    continue
                found[n.id] = c, at
                break
            else:
                missed += declined[:1]  # of the composite that comes first
        return found, missed


def _compose(graph: Graph, found: dict[int, tuple[Composite, Found]], name: str, hits: list[Note]) -> Graph:
    def replace(b: Builder, n: Node, xs: Sequence[Value], new: dict[Ref, Value]) -> Any:
        if n.id not in found:
            return None
        composite, at = found[n.id]
        value = composite.build({k: new[r] for k, r in at.items()}, {k: graph[r] for k, r in at.items()})
        if value.type != n.type:
            return None
        hits.append(note(name, "fused", composite.name, n, f"{n.type} from plain ops"))
        return value

    return rebuild(graph, replace, name)


def _absorb_affine(graph: Graph, name: str) -> tuple[Graph, tuple[Note, ...]]:
    """scale and bias that follow a norm become its operands, when they are exactly one value for each channel."""
    notes: list[Note] = []
    if not any(graph[r].op in NORMS for n in graph if n.op in (Op.MUL, Op.ADD) for r in n.inputs):
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
