/* Minimax polynomials p of math.h, and 2/pi.  Printed by benchmarks/prelude_coefficients.py, which says what each stands for.
   Behind each: the error of the fit, relative to the result it serves.  Coefficients from the lowest power. */
#define RLX_X1(x) (x)
#define RLX_X2(x) (RLX_X1(x) * RLX_X1(x))
#define RLX_X4(x) (RLX_X2(x) * RLX_X2(x))
#define RLX_X8(x) (RLX_X4(x) * RLX_X4(x))
#define RLX_X16(x) (RLX_X8(x) * RLX_X8(x))
#define RLX_P1(fma, x, c0) (c0)
#define RLX_P2(fma, x, c0, c1) fma(RLX_P1(fma, x, c1), RLX_X1(x), RLX_P1(fma, x, c0))
#define RLX_P3(fma, x, c0, c1, c2) fma(RLX_P1(fma, x, c2), RLX_X2(x), RLX_P2(fma, x, c0, c1))
#define RLX_P4(fma, x, c0, c1, c2, c3) fma(RLX_P2(fma, x, c2, c3), RLX_X2(x), RLX_P2(fma, x, c0, c1))
#define RLX_P5(fma, x, c0, c1, c2, c3, c4) fma(RLX_P1(fma, x, c4), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P6(fma, x, c0, c1, c2, c3, c4, c5) fma(RLX_P2(fma, x, c4, c5), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P7(fma, x, c0, c1, c2, c3, c4, c5, c6) fma(RLX_P3(fma, x, c4, c5, c6), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7) fma(RLX_P4(fma, x, c4, c5, c6, c7), RLX_X4(x), RLX_P4(fma, x, c0, c1, c2, c3))
#define RLX_P9(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8) fma(RLX_P1(fma, x, c8), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P10(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9) fma(RLX_P2(fma, x, c8, c9), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P11(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10) fma(RLX_P3(fma, x, c8, c9, c10), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P12(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11) fma(RLX_P4(fma, x, c8, c9, c10, c11), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P13(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12) fma(RLX_P5(fma, x, c8, c9, c10, c11, c12), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P14(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13) fma(RLX_P6(fma, x, c8, c9, c10, c11, c12, c13), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P15(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14) fma(RLX_P7(fma, x, c8, c9, c10, c11, c12, c13, c14), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15) fma(RLX_P8(fma, x, c8, c9, c10, c11, c12, c13, c14, c15), RLX_X8(x), RLX_P8(fma, x, c0, c1, c2, c3, c4, c5, c6, c7))
#define RLX_P17(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16) fma(RLX_P1(fma, x, c16), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P18(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17) fma(RLX_P2(fma, x, c16, c17), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P19(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18) fma(RLX_P3(fma, x, c16, c17, c18), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P20(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19) fma(RLX_P4(fma, x, c16, c17, c18, c19), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P21(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20) fma(RLX_P5(fma, x, c16, c17, c18, c19, c20), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P22(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21) fma(RLX_P6(fma, x, c16, c17, c18, c19, c20, c21), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P23(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21, c22) fma(RLX_P7(fma, x, c16, c17, c18, c19, c20, c21, c22), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P24(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21, c22, c23) fma(RLX_P8(fma, x, c16, c17, c18, c19, c20, c21, c22, c23), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
#define RLX_P25(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20, c21, c22, c23, c24) fma(RLX_P9(fma, x, c16, c17, c18, c19, c20, c21, c22, c23, c24), RLX_X16(x), RLX_P16(fma, x, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15))
RLX_INLINE f32 rlx_exp_p_f32(f32 x) { return RLX_P5(rlx_fma_f32, x,  /* 2^-26 */
  0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.555672p-5f, 0x1.122776p-7f, 0x1.6bece2p-10f); }
RLX_INLINE f32 rlx_exp2_p_f32(f32 x) { return RLX_P6(rlx_fma_f32, x,  /* 2^-29 */
  0x1.62e43p-1f, 0x1.ebfbdcp-3f, 0x1.c6aee8p-5f, 0x1.3b2d5p-7f, 0x1.5f3e84p-10f, 0x1.41fab4p-13f); }
