// For tests: what the operations of V4.1 may give that work in double and round once. The errors of
// single sums and roundings are those of kernels/rounding_testing.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/rounding_testing.h"
#include "model/deepseek_v41/config.h"
#include "model/deepseek_v41/weights.h"

namespace deepmint::v41 {

using kernels::Chain, kernels::kExpError, kernels::kFloatUnit, kernels::kUnit, kernels::quotient,
    kernels::Rounded, kernels::Sum, kernels::to_bf16, kernels::to_f32;

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

// What attention of one head may give, from the query and the rows alone. Each rounding of the
// definition (ref_ops.h) is followed at both ends of what its operand may be, so that a score that
// errs in its last bits moves a weight by a step of BF16 where the boundary lies in between, and
// nowhere else. `pairs`: dot products take two terms at a time (kernels/v41_attention.h).
inline std::vector<Rounded> attend_twin(const float* q, std::span<const float* const> rows, int d,
                                        float sink, float scale, bool pairs) {
  std::vector<Rounded> score(rows.size()), out(static_cast<size_t>(d));
  Rounded largest = {-INFINITY, -INFINITY};
  const auto add = [&](Chain& c, double a, double b) {
    if (pairs) return c.add_pair(a, b);
    c.add(a);
    c.add(b);
  };
  for (size_t t = 0; t < rows.size(); ++t) {
    Chain dot;
    for (int i = 0; i < d; i += 2)
      add(dot, static_cast<double>(q[i]) * rows[t][i],
          static_cast<double>(q[i + 1]) * rows[t][i + 1]);
    score[t] = to_f32(dot.value * scale, (dot.error + 4 * kUnit * std::fabs(dot.value)) * scale);
    largest = {std::max(largest.low, score[t].low), std::max(largest.high, score[t].high)};
  }
  const auto exp_of = [&](Rounded x) {  // of x - largest
    const double low = std::exp(static_cast<double>(x.low - largest.high)),
                 high = std::exp(static_cast<double>(x.high - largest.low));
    return Rounded{static_cast<float>(low * (1 - kExpError)),
                   static_cast<float>(high * (1 + kExpError))};
  };
  std::vector<Rounded> weight;
  double low = 0, high = 0;
  for (const Rounded& s : score) {
    Rounded e = exp_of(s);
    e.high = std::min(e.high, 1.0f);
    weight.push_back(to_bf16(e));
    low += static_cast<double>(e.low);
    high += static_cast<double>(e.high);
  }
  const Rounded of_sink = exp_of({sink, sink});
  const double rounding = kUnit * static_cast<double>(rows.size() + 1);
  const Rounded z = {static_cast<float>((low + of_sink.low) * (1 - rounding)),
                     static_cast<float>((high + of_sink.high) * (1 + rounding))};
  for (int i = 0; i < d; ++i) {
    Chain sum;
    const auto term = [&](size_t t) {  // its middle; its half width is an error of what it joins
      if (t >= rows.size()) return 0.0;
      const double from = weight[t].low, to = weight[t].high, value = rows[t][i];
      sum.error += (to - from) / 2 * std::fabs(value);
      return (from + to) / 2 * value;
    };
    for (size_t t = 0; t < rows.size(); t += 2) {
      const double a = term(t), b = term(t + 1);
      add(sum, a, b);
    }
    out[static_cast<size_t>(i)] = to_bf16(quotient(to_f32(sum), z));
  }
  return out;
}

}  // namespace deepmint::v41
