/* Mathematics of one float type F, as f32.h and f64.h set it up.  Included once for each. */
#define NAME(f) RLX_CAT(rlx_##f##_, F)
#define SIGN ((U)1 << (sizeof(F) * 8 - 1))
#define INFINITE ((F)__builtin_inf())
#define NOT_A_NUMBER ((F)__builtin_nan(""))
#define ONE ((U)BIAS << MANTISSA)
#define LOWEST (-NAME(of_bits)(NAME(bits)(INFINITE) - 1))

RLX_INLINE F NAME(abs)(F x) { return NAME(of_bits)(NAME(bits)(x) & ~SIGN); }
RLX_INLINE F NAME(copysign)(F x, F sign) { return NAME(of_bits)((NAME(bits)(x) & ~SIGN) | (NAME(bits)(sign) & SIGN)); }
RLX_INLINE F NAME(sign)(F x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }
RLX_INLINE F NAME(maximum)(F a, F b) { return a > b || a != a ? a : b; }
RLX_INLINE F NAME(minimum)(F a, F b) { return a < b || a != a ? a : b; }
RLX_INLINE u8 NAME(isnan)(F x) { return x != x; }
RLX_INLINE u8 NAME(isinf)(F x) { return NAME(abs)(x) == INFINITE; }
RLX_INLINE u8 NAME(isfinite)(F x) { return NAME(abs)(x) < INFINITE; }

#if defined(__SSE4_1__) || defined(__aarch64__) || defined(RLX_GPU)
RLX_INLINE F NAME(rint)(F x) { return ROUND_TO(rint)(x); }
RLX_INLINE F NAME(floor)(F x) { return ROUND_TO(floor)(x); }
RLX_INLINE F NAME(ceil)(F x) { return ROUND_TO(ceil)(x); }
RLX_INLINE F NAME(trunc)(F x) { return ROUND_TO(trunc)(x); }
#else
RLX_INLINE F NAME(rint)(F x) {
  const F whole = (F)((U)1 << MANTISSA), a = NAME(abs)(x);  /* from here on every float is whole */
  return a < whole ? NAME(copysign)(a + whole - whole, x) : x;
}
RLX_INLINE F NAME(floor)(F x) { const F r = NAME(rint)(x); return NAME(copysign)(r > x ? r - 1 : r, x); }
RLX_INLINE F NAME(ceil)(F x) { const F r = NAME(rint)(x); return NAME(copysign)(r < x ? r + 1 : r, x); }
RLX_INLINE F NAME(trunc)(F x) { return NAME(copysign)(NAME(floor)(NAME(abs)(x)), x); }
#endif
RLX_INLINE F NAME(sqrt)(F x) { return SQRT(x); }

