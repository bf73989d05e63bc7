#include "engine/step_runner.h"

#include <utility>

#include "core/check.h"

namespace deepmint {

StepRunner::StepRunner(Executor& executor, const Clock& clock, Tap* tap)
    : executor_(executor), clock_(clock), tap_(tap), thread_([this] { loop(); }) {}

StepRunner::~StepRunner() {
  {
    const std::lock_guard lock(mutex_);
    exit_ = may_sample_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StepRunner::start(const StepPlan& plan) {
  const std::lock_guard lock(mutex_);
  DEEPMINT_CHECK(plan_ == nullptr);
  plan_ = &plan;
  started_ = true;
  may_sample_ = done_ = false;
  changed_.notify_all();
}

void StepRunner::sample() {
  const std::lock_guard lock(mutex_);
  may_sample_ = true;
  changed_.notify_all();
}

StepResult StepRunner::wait() {
  std::unique_lock lock(mutex_);
  DEEPMINT_CHECK(plan_ != nullptr);
  changed_.wait(lock, [this] { return done_; });
  plan_ = nullptr;
  return std::move(result_);
}

void StepRunner::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return started_ || exit_; });
    if (!started_) return;
    started_ = false;
    const StepPlan* plan = plan_;
    lock.unlock();
    StepResult result;
    result.began = clock_.now();
    result.forward = executor_.run(tap_);
    result.ended = clock_.now();
    result.took = result.ended - result.began;
    lock.lock();
    changed_.wait(lock, [this] { return may_sample_; });
    const bool stop = exit_;
    lock.unlock();
    if (result.forward && !stop) {
      const auto sampling = clock_.now();
      result.outcomes = executor_.sample(*plan);
      result.ended = clock_.now();
      result.took += result.ended - sampling;
    }
    lock.lock();
    result_ = std::move(result);
    done_ = true;
    changed_.notify_all();
  }
}

}  // namespace deepmint
