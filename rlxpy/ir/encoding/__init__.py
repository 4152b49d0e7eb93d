"""Encodings by name: how packed weights are stored, as data that one decoder reads."""
from __future__ import annotations

from rlxpy.errors import BuildError, nearest
from rlxpy.ir.encoding.describe import Encoding, Plane
from rlxpy.ir.encoding.field import Field, Piece, number, shelves, stream
from rlxpy.ir.encoding.gguf import ROWS
from rlxpy.ir.encoding.planar import Level, int4_groups, int8_rows, nf4, planar, rotated
from rlxpy.ir.encoding.transform import Hadamard, Permutation

__all__ = [
    "ENCODINGS", "Encoding", "Field", "Hadamard", "Level", "Permutation", "Piece", "Plane",
    "encoding", "int4_groups", "int8_rows", "nf4", "number", "planar", "rotated", "shelves", "stream",
]

ENCODINGS: dict[str, Encoding] = {e.name: e for e in (*ROWS, int8_rows(), int4_groups(), nf4())}


def encoding(name: str) -> Encoding:
    """The encoding of that name.  Raises BuildError naming the nearest and all known ones."""
    if name not in ENCODINGS:
        raise BuildError(f"no encoding {name!r}", why=f"nearest: {nearest(name, tuple(ENCODINGS))}", fix=f"one of: {', '.join(ENCODINGS)}")
    return ENCODINGS[name]
