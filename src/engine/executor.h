// Runs a step plan: rows through the model, then logits through the sampler, on the threads of one
// pool. Knows nothing of queues, sinks or time.
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

class Executor {
 public:
  Executor(std::shared_ptr<Model> model, std::shared_ptr<ThreadPool> pool,
           kvcache::StateArena& arena, const SchedulerLimits& limits,
           std::vector<TokenId> never_ids);

  // Sets the model's scratch aside. Call once, before the first step.
  Status reserve();

  // One forward step. After it, logits_of() is valid until the next.
  Status forward(const StepPlan& plan, Tap* tap);

  // Chooses the next token of every grant that asks for one; result[i] belongs to plan.grants[i].
  // Each row is computed by one thread from its own logits and history alone.
  std::span<const SampleOutcome> sample(const StepPlan& plan);

  // Logits row `row` of a grant, 0 … logit_rows()-1.
  std::span<const float> logits_of(size_t grant, size_t row) const;

  // Declares what a sequence has computed so far final.
  void commit(const Sequence& sequence);

 private:
  void sample_one(const Grant& grant, size_t index, Sampler& sampler);
  std::span<const PartMemory> state() const { return state_; }

  std::shared_ptr<Model> model_;
  std::shared_ptr<ThreadPool> pool_;
  const SchedulerLimits limits_;
  const std::vector<TokenId> never_ids_;
  const size_t vocab_;
  std::vector<PartMemory> state_;
  std::vector<Row> rows_;
  std::vector<SequenceRef> sequences_;
  std::vector<size_t> first_logits_;                // per grant: its first row in logits_
  std::vector<MaskView> masks_;                     // per grant
  std::vector<uint32_t> sampled_;                   // indices of grants that sample
  std::vector<SampleOutcome> outcomes_;             // per grant
  std::vector<std::unique_ptr<Sampler>> samplers_;  // per thread
  AlignedBuffer<float> logits_;                     // [step_logit_rows, vocab]
};

}  // namespace deepmint
