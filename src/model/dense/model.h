// A dense model in memory: weights, and one forward step over a ragged batch (model/model.h).
#pragma once

#include <memory>
#include <vector>

#include "core/aligned.h"
#include "core/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "model/dense/config.h"
#include "model/dense/weights.h"
#include "model/model.h"

namespace deepmint::dense {

// State: one global part, "kv". A block holds, for every layer, for every K/V head, one tile of
// kernels/attention.h: layer-major, then head.
//
// Rows of dense models use neither window_floor, layer ranges nor image rows; other values than the
// defaults are refused. Rows below write_global_from leave their K/V as it is.
// Taps: "embed" (layer -1), "attn" and "mlp" give the residual stream after the sublayer, "norm"
// (layer n_layers) the rows that need logits.
inline constexpr uint32_t kActivationTypes = 3;  // kernels::ActivationType

class DenseModel : public Model {
 public:
  DenseModel(Config config, Weights weights, std::shared_ptr<ThreadPool> pool);

  const ModelInfo& info() const override { return info_; }
  std::span<const StatePart> state_parts() const override { return {&part_, 1}; }
  Status reserve(size_t max_rows, size_t max_logit_rows) override;
  Status forward(const StepInput& input, std::span<float> logits, Tap* tap) override;

 private:
  // Rows of one sequence in this step.
  struct Run {
    size_t first_row = 0, rows = 0;
    int32_t position = 0;
    const BlockId* blocks = nullptr;
  };
  // Work of one attention call: a few rows of a run and one K/V head.
  struct AttentionUnit {
    uint32_t q_row = 0, out_row = 0, rows = 0;
    int32_t position = 0, kv_head = 0;
    const BlockId* blocks = nullptr;
  };

  Status plan(const StepInput& input, size_t n_logits);
  void embed(const StepInput& input);
  template <class Body>
  void prepare(const float* x, size_t rows, int64_t stride, const Linear& next, Body&& body);
  void normalize(const float* x, size_t rows, const AlignedBuffer<float>& weight,
                 const Linear& next);
  void multiply(const Linear& linear, int64_t begin, int64_t end,
                const kernels::Activations* inputs, float* y, int64_t stride, bool add);
  template <class After>
  void apply(const Linear& linear, size_t rows, const kernels::Activations* inputs, float* y,
             int64_t stride, bool add, After&& after);
  bool gate_up_fused(const Layer& layer, size_t rows);
  void fetch_share(const Linear& next, int worker) const;
  std::byte* tile_of(int index, const StepInput& input, const Row& row, int32_t kv_head) const;
  void finish_heads(int index, const StepInput& input, size_t row, int32_t kv_head);
  void list_units(bool keep_all);
  void attention(int index, const StepInput& input, bool keep_all);
  void attention_in_tiles(int index, const StepInput& input);
  kernels::AttentionJob job_of(const AttentionUnit& unit, const std::byte* layer_base);
  template <class Body>
  void for_rows(size_t rows, Body&& body);

  const Config config_;
  const Weights weights_;
  const std::shared_ptr<ThreadPool> pool_;
  ModelInfo info_;
  StatePart part_;
  size_t tile_bytes_ = 0;
  float q_scale_ = 1;  // 1 / sqrt(head_dim), put on the queries

  // Scratch of one step; sizes are set by reserve().
  size_t max_rows_ = 0, max_logits_ = 0;
  AlignedBuffer<float> x_;     // [rows, hidden] residual stream
  AlignedBuffer<float> kept_;  // [logit rows, hidden] the same of rows that go on past the last K/V
  AlignedBuffer<float> normed_;    // [rows, hidden]
  AlignedBuffer<float> qkv_;       // [rows, q_width + 2 kv_width]
  AlignedBuffer<float> attended_;  // [rows, q_width]
  AlignedBuffer<float> gate_up_;   // [rows, 2 ffn]; SwiGLU leaves its result in the first half
  AlignedBuffer<float> angles_;    // [rows, rotary] cosines and sines
  AlignedBuffer<float> scratch_;   // [threads] of attention_scratch_floats
  AlignedBuffer<float> partials_, states_;              // attention_in_tiles
  kernels::Activations activations_[kActivationTypes];  // by ActivationType
  kernels::Activations fed_[kActivationTypes];          // of the down product, after gate_up_fused
  std::vector<Run> runs_;
  std::vector<AttentionUnit> units_;
  std::vector<uint32_t> logit_rows_;
  std::vector<uint8_t> seen_;  // [sequences]
};

}  // namespace deepmint::dense
