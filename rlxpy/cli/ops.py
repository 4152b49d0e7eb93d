"""`rlx ops`: the op table."""
from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import Json, note, show, table

if TYPE_CHECKING:
    from rlxpy.tools.op_table import OpFacts


@command()
def ops(name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this op, in detail.", show_default=False)] = None,
        proof: Annotated[bool, typer.Option("--evidence", help="What is known of its GPU kernels, from recorded runs.")] = False, as_json: Json = False) -> None:
    """Show the op table.

    What each op takes, and which of its cells are filled: derivatives (vjp, jvp), batching (vmap), lowering to simpler ops."""
    if proof:
        evidence(name, as_json)
        return
    from rlxpy.tools.op_table import CELLS, op_facts, op_table

    if name is not None:
        detail(op_facts(name), as_json)
        return
    rows = op_table()
    columns = ("op", "inputs", "parameters", "takes", "elementwise", *CELLS, "meaning")
    show([asdict(r) for r in rows], table(columns, (_cells(r) for r in rows)), as_json)


def _cells(r: OpFacts) -> list[str]:
    filled = [c if c in ("yes", "owed") else "-" for c in r.cells.values()]
    return [r.name, r.inputs, ", ".join(a.partition(":")[0] for a in r.attrs), "; ".join(r.dtypes), "yes" if r.elementwise else "", *filled, r.doc]


def detail(r: OpFacts, as_json: bool) -> None:
    """One op whole, with its lowering as a graph."""
    from rlxpy.ir.text import show as graph_text
    from rlxpy.tools.op_table import example, lowered

    before = example(r.name) if r.cells["lower"] == "yes" else None
    after = None if before is None else graph_text(lowered(before))
    lines: list[tuple[str, Any]] = [("takes", "; ".join(r.dtypes)), ("elementwise", "yes, so it fuses" if r.elementwise else "no"), *r.cells.items()]
    text = "\n".join((r.signature, *filter(None, [r.doc]), *(f"  {label:<12} {value}" for label, value in lines if value)))
    if after is not None:
        text += f"\n\nlowered:\n{after}"
    show({**asdict(r), "lowering": after}, text, as_json)


def evidence(name: str | None, as_json: bool) -> None:
    """A line for each kernel of an op and each level that recorded runs of it reached."""
    from rlxpy.tools.evidence import by_dtype, claims, records

    if name is not None:
        by_dtype(name)  # refuses what is no op
    found = claims(ops=(name,) if name else (), say=note)
    lines: dict[tuple[str, ...], list[str]] = {}
    for c in found:
        lines.setdefault((c.op, c.kernel, " ".join(c.dtypes), c.words), []).append(c.target)
    columns = ("op", "kernel", "types", "evidence", "for")
    text = table(columns, ((*line, " ".join(dict.fromkeys(targets))) for line, targets in lines.items())) if lines else "nothing is recorded"
    show([asdict(c) for c in found], text, as_json)
    for r in records():
        for of, why in r.reasons.items():
            if name in (None, of.partition(" ")[0]):
                note(f"note: not {r.level} for {r.target}: {of}, {why}")
