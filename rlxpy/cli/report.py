"""How commands print: tables and JSON on stdout, notes on stderr."""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from rlxpy.settings import setting

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(data: Any, text: str, as_json: bool) -> None:
    """A command's result: `data` as JSON, or `text` for people."""
    typer.echo(json.dumps(plain(data), indent=2) if as_json else text)


def note(text: str) -> None:
    """Talk to a person: stderr, unless quiet."""
    if not setting("quiet"):
        typer.echo(text, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Left-aligned columns two blanks apart, in the order given; no colour and no frame, so other tools can cut it."""
    cells = [list(columns), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def size(nbytes: int) -> str:
    """Bytes for people, in powers of 1000: 92.9 MB."""
    if nbytes < 1000:
        return f"{nbytes} B"
    power = min(int(math.log10(nbytes) / 3), 4)
    return f"{nbytes / 1000**power:.1f} {'BkMGT'[power]}B"


def printable(text: str) -> str:
    """Text that cannot steer a terminal: names and metadata come from files that strangers made."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain(value: Any) -> Any:
    """What JSON can hold: NumPy values become lists and numbers, floats that are no numbers become text, the rest its text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, without importing NumPy to ask
        return plain(value.tolist())
    return str(value)
