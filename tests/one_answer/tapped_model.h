// A model that can be watched row by row, and made wrong on purpose.
//
//   auto tapped = std::make_shared<TappedModel>(loaded.model);
//   RowTraces a(tokens); tapped->record(&a);  ... run the request alone ...
//   RowTraces b(tokens); tapped->record(&b);  ... run it in company ...
//   b.first_difference_from(a)                // "position 17, layer 3 attn"
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace deepmint::one_answer {

// Hashes of what every sublayer gave for the rows of one token sequence. Rows are known by position
// and token, which is all that a step says; where a companion has the same token at the same
// position both are kept, and one of them must agree.
class RowTraces {
 public:
  explicit RowTraces(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}

  struct Entry {
    int layer = 0;
    std::string sublayer;
    uint64_t hash = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  bool wants(const Row& row) const {
    return row.position < static_cast<int32_t>(tokens_.size()) &&
           tokens_[static_cast<size_t>(row.position)] == row.token;
  }
  std::vector<Entry>& add_run(int32_t position) { return runs_[position].emplace_back(); }

  // Where this run first left the other: the lowest position that has no run equal to the other's,
  // and the first sublayer in which the closest of its runs differs. Empty: nowhere.
  std::string first_difference_from(const RowTraces& right) const;

 private:
  std::vector<TokenId> tokens_;
  std::map<int32_t, std::vector<std::vector<Entry>>> runs_;
};

// What a negative control does wrong in steps of more than one sequence.
enum class Fault : uint8_t {
  kNone,
  kHead,   // logits are off by one bit, as from a head whose sums are split by the number of rows
  kState,  // one bit of a key that was just written
};

class TappedModel : public Model {
 public:
  explicit TappedModel(std::shared_ptr<Model> model, Fault fault = Fault::kNone)
      : model_(std::move(model)), fault_(fault) {}

  void record(RowTraces* traces) { traces_ = traces; }

  const ModelInfo& info() const override { return model_->info(); }
  std::span<const StatePart> state_parts() const override { return model_->state_parts(); }
  Status reserve(size_t rows, size_t logit_rows) override {
    return model_->reserve(rows, logit_rows);
  }
  Status check_tokens(std::span<const TokenId> tokens) const override {
    return model_->check_tokens(tokens);
  }
  PromptTail exact_prompt_tail(int32_t prompt_tokens) const override {
    return model_->exact_prompt_tail(prompt_tokens);
  }
  Result<PromptTail> bounded_prompt_tail(int32_t prompt_tokens,
                                         int32_t keep_tokens) const override {
    return model_->bounded_prompt_tail(prompt_tokens, keep_tokens);
  }
  PrefixPlan plan_prefix(const PrefixHit& hit, int32_t prompt_tokens, PromptTail tail,
                         bool approximate_tail) const override {
    return model_->plan_prefix(hit, prompt_tokens, tail, approximate_tail);
  }
  void begin_at(const SequenceRef& sequence, std::span<const PartMemory> state,
                std::span<const TokenId> tokens, int32_t begin) const override {
    model_->begin_at(sequence, state, tokens, begin);
  }
  void clear_unread(const SequenceRef& sequence, std::span<const PartMemory> state, int32_t length,
                    PromptTail tail) const override {
    model_->clear_unread(sequence, state, length, tail);
  }
  StepWork work() const override { return model_->work(); }
  void prefetch(std::span<const TokenId> ids) override { model_->prefetch(ids); }
  void commit(const SequenceRef& sequence, std::span<const PartMemory> state,
              int32_t length) override {
    model_->commit(sequence, state, length);
  }
  Status forward(const StepInput& input, std::span<float> logits, Tap* tap) override;

 private:
  std::shared_ptr<Model> model_;
  Fault fault_;
  RowTraces* traces_ = nullptr;
};

}  // namespace deepmint::one_answer
