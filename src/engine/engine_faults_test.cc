// What goes wrong around an engine, one test per fault: a defined outcome, no crash, nothing held
// afterwards, the right bits for everybody else, and a number that tells. docs/engine.md, "Faults".
#include <gtest/gtest.h>

#include "core/thread_pool.h"
#include "engine/engine_core_testing.h"
#include "support/test_seed.h"

namespace deepmint {
namespace {

using testing::Answer;
using testing::answer_alone;
using testing::config;
using testing::Driver;
using testing::fake;
using testing::FakeModel;
using testing::kContext;
using testing::random_request;
using testing::simple;
using testing::Submitted;

void expect_whole(const Driver& d, const std::vector<Submitted>& all, const std::string& what) {
  for (const Submitted& s : all)
    expect_answer(s, answer_alone(*d.model, s.request, kContext), what);
}

TEST(EngineFaults, PoolExhausted) {
  for (const bool ahead : {false, true}) {
    // Blocks for one of these at a time, places for eight.
    Driver d(fake(), config(8, 32, 12, ahead));
    std::vector<Submitted> all;
    for (uint64_t i = 0; i < 6; ++i) all.push_back(d.submit(simple(300, 100, 20 + i)));
    int64_t most_running = 0;
    bool full = false;
    while (!d.core->idle()) {
      d.core->step();
      const EngineStats s = d.core->stats();
      most_running = std::max(most_running, s.running);
      full = full || (s.waiting > 0 && s.running > 0);
    }
    EXPECT_EQ(most_running, 1);
    EXPECT_TRUE(full);
    EXPECT_GT(d.core->stats().cache_evictions, 0);
    expect_whole(d, all, "waited for blocks");
    d.expect_clean();
  }
}

// The context is never more than the pool holds, so what is larger than the one is larger than the
// other.
TEST(EngineFaults, ARequestLargerThanThePool) {
  EngineConfig c = config(4, 32, 12);
  c.context_tokens = 2000;
  const auto too_long = EngineCore::create(testing::fake_loaded(fake()), c, Clock::steady());
  ASSERT_FALSE(too_long.has_value());
  EXPECT_NE(too_long.error().str().find("engine.kv_bytes"), std::string::npos)
      << too_long.error().str();
  Driver d(fake(), config(4, 32, 12));
  const Submitted runs = d.submit(simple(100, 20));
  const auto refused = d.try_submit(simple(kContext + 1, 1, 6));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  const Submitted largest = d.submit(simple(kContext - 100, 100, 6));
  d.run();
  expect_whole(d, {runs, largest}, "beside one that was refused");
  d.expect_clean();
}

TEST(EngineFaults, SnapshotStoreFull) {
  for (const bool ahead : {false, true}) {
    EngineConfig c = config(4, 48, 60, ahead);
    c.snapshot_bytes = 2 * static_cast<int64_t>(FakeModel().bytes_per_slot());
    c.kv_bytes += c.snapshot_bytes;
    Driver d(fake(), c);
    ASSERT_GT(d.core->cache().report().snapshots_total, 0u);
    std::vector<Submitted> all;
    for (int round = 0; round < 3; ++round)
      for (uint64_t i = 0; i < 7; ++i) {
        all.push_back(d.submit(simple(130, 70, 20 + i)));
        if (i % 3 == 2) d.run();
        EXPECT_LE(d.core->cache().report().snapshots_used,
                  d.core->cache().report().snapshots_total);
      }
    d.run();
    EXPECT_GT(d.core->cache().counters().snapshots_evicted, 0);
    expect_whole(d, all, "snapshots come and go");
    d.expect_clean();
  }
}

TEST(EngineFaults, ForcedHashCollision) {
  for (const int bits : {1, 3}) {
    Driver d(fake(), config(4, 48, 60), 1, {.hash_bits = bits});
    std::vector<Submitted> all;
    for (int round = 0; round < 2; ++round) {
      for (uint64_t i = 0; i < 8; ++i) all.push_back(d.submit(simple(150, 20, 20 + i)));
      d.run();
    }
    EXPECT_GT(d.core->stats().cache_collisions, 0) << bits;
    expect_whole(d, all, "blocks collide");
    d.expect_clean();
  }
}

TEST(EngineFaults, ADamagedStateIsRefused) {
  Driver d(fake(), config());
  const Submitted s = d.submit(simple(100, 40));
  for (int i = 0; i < 12; ++i) d.core->step();
  const auto state = d.core->export_state(s.control->id).value();
  Driver to(fake(), config());
  const Submitted neighbour = to.submit(simple(80, 30, 9));
  std::mt19937_64 rng(testing::test_seed());
  for (int round = 0; round < 200; ++round) {
    auto bytes = state;
    const size_t at = rng() % bytes.size();
    if (round % 4 == 0) {
      bytes.resize(at);
    } else {
      bytes[at] ^= static_cast<std::byte>(1 + rng() % 255);
    }
    const auto twin = to.resume(s.request, std::move(bytes));
    ASSERT_FALSE(twin.has_value()) << "byte " << at;
    EXPECT_TRUE(twin.error().code == ErrorCode::kInvalidFile ||
                twin.error().code == ErrorCode::kUnsupported)
        << twin.error().str();
    to.core->step();
  }
  to.run();
  d.run();
  expect_whole(d, {s}, "was saved");
  expect_whole(to, {neighbour}, "beside damaged states");
  to.expect_clean();
  d.expect_clean();
}

TEST(EngineFaults, AForeignStateIsRefused) {
  Driver d(fake(), config());
  const Submitted s = d.submit(simple(100, 40));
  for (int i = 0; i < 12; ++i) d.core->step();
  const auto state = d.core->export_state(s.control->id).value();
  d.run();
  FakeModel::Options other_weights, other_parts, smaller;
  other_weights.fingerprint = 1;
  other_parts.private_part = false;
  smaller.vocab_size = 50;
  for (const auto& [options, what] : {std::pair{other_weights, "of model"},
                                      {other_parts, "state parts"},
                                      {smaller, "token id"}}) {
    Driver to(fake(options), config());
    GenerationRequest r = s.request;
    const auto twin = to.resume(r, state);
    ASSERT_FALSE(twin.has_value()) << what;
    EXPECT_NE(twin.error().message.find(what), std::string::npos) << twin.error().str();
    to.expect_clean();
  }
}

TEST(EngineFaults, ClockJumpsBack) {
  using namespace std::chrono_literals;
  for (const bool ahead : {false, true}) {
    EngineConfig c = config(4, 48, 60, ahead);
    c.snapshot_bytes = 4 * static_cast<int64_t>(FakeModel().bytes_per_slot());
    c.kv_bytes += c.snapshot_bytes;
    c.max_queue_ms = 3'600'000;
    Driver d(fake(), c);
    std::mt19937_64 rng(testing::test_seed());
    std::vector<Submitted> all;
    for (int i = 0; i < 200; ++i) {
      if (i % 8 == 0) {
        GenerationRequest r = random_request(rng, 97);
        r.deadline = d.clock.now() + 100h;
        all.push_back(d.submit(std::move(r)));
      }
      d.clock.advance(i % 5 == 4 ? -std::chrono::seconds(rng() % 4000) : 800s);
      d.core->step();
    }
    d.run();
    for (const Submitted& s : all) {
      const FinishEvent end = *s.sink->finish();
      // Only whoever waited an hour by that clock may have gone.
      if (end.error && end.error->code == ErrorCode::kResourceExhausted) continue;
      expect_answer(s, answer_alone(*d.model, s.request, kContext), "under a jumping clock");
    }
    EXPECT_GE(d.core->stats().step_gap_ns, 0);
    d.expect_clean();
  }
}

// What computes a step throws something, on whichever thread runs it.
TEST(EngineFaults, AWorkerThrows) {
  ThreadPool pool(3);
  for (const bool ahead : {false, true})
    for (const int kind : {0, 1, 2, 3}) {
      FakeModel::Options o;
      int countdown = 6;
      o.on_forward = [&](const StepInput&) {
        if (countdown-- != 0) return;
        if (kind == 0) throw 7;
        if (kind == 1) throw std::runtime_error("out of luck");
        const auto fail_on_last = [](int worker) {
          if (worker == 2) throw std::runtime_error("out of luck");
        };
        if (kind == 2)
          pool.run(3, [&](size_t, size_t, int worker) { fail_on_last(worker); });
        else
          pool.together([&](Team& team) {
            team.meet();
            fail_on_last(team.rank());
            team.meet();
          });
      };
      Driver d(fake(o), config(4, 32, 64, ahead));
      const Submitted a = d.submit(simple(40, 20, 8)), b = d.submit(simple(40, 20, 9));
      d.run();
      for (const Submitted& s : {a, b}) {
        EXPECT_EQ(s.sink->finish()->reason, FinishReason::kError);
        EXPECT_EQ(s.sink->finish()->error->code, ErrorCode::kInternal);
        expect_beginning(s, answer_alone(*d.model, s.request, kContext), "up to the exception");
      }
      EXPECT_EQ(d.core->stats().failed, 2);
      d.expect_clean();
      const Submitted after = d.submit(simple(40, 20, 8));
      d.run();
      expect_whole(d, {after}, "after an exception");
      d.expect_clean();
    }
}

// The six points of a step: before it begins, when it is planned, inside the forward pass, behind
// it, when tokens are sampled, when they are delivered.
TEST(EngineFaults, CancelledAtEachOfTheSixPointsOfAStep) {
  constexpr int kInsideForward = 5;
  class CancelAt : public StepObserver {
   public:
    int point = 0, countdown = 0;
    std::shared_ptr<RequestControl> target;
    void pass(int at) {
      if (at == point && countdown-- == 0) target->cancelled = true;
    }
    void at(StepPoint p, const StepPlan*) override { pass(static_cast<int>(p)); }
  };
  for (const bool ahead : {false, true})
    for (int point = 0; point <= kInsideForward; ++point)
      for (int step = 0; step < 14; ++step) {
        CancelAt observer;
        FakeModel::Options o;
        o.on_forward = [&](const StepInput&) { observer.pass(kInsideForward); };
        Driver d(fake(o), config(4, 24, 64, ahead), 1, {.observer = &observer});
        const Submitted victim = d.submit(simple(70, 12));
        const Submitted follower = d.submit(simple(70, 12));  // waits for the victim's blocks
        const Submitted neighbour = d.submit(simple(30, 12, 6));
        observer.point = point;
        observer.countdown = step;
        observer.target = victim.control;
        while (!victim.control->cancelled && !d.core->idle()) d.core->step();
        ASSERT_TRUE(victim.control->cancelled);
        if (!victim.sink->finished()) d.core->step();  // within one step
        ASSERT_TRUE(victim.sink->finished()) << "point " << point << ", step " << step;
        const Answer whole = answer_alone(*d.model, victim.request, kContext);
        expect_beginning(victim, whole, "cancelled");
        EXPECT_TRUE(victim.sink->finish()->reason == FinishReason::kCancelled ||
                    victim.sink->ids() == whole.ids);
        const size_t seen = victim.sink->tokens().size();
        d.run();
        EXPECT_EQ(victim.sink->tokens().size(), seen);
        expect_whole(d, {follower, neighbour}, "beside a cancelled one");
        EXPECT_EQ(victim.sink->finishes(), 1);
        d.expect_clean();  // every block and slot is back, once
      }
}

}  // namespace
}  // namespace deepmint
