// The engine without its thread: admission, plan → execute → apply, events. One thread calls it,
// except where said; LocalEngine is that thread in the product, a test is in tests.
//
//   DEEPMINT_TRY(core, EngineCore::create(loaded, config, clock));
//   DEEPMINT_TRY(sequence, core->prepare(request, sink));      // any thread
//   core->add(std::move(sequence));
//   while (!core->idle()) core->step();
//
// The life of a step and the invariants: docs/engine.md.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/clock.h"
#include "engine/executor.h"
#include "engine/load.h"
#include "engine/memory.h"
#include "engine/queue_model.h"
#include "engine/schedule_log.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"
#include "kvcache/cache_manager.h"

namespace deepmint {

// The places inside a step at which the outside world may have changed. For tests and traces.
enum class StepPoint : uint8_t { kStart, kPlanned, kForwarded, kSampled, kApplied };

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void at(StepPoint point, const StepPlan* plan) = 0;  // plan: null at kStart
};

struct EngineHooks {
  Tap* tap = nullptr;  // sees every sublayer of every step
  StepObserver* observer = nullptr;
  int hash_bits =
      128;  // of a block's identity that are looked at: fewer make collisions, for tests
  ScheduleLog* log = nullptr;        // writes down every call
  const StatePlan* state = nullptr;  // instead of what the budget comes to: replays
  // Makes what runs the steps, instead of the model: simulations.
  std::function<std::unique_ptr<Executor>(const SchedulerLimits&)> make_executor = {};
  // Changes how the cache is set up: simulations.
  std::function<void(kvcache::CacheSetup&)> change_cache = {};
};

class EngineCore : private StateKeeper {
 public:
  static Result<std::unique_ptr<EngineCore>> create(const LoadedModel& loaded,
                                                    const EngineConfig& config, const Clock& clock,
                                                    const EngineHooks& hooks = {});
  ~EngineCore() override;

  const EngineInfo& info() const { return info_; }  // any thread

  // Checks a request and makes a sequence of it. Any thread. Errors as Engine::submit, but for the
  // queue.
  Result<std::unique_ptr<Sequence>> prepare(GenerationRequest request,
                                            std::shared_ptr<EventSink> sink) const;

  // The same for a sequence that export_state() saved, here or elsewhere: it goes on after its last
  // token. The request must be the one that it began with; its seed may be left out. Errors as
  // decode_seq_state, and kInvalidArgument where the two disagree.
  Result<std::unique_ptr<Sequence>> prepare_saved(GenerationRequest request,
                                                  std::vector<std::byte> state,
                                                  std::shared_ptr<EventSink> sink) const;

  // One more place in the waiting queue, or kResourceExhausted with the time after which to try
  // again: it is full, or the first token would come too late. Any thread. add() uses up the place.
  Status take_place(const Sequence& sequence);

  void add(std::unique_ptr<Sequence> sequence);
  bool idle() const { return scheduler_.idle() && in_flight_ == nullptr; }
  void step();

  // Makes a running request step aside now; it comes back by itself. False: no such request runs,
  // or there is no memory to keep its state in. For tests and operators; never changes an answer.
  bool preempt(uint64_t id);

  // Everything still there at this time is cancelled.
  void cancel_all_at(Clock::time_point when);

  // The state of a running sequence, between two steps. kNotFound when no running sequence has this
  // id.
  Result<std::vector<std::byte>> export_state(uint64_t id);

  EngineStats stats() const;
  const Scheduler& scheduler() const { return scheduler_; }
  const kvcache::CacheManager& cache() const { return *cache_; }
  kvcache::CacheManager& cache() { return *cache_; }  // between two steps

 private:
  class Call;
  EngineCore(const LoadedModel& loaded, const EngineConfig& config, const Clock& clock,
             const EngineHooks& hooks, std::unique_ptr<kvcache::CacheManager> cache,
             const SchedulerLimits& limits, uint64_t park_budget, EngineInfo info);

  uint64_t bytes_aside(const Sequence& sequence) const;
  bool has_room(std::span<const std::unique_ptr<Sequence>> sequences) const override;
  bool park(Sequence& sequence) override;
  void begin(Sequence& sequence, const kvcache::Match& match) override;
  void take_snapshot(Sequence& sequence);
  int32_t next_snapshot(const Sequence& sequence) const;
  void observe(StepPoint point, const StepPlan* plan);
  void sweep();
  void admitted(const StepPlan& plan);
  void start(Sequence& sequence);
  void move(Sequence& sequence, RequestState next);
  void step_alone();
  void step_ahead();
  void settle(const StepPlan& plan, const StepResult& result, const StepPlan* next);
  void apply(const StepPlan& plan, const StepResult& result);
  void deliver(const Grant& grant, size_t index, const SampleOutcome* outcome);
  void deliver_token(Sequence& sequence, const SampleOutcome& outcome);
  void retire(Sequence* sequence);
  void quiesce();
  void notice_cancelled(Sequence& sequence, bool before_plan);
  void report_load();
  double work(int32_t begin, int32_t count) const;
  std::vector<std::byte> encode(Sequence& sequence, int32_t computed) const;

  std::shared_ptr<Model> model_;
  const Clock& clock_;
  const EngineHooks hooks_;
  EngineInfo info_;
  const std::chrono::milliseconds max_queue_;
  const double work_per_position_;  // row equivalents of one position that a row looks at
  const uint64_t park_budget_;
  const uint64_t layout_;  // fingerprint of the state parts
  std::unique_ptr<kvcache::CacheManager> cache_;
  const bool snapshots_;
  std::vector<PartMemory> state_;
  Scheduler scheduler_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StepRunner> runner_;           // null: steps are not planned ahead
  const StepPlan* in_flight_ = nullptr;          // what the runner runs
  std::optional<Clock::time_point> step_ended_;  // the last one; none since somebody was there
  QueueModel queue_;
  Clock::time_point now_;  // read once per call: that of everything that happens in it
  uint64_t calls_ = 0;
  std::optional<Clock::time_point> cancel_all_at_;
  std::vector<Sequence*> ending_;  // scratch
  mutable std::atomic<uint64_t> next_id_{1};
  EngineStats stats_;
};

}  // namespace deepmint
