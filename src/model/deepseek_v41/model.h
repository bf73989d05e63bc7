// The DeepSeek-V4.1 text model as a Model: one forward step over a ragged batch (model/model.h), to
// spec model.md.
//
//   DEEPMINT_TRY(model, V41Model::load("DeepSeek-V4.1-Flash", make_reference_arithmetic()));
//
// Row fields: window_floor bounds window attention in every layer, decoder_floor in the layers
// after the last kv source; write_global_from keeps global rows of earlier positions as they are;
// layer_end equal to the last kv source's id means "run the encoder and project the source's rows"
// (decoder-tail skipping, spec 10.3); anything else must be the whole model.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

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

  // For tests: the selection that the last index source made for a row of the last forward.
  const std::vector<int32_t>& selected_rows(size_t row) const { return selected_[row]; }
  const std::vector<int32_t>& candidate_blocks(size_t row) const { return candidates_[row]; }

 private:
  V41Model(Config config, SafetensorsModel files, std::unique_ptr<Arithmetic> arithmetic,
           V41Options options);
  Status check(const StepInput& input) const;
  struct Step;  // one forward's working set
  void run_engram(Step& s, size_t which, int layer);
  void attention(Step& s, int layer, const float* u, float* y);
  void compress(Step& s, int layer, const float* u);
  void select(Step& s, int layer, const float* u, const float* qr);
  void narrow(Step& s, const std::vector<uint32_t>& keep);

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
  std::vector<std::vector<int32_t>> selected_, candidates_;
};

}  // namespace deepmint::v41
