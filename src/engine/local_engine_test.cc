// The engine's thread: callers on many threads, cancellation, draining, sleeping.
#include "engine/local_engine.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <future>
#include <thread>

#include "engine/engine_testing.h"
#include "support/test_seed.h"

namespace deepmint {
namespace {

using namespace std::chrono_literals;
using testing::answer_alone;
using testing::CollectingSink;
using testing::fake_loaded;
using testing::FakeModel;
using testing::random_request;
using testing::simple;
using testing::Submitted;

constexpr int32_t kContext = 256;

EngineConfig config(int32_t max_running = 4, int32_t step_tokens = 32) {
  EngineConfig c;
  c.max_running = max_running;
  c.step_tokens = step_tokens;
  c.context_tokens = kContext;
  c.kv_bytes = 1 << 16;
  return c;
}

std::unique_ptr<LocalEngine> engine_of(const std::shared_ptr<FakeModel>& model,
                                       const EngineConfig& c = config(), int threads = 1,
                                       const Clock& clock = Clock::steady()) {
  auto made = LocalEngine::create(fake_loaded(model, threads), c, clock);
  if (!made) throw std::runtime_error(made.error().str());
  return std::move(*made);
}

void expect_all_free(const Engine& engine) {
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.running, 0);
  EXPECT_EQ(s.waiting, 0);
  EXPECT_EQ(s.blocks_free, s.blocks_total);
}

// A model whose forward stops at a gate, so that a test can act while a step is in flight.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || permits_ > 0; });
    if (!open_) --permits_;
  }
  void wait_arrived(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, count] { return arrived_ >= count; });
  }
  void let(int count) {
    const std::lock_guard lock(mutex_);
    permits_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0, permits_ = 0;
  bool open_ = false;
};

std::shared_ptr<FakeModel> gated(const std::shared_ptr<Gate>& gate) {
  FakeModel::Options o;
  o.on_forward = [gate](const StepInput&) { gate->pass(); };
  return std::make_shared<FakeModel>(o);
}

TEST(LocalEngine, CallersOnManyThreads) {
  const uint64_t base = testing::test_seed();
  for (const int threads : {1, 2}) {
    const auto model = std::make_shared<FakeModel>();
    auto engine = engine_of(model, config(5, 40), threads);
    std::vector<std::future<void>> callers;
    for (uint64_t caller = 0; caller < 4; ++caller)
      callers.push_back(std::async(std::launch::async, [&, caller] {
        std::mt19937_64 rng(base + caller);
        for (int i = 0; i < 12; ++i) {
          Submitted s{random_request(rng, 97, 60, 30), std::make_shared<CollectingSink>(), nullptr};
          const auto ticket = engine->submit(s.request, s.sink);
          ASSERT_TRUE(ticket.has_value());
          const bool cancel = rng() % 4 == 0;
          if (cancel) (*ticket)->cancel();
          s.sink->wait();
          const auto expected = answer_alone(*model, s.request, kContext);
          if (s.sink->finish()->reason == FinishReason::kCancelled) {
            ASSERT_TRUE(cancel);
            expect_beginning(s, expected, "cancelled");
          } else {
            expect_answer(s, expected, "threaded");
          }
        }
      }));
    for (auto& c : callers) c.get();
    engine->drain(1min);
    expect_all_free(*engine);
    EXPECT_EQ(model->damaged(), 0) << model->damage();
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.finished + stats.cancelled, 48);
  }
}

TEST(LocalEngine, ANewRequestJoinsAtTheNextStep) {
  const auto gate = std::make_shared<Gate>();
  const auto model = gated(gate);
  auto engine = engine_of(model);
  auto first = std::make_shared<CollectingSink>(), second = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(simple(20, 50), first));
  gate->wait_arrived(1);  // the first step is in flight
  ASSERT_TRUE(engine->submit(simple(5, 3), second));
  gate->let(2);  // the rest of it, and one more
  second->wait_tokens(1);
  EXPECT_LE(first->tokens().size(), 2u);
  gate->open();
  first->wait();
  EXPECT_EQ(second->tokens().size(), 3u);
}

