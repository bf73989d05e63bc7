#include "model/deepseek_v41/synth.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/json.h"
#include "model/deepseek_v41/engram.h"
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

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  std::function<void(const std::function<void(const void*, size_t)>&)>
      write;  // calls back with the bytes in order
};

class Builder {
 public:
  Builder(const Config& c, uint64_t seed) : c_(c), seed_(seed) {}

  void bf16(const std::string& name, std::vector<int64_t> shape, double amplitude,
            float offset = 0) {
    add(name, "BF16", std::move(shape), 2, [=, this](const auto& out, uint64_t count) {
      Stream r(name, seed_);
      emit<uint16_t>(out, count, [&] {
        return float_to_bf16(offset == 0 ? r.symmetric(amplitude)
                                         : offset + r.symmetric(amplitude));
      });
    });
  }
  void norm(const std::string& name, std::vector<int64_t> shape) {
    bf16(name, std::move(shape), 0.25, 1.0f);
  }
  void f32(const std::string& name, std::vector<int64_t> shape, double amplitude,
           float offset = 0) {
    add(name, "F32", std::move(shape), 4, [=, this](const auto& out, uint64_t count) {
      Stream r(name, seed_);
      emit<float>(out, count, [&] {
        return offset == 0 ? r.symmetric(amplitude) : offset + r.symmetric(amplitude);
      });
    });
  }
  void fp8(const std::string& base, int64_t n, int64_t k, double gain = 1, bool per_row = false) {
    const int e = 127 + round_even(std::log2(gain / std::sqrt(static_cast<double>(k))));
    add(base + ".weight", "F8_E4M3", {n, k}, 1, [=, this](const auto& out, uint64_t count) {
      Stream r(base, seed_);
      emit<uint8_t>(out, count, [&] { return encode_e4m3(r.symmetric(1.75)); });
    });
    scale(base, per_row ? n : n / 32, k / 32, e);
  }
  void fp4(const std::string& base, int64_t n, int64_t k, double gain) {
    const int e = 127 + round_even(std::log2(gain / (2.93 * std::sqrt(static_cast<double>(k)))));
    add(base + ".weight", "I8", {n, k / 2}, 1, [=, this](const auto& out, uint64_t count) {
      Stream r(base, seed_);
      emit<uint8_t>(out, count, [&] {
        const auto low = static_cast<uint8_t>(r.next() * 16),
                   high = static_cast<uint8_t>(r.next() * 16);
        return static_cast<uint8_t>(low | high << 4);
      });
    });
    scale(base, n, k / 32, e);
  }

