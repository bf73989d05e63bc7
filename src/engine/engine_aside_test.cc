// EngineCore where a sequence leaves its place and comes back, and where steps are planned ahead.
#include <gtest/gtest.h>

#include "engine/engine_core_testing.h"
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

// ---------------------------------------------------------------- saved and restored

// A request that steps aside before its first row has nothing to keep; inside a replay it keeps
// what it has, and leaves for elsewhere with nothing all the same.
TEST(EngineCore, SavedWhileSetAsideWithNothingComputed) {
  for (const bool ahead : {false, true})
    for (const bool from_cache : {false, true}) {
      Driver d(fake(), config(3, 32, 40, ahead));
      if (from_cache) {
        d.submit(simple(130, 1, 8));
        d.run();
      }
      const Submitted busy = d.submit(simple(60, 4, 9)), s = d.submit(simple(130, 6, 8));
      d.core->step();  // the first prompt takes all rows of it that no replay takes
      const auto before = d.core->stats().rows;
      ASSERT_TRUE(d.core->preempt(s.control->id));
      EXPECT_LE(d.core->stats().rows - before, 32);
      EXPECT_EQ(d.core->stats().parked_bytes > 0, from_cache);
      auto saved = d.core->export_state(s.control->id);
      ASSERT_TRUE(saved.has_value()) << saved.error().str();
      Driver to(fake(), config(2, 32));
      const auto twin = to.resume(s.request, std::move(*saved));
      ASSERT_TRUE(twin.has_value()) << twin.error().str();
      to.run();
      d.run();
      const Answer whole = answer_alone(*d.model, s.request, kContext);
      expect_answer(*twin, whole, "goes on elsewhere");
      expect_answer(s, whole, "comes back");
      expect_answer(busy, answer_alone(*d.model, busy.request, kContext), "neighbour");
      to.expect_clean();
      d.expect_clean();
    }
}

// The same tokens, the same bytes: whatever ran in that memory before, however the prompt was cut.
TEST(EngineCore, SavedStatesDoNotTellTheirHistory) {
  const GenerationRequest r = simple(100, 60);
  const auto saved_after = [&](Driver& d, size_t tokens) {
    const Submitted s = d.submit(r);
    while (s.sink->tokens().size() < tokens) d.core->step();
    auto state = d.core->export_state(s.control->id);
    s.control->cancelled = true;
    d.run();
    return std::move(state).value();
  };
  for (const size_t tokens : {1u, 20u, 29u, 59u}) {
    Driver fresh(fake(), config(4, 200, 40)), used(fake(), config(4, 24, 40));
    for (uint64_t seed = 8; seed < 40; ++seed) used.submit(simple(130, 60, seed));
    used.run();
    const auto expected = saved_after(fresh, tokens);
    EXPECT_EQ(saved_after(used, tokens), expected) << tokens;
    EXPECT_EQ(saved_after(used, tokens), expected) << tokens << ", its prompt in the cache";
  }
}

TEST(EngineCore, SavedAfterAnyStepAndResumedElsewhere) {
  const auto model = fake();
  GenerationRequest r = simple(100, 110);
  r.sampling.frequency_penalty = 0.3f;
  r.sampling.top_logprobs = 2;
  const Answer whole = answer_alone(*model, r, kContext);
  ASSERT_EQ(whole.ids.size(), 110u);
  Driver from(model, config(4, 40));
  from.submit(simple(33, 200, 8));  // so that blocks and slots are not the same on both sides
  const Submitted original = from.submit(r);
  int resumed = 0;
  for (int step = 0; !original.sink->finished(); ++step) {
    from.core->step();
    if (original.sink->finished()) break;
    auto state = from.core->export_state(original.control->id);
    ASSERT_TRUE(state.has_value()) << state.error().str();
    if (step % 9 != 0 && step > 6) continue;
    const size_t before = original.sink->tokens().size();
    Driver to(fake(), config(3, 16 + step, 40), 1 + step % 2);
    const Submitted companion = to.submit(simple(50, 60, 9));
    to.core->step();
    const auto twin = to.resume(r, std::move(*state));
    ASSERT_TRUE(twin.has_value()) << twin.error().str();
    to.run();
    ++resumed;
    const auto tokens = twin->sink->tokens();
    ASSERT_EQ(tokens.size() + before, whole.ids.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i].id, whole.ids[before + i]) << "saved after step " << step;
      ASSERT_EQ(tokens[i].logprob, whole.logprobs[before + i]);
    }
    EXPECT_EQ(twin->sink->finish()->usage.output_tokens, 110);
    EXPECT_EQ(twin->sink->finish()->reason, FinishReason::kLength);
    expect_answer(companion, answer_alone(*to.model, companion.request, kContext), "companion");
    to.expect_clean();
  }
  EXPECT_GE(resumed, 10);
  expect_answer(original, whole, "goes on after being saved");
}

