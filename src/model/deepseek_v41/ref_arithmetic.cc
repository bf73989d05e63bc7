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
  void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) override {
    const auto groups = static_cast<int64_t>(w.size());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t g = 0; g < groups; ++g) {
        const Matrix& group = w[static_cast<size_t>(g)];
        linear_plain(group, x + (i * groups + g) * group.k, 1, y + (i * groups + g) * group.n,
                     Output::kBf16);
      }
  }
  void rms_norm(const float* x, int64_t m, int d, const float* weight, double eps,
                float* y) override {
    for (int64_t i = 0; i < m; ++i) ref::rms_norm(x + i * d, weight, d, eps, y + i * d);
  }
  void rope_table(const int32_t* positions, int64_t m, std::span<const float> inv,
                  float* table) override {
    for (int64_t i = 0; i < m; ++i)
      ref::rope_table(inv, positions[i], table + i * 2 * static_cast<int64_t>(inv.size()));
  }
  void rope(float* x, int64_t m, int groups, int d, int rotary, const float* table,
            int sign) override {
    for (int64_t i = 0; i < m; ++i)
      for (int g = 0; g < groups; ++g)
        ref::rope_by_table(x + (i * groups + g) * d, d, rotary, table + i * rotary, sign);
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
  void pack(Packing packing, const float* x, int64_t m, int d, std::byte* const* rows) override {
    for (int64_t i = 0; i < m; ++i, x += d) {
      if (rows[i] == nullptr) continue;
      auto* codes = reinterpret_cast<uint8_t*>(rows[i]);
      if (packing == Packing::kWindow) quantize_q8(x, d, codes, codes + d);
      if (packing == Packing::kGlobal) quantize_q4kv(x, d, codes, codes + d / 2);
      if (packing == Packing::kIndex) quantize_q4idx(x, d, codes, codes + d / 2);
    }
  }
  void attend(float* q, std::span<const AttentionRow> rows, const Config& c,
              const float* sink) override {
    const auto d = static_cast<size_t>(c.head_dim);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
    std::vector<float> values, out(d);
    std::vector<const float*> keys;
    for (const AttentionRow& row : rows) {
      const auto n =
          static_cast<size_t>(row.position - row.floor + 1) + static_cast<size_t>(row.n_selected);
      values.resize(n * d);
      keys.clear();
      const auto next = [&] { return values.data() + keys.size() * d; };
      for (int32_t p = row.floor; p <= row.position; ++p) {
        const auto* codes = reinterpret_cast<const uint8_t*>(row.window.row(p));
        dequantize_q8(codes, codes + d, c.head_dim, next());
        keys.push_back(next());
      }
      for (int32_t i = 0; i < row.n_selected; ++i) {
        const auto* codes = reinterpret_cast<const uint8_t*>(row.global.row(row.selected[i]));
        dequantize_q4kv(codes, codes + d / 2, c.head_dim, next());
        keys.push_back(next());
      }
      for (int h = 0; h < c.heads; ++h, q += d) {
        ref::attend(q, keys, c.head_dim, sink[h], scale, out.data());
        std::copy(out.begin(), out.end(), q);
      }
    }
  }
  void pool(std::span<const Pair> pairs, int d, float* out) override {
    for (size_t i = 0; i < pairs.size(); ++i)
      ref::pool(pairs[i].kv, pairs[i].gate, d, out + i * static_cast<size_t>(d));
  }
  void select(float* q, const float* w, std::span<const SelectRow> rows, const Config& c,
              Candidates candidates) override {
    const auto dim = static_cast<size_t>(c.index_dim), heads = static_cast<size_t>(c.index_heads);
    std::vector<uint8_t> codes(dim / 2), scales(dim / 32);
    std::vector<float> scores, key(dim);
    std::vector<int32_t> chosen;
    const auto put = [&](int32_t* out, int32_t* n) {
      std::copy(chosen.begin(), chosen.end(), out);
      *n = static_cast<int32_t>(chosen.size());
    };
    for (const SelectRow& row : rows) {
      for (size_t h = 0; h < heads; ++h) {
        quantize_q4idx(q + h * dim, c.index_dim, codes.data(), scales.data());
        dequantize_q4idx(codes.data(), scales.data(), c.index_dim, q + h * dim);
      }
      scores.resize(static_cast<size_t>(row.visible));
      for (int32_t r = 0; r < row.visible; ++r) {
        const auto* packed = reinterpret_cast<const uint8_t*>(row.keys.row(r));
        dequantize_q4idx(packed, packed + dim / 2, c.index_dim, key.data());
        scores[static_cast<size_t>(r)] =
            ref::index_score(q, w, c.index_heads, c.index_dim, key.data());
      }
      if (candidates == Candidates::kMake) {
        chosen.clear();
        if (row.visible > 0)
          ref::candidate_blocks(scores, c.candidate_block_size, c.candidate_blocks, chosen);
        put(row.blocks, row.n_blocks);
      } else if (candidates == Candidates::kUse) {
        for (int32_t r = 0; r < row.visible; ++r)
          if (!std::binary_search(row.blocks, row.blocks + *row.n_blocks,
                                  r / c.candidate_block_size))
            scores[static_cast<size_t>(r)] = -INFINITY;
      }
      ref::top_rows(scores, c.index_topk, chosen);
      put(row.rows, row.n_rows);
      q += heads * dim;
      w += heads;
    }
  }
  void moe(const float* u, int64_t m, const Config& c, int layer, const LayerWeights& w,
           float* y) override {
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
      if (hints_ != nullptr) hints_->experts(layer, experts);
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
  void engram_rows(const EngramWeights& w, std::span<const int64_t> rows, const Config& c,
                   float* out) override {
    const auto dim = static_cast<size_t>(c.engram_dim);
    const auto* codes = reinterpret_cast<const uint8_t*>(w.table->bytes.data());
    const auto* scales = reinterpret_cast<const uint8_t*>(w.table_scale->bytes.data());
    for (const int64_t r : rows) {
      const auto row = static_cast<size_t>(r);
      dequantize_q8(codes + row * dim, scales + row * (dim / 32), c.engram_dim, out);
      out += dim;
    }
  }
  void engram(float* X, const float* z, int64_t m, const Config& c,
              const EngramWeights& w) override {
    for (int64_t i = 0; i < m; ++i)
      ref::engram_gate(X + i * c.streams * c.hidden, z + i * (c.streams + 1) * c.hidden, c.streams,
                       c.hidden, w.q_weight.data(), w.k_weight.data(), c.norm_eps);
  }

 private:
  void linear_plain(const Matrix& w, const float* x, int64_t m, float* y, Output output) {
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
