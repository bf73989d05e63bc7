// Which tensors a checkpoint of a known architecture must hold, from its stated dimensions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/tensor.h"

namespace deepmint {

struct ExpectedTensor {
  std::string name;
  std::vector<uint64_t> shape;  // outermost first
  bool required = true;
};

// Dimensions of a dense decoder, each from 1 to kMaxDenseDimension, so that products of two fit
// into 64 bits.
inline constexpr int64_t kMaxDenseDimension = int64_t{1} << 30;

struct DenseShape {
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0, ffn = 0,
          vocab = 0;
  int64_t rope_dims = 0;
  bool qkv_bias = false;  // of every layer, or of none
  bool qk_norm = false;
  bool head_required = false;  // an own head: output.weight, lm_head.weight
};

// Names as GGUF files use them ("blk.0.attn_q.weight") and as Hugging Face folders do
// ("model.layers.0.self_attn.q_proj.weight").
std::vector<ExpectedTensor> expected_gguf_tensors(const DenseShape& shape);
std::vector<ExpectedTensor> expected_hf_tensors(const DenseShape& shape);

// What is missing, has another shape or is not expected: first missing and misshapen tensors in the
// order of `expected`, then unexpected ones in the order of `tensors`.
struct TensorDifferences {
  uint64_t count = 0;
  std::vector<std::string> lines;  // the first kMaxLines of them, one line each
  static constexpr size_t kMaxLines = 20;
};
TensorDifferences compare_tensors(const std::vector<ExpectedTensor>& expected,
                                  const std::vector<TensorView>& tensors,
                                  std::string_view architecture);

std::string shape_text(const std::vector<uint64_t>& shape);  // "[49152, 576]"

}  // namespace deepmint
