"""`rlx opt`: what passes make of a graph."""
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.options import Devices, ForceRow, Kernels, device_names
from rlxpy.cli.reading import read_graph
from rlxpy.cli.report import Json, note, show, table
from rlxpy.errors import InputError

if TYPE_CHECKING:
    from rlxpy.extend.backend import BackendSpec
    from rlxpy.extend.passes import Pass
    from rlxpy.ir.graph import Graph
    from rlxpy.tools.equivalence import Difference
    from rlxpy.tools.trace import Stage

PassNames = Annotated[str | None, typer.Option("--passes", metavar="A,B,C", help="These passes in this order; default: as compile() runs them.", show_default=False)]

MOST_NOTES = 40
SEEN_IN_THE_GRAPH = ("folded", "rewritten")  # too many to tell one by one


@command()
def opt(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A graph as text; - reads stdin.", show_default=False)] = None,
    passes: PassNames = None,
    after: Annotated[str | None, typer.Option(metavar="PASS", help="Print only the graph after this pass, its last run.")] = None,
    final: Annotated[bool, typer.Option("--final", help="Print only the last graph.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Run the first and the last graph on random inputs and compare.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the random inputs.")] = 0,
    names: Annotated[bool, typer.Option("--list", help="Name the passes.")] = False,
    device: Devices = None,
    kernels: Kernels = None,
    force_row: ForceRow = None,
    as_json: Json = False,
) -> None:
    """Run passes on a graph and print it after each.

    Reads the text form that `rlxpy.show` writes.  What was fused, and what nearly was, goes to stderr.
    With --check it exits 1 when the graphs differ."""
    from rlxpy.compiler.devices import choose
    from rlxpy.compiler.options import CompileOptions
    from rlxpy.compiler.session import served
    from rlxpy.settings import setting
    from rlxpy.tools.trace import trace

    asked = device_names(device) or setting("device")
    spec = served(choose(asked).backend.spec, CompileOptions())
    if names:
        list_passes(spec, as_json)
        return
    if file is None:
        raise typer.BadParameter("is missing; - reads stdin", param_hint="FILE")
    chosen = pipeline(passes, spec)
    stages = trace(read_graph(file), chosen)
    shown = picked(stages, after, final)
    differences = compared(stages[0].graph, stages[-1].graph, asked, seed) if check else None
    report = {"graph": stages[0].graph.name, "device": spec.device.name, "passes": [_json(s, s in shown) for s in stages], "check": _check_json(differences)}
    show(report, "" if as_json else "\n\n".join(map(_text if len(shown) == 1 else _brief, shown)), as_json)
    for stage in stages:
        tell_notes(stage)
    tell(differences)


def pipeline(names: str | None, spec: BackendSpec) -> tuple[Pass, ...]:
    """Passes by names with commas between, or the standard ones.  Raises InputError for an unknown one."""
    from rlxpy.fusion.pipeline import passes_named, standard

    return standard(spec) if names is None else passes_named([n.strip() for n in names.split(",") if n.strip()], spec)


def list_passes(spec: BackendSpec, as_json: bool) -> None:
    from rlxpy.fusion.pipeline import passes_known, standard

    order = [p.name for p in standard(spec)]
    rows = [{"name": p.name, "does": _purpose(p), "runs": order.count(p.name)} for p in passes_known(spec)]
    show({"passes": rows, "order": order}, table(("pass", "runs", "does"), ((r["name"], r["runs"], r["does"]) for r in rows)) + f"\n\norder: {', '.join(order)}", as_json)


def _purpose(p: Pass) -> str:
    """The first line of its docstring; a dataclass without one has at most its signature there, and then its module says it."""
    cls = type(p)
    own = cls.__doc__ or ""
    return (sys.modules[cls.__module__].__doc__ or "" if not own or own.startswith(f"{cls.__name__}(") else own).partition("\n")[0]


def picked(stages: Sequence[Stage], after: str | None, final: bool) -> Sequence[Stage]:
    """The stages to print.  Raises InputError for a pass that did not run."""
    if after is not None:
        found = [s for s in stages if s.name == after]
        if not found:
            raise InputError(f"pass {after!r} did not run", why=f"these did: {', '.join(dict.fromkeys(s.name for s in stages))}", fix="name one of them, or add it to --passes")
        return found[-1:]
    return stages[-1:] if final else stages


def compared(before: Graph, after: Graph, device: tuple[str, ...], seed: int) -> tuple[Difference, ...]:
    from rlxpy.tools.equivalence import compare

    return compare(before, after, device, seed)


def tell_notes(stage: Stage) -> None:
    """What a pass did or declined, as far as the graphs do not show it; the first of many."""
    told = [n for n in stage.notes if n.kind not in SEEN_IN_THE_GRAPH]
    for n in told[:MOST_NOTES]:
        note(f"{stage.name}: {n}")
    if len(told) > MOST_NOTES:
        note(f"{stage.name}: and {len(told) - MOST_NOTES} more; --json has them all")


def tell(differences: Sequence[Difference] | None) -> None:
    """The verdict of --check, and exit code 1 when it is bad."""
    if differences is None:
        return
    for d in differences:
        note(f"check: {d.name} {d.type}: {'same' if d.same else 'DIFFERENT'}, {d.error:.3g} apart where {d.allowed:.3g} is rounding")
    if not all(d.same for d in differences):
        raise typer.Exit(1)


def _text(stage: Stage) -> str:
    """The graph under a comment, so that what is printed can be read again."""
    from rlxpy.ir.text import show as graph_text

    return f"// {stage.name}: {len(stage.graph)} nodes\n{graph_text(stage.graph, locs=True)}"


def _brief(stage: Stage) -> str:
    """As `_text`, but of a pass that changed nothing only the comment."""
    return _text(stage) if stage.changed else f"// {stage.name}: unchanged"


def _json(stage: Stage, whole: bool) -> dict[str, Any]:
    from rlxpy.ir.text import show as graph_text

    text = graph_text(stage.graph) if whole else None
    return {"name": stage.name, "seconds": stage.seconds, "nodes": len(stage.graph), "changed": stage.changed, "notes": [asdict(n) for n in stage.notes], "text": text}


def _check_json(differences: Sequence[Difference] | None) -> Any:
    return None if differences is None else [{**asdict(d), "same": d.same} for d in differences]
