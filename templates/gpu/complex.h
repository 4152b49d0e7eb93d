// Complex numbers: two parts side by side, with the operators that C has for its own.
template <class T> struct alignas(2*sizeof(T)) rlx_complex {
  T re, im;
  rlx_complex() = default;
  __device__ rlx_complex(T re, T im = 0) : re(re), im(im) {}
  template <class X> __device__ explicit rlx_complex(rlx_complex<X> x) : re((T)x.re), im((T)x.im) {}
  __device__ rlx_complex operator-() const { return rlx_complex(-re, -im); }
  __device__ rlx_complex &operator+=(rlx_complex x) { return *this = *this + x; }
  friend __device__ rlx_complex operator+(rlx_complex a, rlx_complex b) { return rlx_complex(a.re + b.re, a.im + b.im); }
  friend __device__ rlx_complex operator-(rlx_complex a, rlx_complex b) { return rlx_complex(a.re - b.re, a.im - b.im); }
  friend __device__ rlx_complex operator*(rlx_complex a, rlx_complex b) { return rlx_complex(a.re*b.re - a.im*b.im, a.re*b.im + a.im*b.re); }
  friend __device__ bool operator==(rlx_complex a, rlx_complex b) { return a.re == b.re && a.im == b.im; }
  friend __device__ bool operator!=(rlx_complex a, rlx_complex b) { return !(a == b); }
};
typedef rlx_complex<f32> c64;
typedef rlx_complex<f64> c128;
