// Runs one step on a thread of its own while the engine's thread goes on. A step is two halves: the
// forward pass, which starts at once, and sampling, which waits until it is told that the masks are
// there. So nothing is ever sampled without its mask.
//
//   runner.start(plan);            // executor.prepare(plan) has been called
//   ...                            // events of the step before, plans
//   executor.masks(plan); runner.sample();
//   StepResult r = runner.wait();
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>

#include "core/clock.h"
#include "engine/executor.h"

namespace deepmint {

struct StepResult {
  Status forward;
  std::span<const SampleOutcome> outcomes;  // empty when forward failed
  std::chrono::nanoseconds took{};          // at work, without the wait for masks
  Clock::time_point began, ended;
};

class StepRunner {
 public:
  StepRunner(Executor& executor, const Clock& clock, Tap* tap);
  ~StepRunner();  // ends a step that is under way first

  void start(const StepPlan& plan);
  void sample();
  StepResult wait();

 private:
  void loop();

  Executor& executor_;
  const Clock& clock_;
  Tap* const tap_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const StepPlan* plan_ = nullptr;  // set: a step has been started and not been waited for
  bool started_ = false, may_sample_ = false, done_ = false, exit_ = false;
  StepResult result_;
  std::thread thread_;
};

}  // namespace deepmint
