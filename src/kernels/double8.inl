// Eight doubles, or eight floats, as compiler vectors: one 512-bit register, or as many narrower
// ones as it takes. Included by files that are compiled per instruction set, after simd16.inl.
//
// No FMA: products of a float and a BF16 are exact in double, and sums then have the same bits on
// every instruction set. Used where a last-bit difference would flip the rounding to BF16 of
// something that everything after it reads.
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
DM_INLINE D8 wide(V8 v) { return __builtin_convertvector(v, D8); }
DM_INLINE D8 wide8(const float* p) { return wide(load8(p)); }
DM_INLINE V8 narrow(D8 v) { return __builtin_convertvector(v, V8); }
DM_INLINE D8 all8(double x) { return D8{x, x, x, x, x, x, x, x}; }
DM_INLINE V8 all8f(float x) { return V8{x, x, x, x, x, x, x, x}; }
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

// exp(x) with a relative error below 1e-11 for x <= 700; e^-700 below -700.
// x = n ln 2 + r, |r| <= 0.347; the Taylor series of e^r to r^10.
DM_INLINE D8 exp8(D8 x) {
  x = x < all8(-700.0) ? all8(-700.0) : x;
  x = x > all8(700.0) ? all8(700.0) : x;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: the sum's low bits are the integer
  const D8 shifted = x * 0x1.71547652b82fep+0 + magic;
  const D8 n = shifted - magic;
  const D8 r = (x - n * 0x1.62e42fefp-1) - n * 0x1.473de6af278edp-34;
  D8 p = r * (1.0 / 3628800) + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  L8 bits, power;
  __builtin_memcpy(&bits, &p, sizeof bits);
  __builtin_memcpy(&power, &shifted, sizeof power);
  bits += power << 52;
  __builtin_memcpy(&p, &bits, sizeof bits);
  return p;
}
// exp of floats, rounded once (but for about one value in ten million).
DM_INLINE V8 exp8f(V8 x) { return narrow(exp8(wide(x))); }

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
