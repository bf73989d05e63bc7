#include "model/deepseek_v41/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/mapped_file.h"
#include "model/deepseek_v41/engram.h"

namespace deepmint::v41 {
namespace {

// Reads fields under either of their two names and keeps the first error, so that the caller reads
// like a table.
class Reader {
 public:
  Reader(const json::Value& top, const json::Value& text) : top_(top), text_(text) {}

  template <class T>
  void integer(T& out, std::string_view name, std::string_view flat, int64_t low, int64_t high,
               const int64_t* fallback = nullptr) {
    const json::Value* v = find(name, flat);
    if (v == nullptr || v->is_null()) {
      if (fallback == nullptr) return missing(name);
      out = static_cast<T>(*fallback);
      return;
    }
    const auto n = v->to_int64();
    if (!n || *n < low || *n > high)
      return wrong(name, fmt::format("an integer from {} to {}", low, high), *v);
    out = static_cast<T>(*n);
  }
  template <class T>
  void number(T& out, std::string_view name, std::string_view flat, double low, double high,
              const double* fallback = nullptr) {
    const json::Value* v = find(name, flat);
    if (v == nullptr || v->is_null()) {
      if (fallback == nullptr) return missing(name);
      out = static_cast<T>(*fallback);
      return;
    }
    const auto n = v->to_double();
    if (!n || !(*n >= low) || !(*n <= high))
      return wrong(name, fmt::format("a number from {} to {}", low, high), *v);
    out = static_cast<T>(*n);
  }
  template <class T>
  void integers(std::vector<T>& out, std::string_view name, std::string_view flat, int64_t low,
                int64_t high) {
    const json::Value* v = find(name, flat);
    if (v == nullptr) return missing(name);
    if (!v->is_array()) return wrong(name, "an array of integers", *v);
    out.clear();
    for (const json::Value& item : v->items()) {
      const auto n = item.to_int64();
      if (!n || *n < low || *n > high)
        return wrong(name, fmt::format("integers from {} to {}", low, high), item);
      out.push_back(static_cast<T>(*n));
    }
  }
  // A field that selects a formula: absent means the only one we know.
  void only(std::string_view name, std::string_view flat, std::string_view expected) {
    const json::Value* v = find(name, flat);
    if (v == nullptr || v->is_null()) return;
    const std::string found = v->is_string() ? v->as_string() : json::dump(*v);
    if (found != expected && error_.message.empty())
      error_ = {ErrorCode::kUnsupported, fmt::format("expected {}, found {}", expected, found),
                std::string(name)};
  }
  const json::Value* find(std::string_view name, std::string_view flat) const {
    if (const json::Value* v = text_.find(name)) return v;
    if (!flat.empty())
      if (const json::Value* v = text_.find(flat)) return v;
    if (const json::Value* v = top_.find(name)) return v;
    return nullptr;
  }
  void require(bool condition, std::string_view name, std::string message) {
    if (!condition && error_.message.empty())
      error_ = {ErrorCode::kInvalidFile, std::move(message), std::string(name)};
  }
  void missing(std::string_view name) {
    if (error_.message.empty())
      error_ = {ErrorCode::kInvalidFile, "expected a value, found none", std::string(name)};
  }
  void wrong(std::string_view name, std::string expected, const json::Value& found) {
    if (error_.message.empty())
      error_ = {ErrorCode::kInvalidFile,
                fmt::format("expected {}, found {}", expected, json::dump(found)),
                std::string(name)};
  }
  bool ok() const { return error_.message.empty(); }
  Error error() && { return std::move(error_); }

