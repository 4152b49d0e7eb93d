"""GPU vendors as data, and a look at what this machine has of each: library, driver version, devices."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CDLL, byref, c_int
from importlib.machinery import PathFinder

from rlxpy.backends.gpu.sim import current
from rlxpy.errors import RlxError
from rlxpy.frozen import dataclass

NO_DEVICE, OLD_DRIVER, NOT_INITIALISED = 100, 35, 3  # both vendors use these numbers
MEANING = {NO_DEVICE: "no device", OLD_DRIVER: "the driver is older than the library",
           NOT_INITIALISED: "not initialised, as in a process that was forked from one that used the device"}


@dataclass(frozen=True)
class Vendor:
    """libraries: names for the system's loader, any of which will do.  init takes flags; count and version fill an int; each returns 0 when
    it went well.  binding: the Python module that talks to the library."""

    device: str
    libraries: tuple[str, ...]
    init: str
    count: str
    version: str
    least: int
    text: Callable[[int], str]
    binding: str
    install: str


CUDA = Vendor("cuda", ("libcuda.so.1", "nvcuda.dll"), "cuInit", "cuDeviceGetCount", "cuDriverGetVersion", 13_000, lambda v: f"{v // 1000}.{v % 1000 // 10}",
              "cuda.core", "install NVIDIA's driver")
ROCM = Vendor("rocm", ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"), "hipInit", "hipGetDeviceCount", "hipRuntimeGetVersion",
              60_000_000, lambda v: f"{v // 10_000_000}.{v // 100_000 % 100}", "rocm.bindings",
              "install AMD's ROCm, or set LD_LIBRARY_PATH to it; without a card RLX_ROCM_SIM=host:gfx1100 simulates one")
VENDORS = {v.device: v for v in (CUDA, ROCM)}


@dataclass(frozen=True)
class Look:
    """found: what there is, for a person; lack: the first thing that is wrong with it, "" when nothing is, and how to mend that."""

    found: str
    lack: str = ""
    fix: str = ""


def look(v: Vendor) -> Look:
    """Asks the driver, and starts nothing on a device.  Never raises."""
    try:
        simulation = current() if v is ROCM else None
    except RlxError as e:
        return Look("", f"{e.what}: {e.why}", e.fix)
    if simulation:
        return Look(f"simulated {simulation.arch}, no card")
    library, why = _opened(v)
    if library is None:
        return Look("", f"library not found: {why}", v.install)
    found = str(library._name)
    try:
        version = _ask(library, v.version)
        found = f"{found} {v.text(version)}"
        if version < v.least:
            return Look(found, f"driver too old: {v.text(version)} is less than {v.text(v.least)}", v.install)
        if status := int(getattr(library, v.init)(0)):
            raise _Failed(f"{v.init} gave {status}", status)
        devices = _ask(library, v.count)
    except _Failed as e:
        return Look(found, e.text, v.install)
    except AttributeError as e:
        return Look(found, f"not the library it is named for: {e}", v.install)
    if devices < 1:
        return Look(found, "no device", f"is a GPU of this vendor in the machine, and may {found} use it?")
    return Look(f"{found}, {devices} device{'s' * (devices > 1)}")


def missing(v: Vendor) -> str | None:
    """Why Python cannot use the vendor's devices here; None when it can.  Never raises."""
    seen = look(v)
    if seen.lack:
        return f"{seen.lack}; {seen.fix}"
    return None if _installed(v.binding) else f"Python package {v.binding} is not installed; pip install 'rlxpy[{v.device}]'"


def _installed(module: str) -> bool:
    """Whether it could be imported; nothing is, not even the packages above it."""
    path: Sequence[str] | None = None
    parts = module.split(".")
    for k in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:k]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


class _Failed(Exception):
    def __init__(self, text: str, status: int) -> None:
        self.text = f"{text}: {MEANING[status]}" if status in MEANING else text


def _opened(v: Vendor) -> tuple[CDLL | None, str]:
    """The first library that loads, else the first reason why one does not."""
    reasons = []
    for name in v.libraries:
        try:
            return CDLL(name), ""
        except OSError as e:
            reasons.append(str(e))
    return None, reasons[0]


def _ask(library: CDLL, question: str) -> int:
    answer = c_int()
    if status := int(getattr(library, question)(byref(answer))):
        raise _Failed(f"{question} gave {status}", status)
    return answer.value
