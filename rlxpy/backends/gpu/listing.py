"""What a GPU compiler's refusal becomes: an error with its first complaint and the numbered source around it."""
from __future__ import annotations

import re
from collections.abc import Sequence

from rlxpy.backends.listing import excerpt
from rlxpy.errors import CompileError

FIRST_ERROR = re.compile(r"^[^\n:(]*[(:](\d+)[):]+(?:\d+:)?\s*(?:fatal )?error:?\s*(.*)$", re.MULTILINE)  # clang's and NVRTC's way of saying where

IN_MACRO = re.compile(r"^[^\n:<][^\n:]*:(\d+):\d+: note: while in macro instantiation", re.MULTILINE)  # an assembler counts lines of the macro's text before


def numbered(source: str, log: str, compiler: str, arch: str, options: Sequence[str] = ()) -> CompileError:
    """`log` of the error is all that the compiler said, `options` what it was called with."""
    first = FIRST_ERROR.search(log)
    line = int(((IN_MACRO.search(log, first.end()) if first[0].startswith("<instantiation>") else None) or first)[1]) if first else 0
    where = f"line {line} of the GPU source\n{excerpt(source, line)}" if first else ""
    error = CompileError(f"{compiler} does not compile the GPU source for {arch}", where=where, why=first[2] if first else log.strip()[-500:] or "it says nothing",
                         fix="mend the kernel at the line above; `log` of this error has all that the compiler said, `options` what it was told")
    error.log, error.options = log, tuple(options)
    return error
