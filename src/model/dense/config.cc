#include "model/dense/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "format/names.h"
#include "kernels/scalar_math.h"

namespace deepmint::dense {
namespace {

using Scaling = RopeConfig::Scaling;

Status in_range(std::string_view what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return fail(ErrorCode::kInvalidFile,
              fmt::format("expected {} from {} to {}, found {}", what, least, most, value));
}

double yarn_magnitude(double factor) {
  return factor > 1 ? 0.1 * kernels::ln_double(factor) + 1 : 1;
}

Status positive(std::string_view key, double value) {
  if (value > 0 && std::isfinite(value)) return {};
  return fail(ErrorCode::kInvalidFile, fmt::format("expected a positive number, found {}", value),
              std::string(key));
}

Status check_rope(const RopeConfig& c, std::string_view where) {
  DEEPMINT_CHECK_OK(positive(fmt::format("{} base", where), c.base));
  if (c.base <= 1 && c.scaling == Scaling::kYarn)
    return fail(ErrorCode::kInvalidFile, "yarn expects a base above 1", std::string(where));
  DEEPMINT_CHECK_OK(positive(fmt::format("{} factor", where), c.factor));
  DEEPMINT_CHECK_OK(positive(fmt::format("{} magnitude", where), c.magnitude));
  if (c.scaling == Scaling::kYarn || c.scaling == Scaling::kLlama3)
    DEEPMINT_CHECK_OK(positive(fmt::format("{} original context", where), c.original_context));
  if (c.scaling == Scaling::kYarn) {
    DEEPMINT_CHECK_OK(positive(fmt::format("{} beta_fast", where), c.beta_fast));
    DEEPMINT_CHECK_OK(positive(fmt::format("{} beta_slow", where), c.beta_slow));
  }
  if (c.scaling == Scaling::kLlama3) {
    DEEPMINT_CHECK_OK(positive(fmt::format("{} low_freq_factor", where), c.low_frequency_factor));
    if (!(c.high_frequency_factor > c.low_frequency_factor))
      return fail(ErrorCode::kInvalidFile, "expected high_freq_factor above low_freq_factor",
                  std::string(where));
  }
  return {};
}

// A 32-bit count from metadata.
int32_t narrow(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, -1, INT32_MAX));
}

// --- GGUF ----------------------------------------------------------------------------------------

// Keys of the architecture that the loader reads, or that change nothing here.
constexpr std::array<std::string_view, 21> kReadKeys = {
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "vocab_size",
    "tensor_data_layout",  // how a converter got the tensors; their shapes say the rest
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",  // a remark about training
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

// Keys that are fine while they switch nothing on: the values that mean "off".
struct NeutralKey {
  std::string_view key;
  double off, also_off;
};
constexpr std::array<NeutralKey, 17> kNeutralKeys = {{
    {"expert_count", 0, 0},
    {"expert_used_count", 0, 0},
    {"attention.sliding_window", 0, 0},
    {"attention.clamp_kqv", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attention.scale", 0, 0},
    {"attention.causal", 1, 1},
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"embedding_scale", 0, 1},
    {"residual_scale", 0, 1},
    {"logit_scale", 0, 1},
    {"use_parallel_residual", 0, 0},
    {"pooling_type", 0, 0},
    {"rope.scaling.yarn_ext_factor", 1, 1},
    {"rope.scaling.yarn_attn_factor", 1, 1},
    {"rope.scaling.yarn_log_multiplier", 0, 0},
}};

std::optional<double> as_number(const GgufFile::Value& value) {
  if (const auto* i = std::get_if<int64_t>(&value.data)) return static_cast<double>(*i);
  if (const auto* u = std::get_if<uint64_t>(&value.data)) return static_cast<double>(*u);
  if (const auto* d = std::get_if<double>(&value.data)) return *d;
  if (const auto* b = std::get_if<bool>(&value.data)) return *b ? 1.0 : 0.0;
  return std::nullopt;
}

Status check_gguf_keys(const GgufFile& file, std::string_view architecture) {
  const std::string prefix = std::string(architecture) + ".";
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = key.substr(prefix.size());
    if (std::ranges::find(kReadKeys, name) != kReadKeys.end()) continue;
    const auto neutral = std::ranges::find(kNeutralKeys, name, &NeutralKey::key);
    if (neutral == kNeutralKeys.end())
      return fail(ErrorCode::kUnsupported,
                  fmt::format("metadata key {} is unknown here and may change the arithmetic of "
                              "the model",
                              quote_name(key)));
    const auto number = as_number(value);
    if (!number || (*number != neutral->off && *number != neutral->also_off))
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("metadata key {}: expected {} or no such key, found {}", quote_name(key),
                      neutral->off, number ? fmt::format("{}", *number) : "another type"));
  }
  return {};
}

