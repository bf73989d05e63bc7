// Small random models of the real structure, for tests of everything above the file formats. The
// same description and seed always give the same bytes. Values are random but tame: logits have a
// spread of about 2.
//
//   TinyModel tiny{.architecture = "qwen3", .n_layers = 3, .weights = DType::kQ4_1};
//   tiny_gguf(tiny).write(folder / "tiny.gguf");                       // with a byte-level
//   tokenizer and a ChatML template tiny_gguf(tiny).set("general.name", "Other").write(path); // a
//   GgufWriter: anything may be changed write_tiny_hf({.weights = DType::kBF16}, folder / "tiny");
//   // config.json, model.safetensors, tokenizer.json
//
// tiny_gguf and write_tiny_hf of one description hold the same weights (the rotary rows of Llama
// are permuted in GGUF, as converters do), so both must give the same answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "support/gguf_writer.h"
#include "support/random.h"

namespace deepmint::testing {

struct TinyModel {
  std::string architecture = "llama";  // "llama", "qwen2" (QKV bias) or "qwen3" (QK norm)
  uint32_t n_layers = 2;
  uint32_t hidden = 64;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 16;
  uint32_t ffn = 96;
  uint32_t context = 512;  // tokens
  bool tied = true;        // no output.weight: the head is the embedding
  float rope_base = 10000.0f;
  float rms_eps = 1e-5f;
  DType weights = DType::kF32;    // matrices of the layers; any GGUF type. Norms and biases are
                                  // always F32 in GGUF
  DType embedding = DType::kF32;  // token_embd and output
  uint32_t unused_tokens = 0;     // extra vocabulary entries behind the real ones
  uint64_t seed = 1;
};

// The default shape, widened where the block of `weights` asks for it (256 for Q4_K, Q5_K, Q6_K).
TinyModel tiny_model_for(DType weights);

GgufWriter tiny_gguf(const TinyModel& model);

// A folder in Hugging Face layout; made when absent. weights and embedding: F32, F16 or BF16 (norms
// and biases have the type of weights, as in published checkpoints; `embedding` applies to
// embed_tokens and lm_head).
void write_tiny_hf(const TinyModel& model, const std::filesystem::path& folder);

// The vocabulary of every tiny model: three control tokens, 256 bytes in the byte-level alphabet, a
// few merges.
struct TinyVocabulary {
  std::vector<std::string> tokens;  // byte-level alphabet, index = id
  std::vector<std::string> merges;  // "Ġ t"
  std::vector<int32_t> types;       // GGUF token types: 1 normal, 3 control, 5 unused
};
inline constexpr int32_t kTinyEndOfText = 0, kTinyImStart = 1, kTinyImEnd = 2;
TinyVocabulary tiny_vocabulary(uint32_t unused_tokens = 0);
extern const std::string_view kChatMlTemplate;

// `rows` rows of `k` random values with mean about 0 and standard deviation about `std`, in the
// stored layout of `type`. k must be a multiple of the type's block. Rows do not depend on each
// other, only on (type, row index, k, std, seed).
std::string random_rows(DType type, uint64_t rows, uint64_t k, float std, uint64_t seed);

// Round-to-nearest-even conversions of finite values; overflow gives infinity.
uint16_t to_f16(float value);
uint16_t to_bf16(float value);

}  // namespace deepmint::testing
