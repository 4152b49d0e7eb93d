"""Every RLX_* environment variable: name, type, default, sentence and Python twin.  `rlx env` prints this table."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rlxpy.errors import InputError
from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class Setting:
    """One knob.  `twin` names the Python spelling that does the same without the environment."""

    name: str
    parse: Callable[[str], Any]
    default: str
    doc: str
    twin: str

    @property
    def variable(self) -> str:
        return f"RLX_{self.name.upper()}"


def _level(text: str) -> int:
    if text not in ("0", "1", "2", "3", "4", "5"):
        raise ValueError("a whole number from 0 to 5")
    return int(text)


def _folder(text: str) -> Path | None:
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError:  # ~, of a user that the system does not know or who has none
        raise ValueError("a folder that the system knows") from None


def _flag(text: str) -> bool:
    return text not in ("", "0")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _simulation(text: str) -> tuple[str, str, bool] | None:
    """Arch, by what, whether lazily."""
    if not text:
        return None
    by, _, rest = text.partition(":")
    arch, _, when = rest.partition(":")
    if by not in ("host", "isa") or not arch.startswith("gfx") or when not in ("", "eager"):
        raise ValueError("host:ARCH or isa:ARCH, with :eager or without, as in host:gfx1100")
    return arch, by, when == ""


def _user_cache() -> str:
    return os.environ.get("XDG_CACHE_HOME") or "~/.cache"


SETTINGS: dict[str, Setting] = {s.name: s for s in (
    Setting("device", _names, "auto", "devices to try, in this order only; auto is the first of cpu, reference that works", "compile(device=)"),
    Setting("debug", _level, "0", "of every compile 1 tells passes and times, 2 fusion too, 3 kernels, 4 why these, 5 memory; any level checks plans and poisons arenas", "settings.override(debug=1)"),
    Setting("dump", _folder, "", "folder that gets the graph after every pass and the plan", "settings.override(dump=...)"),
    Setting("cache", _folder, "", "folder for downloaded models and compiled code; empty is rlxpy below the user's cache folder", "settings.override(cache=...)"),
    Setting("kernels", _names, "", "kernel libraries in order of preference; empty is every library, the reference last", "CompileOptions(kernels=)"),
    Setting("force_row", _names, "", "kernel rows (cpu/matmul) that alone may run their op: what else would have won is passed over", "rlxpy.force_row(...)"),
    Setting("tune", _names, "", "points of kernels' tunables: cpu/matmul:row_block=48 pins one, off keeps the defaults; empty is what `rlx tune` kept", "CompileOptions(tune=)"),
    Setting("numerics", str.strip, "highest", "how exact f32 products are: highest, high, medium or low", "CompileOptions(numerics=)"),
    Setting("quantiser", str.strip, "rtn", "who chooses the numbers of weights that are packed at load, with its options: acme.search:steps=9", "Rounded(quantiser=)"),
    Setting("cc", str.strip, "", "C compiler: a name, a path or a command line; empty is the first of cc, gcc, clang, ziglang that works", "settings.override(cc=...)"),
    Setting("wait", _flag, "", "whether compile returns only when compiled code is there, instead of starting on the reference", "compile(wait=)"),
    Setting("isa", str.strip, "", "instruction set of generated C, with features after plus signs (avx512+vnni); empty is the best that this CPU has", "settings.override(isa=...)"),
    Setting("rocm_sim", _simulation, "", "simulated AMD GPU: host:ARCH or isa:ARCH (kernels as host code, as AMD's machine code), with :eager not only when waited for", "gpu.sim.simulated(...)"),
    Setting("quiet", _flag, "", "no progress and no notes on stderr", "rlx --quiet"),
)}

_overrides: ContextVar[dict[str, Any]] = ContextVar("rlxpy_settings", default={})  # noqa: B039 (never mutated)


def setting(name: str) -> Any:
    """Value of one setting: an override in this context, else the environment, else the default.

    Raises InputError when the environment holds a value that does not parse."""
    row = SETTINGS[name]
    if name in _overrides.get():
        return _overrides.get()[name]
    text = os.environ.get(row.variable, row.default)
    try:
        return row.parse(text)
    except ValueError as e:
        raise InputError(f"{row.variable}={text!r} cannot be read", why=f"wanted {e}", fix=f"unset it, or see `rlx env`: {row.doc}") from None


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """The Python twin of the environment: `with settings.override(debug=2): ...`.  Per thread and per task."""
    for name in values:
        if name not in SETTINGS:
            raise InputError(f"no setting {name!r}", fix=f"one of: {', '.join(SETTINGS)}")
    token = _overrides.set({**_overrides.get(), **values})
    try:
        yield
    finally:
        _overrides.reset(token)


def cache_home() -> Path:
    """The user's rlxpy cache folder (not created).  Of a user without a home, as a container's may be, a path that nothing can be written to."""
    chosen: Path | None = setting("cache")
    if chosen is not None:
        return chosen
    try:
        return Path(_user_cache()).expanduser() / "rlxpy"
    except RuntimeError:
        return Path(os.devnull) / "rlxpy"


def unknown_variables() -> list[str]:
    """RLX_* variables that are set but mean nothing: most often a typing error."""
    known = {s.variable for s in SETTINGS.values()}
    return sorted(v for v in os.environ if v.startswith("RLX_") and v not in known)
