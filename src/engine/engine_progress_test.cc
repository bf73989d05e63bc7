// Every request gets on, whoever comes beside it: docs/engine.md, *Progress*.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "engine/engine_core_testing.h"
#include "support/test_seed.h"

namespace deepmint {
namespace {

using testing::answer_alone;
using testing::config;
using testing::Driver;
using testing::fake;
using testing::FakeModel;
using testing::kContext;
using testing::random_request;
using testing::simple;
using testing::Submitted;

// Rows that a request takes, had it run alone from where it began.
int64_t rows_of(const Submitted& s) {
  const Usage u = s.sink->finish()->usage;
  return u.prompt_tokens - u.cached_tokens + u.replayed_tokens + std::max(0, u.output_tokens - 1);
}

// ---------------------------------------------------------------- stepping aside

// A batch request whose replay takes sixteen steps, on a machine of which short interactive
// requests want two steps of five: it is pushed aside before its replay is through, again and
// again.
TEST(EngineProgress, AReplayGoesOnWhereItStoodWhenItSteppedAside) {
  for (const bool ahead : {false, true}) {
    Driver d(fake(), config(1, 16, 40, ahead));
    const Submitted first = d.submit(simple(300, 1));
    d.run();
    GenerationRequest r = simple(300, 20);
    r.request_class = RequestClass::kBatch;
    const Submitted s = d.submit(r);
    std::vector<Submitted> all = {first, s};
    int steps = 0;
    for (; steps < 200 && !s.sink->finished(); ++steps) {
      if (steps % 5 == 0)
        all.push_back(d.submit(simple(10, 2, 100 + static_cast<uint64_t>(steps))));
      d.core->step();
    }
    ASSERT_TRUE(s.sink->finished()) << "starved";
    EXPECT_GT(d.core->stats().preempted, 3);
    EXPECT_EQ(s.sink->finish()->usage.cached_tokens, 256);
    EXPECT_EQ(s.sink->finish()->usage.replayed_tokens, 256);
    EXPECT_EQ(d.core->stats().replayed_tokens, 256);
    d.run();
    int64_t rows = 0;
    for (const Submitted& each : all) {
      expect_answer(each, answer_alone(*d.model, each.request, kContext), "pushed about");
      rows += rows_of(each);
    }
    EXPECT_EQ(d.core->stats().rows, rows);  // none ran twice
    d.expect_clean();
  }
}

// ---------------------------------------------------------------- rows of a step

// Requests behind a cached prompt come without end, and their replays alone are more than the
// machine does. The prompt that came first gets on all the same: beside equals with the least chunk
// of each step, beside lower classes with the whole.
TEST(EngineProgress, ReplaysOfOthersDoNotHoldUpThePromptThatIsNext) {
  for (const bool ahead : {false, true})
    for (const RequestClass others : {RequestClass::kInteractive, RequestClass::kBatch}) {
      Driver d(fake(), config(8, 40, 100, ahead));
      d.submit(simple(258, 1, 7));
      d.run();
      const Submitted s = d.submit(simple(400, 5));
      d.core->step();
      std::vector<Submitted> behind;
      int steps = 0;
      for (; steps < 500 && !s.sink->finished(); ++steps) {
        if (steps % 4 == 0) {
          GenerationRequest r = simple(258, 2, 7);
          r.request_class = others;
          behind.push_back(d.submit(r));
        }
        d.core->step();
      }
      ASSERT_TRUE(s.sink->finished()) << "starved";
      EXPECT_LE(steps, 400 / (others == RequestClass::kBatch ? 36 : 16) + 5 + 2);
      d.run();
      expect_answer(s, answer_alone(*d.model, s.request, kContext), "came first");
      for (const Submitted& each : behind) {
        expect_answer(each, answer_alone(*d.model, each.request, kContext), "behind");
        EXPECT_EQ(each.sink->finish()->usage.replayed_tokens, 256);
      }
      d.expect_clean();
    }
}

// ---------------------------------------------------------------- deadlines

// More requests with a deadline of half a minute than the machine can do come without end, and one
// without a deadline, or with one of tomorrow.
TEST(EngineProgress, DeadlinesDoNotStarveWhoHasNone) {
  using namespace std::chrono_literals;
  for (const bool late : {false, true}) {
    Driver d(fake(), config(1, 16, 40));
    std::vector<Submitted> others;
    const auto one_more = [&](uint64_t seed) {
      GenerationRequest r = simple(20, 3, seed);
      r.deadline = d.clock.now() + 30s;
      others.push_back(d.submit(r));
    };
    one_more(1);
    d.core->step();
    GenerationRequest r = simple(30, 4);
    if (late) r.deadline = d.clock.now() + 24h;
    const Submitted s = d.submit(r);
    int seconds = 0;
    for (; seconds < 1000 && !s.sink->finished(); ++seconds) {
      one_more(static_cast<uint64_t>(seconds));
      d.clock.advance(1s);
      d.core->step();
    }
    ASSERT_TRUE(s.sink->finished()) << "starved";
    EXPECT_GT(seconds, 500);  // the others do go first, for a time
    EXPECT_LE(seconds, 620);
    d.run();
    expect_answer(s, answer_alone(*d.model, s.request, kContext), "without a deadline");
    d.expect_clean();
  }
}

// ---------------------------------------------------------------- the invariant

struct Machine {
  EngineConfig config;
  FakeModel::Options model;
  bool by_hand = false;  // an operator pushes requests aside, too
  bool flood = false;    // of batch requests behind what is cached

