#include "engine/executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "engine/guarded.h"

namespace deepmint {

ModelExecutor::ModelExecutor(std::shared_ptr<Model> model, std::shared_ptr<ThreadPool> pool,
                             kvcache::StateArena& arena, const SchedulerLimits& limits,
                             std::vector<TokenId> never_ids)
    : model_(std::move(model)),
      pool_(std::move(pool)),
      limits_(limits),
      never_ids_(std::move(never_ids)),
      vocab_(static_cast<size_t>(model_->info().vocab_size)),
      logits_(AlignedBuffer<float>::uninitialized(limits.step_logit_rows * vocab_)) {
  for (size_t part = 0; part < arena.parts().size(); ++part)
    state_.push_back({arena.base(part), arena.count(part)});
  for (auto& outcomes : outcomes_) outcomes.resize(limits.max_running);
  rows_.reserve(limits.step_rows);
  sequences_.reserve(limits.max_running);
  first_logits_.reserve(limits.max_running);
  masks_.reserve(limits.max_running);
  sampled_.reserve(limits.max_running);
  for (int thread = 0; thread < pool_->size(); ++thread)
    samplers_.push_back(std::make_unique<Sampler>(model_->info().vocab_size));
}

Status ModelExecutor::reserve() {
  return model_->reserve(limits_.step_rows, limits_.step_logit_rows);
}

void ModelExecutor::prepare(const StepPlan& plan) {
  rows_.clear();
  sequences_.clear();
  first_logits_.clear();
  logit_rows_ = 0;
  for (const Grant& g : plan.grants) {
    const auto index = static_cast<uint32_t>(sequences_.size());
    sequences_.push_back({g.sequence->blocks(), g.sequence->slot()});
    first_logits_.push_back(logit_rows_);
    const std::span<const TokenId> ids = g.sequence->tokens.sampled();
    DEEPMINT_CHECK(static_cast<size_t>(g.begin + g.count) <= ids.size());  // no row without a token
    for (int32_t position = g.begin; position < g.begin + g.count; ++position) {
      Row row;
      row.sequence = index;
      row.position = position;
      row.token = ids[static_cast<size_t>(position)];
      row.needs_logits = g.all_logits || (g.sample && position == g.begin + g.count - 1);
      row.window_floor = g.sequence->window_floor;
      row.write_global_from = g.sequence->hit;
      if (const int32_t full_from = g.sequence->full_from; full_from > 0) {
        if (position < full_from) row.layer_end = g.sequence->tail.layer_end;
        row.decoder_floor = full_from;
      }
      rows_.push_back(row);
    }
    logit_rows_ += g.logit_rows();
  }
  DEEPMINT_CHECK(rows_.size() == plan.rows && logit_rows_ == plan.logit_rows &&
                 logit_rows_ <= limits_.step_logit_rows);
}

Status ModelExecutor::run(Tap* tap) {
  Status status;
  if (auto thrown = guarded("the model", [&] {
        status = model_->forward({rows_, sequences_, state_},
                                 logits_.span().first(logit_rows_ * vocab_), tap);
      }))
    return tl::unexpected(std::move(*thrown));
  return status;
}

std::span<const float> ModelExecutor::logits_of(size_t grant, size_t row) const {
  return logits_.span().subspan((first_logits_[grant] + row) * vocab_, vocab_);
}

void ModelExecutor::masks(const StepPlan& plan) {
  sampled_.clear();
  masks_.clear();
  for (size_t i = 0; i < plan.grants.size(); ++i) {
    const Grant& g = plan.grants[i];
    masks_.push_back({});
    if (!g.sample || g.sequence->state == RequestState::kDone) continue;
    SampleOutcome& outcome = outcomes_[plan.step % 2][i];
    outcome.error = guarded("the mask", [&] {
      if (const auto& mask = g.sequence->request.mask) masks_.back().words = mask->allowed();
    });
    if (!outcome.error) sampled_.push_back(static_cast<uint32_t>(i));
  }
}

std::span<const SampleOutcome> ModelExecutor::sample(const StepPlan& plan) {
  std::vector<SampleOutcome>& outcomes = outcomes_[plan.step % 2];
  const auto sample = [&](uint32_t grant, int worker) {
    if (auto thrown = guarded("sampling", [&] {
          sample_one(plan.grants[grant], grant, outcomes[grant],
                     *samplers_[static_cast<size_t>(worker)]);
        }))
      outcomes[grant].error = std::move(thrown);
  };
  if (sampled_.size() == 1) {
    sample(sampled_[0], 0);
  } else {
    pool_->run(
        sampled_.size(),
        [&](size_t begin, size_t end, int worker) {
          for (size_t i = begin; i < end; ++i) sample(sampled_[i], worker);
        },
        1);
  }
  return std::span(outcomes).first(plan.grants.size());
}

void ModelExecutor::sample_one(const Grant& grant, size_t index, SampleOutcome& outcome,
                               Sampler& sampler) {
  Sequence& s = *grant.sequence;
  const std::span<const TokenId> ids = s.tokens.sampled();
  const auto prompt = static_cast<size_t>(s.prompt_tokens);
  outcome.n_top = 0;
  const size_t words = (vocab_ + 31) / 32;
  if (!masks_[index].words.empty() && masks_[index].words.size() < words) {
    outcome.error = Error{
        ErrorCode::kInternal,
        fmt::format("expected a mask of {} words, found {}", words, masks_[index].words.size()),
        "mask"};
    return;
  }
  const DrawAddress address{.seed = s.seed,
                            .position = static_cast<uint32_t>(ids.size()),
                            .stream = 0,
                            .choice = static_cast<uint32_t>(s.request.choice)};
  auto r = sampler.sample(logits_of(index, grant.logit_rows() - 1), s.request.sampling,
                          {ids.first(prompt), ids.subspan(prompt)}, address, masks_[index],
                          s.request.stop_ids, never_ids_);
  if (!r) {
    outcome.error = std::move(r).error();
    return;
  }
  outcome.error.reset();
  outcome.token = r->token;
  outcome.logprob = r->logprob;
  outcome.n_top = r->top.size();
  std::copy(r->top.begin(), r->top.end(), outcome.top.begin());
  s.tokens.append_sampled(r->token);
}

void ModelExecutor::commit(const Sequence& sequence) {
  model_->commit({sequence.blocks(), sequence.slot()}, state_, sequence.computed);
}

}  // namespace deepmint
