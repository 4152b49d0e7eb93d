/* Integer operations as NumPy has them: they wrap, divide downwards, give 0 when dividing by 0, and take any shift. */
#define RLX_INTEGER(T, U, BITS, IS_SIGNED) \
  RLX_INLINE T rlx_floor_div_##T(T a, T b) { \
    const T by = b == 0 || (IS_SIGNED && b == (T)-1) ? 1 : b, q = (T)(a / by); /* the two that trap */ \
    return b == 0 ? 0 : IS_SIGNED && b == (T)-1 ? (T)(0 - (U)a) : (T)(q - (a % by != 0 && (a < 0) != (b < 0))); \
  } \
  RLX_INLINE T rlx_mod_##T(T a, T b) { \
    const T by = b == 0 || (IS_SIGNED && b == (T)-1) ? 1 : b, r = (T)(a % by); \
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r; \
  } \
  RLX_INLINE T rlx_shl_##T(T a, T by) { return (U)by < BITS ? (T)((U)a << by) : 0; } \
  RLX_INLINE T rlx_shr_##T(T a, T by) { return (U)by < BITS ? (T)(a >> by) : (T)(a < 0 ? -1 : 0); } \
  RLX_INLINE T rlx_bit_not_##T(T a) { return (T)~a; } \
  RLX_INLINE T rlx_abs_##T(T a) { return a < 0 ? (T)(0 - (U)a) : a; } \
  RLX_INLINE T rlx_sign_##T(T a) { return (T)((a > 0) - (a < 0)); } \
  RLX_INLINE T rlx_maximum_##T(T a, T b) { return a > b ? a : b; } \
  RLX_INLINE T rlx_minimum_##T(T a, T b) { return a < b ? a : b; }
RLX_INTEGER(i8, u8, 8, 1)
RLX_INTEGER(i16, u16, 16, 1)
RLX_INTEGER(i32, u32, 32, 1)
RLX_INTEGER(i64, u64, 64, 1)
RLX_INTEGER(u8, u8, 8, 0)
RLX_INTEGER(u16, u16, 16, 0)
RLX_INTEGER(u32, u32, 32, 0)
RLX_INTEGER(u64, u64, 64, 0)
RLX_INLINE _Bool rlx_bit_not_bool(_Bool a) { return !a; }
