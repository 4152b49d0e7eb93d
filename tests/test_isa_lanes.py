"""Moves between lanes as machine code: DPP, permutes, swizzles, reads of one lane; with all lanes active and with holes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from isa_device import WAVE64, module, run
from sim_device import needs_clang

from rlxpy.ir.dtypes import Array

pytestmark = needs_clang
NONE = -1


@dataclass(frozen=True)
class Move:
    """text: %0 is the result, which starts as 1000 + lane, %1 the source.  source: from lane and wave to the lane read, NONE where there is none.
    written: lanes that the masks let through.  zero: a lane without a source becomes 0 instead of staying.  add: the result is added to."""

    text: str
    source: Callable[[int, int], int]
    on: str
    written: Callable[[int], bool] = lambda lane: True
    zero: bool = False
    inactive: bool = False
    add: bool = False


def row(place: Callable[[int], int]) -> Callable[[int, int], int]:
    return lambda lane, wave: lane // 16 * 16 + place(lane % 16) if 0 <= place(lane % 16) < 16 else NONE


ALL = "gfx90a gfx1030 gfx1100 gfx1201 gfx1100w"
NEW = "gfx1030 gfx1100 gfx1201 gfx1100w"
FULL = "row_mask:0xf bank_mask:0xf"
MOVES = (
    Move(f"v_mov_b32_dpp %0, %1 quad_perm:[1,2,0,3] {FULL}", lambda lane, wave: lane // 4 * 4 + (1, 2, 0, 3)[lane % 4], ALL),
    Move(f"v_mov_b32_dpp %0, %1 row_shl:3 {FULL}", row(lambda p: p + 3), ALL),
    Move(f"v_mov_b32_dpp %0, %1 row_shr:1 {FULL}", row(lambda p: p - 1), ALL),
    Move(f"v_mov_b32_dpp %0, %1 row_shr:1 {FULL} bound_ctrl:1", row(lambda p: p - 1), ALL, zero=True),
    Move(f"v_mov_b32_dpp %0, %1 row_ror:5 {FULL}", row(lambda p: (p - 5) % 16), ALL),
    Move(f"v_mov_b32_dpp %0, %1 row_mirror {FULL}", row(lambda p: 15 - p), ALL),
    Move(f"v_mov_b32_dpp %0, %1 row_half_mirror {FULL}", row(lambda p: p // 8 * 8 + 7 - p % 8), ALL),
    Move("v_mov_b32_dpp %0, %1 row_shl:1 row_mask:0x5 bank_mask:0xa", row(lambda p: p + 1), ALL, written=lambda lane: lane // 16 in (0, 2) and lane // 4 % 2 == 1),
    Move(f"v_add_u32_dpp %0, %1, %0 row_shr:2 {FULL} bound_ctrl:1", row(lambda p: p - 2), "gfx90a", zero=True, add=True),
    Move(f"v_add_nc_u32_dpp %0, %1, %0 row_shr:2 {FULL} bound_ctrl:1", row(lambda p: p - 2), NEW, zero=True, add=True),
    Move("v_mov_b32_dpp %0, %1 row_bcast:15 row_mask:0xa bank_mask:0xf", lambda lane, wave: lane // 16 * 16 - 1, "gfx90a", written=lambda lane: lane // 16 in (1, 3)),
    Move("v_mov_b32_dpp %0, %1 row_bcast:31 row_mask:0xc bank_mask:0xf", lambda lane, wave: 31, "gfx90a", written=lambda lane: lane >= 32),
    Move(f"v_mov_b32_dpp %0, %1 row_newbcast:7 {FULL}", row(lambda p: 7), "gfx90a"),
    Move(f"v_mov_b32_dpp %0, %1 wave_shr:1 {FULL}", lambda lane, wave: lane - 1, "gfx90a"),
    Move(f"v_mov_b32_dpp %0, %1 wave_rol:1 {FULL}", lambda lane, wave: (lane + 1) % wave, "gfx90a"),
    Move(f"v_mov_b32_dpp %0, %1 row_share:5 {FULL}", row(lambda p: 5), NEW),
    Move(f"v_mov_b32_dpp %0, %1 row_xmask:6 {FULL}", row(lambda p: p ^ 6), NEW),
    Move(f"v_mov_b32_dpp %0, %1 row_xmask:6 {FULL} fi:1", row(lambda p: p ^ 6), NEW, inactive=True),
    Move("v_mov_b32_dpp %0, %1 dpp8:[7,0,6,1,5,2,4,3]", lambda lane, wave: lane // 8 * 8 + (7, 0, 6, 1, 5, 2, 4, 3)[lane % 8], NEW),
    Move("ds_swizzle_b32 %0, %1 offset:swizzle(QUAD_PERM,3,2,1,0)\\n s_waitcnt lgkmcnt(0)", lambda lane, wave: lane // 4 * 4 + 3 - lane % 4, "gfx90a gfx1030 gfx1100 gfx1100w", zero=True),
    Move('ds_swizzle_b32 %0, %1 offset:swizzle(BITMASK_PERM,\\"0p1ip\\")\\n s_waitcnt lgkmcnt(0)', lambda lane, wave: lane // 32 * 32 + ((lane & 0b01011) ^ 0b00010 | 0b00100),
         "gfx90a gfx1030 gfx1100 gfx1100w", zero=True),
    Move("ds_swizzle_b32 %0, %1 offset:swizzle(SWAP,8)\\n s_waitcnt lgkmcnt(0)", lambda lane, wave: lane ^ 8, "gfx90a gfx1030", zero=True),
    Move("ds_swizzle_b32 %0, %1 offset:swizzle(BROADCAST,8,3)\\n s_waitcnt lgkmcnt(0)", lambda lane, wave: lane // 8 * 8 + 3, "gfx90a gfx1030", zero=True),
    Move("s_mov_b32 s20, 0x76543210\\n s_mov_b32 s21, 0xfedcba89\\n v_permlane16_b32 %0, %1, s20, s21", row(lambda p: 9 if p == 8 else 8 if p == 9 else p), NEW),
    Move("s_mov_b32 s20, 0x76543210\\n s_mov_b32 s21, 0xfedcba98\\n v_permlanex16_b32 %0, %1, s20, s21", lambda lane, wave: lane ^ 16, NEW),
    Move("v_permlane64_b32 %0, %1", lambda lane, wave: lane ^ 32 if wave == 64 else lane, "gfx1100 gfx1100w", zero=True),
)


FORMS = (("all", "", ""), ("holes", "if (threadIdx.x % 3 != 1) {", "}"))  # with every lane active, and without some


def kernel(k: int, move: Move) -> str:
    body = f'int r = 1000 + (int)threadIdx.x, x = a[threadIdx.x]; asm volatile("" : "+v"(x)); {{}} asm volatile("{move.text}" : "+v"(r) : "v"(x) : "s20", "s21"); out[threadIdx.x] = r; {{}}'
    return "".join(f'extern "C" __global__ void k{k}_{name}(const int* a, int* out) {{ {body.format(begin, end)} }}\n' for name, begin, end in FORMS)


def wanted(move: Move, x: Array, wave: int, active: Array) -> Array:
    out = np.full(wave, 7, "i4")
    for lane in np.flatnonzero(active):
        source, old = move.source(int(lane), wave), 1000 + int(lane)
        found = 0 <= source < wave and (active[source] or move.inactive)
        if not move.written(int(lane)) or (not found and not move.zero):
            out[lane] = old
        else:
            out[lane] = (int(x[source]) if found else 0) + (old if move.add else 0)
    return out


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1030", "gfx1100", "gfx1201", "gfx1100w"])
def test_each_move_takes_from_the_lane_it_names(chip: str) -> None:
    moves = [m for m in MOVES if chip in m.on.split()]
    m = module("".join(kernel(k, move) for k, move in enumerate(moves)), chip.removesuffix("w"), *(WAVE64 if chip.endswith("w") else ()))
    assert not m.unknown
    wave, x = m.wave, np.random.default_rng(1).integers(-1 << 30, 1 << 30, 64).astype("i4")
    for k, move in enumerate(moves):
        for name, active in (("all", np.full(wave, True)), ("holes", np.arange(wave) % 3 != 1)):
            out = np.full(wave, 7, "i4")
            run(m, f"k{k}_{name}", 1, wave, x[:wave], out)
            assert np.array_equal(out, wanted(move, x, wave, active)), f"{move.text}, {name}"


BUILTINS = """
extern "C" __global__ void reads(const int* a, int* out, int n) {
  int t = threadIdx.x, x = a[t];
  if (t >= 5) out[t] = __builtin_amdgcn_readfirstlane(x);
  out[64 + t] = __builtin_amdgcn_readlane(x, n);
  int w = x; asm volatile("v_writelane_b32 %0, %1, 3" : "+v"(w) : "s"(n)); out[128 + t] = w;
  out[192 + t] = __builtin_amdgcn_ds_bpermute(4 * (t * 7 + 1), x);
  out[256 + t] = __builtin_amdgcn_ds_permute(4 * (t ^ 5), x);
}
extern "C" __global__ void votes(const int* a, unsigned* out) {
  int t = threadIdx.x;
  unsigned long long m = __ballot(a[t] > 0);
  out[t] = (unsigned)m; out[64 + t] = (unsigned)(m >> 32); out[128 + t] = __any(a[t] > 1 << 29) + 2 * __all(a[t] > -1 << 30) + 4 * (__lane_id() == t % warpSize);
}
extern "C" __global__ void shuffles(const float* a, float* out, const double* b, double* out2) {
  int t = threadIdx.x;
  out[t] = __shfl_xor(a[t], 4) + __shfl_down(a[t], 3) * 2 + __shfl_up(a[t], 1) * 4 + __shfl(a[t], 9) * 8;
  out2[t] = __shfl_xor(b[t], 16) + __shfl_xor(b[t], (int)warpSize / 2);
}
"""


@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201", "gfx1030w", "gfx1100w", "gfx1201w"])
def test_lanes_read_vote_and_shuffle(chip: str) -> None:
    """What HIP calls so; but ds_permute and its kin move within 32 lanes on chips of two generations, whatever the wave."""
    m = module(BUILTINS, chip.removesuffix("w"), *(WAVE64 if chip.endswith("w") else ()))
    assert m.wave == (64 if chip.startswith("gfx9") or chip.endswith("w") else 32)
    half = 32 if chip in ("gfx1030w", "gfx1100w") else m.wave
    wave, lane, rng = m.wave, np.arange(m.wave), np.random.default_rng(2)
    x, out = rng.integers(-1 << 30, 1 << 30, wave).astype("i4"), np.zeros(320, "i4")
    run(m, "reads", 1, wave, x, out, 13)
    got = out.reshape(5, 64)[:, :wave]
    assert np.array_equal(got[0], np.where(lane >= 5, x[5], 0))
    assert np.array_equal(got[1], np.full(wave, x[13]))
    assert np.array_equal(got[2], np.where(lane == 3, 13, x))
    assert np.array_equal(got[3], x[lane // half * half + (lane * 7 + 1) % half])
    assert np.array_equal(got[4], x[lane ^ 5])
    votes = np.zeros(192, "u4")
    run(m, "votes", 1, wave, x, votes)
    mask = sum(1 << int(n) for n in np.flatnonzero(x > 0))
    assert votes[0] == mask & 0xffffffff
    assert votes[64] == mask >> 32
    assert (votes[128:128 + wave] == bool((x > 1 << 29).any()) + 2 * bool((x > -1 << 30).all()) + 4).all()
    a, b = rng.standard_normal(wave).astype("f4"), rng.standard_normal(wave)
    c, d = np.zeros(wave, "f4"), np.zeros(wave)
    run(m, "shuffles", 1, wave, a, c, b, d)
    down, up = np.where(lane + 3 < wave, lane + 3, lane), np.maximum(lane - 1, 0)
    np.testing.assert_allclose(c, a[lane ^ 4] + a[down] * 2 + a[up] * 4 + a[9] * 8, rtol=1e-5, atol=1e-6)
    assert np.array_equal(d, b[lane ^ 16] + b[lane ^ (wave // 2)])