TEST(LocalEngine, CancelTakesEffectWithinOneStep) {
  const auto gate = std::make_shared<Gate>();
  const auto model = gated(gate);
  auto engine = engine_of(model);
  auto sink = std::make_shared<CollectingSink>();
  const auto ticket = engine->submit(simple(20, 50), sink).value();
  gate->wait_arrived(1);
  gate->let(3);
  gate->wait_arrived(4);  // three steps are done, the fourth is in flight
  EXPECT_EQ(sink->tokens().size(), 3u);
  ticket->cancel();
  ticket->cancel();
  gate->let(1);
  EXPECT_EQ(sink->wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(sink->tokens().size(), 3u);
  EXPECT_EQ(model->steps(), 4);
  ticket->cancel();  // after the end: nothing
  gate->open();
  auto after = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(simple(), after));
  EXPECT_EQ(after->wait().reason, FinishReason::kLength);
  EXPECT_EQ(sink->finishes(), 1);
}

TEST(LocalEngine, QueueFullAndRefusalsNeverCallTheSink) {
  const auto gate = std::make_shared<Gate>();
  EngineConfig c = config(1);
  c.max_waiting = 2;
  auto engine = engine_of(gated(gate), c);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  const auto submit = [&](const GenerationRequest& r) {
    sinks.push_back(std::make_shared<CollectingSink>());
    return engine->submit(r, sinks.back());
  };
  ASSERT_TRUE(submit(simple()));
  gate->wait_arrived(1);  // runs
  ASSERT_TRUE(submit(simple()));
  ASSERT_TRUE(submit(simple()));
  EXPECT_EQ(submit(simple()).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(submit(simple(kContext + 1)).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(submit(simple(0)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->stats().refused, 3);
  gate->open();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sinks[i]->wait().reason, FinishReason::kLength);
  engine->drain(1min);
  EXPECT_EQ(submit(simple()).error().code, ErrorCode::kUnavailable);
  for (size_t i = 3; i < sinks.size(); ++i) EXPECT_FALSE(sinks[i]->finished());
}

TEST(LocalEngine, DrainLetsRunningAndQueuedRequestsFinish) {
  const auto gate = std::make_shared<Gate>();
  const auto model = gated(gate);
  auto engine = engine_of(model, config(1));
  auto running = std::make_shared<CollectingSink>(), queued = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(simple(), running));
  ASSERT_TRUE(engine->submit(simple(), queued));
  gate->wait_arrived(1);
  auto drained = std::async(std::launch::async, [&] { engine->drain(1h); });
  gate->open();
  drained.get();
  EXPECT_EQ(running->finish()->reason, FinishReason::kLength);
  EXPECT_EQ(queued->finish()->reason, FinishReason::kLength);
  expect_all_free(*engine);
  engine->drain(1h);  // again: nothing to do
}

TEST(LocalEngine, DrainCancelsAtItsDeadline) {
  ManualClock clock;
  FakeModel::Options o;
  o.on_forward = [&clock](const StepInput&) { clock.advance(1ms); };  // a step takes a millisecond
  const auto model = std::make_shared<FakeModel>(o);
  EngineConfig c = config(1);
  auto engine = engine_of(model, c, 1, clock);
  auto endless = std::make_shared<CollectingSink>();
  GenerationRequest r = simple(10, -1);
  ASSERT_TRUE(engine->submit(r, endless));
  endless->wait_tokens(1);
  engine->drain(20ms);
  EXPECT_TRUE(endless->finished());
  EXPECT_TRUE(endless->finish()->reason == FinishReason::kCancelled ||
              endless->tokens().size() > 200);
  expect_all_free(*engine);
}

TEST(LocalEngine, DestructionCancelsWhatIsLeft) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::shared_ptr<Ticket> survivor;
  {
    auto engine = engine_of(std::make_shared<FakeModel>(), config(2));
    for (int i = 0; i < 6; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      survivor = engine->submit(simple(20, -1), sinks.back()).value();
    }
    sinks[0]->wait_tokens(2);
  }
  for (const auto& s : sinks) EXPECT_EQ(s->finishes(), 1);
  survivor->cancel();  // a ticket outlives its engine
}

