"""Values of a model's configuration, each checked when it is read."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlxpy.errors import LoadError
from rlxpy.frozen import dataclass

MOST = 1 << 31         # no model has more of anything
MOST_LAYERS = 1 << 16  # a flow has an object for each
LARGEST = 1e30


@dataclass(frozen=True)
class Settings:
    """config.json's keys.  One that is absent or null has its default; without a default, or with another value: LoadError naming it."""

    values: Mapping[str, Any]
    what: str = "the model's configuration"

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        return int(self._value(key, default, f"a whole number from {least} to {most}", lambda v: _is(v, int) and least <= v <= most))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._value(key, default, f"a number above 0 and up to {LARGEST}", lambda v: _is(v, int, float) and 0 < v <= LARGEST))

    def text(self, key: str, default: str | None = None, among: tuple[str, ...] = ()) -> str:
        return str(self._value(key, default, " or ".join(among) or "a text", lambda v: v in among if among else isinstance(v, str)))

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._value(key, default, "true or false", lambda v: isinstance(v, bool)))

    def table(self, key: str) -> Mapping[str, Any]:
        return dict(self._value(key, {}, "an object", lambda v: isinstance(v, Mapping)))

    def _value(self, key: str, default: Any, wanted: str, fits: Callable[[Any], bool]) -> Any:
        given = self.values.get(key)
        value = default if given is None else given
        if value is None:
            raise LoadError(f"{self.what} has no {key}", why=f"it has {', '.join(sorted(map(str, self.values)))}")
        if not fits(value):
            raise LoadError(f"{key} is {value!r:.60}", where=self.what, why=f"{wanted} is needed")
        return value


def _is(value: Any, *kinds: type) -> bool:
    """bool is an int to Python, not to a configuration."""
    return isinstance(value, kinds) and not isinstance(value, bool)
