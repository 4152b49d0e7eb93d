"""Backends by device name: who is registered, who can run here, and why not."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rlxpy.errors import RegistryError
from rlxpy.extend.backend import Backend, Device
from rlxpy.registries import Registry

Factory = Callable[[], Backend]
NAME = re.compile(r"[A-Za-z0-9][\w.:-]*", re.ASCII)
BUILT_IN = ("cpu", "reference", "cuda", "rocm")  # rlxpy's own


def register_backend(device: Device, factory: Factory) -> None:
    """factory() gives the backend; it is called when somebody asks for the device.  Raises RegistryError when the name is taken, by rlxpy
    or by another package, and for what is no name or no factory."""
    if not isinstance(device, Device) or not isinstance(device.name, str) or not NAME.fullmatch(device.name) or device.name == "auto":
        raise RegistryError(f"{device!r} is no device of one's own", why="its name stands in RLX_DEVICE and in lists, where commas divide, and auto is any device",
                            fix="Device('mine'): letters, digits, - _ . :")
    if not callable(factory):
        raise RegistryError(f"device {device.name!r}: {type(factory).__name__} is no factory", why="it is called to make the backend", fix=f"register_backend(Device({device.name!r}), Mine)")
    if device.name in BUILT_IN:
        raise RegistryError(f"device {device.name!r} is rlxpy's own", why=f"so are {', '.join(BUILT_IN)}, and nobody would know which of two runs",
                            fix=f"Device('mine-{device.name}'): device names are open")
    if device.name in registered_backends():
        raise RegistryError(f"device {device.name!r} already has a backend", why=f"{_where(registered_backends()[device.name])} is there, {_where(factory)} comes now",
                            fix="choose another name: device names are open")
    REGISTERED.put(device.name, factory)


def _where(factory: Factory) -> str:
    """A factory for a person: where both come from tells two packages apart."""
    return f"{getattr(factory, '__module__', type(factory).__module__)}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def backend_registry() -> AbstractContextManager[None]:
    """Backends registered inside the block are forgotten at its end; per thread and per task."""
    return REGISTERED.block()


def registered_backends() -> Mapping[str, Factory]:
    """By device name, in order of registration."""
    return REGISTERED.found()


def _adopt(name: str, found: Any) -> None:
    """What a plug-in gives: a backend, or the class of one, for the device of the entry point's name."""
    if not isinstance(found, (type, Backend)):
        raise RegistryError(f"{type(found).__name__} is not a backend", fix="name a Backend, or a class or function that makes one")
    register_backend(Device(name), found if isinstance(found, type) else lambda: found)


REGISTERED: Registry[Factory] = Registry("rlxpy.backends", _adopt)
