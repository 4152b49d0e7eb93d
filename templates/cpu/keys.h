/* A key that grows with x; 0.0 and -0.0 are equal, NaN is greatest, also of the keys that `flip` (all ones) turns round. */
RLX_INLINE u32 rlx_key_f32(f32 x, u32 flip) { const u32 u = rlx_bits_f32(x + 0.0f); return x != x ? (u32)-1 : ((i32)u < 0 ? ~u : u | (u32)1 << 31) ^ flip; }
RLX_INLINE u64 rlx_key_f64(f64 x, u64 flip) { const u64 u = rlx_bits_f64(x + 0.0); return x != x ? (u64)-1 : ((i64)u < 0 ? ~u : u | (u64)1 << 63) ^ flip; }
