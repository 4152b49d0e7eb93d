"""Memory as machine code sees it: every width, shared and private memory, atomics, calls, globals; and accesses that are wrong."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isa_device import WAVE64, module, run
from sim_device import needs_clang

from rlxpy.errors import KernelFault

pytestmark = needs_clang
KERNELS = """
#define KERNEL extern "C" __global__ void
struct Three { float x, y, z; };
struct alignas(16) Four { float x, y, z, w; };
KERNEL widths(const char* a, char* b, int n) {  // each width from its own eighth of the memory, bytes and shorts of both signs
  int t = threadIdx.x;
  if (t >= n) return;
  b[t] = (char)(a[t] + 1);
  ((short*)(b + 64))[t] = (short)(((const short*)(a + 64))[t] / 2 + ((const unsigned char*)a)[t] + ((const unsigned short*)(a + 64))[t] % 7);
  ((int*)(b + 192))[t] = ((const int*)(a + 192))[t] - 5;
  ((long long*)(b + 448))[t] = ((const long long*)(a + 448))[t] * 3;
  Three v = ((const Three*)(a + 960))[t];
  ((Three*)(b + 960))[t] = {v.z, v.x, v.y};
  Four w = ((const Four*)(a + 1728))[t];
  ((Four*)(b + 1728))[t] = {w.w, w.z, w.y, w.x};
}
KERNEL shared(const int* a, int* b) {
  __shared__ int words[128]; __shared__ signed char bytes[128]; __shared__ double doubles[128]; extern __shared__ int4 dynamic[];
  int t = threadIdx.x;
  words[t] = a[t]; bytes[t] = (signed char)a[t]; doubles[t] = a[t] * 0.5; dynamic[t] = {t, a[t], -t, 7};
  __syncthreads();
  int u = 127 - t;
  int4 v = dynamic[u];
  b[t] = words[u] + bytes[u] + (int)(doubles[u] * 2) + words[t ^ 1] + v.x + v.y + v.z + v.w;
}
KERNEL atomics(int* i, unsigned* u, float* f, double* d, unsigned long long* l, int n) {
  __shared__ int s[4]; __shared__ float sf[1];
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x < 4) s[threadIdx.x] = 0;
  if (threadIdx.x == 0) sf[0] = 0;
  __syncthreads();
  if (t < n) {
    atomicAdd(&i[0], 2); atomicSub(&i[1], 3); atomicMin(&i[2], t - 50); atomicMax(&i[3], t - 50); atomicAnd(&i[4], ~(1 << (t & 7))); atomicOr(&i[5], 1 << (t & 15)); atomicXor(&i[6], t);
    i[16 + t] = atomicAdd(&i[7], 1);
    atomicMin(&u[0], (unsigned)t + 3u); atomicMax(&u[1], (unsigned)t); u[16 + t] = atomicCAS(&u[2], (unsigned)t, (unsigned)t + 1u);
    atomicAdd(f, 0.25f); atomicAdd(d, 0.125); atomicAdd(&l[0], 1ull << 33); atomicMax(&l[1], (unsigned long long)t << 40); atomicExch(&l[2], 9ull);
    atomicAdd(&s[t & 3], t); atomicAdd(sf, 0.5f);
  }
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd(&i[8 + threadIdx.x], s[threadIdx.x]);
  if (threadIdx.x == 0) atomicAdd(&f[1], sf[0]);
}
KERNEL flat(int* a, int* b) {  // pointers that may be global, shared or private
  __shared__ int s[64];
  int t = threadIdx.x, mine[4] = {t, t + 1, t + 2, t + 3};
  s[t] = 0;
  __syncthreads();
  volatile int* p = b[t] == 1 ? (volatile int*)&s[t] : b[t] == 2 ? (volatile int*)&mine[t & 3] : (volatile int*)&a[t];
  *p = *p + 5;
  __syncthreads();
  b[t] = s[t] * 1000 + mine[t & 3];
}
__device__ int table[8] = {1, 2, 4, 8, 16, 32, 64, 128};
__device__ int* pointer = &table[3];
__constant__ float halves[4] = {0.5f, 1.5f, 2.5f, 3.5f};
KERNEL globals(int* a, float* f) { int t = threadIdx.x; a[t] = table[t & 7] + *pointer; f[t] = halves[t & 3]; __syncthreads(); if (t == 0) table[0] += 1; }
__device__ __noinline__ float recursive(float x, int depth) {
  float local[8];
  for (int j = 0; j < 8; j++) local[j] = x * j;
  float r = local[depth & 7];
  return depth > 2 ? r + recursive(x * 0.5f, depth - 1) : r;
}
__device__ __noinline__ float plus(float x, int depth) { return x + depth; }
KERNEL calls(const float* a, const int* depth, float* out) {
  int t = threadIdx.x;
  float (*f)(float, int) = depth[t] & 1 ? recursive : plus;
  out[t] = f(a[t], depth[t]) + recursive(a[t], 3);
}
typedef float Many __attribute__((ext_vector_type(32)));
struct Words { int v[32]; };
KERNEL indexed(const float* a, float* out, const int* ks, int k) {  // registers chosen by one index for all lanes, and by one a lane
  int t = threadIdx.x;
  Many x;
  for (int j = 0; j < 32; j++) x[j] = a[t * 32 + j];
  float r = x[k & 31];
  x[(k + 1) & 31] = r * 2;
  out[t] = r + x[ks[t] & 31] * 4;
  x[(ks[t] + 2) & 31] = 7;
  float s = 0;
  for (int j = 0; j < 32; j++) s += x[j] * j;
  out[64 + t] = s;
}
KERNEL indexed_words(Words w, int* out, int k) { out[threadIdx.x] = w.v[k & 31] + threadIdx.x; }
KERNEL private_array(const int* a, int* b, int n) {
  int t = threadIdx.x, local[32];
  for (int j = 0; j < 32; j++) local[j] = a[(t + j) % n];
  for (int j = 0; j < 8; j++) { int k = local[j] & 31, q = local[k]; local[k] = local[31 - k]; local[31 - k] = q; }
  int s = 0;
  for (int j = 0; j < 32; j++) s = s * 31 + local[j];
  b[t] = s;
}
"""
VARIANTS: tuple[Any, ...] = (
    ("gfx906",), ("gfx90a",), ("gfx90a", "-O0"), ("gfx942",), ("gfx942", "-O0"), ("gfx950",), ("gfx1030",), ("gfx1030", "-O0"), ("gfx1100", *WAVE64), ("gfx1151",),
    ("gfx1201",), ("gfx1201", "-O0"))
variants = pytest.mark.parametrize("build", VARIANTS, ids=" ".join)
RNG = np.random.default_rng(11)


@variants
def test_every_width_is_loaded_and_stored(build: tuple[str, ...]) -> None:
    a, b = RNG.integers(0, 256, 2752).astype("u1"), np.zeros(2752, "u1")
    run(module(KERNELS, *build), "widths", 1, 64, a, b, 61)
    n, bytes_, shorts = 61, a[:64].view("i1"), a[64:192].view("i2")
    assert np.array_equal(b[:n].view("i1"), bytes_[:n] + np.int8(1))
    want = np.trunc(shorts / 2).astype("i4") + a[:64] + shorts.view("u2") % 7
    assert np.array_equal(b[64:192].view("i2")[:n], want.astype("i2")[:n])
    assert np.array_equal(b[192:448].view("i4")[:n], a[192:448].view("i4")[:n] - 5)
    assert np.array_equal(b[448:960].view("i8")[:n], a[448:960].view("i8")[:n] * 3)
    assert np.array_equal(b[960:1728].reshape(64, 3, 4)[:n], a[960:1728].reshape(64, 3, 4)[:n, [2, 0, 1]])
    assert np.array_equal(b[1728:2752].reshape(64, 4, 4)[:n], a[1728:2752].reshape(64, 4, 4)[:n, ::-1])
    assert not b[n:64].any()


@variants
def test_shared_memory_of_every_type_static_and_dynamic(build: tuple[str, ...]) -> None:
    a, b = RNG.integers(-1000, 1000, 128).astype("i4"), np.zeros(128, "i4")
    for _ in range(2):
        report = run(module(KERNELS, *build), "shared", 1, 128, a, b, shared_nbytes=128 * 16)
        u, t = a[::-1], np.arange(128)
        assert np.array_equal(b, u + u.astype("i1") + u + a[t ^ 1] + (127 - t) + u - (127 - t) + 7)
        assert report.barriers == 1


@variants
def test_atomics_of_global_and_shared_memory(build: tuple[str, ...]) -> None:
    n, t = 150, np.arange(150)
    i, u, f, d, q = np.zeros(200, "i4"), np.zeros(200, "u4"), np.zeros(2, "f4"), np.zeros(1), np.zeros(3, "u8")
    i[4], u[0] = -1, 1000
    run(module(KERNELS, *build), "atomics", 3, 64, i, u, f, d, q, n)
    assert i[:8].tolist() == [2 * n, -3 * n, -50, n - 51, ~255, 0xffff, int(np.bitwise_xor.reduce(t)), n]
    assert sorted(i[16:16 + n]) == t.tolist()
    assert u[:2].tolist() == [3, n - 1]
    assert i[8:12].tolist() == [int(t[t & 3 == k].sum()) for k in range(4)]
    assert (f[0], f[1], d[0]) == (n / 4, n / 2, n / 8)
    assert q.tolist() == [n << 33, (n - 1) << 40, 9]
    assert u[2] >= 1
    assert u[16] == 0


@variants
def test_flat_pointers_reach_global_shared_and_private_memory(build: tuple[str, ...]) -> None:
    kind = RNG.integers(0, 3, 64).astype("i4")
    a, b, t = np.arange(64, dtype="i4") * 10, kind.copy(), np.arange(64)
    run(module(KERNELS, *build), "flat", 1, 64, a, b)
    assert np.array_equal(a, t * 10 + 5 * (kind == 0))
    assert np.array_equal(b, 5000 * (kind == 1) + t + (t & 3) + 5 * (kind == 2))


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1201"])
def test_variables_of_the_module_are_there_and_live_from_launch_to_launch(chip: str) -> None:
    from rlxpy.backends.gpu.sim.isa import load

    m, t = load(module(KERNELS, chip).object.elf.b.data), np.arange(64)  # a module of its own: it is written to
    table = 1 << (t & 7)
    for step in range(2):
        a, f = np.zeros(64, "i4"), np.zeros(64, "f4")
        run(m, "globals", 1, 64, a, f)
        assert np.array_equal(a, table + 8 + step * (t & 7 == 0))
        assert np.array_equal(f, (t & 3) + 0.5)


def recursive(x: float, depth: int) -> float:
    return x * (depth & 7) + (recursive(x / 2, depth - 1) if depth > 2 else 0)


@variants
def test_calls_and_recursion_keep_private_memory_apart(build: tuple[str, ...]) -> None:
    a, depth, out = RNG.standard_normal(96).astype("f4"), RNG.integers(0, 8, 96).astype("i4"), np.zeros(96, "f4")
    run(module(KERNELS, *build), "calls", 1, 96, a, depth, out)
    want = [(recursive(x, n) if n & 1 else x + n) + recursive(x, 3) for x, n in zip(a.tolist(), depth.tolist(), strict=True)]
    np.testing.assert_allclose(out, want, rtol=1e-5)


@variants
def test_private_arrays_are_indexed_by_values(build: tuple[str, ...]) -> None:
    n, a, b = 77, RNG.integers(-1 << 31, 1 << 31, 77).astype("i4"), np.zeros(70, "i4")
    run(module(KERNELS, *build), "private_array", 1, 70, a, b, n)
    for t in (0, 1, 63, 64, 69):
        local = [int(a[(t + j) % n]) for j in range(32)]
        for j in range(8):
            k = local[j] & 31
            local[k], local[31 - k] = local[31 - k], local[k]
        s = 0
        for v in local:
            s = (s * 31 + v) & 0xffffffff
        assert int(b[t]) & 0xffffffff == s


@variants
def test_registers_are_indexed_by_values(build: tuple[str, ...]) -> None:
    m, a, t = module(KERNELS, *build), RNG.integers(-50, 50, (64, 32)).astype("f4"), np.arange(64)
    ks, out = RNG.integers(0, 32, 64).astype("i4"), np.zeros(128, "f4")
    for k in (0, 9, 31):
        run(m, "indexed", 1, 64, a, out, ks, k)
        x, first = a.copy(), a[:, k]
        x[:, (k + 1) % 32] = first * 2
        assert np.array_equal(out[:64], first + x[t, ks] * 4)
        x[t, (ks + 2) % 32] = 7
        assert np.array_equal(out[64:], x @ np.arange(32, dtype="f4"))
        words, got = RNG.integers(-1 << 30, 1 << 30, 32).astype("i4"), np.zeros(64, "i4")
        m.launch("indexed_words", (1, 1, 1), (64, 1, 1), words.tobytes() + got.ctypes.data.to_bytes(8, "little") + k.to_bytes(4, "little"), ranges=((got.ctypes.data, got.nbytes),))
        assert np.array_equal(got, words[k] + t)


BUFFERS = """
extern "C" __global__ void buffers(int* a, int* b, int n) {  // n: bytes that the resources have; what lies beyond loads as 0 and stores nothing
  int t = threadIdx.x;
#if defined(__GFX12__)
  int flags = 0x31000000 | 0x00027000;
#else
  int flags = 0x00027000;
#endif
  __amdgpu_buffer_rsrc_t from = __builtin_amdgcn_make_buffer_rsrc(a, 0, n, flags), to = __builtin_amdgcn_make_buffer_rsrc(b, 0, n, flags);
  int x = __builtin_amdgcn_raw_buffer_load_b32(from, 4 * t, 0, 0) + __builtin_amdgcn_raw_buffer_load_b16(from, 4 * t, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32(x + 1, to, 4 * t, 0, 0);
}
"""


@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_buffers_end_where_their_resource_says(chip: str) -> None:
    a, b = RNG.integers(0, 1 << 15, 64).astype("i4"), np.full(64, -1, "i4")
    run(module(BUFFERS, chip), "buffers", 1, 64, a, b, 40 * 4)
    assert np.array_equal(b, np.where(np.arange(64) < 40, 2 * a + 1, -1))


SPLIT = """
extern "C" __global__ void split(const int* a, int* out, int waits) {
  __shared__ int s[96];
  int t = threadIdx.x;
  s[t] = a[t];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  if (t >= waits) __builtin_amdgcn_s_barrier_signal(-1);
  int x = a[t] * 3;
  __builtin_amdgcn_s_barrier_wait(-1);
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  out[t] = s[95 - t] + x;
}
"""


def test_a_barrier_in_two_halves_opens_when_all_have_signalled() -> None:
    m, a, out = module(SPLIT, "gfx1201"), RNG.integers(0, 99, 96).astype("i4"), np.zeros(96, "i4")
    run(m, "split", 1, 96, a, out, 0)
    assert np.array_equal(out, a[::-1] + 3 * a)
    with pytest.raises(KernelFault, match="waits for a barrier that cannot open") as caught:
        run(m, "split", 1, 96, a, out, 32)
    assert caught.value.kind == "deadlock"


WRONG = """
#define KERNEL extern "C" __global__ void
KERNEL beyond_shared(int* a, int k) { __shared__ int s[32]; s[threadIdx.x] = 1; __syncthreads(); a[threadIdx.x] = s[threadIdx.x + k]; }
KERNEL unwritten(int* a, int k) { __shared__ int s[32]; if ((int)threadIdx.x != k) s[threadIdx.x] = 1; __syncthreads(); a[threadIdx.x] = s[31 - threadIdx.x]; }
KERNEL unaligned(char* a, int k) { atomicAdd((int*)(a + k), 1); }
KERNEL beyond_private(int* a, int k) { volatile int v[4]; for (int j = 0; j < 4; j++) v[j] = j; v[k] = 3; a[threadIdx.x] = v[a[threadIdx.x] & 3]; }
KERNEL two_barriers(int* a, int k) {
  __shared__ int s[128]; s[threadIdx.x] = threadIdx.x;
  if ((int)threadIdx.x < k) { __syncthreads(); a[threadIdx.x] = s[threadIdx.x ^ 1]; } else { __syncthreads(); a[threadIdx.x] = 2 * s[threadIdx.x ^ 1]; }
}
KERNEL forever(int* a, int k) { while (((volatile int*)a)[0] != k) ; }
KERNEL trapped(int* a, int k) { if (a[threadIdx.x] == k) __builtin_trap(); }
KERNEL wild(int* a, int k) { ((void (*)(int))(size_t)(unsigned)a[0])(k); }
KERNEL before(int* a, int k) { a[(int)threadIdx.x - k] = 1; }
KERNEL overlapping(int* a, int k) { __shared__ int s[128]; int t = threadIdx.x; s[t] = t; __syncthreads(); s[(t + k) & 127] = t; __builtin_amdgcn_wave_barrier(); a[t] = s[t]; }
KERNEL counted(int* a, int k) { __shared__ int s[4]; int t = threadIdx.x; if (t < 4) s[t] = 0; __syncthreads(); atomicAdd(&s[t & 3], 1); if (k) __syncthreads(); a[t] = s[t & 3]; }
KERNEL rounding(float* a, int k) { __builtin_amdgcn_s_setreg(0x0801, k); a[0] = a[0] * 3.0f; }
"""


@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize(("kernel", "block", "k", "kind", "said"), [
    ("beyond_shared", 32, 1, "shared memory out of range", "4 bytes at 128, a block has 128"),
    ("unwritten", 32, 5, "uninitialised", "4 bytes at 20"),
    ("unaligned", 1, 2, "unaligned", "no multiple of 4"),
    ("beyond_private", 32, 1 << 20, "scratch out of range", "a lane has"),
    ("two_barriers", 128, 64, "divergent barrier", "an earlier one at pc 0x"),
    ("forever", 32, 7, "endless", "1048576 are allowed"),
    ("trapped", 32, 0, "trap", "s_trap 2"),
    ("wild", 1, 1, "wild jump", "to 0x"),
    ("before", 32, 4, "out of range", "16 bytes before the beginning of"),
    ("overlapping", 128, 64, "race", "were touched by wave"),
    ("counted", 128, 0, "race", "were touched by several waves"),
    ("rounding", 1, 3, "rounding mode", "only rounding to nearest"),
])
def test_each_kind_of_fault_is_named(chip: str, kernel: str, block: int, k: int, kind: str, said: str) -> None:
    a = np.zeros(128, "i4")
    with pytest.raises(KernelFault) as caught:
        run(module(WRONG, chip), kernel, 1, block, a.view("f4") if kernel == "rounding" else a, k, budget=1 << 20)
    assert caught.value.kind == kind, caught.value
    assert said in caught.value.why
    assert (caught.value.kernel, caught.value.block) == (kernel, (0, 0, 0))


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1201"])
def test_the_same_kernels_are_right_where_their_sizes_are(chip: str) -> None:
    m = module(WRONG, chip)
    right = (("beyond_shared", 32, 0), ("unwritten", 32, -1), ("unaligned", 1, 4), ("beyond_private", 32, 2), ("two_barriers", 128, 0), ("forever", 32, 0), ("trapped", 32, 1),
             ("before", 32, 0), ("overlapping", 128, 0), ("counted", 128, 1))
    for kernel, block, k in right:
        run(m, kernel, 1, block, np.zeros(128, "i4"), k)