 private:
  const json::Value& top_;
  const json::Value& text_;
  Error error_;
};

int source_of(const std::vector<int>& sources, int layer) {
  int best = -1;
  for (const int s : sources)
    if (s <= layer) best = std::max(best, s);
  return best;
}

Status check(const Config& c, Reader& r) {
  const auto multiple_of_32 = [&](int64_t v, std::string_view name) {
    r.require(v % 32 == 0, name, fmt::format("expected a multiple of 32, found {}", v));
  };
  multiple_of_32(c.hidden, "hidden_size");
  multiple_of_32(c.q_lora, "q_lora_rank");
  multiple_of_32(c.head_dim, "head_dim");
  multiple_of_32(c.index_dim, "index_head_dim");
  multiple_of_32(c.expert_inter, "moe_intermediate_size");
  multiple_of_32(c.engram_dim, "engram_head_dim");
  multiple_of_32(static_cast<int64_t>(c.o_lora) * c.o_groups, "o_lora_rank * o_groups");
  r.require(c.heads % c.o_groups == 0, "o_groups",
            fmt::format("expected a divisor of {} heads, found {}", c.heads, c.o_groups));
  if (c.heads % c.o_groups == 0)
    multiple_of_32(static_cast<int64_t>(c.heads / c.o_groups) * c.head_dim,
                   "heads per group * head_dim");
  multiple_of_32(c.o_lora, "o_lora_rank");
  r.require(c.rope_dim % 2 == 0 && c.rope_dim <= c.head_dim && c.rope_dim <= c.index_dim,
            "qk_rope_head_dim",
            fmt::format("expected an even number up to head_dim and index_head_dim, found {}",
                        c.rope_dim));
  r.require(c.experts_per_token <= c.experts, "num_experts_per_tok",
            fmt::format("expected at most {} experts, found {}", c.experts, c.experts_per_token));

  const auto sources = [&](const std::vector<int>& s, std::string_view name) {
    for (size_t i = 0; i < s.size(); ++i) {
      r.require(i == 0 || s[i] > s[i - 1], name,
                fmt::format("expected ascending layers, found [{}]", fmt::join(s, ", ")));
      r.require(s[i] < c.layers, name,
                fmt::format("expected layers below {}, found {}", c.layers, s[i]));
      if (s[i] < c.layers)
        r.require(
            c.ratios[static_cast<size_t>(s[i])] > 0, name,
            fmt::format("expected layers with a compress ratio, found {} with ratio 0", s[i]));
    }
  };
  sources(c.kv_sources, "kv_source_layer_ids");
  sources(c.index_sources, "index_source_layer_ids");
  for (int layer = 0; layer < c.layers && r.ok(); ++layer) {
    const int ratio = c.ratios[static_cast<size_t>(layer)];
    r.require(ratio >= 0 && ratio <= 2, "compress_ratios",
              fmt::format("expected 0, 1 or 2 for layer {}, found {}", layer, ratio));
    if (ratio == 0) continue;
    const int kv = source_of(c.kv_sources, layer), index = source_of(c.index_sources, layer);
    r.require(kv >= 0, "kv_source_layer_ids",
              fmt::format("expected a source at or below layer {}, found none", layer));
    r.require(index >= kv, "index_source_layer_ids",
              fmt::format("expected a source from layer {} to {}, found {}", kv, layer, index));
    if (!r.ok()) break;
    r.require(c.ratios[static_cast<size_t>(kv)] == ratio, "compress_ratios",
              fmt::format("expected ratio {} for layer {} (that of its kv source {}), found {}",
                          c.ratios[static_cast<size_t>(kv)], layer, kv, ratio));
  }
  if (c.candidate_layer >= 0) {
    r.require(std::find(c.index_sources.begin(), c.index_sources.end(), c.candidate_layer) !=
                  c.index_sources.end(),
              "candidate_source_layer_id",
              fmt::format("expected an index source layer, found {}", c.candidate_layer));
    // Later index sources must read the same keys as the candidate layer.
    for (const int s : c.index_sources)
      if (s > c.candidate_layer)
        r.require(
            source_of(c.kv_sources, s) == source_of(c.kv_sources, c.candidate_layer),
            "candidate_source_layer_id",
            fmt::format("expected layer {} to share the kv source of candidate layer {}, found {}",
                        s, c.candidate_layer, source_of(c.kv_sources, s)));
    const int64_t pool = static_cast<int64_t>(c.candidate_blocks - 1) * c.candidate_block_size + 1;
    r.require(pool >= c.index_topk, "candidate_topk_blocks",
              fmt::format("expected room for {} rows, found {} blocks of {}", c.index_topk,
                          c.candidate_blocks, c.candidate_block_size));
  }
  r.require(
      c.engram_rows.size() == c.engram_layers.size(), "engram_num_embeddings",
      fmt::format("expected {} entries, found {}", c.engram_layers.size(), c.engram_rows.size()));
  for (size_t i = 0; i < c.engram_layers.size(); ++i) {
    const int layer = c.engram_layers[i];
    r.require(layer < c.layers, "engram_layer_ids",
              fmt::format("expected layers below {}, found {}", c.layers, layer));
    r.require(
        i == 0 || layer > c.engram_layers[i - 1], "engram_layer_ids",
        fmt::format("expected ascending layers, found [{}]", fmt::join(c.engram_layers, ", ")));
  }
  // The pad is looked up in the map of token ids like any other id.
  if (!c.engram_layers.empty())
    r.require(c.engram_pad < c.vocab, "engram_pad_token_id",
              fmt::format("expected a token id below {}, found {}", c.vocab, c.engram_pad));
  // Each column of a table has a prime of its own, which is searched for; official: 24 a layer.
  constexpr int64_t kColumns = 256, kColumnsInAll = 4096;
  const int64_t columns = static_cast<int64_t>(c.engram_heads) * (c.engram_ngram - 1);
  r.require(columns <= kColumns &&
                columns * static_cast<int64_t>(c.engram_layers.size()) <= kColumnsInAll,
            "engram_n_heads",
            fmt::format("expected at most {} hash columns a layer and {} in all, found {} in each "
                        "of {} layers",
                        kColumns, kColumnsInAll, columns, c.engram_layers.size()));
  if (r.ok() && !c.engram_layers.empty()) {
    const auto derived = make_engram_layers(c.engram_layers, c.engram_ngram, c.engram_heads,
                                            c.engram_vocab, c.engram_compressed_vocab);
    for (size_t i = 0; i < derived.size(); ++i)
      r.require(derived[i].rows == c.engram_rows[i], "engram_num_embeddings",
                fmt::format("expected {} rows for layer {} (the sum of its primes), found {}",
                            derived[i].rows, derived[i].layer, c.engram_rows[i]));
  }
  if (!r.ok()) return tl::unexpected<Error>(std::move(r).error());
  return {};
}

}  // namespace

int Config::kv_source(int layer) const {
  return ratios[static_cast<size_t>(layer)] == 0 ? -1 : source_of(kv_sources, layer);
}
int Config::index_source(int layer) const {
  return ratios[static_cast<size_t>(layer)] == 0 ? -1 : source_of(index_sources, layer);
}

bool is_v41_config(const json::Value& document) {
  if (const json::Value* type = document.find("model_type");
      type != nullptr && type->is_string() && type->as_string() == "deepseek_v41")
    return true;
  if (const json::Value* list = document.find("architectures"); list != nullptr && list->is_array())
    for (const json::Value& a : list->items())
      if (a.is_string() && a.as_string() == "DeepseekV41ForCausalLM") return true;
  // The flat form has neither; these two names together belong to nothing else.
  return document.find("kv_source_layers") != nullptr &&
         document.find("engram_layer_ids") != nullptr;
}

Result<Config> parse_config(const json::Value& document) {
  if (!document.is_object())
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected an object, found {}", json::to_string(document.kind())),
                "config.json");
  const json::Value* nested = document.find("text_config");
  const json::Value& text = nested != nullptr && nested->is_object() ? *nested : document;
  Reader r(document, text);
  Config c;
  constexpr int64_t kMax = int64_t{1} << 30;
  constexpr int64_t kZero = 0, kOne = 1, kNone = -1;
  constexpr double kUnit = 1.0;

