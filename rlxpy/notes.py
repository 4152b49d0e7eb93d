"""What a person should know, on stderr: once a process or each time, silenced by RLX_QUIET."""
from __future__ import annotations

import sys
from functools import cache

from rlxpy.settings import setting


@cache
def note_once(text: str) -> None:
    note(text)


def note(text: str) -> None:
    if not setting("quiet"):
        print(f"rlxpy: {text}", file=sys.stderr)