TEST(EngineCore, ABoundedTailNeedsAModelThatHasOne) {
  Driver d(fake(), config());
  GenerationRequest r = simple(20, 3);
  r.tail_keep_tokens = 140;
  const auto refused = d.core->prepare(r, std::make_shared<testing::CollectingSink>());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().str(),
            "tail_keep_tokens: expected the exact tail, since every token of a prompt runs the "
            "whole of this model (fake), found a bounded one");
}

TEST(EngineCore, ResumeNeedsTheSameRequest) {
  Driver d(fake(), config());
  const GenerationRequest r = simple(20, 30);
  const Submitted s = d.submit(r);
  for (int i = 0; i < 5; ++i) d.core->step();
  const auto state = d.core->export_state(s.control->id).value();
  const auto refusal = [&](auto change) {
    GenerationRequest other = r;
    auto bytes = state;
    change(other, bytes);
    const auto twin = d.resume(other, bytes);
    return twin ? std::string("accepted") : twin.error().where;
  };
  EXPECT_EQ(refusal([](auto& q, auto&) { q.tokens[0] ^= 1; }), "tokens");
  EXPECT_EQ(refusal([](auto& q, auto&) { q.tokens.push_back(1); }), "tokens");
  EXPECT_EQ(refusal([](auto& q, auto&) { q.sampling.seed = 6; }), "seed");
  EXPECT_EQ(refusal([](auto& q, auto&) { q.choice = 1; }), "seed");
  EXPECT_EQ(refusal([](auto& q, auto&) { q.max_tokens = 3; }), "max_tokens");
  EXPECT_EQ(refusal([](auto& q, auto&) { q.tail_keep_tokens = 140; }), "tail_keep_tokens");
  EXPECT_EQ(refusal([](auto&, auto& bytes) { bytes[100] ^= std::byte{1}; }).substr(0, 14),
            "sequence state");
  EXPECT_EQ(refusal([](auto&, auto& bytes) { bytes.clear(); }).substr(0, 14), "sequence state");
  EXPECT_EQ(refusal([](auto& q, auto&) { q.sampling.seed.reset(); }), "accepted");
  FakeModel::Options other;
  other.fingerprint = 1;
  Driver e(fake(other), config());
  EXPECT_NE(e.resume(r, state).error().message.find("of model"), std::string::npos);
  EXPECT_EQ(d.core->export_state(999).error().code, ErrorCode::kNotFound);
  d.run();
  d.expect_clean();
}

// ---------------------------------------------------------------- a step ahead, stepping aside