  r.integer(c.vocab, "vocab_size", "", 1, kMax);
  r.integer(c.hidden, "hidden_size", "dim", 32, 1 << 20);
  r.integer(c.layers, "num_hidden_layers", "n_layers", 1, 4096);
  r.integer(c.heads, "num_attention_heads", "n_heads", 1, 1024);
  r.integer(c.head_dim, "head_dim", "", 32, 65536);
  r.integer(c.rope_dim, "qk_rope_head_dim", "rope_head_dim", 2, 65536);
  r.integer(c.q_lora, "q_lora_rank", "", 32, 1 << 20);
  r.integer(c.o_lora, "o_lora_rank", "", 1, 1 << 20);
  r.integer(c.o_groups, "o_groups", "", 1, 65536);
  r.integer(c.expert_inter, "moe_intermediate_size", "moe_inter_dim", 32, 1 << 20);
  r.integer(c.experts, "n_routed_experts", "", 1, 65536);
  r.integer(c.experts_per_token, "num_experts_per_tok", "n_activated_experts", 1, 65536);
  r.number(c.route_scale, "routed_scaling_factor", "route_scale", 1e-6, 1e6);
  r.number(c.gate_temperature, "gate_temp", "", 1e-6, 1e6, &kUnit);
  r.number(c.swiglu_limit, "swiglu_limit", "", 1e-6, 1e30);
  r.number(c.norm_eps, "rms_norm_eps", "norm_eps", 0, 1);
  r.integer(c.max_positions, "max_position_embeddings", "max_seq_len", 1, kMax);
  r.number(c.rope_theta, "rope_theta", "", 1, 1e12);
  r.number(c.compress_rope_theta, "compress_rope_theta", "", 1, 1e12);
  r.integer(c.window, "sliding_window", "window_size", 1, 1 << 20);
  r.integers(c.ratios, "compress_ratios", "", 0, 1 << 20);
  r.integers(c.kv_sources, "kv_source_layer_ids", "kv_source_layers", 0, 4095);
  r.integers(c.index_sources, "index_source_layer_ids", "index_source_layers", 0, 4095);
  r.integer(c.index_heads, "index_n_heads", "", 1, 65536);
  r.integer(c.index_dim, "index_head_dim", "", 32, 65536);
  r.integer(c.index_topk, "index_topk", "", 1, kMax);
  r.integer(c.candidate_layer, "candidate_source_layer_id", "", -kMax, 4095, &kNone);
  r.integer(c.candidate_blocks, "candidate_topk_blocks", "", 1, kMax, &kOne);
  r.integer(c.candidate_block_size, "candidate_block_size", "", 1, kMax, &kOne);
  r.integer(c.streams, "hc_mult", "", 1, 8);
  r.integer(c.sinkhorn_rounds, "hc_sinkhorn_iters", "", 1, 10000);
  r.number(c.hc_eps, "hc_eps", "", 0, 1);
  r.integers(c.engram_layers, "engram_layer_ids", "", 0, 4095);
  r.integers(c.engram_rows, "engram_num_embeddings", "", 1, int64_t{1} << 40);
  r.integer(c.engram_ngram, "engram_max_ngram_size", "", 2, 16);
  r.integer(c.engram_heads, "engram_n_heads", "", 1, 1024);
  r.integer(c.engram_dim, "engram_head_dim", "", 32, 65536);
  r.integer(c.engram_vocab, "engram_vocab_size", "", 2, kMax);
  r.integer(c.engram_pad, "engram_pad_token_id", "engram_pad_id", 0, kMax);
  r.integer(c.engram_compressed_vocab, "engram_compressed_vocab_size", "", 1, kMax);
  r.integer(c.bos, "bos_token_id", "", 0, kMax, &kNone);
  r.integer(c.eos, "eos_token_id", "", 0, kMax, &kNone);
  r.integer(c.image_token, "image_token_id", "", 0, kMax, &kNone);
  r.integer(c.noise_token, "dspark_noise_token_id", "", 0, kMax, &kNone);
  r.integer(c.draft_layers, "num_nextn_predict_layers", "n_mtp_layers", 0, 64, &kZero);
  c.engram_modulo_map = document.find("x_engram_map") != nullptr;

