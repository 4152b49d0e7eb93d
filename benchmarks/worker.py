"""A contestant as a process of its own, which answers lines of JSON; imports nothing of ours, since peers' environments run it too."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

REST_SECONDS = 0.2  # before each sample: the threads of the contestant before wait for more work by looking again and again
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def serve(make: Callable[[], Callable[..., Any]]) -> None:
    """In the process: "ready" once `make` has made what answers, then an answer a line.  What libraries print is no answer: it goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = make()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), file=answers, flush=True)


class Worker:
    """Its other side.  A process that ends early is a RuntimeError with its last words."""

    def __init__(self, command: Sequence[str], threads: int, **variables: str) -> None:
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True, start_new_session=True,
                                        env={**os.environ, **dict.fromkeys(COUNTS, str(threads)), **variables})
        self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.said.seek(0)
            said = [x for x in self.said.read().splitlines() if x.strip()]
            raise RuntimeError(next((x for x in reversed(said) if "Error" in x), said[-1] if said else "it ended without a word"))
        return json.loads(line)

    def ask(self, *what: Any) -> Any:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its last words say why
            print(json.dumps(what), file=self.process.stdin, flush=True)
        return self._read()

    def end(self) -> None:
        self.process.communicate()

    def kill(self) -> None:
        """With the compilers that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def started(name: str, command: Sequence[str], threads: int, **variables: str) -> Worker | None:
    """None where it does not start, with a sentence."""
    try:
        return Worker(command, threads, **variables)
    except RuntimeError as e:
        left_out(name, threads, str(e))
        return None


def left_out(name: str, threads: int, why: str) -> None:
    print(f"left out: {name}, {threads} threads: {why}", file=sys.stderr)
