// For tests of the engine: a fake model wrapped as a loaded one, the answer that a request must get
// whatever the schedule, and a driver that runs an EngineCore step by step.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "sampling/sampler.h"
#include "support/collecting_sink.h"
#include "support/fake_model.h"

namespace deepmint::testing {

inline LoadedModel fake_loaded(std::shared_ptr<Model> model, int threads = 1) {
  LoadedModel loaded;
  loaded.model = std::move(model);
  loaded.threads = threads;
  return loaded;
}

struct Answer {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kLength;
};

// What `request` must give, computed from the tokens alone: no engine, no batch, no cache. Its seed
// must be set.
inline Answer answer_alone(const FakeModel& model, const GenerationRequest& request,
                           int32_t context) {
  Answer answer;
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  Sampler sampler(model.info().vocab_size);
  std::vector<TokenId> tokens = request.tokens;
  std::vector<float> logits(vocab);
  const auto prompt = static_cast<int32_t>(request.tokens.size());
  const int32_t limit =
      request.max_tokens < 0 ? context : std::min(context, prompt + request.max_tokens);
  while (static_cast<int32_t>(tokens.size()) < limit) {
    model.expected_logits(tokens, logits);
    const auto r = sampler.sample(logits, request.sampling, {request.tokens, answer.ids},
                                  {.seed = *request.sampling.seed,
                                   .position = static_cast<uint32_t>(tokens.size()),
                                   .choice = static_cast<uint32_t>(request.choice)},
                                  {}, request.stop_ids);
    if (!r) {
      answer.reason = FinishReason::kError;
      return answer;
    }
    tokens.push_back(r->token);
    answer.ids.push_back(r->token);
    answer.logprobs.push_back(r->logprob);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), r->token) !=
        request.stop_ids.end()) {
      answer.reason = FinishReason::kStop;
      return answer;
    }
  }
  return answer;
}

inline GenerationRequest random_request(std::mt19937_64& rng, int64_t vocab, int max_prompt = 150,
                                        int max_new = 40) {
  const auto chance = [&](double p) { return std::bernoulli_distribution(p)(rng); };
  GenerationRequest r;
  r.tokens.resize(1 + rng() % static_cast<uint64_t>(max_prompt));
  for (TokenId& id : r.tokens) id = static_cast<TokenId>(rng() % static_cast<uint64_t>(vocab));
  r.max_tokens = static_cast<int32_t>(rng() % static_cast<uint64_t>(max_new + 1));
  r.sampling.seed = rng();
  r.choice = static_cast<int32_t>(rng() % 3);
  if (chance(0.3)) r.sampling.temperature = 0;
  if (chance(0.3)) r.sampling.top_p = 0.9;
  if (chance(0.3)) r.sampling.top_k = 10;
  if (chance(0.3)) r.sampling.repetition_penalty = 1.3f;
  if (chance(0.3)) r.sampling.frequency_penalty = 0.5f;
  r.sampling.top_logprobs = static_cast<int32_t>(rng() % 5) - 1;
  r.sampling.raw_logprobs = chance(0.5);
  if (chance(0.4)) {
    r.stop_ids = {static_cast<TokenId>(rng() % static_cast<uint64_t>(vocab)), 3};
    r.sampling.min_tokens = static_cast<int32_t>(rng() % 5);
  }
  return r;
}

inline GenerationRequest simple(int32_t prompt = 20, int32_t max_tokens = 10, uint64_t seed = 5) {
  GenerationRequest r;
  for (int32_t i = 0; i < prompt; ++i)
    r.tokens.push_back((i * 7 + static_cast<int32_t>(seed)) % 97);
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  return r;
}

struct Submitted {
  GenerationRequest request;
  std::shared_ptr<CollectingSink> sink;
  std::shared_ptr<RequestControl> control;
};

class Driver {
 public:
  Driver(std::shared_ptr<FakeModel> fake, EngineConfig config, int threads = 1,
         const EngineHooks& hooks = {})
      : model(std::move(fake)) {
    auto made = EngineCore::create(fake_loaded(model, threads), config, clock, hooks);
    if (!made) throw std::runtime_error(made.error().str());
    core = std::move(*made);
  }

