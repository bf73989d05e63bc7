// Order, budgets, stepping aside and admission: simulations without a model, threads or sleeping.
#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/queue_model.h"
#include "kvcache/seq_state.h"
#include "support/counting_new.h"
#include "support/test_seed.h"

namespace deepmint {
namespace {

using ::testing::ElementsAre;

class NullSink : public EventSink {
 public:
  void on_token(const TokenEvent&) override {}
  void on_finish(const FinishEvent&) override {}
};

struct Wish {
  int32_t prompt = 64;
  int32_t output = 1;
  RequestClass request_class = RequestClass::kInteractive;
  std::string key = {};
  double weight = 1;
  int64_t deadline_ms = 0;  // 0: none
  bool shares = false;      // takes part in the prefix cache
};

std::unique_ptr<Sequence> sequence(uint64_t id, const Wish& wish) {
  auto s = std::make_unique<Sequence>();
  s->control = std::make_shared<RequestControl>();
  s->control->id = id;
  s->prompt_tokens = wish.prompt;
  s->limit = wish.prompt + wish.output;
  const std::vector<TokenId> ids(static_cast<size_t>(wish.prompt), 1);
  s->tokens = TokenTimeline(ids, s->limit);
  s->request.request_class = wish.request_class;
  s->request.fair_key = wish.key;
  s->request.fair_weight = wish.weight;
  if (wish.deadline_ms > 0) s->due = Clock::time_point(std::chrono::milliseconds(wish.deadline_ms));
  s->cost = wish.prompt + 2.0 * wish.output;
  s->lease = kvcache::Lease(kvcache::blocks_for(s->positions_needed()));
  s->chain = kvcache::HashChain({.model_fingerprint = 1});
  s->chain.reserve(static_cast<size_t>(s->limit));
  s->chain.append(ids);
  s->may_reuse = s->may_publish = wish.shares;
  return s;
}

// Keeps states as a count.
class ShelfKeeper : public StateKeeper {
 public:
  bool has_room(std::span<const std::unique_ptr<Sequence>> sequences) const override {
    return sequences.size() <= static_cast<size_t>(room);
  }
  bool park(Sequence& s) override {
    if (room == 0) return false;
    --room;
    s.parked = true;
    s.state = RequestState::kPreempted;
    parked.push_back(s.control->id);
    return true;
  }
  void begin(Sequence& s, const kvcache::Match& match) override {
    if (s.computed > 0) return;  // it comes back
    s.hit = s.computed = s.granted = static_cast<int32_t>(match.hit_blocks) * kBlockTokens;
  }
  int room = 1000;
  std::vector<uint64_t> parked;
};

struct Memory {
  size_t blocks = 1000, slots = 0;
};

std::unique_ptr<kvcache::CacheManager> cache_of(const Memory& memory) {
  kvcache::CacheSetup setup;
  setup.parts = {{"kv", kvcache::PartFamily::kGlobal, 64}};
  if (memory.slots > 0) setup.parts.push_back({"ring", kvcache::PartFamily::kPrivate, 64});
  setup.n_blocks = memory.blocks;
  setup.n_slots = memory.slots;
  return std::move(*kvcache::CacheManager::create(std::move(setup)));
}

// A scheduler whose steps cost nothing; every token is 1.
class Simulation {
 public:
  explicit Simulation(const SchedulerLimits& limits, const Memory& memory = {})
      : cache(cache_of(memory)), scheduler(limits, *cache, parking) {}

  void add(uint64_t id, const Wish& wish) { scheduler.enqueue(sequence(id, wish)); }
  const StepPlan& plan() { return scheduler.plan(now); }

  // (id, begin, count) of each grant.
  std::vector<std::tuple<uint64_t, int32_t, int32_t>> step() {
    const StepPlan& plan = scheduler.plan(now);
    for (Sequence* s : plan.admitted) started.push_back(s->control->id), s->parked = false;
    std::vector<std::tuple<uint64_t, int32_t, int32_t>> rows;
    for (const Grant& g : plan.grants) {
      rows.emplace_back(g.sequence->control->id, g.begin, g.count);
      served[g.sequence->control->id] += g.count;
    }
    finish(plan);
    return rows;
  }

