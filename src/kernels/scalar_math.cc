#include "kernels/scalar_math.h"

#include <limits>

namespace deepmint::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Adding and subtracting 1.5 * 2^52 rounds to the nearest integer (even on ties) for |x| < 2^51.
double round_even(double x) {
  constexpr double kMagic = 6755399441055744.0;
  return (x + kMagic) - kMagic;
}

double power_of_two(int n) {  // n in [-1022, 1023]
  return __builtin_bit_cast(double, static_cast<uint64_t>(n + 1023) << 52);
}

}  // namespace

double exp_double(double x) {
  if (x != x) return x;
  if (x > 709.8) return kInf;
  if (x < -745.2) return 0;
  const double n = round_even(x * 0x1.71547652b82fep+0);
  // ln 2 in two parts; the first has 33 bits, so n times it is exact.
  const double r = (x - n * 0x1.62e42fefp-1) - n * 0x1.473de6af278edp-34;
  double sum = 0;  // Horner form of sum r^k / k!, |r| <= 0.35: the term of k = 14 is below 1e-17
  for (int k = 14; k >= 1; --k) sum = (sum + 1) * r / k;
  sum += 1;
  const int whole = static_cast<int>(n),
            half = whole / 2;  // two steps: the result may be subnormal
  return sum * power_of_two(half) * power_of_two(whole - half);
}

double ln_double(double x) {
  if (!(x > 0)) return x == 0 ? -kInf : kNaN;
  if (x == kInf) return x;
  int extra = 0;
  if (x < 0x1p-1022) x *= 0x1p54, extra = -54;
  const uint64_t bits = __builtin_bit_cast(uint64_t, x);
  int exponent = static_cast<int>(bits >> 52) - 1023 + extra;
  double m =
      __builtin_bit_cast(double, (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);  // [1, 2)
  if (m > 0x1.6a09e667f3bcdp+0) m *= 0.5, ++exponent;
  // ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| <= 0.172
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  for (int k = 23; k >= 3; k -= 2) series = (series + 1.0 / k) * s2;
  const double e = exponent;
  return e * 0x1.62e42fefp-1 + (2 * s + (2 * s * series + e * 0x1.473de6af278edp-34));
}

double pow_double(double base, double exponent) { return exp_double(exponent * ln_double(base)); }

SinCos sincos_double(double x) {
  if (!(x >= -8388608.0 && x <= 8388608.0)) return {kNaN, kNaN};
  const double n = round_even(x * 0x1.45f306dc9c883p-1);
  // pi / 2 in three parts of 30, 30 and 53 bits: n < 2^23 makes the first two products exact.
  const double r = ((x - n * 0x1.921fb54p+0) - n * 0x1.10b46118p-30) - n * 0x1.313198a2e037p-61;
  const double r2 = r * r;
  double s = 0, c = 0;
  for (int k = 17; k >= 3; k -= 2) s = (s + 1) * -r2 / (k * (k - 1));
  for (int k = 18; k >= 2; k -= 2) c = (c + 1) * -r2 / (k * (k - 1));
  s = r + r * s;
  c += 1;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace deepmint::kernels
