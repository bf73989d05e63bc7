// For tests: how far a result may be from the exact one, from the types alone.
//
// A rounding to the nearest float errs by 2^-24 of the result, one to BF16 by 2^-8, one to double
// by 2^-53; everything else here adds such errors up. Rounding never turns an order around, so a
// result whose operand lies within value ± error lies between the roundings of both ends: equal
// bits, unless the boundary between two results lies in that gap.
//
//   Chain dot;                                      // the order of the kernel
//   for (...) dot.add(double{q[i]} * k[i]);         // exact products
//   EXPECT_TRUE(to_bf16(dot).holds(got));           // one rounding to BF16 after it
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/scalar_math.h"

namespace deepmint::kernels {

inline constexpr double kUnit = 0x1p-53;       // of double: an operation errs by that share at most
inline constexpr double kFloatUnit = 0x1p-24;  // of float
// Relative error of the kernels' exp in double (kernels/double8.inl), one rounding more included.
inline constexpr double kExpError = 1.001e-11;

struct Rounded {
  float low = 0, high = 0;
  bool certain() const { return low == high; }
  bool holds(float v) const { return low <= v && v <= high; }
};
inline Rounded to_f32(double value, double error) {
  return {static_cast<float>(value - error), static_cast<float>(value + error)};
}
inline Rounded to_bf16(Rounded f) {
  return {from_bf16(to_bf16(f.low)), from_bf16(to_bf16(f.high))};
}
inline Rounded to_bf16(double value, double error) { return to_bf16(to_f32(value, error)); }

// A sum in double and how far two orders of it may differ: n - 1 additions each, of partial sums
// that are at most the sum of magnitudes. Products of two floats are exact in double.
struct Sum {
  double value = 0, magnitude = 0;
  int terms = 0;
  void add(double term) { value += term, magnitude += std::fabs(term), ++terms; }
  double error() const { return 2 * kUnit * terms * magnitude; }
};
inline Rounded to_bf16(const Sum& sum) { return to_bf16(sum.value, sum.error()); }

// A float sum of exact products in a known order, followed in double: each addition rounds its
// partial sum, which is the exact one or up to `error` beside it. Far below (terms · unit · sum of
// magnitudes) where partial sums stay small. Additions of zero, and of what is exact in float
// before any rounding, do not round.
struct Chain {
  double value = 0, error = 0;
  void add(double term) {
    if (term == 0) return;
    value += term;
    if (error != 0 || static_cast<double>(static_cast<float>(value)) != value) rounded(value);
  }
  // As the BF16 dot: both terms in whatever order, rounded after each addition.
  void add_pair(double a, double b) {
    if (a == 0 || b == 0) return add(a + b);
    const double between = std::max({std::fabs(value + a), std::fabs(value + b), std::fabs(a + b)});
    value += a + b;
    rounded(between);
    rounded(value);
  }
  // One operation rounded a number of size `of`; the BF16 dot takes subnormal numbers as zero.
  void rounded(double of) {
    error += kFloatUnit * (std::fabs(of) + error) + 0x1p-125 + 2 * kUnit * std::fabs(value);
  }
};
inline Rounded to_f32(const Chain& chain) { return to_f32(chain.value, chain.error); }
inline Rounded to_bf16(const Chain& chain) { return to_bf16(to_f32(chain)); }

// a / b, b positive, rounded to float.
inline Rounded quotient(Rounded a, Rounded b) {
  return {a.low / (a.low < 0 ? b.low : b.high), a.high / (a.high < 0 ? b.high : b.low)};
}

}  // namespace deepmint::kernels