  void finish(const StepPlan& plan) {
    scheduler.retire(plan, true, now);
    std::vector<Sequence*> ended;
    for (const Grant& g : plan.grants) {
      if (g.sequence == nullptr) continue;
      Sequence& s = *g.sequence;
      if (g.sample) {
        s.tokens.append_sampled(1);
        s.tokens.deliver();
        --s.in_flight;
      }
      if (s.length() == s.limit) ended.push_back(&s);
    }
    for (Sequence* s : ended) {
      done.push_back(s->control->id);
      s->state = RequestState::kDone;
      scheduler.finish(s, now);
    }
  }

  void run() {
    for (int i = 0; i < 100'000 && !scheduler.idle(); ++i) step();
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(free_blocks(), cache->report().blocks_total);
    EXPECT_EQ(cache->report().blocks_reserved, 0u);
    EXPECT_EQ(cache->report().slots_used, 0u);
    EXPECT_TRUE(cache->check()) << cache->check().error().str();
  }

  size_t free_blocks() const { return cache->report().blocks_free + cache->report().blocks_cached; }

  Clock::time_point now{};
  ShelfKeeper parking;
  std::unique_ptr<kvcache::CacheManager> cache;
  Scheduler scheduler;
  std::vector<uint64_t> started, done;
  std::map<uint64_t, int64_t> served;
};

SchedulerLimits limits(size_t running, size_t rows) {
  SchedulerLimits l;
  l.max_running = running;
  l.step_rows = rows;
  l.step_logit_rows = std::max(running, rows);
  return l;
}

// ---------------------------------------------------------------- order

TEST(Scheduler, ClassesThenDeadlineThenArrival) {
  Simulation s(limits(1, 64));
  s.add(1, {.request_class = RequestClass::kBatch});
  s.add(2, {.request_class = RequestClass::kAgent});
  s.add(3, {});
  s.add(4, {.deadline_ms = 50});
  s.add(5, {.deadline_ms = 20});
  s.add(6, {.request_class = RequestClass::kAgent, .deadline_ms = 90});
  s.run();
  EXPECT_THAT(s.started, ElementsAre(5, 4, 3, 6, 2, 1));
}

TEST(Scheduler, KeysOfOneClassShareByCost) {
  Simulation s(limits(1, 64));
  // Ten of "busy" came first; "rare" comes with two. Equal costs: they alternate.
  for (uint64_t id = 1; id <= 10; ++id) s.add(id, {.key = "busy"});
  s.add(11, {.key = "rare"});
  s.add(12, {.key = "rare"});
  s.run();
  EXPECT_THAT(std::vector(s.started.begin(), s.started.begin() + 5), ElementsAre(1, 11, 2, 12, 3));
}

TEST(Scheduler, WeightsAreProportions) {
  Simulation s(limits(1, 64), {.blocks = 100'000});
  for (uint64_t id = 0; id < 400; ++id) {
    s.add(1000 + id, {.key = "three", .weight = 3});
    s.add(2000 + id, {.key = "one"});
  }
  while (s.started.size() < 400) s.step();
  int64_t three = 0, one = 0;
  for (const auto& [id, rows] : s.served) (id < 2000 ? three : one) += rows;
  EXPECT_NEAR(static_cast<double>(three) / static_cast<double>(one), 3.0, 0.05);
}

TEST(Scheduler, LargeRequestsPayForTheirSize) {
  Simulation s(limits(1, 640));
  for (uint64_t id = 1; id <= 3; ++id) s.add(id, {.prompt = 640, .key = "large"});
  for (uint64_t id = 11; id <= 30; ++id) s.add(id, {.prompt = 64, .key = "small"});
  s.run();
  // One large prompt costs as much as ten small ones.
  EXPECT_EQ(s.started[0], 1u);
  const auto second = std::find(s.started.begin(), s.started.end(), 2u) - s.started.begin();
  EXPECT_GE(second, 10);
  EXPECT_LE(second, 12);
}

// A key that was away neither saved up turns, nor waits behind what a busy key has been given.
TEST(Scheduler, AKeyThatComesBackStartsAtThePresent) {
  Simulation s(limits(1, 64));
  s.add(1, {.key = "away"});
  s.run();
  for (uint64_t id = 10; id < 40; ++id) s.add(id, {.key = "busy"});
  for (int i = 0; i < 15; ++i) s.step();
  for (uint64_t id = 100; id < 110; ++id) s.add(id, {.key = "away"});
  s.started.clear();
  for (int i = 0; i < 8; ++i) s.step();
  const auto away =
      std::count_if(s.started.begin(), s.started.end(), [](auto id) { return id >= 100; });
  EXPECT_EQ(away, 4);
  s.run();
}

// More ever new keys than the machine can serve: one that has been served once gets its next turn
// all the same, when those that were there had theirs.
TEST(Scheduler, KeysThatNobodyHasSeenDoNotStarveThoseThatCameBack) {
  for (const size_t places : {1u, 3u}) {
    Simulation s(limits(places, 64));
    uint64_t id = 100;
    const auto crowd = [&] {
      while (s.scheduler.waiting().size() < 20) s.add(++id, {.key = std::to_string(id)});
    };
    s.add(1, {.key = "returns"});
    crowd();
    while (s.done.empty()) s.step();
    s.add(2, {.key = "returns"});
    int steps = 0;
    for (; steps < 1000 && std::ranges::count(s.done, 2u) == 0; ++steps) s.step(), crowd();
    EXPECT_LE(steps, 2 * (20 + static_cast<int>(places)) + 4) << places;
    s.run();
  }
}

// With room for all, the order of prompts is the fair one too: the late small key does not wait for
// a hundred prompts that were admitted before.
TEST(Scheduler, RunningPromptsAreServedFairly) {
  Simulation s(limits(200, 256));
  for (uint64_t id = 1; id <= 100; ++id) s.add(id, {.prompt = 640, .key = "busy"});
  s.step();
  s.add(500, {.prompt = 64, .key = "late"});
  int steps = 0;
  while (std::find(s.done.begin(), s.done.end(), 500u) == s.done.end()) s.step(), ++steps;
  EXPECT_LE(steps, 8);
  s.run();
}

TEST(Scheduler, ForgetsKeys) {
  Simulation s(limits(4, 256));
  for (uint64_t id = 1; id <= 5000; ++id) {
    s.add(id, {.key = "key " + std::to_string(id)});
    s.run();
  }
  EXPECT_LE(s.scheduler.waiting().keys(), 1u);
  // Nor does it remember those of others while one goes on.
  s.add(9000, {.output = 20'000, .key = "long"});
  for (uint64_t id = 1; id <= 5000; ++id) {
    s.add(id, {.key = "key " + std::to_string(id)});
    s.step(), s.step();
  }
  EXPECT_LE(s.scheduler.waiting().keys(), 4096u);
}

// ---------------------------------------------------------------- budgets

TEST(Scheduler, ALongPromptDoesNotHoldUpDecoding) {
  SchedulerLimits l = limits(4, 512);
  l.step_attention = 512 * 1000;
  Simulation s(l, {.blocks = 100'000});
  s.add(1, {.prompt = 10, .output = 10'000});
  s.step();
  s.add(2, {.prompt = 100'000, .output = 1});
  int64_t position = 0;
  while (position < 100'000) {
    const auto rows = s.step();
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(std::get<0>(rows[0]), 1u);  // decode first, and always
    EXPECT_EQ(std::get<2>(rows[0]), 1);
    const auto [id, begin, count] = rows[1];
    ASSERT_EQ(begin, position);
    const int64_t looks = int64_t{count} * begin + int64_t{count} * (count + 1) / 2;
    if (count > 16) {
      EXPECT_LE(looks, l.step_attention);
    }
    EXPECT_GE(count, std::min<int64_t>(16, 100'000 - position));  // it always gets on
    // As much as the budget holds.
    if (count > 16 && count < 511 && position + count < 100'000) {
      EXPECT_GT(looks + begin + count + 1, l.step_attention);
    }
    position += count;
  }
}

TEST(Scheduler, WithoutAnAttentionBudgetRowsAreTheOnlyLimit) {
  SchedulerLimits l = limits(4, 512);
  l.step_attention = std::numeric_limits<int64_t>::max();
  Simulation s(l);
  s.add(1, {.prompt = 5000});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(std::get<2>(s.step()[0]), 512);
}

TEST(Scheduler, PromptsShareTheAttentionBudgetInOrder) {
  SchedulerLimits l = limits(4, 512);
  l.step_attention = 100 * 101 / 2 + 6;
  Simulation s(l);
  s.add(1, {.prompt = 100});
  s.add(2, {.prompt = 100});
  s.add(3, {.prompt = 100});
  using R = std::tuple<uint64_t, int32_t, int32_t>;
  EXPECT_THAT(s.step(), ElementsAre(R(1, 0, 100), R(2, 0, 3)));
}

// ---------------------------------------------------------------- stepping aside

TEST(Scheduler, LowerClassesStepAsideFromTheBackAndComeBackFirst) {
  Simulation s(limits(3, 192));
  s.add(1, {.output = 50, .request_class = RequestClass::kBatch});
  s.add(2, {.output = 50, .request_class = RequestClass::kBatch});
  s.add(3, {.output = 50, .request_class = RequestClass::kAgent});
  s.add(4, {.output = 50, .request_class = RequestClass::kBatch});  // waits
  for (int i = 0; i < 3; ++i) s.step();
  EXPECT_THAT(s.started, ElementsAre(3, 1, 2));
  s.add(5, {.output = 5});
  s.step();
  EXPECT_THAT(s.parking.parked, ElementsAre(2));
  EXPECT_EQ(s.started.back(), 5u);
  s.add(6, {.output = 5, .request_class = RequestClass::kAgent});
  s.step();
  EXPECT_THAT(s.parking.parked, ElementsAre(2, 1));
  s.add(7, {.output = 5, .request_class = RequestClass::kAgent});  // of no lower class than 3
  s.step();
  EXPECT_THAT(s.parking.parked, ElementsAre(2, 1));
  s.run();
  EXPECT_THAT(s.started, ElementsAre(3, 1, 2, 5, 6, 7, 1, 2, 4));
}

TEST(Scheduler, NobodyStepsAsideInVain) {
  Simulation s(limits(8, 512), {.blocks = 10});
  s.add(1, {.prompt = 64 * 6, .output = 60, .request_class = RequestClass::kAgent});
  s.add(2, {.prompt = 64 * 2, .output = 60, .request_class = RequestClass::kBatch});
  s.step();
  // Needs eight blocks; the batch request holds three, which is not enough while the agent runs.
  s.add(3, {.prompt = 64 * 8, .request_class = RequestClass::kAgent});
  const StepPlan& plan = s.plan();
  EXPECT_TRUE(s.parking.parked.empty());
  EXPECT_TRUE(s.scheduler.blocked());
  s.finish(plan);
  s.run();
}

TEST(Scheduler, WithoutRoomToParkTheyStay) {
  Simulation s(limits(1, 64));
  s.parking.room = 0;
  s.add(1, {.output = 20, .request_class = RequestClass::kBatch});
  s.step();
  s.add(2, {});
  s.step();
  EXPECT_TRUE(s.parking.parked.empty());
  s.run();
  EXPECT_THAT(s.done, ElementsAre(1, 2));
}

// Nor is anybody held up for it, a step ahead, or parked beside others who have no room.
TEST(Scheduler, WithoutRoomToParkTheyAreNotHeldUp) {
  Simulation s(limits(2, 64));
  s.parking.room = 1;
  for (const uint64_t id : {1u, 2u})
    s.add(id, {.output = 20, .request_class = RequestClass::kBatch});
  s.step(), s.step();
  s.add(3, {.prompt = 64 * 999});  // both would have to go
  const StepPlan* last = &s.plan();
  for (int i = 0; i < 10; ++i) {
    const StepPlan& plan = s.plan();
    EXPECT_EQ(plan.rows, 2u);
    s.finish(*last);
    last = &plan;
  }
  EXPECT_TRUE(s.parking.parked.empty());
  s.finish(*last);
  s.run();
}

// A step ahead: the victim has a row in flight, so it gets no more and steps aside one plan later.
TEST(Scheduler, AVictimWithARowInFlightStepsAsideOneStepLater) {
  Simulation s(limits(1, 64));
  s.add(1, {.output = 20, .request_class = RequestClass::kBatch});
  s.step();
  const StepPlan& first = s.plan();
  s.add(2, {});
  const StepPlan& second = s.plan();
  EXPECT_EQ(second.rows, 0u);
  EXPECT_TRUE(s.parking.parked.empty());
  s.finish(first);
  s.finish(second);
  s.step();
  EXPECT_THAT(s.parking.parked, ElementsAre(1));
  s.run();
}

// ---------------------------------------------------------------- a step ahead

TEST(Scheduler, AStepAheadIsPlannedFromUpperBounds) {
  Simulation s(limits(2, 64));
  s.add(1, {.prompt = 60, .output = 10});
  const StepPlan& a = s.plan();
  const StepPlan& b = s.plan();  // its first token is not known yet
  ASSERT_EQ(b.grants.size(), 1u);
  EXPECT_EQ(b.grants[0].begin, 60);
  EXPECT_TRUE(b.grants[0].sample);
  Sequence* one = b.grants[0].sequence;
  // It ends with its first token: blocks are held until the second step is retired.
  s.scheduler.retire(a, true, s.now);
  one->tokens.append_sampled(1);
  one->tokens.deliver();
  one->state = RequestState::kDone;
  s.scheduler.finish(one, s.now);
  EXPECT_LT(s.free_blocks(), s.cache->report().blocks_total);
  EXPECT_FALSE(s.scheduler.idle());
  s.scheduler.retire(b, true, s.now);
  EXPECT_EQ(b.grants[0].sequence, nullptr);
  s.run();
}

TEST(Scheduler, WithdrawnRowsLeaveNothingBehind) {
  Simulation s(limits(2, 64));
  s.add(1, {.prompt = 30, .output = 10});
  s.add(2, {.prompt = 30, .output = 10});
  const StepPlan& a = s.plan();
  const StepPlan& b = s.plan();
  Sequence* one = a.grants[0].sequence;
  s.scheduler.retire(a, true, s.now);
  s.scheduler.withdraw(*one, b);
  EXPECT_EQ(b.rows, 1u);
  EXPECT_EQ(b.logit_rows, 1u);
  ASSERT_EQ(b.grants.size(), 1u);
  EXPECT_NE(b.grants[0].sequence, one);
  EXPECT_EQ(one->granted, 30);
  EXPECT_EQ(one->in_flight, 1);
  one->state = RequestState::kDone;
  const size_t before = s.free_blocks();
  s.scheduler.finish(one, s.now);
  EXPECT_GT(s.free_blocks(), before);  // at once: no row of it is in flight
  Sequence* two = b.grants[0].sequence;
  two->tokens.append_sampled(1), two->tokens.deliver(), --two->in_flight;
  s.finish(b);
  s.run();
}

// ---------------------------------------------------------------- anything goes

TEST(Scheduler, RandomLoadsEndWithNothingHeld) {
  const uint64_t base = testing::test_seed();
  for (uint64_t round = 0; round < 40; ++round) {
    std::mt19937_64 rng(base + round);
    SchedulerLimits l = limits(1 + rng() % 8, 8 + rng() % 200);
    l.step_attention = static_cast<int64_t>(1 + rng() % 20'000);
    Simulation s(l, {.blocks = 8 + rng() % 30, .slots = rng() % 2 == 0 ? 0 : l.max_running});
    s.parking.room = static_cast<int>(rng() % 20);
    uint64_t id = 0;
    while (id < 60 || !s.scheduler.idle()) {
      if (id < 60 && rng() % 2 == 0)
        s.add(++id, {.prompt = static_cast<int32_t>(1 + rng() % 300),
                     .output = static_cast<int32_t>(1 + rng() % 100),
                     .request_class = static_cast<RequestClass>(rng() % 3),
                     .key = std::string(1, static_cast<char>('a' + rng() % 4)),
                     .deadline_ms = static_cast<int64_t>(rng() % 5),
                     .shares = rng() % 2 == 0});
      if (s.scheduler.idle()) continue;
      const auto rows = s.step();
      ASSERT_FALSE(rows.empty()) << "seed " << base + round;
      if (rng() % 10 == 0 && !s.scheduler.running().empty())
        s.scheduler.preempt(s.scheduler.running()[rng() % s.scheduler.running().size()].get(),
                            s.now);
    }
    EXPECT_EQ(s.done.size(), 60u);
    s.run();
  }
}

TEST(Scheduler, PlansAllocateNothing) {
  Simulation s(limits(256, 512), {.blocks = 100'000});
  for (uint64_t id = 0; id < 256; ++id) s.add(id, {.prompt = 8, .output = 3000});
  for (int i = 0; i < 10; ++i) s.step();
  for (int i = 0; i < 300; ++i) {
    const uint64_t before = testing::allocations();
    const StepPlan& plan = s.plan();
    s.scheduler.retire(plan, true, s.now);
    ASSERT_EQ(testing::allocations(), before);
    for (const Grant& g : plan.grants)
      g.sequence->tokens.append_sampled(1), g.sequence->tokens.deliver(), --g.sequence->in_flight;
  }
}

// ---------------------------------------------------------------- one computes, others follow

TEST(Scheduler, ManyBehindOnePromptComputeItOnce) {
  Simulation s(limits(16, 512));
  for (uint64_t id = 1; id <= 16; ++id) s.add(id, {.prompt = 2000, .output = 30, .shares = true});
  s.run();
  int64_t rows = 0;
  for (const auto& [id, n] : s.served) rows += n;
  // One prompt, what no block holds of the others (2000 = 31 blocks + 16), and the replies.
  EXPECT_EQ(rows, 2000 + 15 * 16 + 16 * 29);
}

TEST(Scheduler, FollowersGoOnWhenTheirLeaderLeaves) {
  Simulation s(limits(4, 100));
  for (uint64_t id = 1; id <= 3; ++id) s.add(id, {.prompt = 1000, .output = 5, .shares = true});
  s.step(), s.step();
  EXPECT_EQ(s.served[2], 0);
  Sequence* leader = s.scheduler.running()[0].get();
  leader->state = RequestState::kDone;
  s.scheduler.finish(leader, s.now);
  s.step();
  EXPECT_EQ(s.scheduler.running()[0]->hit, 192);  // three blocks were there
  EXPECT_GT(s.served[2], 0);
  EXPECT_EQ(s.served[3], 0);  // follows the next
  ASSERT_TRUE(s.scheduler.preempt(s.scheduler.running()[0].get(), s.now));
  s.run();
  EXPECT_EQ(s.done.size(), 2u);
}

// ---------------------------------------------------------------- states

TEST(RequestState, OnlyLawfulSteps) {
  using S = RequestState;
  for (int from = 0; from < kRequestStates; ++from) {
    EXPECT_FALSE(may_follow(static_cast<S>(from), static_cast<S>(from)));
    EXPECT_FALSE(may_follow(S::kDone, static_cast<S>(from)));
    const bool ends = from == static_cast<int>(S::kDraining) ||
                      from == static_cast<int>(S::kAborting) || from == static_cast<int>(S::kDone);
    EXPECT_EQ(may_follow(static_cast<S>(from), S::kAborting), !ends);
  }
  EXPECT_FALSE(may_follow(S::kQueued, S::kDecode));
  EXPECT_FALSE(may_follow(S::kPreempted, S::kDecode));
  Sequence s;
  EXPECT_FALSE(s.move_to(S::kDecode));
  EXPECT_EQ(s.state, S::kQueued);
  EXPECT_TRUE(s.move_to(S::kMatching));
  EXPECT_TRUE(s.move_to(S::kPrefill));
  EXPECT_TRUE(s.move_to(S::kDecode));
  EXPECT_TRUE(s.move_to(S::kPreempted));
  EXPECT_TRUE(s.move_to(S::kMatching));
}

// ---------------------------------------------------------------- when will it be its turn

TEST(CostModel, FindsBaseAndSlope) {
  using namespace std::chrono_literals;
  CostModel model;
  EXPECT_EQ(model.seconds(100, 1), 0);
  for (int i = 0; i < 200; ++i) {
    const int work = 1 + i * 37 % 500;
    model.observe(work, 3ms + work * 20us);
  }
  EXPECT_NEAR(model.seconds(0, 1), 3e-3, 1e-5);
  EXPECT_NEAR(model.seconds(1, 0), 20e-6, 1e-7);
  const double before = model.seconds(100, 1);
  model.observe(100, -5s);  // the clock jumped back
  model.observe(0, 1s);
  EXPECT_EQ(model.seconds(100, 1), before);
  CostModel same;
  for (int i = 0; i < 10; ++i) same.observe(50, 10ms);
  EXPECT_NEAR(same.seconds(100, 2), 20e-3, 1e-9);
}

QueueModel queue_model(int64_t waiting = 10, int first_ms = 1000) {
  QueueModel::Options o;
  o.max_waiting = waiting;
  o.max_running = 4;
  o.step_rows = 100;
  o.first_token = {std::chrono::milliseconds(first_ms), std::chrono::milliseconds(0),
                   std::chrono::milliseconds(first_ms)};
  return QueueModel(o);
}

TEST(QueueModel, RefusesWhatWouldComeTooLate) {
  using namespace std::chrono_literals;
  QueueModel q = queue_model();
  q.report({.prefill_work = {}, .decode_rows = 0, .free_places = 4});
  for (int i = 0; i < 20; ++i) q.step_took(100, 100ms);
  // A lone request is taken however long it is.
  EXPECT_TRUE(q.enter(RequestClass::kInteractive, 5000));
  // 5 s of work are ahead of the next.
  const auto refused = q.enter(RequestClass::kInteractive, 100);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NEAR(refused.error().retry_after_s, 5, 1.01);
  EXPECT_NEAR(q.predicted_first_token(RequestClass::kInteractive, 100), 5.1, 0.1);
  EXPECT_TRUE(q.enter(RequestClass::kAgent, 100));  // no limit of its own
  EXPECT_TRUE(q.enter(RequestClass::kBatch, 100));  // best effort, whatever was set
  q.leave(RequestClass::kInteractive, 5000);
  // What waits in lower classes is not ahead.
  EXPECT_TRUE(q.enter(RequestClass::kInteractive, 100));
  EXPECT_EQ(q.waiting(), 3);
}

TEST(QueueModel, PlacesCountToo) {
  using namespace std::chrono_literals;
  QueueModel q = queue_model();
  for (int i = 0; i < 20; ++i) q.step_took(100, 1ms);
  for (int i = 0; i < 5; ++i) q.finished(RequestClass::kInteractive, 40, 8s);
  q.report({.prefill_work = {}, .decode_rows = 4, .free_places = 0});
  // Four places, each held for 8 s: one is free every 2 s.
  EXPECT_NEAR(q.predicted_first_token(RequestClass::kInteractive, 10), 2, 0.1);
  EXPECT_NEAR(q.expected_output(RequestClass::kInteractive, 1000), 40, 1);
  EXPECT_EQ(q.expected_output(RequestClass::kInteractive, 7), 7);
}

TEST(QueueModel, AFullQueueSaysWhenToComeAgain) {
  using namespace std::chrono_literals;
  QueueModel q = queue_model(3);
  for (int i = 0; i < 20; ++i) q.step_took(100, 100ms);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(q.enter(RequestClass::kBatch, 4000));
  const auto refused = q.enter(RequestClass::kBatch, 1);
  ASSERT_FALSE(refused);
  EXPECT_NEAR(refused.error().retry_after_s, 6, 1.01);  // half of the 12 s that the queue takes
  q.leave(RequestClass::kBatch, 4000);
  EXPECT_TRUE(q.enter(RequestClass::kBatch, 1));
  QueueModel fresh = queue_model(1);
  EXPECT_TRUE(fresh.enter(RequestClass::kBatch, 1));
  EXPECT_EQ(fresh.enter(RequestClass::kBatch, 1).error().retry_after_s, 1);
}

}  // namespace
}  // namespace deepmint
