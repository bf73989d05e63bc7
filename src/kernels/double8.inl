// Eight doubles, or eight floats, as compiler vectors: one 512-bit register, or as many narrower
// ones as it takes. Included by files that are compiled per instruction set, after simd16.inl.
//
// Products of a float and a BF16 are exact in double, so with them fma8 gives the same bits on
// every instruction set; elsewhere x86-64 rounds once more. Used where a last-bit difference would
// flip the rounding to BF16 of something that everything after it reads.
#pragma GCC diagnostic ignored "-Wpsabi"  // all of it is inlined: no vector crosses a call

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

typedef double D8 __attribute__((vector_size(64)));
typedef int64_t L8 __attribute__((vector_size(64)));
typedef float V8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));

DM_INLINE V8 load8(const float* p) {
  V8 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
DM_INLINE void store8(float* p, V8 v) { __builtin_memcpy(p, &v, sizeof v); }
#if DEEPMINT_ISA_LEVEL >= 2  // gcc 12 would convert in halves
DM_INLINE D8 wide(V8 v) {
  return reinterpret_cast<D8>(_mm512_cvtps_pd(reinterpret_cast<__m256>(v)));
}
DM_INLINE V8 narrow(D8 v) {
  return reinterpret_cast<V8>(_mm512_cvtpd_ps(reinterpret_cast<__m512d>(v)));
}
#else
DM_INLINE D8 wide(V8 v) { return __builtin_convertvector(v, D8); }
DM_INLINE V8 narrow(D8 v) { return __builtin_convertvector(v, V8); }
#endif
DM_INLINE D8 wide8(const float* p) { return wide(load8(p)); }
DM_INLINE D8 all8(double x) { return D8{x, x, x, x, x, x, x, x}; }
DM_INLINE V8 all8f(float x) { return V8{x, x, x, x, x, x, x, x}; }
DM_INLINE D8 fma8(D8 a, D8 b, D8 c) {
#if DEEPMINT_ISA_LEVEL >= 2
  return reinterpret_cast<D8>(_mm512_fmadd_pd(
      reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif DEEPMINT_ISA_LEVEL == 1
  __m256d x[2], y[2], z[2];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  __builtin_memcpy(z, &c, sizeof z);
  for (int i = 0; i < 2; ++i) z[i] = _mm256_fmadd_pd(x[i], y[i], z[i]);
  __builtin_memcpy(&c, z, sizeof z);
  return c;
#else
  return a * b + c;
#endif
}
// Lanes i and i + 4 meet, then i and i + 2, i and i + 1.
DM_INLINE double sum8(D8 v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
DM_INLINE V8 round_bf16(V8 x) {
  U8 u;
  __builtin_memcpy(&u, &x, sizeof u);
  u = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
  __builtin_memcpy(&x, &u, sizeof u);
  return x;
}

constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: a sum's low bits are the integer
DM_INLINE L8 bits8(D8 x) {
  L8 bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
DM_INLINE D8 double8(L8 bits) {
  D8 x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
DM_INLINE D8 sqrt8(D8 x) {
#if DEEPMINT_ISA_LEVEL >= 2
  return reinterpret_cast<D8>(_mm512_sqrt_pd(reinterpret_cast<__m512d>(x)));
#else
  for (int i = 0; i < 8; ++i) x[i] = _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x[i])));
  return x;
#endif
}

// exp(x) with a relative error below 1e-11 for x <= 700; e^-700 below -700.
// x = n ln 2 + r, |r| <= 0.347; the Taylor series of e^r to r^10.
DM_INLINE D8 exp8(D8 x) {
  x = x < all8(-700.0) ? all8(-700.0) : x;
  x = x > all8(700.0) ? all8(700.0) : x;
  const D8 shifted = fma8(x, all8(0x1.71547652b82fep+0), all8(kMagic));
  const D8 n = shifted - kMagic;
  const D8 r = fma8(n, all8(-0x1.473de6af278edp-34), fma8(n, all8(-0x1.62e42fefp-1), x));
  // In two halves by r^2, so that the chain is short.
  const D8 r2 = r * r;
  D8 odd = fma8(r2, all8(1.0 / 362880), all8(1.0 / 5040));
  odd = fma8(odd, r2, all8(1.0 / 120));
  odd = fma8(odd, r2, all8(1.0 / 6));
  odd = fma8(odd, r2, all8(1.0));
  D8 even = fma8(r2, all8(1.0 / 3628800), all8(1.0 / 40320));
  even = fma8(even, r2, all8(1.0 / 720));
  even = fma8(even, r2, all8(1.0 / 24));
  even = fma8(even, r2, all8(0.5));
  even = fma8(even, r2, all8(1.0));
  D8 p = fma8(odd, r, even);
  return double8(bits8(p) + (bits8(shifted) << 52));
}

// exp_double() of scalar_math.h where x <= 709, and ln_double() where x >= 1 is finite: operation
// by operation, so the same bits.
DM_INLINE D8 exact_exp8(D8 x) {
  const D8 shifted = x * 0x1.71547652b82fep+0 + kMagic, n = shifted - kMagic,
           r = (x - n * 0x1.62e42fefp-1) - n * 0x1.473de6af278edp-34;
  D8 sum = all8(0);
  for (int k = 14; k >= 1; --k) sum = (sum + 1.0) * r / static_cast<double>(k);
  sum = sum + 1.0;
  const L8 whole = bits8(shifted) - bits8(all8(kMagic)), half = (whole - (whole >> 63)) >> 1;
  const auto power_of_two = [](L8 e) __attribute__((always_inline)) {
    return double8((e + 1023) << 52);
  };
  const D8 value = sum * power_of_two(half) * power_of_two(whole - half);
  return x < all8(-745.2) ? all8(0) : value;
}
DM_INLINE D8 exact_ln8(D8 x) {
  const L8 bits = bits8(x);
  D8 m = double8((bits & 0xfffffffffffffll) | 0x3ff0000000000000ll);  // [1, 2)
  const L8 upper = m > all8(0x1.6a09e667f3bcdp+0), exponent = (bits >> 52) - 1023 - upper;
  m = upper ? m * 0.5 : m;
  const D8 s = (m - 1.0) / (m + 1.0), s2 = s * s;
  D8 series = all8(0);
  for (int k = 23; k >= 3; k -= 2) series = (series + 1.0 / k) * s2;
  const D8 e = double8(bits8(all8(kMagic)) + exponent) - kMagic;
  return e * 0x1.62e42fefp-1 + (2.0 * s + (2.0 * s * series + e * 0x1.473de6af278edp-34));
}
// exp of floats, rounded once (but for about one value in ten million).
DM_INLINE V8 exp8f(V8 x) { return narrow(exp8(wide(x))); }

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
