#include "model/deepseek_v41/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <unordered_set>

#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/memory_plan.h"

namespace deepmint::v41 {
namespace {

class Binder {
 public:
  Binder(const SafetensorsModel& model, const Config& config, Weights& out)
      : model_(model), c_(config), out_(out) {}

  const TensorView* tensor(const std::string& name, DType dtype, std::vector<uint64_t> shape) {
    const TensorView* t = model_.tensor(name);
    if (t == nullptr) {
      set_error(name, fmt::format("expected [{}] {}, found no such tensor", fmt::join(shape, ", "),
                                  info(dtype).name));
      return nullptr;
    }
    used_.insert(t);
    if (t->dtype != dtype || t->shape != shape) {
      set_error(name,
                fmt::format("expected [{}] {}, found [{}] {}", fmt::join(shape, ", "),
                            info(dtype).name, fmt::join(t->shape, ", "), info(t->dtype).name));
      return nullptr;
    }
    return t;
  }
  std::vector<float> bf16(const std::string& name, std::vector<uint64_t> shape) {
    const TensorView* t = tensor(name, DType::kBF16, std::move(shape));
    std::vector<float> values;
    if (t == nullptr) return values;
    values.resize(t->elements());
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t b = 0;
      std::memcpy(&b, t->bytes.data() + 2 * i, 2);
      values[i] = bf16_to_float(b);
    }
    return values;
  }
  std::vector<float> f32(const std::string& name, std::vector<uint64_t> shape) {
    const TensorView* t = tensor(name, DType::kF32, std::move(shape));
    std::vector<float> values;
    if (t == nullptr) return values;
    values.resize(t->elements());
    std::memcpy(values.data(), t->bytes.data(), t->bytes.size());
    return values;
  }
  Matrix matrix(const std::string& base, WeightKind kind, int64_t n, int64_t k) {
    Matrix m;
    m.kind = kind;
    m.n = n;
    m.k = k;
    m.index = out_.matrices++;
    const auto un = static_cast<uint64_t>(n), uk = static_cast<uint64_t>(k);
    switch (kind) {
      case WeightKind::kBf16:
        m.weight = tensor(base + ".weight", DType::kBF16, {un, uk});
        break;
      case WeightKind::kFp8:
        m.weight = tensor(base + ".weight", DType::kF8E4M3, {un, uk});
        m.scale = tensor(base + ".scale", DType::kF8E8M0, {(un + 31) / 32, uk / 32});
        break;
      case WeightKind::kFp4:
        m.weight = tensor(base + ".weight", DType::kI8, {un, uk / 2});
        m.scale = tensor(base + ".scale", DType::kF8E8M0, {un, uk / 32});
        break;
    }
    return m;
  }
  Expert expert(const std::string& base, WeightKind kind) {
    Expert e;
    e.w1 = matrix(base + ".w1", kind, c_.expert_inter, c_.hidden);
    e.w3 = matrix(base + ".w3", kind, c_.expert_inter, c_.hidden);
    e.w2 = matrix(base + ".w2", kind, c_.hidden, c_.expert_inter);
    return e;
  }
  MixWeights mix(const std::string& layer, const char* sublayer) {
    const auto hc = static_cast<uint64_t>(c_.streams), rows = 2 * hc + hc * hc;
    MixWeights m;
    if (const TensorView* t = tensor(fmt::format("{}hc_{}_fn", layer, sublayer), DType::kF32,
                                     {rows, hc * static_cast<uint64_t>(c_.hidden)})) {
      const auto* values = reinterpret_cast<const float*>(t->bytes.data());
      if (reinterpret_cast<uintptr_t>(values) % alignof(float) != 0) {
        m.copy = AlignedBuffer<float>::uninitialized(t->elements());
        std::memcpy(m.copy.data(), t->bytes.data(), t->bytes.size());
        values = m.copy.data();
      }
      m.fn = {values, t->elements()};
    }
    m.base = f32(fmt::format("{}hc_{}_base", layer, sublayer), {rows});
    m.scale = f32(fmt::format("{}hc_{}_scale", layer, sublayer), {3});
    return m;
  }

