// What a step does about weights that lie on disk: asks for them as soon as it is known which, and
// checks each expert's scales when it is first used. The model's own WeightHints.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deepmint/result.h"
#include "model/deepseek_v41/arithmetic.h"

namespace deepmint::v41 {

class DiskReader : public WeightHints {
 public:
  // `config` and `weights` outlive the reader.
  DiskReader(const Config& config, const Weights& weights, bool experts_mapped);

  // All reads are started before the first check waits for its bytes.
  void experts(int layer, std::span<const int32_t> ids) override;
  void engram_rows(size_t which, std::span<const int64_t> rows) override;

  // The first damaged expert that a step came upon, if any: the step's answer is then worthless.
  const Status& status() const { return status_; }
  // Experts that steps have asked for, each once per layer and step.
  uint64_t experts_read() const { return experts_read_; }

 private:
  const Config& config_;
  const Weights& weights_;
  const bool experts_mapped_;
  std::vector<uint8_t> checked_;  // [layers * experts]
  Status status_;
  uint64_t experts_read_ = 0;
};

}  // namespace deepmint::v41
