// What the threads of a block make together.  `room` is shared memory for RLX_WAVES values; every thread gets the result.  The order of
// additions depends on the block and the wave alone: two runs give the same bits.
#define RLX_WAVES 32  // of a block, at most: 1024 threads of 32 lanes
struct rlx_sum { template <class T> static __device__ T of(T a, T b) { return a + b; } };
struct rlx_prod { template <class T> static __device__ T of(T a, T b) { return a * b; } };
struct rlx_max { template <class T> static __device__ T of(T a, T b) { return b > a ? b : a; } };
struct rlx_min { template <class T> static __device__ T of(T a, T b) { return b < a ? b : a; } };
struct rlx_or { template <class T> static __device__ T of(T a, T b) { return a | b; } };
struct rlx_and { template <class T> static __device__ T of(T a, T b) { return a & b; } };

RLX_INLINE i32 rlx_xor_lane(i32 v, int lanes) { return RLX_SHUFFLE_XOR(v, lanes); }
RLX_INLINE u32 rlx_xor_lane(u32 v, int lanes) { return (u32)RLX_SHUFFLE_XOR((i32)v, lanes); }
RLX_INLINE f32 rlx_xor_lane(f32 v, int lanes) { return rlx_of_bits_f32(rlx_xor_lane(rlx_bits_f32(v), lanes)); }
RLX_INLINE u64 rlx_xor_lane(u64 v, int lanes) { return (u64)rlx_xor_lane((u32)(v >> 32), lanes) << 32 | rlx_xor_lane((u32)v, lanes); }
RLX_INLINE i64 rlx_xor_lane(i64 v, int lanes) { return (i64)rlx_xor_lane((u64)v, lanes); }
RLX_INLINE f64 rlx_xor_lane(f64 v, int lanes) { return rlx_of_bits_f64(rlx_xor_lane(rlx_bits_f64(v), lanes)); }
RLX_INLINE bool rlx_xor_lane(bool v, int lanes) { return rlx_xor_lane((i32)v, lanes) != 0; }
RLX_INLINE i16 rlx_xor_lane(i16 v, int lanes) { return (i16)rlx_xor_lane((i32)v, lanes); }
RLX_INLINE u16 rlx_xor_lane(u16 v, int lanes) { return (u16)rlx_xor_lane((i32)v, lanes); }
RLX_INLINE i8 rlx_xor_lane(i8 v, int lanes) { return (i8)rlx_xor_lane((i32)v, lanes); }
RLX_INLINE u8 rlx_xor_lane(u8 v, int lanes) { return (u8)rlx_xor_lane((i32)v, lanes); }
template <class T> RLX_INLINE rlx_complex<T> rlx_xor_lane(rlx_complex<T> v, int lanes) { return rlx_complex<T>(rlx_xor_lane(v.re, lanes), rlx_xor_lane(v.im, lanes)); }

template <class Op, class T> RLX_INLINE T rlx_wave_fold(T v) {
  for (int lanes = RLX_WAVE / 2; lanes > 0; lanes >>= 1) v = Op::of(v, rlx_xor_lane(v, lanes));
  return v;
}
// Over so many neighbouring lanes, a power of two and at most 32.
template <class Op, int LANES, class T> RLX_INLINE T rlx_lanes_fold(T v) {
  for (int lanes = LANES / 2; lanes > 0; lanes >>= 1) v = Op::of(v, rlx_xor_lane(v, lanes));
  return v;
}
// Blocks of whole waves, in one dimension.
template <class Op, class T> RLX_INLINE T rlx_block_fold(T v, T *room) {
  v = rlx_wave_fold<Op>(v);
  const int wave = threadIdx.x / RLX_WAVE, waves = blockDim.x / RLX_WAVE;
  __syncthreads();  // the room may still be read
  if (threadIdx.x % RLX_WAVE == 0) room[wave] = v;
  __syncthreads();
  T all = room[0];
  for (int k = 1; k < waves; k++) all = Op::of(all, room[k]);
  return all;
}
// The sum of this thread's value and of those before it; `room` is for a value of each thread and holds all their sums then.
template <class T> RLX_INLINE T rlx_block_scan(T v, T *room) {
  for (unsigned by = 1; by < blockDim.x; by *= 2) {
    __syncthreads();
    room[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x >= by) v = (T)(room[threadIdx.x - by] + v);
  }
  __syncthreads();
  room[threadIdx.x] = v;
  __syncthreads();
  return v;
}

// The first index out of range by node and place among the indices, whichever thread meets it first: ~(node << 40 | place), the index, and how
// many there are; 0 where there is none.  Last the lock of who writes: a lane has it and leaves it in one turn of the loop, so that its wave goes on.
RLX_INLINE void rlx_fault(u64 *fault, i64 node, i64 place, i64 index, i64 bound) {
  const u64 mine = ~((u64)node << 40 | (u64)place);
  if (atomicMax(fault, mine) >= mine) return;
  for (bool noted = false; !noted;)
    if (atomicExch(fault + 3, 1ull) == 0) {
      __threadfence();
      if (atomicMax(fault, 0ull) == mine) { atomicExch(fault + 1, (u64)index); atomicExch(fault + 2, (u64)bound); }
      __threadfence();
      atomicExch(fault + 3, 0ull);
      noted = true;
    }
}