/* ---- exponentials: x = n ln 2 + r, or x = n + r */
/* p 2^n of t = ROUNDER + 2 BIAS + n, in two steps, so that subnormal results round once */
RLX_INLINE F NAME(scaled)(F p, F t) {
  const U twice = NAME(bits)(t), half = twice >> 1;  /* what they have above an exponent is shifted out */
  return p * NAME(of_bits)(half << MANTISSA) * NAME(of_bits)((twice - half) << MANTISSA);
}
RLX_INLINE F NAME(exp_halved)(F x, U halvings) {
  const F zero = ROUNDER + 2 * BIAS - halvings, c = x > EXP_MOST ? EXP_MOST : x;
  const F t = NAME(fma)(c, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, c));
  const F y = NAME(scaled)(NAME(fma)(r * r, NAME(exp_p)(r), r) + 1, t);
  return x < EXP_LEAST ? 0 : y;
}
RLX_INLINE F NAME(exp)(F x) { return NAME(exp_halved)(x, 0); }
RLX_INLINE F NAME(exp2)(F x) {
  const F zero = ROUNDER + 2 * BIAS, c = x > EXP2_MOST ? EXP2_MOST : x, t = c + zero, r = c - (t - zero), y = NAME(scaled)(NAME(fma)(r, NAME(exp2_p)(r), 1), t);
  return x < EXP2_LEAST ? 0 : y;
}
/* 2^(n + less) of t = ROUNDER + BIAS + less + n */
RLX_INLINE F NAME(power)(F t) { return NAME(of_bits)(NAME(bits)(t) << MANTISSA); }
/* (exp(x) - 1) / 2 = 2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2), EXPM1_LEAST <= x <= EXPM1_MOST */
RLX_INLINE F NAME(expm1_half)(F x) {
  const F zero = ROUNDER + BIAS - 1, t = NAME(fma)(x, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, x)), s = NAME(power)(t);
  return NAME(fma)(s, NAME(fma)(r * r, NAME(exp_p)(r), r), s - (F)0.5);
}
RLX_INLINE F NAME(expm1)(F x) {
  const F y = 2 * NAME(expm1_half)(x > EXPM1_MOST ? EXPM1_MOST : x);
  return x < EXPM1_LEAST ? -1 : NAME(abs)(x) < 4 * LEAST_NORMAL ? x : y;
}
RLX_INLINE F NAME(tanh)(F x) {
  const F a = NAME(abs)(x), h = NAME(expm1_half)(a > TANH_MOST ? 2 * TANH_MOST : 2 * a);
  return NAME(copysign)(h / (h + 1), x);
}
RLX_INLINE F NAME(cosh)(F x) { const F e = NAME(exp_halved)(NAME(abs)(x), 1); return e + (F)0.25 / e; }
RLX_INLINE F NAME(sinh)(F x) {
  const F a = NAME(abs)(x), e = NAME(exp_halved)(a, 1), z = a * a, near = NAME(fma)(a * z, NAME(sinh_p)(z), a);
  return NAME(copysign)(a < 1 ? near : e - (F)0.25 / e, x);
}
/* 2^-q, 0 <= q < BIAS */
RLX_INLINE F NAME(exp2_of_minus)(F q) {
  const F zero = ROUNDER + BIAS, t = zero - q, r = (zero - t) - q;
  return NAME(fma)(r, NAME(exp2_p)(r), 1) * NAME(power)(t);
}
RLX_INLINE F NAME(erf)(F x) {
  F a = NAME(abs)(x);
  a = a > ERF_MOST ? ERF_MOST : a;
  const F z = a * a, near = NAME(fma)(a, NAME(erf_near_p)(z), a), far = 1 - NAME(exp2_of_minus)(NAME(erf_far_p)(a));
  return NAME(copysign)(a < 1 ? near : far, x);
}

/* ---- logarithms: x = 2^k (1 + f), f between sqrt(1/2) - 1 and sqrt(2) - 1; s = f / (2 + f); after fdlibm's e_log.c and e_log2.c */
typedef struct { F k, f; } NAME(parts);
RLX_INLINE NAME(parts) NAME(parts_of)(F x) {
  const F wide = (F)((U)1 << (MANTISSA + 1));
  const U u = NAME(bits)(x < LEAST_NORMAL ? x * wide : x) + (ONE - SQRT_HALF);
  const F k = NAME(of_bits)(NAME(bits)((F)ROUNDER) + (u >> MANTISSA)) - (ROUNDER + BIAS);
  const F m = NAME(of_bits)((u & (((U)1 << MANTISSA) - 1)) + SQRT_HALF);
  const NAME(parts) p = {x < LEAST_NORMAL ? k - (MANTISSA + 1) : k, m - 1};
  return p;
}
/* What a logarithm of x is where the formula does not say. */
RLX_INLINE F NAME(log_ends)(F x, F y) { return x > 0 ? (x < INFINITE ? y : x) : x == 0 ? -INFINITE : NOT_A_NUMBER; }
RLX_INLINE F NAME(log_sum)(NAME(parts) p, F more) {
  const F s = p.f / (2 + p.f), z = s * s, h = (F)0.5 * p.f * p.f, r = s * NAME(fma)(z, NAME(log_p)(z), h);
  return NAME(fma)(p.k, LN2_HI, p.f - (h - (r + NAME(fma)(p.k, LN2_LO, more))));
}
RLX_INLINE F NAME(log)(F x) { return NAME(log_ends)(x, NAME(log_sum)(NAME(parts_of)(x), 0)); }
RLX_INLINE F NAME(log1p_of)(F x, F u) { /* u = 1 + x; what that lost is added back */
  const F lost = u > 2 ? 1 - (u - x) : x - (u - 1);
  return NAME(log_sum)(NAME(parts_of)(u), lost / u);
}
RLX_INLINE F NAME(log1p)(F x) {
  const F u = 1 + x, y = NAME(log_ends)(u, NAME(log1p_of)(x, u));
  return NAME(abs)(x) < LEAST_NORMAL ? x : y;
}
RLX_INLINE F NAME(log2)(F x) {
  const NAME(parts) p = NAME(parts_of)(x);
  const F s = p.f / (2 + p.f), z = s * s, h = (F)0.5 * p.f * p.f;
  const F hi = NAME(of_bits)(NAME(bits)(p.f - h) & HEAD), lo = ((p.f - hi) - h) + s * NAME(fma)(z, NAME(log_p)(z), h);
  const F a = hi * LOG2E_HI, b = NAME(fma)(lo + hi, LOG2E_LO, lo * LOG2E_HI), w = p.k + a;
  return NAME(log_ends)(x, w + (((p.k - w) + a) + b));
}

