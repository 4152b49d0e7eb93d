"""`rlx env`: every setting, its value here, and its Python twin."""
from __future__ import annotations

import os
from typing import Any

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import Json, note, show, table
from rlxpy.errors import InputError
from rlxpy.settings import SETTINGS, Setting, setting, unknown_variables


@command()
def env(ctx: typer.Context, as_json: Json = False) -> None:
    """Show the settings.

    Every RLX_* variable: its value, where that comes from, how Python code says the same, and what it means.
    Exits 1 when one cannot be read."""
    rows = [_row(s, s.name in ctx.obj) for s in SETTINGS.values()]
    columns = ("variable", "value", "from", "python", "meaning")
    show({"settings": rows, "unknown": unknown_variables()}, table(columns, ([r[c] for c in columns] for r in rows)), as_json)
    for name in unknown_variables():
        note(f"note: {name} is set, but rlxpy has no such setting")
    if any(r["error"] for r in rows):
        raise typer.Exit(1)


def _row(s: Setting, is_option: bool) -> dict[str, Any]:
    error = ""
    try:
        value = setting(s.name)
        text = ",".join(value) if isinstance(value, tuple) else str("" if value is None else value)
    except InputError as e:
        error = text = f"{e.what}: {e.why}"
    origin = "option" if is_option else "environment" if s.variable in os.environ else "default"
    return {"variable": s.variable, "value": text, "from": origin, "python": s.twin, "meaning": s.doc, "error": error}
