"""Quantisers: who chooses the numbers of packed weights.  Rounding to nearest, and those of downstream packages, by name."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlxpy.errors import InputError, RegistryError, nearest
from rlxpy.frozen import dataclass
from rlxpy.ir import quantize as nearest_codes
from rlxpy.ir.dtypes import Array
from rlxpy.ir.encoding import Encoding, encoding
from rlxpy.registries import Registry


@runtime_checkable
class Quantiser(Protocol):
    """A frozen dataclass, options as fields: bool, int, float, str or Path, a file of calibration data say.

    It chooses codes, scales and minimums.  Where they lie is the encoding's matter, and the encoding's decoder reads them: kernels move them, and
    never choose again."""

    @property
    def name(self) -> str: ...

    @property
    def doc(self) -> str:
        """One line: how it chooses."""

    @property
    def row_block(self) -> int:
        """How many rows it wants to see together, so that a weight larger than memory goes by in blocks; 0 is all of a matrix."""

    def refusal(self, to: Encoding) -> str:
        """Why it cannot write an encoding; "" when it can."""

    def __call__(self, values: Array, to: Encoding, weight: str) -> tuple[Array, ...]:
        """The planes, as `to.planes(values.shape)` lists them, of `values`, f32 [rows, columns]: rows of the weight of that name."""


@dataclass(frozen=True)
class Rtn:
    """Rounding to nearest: a group's scale is what its greatest number needs."""

    name: str = "rtn"
    doc: str = "round to nearest, a scale for each group"
    row_block: int = 1

    def refusal(self, to: Encoding) -> str:
        return nearest_codes.refusal(to)

    def __call__(self, values: Array, to: Encoding, weight: str) -> tuple[Array, ...]:
        return nearest_codes.quantize(values, to)


BUILT_IN: dict[str, Quantiser] = {q.name: q for q in (Rtn(),)}
IDENTITY = ("name", "doc", "row_block")  # fields that are no options


def register_quantiser(q: Quantiser) -> Quantiser:
    """From now on weights may be packed by it, under its name; the options it has here are its defaults.

    Raises RegistryError for what is no quantiser, for a name that is not vendor.name, and for one that is taken; then nothing is registered."""
    if not _is_quantiser(q):
        raise RegistryError(f"{getattr(q, '__name__', type(q).__name__)} is not a quantiser", why="it has name, doc, row_block, refusal, and is called with values",
                            fix="write a frozen dataclass, options as fields, and register one of it")
    try:
        hash(q)
    except TypeError as e:
        raise RegistryError(f"quantiser {q.name!r} cannot be told from others", why=str(e), fix="make it a frozen dataclass whose fields are hashable") from None
    vendor, _, name = str(q.name).partition(".")
    if not (vendor.isidentifier() and name.isidentifier()):
        raise RegistryError(f"quantiser {q.name!r} is not named vendor.name", why="names without a vendor are rlxpy's own", fix=f"name it 'yourname.{name or vendor or 'rounding'}'")
    if unknown := [f.name for f in _options(q) if _reader(f.type) is None]:
        raise RegistryError(f"quantiser {q.name!r} has an option {unknown[0]!r} that no text can set", why=f"options are {', '.join(READERS)}", fix="give it one of these types")
    if (other := registered_quantisers().get(q.name, q)) != q:
        raise RegistryError(f"quantiser {q.name!r} is already registered", why=f"{_where(other)} is there, {_where(q)} comes now", fix="choose another name, or unregister_quantiser it first")
    REGISTERED.put(q.name, q)
    return q


def _is_quantiser(given: Any) -> bool:
    return not isinstance(given, type) and is_dataclass(given) and isinstance(given, Quantiser)


def _where(q: Quantiser) -> str:
    return f"{type(q).__module__}.{type(q).__qualname__}"


def unregister_quantiser(name: str) -> None:
    """Raises RegistryError for a name that nobody registered."""
    if not REGISTERED.drop(name):
        names = list(registered_quantisers())
        raise RegistryError(f"no quantiser {name!r} is registered", why=f"there are {', '.join(names) or 'none'}", fix=f"near it: {nearest(name, names)}")


def quantiser_registry() -> AbstractContextManager[None]:
    """Quantisers registered inside the block are forgotten at its end; per thread and per task."""
    return REGISTERED.block()


def registered_quantisers() -> dict[str, Quantiser]:
    """Those of downstream packages, by name; of equal names the innermost scope's."""
    return REGISTERED.found()


