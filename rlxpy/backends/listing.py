"""Numbered source around a line, for errors of compilers."""
from __future__ import annotations

LINES_AROUND = 4


def excerpt(source: str, line: int) -> str:
    """Numbered lines around one, which is marked."""
    lines = source.splitlines()
    shown = range(max(1, line - LINES_AROUND), min(len(lines), line + LINES_AROUND) + 1)
    return "\n".join(f"  {'>' if n == line else ' '} {n:5} {lines[n - 1]}" for n in shown)
