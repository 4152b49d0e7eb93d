"""`rlx conform`: whether a backend keeps its promises."""
from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import Json, show, table


@command()
def conform(device: Annotated[str, typer.Argument(metavar="NAME", help="A device, as `rlx devices` lists them.", show_default=False)],
            ops: Annotated[str | None, typer.Option("--ops", metavar="A,B", help="Of the ops, only these.", show_default=False)] = None,
            as_json: Json = False) -> None:
    """Hold a backend to the laws of all backends.

    Every op in everyday types and odd shapes against its meaning; sizes, states, weights, errors, ownership, threads, fusion.
    What the backend refuses, with its reasons, is no fault.  Exits 1 when a law is broken."""
    from rlxpy.tools.conform import conform as hold

    told = hold(device, None if ops is None else [n.strip() for n in ops.split(",") if n.strip()])
    notable = [f for f in told.findings if f.verdict != "kept"]
    lines = table(("law", "subject", "verdict", "why"), ((f.law, f.subject, f.verdict, " | ".join(f.why.splitlines())) for f in notable)) if notable else ""
    show({"device": device, "kept": told.kept, "findings": [asdict(f) for f in told.findings]}, "\n".join(filter(None, (lines, told.summary))), as_json)
    if not told.kept:
        raise typer.Exit(1)