RLX_INLINE f32 rlx_log_p_f32(f32 x) { return RLX_P3(rlx_fma_f32, x,  /* 2^-30 */
  0x1.55557ap-1f, 0x1.995e1p-2f, 0x1.31f66ap-2f); }
RLX_INLINE f32 rlx_sin_p_f32(f32 x) { return RLX_P3(rlx_fma_f32, x,  /* 2^-28 */
  -0x1.555546p-3f, 0x1.11073ap-7f, -0x1.994386p-13f); }
RLX_INLINE f32 rlx_cos_p_f32(f32 x) { return RLX_P3(rlx_fma_f32, x,  /* 2^-33 */
  0x1.55554ap-5f, -0x1.6c0c32p-10f, 0x1.99eb36p-16f); }
RLX_INLINE f32 rlx_asin_p_f32(f32 x) { return RLX_P5(rlx_fma_f32, x,  /* 2^-28 */
  0x1.5555c8p-3f, 0x1.3301ep-4f, 0x1.747ebep-5f, 0x1.8c2418p-6f, 0x1.59707p-5f); }
RLX_INLINE f32 rlx_atan_p_f32(f32 x) { return RLX_P9(rlx_fma_f32, x,  /* 2^-29 */
  -0x1.55553ep-2f, 0x1.9991fep-3f, -0x1.2421b4p-3f, 0x1.c099e8p-4f, -0x1.58344p-4f, 0x1.dac894p-5f, -0x1.fece64p-6f, 0x1.65a2d6p-7f, -0x1.d62928p-10f); }
RLX_INLINE f32 rlx_sinh_p_f32(f32 x) { return RLX_P4(rlx_fma_f32, x,  /* 2^-34 */
  0x1.555556p-3f, 0x1.111134p-7f, 0x1.9ffe92p-13f, 0x1.7a15dp-19f); }
RLX_INLINE f32 rlx_erf_near_p_f32(f32 x) { return RLX_P7(rlx_fma_f32, x,  /* 2^-30 */
  0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2cf8p-4f, -0x1.b7f90ep-6f, 0x1.5405b8p-8f, -0x1.a3f71cp-11f, 0x1.496a66p-14f); }
RLX_INLINE f32 rlx_erf_far_p_f32(f32 x) { return RLX_P7(rlx_fma_f32, x,  /* 2^-30 */
  0x1.0bba7p-11f, 0x1.a03fcep+0f, 0x1.d76ed6p-1f, 0x1.306f0ap-3f, -0x1.01b2d2p-5f, 0x1.15eacap-8f, -0x1.18b39ap-12f); }
RLX_INLINE f32 rlx_tail_p_f32(f32 x) { return RLX_P9(rlx_fma_f32, x,  /* 2^-27 */
  0x1p+0f, 0x1.26aedep+0f, 0x1.d639dp-2f, 0x1.ae1f0ep-5f, -0x1.cfb32ep-8f, 0x1.31f6eap-13f, 0x1.7ecddap-13f, -0x1.43f2bp-15f, 0x1.740402p-19f); }
RLX_INLINE f64 rlx_exp_p_f64(f64 x) { return RLX_P11(rlx_fma_f64, x,  /* 2^-62 */
  0x1p-1, 0x1.5555555555559p-3, 0x1.555555555553fp-5, 0x1.111111110f6dbp-7, 0x1.6c16c16c1f0e7p-10, 0x1.a01a01afd38fbp-13, 0x1.a01a017ba0beap-16,
  0x1.71ddf87f5f8fp-19, 0x1.27e53680b5e4p-22, 0x1.af5e7412f7996p-26, 0x1.1ee8021698b61p-29); }
