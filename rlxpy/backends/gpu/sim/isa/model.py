"""What differs between AMD's generations, as far as running their code goes."""
from __future__ import annotations

import re

from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class Model:
    """One chip's rules.  major: 9 to 12; wave: lanes; clears_half: 16-bit results clear the other half of their register; packed_ids: the three
    thread ids share v0; ids_in_ttmp: a block's ids come in ttmp registers; fnuz: 8-bit floats have one zero and no infinities."""

    arch: str
    major: int
    wave: int

    @property
    def clears_half(self) -> bool:
        return self.major == 9

    @property
    def packed_ids(self) -> bool:
        return self.major >= 11 or self.arch in ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx9-4-generic")

    @property
    def ids_in_ttmp(self) -> bool:
        return self.major >= 12

    @property
    def fnuz(self) -> bool:
        return self.arch in ("gfx940", "gfx941", "gfx942")

    @property
    def permuted(self) -> int:
        """Lanes among which ds_permute and ds_bpermute move: the wave, or each half of a wave of 64 (LLVM's supportsWaveWideBPermute)."""
        return 32 if self.major in (10, 11) else self.wave

    @property
    def preloads(self) -> bool:
        """Whether the first kernel arguments may come in registers; such kernels have 256 bytes of loads before the code that needs them."""
        return self.arch in ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")


def model_of(arch: str, wave: int) -> Model:
    found = re.match(r"gfx(\d+?)(?:-|[0-9a-f]{2}$)", arch)
    return Model(arch, int(found[1]) if found else 0, wave)