Result<RopeConfig> rope_from_gguf(const GgufFile& file, const std::string& prefix,
                                  int32_t head_dim) {
  RopeConfig c;
  DEEPMINT_TRY(rotary, file.integer_or(prefix + "rope.dimension_count", head_dim));
  if (rotary < 2 || rotary > head_dim || rotary % 2 != 0)
    return fail(
        ErrorCode::kInvalidFile,
        fmt::format("expected an even number from 2 to the head's {}, found {}", head_dim, rotary),
        prefix + "rope.dimension_count");
  c.rotary = static_cast<int32_t>(rotary);
  DEEPMINT_TRY(base, file.number_or(prefix + "rope.freq_base", 10000.0));
  c.base = base;
  // A factor without a type means linear; scale_linear is its older name.
  DEEPMINT_TRY(old_factor, file.number_or(prefix + "rope.scale_linear", 0.0));
  DEEPMINT_TRY(factor, file.number_or(prefix + "rope.scaling.factor", old_factor));
  DEEPMINT_TRY(type, file.string_or(prefix + "rope.scaling.type", factor != 0 ? "linear" : "none"));
  c.factor = factor != 0 ? factor : 1;
  DEEPMINT_TRY(magnitude, file.number_or(prefix + "rope.scaling.attn_factor", 1.0));
  if (type == "none") {
    c.factor = 1;
  } else if (type == "linear") {
    c.scaling = Scaling::kLinear;
  } else if (type == "yarn") {
    c.scaling = Scaling::kYarn;
    DEEPMINT_TRY(context, file.number(prefix + "context_length"));
    DEEPMINT_TRY(original,
                 file.number_or(prefix + "rope.scaling.original_context_length", context));
    c.original_context = original;
    DEEPMINT_TRY(fast, file.number_or(prefix + "rope.scaling.yarn_beta_fast", 32.0));
    DEEPMINT_TRY(slow, file.number_or(prefix + "rope.scaling.yarn_beta_slow", 1.0));
    c.beta_fast = fast;
    c.beta_slow = slow;
    magnitude *= yarn_magnitude(c.factor);
  } else {
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected none, linear or yarn, found {}", quote_name(type)),
                prefix + "rope.scaling.type");
  }
  c.magnitude = magnitude;
  DEEPMINT_CHECK_OK(check_rope(c, prefix + "rope"));
  return c;
}

// --- Hugging Face --------------------------------------------------------------------------------

// Reads keys of one JSON object; null counts as absent.
class Reader {
 public:
  Reader(const json::Value& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const json::Value* find(std::string_view key) const {
    const json::Value* v = object_.find(key);
    return v != nullptr && v->is_null() ? nullptr : v;
  }
  std::string name(std::string_view key) const { return where_ + std::string(key); }
  tl::unexpected<Error> wrong(std::string_view key, std::string_view expected,
                              const json::Value* found) const {
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected {}, found {}", expected,
                            found == nullptr     ? "no such key"
                            : found->is_number() ? found->number_text()
                                                 : std::string(json::to_string(found->kind()))),
                name(key));
  }
  Result<int64_t> integer(std::string_view key) const {
    const json::Value* v = find(key);
    const auto n = v != nullptr ? v->to_int64() : std::nullopt;
    if (!n) return wrong(key, "an integer", v);
    return *n;
  }
  Result<int64_t> integer_or(std::string_view key, int64_t fallback) const {
    return find(key) == nullptr ? Result<int64_t>(fallback) : integer(key);
  }
  Result<double> number(std::string_view key) const {
    const json::Value* v = find(key);
    const auto n = v != nullptr ? v->to_double() : std::nullopt;
    if (!n) return wrong(key, "a number", v);
    return *n;
  }
  Result<double> number_or(std::string_view key, double fallback) const {
    return find(key) == nullptr ? Result<double>(fallback) : number(key);
  }
  Result<bool> boolean_or(std::string_view key, bool fallback) const {
    const json::Value* v = find(key);
    if (v == nullptr) return fallback;
    if (!v->is_bool()) return wrong(key, "true or false", v);
    return v->as_bool();
  }
  Result<std::string> string_or(std::string_view key, std::string fallback) const {
    const json::Value* v = find(key);
    if (v == nullptr) return fallback;
    if (!v->is_string()) return wrong(key, "a string", v);
    return v->as_string();
  }
  // Refuses a key unless it is absent, null, false or one of the neutral numbers.
  Status neutral(std::string_view key, double off, double also_off) const {
    const json::Value* v = find(key);
    if (v == nullptr || (v->is_bool() && !v->as_bool())) return {};
    const auto n = v->to_double();
    if (n && (*n == off || *n == also_off)) return {};
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected {} or no such key, found {}", off,
                            n ? v->number_text()
                              : std::string(v->is_bool() ? "true" : json::to_string(v->kind()))),
                name(key));
  }

 private:
  const json::Value& object_;
  std::string where_;
};