RLX_INLINE f64 rlx_exp2_p_f64(f64 x) { return RLX_P12(rlx_fma_f64, x,  /* 2^-64 */
  0x1.62e42fefa39efp-1, 0x1.ebfbdff82c58fp-3, 0x1.c6b08d704a0cfp-5, 0x1.3b2ab6fba4e22p-7, 0x1.5d87fe78a26b1p-10, 0x1.430912f883d88p-13, 0x1.ffcbfc74de1f8p-17,
  0x1.62c021e254749p-20, 0x1.b524dd42fd9bfp-24, 0x1.e4d06cab6accap-28, 0x1.ea016cbd6431ap-32, 0x1.c2ce85a901571p-36); }
RLX_INLINE f64 rlx_log_p_f64(f64 x) { return RLX_P7(rlx_fma_f64, x,  /* 2^-59 */
  0x1.5555555555595p-1, 0x1.999999997ef9dp-2, 0x1.24924942c7fd3p-2, 0x1.c71c514f29b6fp-3, 0x1.7466675b40b1fp-3, 0x1.399d70122525cp-3, 0x1.2f32b10c1b16p-3); }
RLX_INLINE f64 rlx_pow_p_f64(f64 x) { return RLX_P8(rlx_fma_f64, x,  /* 2^-73 */
  0x1.9999999999995p-2, 0x1.24924924930aap-2, 0x1.c71c71c57278cp-3, 0x1.745d1838ff011p-3, 0x1.3b1360ef359acp-3, 0x1.1120f9edc64a7p-3, 0x1.de289dfe95552p-4,
  0x1.eb6b33b94c4ebp-4); }
RLX_INLINE f64 rlx_sin_p_f64(f64 x) { return RLX_P6(rlx_fma_f64, x,  /* 2^-58 */
  -0x1.5555555555548p-3, 0x1.111111110f7ccp-7, -0x1.a01a019bfd4e2p-13, 0x1.71de35673cdfep-19, -0x1.ae5e5a14a4fbep-26, 0x1.5d8faba926c8cp-33); }
RLX_INLINE f64 rlx_cos_p_f64(f64 x) { return RLX_P6(rlx_fma_f64, x,  /* 2^-64 */
  0x1.555555555554bp-5, -0x1.6c16c16c14f8bp-10, 0x1.a01a019c83ae2p-16, -0x1.27e4f7ea47db3p-22, 0x1.1ee9d75b121e3p-29, -0x1.8fa469484be6p-37); }
RLX_INLINE f64 rlx_asin_p_f64(f64 x) { return RLX_P13(rlx_fma_f64, x,  /* 2^-60 */
  0x1.5555555555577p-3, 0x1.333333332e0f7p-4, 0x1.6db6db72149ddp-5, 0x1.f1c71a943d619p-6, 0x1.6e8bdef1d8c6ep-6, 0x1.1c49ef40b22a6p-6, 0x1.ca1fa5bc286ddp-7,
  0x1.7584d20018308p-7, 0x1.61404c53ae679p-7, 0x1.e5c04f46f2b07p-9, 0x1.63abbf1b200f2p-6, -0x1.58120eae2de92p-6, 0x1.0b4ce111110c2p-5); }
RLX_INLINE f64 rlx_atan_p_f64(f64 x) { return RLX_P20(rlx_fma_f64, x,  /* 2^-58 */
  -0x1.5555555555526p-2, 0x1.9999999995544p-3, -0x1.249249237e1bcp-3, 0x1.c71c717f92fc3p-4, -0x1.745d11aad8346p-4, 0x1.3b136674c451ep-4, -0x1.110e5012b48a8p-4,
  0x1.e1bb9aa363595p-5, -0x1.ae5e420ade4dfp-5, 0x1.82da3c9c3ff85p-5, -0x1.59a27f72bd50ep-5, 0x1.2c2b75d760acp-5, -0x1.e9f1426cc3767p-6, 0x1.683269f668766p-6,
  -0x1.c77cf682d0959p-7, 0x1.d79f57ec4032dp-8, -0x1.7a1fd0330152dp-9, 0x1.b3d75700d831bp-11, -0x1.3f1855fe9a717p-13, 0x1.bbbeb02398042p-17); }
