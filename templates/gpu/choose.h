// The functions by the type of their first operand, as overloads; the second is converted to it.  What ../cpu/choose.h says in C11.
template <class T> struct rlx_same { typedef T type; };
#define RLX_UNARY(name, T) RLX_INLINE T RLX_CAT(rlx_, name)(T x) { return RLX_CAT(RLX_CAT(rlx_, name), _##T)(x); }
#define RLX_BINARY(name, T) RLX_INLINE T RLX_CAT(rlx_pick_, name)(T a, T b) { return RLX_CAT(RLX_CAT(rlx_, name), _##T)(a, b); }
#define RLX_QUESTION(name, T) RLX_INLINE u8 RLX_CAT(rlx_, name)(T x) { return RLX_CAT(RLX_CAT(rlx_, name), _##T)(x); }
#define RLX_FIRST(name) template <class T> RLX_INLINE T RLX_CAT(rlx_, name)(T a, typename rlx_same<T>::type b) { return RLX_CAT(rlx_pick_, name)(a, b); }
#define RLX_OF_FLOAT(what, name) what(name, f32) what(name, f64)
#define RLX_OF_INTEGER(what, name) \
  what(name, i8) what(name, i16) what(name, i32) what(name, i64) what(name, u8) what(name, u16) what(name, u32) what(name, u64)
#define RLX_OF_REAL(what, name) RLX_OF_INTEGER(what, name) RLX_OF_FLOAT(what, name)
RLX_OF_FLOAT(RLX_UNARY, exp)
RLX_OF_FLOAT(RLX_UNARY, exp2)
RLX_OF_FLOAT(RLX_UNARY, expm1)
RLX_OF_FLOAT(RLX_UNARY, log)
RLX_OF_FLOAT(RLX_UNARY, log2)
RLX_OF_FLOAT(RLX_UNARY, log1p)
RLX_OF_FLOAT(RLX_UNARY, sqrt)
RLX_OF_FLOAT(RLX_UNARY, sin)
RLX_OF_FLOAT(RLX_UNARY, cos)
RLX_OF_FLOAT(RLX_UNARY, tan)
RLX_OF_FLOAT(RLX_UNARY, asin)
RLX_OF_FLOAT(RLX_UNARY, acos)
RLX_OF_FLOAT(RLX_UNARY, atan)
RLX_OF_FLOAT(RLX_UNARY, sinh)
RLX_OF_FLOAT(RLX_UNARY, cosh)
RLX_OF_FLOAT(RLX_UNARY, tanh)
RLX_OF_FLOAT(RLX_UNARY, erf)
RLX_OF_FLOAT(RLX_UNARY, floor)
RLX_OF_FLOAT(RLX_UNARY, ceil)
RLX_OF_FLOAT(RLX_UNARY, trunc)
RLX_OF_FLOAT(RLX_UNARY, rint)
RLX_OF_FLOAT(RLX_UNARY, sigmoid)
RLX_OF_FLOAT(RLX_UNARY, silu)
RLX_OF_FLOAT(RLX_UNARY, softplus)
RLX_OF_FLOAT(RLX_UNARY, gelu)
RLX_OF_FLOAT(RLX_UNARY, gelu_tanh)
RLX_OF_FLOAT(RLX_QUESTION, isnan)
RLX_OF_FLOAT(RLX_QUESTION, isinf)
RLX_OF_FLOAT(RLX_QUESTION, isfinite)
RLX_OF_FLOAT(RLX_BINARY, atan2) RLX_FIRST(atan2)
RLX_OF_FLOAT(RLX_BINARY, pow) RLX_FIRST(pow)
RLX_OF_REAL(RLX_UNARY, abs)
RLX_OF_REAL(RLX_UNARY, sign)
RLX_OF_REAL(RLX_BINARY, maximum) RLX_FIRST(maximum)
RLX_OF_REAL(RLX_BINARY, minimum) RLX_FIRST(minimum)
RLX_OF_REAL(RLX_BINARY, floor_div) RLX_FIRST(floor_div)
RLX_OF_REAL(RLX_BINARY, mod) RLX_FIRST(mod)
RLX_OF_INTEGER(RLX_BINARY, shl) RLX_FIRST(shl)
RLX_OF_INTEGER(RLX_BINARY, shr) RLX_FIRST(shr)
RLX_OF_INTEGER(RLX_UNARY, bit_not)
RLX_INLINE bool rlx_bit_not(bool a) { return !a; }

// Casts to integers: floats saturate, integers wrap.
#define RLX_CASTS(T) \
  RLX_INLINE T RLX_CAT(rlx_to_, T)(f32 x) { return RLX_CAT(rlx_f32_to_, T)(x); } \
  RLX_INLINE T RLX_CAT(rlx_to_, T)(f64 x) { return RLX_CAT(rlx_f64_to_, T)(x); } \
  template <class X> RLX_INLINE T RLX_CAT(rlx_to_, T)(X x) { return (T)x; }
#define RLX_FOUR_CASTS(T, C) \
  RLX_INLINE C RLX_CAT(rlx_to_, T)(f32 x) { return RLX_CAT(rlx_f32_to_, T)(x); } \
  RLX_INLINE C RLX_CAT(rlx_to_, T)(f64 x) { return RLX_CAT(rlx_f64_to_, T)(x); } \
  template <class X> RLX_INLINE C RLX_CAT(rlx_to_, T)(X x) { return RLX_CAT(rlx_load_, T)((C)x); }
RLX_FOUR_CASTS(i4, i8) RLX_FOUR_CASTS(u4, u8)
RLX_CASTS(i8) RLX_CASTS(i16) RLX_CASTS(i32) RLX_CASTS(i64) RLX_CASTS(u8) RLX_CASTS(u16) RLX_CASTS(u32) RLX_CASTS(u64)
