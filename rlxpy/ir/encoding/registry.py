"""Encodings by name: those that rlxpy knows, and those of downstream packages, registered for a block or for good."""
from __future__ import annotations

from contextlib import AbstractContextManager
from math import lcm

import numpy as np

from rlxpy.errors import BuildError, RegistryError, RlxError, nearest
from rlxpy.ir.encoding.describe import Encoding
from rlxpy.ir.encoding.gguf import ROWS
from rlxpy.ir.encoding.planar import int4_groups, int8_rows, nf4
from rlxpy.registries import Registry

ENCODINGS: dict[str, Encoding] = {e.name: e for e in (*ROWS, int8_rows(), int4_groups(), nf4())}  # rlxpy's own
REGISTERED: Registry[Encoding] = Registry("rlxpy.encodings", lambda name, e: register_encoding(e))


def encoding_registry() -> AbstractContextManager[None]:
    """Encodings registered inside the block are forgotten at its end; per thread and per task."""
    return REGISTERED.block()


def register_encoding(e: Encoding) -> Encoding:
    """From now on `dequantize`, `qmatmul`, `quantize` and weights may name it.  An equal one may come again.

    Raises RegistryError for a taken name, for one that is not vendor.name, and for an encoding whose decoder fails; then nothing is registered."""
    if not isinstance(e, Encoding):
        raise RegistryError(f"register_encoding takes an Encoding, not {type(e).__name__}", why=f"{e!r:.80} is none", fix="planar('vendor.name', Level(4), scales=(Level(DType.F16, 32),))")
    vendor, _, name = e.name.partition(".")
    if not (vendor.isidentifier() and name.isidentifier()):
        raise RegistryError(f"encoding {e.name!r} is not named vendor.name", why="names without a vendor are rlxpy's own", fix=f"name it 'yourname.{name or vendor or 'codes'}'")
    if registered_encodings().get(e.name, e) != e:
        raise RegistryError(f"encoding {e.name!r} is already registered, and stores otherwise", why="weights that name it would be read in two ways",
                            fix="choose another name, or unregister_encoding it first")
    _try(e)
    REGISTERED.put(e.name, e)
    return e


def _try(e: Encoding) -> None:
    """Decode two rows of zeros: what is wrong with a description shows when it is registered, not when weights are read."""
    columns = lcm(e.block, *(p.record_columns or 1 for p in e.stored))
    try:
        e.decode(tuple(np.zeros(shape, dtype.numpy) for _, shape, dtype in e.planes((2, columns))), columns)
    except RlxError:
        raise
    except Exception as error:
        raise RegistryError(f"encoding {e.name!r} cannot decode two rows of {columns} zeros", why=f"{type(error).__name__}: {error}",
                            fix="see that fields, tables and planes fit each other") from error


def unregister_encoding(name: str) -> None:
    """Raises RegistryError for a name that nobody registered."""
    if not REGISTERED.drop(name):
        names = list(registered_encodings())
        raise RegistryError(f"no encoding {name!r} is registered", why=f"there are {', '.join(names) or 'none'}", fix=f"near it: {nearest(name, names)}")


def registered_encodings() -> dict[str, Encoding]:
    """Those of downstream packages, by name; of equal names the innermost scope's."""
    return REGISTERED.found()


def encoding(name: str) -> Encoding:
    """The encoding of that name.  Raises BuildError naming the nearest and all known ones."""
    if name in ENCODINGS:
        return ENCODINGS[name]
    known = ENCODINGS | registered_encodings()
    if name not in known:
        raise BuildError(f"no encoding {name!r}", why=f"nearest: {nearest(name, tuple(known))}", fix=f"one of: {', '.join(known)}")
    return known[name]
