// What a dense checkpoint says about itself, checked, in one form for GGUF metadata and Hugging
// Face config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.h"
#include "deepmint/result.h"
#include "format/gguf.h"

namespace deepmint::dense {

// How positions turn into angles. Every scaling becomes a table of frequencies and one magnitude
// (rope.h).
struct RopeConfig {
  enum class Scaling : uint8_t { kNone, kLinear, kYarn, kLlama3 };
  int32_t rotary = 0;  // leading elements of a head that turn; even
  double base = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;                     // linear, yarn, llama3
  double original_context = 0;           // yarn, llama3
  double beta_fast = 32, beta_slow = 1;  // yarn
  bool truncate = true;                  // yarn: ramp ends rounded outwards to whole dimensions
  double magnitude = 1;                  // of cos and sin
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
  bool interleaved =
      false;  // the checkpoint's Q and K rows are in pairs (2i, 2i + 1); loading reorders them
};

struct Config {
  std::string architecture;  // "llama", "qwen2", "qwen3"
  std::string name;
  int32_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, context = 0;
  int64_t vocab = 0;
  float norm_eps = 0;
  RopeConfig rope;
  bool qkv_bias = false, qk_norm = false;
  bool tied = false;  // the head is the embedding

  int32_t group() const { return heads / kv_heads; }
  int64_t q_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
};

// Errors name the key: kInvalidFile (missing, wrong type, out of range, inconsistent), kUnsupported
// (would change the arithmetic in a way that this build does not compute; for GGUF that includes
// every unknown key of the architecture).
Result<Config> config_from_gguf(const GgufFile& file);
Result<Config> config_from_hf(const json::Value& config, std::string_view name);

// Bounds that both loaders share: keep every later product far from overflow.
inline constexpr int64_t kMaxLayers = 1024, kMaxHidden = 1 << 17, kMaxHeads = 1024, kMaxGroup = 64,
                         kMaxHeadDim = 1024, kMaxFfn = 1 << 20, kMaxVocab = 1 << 24,
                         kMaxContext = 1 << 23;
Status check_limits(const Config& config);

}  // namespace deepmint::dense
