"""Profiles: how a model is built, compiled and sampled, as a `*.rlx.toml` file."""
from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from rlxpy.errors import LoadError, nearest
from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class Sizes:
    """Upper bounds that the graph is compiled for; None is the model's own or the program's default."""

    context: int | None = None
    chunk: int | None = None
    batch: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Compile:
    """device: names to try in order.  weights, numerics, cache: as generate.Generator takes them; None is its default."""

    device: tuple[str, ...] = ()
    weights: str | None = None
    numerics: str | None = None
    cache: str = "f32"


@dataclass(frozen=True)
class Sampling:
    """As generate.Sampler, and when to stop."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repeat_window: int = 64
    seed: int | None = None
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    system: str = ""

    def sampler(self) -> dict[str, Any]:
        """The fields that generate.Sampler has."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("max_tokens", "stop", "system")}


@dataclass(frozen=True)
class Profile:
    """Three tables, each optional: [sizes], [compile], [sampling]."""

    sizes: Sizes = field(default_factory=Sizes)
    compile: Compile = field(default_factory=Compile)
    sampling: Sampling = field(default_factory=Sampling)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Raises LoadError for a file that is no TOML, an unknown key (nearest named) or a value of another type."""
        try:
            tables = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as e:  # ValueError: no UTF-8, no TOML, no path
            raise LoadError(f"profile {path} cannot be read", why=str(e), fix="write TOML tables [sizes], [compile], [sampling]") from None
        made = {name: _table(kind, tables.pop(name, {}), f"{path} [{name}]") for name, kind in TABLES.items()}
        if tables:
            raise LoadError(f"profile {path} has an unknown table {next(iter(tables))!r}", why=f"tables are {', '.join(TABLES)}")
        return cls(**made)


TABLES: dict[str, type] = {"sizes": Sizes, "compile": Compile, "sampling": Sampling}
_KINDS: dict[str, tuple[type, ...]] = {"int | None": (int,), "int": (int,), "float": (int, float), "str": (str,), "str | None": (str,),
                                       "tuple[str, ...]": (str, list)}


def _table(kind: type, given: Any, where: str) -> Any:
    known = {f.name: str(f.type) for f in fields(kind)}
    if not isinstance(given, Mapping):
        raise LoadError("a profile table is expected", where=where, why=f"found {type(given).__name__}")
    for key, value in given.items():
        if key not in known:
            raise LoadError(f"unknown key {key!r}", where=where, why=f"keys are {', '.join(known)}", fix=f"near it: {nearest(key, list(known))}")
        mixed = isinstance(value, list) and not all(isinstance(v, str) for v in value)
        if not isinstance(value, _KINDS[known[key]]) or isinstance(value, bool) or mixed:
            raise LoadError(f"{key} = {value!r}", where=where, why=f"{type(value).__name__} was given, {known[key]} is wanted")
    return kind(**{k: _listed(v) if known[k].startswith("tuple") else v for k, v in given.items()})


def _listed(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
