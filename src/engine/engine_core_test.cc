// The engine step by step, with a model that notices wrong state and a clock that the test moves.
#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/engine_core_testing.h"
#include "support/counting_new.h"
#include "support/test_seed.h"

namespace deepmint {
namespace {

using testing::Answer;
using testing::answer_alone;
using testing::CollectingSink;
using testing::config;
using testing::Driver;
using testing::EvenIds;
using testing::fake;
using testing::FakeModel;
using testing::kContext;
using testing::random_request;
using testing::simple;
using testing::Submitted;

// ---------------------------------------------------------------- one answer

TEST(EngineCore, BatchedEqualsAloneForEveryChunkSize) {
  std::mt19937_64 rng(testing::test_seed());
  for (const auto& [running, step] : {std::pair{1, 1},
                                      {1, 7},
                                      {3, 3},
                                      {8, 8},
                                      {8, 31},
                                      {8, 64},
                                      {8, 127},
                                      {8, 128},
                                      {8, 129},
                                      {16, 2048}}) {
    Driver d(fake(), config(running, step));
    std::vector<Submitted> all;
    for (int i = 0; i < 20; ++i) all.push_back(d.submit(random_request(rng, 97)));
    d.run();
    for (const Submitted& s : all)
      expect_answer(s, answer_alone(*d.model, s.request, kContext),
                    "step of " + std::to_string(step));
    EXPECT_LE(d.model->largest_step(), step);
    d.expect_clean();
  }
}

TEST(EngineCore, ThreadsDoNotMatter) {
  std::mt19937_64 rng(testing::test_seed());
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(random_request(rng, 97));
  for (const int threads : {1, 2, 3, 5}) {
    Driver d(fake(), config(12, 64), threads);
    std::vector<Submitted> all;
    for (const auto& r : requests) all.push_back(d.submit(r));
    d.run();
    for (const Submitted& s : all)
      expect_answer(s, answer_alone(*d.model, s.request, kContext), std::to_string(threads));
    d.expect_clean();
  }
}

TEST(EngineCore, ModelsWithoutPrivateState) {
  std::mt19937_64 rng(testing::test_seed());
  FakeModel::Options o;
  o.private_part = false;
  Driver d(fake(o), config(4, 16, 20));
  std::vector<Submitted> all;
  for (int i = 0; i < 20; ++i) all.push_back(d.submit(random_request(rng, 97)));
  d.run();
  for (const Submitted& s : all)
    expect_answer(s, answer_alone(*d.model, s.request, kContext), "no slots");
  d.expect_clean();
}

// Companions come, go and are cancelled at random; memory is short; nobody notices.
TEST(EngineCore, RandomSchedules) {
  const uint64_t base = testing::test_seed();
  EngineStats seen;
  for (uint64_t round = 0; round < 60; ++round) {
    std::mt19937_64 rng(base + round);
    const auto running = static_cast<int32_t>(1 + rng() % 9);
    const auto step = static_cast<int32_t>(static_cast<uint64_t>(running) + rng() % 100);
    const auto blocks = static_cast<int64_t>(8 + rng() % 30);
    EngineConfig c = config(running, step, blocks, rng() % 2 == 0);
    c.step_attention = static_cast<int64_t>(1 + rng() % 20'000);
    c.kv_bytes -= c.park_bytes;
    c.park_bytes = static_cast<int64_t>(rng() % 100'000);
    c.snapshot_bytes = static_cast<int64_t>(rng() % 10 * 64);
    c.kv_bytes += c.park_bytes + c.snapshot_bytes;
    EngineHooks hooks;
    if (rng() % 3 == 0) hooks.hash_bits = static_cast<int>(1 + rng() % 8);  // collisions
    Driver d(fake(), c, static_cast<int>(1 + rng() % 2), hooks);
    std::vector<Submitted> all;
    std::set<size_t> cancelled;
    for (int i = 0; i < 400 && (all.size() < 40 || !d.core->idle()); ++i) {
      while (all.size() < 40 && rng() % 3 == 0) {
        GenerationRequest r = random_request(rng, 97);
        if (!all.empty() && rng() % 2 == 0) {  // begins as another did, or goes on where it ended
          const Submitted& other = all[rng() % all.size()];
          std::vector<TokenId> ids = other.request.tokens;
          const auto more = other.sink->ids();
          if (rng() % 2 == 0) ids.insert(ids.end(), more.begin(), more.end());
          ids.resize(1 + rng() % ids.size());
          ids.insert(ids.end(), r.tokens.begin(), r.tokens.end());
          ids.resize(std::min<size_t>(ids.size(), 300));
          r.tokens = std::move(ids);
        }
        r.want_prompt_logits = rng() % 10 == 0;
        r.request_class = static_cast<RequestClass>(rng() % 3);
        r.fair_key = std::string(rng() % 3, 'k');
        auto s = d.try_submit(std::move(r));
        ASSERT_TRUE(s.has_value()) << s.error().str();
        all.push_back(*s);
      }
      if (!all.empty() && rng() % 4 == 0) {
        const size_t victim = rng() % all.size();
        if (!all[victim].sink->finished()) cancelled.insert(victim);
        all[victim].control->cancelled = true;
      }
      if (!all.empty() && rng() % 3 == 0) d.core->preempt(all[rng() % all.size()].control->id);
      d.core->step();
    }
    d.run();
    for (size_t i = 0; i < all.size(); ++i) {
      const Answer expected = answer_alone(*d.model, all[i].request, kContext);
      const std::string what =
          "seed " + std::to_string(base + round) + ", request " + std::to_string(i);
      if (cancelled.count(i) != 0 && all[i].sink->finish()->reason == FinishReason::kCancelled) {
        expect_beginning(all[i], expected, what);
      } else {
        expect_answer(all[i], expected, what);
      }
    }
    d.expect_clean();
    const EngineStats s = d.core->stats();
    seen.cancelled += s.cancelled;
    seen.cached_tokens += s.cached_tokens;
    seen.cache_evictions += s.cache_evictions;
    seen.cache_collisions += s.cache_collisions;
    seen.snapshots_restored += s.snapshots_restored;
    seen.replayed_tokens += s.replayed_tokens;
    seen.preempted += s.preempted;
    seen.resumed += s.resumed;
  }
  // Nothing of it was for nothing.
  EXPECT_GT(seen.cancelled, 0);
  EXPECT_GT(seen.cached_tokens, 0);
  EXPECT_GT(seen.cache_evictions, 0);
  EXPECT_GT(seen.cache_collisions, 0);
  EXPECT_GT(seen.snapshots_restored, 0);
  EXPECT_GT(seen.replayed_tokens, 0);
  EXPECT_GT(seen.preempted, 0);
  EXPECT_GT(seen.resumed, 0);
}

TEST(EngineCore, ChoicesOfOneRequestDiffer) {
  Driver d(fake(), config());
  std::vector<Submitted> all;
  for (int32_t choice = 0; choice < 4; ++choice) {
    GenerationRequest r = simple(20, 12);
    r.choice = choice;
    all.push_back(d.submit(r));
  }
  d.run();
  std::set<std::vector<TokenId>> different;
  for (const Submitted& s : all) {
    expect_answer(s, answer_alone(*d.model, s.request, kContext), "choice");
    different.insert(s.sink->ids());
  }
  EXPECT_EQ(different.size(), 4u);
}

TEST(EngineCore, DrawnSeedIsReportedAndRepeatsTheAnswer) {
  Driver d(fake(), config());
  GenerationRequest r = simple();
  r.sampling.seed.reset();
  const Submitted first = d.submit(r), second = d.submit(r);
  d.run();
  const uint64_t seed = first.sink->finish()->seed;
  EXPECT_NE(seed, second.sink->finish()->seed);
  r.sampling.seed = seed;
  const Submitted again = d.submit(r);
  d.run();
  EXPECT_EQ(again.sink->ids(), first.sink->ids());
}

// ---------------------------------------------------------------- ends

TEST(EngineCore, StopIdsAreReportedAndEnd) {
  FakeModel::Options o;
  o.script = [](std::span<const TokenId> tokens) -> std::optional<TokenId> {
    return static_cast<TokenId>(tokens.size() % 97);
  };
  Driver d(fake(o), config());
  GenerationRequest r = simple(10, 50);
  r.stop_ids = {90, 15};
  const Submitted s = d.submit(r);
  d.run();
  EXPECT_EQ(s.sink->ids(), (std::vector<TokenId>{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kStop);
  EXPECT_EQ(s.sink->finish()->usage.output_tokens, 6);
}

TEST(EngineCore, EndsAtTheContext) {
  Driver d(fake(), config(2, 32, 16));
  GenerationRequest r = simple(kContext - 3, -1);
  const Submitted open = d.submit(r);
  r.max_tokens = 1000;
  const Submitted larger = d.submit(r);
  d.run();
  for (const auto& s : {open, larger}) {
    EXPECT_EQ(s.sink->finish()->reason, FinishReason::kLength);
    EXPECT_EQ(s.sink->tokens().size(), 3u);
    EXPECT_EQ(s.sink->tokens().back().position, kContext - 1);
  }
  d.expect_clean();
}

TEST(EngineCore, PrefillOnly) {
  Driver d(fake(), config(2, 8));
  const Submitted s = d.submit(simple(20, 0));
  d.run();
  EXPECT_TRUE(s.sink->tokens().empty());
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kLength);
  EXPECT_EQ(s.sink->prefill(),
            (std::vector<std::pair<int32_t, int32_t>>{{8, 20}, {16, 20}, {20, 20}}));
  EXPECT_EQ(d.core->stats().rows, 20);
  d.expect_clean();
}

TEST(EngineCore, PromptLogitsDoNotDependOnChunksAndChangeNothing) {
  const auto model = fake();
  const GenerationRequest plain = simple(150, 6);
  GenerationRequest r = plain;
  r.want_prompt_logits = true;
  for (const auto& [running, step] : {std::pair{1, 1}, {2, 7}, {4, 64}, {8, 200}}) {
    Driver d(model, config(running, step));
    const Submitted s = d.submit(r);
    const Submitted companion = d.submit(simple(40, 30, 9));
    d.run();
    const auto logits = s.sink->prompt_logits();
    ASSERT_EQ(logits.size(), 150u);
    std::vector<float> expected(97);
    for (int32_t position = 0; position < 150; ++position) {
      model->expected_logits(std::span(r.tokens).first(static_cast<size_t>(position) + 1),
                             expected);
      EXPECT_EQ(logits[static_cast<size_t>(position)].first, position);
      EXPECT_EQ(logits[static_cast<size_t>(position)].second, expected);
    }
    expect_answer(s, answer_alone(*model, plain, kContext), "with prompt logits");
    expect_answer(companion, answer_alone(*model, companion.request, kContext),
                  "beside prompt logits");
    d.expect_clean();
  }
}

TEST(EngineCore, LogprobEvents) {
  Driver d(fake(), config());
  GenerationRequest r = simple(20, 5);
  r.sampling.top_logprobs = 4;
  const Submitted s = d.submit(r);
  d.run();
  std::vector<TokenId> tokens = r.tokens;
  std::vector<float> logits(97);
  for (const auto& t : s.sink->tokens()) {
    d.model->expected_logits(tokens, logits);
    EXPECT_EQ(t.logprob, log_prob(logits, t.id));
    ASSERT_EQ(t.top.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(t.top[i].logprob, log_prob(logits, t.top[i].id));
      EXPECT_TRUE(i == 0 || t.top[i - 1].logprob >= t.top[i].logprob);
    }
    tokens.push_back(t.id);
  }
}

// ---------------------------------------------------------------- errors

TEST(EngineCore, BadLogitsEndOneRequestOnly) {
  FakeModel::Options o;
  o.nan_token = 42;
  Driver d(fake(o), config(8, 64));
  std::vector<Submitted> good;
  for (uint64_t i = 0; i < 4; ++i) {
    GenerationRequest r = simple(15, 20, 100 + i);
    r.sampling.banned_ids = {42};
    std::erase(r.tokens, 42);
    good.push_back(d.submit(r));
  }
  GenerationRequest bad = simple(15, 20);
  bad.tokens.back() = 42;
  const Submitted s = d.submit(bad);
  d.run();
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kError);
  EXPECT_NE(s.sink->finish()->error->message.find("NaN"), std::string::npos);
  EXPECT_TRUE(s.sink->tokens().empty());
  for (const Submitted& g : good)
    expect_answer(g, answer_alone(*d.model, g.request, kContext), "neighbour");
  EXPECT_EQ(d.core->stats().failed, 1);
  d.expect_clean();
}

TEST(EngineCore, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  FakeModel::Options o;
  o.fail_token = 42;
  Driver d(fake(o), config(4, 64));
  GenerationRequest bad = simple(15, 20);
  bad.tokens[3] = 42;
  const Submitted s = d.submit(bad);
  d.run();
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kError);
  EXPECT_NE(s.sink->finish()->error->message.find("told to fail"), std::string::npos);
  d.expect_clean();
  GenerationRequest good = simple(15, 20);
  std::replace(good.tokens.begin(), good.tokens.end(), 42, 41);
  good.sampling.banned_ids = {42};
  const Submitted g = d.submit(good);
  d.run();
  expect_answer(g, answer_alone(*d.model, g.request, kContext), "after a failed step");
}

TEST(EngineCore, AModelThatThrowsIsAFailedStep) {
  FakeModel::Options o;
  bool throws = true;
  o.on_forward = [&throws](const StepInput&) {
    if (throws) throw std::runtime_error("out of luck");
  };
  Driver d(fake(o), config());
  const Submitted s = d.submit(simple());
  d.run();
  EXPECT_NE(s.sink->finish()->error->message.find("out of luck"), std::string::npos);
  throws = false;
  const Submitted g = d.submit(simple());
  d.run();
  expect_answer(g, answer_alone(*d.model, g.request, kContext), "after an exception");
  d.expect_clean();
}

TEST(EngineCore, ASinkThatThrowsEndsItsOwnRequest) {
  Driver d(fake(), config());
  auto sink = std::make_shared<CollectingSink>();
  sink->hook = [](const TokenEvent& e) {
    if (e.position == 23) throw std::runtime_error("reader is gone");
  };
  const Submitted s = d.submit(simple(), sink);
  auto odd = std::make_shared<CollectingSink>();
  odd->hook = [](const TokenEvent&) { throw 7; };
  const Submitted t = d.submit(simple(), odd);
  const Submitted good = d.submit(simple(20, 10, 77));
  d.run();
  EXPECT_EQ(s.sink->tokens().size(), 4u);
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kError);
  EXPECT_NE(s.sink->finish()->error->message.find("reader is gone"), std::string::npos);
  EXPECT_EQ(t.sink->finish()->reason, FinishReason::kError);
  expect_answer(good, answer_alone(*d.model, good.request, kContext),
                "neighbour of a throwing sink");
  d.expect_clean();
}

TEST(EngineCore, RefusesBadRequests) {
  Driver d(fake(), config());
  const auto refusal = [&](auto change) {
    GenerationRequest r = simple();
    change(r);
    const auto s = d.try_submit(r);
    if (s) return std::pair(ErrorCode::kInternal, std::string("accepted"));
    return std::pair(s.error().code, s.error().where);
  };
  using P = std::pair<ErrorCode, std::string>;
  constexpr auto kBad = ErrorCode::kInvalidArgument;
  EXPECT_EQ(refusal([](auto& r) { r.tokens.clear(); }), P(kBad, "tokens"));
  EXPECT_EQ(refusal([](auto& r) { r.tokens[3] = -1; }), P(kBad, "tokens[3]"));
  EXPECT_EQ(refusal([](auto& r) { r.tokens[19] = 97; }), P(kBad, "tokens[19]"));
  EXPECT_EQ(refusal([](auto& r) { r.stop_ids = {97}; }), P(kBad, "stop_ids[0]"));
  EXPECT_EQ(refusal([](auto& r) { r.max_tokens = -2; }), P(kBad, "max_tokens"));
  EXPECT_EQ(refusal([](auto& r) { r.choice = -1; }), P(kBad, "choice"));
  EXPECT_EQ(refusal([](auto& r) { r.fair_weight = 0; }), P(kBad, "fair_weight"));
  EXPECT_EQ(refusal([](auto& r) { r.fair_weight = std::nan(""); }), P(kBad, "fair_weight"));
  EXPECT_EQ(refusal([](auto& r) { r.sampling.temperature = std::nanf(""); }),
            P(kBad, "temperature"));
  EXPECT_EQ(refusal([](auto& r) { r.sampling.logit_bias = {{97, 1.0f}}; }),
            P(kBad, "logit_bias[0]"));
  EXPECT_EQ(refusal([](auto& r) { r.tokens.assign(kContext + 1, 1); }),
            P(ErrorCode::kTooLarge, "tokens"));
  EXPECT_EQ(refusal([](auto& r) { r.tokens.assign(kContext, 1); }),
            P(ErrorCode::kTooLarge, "tokens"));
  EXPECT_EQ(refusal([](auto& r) { r.tokens.assign(kContext, 1), r.max_tokens = 0; }).second,
            "accepted");
  d.run();
  d.expect_clean();
}

TEST(EngineCore, QueueIsBounded) {
  EngineConfig c = config(1, 32);
  c.max_waiting = 3;
  Driver d(fake(), c);
  std::vector<Submitted> all;
  for (int i = 0; i < 3; ++i) all.push_back(d.submit(simple(5, 5)));
  EXPECT_EQ(d.try_submit(simple()).error().code, ErrorCode::kResourceExhausted);
  d.core->step();  // one of them runs now
  EXPECT_EQ(d.core->stats().waiting, 2);
  all.push_back(d.submit(simple(5, 5)));
  EXPECT_EQ(d.try_submit(simple()).error().code, ErrorCode::kResourceExhausted);
  all[2].control->cancelled = true;  // one that waits
  d.core->step();
  EXPECT_EQ(all[2].sink->finish()->reason, FinishReason::kCancelled);
  all.push_back(d.submit(simple(5, 5)));
  d.run();
  for (size_t i = 0; i < all.size(); ++i)
    if (i != 2) expect_answer(all[i], answer_alone(*d.model, all[i].request, kContext), "queued");
  d.expect_clean();
}

// ---------------------------------------------------------------- cancelling

TEST(EngineCore, CancelledInsideForwardAndInsideASink) {
  for (const bool ahead : {false, true})
    for (int countdown = 0; countdown < 14; ++countdown) {
      int left = countdown;
      std::shared_ptr<RequestControl> target;
      FakeModel::Options o;
      o.on_forward = [&](const StepInput&) {
        if (left-- == 0) target->cancelled = true;
      };
      Driver d(fake(o), config(4, 8, 64, ahead));
      const Submitted victim = d.submit(simple(20, 10));
      target = victim.control;
      d.run();
      expect_beginning(victim, answer_alone(*d.model, victim.request, kContext), "in forward");
      d.expect_clean();
    }
  Driver d(fake(), config(4, 8));
  auto sink = std::make_shared<CollectingSink>();
  std::shared_ptr<RequestControl> target;
  sink->hook = [&](const TokenEvent& e) {
    if (e.position == 22) target->cancelled = true;
  };
  const Submitted s = d.submit(simple(20, 10), sink);
  target = s.control;
  d.run();
  EXPECT_EQ(s.sink->tokens().size(), 3u);
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kCancelled);
  d.expect_clean();
}

// ---------------------------------------------------------------- time

TEST(EngineCore, DeadlineEndsRunningAndWaitingRequests) {
  using namespace std::chrono_literals;
  Driver d(fake(), config(1, 32));
  GenerationRequest r = simple(20, 100);
  r.deadline = d.clock.now() + 10ms;
  const Submitted running = d.submit(r);
  GenerationRequest w = simple(20, 5);
  w.deadline = d.clock.now() + 5ms;
  const Submitted waiting = d.submit(w);
  const Submitted patient = d.submit(simple(20, 5));
  for (int i = 0; i < 4; ++i) d.core->step();
  d.clock.advance(5ms);
  d.core->step();
  ASSERT_TRUE(waiting.sink->finished());
  EXPECT_EQ(waiting.sink->finish()->reason, FinishReason::kDeadline);
  EXPECT_FALSE(running.sink->finished());
  d.clock.advance(4ms);
  d.core->step();
  EXPECT_FALSE(running.sink->finished());
  d.clock.advance(1ms);
  d.core->step();
  EXPECT_EQ(running.sink->finish()->reason, FinishReason::kDeadline);
  expect_beginning(running, answer_alone(*d.model, r, kContext), "deadline");
  d.clock.advance(-1h);  // a clock that jumps back harms nobody
  d.run();
  expect_answer(patient, answer_alone(*d.model, patient.request, kContext), "patient");
  d.expect_clean();
}

TEST(EngineCore, CancelAllAt) {
  using namespace std::chrono_literals;
  Driver d(fake(), config(2, 32));
  std::vector<Submitted> all;
  for (int i = 0; i < 5; ++i) all.push_back(d.submit(simple(20, 4 + 40 * (i % 2))));
  d.core->cancel_all_at(d.clock.now() + 3ms);
  for (int i = 0; i < 6; ++i) d.core->step();
  d.clock.advance(3ms);
  d.core->step();
  EXPECT_TRUE(d.core->idle());
  EXPECT_EQ(all[0].sink->finish()->reason, FinishReason::kLength);
  EXPECT_EQ(all[1].sink->finish()->reason, FinishReason::kCancelled);
  EXPECT_EQ(all[4].sink->finish()->reason, FinishReason::kCancelled);
  d.expect_clean();
}

// ---------------------------------------------------------------- the plan

class Trace : public StepObserver {
 public:
  struct Step {
    std::vector<std::tuple<uint64_t, int32_t, int32_t, bool>> grants;  // id, begin, count, sample
    size_t rows;
  };
  std::vector<Step> steps;
  void at(StepPoint point, const StepPlan* plan) override {
    if (point != StepPoint::kPlanned) return;
    steps.push_back({{}, plan->rows});
    for (const Grant& g : plan->grants)
      steps.back().grants.emplace_back(g.sequence->control->id, g.begin, g.count, g.sample);
  }
};

TEST(EngineCore, DecodeRowsFirstThenPromptsInOrder) {
  Trace trace;
  Driver d(fake(), config(4, 10), 1, {.observer = &trace});
  const uint64_t a = d.submit(simple(4, 5)).control->id;
  d.core->step();
  const uint64_t b = d.submit(simple(25, 2)).control->id, c = d.submit(simple(3, 2)).control->id;
  d.run();
  using G = std::tuple<uint64_t, int32_t, int32_t, bool>;
  ASSERT_GE(trace.steps.size(), 5u);
  EXPECT_EQ(trace.steps[0].grants, (std::vector<G>{{a, 0, 4, true}}));
  EXPECT_EQ(trace.steps[1].grants, (std::vector<G>{{a, 4, 1, true}, {b, 0, 9, false}}));
  EXPECT_EQ(trace.steps[2].grants, (std::vector<G>{{a, 5, 1, true}, {b, 9, 9, false}}));
  EXPECT_EQ(trace.steps[3].grants,
            (std::vector<G>{{a, 6, 1, true}, {b, 18, 7, true}, {c, 0, 2, false}}));
  EXPECT_EQ(trace.steps[4].grants,
            (std::vector<G>{{a, 7, 1, true}, {b, 25, 1, true}, {c, 2, 1, true}}));
  EXPECT_EQ(trace.steps[5].grants, (std::vector<G>{{c, 3, 1, true}}));
}

TEST(EngineCore, AdmissionWaitsForTheWorstCaseInOrder) {
  Trace trace;
  Driver d(fake(), config(4, 64, 8), 1, {.observer = &trace});  // 8 blocks: one whole context
  const Submitted large = d.submit(simple(64, 4 * 64 + 1));     // 5 blocks
  const Submitted larger = d.submit(simple(10, 4 * 64));        // 5 blocks: waits
  const Submitted small = d.submit(simple(5, 3));  // 1 block: would fit, but does not overtake
  d.core->step();
  EXPECT_EQ(d.core->stats().running, 1);
  EXPECT_EQ(d.core->stats().waiting, 2);
  EXPECT_EQ(d.core->stats().blocks_free, 7);  // reserved, but taken only as it grows
  EXPECT_EQ(d.core->cache().report().blocks_reserved, 4u);
  large.control->cancelled = true;
  d.core->step();
  EXPECT_EQ(d.core->stats().running, 2);
  d.run();
  for (const auto& s : {larger, small})
    expect_answer(s, answer_alone(*d.model, s.request, kContext), "admitted later");
  d.expect_clean();
}

// The same submissions give the same plans.
TEST(EngineCore, SchedulesRepeat) {
  std::vector<std::vector<Trace::Step>> runs;
  for (int run = 0; run < 2; ++run) {
    std::mt19937_64 rng(11);
    Trace trace;
    Driver d(fake(), config(5, 40, 20), 1 + run, {.observer = &trace});
    for (int i = 0; i < 15; ++i) {
      d.submit(random_request(rng, 97));
      d.core->step();
    }
    d.run();
    runs.push_back(trace.steps);
  }
  ASSERT_EQ(runs[0].size(), runs[1].size());
  for (size_t i = 0; i < runs[0].size(); ++i) EXPECT_EQ(runs[0][i].grants, runs[1][i].grants);
}

// ---------------------------------------------------------------- masks

TEST(EngineCore, MaskGatesSamplingAndSeesEveryToken) {
  Driver d(fake(), config());
  const auto mask = std::make_shared<EvenIds>(4);
  GenerationRequest r = simple(20, 12);
  r.mask = mask;
  const Submitted s = d.submit(r);
  const Submitted free = d.submit(simple(20, 12));
  d.run();
  const auto ids = s.sink->ids();
  EXPECT_EQ(mask->accepted, ids);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(ids[i] % 2, 0);
  expect_answer(free, answer_alone(*d.model, free.request, kContext), "beside a mask");

  const auto closed = std::make_shared<EvenIds>(4);
  closed->words_.assign(4, 0);
  r.mask = closed;
  const Submitted none = d.submit(r);
  const auto narrow = std::make_shared<EvenIds>(3);
  r.mask = narrow;
  const Submitted too_short = d.submit(r);
  d.run();
  EXPECT_EQ(none.sink->finish()->reason, FinishReason::kError);
  EXPECT_EQ(too_short.sink->finish()->reason, FinishReason::kError);
  EXPECT_NE(too_short.sink->finish()->error->message.find("4 words"), std::string::npos);
  d.expect_clean();
}

// ---------------------------------------------------------------- memory

class SilentSink : public EventSink {
 public:
  void on_token(const TokenEvent& event) override { sum += event.id; }
  void on_finish(const FinishEvent&) override {}
  int64_t sum = 0;
};

TEST(EngineCore, DecodeStepsAllocateNothing) {
  for (const int threads : {1, 2, -1, -2}) {  // negative: planned ahead
    Driver d(fake(), config(8, 32, 64, threads < 0), std::abs(threads));
    for (uint64_t i = 0; i < 8; ++i) {
      GenerationRequest r = simple(20, 300, i);
      if (i % 2 == 1) {
        r.sampling.top_p = 0.9;
        r.sampling.top_logprobs = 5;
        r.sampling.repetition_penalty = 1.1f;
      }
      auto sequence = d.core->prepare(r, std::make_shared<SilentSink>()).value();
      ASSERT_TRUE(d.core->take_place(*sequence));
      d.core->add(std::move(sequence));
    }
    // Past everyone's first block: the first that a thread closes sizes its buffer for hashing.
    for (int i = 0; i < 60; ++i) d.core->step();
    ASSERT_EQ(d.core->stats().running, 8);
    const uint64_t before = testing::allocations();
    for (int i = 0; i < 200; ++i) d.core->step();  // crosses block boundaries
    EXPECT_EQ(testing::allocations() - before, 0u) << threads << " threads";
    ASSERT_EQ(d.core->stats().running, 8);
    d.run();
  }
}

// ---------------------------------------------------------------- waiting

TEST(EngineCore, WaitsNoLongerThanItMay) {
  using namespace std::chrono_literals;
  EngineConfig c = config(1, 32);
  c.max_queue_ms = 50;
  Driver d(fake(), c);
  const Submitted runs = d.submit(simple(20, 100));
  GenerationRequest r = simple(20, 5);
  const Submitted usual = d.submit(r);
  r.start_by = d.clock.now() + 10ms;
  const Submitted hasty = d.submit(r);
  d.core->step();
  d.clock.advance(10ms);
  d.core->step();
  ASSERT_TRUE(hasty.sink->finished());
  EXPECT_EQ(hasty.sink->finish()->reason, FinishReason::kError);
  EXPECT_EQ(hasty.sink->finish()->error->code, ErrorCode::kResourceExhausted);
  EXPECT_GE(hasty.sink->finish()->error->retry_after_s, 1);
  EXPECT_FALSE(usual.sink->finished());
  d.clock.advance(40ms);
  d.core->step();
  EXPECT_TRUE(usual.sink->finished());
  EXPECT_FALSE(runs.sink->finished());  // it has started
  d.run();
  expect_answer(runs, answer_alone(*d.model, runs.request, kContext), "running");
  d.expect_clean();
}

TEST(EngineCore, RefusesWhatComesTooLate) {
  using namespace std::chrono_literals;
  std::function<void()> tick;
  FakeModel::Options o;
  o.on_forward = [&](const StepInput& in) {
    tick();
    (void)in;
  };
  EngineConfig c = config(8, 32);
  c.interactive_first_token_ms = 100;
  Driver d(fake(o), c);
  tick = [&] { d.clock.advance(10ms); };
  d.submit(simple(100, 5));
  d.run();  // 32 rows take 10 ms
  std::vector<Submitted> taken;
  Result<Submitted> refused = fail(ErrorCode::kInternal, "");
  for (int i = 0; i < 20; ++i) {
    refused = d.try_submit(simple(100, 5));
    if (!refused) break;
    taken.push_back(*refused);
  }
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_GE(refused.error().retry_after_s, 1);
  EXPECT_NEAR(static_cast<double>(taken.size()), 3, 2);  // 100 ms are about 320 rows
  GenerationRequest batch = simple(100, 5);
  batch.request_class = RequestClass::kBatch;
  taken.push_back(d.submit(batch));
  d.run();
  EXPECT_TRUE(d.try_submit(simple(100, 5)));
  d.run();
  d.expect_clean();
}

class CountingTap : public Tap {
 public:
  void sublayer(int, std::string_view, std::span<const float>, size_t) override { ++calls; }
  int calls = 0;
};

TEST(EngineCore, TapSeesEveryStep) {
  CountingTap tap;
  Driver d(fake(), config(), 1, {.tap = &tap});
  d.submit(simple(20, 10));
  d.run();
  EXPECT_EQ(tap.calls, d.core->stats().steps);
}

TEST(EngineCore, StatsAddUp) {
  Driver d(fake(), config(3, 16));
  int64_t prompt = 0, output = 0;
  std::mt19937_64 rng(4);
  std::vector<Submitted> all;
  for (int i = 0; i < 10; ++i) all.push_back(d.submit(random_request(rng, 97)));
  d.run();
  for (const Submitted& s : all) {
    prompt += s.sink->finish()->usage.prompt_tokens;
    output += s.sink->finish()->usage.output_tokens;
  }
  const EngineStats s = d.core->stats();
  EXPECT_EQ(s.prompt_tokens, prompt);
  EXPECT_EQ(s.output_tokens, output);
  EXPECT_EQ(s.finished, 10);
  EXPECT_EQ(s.rows, d.model->rows());
  EXPECT_EQ(s.steps, d.model->steps());
}

}  // namespace
}  // namespace deepmint
