// A dense model in memory: weights, and one forward step over a ragged batch (model/model.h).
#pragma once

#include <atomic>
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
  void clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state, int32_t length,
                    PromptTail tail) const override;

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
    int64_t tiles() const { return int64_t{position} / kBlockTokens + 1; }  // of one row
  };
  struct TileItem {
    int32_t tile = 0;
    uint32_t unit = 0;
  };

  // Outputs of gate and up that stay on one thread: a block of the down product's inputs.
  static constexpr int64_t kFusedOutputs = 32;
  static constexpr int64_t kFusedTiles = kFusedOutputs / kernels::kTileOutputs;
  // Tiles whose partial results are held at once while a long row is shared among threads.
  static constexpr int64_t kWaveTiles = 64;
  // Below this many tiles combining them is not worth sharing out.
  static constexpr int64_t kSerialTiles = 16;
  // From this many rows on, threads take small shares of a product, as they become free.
  static constexpr size_t kSharedRows = 64;
  // Up to this many rows, each thread of decode() makes the inputs of products for itself.
  static constexpr size_t kOwnRows = 2;

  // What a thread of decode() has for itself: kOwnRows rows, of attention up to 2 * threads.
  struct Desk {
    kernels::Activations inputs[kActivationTypes];  // of the next product, by ActivationType
    AlignedBuffer<float> normed, gated;             // [rows, hidden], [rows, ffn]
    AlignedBuffer<float> qkv, attended, states;     // as the shared ones
    int64_t dealt = 0;  // what dealt_ was when the present product began
  };

  static size_t size_of(int64_t a, int64_t b) {
    return static_cast<size_t>(a) * static_cast<size_t>(b);
  }
  static uint32_t types_of(const Linear& linear);  // bit t: ActivationType t
  static void fetch(const Linear& linear, int64_t tile);

  Status plan(const StepInput& input, size_t n_logits);
  void embed(const StepInput& input, size_t row);
  void place(const StepInput& input, size_t row);
  template <class Body>
  void prepare(const float* x, size_t rows, int64_t stride, const Linear& next, Body&& body);
  void normalize(const float* x, size_t rows, const AlignedBuffer<float>& weight,
                 const Linear& next);
  void multiply(const Linear& linear, int64_t begin, int64_t end,
                const kernels::Activations* inputs, float* y, int64_t stride, bool add);
  template <class After>
  void apply(const Linear& linear, size_t rows, const kernels::Activations* inputs, float* y,
             int64_t stride, bool add, After&& after);
  void gate_up(const Layer& layer, const kernels::Activations* inputs, size_t rows, int64_t begin,
               int64_t end);
  bool gate_up_fused(const Layer& layer, size_t rows);
  void fetch_share(const Linear& next, int worker) const;
  std::byte* tile_of(int index, const StepInput& input, const Row& row, int32_t kv_head) const;
  void finish_heads(int index, size_t row, int32_t kv_head, float* qkv) const;
  void store_heads(int index, const StepInput& input, size_t row, int32_t kv_head,
                   const float* qkv) const;
  void list_units(bool keep_all);
  void attention(int index, const StepInput& input, bool keep_all);
  void attention_in_tiles(int index, const StepInput& input);
  kernels::AttentionJob job_of(const AttentionUnit& unit, const std::byte* layer_base);
  template <class Body>
  void for_rows(size_t rows, Body&& body);

  // decode.cc
  bool decodes(const StepInput& input) const;
  void decode(const StepInput& input, std::span<float> logits, Tap* tap);
  void decode(const StepInput& input, std::span<float> logits, Tap* tap, Team& team);
  void list_tiles();
  int64_t cost_of(const TileItem& item) const;
  void fetch_kv(int index, const StepInput& input, const Team& team) const;
  void fetch_share(const Linear& next, const Team& team) const;
  template <class Body>
  const kernels::Activations* inputs(Team& team, Desk& desk, size_t rows, const float* x,
                                     int64_t stride, const Linear& next,
                                     kernels::Activations* shared, Body&& body);
  const kernels::Activations* normalized(Team& team, Desk& desk, size_t rows,
                                         const AlignedBuffer<float>& weight, const Linear& next);
  template <class Body>
  void deal(const Team& team, Desk& desk, size_t bytes, int64_t units, Body&& body);
  void product(const Team& team, Desk& desk, const Linear& linear,
               const kernels::Activations* inputs, float* y, int64_t stride, bool add);
  const kernels::Activations* attend(int index, const StepInput& input, Team& team, Desk& desk);
  bool attend_units(int index, const StepInput& input, Team& team, const std::byte* layer_base);
  bool attend_tiles(int index, const StepInput& input, Team& team, Desk& desk,
                    const std::byte* layer_base);

  const Config config_;
  const Weights weights_;
  const std::shared_ptr<ThreadPool> pool_;
  ModelInfo info_;
  StatePart part_;
  size_t tile_bytes_ = 0;
  uint32_t types_ = 0;  // of all products: bit t for ActivationType t
  float q_scale_ = 1;   // 1 / sqrt(head_dim), put on the queries

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
  kernels::Activations given_[kActivationTypes];        // of the output product, in decode
  kernels::Activations fed_[kActivationTypes];          // of the down product, after gate_up
  std::vector<Desk> desks_;                             // [threads]
  std::vector<Run> runs_;
  std::vector<AttentionUnit> units_;
  std::vector<TileItem> tile_items_;
  std::vector<uint32_t> tile_cuts_;  // [waves, threads + 1] where shares of tile_items_ begin
  alignas(64) std::atomic<int64_t> dealt_{0};  // pieces of products asked for in this step
  std::vector<uint32_t> logit_rows_;
  std::vector<uint8_t> seen_;  // [sequences]
};

}  // namespace deepmint::dense
