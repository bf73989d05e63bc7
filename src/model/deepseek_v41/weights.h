// The tensors of a V4.1 checkpoint, found by name and checked: type, shape, and for each quantised
// weight its scale tensor. Nothing of the matrices is copied: their views point into the mapped
// files. Vectors are copied, because files need not align them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/aligned.h"
#include "deepmint/result.h"
#include "format/safetensors.h"
#include "model/deepseek_v41/config.h"

namespace deepmint::v41 {

enum class WeightKind : uint8_t {
  kFp8,   // E4M3 [n, k], E8M0 scale per 32 x 32 tile
  kFp4,   // two E2M1 per byte [n, k / 2] (low nibble = even k), E8M0 scale per 32 elements of a row
  kBf16,  // BF16 [n, k]
};

// One matrix y = W x. Codes and scales as stored.
struct Matrix {
  WeightKind kind = WeightKind::kBf16;
  const TensorView* weight = nullptr;
  const TensorView* scale = nullptr;
  int64_t n = 0, k = 0;
  int index = -1;  // dense numbering over all matrices of the model, for arithmetics that keep
                   // their own packed copies
};
// Row `row` as float values (exact). out: [k].
void dequantize_row(const Matrix& m, int64_t row, float* out);

struct MixWeights {           // hyper-connection of one sublayer
  std::span<const float> fn;  // [2hc + hc*hc, hc*hidden], where the model keeps the tensor
  std::vector<float> base;    // [2hc + hc*hc]
  std::vector<float> scale;   // [3]
  AlignedBuffer<float> copy;  // what fn shows when the tensor stands on no boundary of floats
};

struct Expert {
  Matrix w1, w2, w3;
};

struct CompressorWeights {
  Matrix wkv;
  std::optional<Matrix> wgate;  // ratio 2 only
  std::vector<float> norm;
  Matrix wk;  // index keys
  std::vector<float> k_norm;
};

struct IndexerWeights {
  Matrix wq_b, weights_proj;
};

struct EngramWeights {
  const TensorView* table = nullptr;        // E4M3 [rows, dim]
  const TensorView* table_scale = nullptr;  // E8M0 [rows, dim / 32]
  Matrix wkv;
  std::vector<float> q_weight, k_weight;  // [hc, hidden]
};

struct LayerWeights {
  std::vector<float> attn_norm, ffn_norm, q_norm, kv_norm;
  MixWeights attn_mix, ffn_mix;
  Matrix wq_a, wq_b, wkv, wo_b;
  std::vector<Matrix>
      wo_a;  // one [o_lora, heads/groups * head_dim] matrix per group, views into one tensor
  std::vector<float> sink;  // [heads]
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;
  Matrix gate;
  std::vector<float> gate_bias;  // [experts]
  std::vector<Expert> experts;
  Expert shared;
  std::optional<EngramWeights> engram;
};

struct Weights {
  const TensorView* embed = nullptr;  // BF16 [vocab, hidden]
  Matrix head;
  std::vector<float> norm;
  std::vector<LayerWeights> layers;
  int matrices = 0;                     // how many Matrix::index were given out
  std::vector<TensorView> group_views;  // backing store of wo_a's per-group views
};

// Errors: kInvalidFile naming the tensor, expected and found, for anything missing, extra,
// mis-shaped or mis-typed. Tensors of the vision encoder and of the draft layers are recognised and
// left alone. `model` must outlive the result.
Result<Weights> bind_weights(const SafetensorsModel& model, const Config& config);

}  // namespace deepmint::v41
