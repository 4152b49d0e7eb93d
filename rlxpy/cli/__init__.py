"""The `rlx` command: data on stdout, talk on stderr; exit 0 done, 1 failed, 2 misused, 130 interrupted.

A command is one function marked `@command()` in a module of this package; every module here is found and imported by itself,
so modules import at their top only what costs nothing, and the rest inside their functions."""
from __future__ import annotations

import io
import sys
from importlib import import_module
from pkgutil import iter_modules


def main() -> None:
    """Run `sys.argv` and leave the process."""
    from rlxpy.cli.app import app

    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file and tensor names may hold what the terminal cannot show
    app(prog_name="rlx")  # typer itself leaves quietly when the reader of a pipe (`| head`) has seen enough, and with 130 on Ctrl-C
