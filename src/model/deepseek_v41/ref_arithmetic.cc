#include <algorithm>
#include <cmath>
#include <vector>

#include "model/deepseek_v41/arithmetic.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/ref_ops.h"

namespace deepmint::v41 {
namespace {

class ReferenceArithmetic : public Arithmetic {
 public:
  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    std::vector<float> quantised;
    if (w.kind != WeightKind::kBf16) {
      quantised.assign(x, x + m * w.k);
      ref::fake_q8(quantised.data(), m * w.k);
      x = quantised.data();
    }
    linear_plain(w, x, m, y, output);
  }
  void linear_plain(const Matrix& w, const float* x, int64_t m, float* y, Output output) override {
    std::vector<float> scratch;
    const std::vector<float>* values = cached(w);
    if (values == nullptr) scratch.resize(static_cast<size_t>(w.k));
    for (int64_t n = 0; n < w.n; ++n) {
      const float* row = values != nullptr ? values->data() + n * w.k : scratch.data();
      if (values == nullptr) dequantize_row(w, n, scratch.data());
      for (int64_t i = 0; i < m; ++i)
        ref::matmul(x + i * w.k, 1, w.k, row, 1, y + i * w.n + n, output == Output::kBf16);
    }
  }
  void rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                float* y) override {
    for (int64_t i = 0; i < m; ++i) ref::rms_norm(x + i * d, weight, d, eps, y + i * d);
  }
  void rope(float* x, int64_t m, int groups, int d, std::span<const float> inv,
            const int32_t* positions, int sign) override {
    for (int64_t i = 0; i < m; ++i)
      for (int g = 0; g < groups; ++g)
        ref::rope(x + (i * groups + g) * d, d, inv, positions[i], sign);
  }
  void mix(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre, float* post,
           float* comb) override {
    const int hc = c.streams;
    for (int64_t i = 0; i < m; ++i)
      ref::mix(X + i * hc * c.hidden, hc, c.hidden, w.fn.data(), w.base.data(), w.scale.data(),
               c.sinkhorn_rounds, c.hc_eps, c.norm_eps, pre + i * hc, post + i * hc,
               comb + i * hc * hc);
  }
  void collapse(const float* X, int64_t m, const Config& c, const float* pre, float* y) override {
    for (int64_t i = 0; i < m; ++i)
      ref::collapse(X + i * c.streams * c.hidden, c.streams, c.hidden, pre + i * c.streams,
                    y + i * c.hidden);
  }
  void expand(const float* y, int64_t m, const Config& c, const float* post, const float* comb,
              float* X) override {
    std::vector<float> out(static_cast<size_t>(c.streams) * static_cast<size_t>(c.hidden));
    for (int64_t i = 0; i < m; ++i) {
      float* x = X + i * c.streams * c.hidden;
      ref::expand(y + i * c.hidden, x, c.streams, c.hidden, post + i * c.streams,
                  comb + i * c.streams * c.streams, out.data());
      std::copy(out.begin(), out.end(), x);
    }
  }
  void attend(const float* q, const KeyRows& keys, const Config& c, const float* sink,
              float* out) override {
    const auto d = static_cast<size_t>(c.head_dim);
    std::vector<float> values((keys.window.size() + keys.global.size()) * d);
    std::vector<const float*> rows;
    for (const std::byte* row : keys.window) {
      const auto* codes = reinterpret_cast<const uint8_t*>(row);
      float* v = values.data() + rows.size() * d;
      dequantize_q8(codes, codes + d, c.head_dim, v);
      rows.push_back(v);
    }
    for (const std::byte* row : keys.global) {
      const auto* codes = reinterpret_cast<const uint8_t*>(row);
      float* v = values.data() + rows.size() * d;
      dequantize_q4kv(codes, codes + d / 2, c.head_dim, v);
      rows.push_back(v);
    }
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
    for (int h = 0; h < c.heads; ++h)
      ref::attend(q + static_cast<int64_t>(h) * c.head_dim, rows, c.head_dim, sink[h], scale,
                  out + static_cast<int64_t>(h) * c.head_dim);
  }
  void pool(const float* const kv[2], const float* const gate[2], int d, float* out) override {
    ref::pool({kv, 2}, {gate, 2}, d, out);
  }
  void index_scores(const float* q, const float* w, std::span<const std::byte* const> keys,
                    const Config& c, float* scores) override {
    std::vector<float> key(static_cast<size_t>(c.index_dim));
    for (size_t j = 0; j < keys.size(); ++j) {
      const auto* codes = reinterpret_cast<const uint8_t*>(keys[j]);
      dequantize_q4idx(codes, codes + c.index_dim / 2, c.index_dim, key.data());
      scores[j] = ref::index_score(q, w, c.index_heads, c.index_dim, key.data());
    }
  }
  void moe(const float* u, int64_t m, const Config& c, const LayerWeights& w, float* y) override {
    const auto hidden = static_cast<size_t>(c.hidden), inter = static_cast<size_t>(c.expert_inter);
    std::vector<float> logits(static_cast<size_t>(c.experts)), gate(inter), up(inter), t(inter),
        part(hidden);
    std::vector<int32_t> experts(static_cast<size_t>(c.experts_per_token));
    std::vector<float> weights(experts.size());
    std::vector<double> sum(hidden);
    for (int64_t i = 0; i < m; ++i) {
      const float* x = u + i * c.hidden;
      linear(w.gate, x, 1, logits.data(), Output::kF32);
      ref::route(logits, w.gate_bias, c.experts_per_token, static_cast<float>(c.route_scale),
                 c.gate_temperature, experts, weights);
      std::fill(sum.begin(), sum.end(), 0.0);
      const auto add = [&](const Expert& e, bool has_weight, float weight) {
        linear(e.w1, x, 1, gate.data(), Output::kBf16);
        linear(e.w3, x, 1, up.data(), Output::kBf16);
        ref::swiglu(gate.data(), up.data(), c.expert_inter, c.swiglu_limit, has_weight, weight,
                    t.data());
        linear(e.w2, t.data(), 1, part.data(), Output::kBf16);
        for (size_t d = 0; d < hidden; ++d) sum[d] += part[d];
      };
      for (size_t e = 0; e < experts.size(); ++e)
        add(w.experts[static_cast<size_t>(experts[e])], true, weights[e]);
      add(w.shared, false, 0);
      for (size_t d = 0; d < hidden; ++d)
        y[static_cast<size_t>(i) * hidden + d] = round_bf16(static_cast<float>(sum[d]));
    }
  }
  void engram(float* X, const float* z, int64_t m, const Config& c,
              const EngramWeights& w) override {
    for (int64_t i = 0; i < m; ++i)
      ref::engram_gate(X + i * c.streams * c.hidden, z + i * (c.streams + 1) * c.hidden, c.streams,
                       c.hidden, w.q_weight.data(), w.k_weight.data(), c.norm_eps);
  }

 private:
  // Small checkpoints are expanded once; this only saves time, the values are exact either way.
  static constexpr size_t kCacheBytes = size_t{1} << 28;
  const std::vector<float>* cached(const Matrix& w) {
    if (w.index < 0) return nullptr;
    const auto at = static_cast<size_t>(w.index);
    if (cache_.size() <= at) cache_.resize(at + 1);
    std::vector<float>& values = cache_[at];
    const size_t count = static_cast<size_t>(w.n) * static_cast<size_t>(w.k);
    if (values.empty()) {
      if (cached_bytes_ + count * sizeof(float) > kCacheBytes) return nullptr;
      cached_bytes_ += count * sizeof(float);
      values.resize(count);
      for (int64_t n = 0; n < w.n; ++n) dequantize_row(w, n, values.data() + n * w.k);
    }
    return &values;
  }
  std::vector<std::vector<float>> cache_;
  size_t cached_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Arithmetic> make_reference_arithmetic() {
  return std::make_unique<ReferenceArithmetic>();
}

}  // namespace deepmint::v41
