"""One line on stderr for what a person should know: said once a process, silenced by RLX_QUIET."""
from __future__ import annotations

import sys
from functools import cache

from rlxpy.settings import setting


@cache
def note_once(text: str) -> None:
    if not setting("quiet"):
        print(f"rlxpy: {text}", file=sys.stderr)
