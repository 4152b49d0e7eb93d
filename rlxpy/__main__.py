"""`python -m rlxpy` is `rlx`."""
from __future__ import annotations

from rlxpy.cli import main

main()