  std::string describe() const {
    return fmt::format("{} running, steps of {}, {} bytes, {} aside, {} for snapshots{}{}{}{}",
                       config.max_running, config.step_tokens, config.kv_bytes, config.park_bytes,
                       config.snapshot_bytes, config.plan_ahead ? ", ahead" : "",
                       model.private_part ? ", windows" : "", by_hand ? ", by hand" : "",
                       flood ? ", flood" : "");
  }
};

Machine random_machine(std::mt19937_64& rng) {
  Machine m;
  m.model.private_part = rng() % 3 > 0;
  const auto running = static_cast<int32_t>(1 + rng() % 5);
  const auto blocks = static_cast<int64_t>(8 + rng() % 16);  // the context takes 8
  m.config = config(running, running + static_cast<int32_t>(rng() % 40), blocks, rng() % 2 == 0);
  const auto slot = static_cast<int64_t>(FakeModel(m.model).bytes_per_slot());
  if (rng() % 2 == 0) m.config.snapshot_bytes = 4 * slot;
  const int64_t aside[] = {0, 8 * static_cast<int64_t>(FakeModel().bytes_per_block()) + 64,
                           1 << 20};
  m.config.kv_bytes += m.config.snapshot_bytes - m.config.park_bytes;
  m.config.park_bytes = aside[rng() % 3];
  m.config.kv_bytes += m.config.park_bytes;
  m.by_hand = rng() % 3 == 0;
  m.flood = rng() % 3 == 0;
  return m;
}

GenerationRequest random_arrival(std::mt19937_64& rng, bool flood, Clock::time_point now) {
  if (flood && rng() % 16 > 0) {
    GenerationRequest r = simple(static_cast<int32_t>(257 + rng() % 4), 2, 0);
    r.request_class = RequestClass::kBatch;
    return r;
  }
  GenerationRequest r = random_request(rng, 97, 120, 30);
  if (rng() % 3 > 0)  // behind one of two beginnings
    r.tokens = simple(static_cast<int32_t>(1 + rng() % 400), 0, rng() % 2).tokens;
  r.request_class = rng() % 8 == 0   ? RequestClass::kInteractive
                    : rng() % 3 == 0 ? RequestClass::kAgent
                                     : RequestClass::kBatch;
  r.fair_key = std::string(1, static_cast<char>('a' + rng() % 3));
  r.want_prompt_logits = rng() % 10 == 0;
  if (rng() % 3 == 0) r.deadline = now + std::chrono::minutes(1 + rng() % 900);
  return r;
}

struct Life {
  Submitted s;
  int came = 0, ended = 0;        // steps
  std::vector<size_t> in_places;  // of lower classes, when it came
};

// Random arrivals, until all have ended. The n-th has id n.
std::vector<Life> lives_of_load(Driver& d, const Machine& machine, std::mt19937_64& rng) {
  std::vector<Life> lives;
  const size_t requests = machine.flood ? 60 : 30;
  for (int step = 0; lives.size() < requests || !d.core->idle(); ++step) {
    for (uint64_t burst = rng() % 6 == 0 ? 1 + rng() % 3 : 0; burst > 0 && lives.size() < requests;
         --burst) {
      Life life;
      life.came = step;
      GenerationRequest r = random_arrival(rng, machine.flood, d.clock.now());
      for (const auto& s : d.core->scheduler().running())
        if (s->request.request_class > r.request_class)
          life.in_places.push_back(s->control->id - 1);
      life.s = d.submit(std::move(r));
      lives.push_back(std::move(life));
    }
    if (machine.by_hand && !lives.empty() && rng() % 3 == 0)
      d.core->preempt(lives[rng() % lives.size()].s.control->id);
    d.core->step();
    for (Life& life : lives)
      if (life.ended == 0 && life.s.sink->finished()) life.ended = step + 1;
    if (step == 50'000) throw std::runtime_error("somebody starves");
  }
  return lives;
}

// Steps that a request needs when it is the one that is next: docs/engine.md, *Progress*.
int64_t steps_of(const Life& life, const Machine& m) {
  constexpr int64_t kLeastChunk = 16;
  const int64_t chunk =
      std::min<int64_t>(kLeastChunk, m.config.step_tokens - (m.config.max_running - 1));
  const int64_t outputs = life.s.sink->finish()->usage.output_tokens;
  const int64_t prompt = rows_of(life.s) - std::max<int64_t>(0, outputs - 1);
  constexpr int64_t kCut = 4;    // chunks that end at a snapshot
  constexpr int64_t kComes = 4;  // steps in which somebody steps aside for it, or its last one ends
  return (prompt + chunk - 1) / chunk + outputs + kCut + kComes;
}

TEST(EngineProgress, EveryRequestEndsWithinStepsComputedFromTheWork) {
  const uint64_t base = testing::test_seed();
  int64_t preempted = 0, replayed = 0, waits = 0;
  for (uint64_t round = 0; round < 150; ++round) {
    std::mt19937_64 rng(base + round);
    const Machine m = random_machine(rng);
    const std::string what = fmt::format("seed {}: {}", base + round, m.describe());
    Driver d(fake(m.model), m.config);
    const std::vector<Life> lives = lives_of_load(d, m, rng);
    int64_t rows = 0;
    for (const Life& life : lives) {
      rows += rows_of(life.s);
      expect_answer(life.s, answer_alone(*d.model, life.s.request, kContext), what);
      // Of each class that may go before it, whoever lived beside it; and, where not everybody's
      // state has room aside, who was in its way when it came.
      int64_t bound = 0;
      for (const Life& other : lives) {
        const bool beside = other.came < life.ended && life.came < other.ended;
        if (m.config.snapshot_bytes > 0)
          bound += beside;  // a chunk that ends where its prompt leaves that of a neighbour
        if (beside && other.s.request.request_class <= life.s.request.request_class)
          bound += steps_of(other, m);
      }
      if (m.config.park_bytes < 1 << 20)
        for (const size_t other : life.in_places) bound += steps_of(lives[other], m);
      if (m.by_hand) continue;
      EXPECT_LE(life.ended - life.came, bound) << what << ", request " << life.s.control->id;
      waits += life.ended - life.came > steps_of(life, m);
    }
    EXPECT_EQ(d.core->stats().rows, rows) << what;  // none ran twice
    preempted += d.core->stats().preempted;
    replayed += d.core->stats().replayed_tokens;
    d.expect_clean();
    if (HasFailure()) break;
  }
  EXPECT_GT(preempted, 300);
  EXPECT_GT(replayed, 1000);
  EXPECT_GT(waits, 1000);
}

}  // namespace
}  // namespace deepmint
