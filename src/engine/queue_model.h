// How long things take, and so when a request would get its first token: what admission is decided
// on and what Retry-After is made of. Time comes in as measured durations; nothing here reads a
// clock.
//
// Work is counted in row equivalents: one row, plus what its attention reads in units of one row's
// other arithmetic.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "deepmint/engine.h"
#include "deepmint/result.h"

namespace deepmint {

// Seconds of a step as base + per_work * work, fitted to past steps with exponential forgetting.
class CostModel {
 public:
  // Durations of zero or less (a clock that jumped back) are ignored.
  void observe(double work, std::chrono::nanoseconds took);
  double seconds(double work, double steps) const;  // 0 while nothing is known

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // decayed sums
  double base_ = 0, per_work_ = 0;
};

// The waiting queue as numbers. Any thread may ask and enter; the engine's thread reports.
class QueueModel {
 public:
  struct Options {
    int64_t max_waiting = 1024;
    size_t max_running = 64;
    size_t step_rows = 512;
    // Latest first token per class; zero or less: none. Batch is best effort and has none.
    std::array<std::chrono::milliseconds, kRequestClasses> first_token{};
  };
  // What runs now, as of the last step.
  struct Running {
    std::array<double, kRequestClasses> prefill_work{};  // prompt work that is still to be done
    size_t decode_rows = 0;
    size_t free_places = 0;  // 0 also when the first in the queue finds no memory
  };

  explicit QueueModel(const Options& options) : options_(options) {}

  // One more request that waits, or kResourceExhausted with retry_after_s: the queue is full, or
  // the first token would come too late. A request that would start at once is never refused.
  Status enter(RequestClass request_class, double work);
  void leave(RequestClass request_class, double work);  // it started, or ended before

  void report(const Running& running);
  void step_took(double work, std::chrono::nanoseconds took);
  void finished(RequestClass request_class, int32_t output_tokens, std::chrono::nanoseconds held);

  int64_t waiting() const;
  // Tokens that a request of this class usually comes to, at most `at_most`.
  double expected_output(RequestClass request_class, int32_t at_most) const;
  // Seconds until the first token of a request that entered now.
  double predicted_first_token(RequestClass request_class, double work) const;

 private:
  double wait_seconds(size_t request_class) const;
  double first_token_seconds(size_t request_class, double work) const;

  const Options options_;
  mutable std::mutex mutex_;
  CostModel cost_;
  Running running_;
  std::array<int64_t, kRequestClasses> waiting_{};
  std::array<double, kRequestClasses> waiting_work_{};
  std::array<double, kRequestClasses> output_{};  // means with forgetting; 0 = nothing known
  double held_s_ = 0;                             // how long a request keeps its place, mean
};

}  // namespace deepmint
