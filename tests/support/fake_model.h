// A Model that costs nothing and notices wrong state. Logits are a hash of the sequence's own
// tokens, read back from the state parts on every step, so a wrong block, a stale slot, a row run
// twice or a row left out changes the answer or is reported.
//
//   auto model = std::make_shared<FakeModel>(FakeModel::Options{.vocab_size = 97});
//   auto engine = make_engine({.model = model, .threads = 1}, {.kv_bytes = 1 << 20});
//   ...
//   EXPECT_EQ(model->damaged(), 0);
//
// Also checks what an engine owes a model (Row and StepInput in model/model.h); a breach is counted
// in damaged() and fails the step.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace deepmint::testing {

class FakeModel : public Model {
 public:
  struct Options {
    int64_t vocab_size = 97;
    int32_t context_tokens = 2048;
    bool private_part = true;  // also keep a carry per sequence, addressed by slot
    float logit_range = 4.0f;  // logits are spread over ±this
    uint64_t fingerprint = 0x66616b65;
    TokenId nan_token = -1;   // logits after this token are NaN
    TokenId fail_token = -1;  // a step with this token in a row fails with kInternal
    // The id that must come next after these tokens: its logit is 50 above the others. nullopt: the
    // hash decides.
    std::function<std::optional<TokenId>(std::span<const TokenId>)> script;
    std::function<void(const StepInput&)>
        on_forward;  // runs inside forward(), before anything is written
  };

  FakeModel() : FakeModel(Options{}) {}
  explicit FakeModel(Options options);

  const ModelInfo& info() const override { return info_; }
  std::span<const StatePart> state_parts() const override { return parts_; }
  Status reserve(size_t max_rows, size_t max_logit_rows) override;
  Status forward(const StepInput& input, std::span<float> logits, Tap* tap = nullptr) override;
  void commit(const SequenceRef& sequence, std::span<const PartMemory> state,
              int32_t length) override;

  void clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state, int32_t length,
                    PromptTail tail) const override;

  // The logits that forward() gives after these tokens, computed from nothing but the tokens. out:
  // [vocab_size].
  void expected_logits(std::span<const TokenId> tokens, std::span<float> out) const;

  size_t bytes_per_block() const;  // of all global parts
  size_t bytes_per_slot() const;   // of all private parts

  int64_t steps() const { return steps_; }
  int64_t rows() const { return rows_; }
  int64_t largest_step() const { return largest_step_; }
  int64_t damaged() const { return damaged_; }
  std::string damage() const { return damage_; }  // the first one; read it when no step is running

 private:
  struct Cell;
  struct Carry;
  Status check(const StepInput& input, size_t logit_values);
  Status damaged_at(const Row& row, const char* what);
  void fill_logits(uint64_t chain, uint64_t carry, std::span<const TokenId> tokens,
                   std::span<float> out) const;

  Options options_;
  ModelInfo info_;
  std::vector<StatePart> parts_;
  size_t max_rows_ = 0, max_logit_rows_ = 0;
  std::vector<TokenId> tokens_;  // scratch: the sequence under work
  std::atomic<int64_t> steps_{0}, rows_{0}, largest_step_{0}, damaged_{0};
  std::string damage_;
};

}  // namespace deepmint::testing
