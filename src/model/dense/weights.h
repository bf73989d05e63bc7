// The tensors of a dense model, checked and packed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/aligned.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "deepmint/result.h"
#include "format/tensor.h"
#include "kernels/linear.h"
#include "model/dense/config.h"
#include "model/dense/rope.h"

namespace deepmint::dense {

// A checkpoint as a set of named tensors in mapped files, whatever its format.
struct Source {
  enum class Naming : uint8_t { kGguf, kHuggingFace };
  Naming naming = Naming::kGguf;
  std::span<const TensorView> tensors;
  std::vector<const MappedFile*> files;  // by TensorView::file_index
  std::shared_ptr<const void> owner;     // keeps tensors and files alive
};

// One or more matrices with the same input whose outputs stand side by side: Q, K and V, or gate
// and up. Matrices of one type are stacked; a model that mixes types keeps several parts.
struct Linear {
  struct Part {
    kernels::PackedMatrix w;
    int64_t first_output = 0;
  };
  std::vector<Part> parts;
  int64_t n = 0, k = 0;
  int64_t tiles() const {
    int64_t sum = 0;
    for (const Part& p : parts) sum += p.w.tiles();
    return sum;
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const Part& p : parts) sum += p.w.bytes();
    return sum;
  }
};

struct Layer {
  AlignedBuffer<float> attn_norm, ffn_norm;  // [hidden]
  AlignedBuffer<float> qkv_bias;             // [q_width + 2 kv_width], empty without bias
  AlignedBuffer<float> q_norm, k_norm;       // [head_dim], empty without
  Linear qkv, output, gate_up, down;
};

// Q and K are kept in the order of RopePairing::kHalves: rows of a checkpoint in interleaved pairs
// are reordered while packing, so that one model gives the same bits from either format.
struct Weights {
  TensorView embedding;  // stays mapped; rows are read as tokens need them
  std::shared_ptr<const void> owner;
  AlignedBuffer<float> final_norm;
  std::vector<Layer> layers;
  Linear head;
  Rope rope;
  uint64_t bytes = 0;  // packed and read once by a step that wants logits
  uint64_t fingerprint = 0;
};

// Checks every tensor before packing the first. Errors: kInvalidFile or kUnsupported with the
// tensor's name, what was expected and what was found.
Result<Weights> load_weights(const Config& config, const Source& source, ThreadPool& pool,
                             const std::function<void(double)>& progress);
Status check_weights(const Config& config, const Source& source);  // the checks alone

}  // namespace deepmint::dense
