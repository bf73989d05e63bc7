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

#include <filesystem>
#include <memory>
#include <vector>

#include "core/aligned.h"
#include "model/deepseek_v41/arithmetic.h"
#include "model/deepseek_v41/engram.h"
#include "model/deepseek_v41/state.h"
#include "model/model.h"

namespace deepmint::v41 {

struct V41Options {
  // compressed id of each token id, from the tokenizer; empty for checkpoints whose config has
  // x_engram_map.
  std::vector<int32_t> engram_map;
};

class V41Model : public Model {
 public:
  static Result<std::unique_ptr<V41Model>> load(const std::filesystem::path& folder,
                                                std::unique_ptr<Arithmetic> arithmetic,
                                                V41Options options = {});
  ~V41Model() override;

  const ModelInfo& info() const override { return info_; }
  std::span<const StatePart> state_parts() const override { return layout_.parts(); }
  Status reserve(size_t max_rows, size_t max_logit_rows) override;
  Status forward(const StepInput& input, std::span<float> logits, Tap* tap) override;

  const Config& config() const { return config_; }
  const StateLayout& layout() const { return layout_; }

  // Engram rows of `ids`, read as consecutive text, are announced to the hints; rows of the first
  // ids, whose n-grams begin before them, are not.
  void prefetch(std::span<const TokenId> ids) override;
  // Who is told what steps will read from weights on disk (Engram rows, routed experts). Outlives
  // the model.
  void set_hints(WeightHints* hints);

  // For tests: the selection that the last index source made for a row of the last forward.
  std::vector<int32_t> selected_rows(size_t row) const;
  std::vector<int32_t> candidate_blocks(size_t row) const;

 private:
  V41Model(Config config, SafetensorsModel files, std::unique_ptr<Arithmetic> arithmetic,
           V41Options options);
  Status check(const StepInput& input, size_t n_logits);

  // forward.cc
  struct Step;  // the working set of one forward, and its memory
  int64_t compressed_id(int64_t id) const;
  void embed(Step& s);
  void run_engram(Step& s, size_t which, int layer);
  void attention(Step& s, int layer);
  void compress(Step& s, int layer);
  void select(Step& s, int layer);
  void narrow(Step& s, size_t n_keep);

  Config config_;
  SafetensorsModel files_;
  Weights weights_;
  StateLayout layout_;
  std::unique_ptr<Arithmetic> arithmetic_;
  V41Options options_;
  std::vector<EngramLayer> engram_;
  std::vector<float> inv_plain_, inv_compressed_;
  ModelInfo info_;
  size_t max_rows_ = 0, max_logit_rows_ = 0;
  std::vector<uint8_t> seen_;  // of check()
  WeightHints* hints_ = nullptr;
  std::unique_ptr<Step> step_;
};

}  // namespace deepmint::v41