  void layer(int i, LayerWeights& l) {
    const std::string p = fmt::format("layers.{}.", i), a = p + "attn.", f = p + "ffn.";
    const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
    const int ratio = c_.ratios[static_cast<size_t>(i)];
    l.attn_norm = bf16(p + "attn_norm.weight", {u(c_.hidden)});
    l.ffn_norm = bf16(p + "ffn_norm.weight", {u(c_.hidden)});
    l.attn_mix = mix(p, "attn");
    l.ffn_mix = mix(p, "ffn");
    l.wq_a = matrix(a + "wq_a", WeightKind::kFp8, c_.q_lora, c_.hidden);
    l.q_norm = bf16(a + "q_norm.weight", {u(c_.q_lora)});
    l.wq_b = matrix(a + "wq_b", WeightKind::kFp8, static_cast<int64_t>(c_.heads) * c_.head_dim,
                    c_.q_lora);
    l.wkv = matrix(a + "wkv", WeightKind::kFp8, c_.head_dim, c_.hidden);
    l.kv_norm = bf16(a + "kv_norm.weight", {u(c_.head_dim)});
    l.sink = f32(a + "attn_sink", {u(c_.heads)});
    const int64_t group_k = static_cast<int64_t>(c_.heads / c_.o_groups) * c_.head_dim;
    split_groups(a + "wo_a", group_k, l);
    l.wo_b = matrix(a + "wo_b", WeightKind::kFp8, c_.hidden,
                    static_cast<int64_t>(c_.o_groups) * c_.o_lora);
    if (c_.is_kv_source(i)) {
      CompressorWeights& k = l.compressor.emplace();
      k.wkv = matrix(a + "compressor.wkv", WeightKind::kBf16, c_.head_dim, c_.hidden);
      if (ratio == 2)
        k.wgate = matrix(a + "compressor.wgate", WeightKind::kBf16, c_.head_dim, c_.hidden);
      k.norm = bf16(a + "compressor.norm.weight", {u(c_.head_dim)});
      k.wk = matrix(a + "indexer.wk", WeightKind::kBf16, c_.index_dim, c_.head_dim);
      k.k_norm = bf16(a + "indexer.k_norm.weight", {u(c_.index_dim)});
    }
    if (c_.is_index_source(i)) {
      IndexerWeights& x = l.indexer.emplace();
      x.wq_b = matrix(a + "indexer.wq_b", WeightKind::kFp8,
                      static_cast<int64_t>(c_.index_heads) * c_.index_dim, c_.q_lora);
      x.weights_proj =
          matrix(a + "indexer.weights_proj", WeightKind::kBf16, c_.index_heads, c_.hidden);
    }
    l.gate = matrix(f + "gate", WeightKind::kBf16, c_.experts, c_.hidden);
    l.gate_bias = f32(f + "gate.bias", {u(c_.experts)});
    if (model_.tensor(f + "gate.bias_vl") != nullptr) f32(f + "gate.bias_vl", {u(c_.experts)});
    l.experts.reserve(static_cast<size_t>(c_.experts));
    for (int e = 0; e < c_.experts; ++e)
      l.experts.push_back(expert(fmt::format("{}experts.{}", f, e), WeightKind::kFp4));
    l.shared = expert(f + "shared_experts", WeightKind::kFp8);
    for (size_t e = 0; e < c_.engram_layers.size(); ++e) {
      if (c_.engram_layers[e] != i) continue;
      EngramWeights& g = l.engram.emplace();
      const int64_t columns =
          static_cast<int64_t>(c_.engram_ngram - 1) * c_.engram_heads * c_.engram_dim;
      g.table = tensor(p + "engram.embed.weight", DType::kF8E4M3,
                       {u(c_.engram_rows[e]), u(c_.engram_dim)});
      g.table_scale = tensor(p + "engram.embed.scale", DType::kF8E8M0,
                             {u(c_.engram_rows[e]), u(c_.engram_dim / 32)});
      g.wkv = matrix(p + "engram.wkv", WeightKind::kFp8,
                     static_cast<int64_t>(c_.streams + 1) * c_.hidden, columns);
      g.q_weight = bf16(p + "engram.q_weight", {u(c_.streams), u(c_.hidden)});
      g.k_weight = bf16(p + "engram.k_weight", {u(c_.streams), u(c_.hidden)});
    }
  }