RLX_INLINE f64 rlx_sinh_p_f64(f64 x) { return RLX_P7(rlx_fma_f64, x,  /* 2^-63 */
  0x1.5555555555556p-3, 0x1.11111111110a6p-7, 0x1.a01a01a028996p-13, 0x1.71de3a465b656p-19, 0x1.ae64671ae4489p-26, 0x1.611a56313375bp-33,
  0x1.b4c754ef9a15bp-41); }
RLX_INLINE f64 rlx_erf_near_p_f64(f64 x) { return RLX_P13(rlx_fma_f64, x,  /* 2^-63 */
  0x1.06eba8214db69p-3, -0x1.812746b0379e6p-2, 0x1.ce2f21a042b2p-4, -0x1.b82ce3128499dp-6, 0x1.565bcd0db02e3p-8, -0x1.c02db3d8ed1bap-11, 0x1.f9a321a11d741p-14,
  -0x1.f4d1df395a447p-17, 0x1.b9def19febd21p-20, -0x1.5f1d36dceafc5p-23, 0x1.f7a413abe044dp-27, -0x1.386ac657e9d73p-30, 0x1.0579bbe7988e2p-34); }
RLX_INLINE f64 rlx_erf_far_p_f64(f64 x) { return RLX_P20(rlx_fma_f64, x,  /* 2^-58 */
  0x1.2f05fbd1c449ep-25, 0x1.a0be7e63c21d5p+0, 0x1.d63f01f8924d2p-1, 0x1.2fa6a731f4689p-3, -0x1.c42100c01f472p-6, -0x1.3320ccd89568ap-12, 0x1.3d047f670c1d2p-9,
  -0x1.a35c32ac530bcp-11, -0x1.e35e4ac5dd1fcp-16, 0x1.4a8dc3c2a201bp-13, -0x1.8279607cdf485p-14, 0x1.20e44b9c65059p-15, -0x1.4143ab323c236p-17,
  0x1.14814afeb7f3p-19, -0x1.723db34b3e777p-22, 0x1.7c34d86eb0ccfp-25, -0x1.21e9b295f1f54p-28, 0x1.35815851fea83p-32, -0x1.9cdca333d3873p-37,
  0x1.02d6fe778a657p-42); }
RLX_INLINE f64 rlx_tail_p_f64(f64 x) { return RLX_P25(rlx_fma_f64, x,  /* 2^-56 */
  0x1p+0, 0x1.26aec21bce752p+0, 0x1.d63ed7499612bp-2, 0x1.ad6f35de7221cp-5, -0x1.c4242cdfc7dfdp-8, -0x1.bf8cfa2f543adp-15, 0x1.40bfa71cb26abp-12,
  -0x1.3ba466a7936f8p-14, 0x1.3a4cbf8c2819ap-19, 0x1.1301ac1d7edf7p-18, -0x1.62d9aed829105p-20, 0x1.836bd0006fcb1p-24, 0x1.5204206a2696cp-24,
  -0x1.400857632bf65p-25, 0x1.2adb4d94cb6f6p-27, -0x1.0617ce0e4d357p-30, -0x1.dfc8662820bc1p-34, 0x1.47d95c69a8863p-34, -0x1.4137d0e5edc28p-36,
  0x1.988ff55582bbdp-39, -0x1.6f17cc0b55155p-42, 0x1.d3079a1825ec4p-46, -0x1.92fe80c18b535p-50, 0x1.a8ad230ab671cp-55, -0x1.9d5e084d63587p-61); }
