// Eight doubles, or eight floats: compiler vectors of one 512-bit register, or as many narrower
// ones as it takes. Included by files that are compiled per instruction set, after simd16.inl.
//
// Products of a float and a BF16 are exact in double, so with them fma8 gives the same bits on
// every instruction set; elsewhere x86-64 rounds once more. Used where a last-bit difference would
// flip the rounding to BF16 of something that everything after it reads.
#pragma GCC diagnostic ignored "-Wpsabi"  // all of it is inlined: no vector crosses a call

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

#if DEEPMINT_ISA_LEVEL >= 2
typedef double D8 __attribute__((vector_size(64)));
typedef int64_t L8 __attribute__((vector_size(64)));
DM_INLINE D8 select8(L8 mask, D8 a, D8 b) { return mask ? a : b; }
#else
// gcc 12 would take a vector that is wider than a register apart through memory.
#if DEEPMINT_ISA_LEVEL == 1
constexpr int kParts = 2;
#else
constexpr int kParts = 4;
#endif
constexpr int kPartLanes = 8 / kParts;
typedef double DPart __attribute__((vector_size(8 * kPartLanes)));
typedef int64_t LPart __attribute__((vector_size(8 * kPartLanes)));
typedef float FPart __attribute__((vector_size(4 * kPartLanes)));
struct L8 {
  LPart part[kParts];
};
struct D8 {
  DPart part[kParts];
  __attribute__((always_inline)) double operator[](int i) const {
    return part[i / kPartLanes][i % kPartLanes];
  }
};
#define DM_EACH(Out, expression)                               \
  Out out;                                                     \
  for (int i = 0; i < kParts; ++i) out.part[i] = (expression); \
  return out
#define DM_OPERATOR(Out, In, op) \
  DM_INLINE Out operator op(const In& a, const In& b) { DM_EACH(Out, a.part[i] op b.part[i]); }
DM_OPERATOR(D8, D8, +)
DM_OPERATOR(D8, D8, -)
DM_OPERATOR(D8, D8, *)
DM_OPERATOR(D8, D8, /)
DM_OPERATOR(L8, D8, <)
DM_OPERATOR(L8, D8, >)
DM_OPERATOR(L8, D8, ==)
DM_OPERATOR(L8, L8, +)
DM_OPERATOR(L8, L8, -)
#undef DM_OPERATOR
#define DM_OPERATOR(op)                                                            \
  DM_INLINE D8 operator op(const D8& a, double b) { DM_EACH(D8, a.part[i] op b); } \
  DM_INLINE D8 operator op(double a, const D8& b) { DM_EACH(D8, a op b.part[i]); }
DM_OPERATOR(+)
DM_OPERATOR(-)
DM_OPERATOR(*)
DM_OPERATOR(/)
#undef DM_OPERATOR
#define DM_OPERATOR(op) \
  DM_INLINE L8 operator op(const L8& a, int64_t b) { DM_EACH(L8, a.part[i] op b); }
DM_OPERATOR(+)
DM_OPERATOR(-)
DM_OPERATOR(&)
DM_OPERATOR(|)
DM_OPERATOR(<<)
DM_OPERATOR(>>)
#undef DM_OPERATOR
DM_INLINE D8 operator-(const D8& a) { DM_EACH(D8, -a.part[i]); }
DM_INLINE D8& operator+=(D8& a, const D8& b) { return a = a + b; }
DM_INLINE D8 select8(const L8& mask, const D8& a, const D8& b) {
  DM_EACH(D8, mask.part[i] ? a.part[i] : b.part[i]);
}
#endif
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
DM_INLINE D8 wide(V8 v) {
  FPart parts[kParts];
  __builtin_memcpy(parts, &v, sizeof v);
  DM_EACH(D8, __builtin_convertvector(parts[i], DPart));
}
DM_INLINE V8 narrow(const D8& v) {
  FPart parts[kParts];
  for (int i = 0; i < kParts; ++i) parts[i] = __builtin_convertvector(v.part[i], FPart);
  V8 out;
  __builtin_memcpy(&out, parts, sizeof out);
  return out;
}
#endif
DM_INLINE D8 wide8(const float* p) { return wide(load8(p)); }
#if DEEPMINT_ISA_LEVEL >= 2
DM_INLINE D8 all8(double x) { return D8{x, x, x, x, x, x, x, x}; }
#else
DM_INLINE D8 all8(double x) {
  D8 out;
  for (DPart& p : out.part) {
#if DEEPMINT_ISA_LEVEL == 1
    p = DPart{x, x, x, x};
#else
    p = DPart{x, x};
#endif
  }
  return out;
}
#endif
DM_INLINE V8 all8f(float x) { return V8{x, x, x, x, x, x, x, x}; }
DM_INLINE D8 fma8(D8 a, D8 b, D8 c) {
#if DEEPMINT_ISA_LEVEL >= 2
  return reinterpret_cast<D8>(_mm512_fmadd_pd(
      reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif DEEPMINT_ISA_LEVEL == 1
  DM_EACH(D8, _mm256_fmadd_pd(a.part[i], b.part[i], c.part[i]));
#else
  return a * b + c;
#endif
}
// x within [low, high]; NaN stays.
DM_INLINE D8 clamp8(D8 x, double low, double high) {
  x = select8(x < all8(low), all8(low), x);
  return select8(x > all8(high), all8(high), x);
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
#elif DEEPMINT_ISA_LEVEL == 1
  DM_EACH(D8, _mm256_sqrt_pd(x.part[i]));
#else
  DM_EACH(D8, _mm_sqrt_pd(x.part[i]));
#endif
}

// exp(x) with a relative error below 1e-11 for x <= 700; e^-700 below -700.
// x = n ln 2 + r, |r| <= 0.347; the Taylor series of e^r to r^10.
DM_INLINE D8 exp8(D8 x) {
  x = clamp8(x, -700.0, 700.0);
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
  return select8(x < all8(-745.2), all8(0), value);
}
DM_INLINE D8 exact_ln8(D8 x) {
  const L8 bits = bits8(x);
  D8 m = double8((bits & 0xfffffffffffffll) | 0x3ff0000000000000ll);  // [1, 2)
  const L8 upper = m > all8(0x1.6a09e667f3bcdp+0), exponent = (bits >> 52) - 1023 - upper;
  m = select8(upper, m * 0.5, m);
  const D8 s = (m - 1.0) / (m + 1.0), s2 = s * s;
  D8 series = all8(0);
  for (int k = 23; k >= 3; k -= 2) series = (series + 1.0 / k) * s2;
  const D8 e = double8(bits8(all8(kMagic)) + exponent) - kMagic;
  return e * 0x1.62e42fefp-1 + (2.0 * s + (2.0 * s * series + e * 0x1.473de6af278edp-34));
}
// exp of floats, rounded once (but for about one value in ten million).
DM_INLINE V8 exp8f(V8 x) { return narrow(exp8(wide(x))); }

#undef DM_EACH

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
