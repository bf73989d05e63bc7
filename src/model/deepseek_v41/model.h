// The DeepSeek-V4.1 text model as a Model: one forward step over a ragged batch (model/model.h), to
// spec model.md.
//
//   DEEPMINT_TRY(model, V41Model::load("DeepSeek-V4.1-Flash", make_reference_arithmetic()));
//
// Row fields: window_floor bounds window attention in every layer, decoder_floor in the layers
// after the last kv source; write_global_from keeps global rows of earlier positions as they are;
// layer_end equal to the last kv source's id means "run the encoder and project the source's rows"
// (decoder-tail skipping, spec 10.3); anything else must be the whole model.
//
// Taps, in this order per layer: "engram" [rows, streams * hidden] (layers that have one), "attn"
// and "moe" [rows, hidden], the sublayers' outputs; before them "embed" (layer -1), after them
// "norm" (layer n_layers, rows that need logits). Rows that a layer skips are left out.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/aligned.h"
#include "kernels/weight_memory.h"
#include "model/deepseek_v41/arithmetic.h"
#include "model/deepseek_v41/disk_reader.h"
#include "model/deepseek_v41/engram.h"
#include "model/deepseek_v41/memory_plan.h"
#include "model/deepseek_v41/state.h"
#include "model/model.h"

namespace deepmint::v41 {

struct V41Options {
  // compressed id of each token id, from the tokenizer; empty for checkpoints whose config has
  // x_engram_map.
  std::vector<int32_t> engram_map = {};
  ExpertPlacement experts = ExpertPlacement::kAuto;
  uint64_t available_bytes = UINT64_MAX;  // memory that the weights may take
  // Called once, before the first weight is read: what will be resident and what stays on disk.
  std::function<void(const MemoryPlan&)> on_plan = {};
  std::function<void(double fraction)> progress = {};  // while resident weights are read in
  std::shared_ptr<ThreadPool> pool = nullptr;          // kept alive for the arithmetic that uses it
};

// Whether a map of token ids is the one that this configuration needs (engram_map of V41Options).
// Errors: kInvalidFile naming `where`.
Status check_engram_map(const Config& config, std::span<const int32_t> map,
                        const std::string& where);

class V41Model : public Model {
 public:
  // Errors: kInvalidFile or kUnsupported naming the field or tensor, what was expected and found;
  // kResourceExhausted when the weights that every step reads do not fit available_bytes.
  static Result<std::unique_ptr<V41Model>> load(const std::filesystem::path& folder,
                                                std::unique_ptr<Arithmetic> arithmetic,
                                                V41Options options = {});
  ~V41Model() override;

  const ModelInfo& info() const override { return info_; }
  StepWork work() const override {
    return {bytes_.load(std::memory_order_relaxed), macs_.load(std::memory_order_relaxed)};
  }
  std::span<const StatePart> state_parts() const override { return layout_.parts(); }
  Status reserve(size_t max_rows, size_t max_logit_rows) override;
  Status forward(const StepInput& input, std::span<float> logits, Tap* tap) override;

  const Config& config() const { return config_; }
  const StateLayout& layout() const { return layout_; }
  const MemoryPlan& memory_plan() const { return plan_; }

  Status check_tokens(std::span<const TokenId> tokens) const override;
  PromptTail exact_prompt_tail(int32_t prompt_tokens) const override;
  Result<PromptTail> bounded_prompt_tail(int32_t prompt_tokens, int32_t keep_tokens) const override;
  PrefixPlan plan_prefix(const PrefixHit& hit, int32_t prompt_tokens, PromptTail tail,
                         bool approximate_tail) const override;
  void begin_at(const SequenceRef& sequence, std::span<const PartMemory> state,
                std::span<const TokenId> tokens, int32_t begin) const override {
    layout_.write_history(state, sequence, tokens, begin);
  }
  void clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state, int32_t length,
                    PromptTail tail) const override {
    layout_.clear_unread(state, sequence, length, tail);
  }
  // Engram rows of `ids`, read as consecutive text, are announced to the hints; rows of the first
  // ids, whose n-grams begin before them, are not.
  void prefetch(std::span<const TokenId> ids) override;
  // Who is told what steps will read from weights on disk (Engram rows, routed experts), instead of
  // the model's own reader. Outlives the model.
  void set_hints(WeightHints* hints);

  // For tests: the selection that the last index source made for a row of the last forward.
  std::vector<int32_t> selected_rows(size_t row) const;
  std::vector<int32_t> candidate_blocks(size_t row) const;

 private:
  V41Model(Config config, SafetensorsModel files, std::unique_ptr<Arithmetic> arithmetic,
           V41Options options);
  Status check(const StepInput& input, size_t n_logits);

  // load.cc
  Status make_resident();
  void describe(std::string name, std::span<const std::byte> config_bytes);

  // forward.cc
  struct Step;  // the working set of one forward, and its memory
  int64_t compressed_id(int64_t id) const;
  void embed(Step& s);
  void announce_engram(Step& s);
  Status run_engram(Step& s, size_t which, int layer);
  Status check_engram(const EngramWeights& w, std::span<const int64_t> ids,
                      const float* values) const;
  void project_queries(Step& s, int layer, std::span<const Arithmetic::Product> others);
  void attention(Step& s, int layer);
  void compress(Step& s, int layer);
  void select(Step& s, int layer);
  void narrow(Step& s, size_t n_keep);

  // work.cc: the bytes and multiply-adds of a layer's parts, and of the keys that a step reads.
  void prepare_costs();
  void count_keys(const Step& s, int layer, StepWork& work) const;

  Config config_;
  SafetensorsModel files_;
  std::vector<kernels::WeightMemory> resident_;  // the tensors of files_ that steps read whole
  Weights weights_;
  StateLayout layout_;
  V41Options options_;  // its pool outlives the arithmetic
  std::unique_ptr<Arithmetic> arithmetic_;
  std::vector<EngramLayer> engram_;
  std::vector<float> inv_plain_, inv_compressed_;
  ModelInfo info_;
  // Bytes, and multiply-adds of a row.
  struct LayerCost {
    StepWork projection;  // window and global rows, which rows that end here have too
    StepWork rest;        // all other dense weights
    StepWork engram;      // projection of its table's rows
  };
  std::vector<LayerCost> costs_;
  StepWork expert_cost_, head_cost_;
  std::atomic<uint64_t> bytes_{0}, macs_{0};
  size_t max_rows_ = 0, max_logit_rows_ = 0;
  std::vector<uint8_t> seen_;  // of check()
  WeightHints* hints_ = nullptr;
  MemoryPlan plan_;
  std::unique_ptr<DiskReader> reader_;
  std::unique_ptr<Step> step_;
};

}  // namespace deepmint::v41
