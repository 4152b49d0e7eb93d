"""The frame every command hangs in: options of `rlx` itself, and how a failure is told."""
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from rlxpy import settings
from rlxpy.errors import RlxError

F = TypeVar("F", bound=Callable[..., Any])

app = typer.Typer(
    help="Compile and run tensor models.",
    epilog="`rlx doctor` tells what works on this machine; `rlx COMMAND --help` shows a command's options.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: fast, and the same in a pipe
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Command(TyperCommand):
    """A command whose deliberate errors end as text on stderr (and as JSON on stdout, if it was asked for) and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RlxError as e:
            if ctx.params.get("as_json"):
                typer.echo(json.dumps(e.to_json()))
            typer.echo(f"error: {e}", err=True)
            raise typer.Exit(1) from None


def command(name: str | None = None, *, group: typer.Typer = app) -> Callable[[F], F]:
    """Make a function a command of `rlx`, or of a group of commands; its docstring is its help."""
    return group.command(name, cls=Command)


def group(name: str, help: str) -> typer.Typer:
    """A command that holds commands: `rlx NAME COMMAND`.  Without COMMAND it is help, or what the group's own callback does."""
    made = typer.Typer(help=help, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


def _version(wanted: bool) -> None:
    if wanted:
        import rlxpy

        typer.echo(f"rlxpy {rlxpy.__version__}")
        raise typer.Exit


@app.callback()
def frame(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")] = False,
    debug: Annotated[int | None, typer.Option("--debug", min=0, max=5, metavar="N", help="As RLX_DEBUG; see `rlx env`.")] = None,
) -> None:
    options = {"quiet": quiet or None, "debug": debug}
    ctx.obj = {name: value for name, value in options.items() if value is not None}  # `rlx env` tells where a value came from
    ctx.with_resource(settings.override(**ctx.obj))
