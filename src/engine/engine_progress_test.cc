// Every request gets on, whoever comes beside it: docs/engine.md, *Progress*.
#include <gtest/gtest.h>

#include "engine/engine_core_testing.h"

namespace deepmint {
namespace {

using testing::answer_alone;
using testing::config;
using testing::Driver;
using testing::fake;
using testing::kContext;
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

}  // namespace
}  // namespace deepmint
