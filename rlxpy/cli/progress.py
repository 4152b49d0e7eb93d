"""Progress of long work: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from rlxpy.cli.report import note, size
from rlxpy.frozen import dataclass
from rlxpy.settings import setting

if TYPE_CHECKING:
    from rlxpy.hub import Progress

_PARTS = 4
_UNCOUNTED_STEP_NBYTES = 100_000_000


@contextmanager
def progress() -> Iterator[Progress]:
    """A callback for `hub.resolve` and whatever else takes long; what it drew is gone or ended afterwards."""
    if not setting("quiet") and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as bar:
            yield bar
    else:
        yield Lines()


@dataclass
class Lines:
    """Plain lines on stderr, none when quiet: one per sentence, then one per quarter of the work, or per 100 MB of an unknown whole."""

    text: str = field(default="", init=False)
    told_nbytes: int = field(default=0, init=False)

    def __call__(self, done_nbytes: int | None, text: str, total_nbytes: int | None = None) -> None:
        if text != self.text:
            self.text, self.told_nbytes = text, 0
            note(text)
        step = total_nbytes // _PARTS if total_nbytes else _UNCOUNTED_STEP_NBYTES
        if done_nbytes is not None and done_nbytes >= self.told_nbytes + step:
            self.told_nbytes = done_nbytes
            note(f"  {size(done_nbytes)}{f' of {size(total_nbytes)}' if total_nbytes else ''}")


@contextmanager
def _bar() -> Iterator[Progress]:
    """One line that is redrawn and then erased; rich itself honours NO_COLOR."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", visible=False)
        current = ""

        def tell(done_nbytes: int | None, text: str, total_nbytes: int | None = None) -> None:
            nonlocal task, current
            if text != current:  # a new task, for rich cannot forget a task's total
                shown.remove_task(task)
                task, current = shown.add_task(text, total=total_nbytes), text
            shown.update(task, completed=done_nbytes or 0, total=total_nbytes)

        yield tell