  void build() {
    const int64_t H = c_.hidden, hc = c_.streams;
    bf16("embed.weight", {c_.vocab, H}, 1.75);
    bf16("head.weight", {c_.vocab, H}, 1.75 / std::sqrt(static_cast<double>(H)));
    norm("norm.weight", {H});
    for (int i = 0; i < c_.layers; ++i) {
      const std::string p = fmt::format("layers.{}.", i), a = p + "attn.", f = p + "ffn.";
      for (size_t e = 0; e < c_.engram_layers.size(); ++e) {
        if (c_.engram_layers[e] != i) continue;
        fp8(p + "engram.embed", c_.engram_rows[e], c_.engram_dim, 0.5, true);
        fp8(p + "engram.wkv", (hc + 1) * H,
            static_cast<int64_t>(c_.engram_ngram - 1) * c_.engram_heads * c_.engram_dim);
        norm(p + "engram.q_weight", {hc, H});
        norm(p + "engram.k_weight", {hc, H});
      }
      for (const char* s : {"attn", "ffn"}) {
        const int64_t rows = 2 * hc + hc * hc;
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
      bf16(f + "gate.weight", {c_.experts, H}, 3.5 / std::sqrt(static_cast<double>(H)));
      f32(f + "gate.bias", {c_.experts}, 1.0);
      for (int e = 0; e < c_.experts; ++e) {
        const std::string q = fmt::format("{}experts.{}.", f, e);
        fp4(q + "w1", c_.expert_inter, H, 4.0);
        fp4(q + "w3", c_.expert_inter, H, 4.0);
        fp4(q + "w2", H, c_.expert_inter, 1.0 / 1024);
      }
      fp8(f + "shared_experts.w1", c_.expert_inter, H, 4.0);
      fp8(f + "shared_experts.w3", c_.expert_inter, H, 4.0);
      fp8(f + "shared_experts.w2", H, c_.expert_inter, 1.0 / 1024);
    }
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  using Out = std::function<void(const void*, size_t)>;

  void scale(const std::string& base, int64_t n, int64_t k, int exponent) {
    add(base + ".scale", "F8_E8M0", {n, k}, 1, [=, this](const auto& out, uint64_t count) {
      Stream r(base + ".scale", seed_);
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
           Write write) {
    uint64_t count = 1;
    for (const int64_t s : shape) count *= static_cast<uint64_t>(s);
    tensors_.push_back({std::move(name), std::move(dtype), std::move(shape), count * element,
                        [=](const Out& out) { write(out, count); }});
  }

  const Config& c_;
  uint64_t seed_;
  std::vector<Tensor> tensors_;
};

std::string config_json(const Config& c) {
  json::Writer w;
  const auto list = [&](std::string_view key, const auto& values) {
    w.key(key).begin_array();
    for (const auto v : values) w.value(static_cast<int64_t>(v));
    w.end_array();
  };
  w.begin_object().key("architectures").begin_array().value("DeepseekV41ForCausalLM").end_array();
  w.key("model_type").value("deepseek_v41").key("dtype").value("bfloat16");
  w.key("bos_token_id").value(c.bos).key("eos_token_id").value(c.eos).key("pad_token_id").value(2);
  w.key("text_config").begin_object().key("model_type").value("deepseek_v41_text");
  w.key("vocab_size")
      .value(c.vocab)
      .key("hidden_size")
      .value(c.hidden)
      .key("num_hidden_layers")
      .value(c.layers);
  w.key("num_attention_heads")
      .value(c.heads)
      .key("num_key_value_heads")
      .value(1)
      .key("head_dim")
      .value(c.head_dim);
  w.key("qk_rope_head_dim")
      .value(c.rope_dim)
      .key("q_lora_rank")
      .value(c.q_lora)
      .key("o_lora_rank")
      .value(c.o_lora);
  w.key("o_groups")
      .value(c.o_groups)
      .key("moe_intermediate_size")
      .value(c.expert_inter)
      .key("n_routed_experts")
      .value(c.experts);
  w.key("n_shared_experts")
      .value(1)
      .key("num_experts_per_tok")
      .value(c.experts_per_token)
      .key("scoring_func")
      .value("sqrtsoftplus");
  w.key("topk_method")
      .value("noaux_tc")
      .key("norm_topk_prob")
      .value(true)
      .key("routed_scaling_factor")
      .value(c.route_scale);
  w.key("hidden_act")
      .value("silu")
      .key("swiglu_limit")
      .value(c.swiglu_limit)
      .key("rms_norm_eps")
      .value(c.norm_eps);
  w.key("attention_bias")
      .value(false)
      .key("tie_word_embeddings")
      .value(false)
      .key("max_position_embeddings")
      .value(c.max_positions);
  w.key("rope_theta").value(c.rope_theta).key("compress_rope_theta").value(c.compress_rope_theta);
  w.key("rope_scaling")
      .begin_object()
      .key("type")
      .value("yarn")
      .key("factor")
      .value(c.yarn.factor)
      .key("beta_fast")
      .value(c.yarn.beta_fast);
  w.key("beta_slow")
      .value(c.yarn.beta_slow)
      .key("original_max_position_embeddings")
      .value(c.yarn.original_positions)
      .end_object();
  w.key("sliding_window").value(c.window);
  list("compress_ratios", c.ratios);
  list("kv_source_layer_ids", c.kv_sources);
  list("index_source_layer_ids", c.index_sources);
  w.key("index_n_heads")
      .value(c.index_heads)
      .key("index_head_dim")
      .value(c.index_dim)
      .key("index_topk")
      .value(c.index_topk);
  w.key("candidate_source_layer_id")
      .value(c.candidate_layer)
      .key("candidate_topk_blocks")
      .value(c.candidate_blocks);
  w.key("candidate_block_size").value(c.candidate_block_size).key("hc_mult").value(c.streams);
  w.key("hc_sinkhorn_iters").value(c.sinkhorn_rounds).key("hc_eps").value(c.hc_eps);
  list("engram_layer_ids", c.engram_layers);
  list("engram_num_embeddings", c.engram_rows);
  w.key("engram_max_ngram_size")
      .value(c.engram_ngram)
      .key("engram_n_heads")
      .value(c.engram_heads)
      .key("engram_head_dim")
      .value(c.engram_dim);
  w.key("engram_vocab_size").value(c.engram_vocab).key("engram_pad_token_id").value(c.engram_pad);
  w.key("engram_compressed_vocab_size")
      .value(c.engram_compressed_vocab)
      .key("num_nextn_predict_layers")
      .value(0)
      .end_object();
  w.key("quantization_config")
      .begin_object()
      .key("quant_method")
      .value("fp8")
      .key("activation_scheme")
      .value("dynamic");
  w.key("weight_block_size")
      .begin_array()
      .value(32)
      .value(32)
      .end_array()
      .key("scale_fmt")
      .value("ue8m0")
      .key("expert_dtype")
      .value("fp4");
  w.end_object();
  w.key("x_engram_map")
      .value(fmt::format("compressed id = token id mod {}", c.engram_compressed_vocab))
      .end_object();
  return w.take();
}

// Writes a file whole: temporary name, fsync, rename.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path)
      : path_(std::move(path)), temporary_(path_.string() + ".part") {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) error_ = errno;
  }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter() {
    if (fd_ >= 0) ::close(fd_);
    if (!published_) ::unlink(temporary_.c_str());
  }
  void write(const void* data, size_t size) {
    const char* p = static_cast<const char*>(data);
    while (size > 0 && error_ == 0) {
      const ssize_t n = ::write(fd_, p, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        error_ = errno;
        return;
      }
      p += n;
      size -= static_cast<size_t>(n);
    }
  }
  Status publish() {
    if (error_ == 0 && ::fsync(fd_) != 0) error_ = errno;
    if (error_ == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) error_ = errno;
    if (error_ != 0)
      return fail(ErrorCode::kUnavailable, fmt::format("writing failed: {}", std::strerror(error_)),
                  path_.string());
    published_ = true;
    const int folder = ::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      ::fsync(folder);
      ::close(folder);
    }
    return {};
  }

 private:
  std::filesystem::path path_;
  std::string temporary_;
  int fd_ = -1, error_ = 0;
  bool published_ = false;
};

void derive_engram_rows(Config& c) {
  c.engram_rows.clear();
  for (const EngramLayer& e : make_engram_layers(c.engram_layers, c.engram_ngram, c.engram_heads,
                                                 c.engram_vocab, c.engram_compressed_vocab))
    c.engram_rows.push_back(e.rows);
}

}  // namespace

