#include "model/deepseek_v41/ref_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/deepseek_v41/formats.h"

namespace deepmint::v41::ref {
namespace {

// Eight partial sums, only so that the compiler may use vector registers: in double the order is
// far below one float rounding.
double dot(const float* a, const float* b, int64_t n) {
  double part[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane)
      part[lane] += static_cast<double>(a[i + lane]) * b[i + lane];
  for (; i < n; ++i) part[0] += static_cast<double>(a[i]) * b[i];
  return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}
double mean_square(const float* x, int64_t n) { return dot(x, x, n) / static_cast<double>(n); }
float exp_f(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }
float sigmoid_f(double x) { return static_cast<float>(1.0 / (1.0 + std::exp(-x))); }

}  // namespace

void matmul(const float* x, int64_t m, int64_t k, const float* w, int64_t n, float* y,
            bool to_bf16) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      const float v = static_cast<float>(dot(x + row * k, w + col * k, k));
      y[row * n + col] = to_bf16 ? round_bf16(v) : v;
    }
  }
}

void fake_q8(float* x, int64_t n) {
  uint8_t codes[32], scale = 0;
  for (int64_t b = 0; b < n; b += 32) {
    quantize_q8(x + b, 32, codes, &scale);
    dequantize_q8(codes, &scale, 32, x + b);
  }
}

void rms_norm(const float* x, const float* w, int d, double eps, float* y) {
  const float r = static_cast<float>(1.0 / std::sqrt(mean_square(x, d) + eps));
  for (int i = 0; i < d; ++i) y[i] = round_bf16(w[i] * (x[i] * r));
}

