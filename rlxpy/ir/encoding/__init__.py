"""Encodings by name: how packed weights are stored, as data that one decoder reads."""
from __future__ import annotations

from rlxpy.ir.encoding.describe import Encoding, Plane
from rlxpy.ir.encoding.field import Field, Piece, number, shelves, stream
from rlxpy.ir.encoding.planar import Level, int4_groups, int8_rows, nf4, planar, rotated
from rlxpy.ir.encoding.registry import ENCODINGS, encoding, encoding_registry, register_encoding, registered_encodings, unregister_encoding
from rlxpy.ir.encoding.transform import Hadamard, Permutation

__all__ = [
    "ENCODINGS", "Encoding", "Field", "Hadamard", "Level", "Permutation", "Piece", "Plane",
    "encoding", "encoding_registry", "int4_groups", "int8_rows", "nf4", "number", "planar", "register_encoding", "registered_encodings",
    "rotated", "shelves", "stream", "unregister_encoding",
]
