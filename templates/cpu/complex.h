/* Products and quotients of complex numbers, as NumPy has them: no rule of their own for infinities, as C's operators have.
   Quotients are Smith's (Comm. ACM 5, 1962): scaled by the divisor's larger part, so that squares neither overflow nor vanish;
   a few units in the last place of the whole number.  By zero, of either sign, both parts are divided by 0.0. */
#define RLX_COMPLEX(C, T) \
  RLX_INLINE C rlx_mul_##C(C a, C b) { \
    const T ar = RLX_RE(a), ai = RLX_IM(a), br = RLX_RE(b), bi = RLX_IM(b); \
    return rlx_parts_##C(ar*br - ai*bi, ar*bi + ai*br); \
  } \
  RLX_INLINE C rlx_div_##C(C a, C b) { \
    const T ar = RLX_RE(a), ai = RLX_IM(a), br = RLX_RE(b), bi = RLX_IM(b), r = br < 0 ? -br : br, i = bi < 0 ? -bi : bi; \
    const _Bool real = r >= i, zero = r == 0 && i == 0; \
    const T large = real ? br : bi, ratio = (real ? bi : br)/large, scale = 1/(large + (real ? bi : br)*ratio); \
    const T re = ((real ? ar : ai) + (real ? ai : ar)*ratio)*scale, im = (real ? ai - ar*ratio : ai*ratio - ar)*scale; \
    return rlx_parts_##C(zero ? ar/(r*r) : re, zero ? ai/(r*r) : im); \
  }
RLX_COMPLEX(c64, f32)
RLX_COMPLEX(c128, f64)