// A sink may submit, cancel and ask for statistics.
TEST(LocalEngine, SinksMayCallBack) {
  const auto model = std::make_shared<FakeModel>();
  auto engine = engine_of(model);
  auto sink = std::make_shared<CollectingSink>(), follower = std::make_shared<CollectingSink>();
  std::promise<std::shared_ptr<Ticket>> own;
  auto ticket = own.get_future().share();
  sink->hook = [&](const TokenEvent& e) {
    if (e.position == 21) {
      EXPECT_TRUE(engine->submit(simple(8, 4), follower));
      EXPECT_EQ(engine->stats().blocks_total, engine->stats().blocks_total);
    }
    if (e.position == 23) ticket.get()->cancel();
  };
  own.set_value(engine->submit(simple(20, 50), sink).value());
  EXPECT_EQ(sink->wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(sink->tokens().size(), 4u);
  EXPECT_EQ(follower->wait().reason, FinishReason::kLength);
}

TEST(LocalEngine, SavedOnOneEngineResumedOnAnother) {
  const auto gate = std::make_shared<Gate>();
  const auto model = gated(gate);
  auto from = engine_of(model);
  const GenerationRequest r = simple(30, 220);
  const auto whole = answer_alone(*model, r, kContext);
  auto sink = std::make_shared<CollectingSink>();
  const auto ticket = from->submit(r, sink).value();
  gate->let(4);
  gate->wait_arrived(5);
  auto saving = std::async(std::launch::async, [&] { return from->export_state(ticket->id()); });
  // A step at a time until the engine has seen the call: on a busy machine the caller may start
  // late, and an open gate would let the whole reply go by first.
  while (saving.wait_for(20ms) != std::future_status::ready) gate->let(1);
  gate->open();
  auto state = saving.get();
  ASSERT_TRUE(state.has_value()) << state.error().str();
  auto to = engine_of(std::make_shared<FakeModel>(), config(2, 8), 2);
  auto twin = std::make_shared<CollectingSink>();
  ASSERT_TRUE(to->resume(r, *state, twin));
  twin->wait();
  sink->wait();
  EXPECT_EQ(sink->ids(), whole.ids);
  const auto rest = twin->ids();
  ASSERT_GE(rest.size(), 100u);
  EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), whole.ids.rbegin()));
  EXPECT_EQ(from->export_state(ticket->id()).error().code, ErrorCode::kNotFound);
}

// CPU time of the whole process over 60 ms of having nothing to do.
TEST(LocalEngine, SleepsWhenIdle) {
  auto engine = engine_of(std::make_shared<FakeModel>(), config(), 2);
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine->submit(simple(), sink));
  sink->wait();
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  engine->drain(1min);
  const auto before = cpu();
  std::this_thread::sleep_for(60ms);
  EXPECT_LT(cpu() - before, 20ms);
}

TEST(LocalEngine, NamesOfFinishReasons) {
  EXPECT_EQ(to_string(FinishReason::kStop), "stop");
  EXPECT_EQ(to_string(FinishReason::kLength), "length");
  EXPECT_EQ(to_string(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(to_string(FinishReason::kDeadline), "deadline");
  EXPECT_EQ(to_string(FinishReason::kError), "error");
}

TEST(LocalEngine, InfoSaysWhatRuns) {
  auto made = make_engine(fake_loaded(std::make_shared<FakeModel>(), 2), config());
  ASSERT_TRUE(made.has_value());
  const EngineInfo& info = (*made)->info();
  EXPECT_EQ(info.architecture, "fake");
  EXPECT_EQ(info.vocab_size, 97);
  EXPECT_EQ(info.context_tokens, kContext);
  EXPECT_EQ(info.max_running, 4);
  EXPECT_EQ(info.threads, 2);
  EXPECT_GT(info.kv_bytes, 0);
  EXPECT_FALSE(info.isa.empty());
}

}  // namespace
}  // namespace deepmint