  Result<Submitted> try_submit(GenerationRequest request, std::shared_ptr<CollectingSink> sink =
                                                              std::make_shared<CollectingSink>()) {
    DEEPMINT_TRY(sequence, core->prepare(request, sink));
    return take(std::move(request), std::move(sequence), std::move(sink));
  }
  Submitted submit(GenerationRequest request,
                   std::shared_ptr<CollectingSink> sink = std::make_shared<CollectingSink>()) {
    auto r = try_submit(std::move(request), std::move(sink));
    if (!r) throw std::runtime_error(r.error().str());
    return *r;
  }
  Result<Submitted> resume(GenerationRequest request, std::vector<std::byte> state) {
    auto sink = std::make_shared<CollectingSink>();
    DEEPMINT_TRY(sequence, core->prepare_saved(request, std::move(state), sink));
    return take(std::move(request), std::move(sequence), std::move(sink));
  }

  void run(int max_steps = 100'000) {
    for (int i = 0; i < max_steps && !core->idle(); ++i) core->step();
    ASSERT_TRUE(core->idle());
  }

  // Nothing held, nothing damaged.
  void expect_clean() const {
    const EngineStats s = core->stats();
    EXPECT_EQ(s.running, 0);
    EXPECT_EQ(s.waiting, 0);
    EXPECT_EQ(s.blocks_free, s.blocks_total);
    EXPECT_EQ(core->cache().report().blocks_reserved, 0u);
    EXPECT_EQ(core->cache().report().slots_used, 0u);
    EXPECT_EQ(s.parked_bytes, 0);
    const Status cache = core->cache().check();
    EXPECT_TRUE(cache) << cache.error().str();
    EXPECT_EQ(model->damaged(), 0) << model->damage();
  }

  ManualClock clock;
  std::shared_ptr<FakeModel> model;
  std::unique_ptr<EngineCore> core;

 private:
  Result<Submitted> take(GenerationRequest request, std::unique_ptr<Sequence> sequence,
                         std::shared_ptr<CollectingSink> sink) {
    DEEPMINT_CHECK_OK(core->take_place(*sequence));
    Submitted s{std::move(request), std::move(sink), sequence->control};
    core->add(std::move(sequence));
    return s;
  }
};

inline bool same_number(float a, float b) { return a == b || (a != a && b != b); }

// The whole answer, bit for bit.
inline void expect_answer(const Submitted& s, const Answer& expected, const std::string& what) {
  ASSERT_EQ(s.sink->finishes(), 1) << what;
  EXPECT_EQ(s.sink->events_after_finish(), 0) << what;
  const auto tokens = s.sink->tokens();
  ASSERT_EQ(s.sink->ids(), expected.ids) << what;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_TRUE(same_number(tokens[i].logprob, expected.logprobs[i])) << what << ", token " << i;
    ASSERT_EQ(tokens[i].position, static_cast<int32_t>(s.request.tokens.size() + i)) << what;
    ASSERT_EQ(tokens[i].choice, s.request.choice) << what;
  }
  const FinishEvent end = *s.sink->finish();
  EXPECT_EQ(end.reason, expected.reason) << what;
  EXPECT_EQ(end.usage.prompt_tokens, static_cast<int32_t>(s.request.tokens.size())) << what;
  EXPECT_EQ(end.usage.output_tokens, static_cast<int32_t>(expected.ids.size())) << what;
  EXPECT_EQ(end.seed, *s.request.sampling.seed) << what;
  EXPECT_EQ(end.choice, s.request.choice) << what;
  EXPECT_EQ(end.error.has_value(), expected.reason == FinishReason::kError) << what;
}

// What a request got before it was cut short must be the beginning of its answer.
inline void expect_beginning(const Submitted& s, const Answer& whole, const std::string& what) {
  ASSERT_EQ(s.sink->finishes(), 1) << what;
  EXPECT_EQ(s.sink->events_after_finish(), 0) << what;
  const auto ids = s.sink->ids();
  ASSERT_LE(ids.size(), whole.ids.size()) << what;
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), whole.ids.begin())) << what;
}

}  // namespace deepmint::testing
