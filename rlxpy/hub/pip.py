"""One wheel from the user's package index, by pip in a child process."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rlxpy.frozen import dataclass
from rlxpy.hub.store import file_nbytes, files_below

# Variables that change what pip run for us does, without saying where packages come from.
_FOREIGN = ("PIP_CONSTRAINT", "PIP_REQUIRE_HASHES", "PIP_REQUIRE_VIRTUALENV", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG")
_CONNECTION_TROUBLE = ("connection broken", "Could not fetch URL", "ConnectionError", "ProxyError", "TimeoutError", "timed out")
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Refusal:
    """Why no wheel came: no pip, no network, no such wheel, or something else; `line` is pip's own last word."""

    kind: Literal["no pip", "offline", "absent", "failed"]
    line: str


def download(requirement: str, folder: Path, advance: Callable[[int], object] = lambda nbytes: None) -> Path | Refusal:
    """Fetch one wheel (`NAME` or `NAME==VERSION`, no dependencies, never a source package) to below `folder`, an empty folder.

    Index, proxy and certificates are the user's own pip settings.  `advance` hears the bytes that have arrived."""
    if find_spec("pip") is None:
        return Refusal("no pip", f"{sys.executable} has no module named pip")
    wheels, log = folder / "wheels", folder / "pip.log"
    command = [sys.executable, "-P", "-m", "pip", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "download",
               "--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", str(wheels), "--", requirement]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=_environment(folder))
        try:
            while child.poll() is None:
                advance(max((file_nbytes(p) for p in files_below(folder) if p.suffix == ".whl"), default=0))
                time.sleep(_POLL_SECONDS)
        finally:
            _end(child)
    found = sorted(wheels.glob("*.whl"))
    return found[0] if child.returncode == 0 and found else _refusal(log.read_text("utf-8", "replace"))


def _environment(folder: Path) -> dict[str, str]:
    """The user's environment without what belongs to this Python; pip's scratch lands where its growth can be watched."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k not in _FOREIGN}
    return {**kept, "PYTHONUTF8": "1", "TMPDIR": str(folder)}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave no pip behind, whatever ended the wait."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _refusal(log: str) -> Refusal:
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["(pip said nothing)"]
    errors = [line for line in lines if line.startswith("ERROR:")]
    trouble = [line for line in lines if any(sign in line for sign in _CONNECTION_TROUBLE)]
    if trouble:
        return Refusal("offline", trouble[-1])
    return Refusal("absent" if "No matching distribution" in log else "failed", (errors or lines)[-1])
