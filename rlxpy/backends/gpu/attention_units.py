"""GPU kernels of attention on matrix units: for many queries, keys and values as narrow numbers, sums and softmax in f32."""
from __future__ import annotations

from itertools import product

from rlxpy.backends.cpu.attention import call_of
from rlxpy.backends.gpu.attention import facts_of, group_of, kernel, reading, whole
from rlxpy.backends.gpu.kernel import Kernel, Site, quotient
from rlxpy.backends.gpu.units import SQUARE, Unit, needs
from rlxpy.backends.templates import read, trimmed
from rlxpy.extend.kernels import Tunable
from rlxpy.frozen import dataclass
from rlxpy.ir.dims import Dim, upper
from rlxpy.ir.dtypes import DType

MOST_CHANNELS = 256
REGISTERS = 112  # of a lane for its queries and results; where they want more, queries lie in shared memory
SHARED_NBYTES = {"nvidia": 48 << 10, "amd": 64 << 10}
EIGHT = 8        # numbers of 16 bits in 16 bytes: by so many a row in shared memory is longer than it need be, so that lanes of a wave meet in no bank
WAVES = Tunable("waves", (2, 4, 8), 4)  # of a block, each with SQUARE rows


def tunables(unit: Unit) -> tuple[Tunable, ...]:
    """Waves of a block and keys of a tile, at most: there are fewer where channels are too many for them."""
    return WAVES, Tunable("keys", (16, 32, 64, 128), 64 if unit.items == unit.sums else 32)


@dataclass(frozen=True)
class Tile:
    """What a block has: queries and results of `D` and `E` channels, whole squares."""

    unit: Unit
    D: int
    E: int
    waves: int
    keys: int

    @property
    def held(self) -> bool:
        """Whether queries stay in registers."""
        return self.D//SQUARE*self.unit.items//2 + self.E//SQUARE*self.unit.sums <= REGISTERS

    @property
    def batch(self) -> int:
        """Eights of keys, or of values, that a thread reads before it waits for the first."""
        each = -(-self.keys * max(self.D, self.E) // (EIGHT * self.waves * self.unit.lanes))
        return min(whole(each, 2), 8 if self.held else 2)

    @property
    def fits(self) -> bool:
        queries = 0 if self.held else self.D//SQUARE*self.waves*self.unit.lanes*self.unit.items
        return 2 * (self.keys*(self.D + EIGHT) + self.E*(self.keys + EIGHT) + queries) + 16*self.waves <= SHARED_NBYTES[self.unit.vendor]


def tile_of(unit: Unit, d: Dim, e: Dim, waves: int, keys: int) -> Tile:
    """The largest that fits, of at most so many waves and keys."""
    most = dict(zip((t.name for t in tunables(unit)), (waves, keys), strict=True))
    some = product(*([n for n in t.values if n <= most[t.name]] for t in tunables(unit)))
    made = (Tile(unit, *(whole(max(upper(n), 1), SQUARE) for n in (d, e)), *point) for point in some)
    return max((t for t in made if t.fits), key=lambda t: (t.waves*t.keys, t.waves))


def emit(unit: Unit, narrow: DType, site: Site) -> Kernel:
    """Operands of any type are rounded to `narrow` as they are laid into shared memory, and so are weights, which are at most 1."""
    call = call_of(site)
    (b, h, t, d), (_, g, _, _), (*_, e) = call.shapes
    tile, facts = tile_of(unit, d, e, **site.params), facts_of(call, site)
    for name, o, width, packing in (("q", call.q, d, ""), ("k", call.k, d, call.packing[0]), ("v", call.v, e, call.packing[1])):
        facts[name] |= reading(o, width, packing, narrow)
    facts["out"] |= {"store": f"rlx_round_{narrow.text}(%s)"} if site.out.dtype is narrow else {}
    facts["mask_key"] = f"masks[a] + (s0 + s)*{facts['mask_step']}"
    text = trimmed("gpu/attention_units.cu.j2", **facts, unit=unit, narrow=narrow.text, product=unit.function(narrow), SQUARE=SQUARE, WAVES=tile.waves, KEYS=tile.keys,
                   D=tile.D, E=tile.E, held=tile.held, BATCH=tile.batch)
    return kernel(call, site, text, b * g * quotient(t * group_of(h, g), tile.waves*SQUARE), tile.waves*unit.lanes, (needs(unit.name, narrow), read("gpu/words.h"), read("gpu/narrow.h")))
