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
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/clock.h"
#include "engine/executor.h"
#include "engine/load.h"
#include "engine/scheduler.h"
#include "kvcache/state_arena.h"

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
};

class EngineCore {
 public:
  static Result<std::unique_ptr<EngineCore>> create(const LoadedModel& loaded,
                                                    const EngineConfig& config, const Clock& clock,
                                                    const EngineHooks& hooks = {});
  ~EngineCore();

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

  // One more place in the waiting queue, or false: it is full. Any thread. add() uses up the place.
  bool take_place();

  void add(std::unique_ptr<Sequence> sequence);
  bool idle() const { return scheduler_.idle(); }
  void step();

  // Everything still there at this time is cancelled.
  void cancel_all_at(Clock::time_point when) { cancel_all_at_ = when; }

  // The state of a running sequence, between two steps. kNotFound when no running sequence has this
  // id.
  Result<std::vector<std::byte>> export_state(uint64_t id) const;

  EngineStats stats() const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  EngineCore(const LoadedModel& loaded, const EngineConfig& config, const Clock& clock,
             const EngineHooks& hooks, kvcache::StateArena arena, const SchedulerLimits& limits,
             EngineInfo info);

  void observe(StepPoint point, const StepPlan* plan);
  void sweep(Clock::time_point now);
  void start(Sequence& sequence);
  void apply(const StepPlan& plan, const Status& forward, std::span<const SampleOutcome> outcomes);
  void deliver(const Grant& grant, size_t index, const SampleOutcome* outcome);
  void deliver_token(Sequence& sequence, const SampleOutcome& outcome);
  void retire(Sequence* sequence);

  std::shared_ptr<Model> model_;
  const Clock& clock_;
  const EngineHooks hooks_;
  EngineInfo info_;
  const int64_t max_waiting_;
  kvcache::StateArena arena_;
  Scheduler scheduler_;
  Executor executor_;
  std::optional<Clock::time_point> cancel_all_at_;
  std::vector<Sequence*> ending_;   // scratch
  std::atomic<int64_t> queued_{0};  // prepared and not admitted
  mutable std::atomic<uint64_t> next_id_{1};
  EngineStats stats_;
};

}  // namespace deepmint
