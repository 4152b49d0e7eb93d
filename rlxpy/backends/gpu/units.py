"""GPU kernels of products on matrix units: one kernel for all of them, and a table of which lane holds what."""
from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rlxpy.backends.cpu import scalar
from rlxpy.backends.gpu.arch import FAMILIES
from rlxpy.backends.gpu.kernel import THREADS, Kernel, Site
from rlxpy.backends.gpu.matmul import call_of, kernel
from rlxpy.backends.templates import trimmed
from rlxpy.frozen import dataclass
from rlxpy.ir.dtypes import DType

TILE, DEPTH = 64, 32  # rows and columns of a block, which its waves share out in squares of 16; how deep its share of the operands is
SQUARE = 16


@dataclass(frozen=True)
class Unit:
    """What multiplies 16 x 16 x 16 narrow numbers into f32 sums, by the lanes of one wave together.

    C in `lane` and `e`: item e of a lane is of the left operand's row, or the right one's column, `place`, at depth `depth`; its sum e is at (row, column).
    calls: the instruction, by the operands' type.  exact: subnormal numbers count.
    slots: how many of the rows or columns that are its `place` a lane has items of, `slot` is that of item e; lanes a mask of `peers` apart share them."""

    name: str
    vendor: str
    archs: tuple[str, ...]
    lanes: int
    items: int
    sums: int
    place: str
    depth: str
    row: str
    column: str
    calls: Mapping[DType, str]
    peers: tuple[int, ...]
    exact: bool = True
    slots: int = 1
    slot: str = "0"

    @property
    def turned(self) -> bool:
        """Sums have the lanes that their columns have as items, so that those of one product can be the right operand of the next; else the left one, by rows."""
        return self.place == self.column

    @property
    def along(self) -> str:
        """Where a sum is along the axis that its lane's `place` is not."""
        return self.row if self.turned else self.column

    def function(self, narrow: DType) -> str:
        return f"rlx_{self.name}_{narrow.text}"


def _mfma(bf16: str, f16: str) -> dict[DType, str]:
    return {DType.BF16: f"__builtin_amdgcn_mfma_f32_16x16x16{bf16}(x, y, z, 0, 0, 0)", DType.F16: f"__builtin_amdgcn_mfma_f32_16x16x16{f16}(x, y, z, 0, 0, 0)"}


def _wmma(end: str) -> dict[DType, str]:
    return {d: f"__builtin_amdgcn_wmma_f32_16x16x16_{d.text}_w32{end}(x, y, z)" for d in (DType.BF16, DType.F16)}


def _cdna(name: str, archs: tuple[str, ...], exact: bool) -> Unit:
    return Unit(name, "amd", archs, 64, 4, 4, "lane%16", "lane/16*4 + e", "lane/16*4 + e", "lane%16", _mfma("bf16_1k", "f16"), (16, 32), exact)


QUADS = "lane/4 + e/2%2*8", "lane%4*2 + e%2 + e/4*8"  # of mma.sync, where a group of four lanes has a row
UNITS = (
    Unit("mma", "nvidia", tuple(f"sm_{n}" for n in (80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)), 32, 8, 8, *QUADS, *QUADS,
         {d: f"mma.sync.aligned.m16n8k16.row.col.f32.{d.text}.{d.text}.f32" for d in (DType.BF16, DType.F16)}, (1, 2), slots=2, slot="e/2%2"),
    _cdna("mfma2", ("gfx90a",), exact=False),  # MI200 takes subnormal bf16 and f16 for zeros
    _cdna("mfma", FAMILIES["gfx9-4-generic"], exact=True),
    Unit("wmma", "amd", (*FAMILIES["gfx11-generic"], "gfx11-generic"), 32, 16, 8, "lane%16", "e", "e*2 + lane/16", "lane%16", _wmma(""), (16,)),
    Unit("wmma12", "amd", (*FAMILIES["gfx12-generic"], "gfx12-generic"), 32, 8, 8, "lane%16", "lane/16*8 + e", "lane/16*8 + e", "lane%16", _wmma("_gfx12"), (16,)),
)


@cache
def needs(name: str, narrow: DType) -> str:
    """C++ of one unit: its instruction on the items and sums of a lane, and the same by hand where kernels run as host code."""
    unit = next(u for u in UNITS if u.name == name)
    return trimmed("gpu/unit.h.j2", unit=unit, T=narrow.text, call=unit.calls[narrow], nvidia=unit.vendor == "nvidia", vector="_Float16" if narrow is DType.F16 else "short")


def emit(unit: Unit, narrow: DType, site: Site) -> Kernel:
    """Operands of any type are rounded to `narrow` as they are laid into shared memory."""
    call = call_of(site)
    waves = THREADS // unit.lanes
    facts = {"TILE": TILE, "DEPTH": DEPTH, "SQUARE": SQUARE, "unit": unit, "STRIPS": TILE // SQUARE, "SQUARES": (TILE // SQUARE)**2 // waves, "multiply": unit.function(narrow),
             "round": scalar.store(narrow, "%s"), "left_deep": call.p.left.layout.strides[-1] == 1}
    return kernel(call, "gpu/matmul_units.cu.j2", facts, TILE, TILE, lambda k: f"c{k}[s][e]", (needs(unit.name, narrow),))