/* 2^k 2/pi mod 4 as two f64, the first of 29 bits, so that 24 bits times it are exact */
RLX_TABLE f64 rlx_turns_high[105] = {
0x1.45f306cp-1, 0x1.45f306cp+0, 0x1.45f306dp+1, 0x1.17cc1b6p+0, 0x1.17cc1b7p+1, 0x1.7cc1b7p-2, 0x1.7cc1b7p-1, 0x1.7cc1b72p+0, 0x1.7cc1b72p+1, 0x1.f306dc8p+0,
0x1.f306dc9p+1, 0x1.e60db93p+1, 0x1.cc1b727p+1, 0x1.9836e4ep+1, 0x1.306dc9cp+1, 0x1.836e4e4p-1, 0x1.836e4e4p+0, 0x1.836e4e4p+1, 0x1.06dc9c8p+1, 0x1.b72722p-4,
0x1.b72722p-3, 0x1.b72722p-2, 0x1.b72722p-1, 0x1.b72722p+0, 0x1.b72722p+1, 0x1.6e4e441p+1, 0x1.b939104p+0, 0x1.b939105p+1, 0x1.727220ap+1, 0x1.c9c882ap+0,
0x1.c9c882ap+1, 0x1.9391054p+1, 0x1.27220a9p+1, 0x1.3910548p-1, 0x1.391054ap+0, 0x1.391054ap+1, 0x1.c882a5p-1, 0x1.c882a52p+0, 0x1.c882a53p+1, 0x1.91054a7p+1,
0x1.220a94fp+1, 0x1.1054a7cp-1, 0x1.1054a7ep+0, 0x1.1054a7fp+1, 0x1.054a7fp-2, 0x1.054a7fp-1, 0x1.054a7fp+0, 0x1.054a7fp+1, 0x1.529fc2p-4, 0x1.529fc2p-3,
0x1.529fc2p-2, 0x1.529fc24p-1, 0x1.529fc26p+0, 0x1.529fc27p+1, 0x1.4a7f09cp+0, 0x1.4a7f09dp+1, 0x1.29fc274p+0, 0x1.29fc275p+1, 0x1.4fe13a8p-1, 0x1.4fe13aap+0,
0x1.4fe13abp+1, 0x1.3f84eaep+0, 0x1.3f84eafp+1, 0x1.fc2757cp-1, 0x1.fc2757cp+0, 0x1.fc2757dp+1, 0x1.f84eafap+1, 0x1.f09d5f4p+1, 0x1.e13abe8p+1, 0x1.c2757d1p+1,
0x1.84eafa3p+1, 0x1.09d5f47p+1, 0x1.3abe8fp-3, 0x1.3abe8f8p-2, 0x1.3abe8f8p-1, 0x1.3abe8fap+0, 0x1.3abe8fap+1, 0x1.d5f47d4p-1, 0x1.d5f47d4p+0, 0x1.d5f47d4p+1,
0x1.abe8fa9p+1, 0x1.57d1f53p+1, 0x1.5f47d4cp+0, 0x1.5f47d4dp+1, 0x1.7d1f534p+0, 0x1.7d1f534p+1, 0x1.f47d4d2p+0, 0x1.f47d4d3p+1, 0x1.e8fa9a6p+1, 0x1.d1f534dp+1,
0x1.a3ea69bp+1, 0x1.47d4d37p+1, 0x1.1f534dcp+0, 0x1.1f534ddp+1, 0x1.f534dd8p-2, 0x1.f534ddcp-1, 0x1.f534ddcp+0, 0x1.f534ddcp+1, 0x1.ea69bb8p+1, 0x1.d4d377p+1,
0x1.a9a6eep+1, 0x1.534ddcp+1, 0x1.4d37702p+0, 0x1.4d37703p+1, 0x1.34ddc0cp+0};
RLX_TABLE f64 rlx_turns_low[105] = {
0x1.c9c882a53f84fp-29, 0x1.c9c882a53f84fp-28, 0x1.9391054a7f09dp-28, 0x1.27220a94fe13bp-28, 0x1.391054a7f09d6p-30, 0x1.391054a7f09d6p-29, 0x1.391054a7f09d6p-28,
0x1.c882a53f84ebp-30, 0x1.c882a53f84ebp-29, 0x1.c882a53f84ebp-28, 0x1.91054a7f09d5fp-28, 0x1.220a94fe13abfp-28, 0x1.1054a7f09d5f4p-30, 0x1.1054a7f09d5f4p-29,
0x1.1054a7f09d5f4p-28, 0x1.054a7f09d5f48p-31, 0x1.054a7f09d5f48p-30, 0x1.054a7f09d5f48p-29, 0x1.054a7f09d5f48p-28, 0x1.529fc2757d1f5p-33, 0x1.529fc2757d1f5p-32,
0x1.529fc2757d1f5p-31, 0x1.529fc2757d1f5p-30, 0x1.529fc2757d1f5p-29, 0x1.529fc2757d1f5p-28, 0x1.4a7f09d5f47d5p-29, 0x1.4a7f09d5f47d5p-28, 0x1.29fc2757d1f53p-29,
0x1.29fc2757d1f53p-28, 0x1.4fe13abe8fa9ap-30, 0x1.4fe13abe8fa9ap-29, 0x1.4fe13abe8fa9ap-28, 0x1.3f84eafa3ea6ap-29, 0x1.3f84eafa3ea6ap-28, 0x1.fc2757d1f534ep-30,
0x1.fc2757d1f534ep-29, 0x1.fc2757d1f534ep-28, 0x1.f84eafa3ea69cp-28, 0x1.f09d5f47d4d37p-28, 0x1.e13abe8fa9a6fp-28, 0x1.c2757d1f534dep-28, 0x1.84eafa3ea69bcp-28,
0x1.09d5f47d4d377p-28, 0x1.3abe8fa9a6eep-32, 0x1.3abe8fa9a6eep-31, 0x1.3abe8fa9a6eep-30, 0x1.3abe8fa9a6eep-29, 0x1.3abe8fa9a6eep-28, 0x1.d5f47d4d37703p-30,
0x1.d5f47d4d37703p-29, 0x1.d5f47d4d37703p-28, 0x1.abe8fa9a6ee07p-28, 0x1.57d1f534ddc0ep-28, 0x1.5f47d4d377037p-29, 0x1.5f47d4d377037p-28, 0x1.7d1f534ddc0dbp-29,
0x1.7d1f534ddc0dbp-28, 0x1.f47d4d377036ep-29, 0x1.f47d4d377036ep-28, 0x1.e8fa9a6ee06dbp-28, 0x1.d1f534ddc0db6p-28, 0x1.a3ea69bb81b6cp-28, 0x1.47d4d377036d9p-28,
0x1.1f534ddc0db63p-29, 0x1.1f534ddc0db63p-28, 0x1.f534ddc0db629p-31, 0x1.f534ddc0db629p-30, 0x1.f534ddc0db629p-29, 0x1.f534ddc0db629p-28, 0x1.ea69bb81b6c53p-28,
0x1.d4d377036d8a5p-28, 0x1.a9a6ee06db14bp-28, 0x1.534ddc0db6296p-28, 0x1.4d377036d8a56p-29, 0x1.4d377036d8a56p-28, 0x1.34ddc0db6295ap-29, 0x1.34ddc0db6295ap-28,
0x1.a6ee06db14acdp-30, 0x1.a6ee06db14acdp-29, 0x1.a6ee06db14acdp-28, 0x1.4ddc0db629599p-28, 0x1.377036d8a5665p-29, 0x1.377036d8a5665p-28, 0x1.bb81b6c52b328p-30,
0x1.bb81b6c52b328p-29, 0x1.bb81b6c52b328p-28, 0x1.77036d8a5664fp-28, 0x1.dc0db6295993cp-29, 0x1.dc0db6295993cp-28, 0x1.b81b6c52b3279p-28, 0x1.7036d8a5664f1p-28,
0x1.c0db6295993c4p-29, 0x1.c0db6295993c4p-28, 0x1.81b6c52b32788p-28, 0x1.036d8a5664f11p-28, 0x1.b6c52b3278872p-34, 0x1.b6c52b3278872p-33, 0x1.b6c52b3278872p-32,
0x1.b6c52b3278872p-31, 0x1.b6c52b3278872p-30, 0x1.b6c52b3278872p-29, 0x1.b6c52b3278872p-28, 0x1.6d8a5664f10e4p-28, 0x1.b6295993c439p-29, 0x1.b6295993c439p-28};
/* 64 zeros, and 2/pi after the point */
RLX_TABLE u64 rlx_two_over_pi[21] = {0,
0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};
