"""`rlx plugins`: what installed packages add."""
from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import Json, note, show, table


@command()
def plugins(load: Annotated[bool, typer.Option("--load/--no-load", help="Load them, to see which are broken.")] = True, as_json: Json = False) -> None:
    """List the plug-ins of installed packages, and what became of each.

    Exits 1 when one is broken, or is refused because it clashes with another."""
    from rlxpy import plugins as found

    if load:
        load_all()
    rows = found.plugins()
    show([asdict(p) for p in rows], table(("kind", "name", "package", "version", "state", "names"), ((p.group.removeprefix("rlxpy."), p.name, p.package, p.version, p.state, p.value) for p in rows))
         if rows else "no plug-ins are installed", as_json)
    for p in rows:
        if p.reason:
            note(f"{p.name} of {p.package}: {p.reason}")
    if any(p.state in ("broken", "refused") for p in rows):
        raise typer.Exit(1)


def load_all() -> None:
    """Every registry looks for its plug-ins when it is asked."""
    from rlxpy.extend.devices import registered_backends
    from rlxpy.extend.libraries import registered_libraries
    from rlxpy.extend.passes import registered
    from rlxpy.extend.quantisers import registered_quantisers
    from rlxpy.extend.target import registered_targets
    from rlxpy.ir.encoding import registered_encodings
    from rlxpy.ir.extension import registered_ops

    for ask in (registered_ops, registered_encodings, registered_libraries, registered, registered_quantisers, registered_backends, registered_targets):
        ask()
