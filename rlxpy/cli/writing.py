"""How commands write a file that the user named."""
from __future__ import annotations

import os
from pathlib import Path

import typer

from rlxpy.cli.report import note
from rlxpy.errors import InputError


def write(out: str, text: str) -> None:
    """A name appears when its file is complete.  Raises InputError."""
    if out == "-":
        typer.echo(text, nl=False)
        return
    path = Path(out)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe: nothing can take its place
            path.write_text(text, "utf-8")
        else:
            _replace(path, text)
    except (OSError, ValueError) as e:
        raise InputError(f"cannot write {out!r}", why=getattr(e, "strerror", None) or str(e), fix="name a file in a folder that you may write") from None
    note(f"wrote {out}")


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, "utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
