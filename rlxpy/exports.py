"""Names of a package that are imported at first use, so that importing the package stays cheap."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: `home` maps each public name to the module, relative to rlxpy, that defines it."""
    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"rlxpy.{home[name]}"), name)

    return get