TEST(EngineCore, PlannedAheadOrNotTheBitsAreTheSame) {
  const uint64_t base = testing::test_seed();
  for (uint64_t round = 0; round < 20; ++round) {
    std::mt19937_64 rng(base + round);
    Driver d(fake(), config(6, 40, 40, true), static_cast<int>(1 + round % 2));
    std::vector<Submitted> all;
    for (int i = 0; i < 15; ++i) {
      GenerationRequest r = random_request(rng, 97);
      r.want_prompt_logits = rng() % 5 == 0;
      all.push_back(d.submit(r));
      d.core->step();
    }
    d.run();
    for (const Submitted& s : all) {
      expect_answer(s, answer_alone(*d.model, s.request, kContext), std::to_string(base + round));
      if (!s.request.want_prompt_logits) continue;
      std::vector<float> expected(97);
      const auto logits = s.sink->prompt_logits();
      ASSERT_EQ(logits.size(), s.request.tokens.size());
      for (size_t p = 0; p < logits.size(); ++p) {
        d.model->expected_logits(std::span(s.request.tokens).first(p + 1), expected);
        ASSERT_EQ(logits[p].second, expected) << p;
      }
    }
    EXPECT_EQ(d.core->stats().late_rows, 0);  // a stop is seen before the next step starts
    d.expect_clean();
  }
}

TEST(EngineCore, ALateEndCostsOneRow) {
  Driver d(fake(), config(4, 32, 64, true));
  auto sink = std::make_shared<CollectingSink>();
  sink->hook = [](const TokenEvent& e) {
    if (e.position == 23) throw std::runtime_error("reader is gone");
  };
  const Submitted s = d.submit(simple(), sink), neighbour = d.submit(simple(20, 10, 77));
  d.run();
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kError);
  EXPECT_EQ(d.core->stats().late_rows, 1);
  expect_answer(neighbour, answer_alone(*d.model, neighbour.request, kContext), "neighbour");
  d.expect_clean();
}

TEST(EngineCore, FailedStepsAndMasksAStepAhead) {
  FakeModel::Options o;
  o.fail_token = 42;
  Driver d(fake(o), config(4, 64, 64, true));
  GenerationRequest bad = simple(15, 20);
  bad.tokens[3] = 42;
  GenerationRequest good = simple(15, 20);
  std::replace(good.tokens.begin(), good.tokens.end(), 42, 41);
  good.sampling.banned_ids = {42};
  const Submitted s = d.submit(bad);
  d.core->step();
  const auto mask = std::make_shared<EvenIds>(4);
  GenerationRequest masked = good;
  masked.mask = mask;
  const Submitted g = d.submit(good), m = d.submit(masked);
  d.run();
  EXPECT_EQ(s.sink->finish()->reason, FinishReason::kError);
  expect_answer(g, answer_alone(*d.model, g.request, kContext), "after a failed step");
  EXPECT_EQ(mask->accepted, m.sink->ids());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(m.sink->ids()[i] % 2, 0);
  d.expect_clean();
}

TEST(EngineCore, PreemptedAfterAnyStepGoesOnWithTheSameBits) {
  for (const bool ahead : {false, true})
    for (int at = 1; at < 24; ++at) {
      Driver d(fake(), config(3, 16, 30, ahead));
      const auto mask = std::make_shared<EvenIds>(4);
      const Submitted s = d.submit(simple(70, 15)), neighbour = d.submit(simple(40, 12, 9));
      GenerationRequest r = simple(30, 10, 4);
      r.mask = mask;
      const Submitted masked = d.submit(r);
      for (int i = 0; i < at; ++i) d.core->step();
      const bool one = d.core->preempt(s.control->id), two = d.core->preempt(masked.control->id);
      EXPECT_EQ(d.core->stats().preempted, int{one} + int{two});
      EXPECT_EQ(d.core->stats().parked_bytes > 0, one || two);
      const bool runs = !s.sink->finished();
      const size_t before = s.sink->tokens().size();
      auto saved = d.core->export_state(s.control->id);  // also while it is set aside
      ASSERT_EQ(saved.has_value(), runs);
      d.run();
      EXPECT_EQ(d.core->stats().resumed, int{one} + int{two});
      EXPECT_EQ(d.core->stats().parked_bytes, 0);
      const Answer whole = answer_alone(*d.model, s.request, kContext);
      expect_answer(s, whole, "preempted");
      expect_answer(neighbour, answer_alone(*d.model, neighbour.request, kContext), "neighbour");
      EXPECT_EQ(mask->accepted, masked.sink->ids());
      if (saved) {
        const auto twin = d.resume(s.request, std::move(*saved));
        ASSERT_TRUE(twin.has_value()) << twin.error().str();
        d.run();
        const auto rest = twin->sink->ids();
        ASSERT_EQ(before + rest.size(), whole.ids.size()) << "after step " << at;
        EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.ids.begin() + before));
      }
      d.expect_clean();
    }
}

