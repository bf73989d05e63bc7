// exp, ln, sin and cos in double from basic operations only, so that they give the same bits with
// every C library. For tables and reference kernels; the vector kernels have their own float
// polynomials (simd16.inl).
#pragma once

#include <cstdint>

namespace deepmint::kernels {

// Within 2 ulp. Overflow gives infinity, underflow 0; NaN stays.
double exp_double(double x);
// Within 2 ulp for normal x > 0. 0 gives -infinity; negative or NaN gives NaN.
double ln_double(double x);
// base^exponent for base > 0, through exp(exponent · ln base); relative error about 1e-16 · (1 +
// |exponent · ln base|).
double pow_double(double base, double exponent);

struct SinCos {
  double sin = 0, cos = 1;
};
// Absolute error below 1e-15 for |x| <= 2^23; NaN for anything larger, infinite or NaN.
SinCos sincos_double(double x);

// Round to nearest even; NaN keeps its sign and becomes quiet.
inline uint16_t to_bf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float from_bf16(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

}  // namespace deepmint::kernels