std::vector<float> inverse_frequencies(int dim, double theta, double factor, double original,
                                       double beta_fast, double beta_slow) {
  std::vector<float> inv(static_cast<size_t>(dim / 2));
  for (int m = 0; m < dim / 2; ++m)
    inv[static_cast<size_t>(m)] = 1.0f / static_cast<float>(std::pow(theta, 2.0 * m / dim));
  if (factor == 0) return inv;
  const auto turn = [&](double rotations) {
    return dim * std::log(original / (2 * M_PI * rotations)) / (2 * std::log(theta));
  };
  const double low = std::max(std::floor(turn(beta_fast)), 0.0);
  const double high = std::min(std::ceil(turn(beta_slow)), static_cast<double>(dim - 1));
  const auto span = static_cast<float>(std::max(high - low, 1e-3));
  for (int m = 0; m < dim / 2; ++m) {
    float& f = inv[static_cast<size_t>(m)];
    const float keep =
        1.0f - std::clamp((static_cast<float>(m) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    f = f / static_cast<float>(factor) * (1.0f - keep) + f * keep;
  }
  return inv;
}

void rope_table(std::span<const float> inv, int64_t position, float* cos_sin) {
  for (size_t m = 0; m < inv.size(); ++m) {
    const float angle = static_cast<float>(position) * inv[m];
    cos_sin[m] = static_cast<float>(std::cos(static_cast<double>(angle)));
    cos_sin[inv.size() + m] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

void rope_by_table(float* x, int d, int rotary, const float* cos_sin, int sign) {
  const int half = rotary / 2;
  x += d - rotary;
  for (int m = 0; m < half; ++m) {
    const float c = cos_sin[m], s = static_cast<float>(sign) * cos_sin[half + m];
    const float a = x[2 * m], b = x[2 * m + 1];
    x[2 * m] = round_bf16(a * c - b * s);
    x[2 * m + 1] = round_bf16(a * s + b * c);
  }
}

void rope(float* x, int d, std::span<const float> inv, int64_t position, int sign) {
  std::vector<float> cos_sin(2 * inv.size());
  rope_table(inv, position, cos_sin.data());
  rope_by_table(x, d, static_cast<int>(2 * inv.size()), cos_sin.data(), sign);
}

void mix(const float* X, int hc, int d, const float* fn, const float* base, const float* scale,
         int iterations, float hc_eps, double norm_eps, float* pre, float* post, float* comb) {
  const int64_t n = static_cast<int64_t>(hc) * d;
  const float r = static_cast<float>(1.0 / std::sqrt(mean_square(X, n) + norm_eps));
  const auto m = [&](int row) { return static_cast<float>(dot(X, fn + row * n, n)) * r; };
  for (int j = 0; j < hc; ++j) {
    pre[j] = sigmoid_f(m(j) * scale[0] + base[j]) + hc_eps;
    post[j] = 2.0f * sigmoid_f(m(hc + j) * scale[1] + base[hc + j]);
  }
  const auto at = [&](int j, int k) -> float& { return comb[j * hc + k]; };
  const auto row_sum = [&](int j) {
    double s = 0;
    for (int k = 0; k < hc; ++k) s += at(j, k);
    return static_cast<float>(s);
  };
  const auto divide_columns = [&] {
    for (int k = 0; k < hc; ++k) {
      double s = 0;
      for (int j = 0; j < hc; ++j) s += at(j, k);
      const float denominator = static_cast<float>(s) + hc_eps;
      for (int j = 0; j < hc; ++j) at(j, k) /= denominator;
    }
  };
  for (int j = 0; j < hc; ++j) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int k = 0; k < hc; ++k) {
      const int row = 2 * hc + j * hc + k;
      at(j, k) = m(row) * scale[2] + base[row];
      largest = std::max(largest, at(j, k));
    }
    for (int k = 0; k < hc; ++k) at(j, k) = exp_f(at(j, k) - largest);
    const float sum = row_sum(j);
    for (int k = 0; k < hc; ++k) at(j, k) = at(j, k) / sum + hc_eps;
  }
  divide_columns();
  for (int round = 1; round < iterations; ++round) {
    for (int j = 0; j < hc; ++j) {
      const float denominator = row_sum(j) + hc_eps;
      for (int k = 0; k < hc; ++k) at(j, k) /= denominator;
    }
    divide_columns();
  }
}

void collapse(const float* X, int hc, int d, const float* pre, float* y) {
  for (int i = 0; i < d; ++i) {
    double s = 0;
    for (int c = 0; c < hc; ++c) s += static_cast<double>(pre[c]) * X[c * d + i];
    y[i] = round_bf16(static_cast<float>(s));
  }
}

void expand(const float* y, const float* X, int hc, int d, const float* post, const float* comb,
            float* out) {
  for (int k = 0; k < hc; ++k) {
    for (int i = 0; i < d; ++i) {
      double s = 0;
      for (int j = 0; j < hc; ++j) s += static_cast<double>(comb[j * hc + k]) * X[j * d + i];
      out[k * d + i] = round_bf16(static_cast<float>(static_cast<double>(post[k]) * y[i] + s));
    }
  }
}

void attend(const float* q, std::span<const float* const> rows, int d, float sink, float scale,
            float* out) {
  std::fill(out, out + d, 0.0f);
  if (rows.empty()) return;
  std::vector<float> p(rows.size());
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t t = 0; t < rows.size(); ++t) {
    p[t] = static_cast<float>(dot(q, rows[t], d)) * scale;
    largest = std::max(largest, p[t]);
  }
  double z = 0;
  for (float& v : p) {
    v = exp_f(v - largest);
    z += v;
  }
  const auto denominator = static_cast<float>(z + exp_f(sink - largest));
  std::vector<double> sum(static_cast<size_t>(d), 0.0);
  for (size_t t = 0; t < rows.size(); ++t) {
    const float weight = round_bf16(p[t]);
    for (int i = 0; i < d; ++i)
      sum[static_cast<size_t>(i)] += static_cast<double>(weight) * rows[t][i];
  }
  for (int i = 0; i < d; ++i)
    out[i] = round_bf16(static_cast<float>(sum[static_cast<size_t>(i)]) / denominator);
}

void pool(std::span<const float* const> kv, std::span<const float* const> gate, int d, float* out) {
  for (int i = 0; i < d; ++i) {
    float largest = -std::numeric_limits<float>::infinity();
    for (const float* g : gate) largest = std::max(largest, g[i]);
    double sum = 0, total = 0;
    for (size_t t = 0; t < kv.size(); ++t) {
      const double e = exp_f(gate[t][i] - largest);
      sum += kv[t][i] * e;
      total += e;
    }
    out[i] = round_bf16(static_cast<float>(sum / total));
  }
}

float index_score(const float* q, const float* w, int heads, int d, const float* k) {
  double s = 0;
  for (int h = 0; h < heads; ++h)
    s += static_cast<double>(w[h]) *
         std::max(static_cast<float>(dot(q + static_cast<int64_t>(h) * d, k, d)), 0.0f);
  return static_cast<float>(s);
}

void top_rows(std::span<const float> scores, int k, std::vector<int32_t>& out) {
  out.resize(scores.size());
  std::iota(out.begin(), out.end(), 0);
  std::erase_if(out, [&](int32_t j) {
    return scores[static_cast<size_t>(j)] == -std::numeric_limits<float>::infinity();
  });
  if (static_cast<int64_t>(out.size()) > k) {
    std::nth_element(out.begin(), out.begin() + k, out.end(), [&](int32_t a, int32_t b) {
      const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    out.resize(static_cast<size_t>(k));
  }
  std::sort(out.begin(), out.end());
}

void candidate_blocks(std::span<const float> scores, int size, int k, std::vector<int32_t>& out) {
  const size_t n = scores.size(), step = static_cast<size_t>(size), blocks = (n + step - 1) / step;
  std::vector<float> best(blocks, -std::numeric_limits<float>::infinity());
  for (size_t j = 0; j < n; ++j) best[j / step] = std::max(best[j / step], scores[j]);
  best[(n - 1) / step] = std::numeric_limits<float>::infinity();
  top_rows(best, k, out);
}

void route(std::span<const float> logits, std::span<const float> bias, int k, float scale,
           double temperature, std::span<int32_t> experts, std::span<float> weights) {
  const size_t n = logits.size();
  std::vector<float> score(n);
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (size_t e = 0; e < n; ++e) {
    const double t = logits[e] / temperature;
    score[e] = static_cast<float>(std::sqrt(t > 20 ? t : std::log1p(std::exp(t))));
  }
  const auto key = [&](int32_t e) {
    return score[static_cast<size_t>(e)] + bias[static_cast<size_t>(e)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return key(a) > key(b); });
  order.resize(static_cast<size_t>(k));
  double sum = 0;
  for (const int32_t e : order) sum += score[static_cast<size_t>(e)];
  const float denominator = static_cast<float>(sum) + 1e-20f;
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size(); ++i) {
    experts[i] = order[i];
    weights[i] = scale * (score[static_cast<size_t>(order[i])] / denominator);
  }
}

void swiglu(const float* g, const float* p, int n, float limit, bool has_weight, float weight,
            float* t) {
  for (int i = 0; i < n; ++i) {
    const float gate = std::min(g[i], limit), up = std::clamp(p[i], -limit, limit);
    float v = gate * sigmoid_f(gate) * up;
    if (has_weight) v = weight * v;
    t[i] = round_bf16(v);
  }
}

void engram_gate(float* X, const float* z, int hc, int d, const float* q_weight,
                 const float* k_weight, double eps) {
  const float* value = z + static_cast<int64_t>(hc) * d;
  for (int c = 0; c < hc; ++c) {
    float* x = X + static_cast<int64_t>(c) * d;
    const float* key = z + static_cast<int64_t>(c) * d;
    const float* qw = q_weight + static_cast<int64_t>(c) * d;
    const float* kw = k_weight + static_cast<int64_t>(c) * d;
    double s = 0;
    for (int i = 0; i < d; ++i) s += static_cast<double>(x[i]) * qw[i] * kw[i] * key[i];
    s = s * (1.0 / std::sqrt(mean_square(x, d) + eps)) *
        (1.0 / std::sqrt(mean_square(key, d) + eps)) * std::pow(d, -0.5);
    const double gate = sigmoid_f(std::copysign(std::sqrt(std::max(std::fabs(s), 1e-6)), s));
    for (int i = 0; i < d; ++i) x[i] = round_bf16(static_cast<float>(x[i] + gate * value[i]));
  }
}

}  // namespace deepmint::v41::ref