// Settings of related families that change the arithmetic; fine while they switch nothing on.
constexpr std::array<NeutralKey, 23> kHfNeutralKeys = {{
    {"mlp_bias", 0, 0},
    {"use_bias", 0, 0},
    {"use_sliding_window", 0, 0},
    {"rope_interleaved", 0, 0},
    {"partial_rotary_factor", 1, 1},
    {"rotary_pct", 1, 1},
    {"attention_multiplier", 1, 1},
    {"embedding_multiplier", 1, 1},
    {"residual_multiplier", 1, 1},
    {"logits_scaling", 1, 1},
    {"logit_scale", 1, 1},
    {"scale_emb", 1, 1},
    {"scale_depth", 1, 1},
    {"query_pre_attn_scalar", 0, 0},
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"clip_qkv", 0, 0},
    {"alibi", 0, 0},
    {"parallel_attn", 0, 0},
    {"num_experts", 0, 0},
    {"num_local_experts", 0, 1},
    {"n_routed_experts", 0, 0},
    {"quantization_config", 0, 0},
}};

Result<RopeConfig> rope_from_hf(const Reader& config, int32_t head_dim, int64_t context) {
  RopeConfig c;
  c.rotary = head_dim;
  if (head_dim % 2 != 0)
    return fail(ErrorCode::kInvalidFile, fmt::format("expected an even number, found {}", head_dim),
                config.name("head_dim"));
  DEEPMINT_TRY(outer_base, config.number_or("rope_theta", 10000.0));
  c.base = outer_base;
  // "rope_parameters" is the newer name and holds rope_theta as well.
  const std::string_view key =
      config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json::Value* object = config.find(key);
  if (object == nullptr) {
    DEEPMINT_CHECK_OK(check_rope(c, config.name("rope_theta")));
    return c;
  }
  if (!object->is_object()) return config.wrong(key, "an object", object);
  const Reader r(*object, config.name(key) + ".");
  DEEPMINT_TRY(base, r.number_or("rope_theta", c.base));
  c.base = base;
  DEEPMINT_TRY(old_type, r.string_or("type", "default"));
  DEEPMINT_TRY(type, r.string_or("rope_type", old_type));
  DEEPMINT_CHECK_OK(r.neutral("partial_rotary_factor", 1, 1));
  if (type != "default") {
    DEEPMINT_TRY(factor, r.number("factor"));
    c.factor = factor;
  }
  if (type == "linear") {
    c.scaling = Scaling::kLinear;
  } else if (type == "llama3") {
    c.scaling = Scaling::kLlama3;
    DEEPMINT_TRY(original, r.number("original_max_position_embeddings"));
    DEEPMINT_TRY(low, r.number("low_freq_factor"));
    DEEPMINT_TRY(high, r.number("high_freq_factor"));
    c.original_context = original;
    c.low_frequency_factor = low;
    c.high_frequency_factor = high;
  } else if (type == "yarn") {
    c.scaling = Scaling::kYarn;
    DEEPMINT_CHECK_OK(r.neutral("mscale", 0, 0));
    DEEPMINT_CHECK_OK(r.neutral("mscale_all_dim", 0, 0));
    DEEPMINT_TRY(original,
                 r.number_or("original_max_position_embeddings", static_cast<double>(context)));
    DEEPMINT_TRY(fast, r.number_or("beta_fast", 32.0));
    DEEPMINT_TRY(slow, r.number_or("beta_slow", 1.0));
    DEEPMINT_TRY(magnitude, r.number_or("attention_factor", yarn_magnitude(c.factor)));
    DEEPMINT_TRY(truncate, r.boolean_or("truncate", true));
    c.original_context = original;
    c.beta_fast = fast;
    c.beta_slow = slow;
    c.magnitude = magnitude;
    c.truncate = truncate;
  } else if (type != "default") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected default, linear, llama3 or yarn, found {}", quote_name(type)),
                r.name(r.find("rope_type") != nullptr ? "rope_type" : "type"));
  }
  DEEPMINT_CHECK_OK(check_rope(c, config.name(key)));
  return c;
}

}  // namespace

