"""Backends by device name: who is registered, who can run here, and why not."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from rlxpy.errors import RegistryError
from rlxpy.extend.backend import Backend, Device

Factory = Callable[[], Backend]
_GLOBAL: dict[str, Factory] = {}
_scopes: ContextVar[tuple[dict[str, Factory], ...]] = ContextVar("rlxpy_backends", default=())


def register_backend(device: Device, factory: Factory) -> None:
    """Raises RegistryError when the name is taken."""
    if device.name in registered_backends():
        raise RegistryError(f"device {device.name!r} already has a backend", fix="choose another name: device names are open")
    (_scopes.get() or (_GLOBAL,))[-1][device.name] = factory


@contextmanager
def backend_registry() -> Iterator[None]:
    """Backends registered inside the block are forgotten at its end; per thread and per task."""
    token = _scopes.set((*_scopes.get(), {}))
    try:
        yield
    finally:
        _scopes.reset(token)


def registered_backends() -> Mapping[str, Factory]:
    """By device name, in order of registration."""
    found = dict(_GLOBAL)
    for table in _scopes.get():
        found |= table
    return found
