"""`rlx devices`: where graphs can run here."""
from __future__ import annotations

from dataclasses import asdict

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import Json, note, show, table
from rlxpy.errors import RlxError


@command()
def devices(as_json: Json = False) -> None:
    """List the devices.

    Which can run here, why the others cannot, and which one is the default.  Exits 1 when RLX_DEVICE names none that can."""
    from rlxpy.compiler.devices import backend_report, choose
    from rlxpy.settings import setting

    rows = backend_report()
    default, error = None, None
    try:
        default = choose(setting("device")).name
    except RlxError as e:
        error = e
    text = table(("device", "usable", "default", "comes with", "reason"),
                 ((r.device, "no" if r.missing else "yes", "yes" if r.device == default else "", "rlxpy" if r.built_in else "a plug-in", r.missing) for r in rows))
    listed = [{**asdict(r), "usable": not r.missing} for r in rows]
    show({"default": default, "devices": listed, "error": error.to_json() if error else None}, text, as_json)
    if error:
        note(f"error: {error}")
        raise typer.Exit(1)