/* ---- circular functions: an angle is r within an eighth of a turn and `quarters` quarter turns */
RLX_INLINE F NAME(turned)(NAME(angle) a, U quarters) { /* sin(a + quarters quarter turns) */
  const U q = a.quarters + quarters;
  const F y = q & 1 ? NAME(cos_near)(a) : NAME(sin_near)(a);
  return NAME(of_bits)(NAME(bits)(y) ^ ((q & 2) << (sizeof(F) * 8 - 2)));
}
RLX_INLINE F NAME(sin)(F x) {
  const F y = NAME(turned)(NAME(angle_of)(NAME(abs)(x)), 0);
  return NAME(of_bits)(NAME(bits)(y) ^ (NAME(bits)(x) & SIGN));
}
RLX_INLINE F NAME(cos)(F x) { return NAME(turned)(NAME(angle_of)(NAME(abs)(x)), 1); }
RLX_INLINE F NAME(tan)(F x) {
  const NAME(angle) a = NAME(angle_of)(NAME(abs)(x));
  const F s = NAME(sin_near)(a), c = NAME(cos_near)(a), y = a.quarters & 1 ? -c / s : s / c;
  return NAME(of_bits)(NAME(bits)(y) ^ (NAME(bits)(x) & SIGN));
}

/* asin(a) of 0 <= a <= 1/2, or half of acos(a) above, which is asin(sqrt((1 - a) / 2)) */
RLX_INLINE F NAME(asin_part)(F a) {
  const F z = a > (F)0.5 ? (1 - a) * (F)0.5 : a * a, s = a > (F)0.5 ? NAME(sqrt)(z) : a;
  return NAME(fma)(s * z, NAME(asin_p)(z), s);
}
RLX_INLINE F NAME(asin)(F x) {
  const F a = NAME(abs)(x), p = NAME(asin_part)(a);
  return NAME(copysign)(a > (F)0.5 ? PI / 2 - (2 * p - PI_LO / 2) : p, x);
}
RLX_INLINE F NAME(acos)(F x) {
  const F a = NAME(abs)(x), p = NAME(asin_part)(a);
  const F far = x > 0 ? 2 * p : PI - (2 * p - PI_LO), near = PI / 2 - (NAME(copysign)(p, x) - PI_LO / 2);
  return a > (F)0.5 ? far : near;
}
RLX_INLINE F NAME(atan2)(F y, F x) {
  const F a = NAME(abs)(x), b = NAME(abs)(y), less = b > a ? a : b, more = b > a ? b : a;
  const F t = less == more ? (more == 0 ? 0 : 1) : less / more, z = t * t, p = NAME(fma)(t * z, NAME(atan_p)(z), t);
  const F half = b > a ? PI / 2 - (p - PI_LO / 2) : p;
  return NAME(copysign)(NAME(bits)(x) & SIGN ? PI - (half - PI_LO) : half, y);
}
RLX_INLINE F NAME(atan)(F x) { return NAME(atan2)(x, 1); }