Config synth_config(SynthPreset preset) {
  Config c;
  c.route_scale = 1.5;
  c.swiglu_limit = 10;
  c.norm_eps = 1e-20;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.streams = 4;
  c.sinkhorn_rounds = 20;
  c.hc_eps = 1e-6f;
  c.engram_ngram = 4;
  c.engram_pad = 2;
  c.engram_modulo_map = true;
  c.bos = 0;
  c.eos = 1;
  switch (preset) {
    case SynthPreset::kTiny:
      c.vocab = 512;
      c.hidden = 128;
      c.layers = 9;
      c.heads = 8;
      c.head_dim = 64;
      c.rope_dim = 32;
      c.q_lora = 64;
      c.o_lora = 32;
      c.o_groups = 2;
      c.expert_inter = 64;
      c.experts = 16;
      c.experts_per_token = 4;
      c.max_positions = 4096;
      c.yarn.original_positions = 64;
      c.window = 16;
      c.ratios = {0, 0, 2, 2, 2, 1, 1, 1, 1};
      c.kv_sources = {2, 4, 5};
      c.index_sources = {2, 4, 5, 7};
      c.index_heads = 4;
      c.index_dim = 32;
      c.index_topk = 8;
      c.candidate_layer = 5;
      c.candidate_blocks = 4;
      c.candidate_block_size = 4;
      c.engram_layers = {1, 4};
      c.engram_heads = 2;
      c.engram_dim = 32;
      c.engram_vocab = 97;
      c.engram_compressed_vocab = 400;
      break;
    case SynthPreset::kBench:
      c.vocab = 16384;
      c.hidden = 1024;
      c.layers = 40;
      c.heads = 16;
      c.head_dim = 512;
      c.rope_dim = 64;
      c.q_lora = 512;
      c.o_lora = 256;
      c.o_groups = 4;
      c.expert_inter = 512;
      c.experts = 64;
      c.experts_per_token = 6;
      c.max_positions = 1048576;
      c.window = 128;
      c.ratios.assign(40, 1);
      std::fill_n(c.ratios.begin(), 2, 0);
      std::fill_n(c.ratios.begin() + 2, 18, 2);
      c.kv_sources = {2, 8, 14, 20};
      c.index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
      c.index_heads = 8;
      c.index_dim = 128;
      c.index_topk = 512;
      c.candidate_layer = 20;
      c.candidate_blocks = 2048;
      c.candidate_block_size = 8;
      c.engram_layers = {1, 14};
      c.engram_heads = 8;
      c.engram_dim = 256;
      c.engram_vocab = 20000;
      c.engram_compressed_vocab = 12000;
      break;
  }
  derive_engram_rows(c);
  return c;
}

Status synthesize(const Config& config, const std::filesystem::path& folder, uint64_t seed) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  if (ec)
    return fail(ErrorCode::kUnavailable, fmt::format("could not make the folder: {}", ec.message()),
                folder.string());
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (std::filesystem::exists(folder / name, ec))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a folder without a checkpoint, found {}", name),
                  folder.string());

  Builder builder(config, seed);
  builder.build();
  json::Writer header;
  header.begin_object();
  uint64_t offset = 0;
  for (const Tensor& t : builder.tensors()) {
    header.key(t.name).begin_object().key("dtype").value(t.dtype).key("shape").begin_array();
    for (const int64_t s : t.shape) header.value(s);
    header.end_array()
        .key("data_offsets")
        .begin_array()
        .value(offset)
        .value(offset + t.bytes)
        .end_array()
        .end_object();
    offset += t.bytes;
  }
  header.end_object();
  std::string text = header.take();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();

  FileWriter weights(folder / "model.safetensors");
  weights.write(&size, sizeof(size));
  weights.write(text.data(), text.size());
  for (const Tensor& t : builder.tensors())
    t.write([&](const void* data, size_t bytes) { weights.write(data, bytes); });
  DEEPMINT_CHECK_OK(weights.publish());

  FileWriter out(folder / "config.json");
  const std::string json_text = config_json(config);
  out.write(json_text.data(), json_text.size());
  return out.publish();
}

}  // namespace deepmint::v41
