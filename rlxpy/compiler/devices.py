"""Which backend runs a graph: the names that are known, the ones that work here, and the order of preference."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from rlxpy.backends.reference import Reference
from rlxpy.errors import BackendMissing, InputError, RlxError, nearest
from rlxpy.extend.backend import Backend, BackendSpec
from rlxpy.extend.devices import Factory, registered_backends
from rlxpy.frozen import dataclass
from rlxpy.notes import note_once


def _cpu() -> Backend:
    from rlxpy.backends.cpu.backend import Cpu  # at first use: it looks for compilers

    return Cpu()


def _gpu(device: str) -> Backend:
    from rlxpy.backends.gpu.backend import Gpu
    from rlxpy.backends.gpu.vendor import VENDORS

    return Gpu(VENDORS[device])


BUILT_IN: dict[str, Factory] = {"cpu": _cpu, "reference": Reference, "cuda": partial(_gpu, "cuda"), "rocm": partial(_gpu, "rocm")}
AUTO = ("cpu", "reference")  # "auto" takes the first that works


@dataclass(frozen=True)
class BackendStatus:
    """`missing` says why it cannot run here; "" when it can."""

    device: str
    missing: str
    built_in: bool


def known() -> dict[str, Factory]:
    return {**registered_backends(), **BUILT_IN}


@cache
def _built_in(name: str) -> Backend:
    return BUILT_IN[name]()


def backend(name: str) -> Backend:
    """Raises InputError for an unknown name."""
    if name not in known():
        several = f"several are a list: {[n.strip() for n in name.split(',')]}" if "," in name else f"near it: {nearest(name, list(known()))}"
        raise InputError(f"no device {name!r}", why=f"there are {', '.join(known())}", fix=several)
    return _built_in(name) if name in BUILT_IN else known()[name]()


def backend_report() -> tuple[BackendStatus, ...]:
    """Every known backend, usable or not, with the reason."""
    return tuple(BackendStatus(n, _opened(n)[1], n in BUILT_IN) for n in known())


def _opened(name: str) -> tuple[Backend | None, str]:
    """A backend and why it cannot run; a broken one of a plug-in is a reason too.  Rlxpy's own are not asked for their specs: those load all that they can do."""
    try:
        b: Any = backend(name)
        if name not in BUILT_IN and not (isinstance(b, Backend) and isinstance(b.spec, BackendSpec)):
            return None, f"its backend is broken: {type(b).__name__} lacks missing, load, or a spec that is a BackendSpec"
        if name not in BUILT_IN and f":{b.spec.device}:" not in f":{name}:":  # cpu:check says itself that it is the cpu
            note_once(f"device {name} is called {b.spec.device} by its own spec: this is the name in reports, and {name} the one to ask for")
        return b, b.missing() or ""
    except RlxError:
        raise
    except Exception as e:
        return None, f"its backend is broken: {type(e).__name__}: {e}"


def available_backends() -> tuple[str, ...]:
    return tuple(s.device for s in backend_report() if not s.missing)


@dataclass(frozen=True)
class Chosen:
    """The backend, the name it is registered under, and the sentences that say why the ones before it were passed over."""

    backend: Backend
    name: str
    passed_over: tuple[str, ...] = ()


def choose(device: str | Sequence[str]) -> Chosen:
    """One name must work; of several the first that does; "auto" is the first of AUTO that does, and a note says what it had to pass
    over.  Raises BackendMissing with every reason."""
    asked = (device,) if isinstance(device, str) else tuple(device) if isinstance(device, Sequence) else ()
    if not asked or not all(isinstance(a, str) for a in asked):
        raise InputError(f"device={device!r}", why=f"a name or several names are wanted; there are auto, {', '.join(known())}",
                         fix="device='auto'")
    names = tuple((n, a == "auto") for a in asked for n in (AUTO if a == "auto" else (a,)))
    passed: list[str] = []
    for n, by_auto in names:
        b, why = _opened(n)
        if b is not None and not why:
            return Chosen(b, n, tuple(passed))
        passed.append(f"{n}: {why}")
        if by_auto:
            note_once(f"device {n} cannot run here, so graphs run slower, on the reference. {why}")
    raise BackendMissing(f"device {', '.join(asked)} cannot run here", why="; ".join(passed), fix=f"one of: {', '.join(available_backends())}")