/* ---- powers, remainders */
RLX_INLINE F NAME(pow)(F x, F y) {
  const F a = NAME(abs)(x), r = NAME(power_of)(a, y > 0x1p66f ? 0x1p66f : y < -0x1p66f ? -0x1p66f : y);  /* which 0, 1 or infinity is settled */
  const F half = y * (F)0.5, negated = NAME(of_bits)(NAME(bits)(r) ^ (NAME(bits)(x) & SIGN));
  const F signed_ = NAME(rint)(y) == y && NAME(rint)(half) != half ? negated : r;  /* y is odd */
  const F real = x < 0 && a < INFINITE && NAME(rint)(y) != y ? NOT_A_NUMBER : signed_;
  return y == 0 || x == 1 ? 1 : x != x || y != y ? NOT_A_NUMBER : real;
}
RLX_INLINE F NAME(fmod)(F x, F y) {
  const F a = NAME(abs)(x), b = NAME(abs)(y);
  if (!(a < INFINITE) || !(b > 0)) return NOT_A_NUMBER;
  if (a < b) return x;
  const U hidden = (U)1 << MANTISSA, ua = NAME(bits)(a), ub = NAME(bits)(b), ea = ua >> MANTISSA, eb = ub >> MANTISSA;
  const U least = eb ? eb : 1;  /* subnormals have the exponent of the least normal numbers, and no hidden bit */
  const u64 by = (ub & (hidden - 1)) | (eb ? hidden : 0);
  u64 rest = ((ua & (hidden - 1)) | (ea ? hidden : 0)) % by;
  for (U left = (ea ? ea : 1) - least; left;) {
    const U step = left < 63 - MANTISSA ? left : 63 - MANTISSA;
    rest = (rest << step) % by, left -= step;
  }
  return NAME(copysign)((F)rest / (F)hidden * NAME(of_bits)(least << MANTISSA), x);
}
RLX_INLINE F NAME(mod)(F a, F b) {
  const F r = NAME(fmod)(a, b);
  return r == 0 ? NAME(copysign)(0, b) : (r < 0) != (b < 0) ? r + b : r;
}
RLX_INLINE F NAME(floor_div)(F a, F b) {
  if (b == 0) return a / b;
  const F r = NAME(fmod)(a, b), q = (a - r) / b, d = r != 0 && (r < 0) != (b < 0) ? q - 1 : q, low = NAME(floor)(d);
  return d == 0 ? NAME(copysign)(0, a / b) : d - low > (F)0.5 ? low + 1 : low;
}

/* ---- activations, as rlxpy/ir/refs.py has them */
/* -x, but not beyond the arguments whose exponential is the most that counts */
RLX_INLINE F NAME(opposite)(F x) { return -x > -EXP_LEAST ? -EXP_LEAST : -x; }
/* 1 / (1 + exp(x)), x <= -EXP_LEAST: both sides of the bar times 2^-(BIAS/2), so that no exponential is too large.  The other bound is looked
   at last: gcc 12 makes three comparisons and three blends of two bounds in a row. */
RLX_INLINE F NAME(logistic)(F x) {
  const F zero = ROUNDER + BIAS - BIAS / 2, one = ROOT_OF_LEAST;
  const F t = NAME(fma)(x, LOG2E, zero), n = t - zero, r = NAME(fma)(n, -LN2_LO, NAME(fma)(n, -LN2_HI, x));
  const F y = one / NAME(fma)(NAME(fma)(r * r, NAME(exp_p)(r), r) + 1, NAME(power)(t), one);
  return x < -SIGMOID_MOST ? 1 : y;
}
RLX_INLINE F NAME(sigmoid)(F x) { return NAME(logistic)(NAME(opposite)(x)); }
RLX_INLINE F NAME(finite)(F x) { return x < LOWEST ? LOWEST : x; }  /* -inf times 0 would be NaN */
RLX_INLINE F NAME(silu)(F x) { const F c = NAME(opposite)(x); return -c * NAME(logistic)(c); }
RLX_INLINE F NAME(softplus)(F x) {
  const F e = NAME(exp)(-NAME(abs)(x));
  return NAME(maximum)(x, 0) + NAME(log1p_of)(e, 1 + e);
}
/* x times the share of the normal distribution that lies below x */
RLX_INLINE F NAME(gelu)(F x) {
  const F a = NAME(abs)(x), beyond = a > TAIL_MOST ? 0 : NAME(exp2_of_minus)(NAME(tail_p)(a));
  return NAME(finite)(x) * (x > 0 ? 1 - beyond : beyond);
}
RLX_INLINE F NAME(gelu_tanh)(F x) {
  const F inner = (F)0.79788456080286535588 * (x + (F)0.044715 * x * x * x);  /* a cube that overflows has tanh 1 or -1, too */
  return NAME(finite)(x) * ((F)0.5 * (1 + NAME(tanh)(inner)));
}

#undef F
#undef U
#undef MANTISSA
#undef BIAS
#undef ROUNDER
#undef LEAST_NORMAL
#undef SQRT_HALF
#undef HEAD
#undef LN2_HI
#undef LN2_LO
#undef LOG2E
#undef LOG2E_HI
#undef LOG2E_LO
#undef PI
#undef PI_LO
#undef EXP_LEAST
#undef EXP_MOST
#undef EXP2_LEAST
#undef EXP2_MOST
#undef EXPM1_LEAST
#undef EXPM1_MOST
#undef TANH_MOST
#undef ERF_MOST
#undef TAIL_MOST
#undef SIGMOID_MOST
#undef ROOT_OF_LEAST
#undef ROUND_TO
#undef SQRT
#undef NAME
#undef SIGN
#undef INFINITE
#undef NOT_A_NUMBER
#undef ONE
#undef LOWEST
