"""`rlx doctor`: what works on this machine, and what to do about the rest."""
from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import typer

from rlxpy.cli.app import command
from rlxpy.cli.report import Json, printable, show, size
from rlxpy.frozen import dataclass
from rlxpy.settings import cache_home


@dataclass(frozen=True)
class Finding:
    """`verdict`: ok; absent (rlxpy works without, less well); broken (rlxpy does not work)."""

    subject: str
    verdict: Literal["ok", "absent", "broken"]
    found: str
    fix: str = ""


@command()
def doctor(as_json: Json = False) -> None:
    """Tell what works on this machine.

    Python, packages, pip, C compiler, cache, GPU libraries: each with a verdict and, where it helps, a fix.
    Exits 1 when something that rlxpy needs is broken."""
    findings = [check() for check in CHECKS]
    show([asdict(f) for f in findings], "\n".join(map(_text, findings)), as_json)
    if any(f.verdict == "broken" for f in findings):
        raise typer.Exit(1)


def _text(f: Finding) -> str:
    verdict = f"{f.verdict:<7} {f.subject:<14} {printable(f.found)}"
    return f"{verdict}\n{'':<8}fix: {f.fix}" if f.fix else verdict


def python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} {sys.executable}")


def package(name: str, fix: str, verdict: Literal["absent", "broken"], module: str = "") -> Callable[[], Finding]:
    """A check that a distribution's module really imports; `verdict` is the word when it does not."""

    def check() -> Finding:
        try:
            import_module(module or name)
            return Finding(name, "ok", metadata.version(name))
        except Exception as e:  # a broken binary wheel raises what it likes
            return Finding(name, verdict, f"{type(e).__name__}: {e}", fix)

    return check


def gpu(device: str) -> Callable[[], Finding]:
    """A check that a vendor's library, driver and at least one of its devices are there."""

    def check() -> Finding:
        from rlxpy.backends.gpu.vendor import VENDORS, look

        seen = look(VENDORS[device])
        return Finding(f"{device} driver", "absent" if seen.lack else "ok", seen.lack or seen.found, seen.fix)

    return check


def products(vendor: str) -> Callable[[], Finding]:
    """A check that a vendor's library of products is there; without it products are ours."""

    def check() -> Finding:
        from rlxpy.backends.gpu.blaslt import DIALECTS, found

        d = DIALECTS[vendor]
        at = found(d)
        return Finding(d.title, "ok" if at else "absent", at or "not found, products run on kernels of ours", d.install)

    return check


def c_compiler() -> Finding:
    from rlxpy.backends.cpu.compilers import Compiler, find_compiler

    found = find_compiler()
    if isinstance(found, Compiler):
        return Finding("c compiler", "ok", found.text)
    return Finding("c compiler", "absent", found, "apt-get install gcc libc6-dev (Debian), or pip install 'rlxpy[cc]', or name one in RLX_CC")


def cache() -> Finding:
    """Writes where the cache is, or would be made, and leaves nothing."""
    home = cache_home()
    place = next((p for p in (home, *home.absolute().parents) if p.exists()), Path("/"))
    try:
        with TemporaryFile(dir=place) as f:
            f.write(b"rlxpy")
    except OSError as e:
        return Finding("cache", "broken", f"{home}: {e.strerror}", "set RLX_CACHE to a folder you can write")
    return Finding("cache", "ok", f"{home}, {size(shutil.disk_usage(place).free)} free")


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    package("numpy", "pip install numpy", "broken"),
    package("ml_dtypes", "pip install ml_dtypes", "broken"),
    package("jinja2", "pip install jinja2", "broken"),
    package("tokenizers", "pip install 'rlxpy[models]'", "absent"),
    package("pip", "python -m ensurepip", "absent"),
    c_compiler,
    cache,
    package("cuda-core", "pip install 'rlxpy[cuda]'", "absent", "cuda.core"),
    gpu("cuda"),
    products("nvidia"),
    package("hip-python", "pip install 'rlxpy[rocm]'", "absent", "hip"),
    gpu("rocm"),
    products("amd"),
)
