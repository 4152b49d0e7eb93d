"""`rlx dev`: rlxpy itself and a package of one's own, worked on together."""
from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rlxpy.cli.app import command, group
from rlxpy.cli.report import Json, show

dev = group("dev", "Use a working tree of rlxpy in this environment, or the installed release.")


@command("link", group=dev)
def link(tree: Annotated[Path, typer.Argument(metavar="FOLDER", help="Holds pyproject.toml and rlxpy/.")], as_json: Json = False) -> None:
    """Use the rlxpy of a working tree, for every Python of this environment that starts from now on.

    The installed release stays beneath it. Install your own package with `pip install --editable .`."""
    from rlxpy.tools.link import link

    made = link(tree)
    show(asdict(made), f"rlxpy {made.version} of {made.tree}; `rlx dev unlink` goes back", as_json)


@command("unlink", group=dev)
def unlink(as_json: Json = False) -> None:
    """Use the installed release again."""
    from rlxpy.tools.link import unlink

    now = unlink()
    show(asdict(now), f"rlxpy {now.version}, as installed", as_json)


@command("status", group=dev)
def status(as_json: Json = False) -> None:
    """Say which rlxpy this environment uses."""
    from rlxpy.tools.link import linked

    now = linked()
    show(asdict(now), f"rlxpy {now.version} of {now.tree}" if now.tree else f"rlxpy {now.version}, as installed", as_json)