Status check_limits(const Config& c) {
  DEEPMINT_CHECK_OK(in_range("layers", c.layers, 1, kMaxLayers));
  DEEPMINT_CHECK_OK(in_range("hidden size", c.hidden, 1, kMaxHidden));
  DEEPMINT_CHECK_OK(in_range("attention heads", c.heads, 1, kMaxHeads));
  DEEPMINT_CHECK_OK(in_range("K/V heads", c.kv_heads, 1, c.heads));
  if (c.heads % c.kv_heads != 0)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected attention heads to be a multiple of K/V heads, found {} "
                            "and {}",
                            c.heads, c.kv_heads));
  if (c.group() > kMaxGroup)
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected at most {} attention heads for one K/V head, found {}",
                            kMaxGroup, c.group()));
  DEEPMINT_CHECK_OK(in_range("head size", c.head_dim, 2, kMaxHeadDim));
  DEEPMINT_CHECK_OK(in_range("feed-forward size", c.ffn, 1, kMaxFfn));
  DEEPMINT_CHECK_OK(in_range("vocabulary", c.vocab, 1, kMaxVocab));
  DEEPMINT_CHECK_OK(in_range("context", c.context, 1, kMaxContext));
  if (!(c.norm_eps >= 0 && c.norm_eps < 1))
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected a norm epsilon from 0 to 1, found {}", c.norm_eps));
  return {};
}

Result<Config> config_from_gguf(const GgufFile& file) {
  Config c;
  DEEPMINT_TRY(architecture, file.string("general.architecture"));
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3")
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected llama, qwen2 or qwen3, found {}", quote_name(architecture)),
                "general.architecture");
  DEEPMINT_CHECK_OK(check_gguf_keys(file, architecture));
  c.architecture = architecture;
  const std::string p = c.architecture + ".";
  DEEPMINT_TRY(name, file.string_or("general.name", ""));
  c.name = name.empty() ? file.file().path().stem().string() : printable(name);
  DEEPMINT_TRY(layers, file.integer(p + "block_count"));
  DEEPMINT_TRY(hidden, file.integer(p + "embedding_length"));
  DEEPMINT_TRY(ffn, file.integer(p + "feed_forward_length"));
  DEEPMINT_TRY(context, file.integer(p + "context_length"));
  DEEPMINT_TRY(heads, file.integer(p + "attention.head_count"));
  DEEPMINT_TRY(kv_heads, file.integer_or(p + "attention.head_count_kv", heads));
  DEEPMINT_TRY(eps, file.number(p + "attention.layer_norm_rms_epsilon"));
  c.layers = narrow(layers);
  c.hidden = narrow(hidden);
  c.ffn = narrow(ffn);
  c.context = narrow(context);
  c.heads = narrow(heads);
  c.kv_heads = narrow(kv_heads);
  c.norm_eps = static_cast<float>(eps);

  const TensorView* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr)
    return fail(ErrorCode::kInvalidFile, "expected this tensor, found none",
                "tensor \"token_embd.weight\"");
  if (embedding->shape.size() != 2)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected 2 dimensions, found {}", embedding->shape.size()),
                "tensor \"token_embd.weight\"");
  c.vocab = static_cast<int64_t>(std::min<uint64_t>(embedding->shape[0], INT64_MAX));
  DEEPMINT_TRY(vocab, file.integer_or(p + "vocab_size", c.vocab));
  if (vocab != c.vocab)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected the {} rows of token_embd.weight, found {}", c.vocab, vocab),
                p + "vocab_size");

  if (c.heads < 1)
    return fail(ErrorCode::kInvalidFile, fmt::format("expected at least 1, found {}", heads),
                p + "attention.head_count");
  if (file.find(p + "attention.key_length") == nullptr && c.hidden % c.heads != 0)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected embedding_length {} to be a multiple of head_count {}",
                            c.hidden, c.heads),
                p + "attention.head_count");
  DEEPMINT_TRY(head_dim, file.integer_or(p + "attention.key_length", c.hidden / c.heads));
  DEEPMINT_TRY(value_dim, file.integer_or(p + "attention.value_length", head_dim));
  if (value_dim != head_dim)
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected the key length {}, found {}", head_dim, value_dim),
                p + "attention.value_length");
  c.head_dim = narrow(head_dim);
  DEEPMINT_CHECK_OK(check_limits(c));
  DEEPMINT_TRY(rope, rope_from_gguf(file, p, c.head_dim));
  c.rope = rope;
  c.rope.interleaved = c.architecture == "llama";
  c.qkv_bias = file.tensor("blk.0.attn_q.bias") != nullptr || c.architecture == "qwen2";
  c.qk_norm = c.architecture == "qwen3";
  c.tied = file.tensor("output.weight") == nullptr;
  return c;
}

