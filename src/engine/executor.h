// Runs a step plan: rows through the model, then logits through the sampler, on the threads of one
// pool. Knows nothing of queues, sinks or time. Another one can stand in for the model:
// simulations.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "core/thread_pool.h"
#include "engine/scheduler.h"
#include "kvcache/state_arena.h"
#include "model/model.h"
#include "sampling/sampler.h"

namespace deepmint {

// The choice of one grant with `sample`.
struct SampleOutcome {
  TokenId token = 0;
  float logprob = 0;
  std::array<TopLogprob, 20> top;
  size_t n_top = 0;
  std::optional<Error> error;  // instead of a token
};

// What a step needs of the world below, in the order of the calls. The engine's thread calls
// prepare() and masks(); run() and sample() may come from another, never two at once.
class Executor {
 public:
  virtual ~Executor() = default;

  // Sets memory aside. Call once, before the first step.
  virtual Status reserve() = 0;

  // Rows of the plan: their tokens are known now.
  virtual void prepare(const StepPlan& plan) = 0;

  // One forward step over what was prepared. After it, logits_of() is valid until the next.
  virtual Status run(Tap* tap) = 0;

  // What may be sampled: asks the masks of every grant that samples.
  virtual void masks(const StepPlan& plan) = 0;

  // Chooses the next token of every grant that asks for one and appends it to its sequence's
  // timeline; result[i] belongs to plan.grants[i] and is valid until the sample() after the next.
  // Each row is computed by one thread from its own logits and history alone.
  virtual std::span<const SampleOutcome> sample(const StepPlan& plan) = 0;

  // Logits row `row` of a grant, 0 … logit_rows()-1.
  virtual std::span<const float> logits_of(size_t grant, size_t row) const = 0;

  // Declares what a sequence has computed so far final.
  virtual void commit(const Sequence& sequence) = 0;
};

class ModelExecutor : public Executor {
 public:
  ModelExecutor(std::shared_ptr<Model> model, std::shared_ptr<ThreadPool> pool,
                kvcache::StateArena& arena, const SchedulerLimits& limits,
                std::vector<TokenId> never_ids);

  Status reserve() override;
  void prepare(const StepPlan& plan) override;
  Status run(Tap* tap) override;
  void masks(const StepPlan& plan) override;
  std::span<const SampleOutcome> sample(const StepPlan& plan) override;
  std::span<const float> logits_of(size_t grant, size_t row) const override;
  void commit(const Sequence& sequence) override;

 private:
  void sample_one(const Grant& grant, size_t index, SampleOutcome& outcome, Sampler& sampler);

  std::shared_ptr<Model> model_;
  std::shared_ptr<ThreadPool> pool_;
  const SchedulerLimits limits_;
  const std::vector<TokenId> never_ids_;
  const size_t vocab_;
  std::vector<PartMemory> state_;
  std::vector<Row> rows_;
  size_t logit_rows_ = 0;
  std::vector<SequenceRef> sequences_;
  std::vector<size_t> first_logits_;                    // per grant: its first row in logits_
  std::vector<MaskView> masks_;                         // per grant
  std::vector<uint32_t> sampled_;                       // indices of grants that sample
  std::array<std::vector<SampleOutcome>, 2> outcomes_;  // per grant, of even and odd steps
  std::vector<std::unique_ptr<Sampler>> samplers_;      // per thread
  AlignedBuffer<float> logits_;                         // [step_logit_rows, vocab]
};

}  // namespace deepmint