// Its window state is rebuilt once: when it comes back its state is copied.
TEST(EngineCore, AReplayIsCountedOnceHoweverOftenItStepsAside) {
  Driver d(fake(), config(3, 64, 40));
  d.submit(simple(130, 1));
  d.run();
  const Submitted s = d.submit(simple(130, 20));
  for (int i = 0; i < 10; ++i) {
    d.core->step();
    if (i < 5) continue;
    ASSERT_TRUE(d.core->preempt(s.control->id));
  }
  d.run();
  const Usage usage = s.sink->finish()->usage;
  EXPECT_EQ(usage.cached_tokens, 128);
  EXPECT_EQ(usage.replayed_tokens, 128);
  EXPECT_EQ(d.core->stats().cached_tokens, 128);
  EXPECT_EQ(d.core->stats().replayed_tokens, 128);
  EXPECT_EQ(d.core->stats().resumed, 5);
  expect_answer(s, answer_alone(*d.model, s.request, kContext), "replayed and set aside");
  d.expect_clean();
}

TEST(EngineCore, InteractiveRequestsPushBatchAsideAndNobodyNotices) {
  for (const bool ahead : {false, true}) {
    Driver d(fake(), config(2, 64, 10, ahead));
    GenerationRequest batch = simple(100, 150);
    batch.request_class = RequestClass::kBatch;
    const Submitted a = d.submit(batch), b = d.submit(batch);
    for (int i = 0; i < 20; ++i) d.core->step();
    std::vector<Submitted> quick;
    for (uint64_t i = 0; i < 5; ++i) quick.push_back(d.submit(simple(50, 20, i)));
    int steps = 0;
    while (!quick[0].sink->finished()) d.core->step(), ++steps;
    EXPECT_LE(steps, 25);  // it did not wait for 130 more steps of batch
    EXPECT_GT(d.core->stats().preempted, 0);
    d.run();
    for (const auto& s : quick)
      expect_answer(s, answer_alone(*d.model, s.request, kContext), "quick");
    for (const auto& s : {a, b})
      expect_answer(s, answer_alone(*d.model, s.request, kContext), "batch");
    d.expect_clean();
  }
}

TEST(EngineCore, CancelledOrLateWhileSetAside) {
  using namespace std::chrono_literals;
  for (const bool late : {false, true}) {
    Driver d(fake(), config(1, 64, 10));
    GenerationRequest batch = simple(100, 150);
    batch.request_class = RequestClass::kBatch;
    if (late) batch.deadline = d.clock.now() + 10ms;
    const Submitted a = d.submit(batch);
    for (int i = 0; i < 20; ++i) d.core->step();
    const Submitted quick = d.submit(simple(50, 20));
    d.core->step();
    ASSERT_EQ(d.core->stats().preempted, 1);
    if (late) {
      d.clock.advance(10ms);
    } else {
      a.control->cancelled = true;
    }
    d.core->step();
    ASSERT_TRUE(a.sink->finished());
    EXPECT_EQ(a.sink->finish()->reason, late ? FinishReason::kDeadline : FinishReason::kCancelled);
    EXPECT_EQ(d.core->stats().parked_bytes, 0);
    d.run();
    expect_answer(quick, answer_alone(*d.model, quick.request, kContext), "quick");
    d.expect_clean();
  }
}

}  // namespace
}  // namespace deepmint