Result<Config> config_from_hf(const json::Value& config, std::string_view name) {
  Config c;
  const Reader r(config, "");
  const json::Value* architectures = r.find("architectures");
  if (architectures == nullptr || !architectures->is_array() ||
      architectures->items().size() != 1 || !architectures->items()[0].is_string())
    return r.wrong("architectures", "a list of one string", architectures);
  const std::string& architecture = architectures->items()[0].as_string();
  if (architecture == "LlamaForCausalLM") {
    c.architecture = "llama";
  } else if (architecture == "Qwen2ForCausalLM") {
    c.architecture = "qwen2";
  } else if (architecture == "Qwen3ForCausalLM") {
    c.architecture = "qwen3";
  } else {
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM, "
                            "found {}",
                            quote_name(architecture)),
                "architectures");
  }
  c.name = name;
  for (const NeutralKey& key : kHfNeutralKeys)
    DEEPMINT_CHECK_OK(r.neutral(key.key, key.off, key.also_off));
  // Qwen2 has a QKV bias whatever this says; elsewhere it would put one on the output as well.
  if (c.architecture != "qwen2") DEEPMINT_CHECK_OK(r.neutral("attention_bias", 0, 0));
  // Qwen folders state a window that use_sliding_window (checked above) leaves off.
  if (c.architecture == "llama") DEEPMINT_CHECK_OK(r.neutral("sliding_window", 0, 0));
  if (const json::Value* types = r.find("layer_types")) {
    if (!types->is_array()) return r.wrong("layer_types", "a list", types);
    for (const json::Value& type : types->items())
      if (!type.is_string() || type.as_string() != "full_attention")
        return fail(ErrorCode::kUnsupported,
                    fmt::format("expected full_attention for every layer, found {}",
                                type.is_string() ? quote_name(type.as_string())
                                                 : std::string(json::to_string(type.kind()))),
                    "layer_types");
  }
  DEEPMINT_TRY(act, r.string_or("hidden_act", "silu"));
  if (act != "silu")
    return fail(ErrorCode::kUnsupported, fmt::format("expected silu, found {}", quote_name(act)),
                "hidden_act");

  DEEPMINT_TRY(layers, r.integer("num_hidden_layers"));
  DEEPMINT_TRY(hidden, r.integer("hidden_size"));
  DEEPMINT_TRY(ffn, r.integer("intermediate_size"));
  DEEPMINT_TRY(context, r.integer("max_position_embeddings"));
  DEEPMINT_TRY(heads, r.integer("num_attention_heads"));
  DEEPMINT_TRY(kv_heads, c.architecture == "llama" ? r.integer_or("num_key_value_heads", heads)
                                                   : r.integer("num_key_value_heads"));
  DEEPMINT_TRY(vocab, r.integer("vocab_size"));
  DEEPMINT_TRY(eps, r.number("rms_norm_eps"));
  DEEPMINT_TRY(tied, r.boolean_or("tie_word_embeddings", false));
  c.layers = narrow(layers);
  c.hidden = narrow(hidden);
  c.ffn = narrow(ffn);
  c.context = narrow(context);
  c.heads = narrow(heads);
  c.kv_heads = narrow(kv_heads);
  c.vocab = vocab;
  c.norm_eps = static_cast<float>(eps);
  c.tied = tied;
  if (c.heads < 1)
    return fail(ErrorCode::kInvalidFile, fmt::format("expected at least 1, found {}", heads),
                "num_attention_heads");
  if (r.find("head_dim") == nullptr && c.architecture == "qwen3") {
    c.head_dim = 128;  // the default of that class
  } else {
    if (r.find("head_dim") == nullptr && c.hidden % c.heads != 0)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected hidden_size {} to be a multiple of it, found {}", c.hidden,
                              c.heads),
                  "num_attention_heads");
    DEEPMINT_TRY(head_dim, r.integer_or("head_dim", c.hidden / c.heads));
    c.head_dim = narrow(head_dim);
  }
  DEEPMINT_CHECK_OK(check_limits(c));
  DEEPMINT_TRY(rope, rope_from_hf(r, c.head_dim, c.context));
  c.rope = rope;
  c.qkv_bias = c.architecture == "qwen2";
  c.qk_norm = c.architecture == "qwen3";
  return c;
}

}  // namespace deepmint::dense
