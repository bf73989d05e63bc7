#include "model/deepseek_v41/synth_tensors.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "model/deepseek_v41/formats.h"

namespace deepmint::v41 {
namespace {

uint64_t fnv1a(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

// Values in [0, 1), multiples of 2^-24; the i-th value of the stream of `name`.
class Stream {
 public:
  Stream(std::string_view name, uint64_t seed) : state_(fnv1a(name) ^ seed) {}
  double next() {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return static_cast<double>(z >> 40) / 16777216.0;
  }
  float symmetric(double amplitude) { return static_cast<float>((next() - 0.5) * 2 * amplitude); }

 private:
  uint64_t state_;
};

// Nearest integer, halves to even.
int round_even(double x) { return static_cast<int>(std::nearbyint(x)); }

class Builder {
 public:
  Builder(const Config& c, const SynthOptions& options)
      : c_(c), seed_(options.seed), options_(options) {}

  void bf16(const std::string& name, std::vector<int64_t> shape, double amplitude,
            float offset = 0) {
    add(name, "BF16", std::move(shape), 2, [=, seed = seed_](const auto& out, uint64_t count) {
      Stream r(name, seed);
      emit<uint16_t>(out, count, [&] {
        return float_to_bf16(offset == 0 ? r.symmetric(amplitude)
                                         : offset + r.symmetric(amplitude));
      });
    });
  }
  void norm(const std::string& name, std::vector<int64_t> shape) {
    bf16(name, std::move(shape), 0.25, 1.0f);
  }
  // The first `preferred` values are larger by 16.
  void f32(const std::string& name, std::vector<int64_t> shape, double amplitude, float offset = 0,
           int preferred = 0) {
    add(name, "F32", std::move(shape), 4, [=, seed = seed_](const auto& out, uint64_t count) {
      Stream r(name, seed);
      int i = 0;
      emit<float>(out, count, [&] {
        const float more = i++ < preferred ? 16.0f : 0.0f, base = offset + more;
        return base == 0 ? r.symmetric(amplitude) : base + r.symmetric(amplitude);
      });
    });
  }
  void fp8(const std::string& base, int64_t n, int64_t k, double gain = 1, bool per_row = false) {
    const int e = 127 + round_even(std::log2(gain / std::sqrt(static_cast<double>(k))));
    add(base + ".weight", "F8_E4M3", {n, k}, 1, [=, seed = seed_](const auto& out, uint64_t count) {
      Stream r(base, seed);
      emit<uint8_t>(out, count, [&] { return encode_e4m3(r.symmetric(1.75)); });
    });
    scale(base, per_row ? n : n / 32, k / 32, e);
  }
  void fp4(const std::string& base, int64_t n, int64_t k, double gain) {
    const int e = 127 + round_even(std::log2(gain / (2.93 * std::sqrt(static_cast<double>(k)))));
    add(base + ".weight", "I8", {n, k / 2}, 1, [=, seed = seed_](const auto& out, uint64_t count) {
      Stream r(base, seed);
      emit<uint8_t>(out, count, [&] {
        const auto low = static_cast<uint8_t>(r.next() * 16),
                   high = static_cast<uint8_t>(r.next() * 16);
        return static_cast<uint8_t>(low | high << 4);
      });
    });
    scale(base, n, k / 32, e);
  }

  void build() {
    const int64_t H = c_.hidden;
    if (options_.official_files) vision();
    file_ = options_.official_files ? 1 : 0;
    bf16("embed.weight", {c_.vocab, H}, 1.75);
    if (options_.official_files) {
      for (const char* name : {"image_start", "image_newline", "image_end"}) bf16(name, {H}, 1.75);
      file_ = 2 + c_.layers;
    }
    bf16("head.weight", {c_.vocab, H}, 1.75 / std::sqrt(static_cast<double>(H)));
    norm("norm.weight", {H});
    for (int i = 0; i < c_.layers; ++i) layer(i);
    if (options_.official_files)
      for (int stage = 0; stage < c_.draft_layers; ++stage) draft(stage);
  }
  std::vector<SynthTensor> take() { return std::move(tensors_); }

 private:
  using Out = SynthTensor::Out;

  void layer(int i) {
    const std::string p = fmt::format("layers.{}.", i), a = p + "attn.";
    const int64_t H = c_.hidden, hc = c_.streams;
    for (size_t e = 0; e < c_.engram_layers.size(); ++e) {
      if (c_.engram_layers[e] != i) continue;
      if (options_.official_files) file_ = 3 + c_.layers + c_.draft_layers + static_cast<int>(e);
      fp8(p + "engram.embed", c_.engram_rows[e], c_.engram_dim, 0.5, true);
      fp8(p + "engram.wkv", (hc + 1) * H,
          static_cast<int64_t>(c_.engram_ngram - 1) * c_.engram_heads * c_.engram_dim);
      norm(p + "engram.q_weight", {hc, H});
      norm(p + "engram.k_weight", {hc, H});
    }
    if (options_.official_files) file_ = 2 + i;
    block_frame(p);
    if (c_.is_kv_source(i)) {
      const double amplitude = 1.75 / std::sqrt(static_cast<double>(H));
      bf16(a + "compressor.wkv.weight", {c_.head_dim, H}, amplitude);
      if (c_.ratios[static_cast<size_t>(i)] > 1)
        bf16(a + "compressor.wgate.weight", {c_.head_dim, H}, amplitude);
      norm(a + "compressor.norm.weight", {c_.head_dim});
      bf16(a + "indexer.wk.weight", {c_.index_dim, c_.head_dim},
           1.75 / std::sqrt(static_cast<double>(c_.head_dim)));
      norm(a + "indexer.k_norm.weight", {c_.index_dim});
    }
    if (c_.is_index_source(i)) {
      fp8(a + "indexer.wq_b", static_cast<int64_t>(c_.index_heads) * c_.index_dim, c_.q_lora);
      bf16(a + "indexer.weights_proj.weight", {c_.index_heads, H},
           1.75 / std::sqrt(static_cast<double>(H)));
    }
    experts(p + "ffn.", c_.experts);
  }

  // What backbone layers and draft layers share: hyper-connections, norms, attention.
  void block_frame(const std::string& p) {
    const std::string a = p + "attn.";
    const int64_t H = c_.hidden, hc = c_.streams, rows = 2 * hc + hc * hc;
    for (const char* s : {"attn", "ffn"}) {
      norm(fmt::format("{}{}_norm.weight", p, s), {H});
      f32(fmt::format("{}hc_{}_fn", p, s), {rows, hc * H},
          1.75 / std::sqrt(static_cast<double>(hc * H)));
      f32(fmt::format("{}hc_{}_base", p, s), {rows}, 1.0);
      f32(fmt::format("{}hc_{}_scale", p, s), {3}, 0.25, 0.75f);
    }
    fp8(a + "wq_a", c_.q_lora, H);
    norm(a + "q_norm.weight", {c_.q_lora});
    fp8(a + "wq_b", static_cast<int64_t>(c_.heads) * c_.head_dim, c_.q_lora, 2.0);
    fp8(a + "wkv", c_.head_dim, H);
    norm(a + "kv_norm.weight", {c_.head_dim});
    f32(a + "attn_sink", {c_.heads}, 2.0);
    fp8(a + "wo_a", static_cast<int64_t>(c_.o_groups) * c_.o_lora,
        static_cast<int64_t>(c_.heads) * c_.head_dim / c_.o_groups);
    fp8(a + "wo_b", H, static_cast<int64_t>(c_.o_groups) * c_.o_lora, 0.0625);
  }

  void experts(const std::string& f, int count) {
    const int64_t H = c_.hidden;
    bf16(f + "gate.weight", {count, H}, 3.5 / std::sqrt(static_cast<double>(H)));
    // With holes for experts, the router prefers the first ones of every layer: a step then reads
    // few of them.
    f32(f + "gate.bias", {count}, 1.0, 0, options_.sparse ? c_.experts_per_token : 0);
    if (options_.official_files) f32(f + "gate.bias_vl", {count}, 1.0);
    for (int e = 0; e < count; ++e) {
      const std::string q = fmt::format("{}experts.{}.", f, e);
      fp4(q + "w1", c_.expert_inter, H, 4.0);
      fp4(q + "w3", c_.expert_inter, H, 4.0);
      fp4(q + "w2", H, c_.expert_inter, 1.0 / 1024);
    }
    fp8(f + "shared_experts.w1", c_.expert_inter, H, 4.0);
    fp8(f + "shared_experts.w3", c_.expert_inter, H, 4.0);
    fp8(f + "shared_experts.w2", H, c_.expert_inter, 1.0 / 1024);
  }

  // Tensors that the text model leaves alone, with the official shapes (spec vision.md 3,
  // dspark.md 2).
  void vision() {
    file_ = 0;
    const auto matrix = [&](const std::string& name, int64_t n, int64_t k) {
      bf16(name + ".weight", {n, k}, 1.75 / std::sqrt(static_cast<double>(k)));
    };
    const auto bias = [&](const std::string& name, int64_t n) { bf16(name + ".bias", {n}, 0.25); };
    matrix("vision.patch_embed.proj", 1024, 588);
    bias("vision.patch_embed.proj", 1024);
    for (int i = 0; i < 32; ++i) {
      const std::string p = fmt::format("vision.blocks.{}.", i);
      norm(p + "norm1.weight", {1024});
      norm(p + "norm2.weight", {1024});
      matrix(p + "attn.wqkv", 3072, 1024);
      bias(p + "attn.wqkv", 3072);
      matrix(p + "attn.wo", 1024, 1024);
      bias(p + "attn.wo", 1024);
      matrix(p + "mlp.w1", 5632, 1024);
      matrix(p + "mlp.w2", 1024, 2816);
    }
    norm("vision.norm.weight", {1024});
    matrix("aligner.w1", c_.hidden, 9216);
    bias("aligner.w1", c_.hidden);
    matrix("aligner.w2", c_.hidden, c_.hidden);
    bias("aligner.w2", c_.hidden);
  }
  void draft(int stage) {
    constexpr int kDraftExperts = 128, kMarkovRank = 256;
    file_ = 3 + c_.layers + stage;
    const std::string p = fmt::format("mtp.{}.", stage);
    const int64_t H = c_.hidden;
    block_frame(p);
    experts(p + "ffn.", kDraftExperts);
    if (stage == 0) {
      fp8(p + "main_proj", H, c_.draft_layers * H);
      norm(p + "main_norm.weight", {H});
    }
    if (stage == c_.draft_layers - 1) {
      norm(p + "norm.weight", {H});
      bf16(p + "markov_head.embed.weight", {c_.vocab, kMarkovRank}, 0.1);
      bf16(p + "markov_head.head.weight", {c_.vocab, kMarkovRank}, 0.1);
      bf16(p + "confidence_head.proj.weight", {1, H + kMarkovRank}, 0.1);
    }
  }

  // Of a sparse checkpoint: what gets real bytes. One set of experts, embeddings, norms, gates and
  // the other small float tensors of the text model, and the scales that a step reads: a scale of
  // zero bytes is none.
  bool is_filled(std::string_view name) const {
    const auto has = [name](std::string_view part) {
      return name.find(part) != std::string_view::npos;
    };
    if (name == "embed.weight" || name == "head.weight" || name == "norm.weight") return true;
    if (!name.starts_with("layers.")) return false;
    if (const size_t at = name.find(".ffn.experts."); at != std::string_view::npos) {
      const std::string_view rest = name.substr(at + 13), number = rest.substr(0, rest.find('.'));
      const bool preferred = number.size() == 1 && number[0] - '0' < c_.experts_per_token;
      return preferred && (name.starts_with("layers.0.") || name.ends_with(".scale"));
    }
    if (name.ends_with(".scale")) return !has(".engram.embed.");
    return name.ends_with("norm.weight") || has(".hc_") || has(".ffn.gate.") ||
           name.ends_with("attn_sink") || has(".engram.q_weight") || has(".engram.k_weight");
  }

  void scale(const std::string& base, int64_t n, int64_t k, int exponent) {
    add(base + ".scale", "F8_E8M0", {n, k}, 1, [=, seed = seed_](const auto& out, uint64_t count) {
      Stream r(base + ".scale", seed);
      emit<uint8_t>(out, count,
                    [&] { return static_cast<uint8_t>(exponent + std::floor(r.next() * 2)); });
    });
  }
  template <class T, class Next>
  static void emit(const Out& out, uint64_t count, Next next) {
    std::vector<T> buffer;
    buffer.reserve(1 << 16);
    for (uint64_t i = 0; i < count; ++i) {
      buffer.push_back(next());
      if (buffer.size() == buffer.capacity()) {
        out(buffer.data(), buffer.size() * sizeof(T));
        buffer.clear();
      }
    }
    out(buffer.data(), buffer.size() * sizeof(T));
  }
  template <class Write>
  void add(std::string name, std::string dtype, std::vector<int64_t> shape, uint64_t element,
           const Write& write) {
    uint64_t count = 1;
    for (const int64_t s : shape) count *= static_cast<uint64_t>(s);
    const bool hole = options_.sparse && !is_filled(name);
    tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), count * element, file_,
                        hole, [=](const Out& out) { write(out, count); }});
  }

  const Config& c_;
  uint64_t seed_;
  const SynthOptions options_;
  int file_ = 0;
  std::vector<SynthTensor> tensors_;
};

}  // namespace

std::vector<SynthTensor> synth_tensors(const Config& config, const SynthOptions& options) {
  Builder builder(config, options);
  builder.build();
  return builder.take();
}

}  // namespace deepmint::v41