  // wo_a is one tensor [groups * o_lora, group_k]; each group is a matrix of its own. o_lora is a
  // multiple of 32, so scale tiles never straddle groups.
  void split_groups(const std::string& base, int64_t group_k, LayerWeights& l) {
    const Matrix whole =
        matrix(base, WeightKind::kFp8, static_cast<int64_t>(c_.o_groups) * c_.o_lora, group_k);
    if (whole.weight == nullptr || whole.scale == nullptr) return;
    for (int g = 0; g < c_.o_groups; ++g) {
      const auto rows = static_cast<uint64_t>(c_.o_lora), columns = static_cast<uint64_t>(group_k),
                 index = static_cast<uint64_t>(g);
      const auto slice = [&](const TensorView& t, uint64_t n, uint64_t k) {
        TensorView v = t;
        v.shape = {n, k};
        v.bytes = t.bytes.subspan(index * n * k, n * k);
        v.file_offset = t.file_offset + index * n * k;
        out_.group_views.push_back(std::move(v));
        return &out_.group_views.back();
      };
      Matrix m = whole;
      m.n = c_.o_lora;
      m.index = out_.matrices++;
      m.weight = slice(*whole.weight, rows, columns);
      m.scale = slice(*whole.scale, rows / 32, columns / 32);
      l.wo_a.push_back(m);
    }
  }

  Status finish() {
    if (error_.message.empty()) {
      for (const TensorView& t : model_.tensors()) {
        if (used_.contains(&t)) continue;
        if (tensor_use(t.name) != TensorUse::kOther) {
          set_error(t.name, fmt::format("expected no such tensor, found [{}] {}",
                                        fmt::join(t.shape, ", "), info(t.dtype).name));
          break;
        }
      }
    }
    if (error_.message.empty()) return {};
    return tl::unexpected<Error>(std::move(error_));
  }
  void set_error(const std::string& name, std::string message) {
    if (error_.message.empty())
      error_ = {ErrorCode::kInvalidFile, std::move(message), fmt::format("tensor \"{}\"", name)};
  }

 private:
  const SafetensorsModel& model_;
  const Config& c_;
  Weights& out_;
  std::unordered_set<const TensorView*> used_;
  Error error_;
};

}  // namespace

void dequantize_row(const Matrix& m, int64_t row, float* out) {
  const auto at = [](const TensorView& t, int64_t offset) {
    return reinterpret_cast<const uint8_t*>(t.bytes.data()) + offset;
  };
  switch (m.kind) {
    case WeightKind::kBf16: {
      const uint8_t* b = at(*m.weight, row * m.k * 2);
      for (int64_t i = 0; i < m.k; ++i) {
        uint16_t v = 0;
        std::memcpy(&v, b + 2 * i, 2);
        out[i] = bf16_to_float(v);
      }
      break;
    }
    case WeightKind::kFp8: {
      const uint8_t* codes = at(*m.weight, row * m.k);
      const uint8_t* scales = at(*m.scale, row / 32 * (m.k / 32));
      dequantize_q8(codes, scales, static_cast<int>(m.k), out);
      break;
    }
    case WeightKind::kFp4: {
      const uint8_t* codes = at(*m.weight, row * (m.k / 2));
      const uint8_t* scales = at(*m.scale, row * (m.k / 32));
      dequantize_q4idx(codes, scales, static_cast<int>(m.k), out);
      break;
    }
  }
}

Result<Weights> bind_weights(const SafetensorsModel& model, const Config& config) {
  Weights w;
  w.group_views.reserve(static_cast<size_t>(config.layers) * static_cast<size_t>(config.o_groups) *
                        2);  // no moves: views point in
  Binder b(model, config, w);
  const auto vocab = static_cast<uint64_t>(config.vocab),
             hidden = static_cast<uint64_t>(config.hidden);
  w.embed = b.tensor("embed.weight", DType::kBF16, {vocab, hidden});
  w.head = b.matrix("head", WeightKind::kBf16, config.vocab, config.hidden);
  w.norm = b.bf16("norm.weight", {hidden});
  w.layers.resize(static_cast<size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) b.layer(i, w.layers[static_cast<size_t>(i)]);
  DEEPMINT_CHECK_OK(b.finish());
  return w;
}

}  // namespace deepmint::v41