def _adopt(name: str, found: Any) -> None:
    """What a plug-in gives: a quantiser, or the class of one with its default options."""
    register_quantiser(found() if isinstance(found, type) else found)


REGISTERED: Registry[Quantiser] = Registry("rlxpy.quantisers", _adopt)


# ---- by name, with options -----------------------------------------------------------------------------------------
def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false is wanted")
    return text == "true"


READERS: dict[str, Callable[[str], Any]] = {"bool": _flag, "int": int, "float": float, "str": str, "Path": Path}


def _reader(kind: Any) -> Callable[[str], Any] | None:
    return READERS.get(kind if isinstance(kind, str) else getattr(kind, "__name__", ""))


def _options(q: Any) -> list[Any]:
    return [f for f in fields(q) if f.init and f.name not in IDENTITY]


def quantiser(text: str) -> Quantiser:
    """The one that a text names: "rtn", "acme.search", "acme.search:steps=9,wide=true".  Raises InputError for a name or an option that is not there,
    before anything is packed."""
    name, _, given = text.partition(":")
    known = BUILT_IN | registered_quantisers()
    if name not in known:
        raise InputError(f"no quantiser {name!r}", why=f"there are {', '.join(known)}", fix=f"near it: {nearest(name, list(known))}")
    found: Any = known[name]
    kinds = {f.name: f.type for f in _options(found)}
    chosen = {}
    for part in filter(None, given.split(",")):
        key, _, value = part.partition("=")
        if key not in kinds:
            raise InputError(f"quantiser {name!r} has no option {key!r}", why=f"there are {', '.join(kinds) or 'none'}", fix=f"near it: {nearest(key, list(kinds))}")
        try:
            chosen[key] = (_reader(kinds[key]) or str)(value)
        except ValueError as e:
            raise InputError(f"quantiser {name!r}: {key}={value}", why=str(e), fix=f"{key} is {getattr(kinds[key], '__name__', kinds[key])}") from None
    made: Quantiser = replace(found, **chosen)
    return made


# ---- used ----------------------------------------------------------------------------------------------------------
def packing(q: Quantiser, to: Encoding | str) -> Encoding:
    """The encoding, which the quantiser can write.  Raises BuildError, InputError before anything is packed."""
    enc = encoding(to) if isinstance(to, str) else to
    why = q.refusal(enc) if enc.is_packed else f"it stores plain {enc.code.dtype} numbers, of which none are chosen"
    if why:
        others = [o.name for o in (BUILT_IN | registered_quantisers()).values() if enc.is_packed and not o.refusal(enc)]
        raise InputError(f"quantiser {q.name!r} cannot write {enc.name}", why=why, fix=f"use {', '.join(others)}" if others else "use a quantiser made for it: docs/add_an_encoding.md")
    return enc


def pack(q: Quantiser, values: Array, to: Encoding, weight: str = "") -> tuple[Array, ...]:
    """The planes of f32 [rows, columns], as the quantiser chooses them.  Raises RegistryError when they are not what the encoding stores."""
    planes = q(values, to, weight)
    wanted = to.planes(values.shape)
    got = [(p.dtype.name, p.shape) if isinstance(p, np.ndarray) else type(p).__name__ for p in planes] if isinstance(planes, tuple) else type(planes).__name__
    if got != [(dtype.numpy_name, shape) for _, shape, dtype in wanted]:
        raise RegistryError(f"quantiser {q.name!r} gave {got}", where=weight, why=f"{to.name} stores {list(values.shape)} as {', '.join(f'{n} {d} {list(s)}' for n, s, d in wanted)}",
                            fix="give the planes that encoding.planes(shape) lists")
    return planes


@dataclass(frozen=True)
class PackingError:
    """What packing lost: rms of the differences over rms of the values, and the greatest difference."""

    relative: float
    greatest: float


def packing_error(values: Array, planes: tuple[Array, ...], to: Encoding) -> PackingError:
    """By the encoding's own decoder, whoever chose the numbers."""
    x = np.asarray(values, np.float64)
    lost = to.decode(planes, values.shape[-1]).astype(np.float64) - x
    scale = float(np.sqrt(np.square(x).mean())) if x.size else 0.0
    rms = float(np.sqrt(np.square(lost).mean())) if x.size else 0.0
    return PackingError(rms / scale if scale else rms, float(np.abs(lost).max(initial=0.0)))
