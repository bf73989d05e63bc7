// For tests: what an operation may give that works in double and rounds once.
//
// Such an operation and the reference add in different orders, so that their doubles differ by a
// known error, far below one step of the result. Rounding never turns an order around, so both
// results lie between the roundings of value - error and value + error: equal bits, unless the
// boundary between two results lies inside that gap.
//
//   EXPECT_TRUE(to_bf16(value, error).holds(got[i]));
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/weights.h"

namespace deepmint::v41 {

inline constexpr double kUnit = 0x1p-53;  // of double: an operation errs by that share at most
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
inline Rounded to_bf16(double value, double error) {
  const Rounded f = to_f32(value, error);
  return {round_bf16(f.low), round_bf16(f.high)};
}

// A sum in double and how far two orders of it may differ: n - 1 additions each, of partial sums
// that are at most the sum of magnitudes. Products of two floats are exact in double.
struct Sum {
  double value = 0, magnitude = 0;
  int terms = 0;
  void add(double term) { value += term, magnitude += std::fabs(term), ++terms; }
  double error() const { return 2 * kUnit * terms * magnitude; }
};
inline Rounded to_bf16(const Sum& sum) { return to_bf16(sum.value, sum.error()); }

// Hyper-connection coefficients of one row x, as the reference rounds them. Every rounding to float
// whose operand two correct ways compute alike is computed alike here too; where the operand is a
// sum or an exponential in double, `certain` tells whether the rounding can come out in one way
// only. Then every bit of the result is determined.
struct MixTwin {
  bool certain = true;
  std::vector<float> pre, post, comb;

  MixTwin(const float* x, const Config& c, const MixWeights& w) {
    const int hc = c.streams, n = hc * c.hidden;
    Sum squares;
    for (int i = 0; i < n; ++i) squares.add(static_cast<double>(x[i]) * x[i]);
    const double mean = squares.value / n, inverse = 1 / std::sqrt(mean + c.norm_eps);
    // Half the relative error of the mean, and a division, a sum, a root and a division.
    const float r = once(inverse, inverse * (squares.error() / squares.value / 2 + 8 * kUnit));
    const auto value = [&](int row, float scale) {
      const float* fn = w.fn.data() + static_cast<ptrdiff_t>(row) * n;
      Sum dot;
      for (int i = 0; i < n; ++i) dot.add(static_cast<double>(x[i]) * fn[i]);
      return once(dot.value, dot.error()) * r * scale + w.base[static_cast<size_t>(row)];
    };
    const auto sigmoid = [&](float v) {
      const double s = 1 / (1 + std::exp(-static_cast<double>(v)));
      return once(s, kExpError * s);
    };
    for (int j = 0; j < hc; ++j) {
      pre.push_back(sigmoid(value(j, w.scale[0])) + c.hc_eps);
      post.push_back(2.0f * sigmoid(value(hc + j, w.scale[1])));
    }
    for (int j = 0; j < hc; ++j) {
      std::vector<float> row;
      for (int k = 0; k < hc; ++k) row.push_back(value(2 * hc + j * hc + k, w.scale[2]));
      const float most = *std::max_element(row.begin(), row.end());
      for (const float v : row) {
        const double e = std::exp(static_cast<double>(v - most));
        comb.push_back(once(e, kExpError * e));
      }
    }
    const size_t streams = static_cast<size_t>(hc);
    // Divides `streams` values, `step` apart, by their sum; eps goes to the sum or to the quotient.
    // So few terms have one order everywhere, ascending.
    const auto normalise = [&](size_t first, size_t step, float to_sum, float to_quotient) {
      double s = 0;
      for (size_t k = 0; k < streams; ++k) s += static_cast<double>(comb[first + k * step]);
      const float sum = static_cast<float>(s) + to_sum;
      for (size_t k = 0; k < streams; ++k)
        comb[first + k * step] = comb[first + k * step] / sum + to_quotient;
    };
    for (int round = 0; round < c.sinkhorn_rounds; ++round) {
      for (size_t j = 0; j < streams; ++j)
        round == 0 ? normalise(j * streams, 1, 0, c.hc_eps)
                   : normalise(j * streams, 1, c.hc_eps, 0);
      for (size_t k = 0; k < streams; ++k) normalise(k, streams, c.hc_eps, 0);
    }
  }

 private:
  float once(double value, double error) {
    const Rounded r = to_f32(value, error);
    certain = certain && r.certain();
    return static_cast<float>(value);
  }
};

}  // namespace deepmint::v41
