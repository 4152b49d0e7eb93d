"""An encoding: codes of 4 bits around 8, and an f16 for 32 of them."""
from __future__ import annotations

from rlxpy.extend import *

BLOCK = Plane("data", DType.U8, columns=32, bits=8 * 18)
NIBBLES = Encoding("acme.nibbles", 32, (BLOCK,), Field(32, stream(2, 4, 32), zero=8.0), scales=(number(0, DType.F16),))