  const json::Value* scaling = r.find("rope_scaling", "");
  const json::Value& yarn = scaling != nullptr && scaling->is_object() ? *scaling : text;
  Reader y(document, yarn);
  y.only("type", "rope_type", "yarn");
  y.number(c.yarn.factor, "factor", "rope_factor", 1, 1e6);
  y.number(c.yarn.beta_fast, "beta_fast", "", 1e-6, 1e6);
  y.number(c.yarn.beta_slow, "beta_slow", "", 1e-6, 1e6);
  y.number(c.yarn.original_positions, "original_max_position_embeddings", "original_seq_len", 1,
           1e12);
  if (!y.ok()) return tl::unexpected<Error>(std::move(y).error().at("rope_scaling"));

  r.only("num_key_value_heads", "", "1");
  r.only("n_shared_experts", "", "1");
  r.only("scoring_func", "score_func", "sqrtsoftplus");
  r.only("topk_method", "", "noaux_tc");
  r.only("norm_topk_prob", "", "true");
  r.only("hidden_act", "", "silu");
  r.only("attention_bias", "", "false");
  r.only("tie_word_embeddings", "", "false");
  for (const std::string_view name :
       {"num_hash_layers", "first_k_dense_replace", "n_group", "topk_group"}) {
    if (const json::Value* v = r.find(name, "");
        v != nullptr && !v->is_null() && v->to_int64() != 0)
      return fail(ErrorCode::kUnsupported,
                  fmt::format("expected the field to be absent, found {}", json::dump(*v)),
                  std::string(name));
  }
  if (const json::Value* q = document.find("quantization_config"); q != nullptr && q->is_object()) {
    Reader quant(*q, *q);
    quant.only("quant_method", "", "fp8");
    quant.only("activation_scheme", "", "dynamic");
    quant.only("weight_block_size", "", "[32,32]");
    quant.only("scale_fmt", "", "ue8m0");
    quant.only("expert_dtype", "", "fp4");
    if (!quant.ok())
      return tl::unexpected<Error>(std::move(quant).error().at("quantization_config"));
  }
  if (!r.ok()) return tl::unexpected<Error>(std::move(r).error());

