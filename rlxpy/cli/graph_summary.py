"""What `rlx inspect` says about a graph file."""
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rlxpy.cli.report import show, size, table

if TYPE_CHECKING:
    from rlxpy.ir.graph import Graph


def show_graph(graph: Graph, as_json: bool) -> None:
    """Its sizes, what goes in and out, and how often it uses which op."""
    values = [{"role": n.op.text, "name": n.name, "type": str(n.type), "nbytes": n.type.max_nbytes}
              for n in (*graph.inputs, *graph.params, *graph.states)]
    values += [{"role": "output", "name": name, "type": str(t), "nbytes": t.max_nbytes}
               for name, t in zip(graph.output_names, graph.output_types, strict=True)]
    data: dict[str, Any] = {
        "graph": graph.name, "nodes": len(graph), "values": values, "ops": dict(Counter(n.label for n in graph).most_common()),
        "sizes": {s.name: {"least": s.lo, "most": s.hi, "step": s.step} for s in graph.symbols.values()}}
    show(data, "" if as_json else _text(data), as_json)


def _text(data: dict[str, Any]) -> str:
    ranges = [(name, f"{s['least']}..{s['most']}" + (f" in steps of {s['step']}" if s["step"] > 1 else "")) for name, s in data["sizes"].items()]
    return "\n\n".join((
        f"graph {data['graph']}\n{data['nodes']} nodes",
        *([table(("size", "range"), ranges)] if ranges else []),
        table(("role", "name", "type", "size at most"), ((v["role"], v["name"], v["type"], size(v["nbytes"])) for v in data["values"])),
        table(("op", "times"), data["ops"].items()),
    ))
