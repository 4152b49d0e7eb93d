"""Which C compiler this process uses: $RLX_CC, then cc, gcc and clang on PATH, then the ziglang package."""
from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from rlxpy.frozen import dataclass
from rlxpy.settings import setting

NAMES = ("cc", "gcc", "clang")
PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Compiler:
    """argv: the command's first words.  version: all that --version says, a part of every cache key.  family: gcc, clang or zig."""

    argv: tuple[str, ...]
    version: str
    family: str

    @property
    def text(self) -> str:
        return f"{shlex.join(self.argv)}: {self.version.partition(chr(10))[0]}"


def find_compiler() -> Compiler | str:
    """The compiler, or the reason why there is none.  One search for each value of RLX_CC and PATH in a process."""
    return _find(setting("cc"), os.environ.get("PATH", ""))


@cache
def _find(named: str, path: str) -> Compiler | str:
    if named:
        found = _named(named)
        return found if isinstance(found, Compiler) else f"RLX_CC={named!r} is of no use: {found}"
    wheel = zig()
    places = {**{name: shutil.which(name, path=path) for name in NAMES}, "the ziglang package": wheel}
    reasons = [f"not found: {', '.join(absent)}"] if (absent := [name for name, place in places.items() if not place]) else []
    for place in filter(None, places.values()):
        found = probe((place, "cc") if place == wheel else (place,))
        if isinstance(found, Compiler):
            return found
        reasons.append(found)
    return f"no C compiler ({'; '.join(reasons)}): install gcc or clang, or pip install 'rlxpy[cc]', or name one in RLX_CC"


def _named(text: str) -> Compiler | str:
    """text: a path, which may hold spaces, or a command line."""
    if Path(text).is_file():
        return probe((text,))
    try:
        words = tuple(shlex.split(text))
    except ValueError as e:
        return f"it is no command line: {e}"
    return probe(words) if words else "it is empty"


def zig() -> str | None:
    """The program inside the ziglang wheel."""
    spec = find_spec("ziglang")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((found for folder in folders if (found := shutil.which("zig", path=folder))), None)


def first(names: Iterable[str], path: str, inside_zig: str) -> Compiler | None:
    """The first of these programs that works, at last the one that the ziglang package has under this name."""
    programs = [(place,) for name in names if (place := shutil.which(name, path=path))]
    wheel = zig()
    found = (probe(p) for p in (*programs, *([(wheel, inside_zig)] if wheel else [])))
    return next((c for c in found if isinstance(c, Compiler)), None)


def probe(argv: tuple[str, ...]) -> Compiler | str:
    """Ask a command what it is.  Its place is settled here: later calls start elsewhere."""
    if not (place := shutil.which(argv[0])):
        return f"{argv[0]} is not there, or is no program"
    argv = (os.path.abspath(place), *argv[1:])  # noqa: PTH100 (resolve() would turn a link's name, which a driver may go by, into another)
    said = f"{shlex.join(argv)} --version"
    try:
        status, out, err = run((*argv, "--version"), PROBE_SECONDS)
    except OSError as e:
        return f"{argv[0]} cannot be run: {e.strerror}"
    except subprocess.TimeoutExpired:
        return f"{said} gave no answer in {PROBE_SECONDS:.0f} s"
    if status != 0:
        return f"{said} exits {status}: {err.strip()[-500:] or 'it says nothing'}"
    family = _family(argv, out)
    return Compiler(argv, out, family) if family else f"{said} says {out.strip()[:100]!r}, which is neither gcc nor clang nor zig"


def run(command: tuple[str, ...], seconds: float, folder: Path | None = None) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a compiler.  One that hangs is stopped together with its children.

    Raises OSError when it cannot be started, also when this process is ending; TimeoutExpired."""
    go_on()
    env = {**os.environ, "LC_ALL": "C"}  # whoever reads its messages reads English
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=env,
                             text=True, errors="replace", start_new_session=True)
    _children.add(child)
    if _ending.is_set():  # since it was asked above
        _kill(child)
    try:
        out, err = child.communicate(timeout=seconds)
    finally:
        _children.discard(child)
        if child.poll() is None:
            _kill(child)
            child.wait()
    return child.returncode, out, err


_children: set[subprocess.Popen[str]] = set()
_ending = Event()


def _kill(child: subprocess.Popen[str]) -> None:
    """With its own children."""
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(child.pid, signal.SIGKILL) if hasattr(os, "killpg") else child.kill()


def stop() -> None:
    """End every compiler of this process, and begin no other."""
    _ending.set()
    for child in list(_children):
        _kill(child)


def exiting() -> bool:
    return _ending.is_set()


def go_on() -> None:
    """Raises OSError when this process is ending."""
    if exiting():
        raise OSError(errno.ECANCELED, "the process is ending")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_children.clear)  # they are the parent's


def _family(argv: tuple[str, ...], version: str) -> str:
    if "clang" in version:
        return "zig" if any("zig" in Path(word).name for word in argv) else "clang"
    return "gcc" if "Free Software Foundation" in version else ""