  // Entries beyond the backbone belong to the draft layers.
  const auto want = static_cast<size_t>(c.layers),
             with_drafts = want + static_cast<size_t>(c.draft_layers);
  if (c.ratios.size() != want && c.ratios.size() != with_drafts)
    return fail(
        ErrorCode::kInvalidFile,
        with_drafts == want
            ? fmt::format("expected {} entries (layers), found {}", want, c.ratios.size())
            : fmt::format("expected {} entries (layers) or {} (with draft layers), found {}", want,
                          with_drafts, c.ratios.size()),
        "compress_ratios");
  c.ratios.resize(want);
  DEEPMINT_CHECK_OK(check(c, r));
  return c;
}

Result<Config> read_config(const std::filesystem::path& folder) {
  const std::string path = (folder / "config.json").string();
  DEEPMINT_TRY(file, MappedFile::open(path));
  auto document =
      json::parse({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                  {.max_bytes = size_t{1} << 24});
  if (!document) {
    if (document.error().code == ErrorCode::kInvalidArgument)
      document.error().code = ErrorCode::kInvalidFile;
    return tl::unexpected<Error>(std::move(document).error().at(path));
  }
  auto config = parse_config(*document);
  if (!config) return tl::unexpected<Error>(std::move(config).error().at(path));
  return config;
}

}  // namespace deepmint::v41
