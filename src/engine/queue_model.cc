#include "engine/queue_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace deepmint {
namespace {

constexpr double kKeep = 0.98;          // weight of a step after one more
constexpr double kKeepEnds = 0.9;       // of a finished request
constexpr double kUnknownOutput = 256;  // tokens that a reply may come to before any has ended
constexpr double kLongestRetry = 600;   // seconds

size_t index(RequestClass c) { return static_cast<size_t>(c); }

double mean_with(double mean, double value) {
  return mean <= 0 ? value : kKeepEnds * mean + (1 - kKeepEnds) * value;
}

double retry_seconds(double seconds) { return std::clamp(std::ceil(seconds), 1.0, kLongestRetry); }

}  // namespace

void CostModel::observe(double work, std::chrono::nanoseconds took) {
  if (took.count() <= 0 || !(work > 0)) return;
  const double y = std::chrono::duration<double>(took).count();
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
  weight_ += 1, x_ += work, y_ += y, xx_ += work * work, xy_ += work * y;
  const double mean_x = x_ / weight_, mean_y = y_ / weight_;
  const double variance = xx_ / weight_ - mean_x * mean_x;
  // Steps that were all alike say nothing about what a larger one costs: then all of it is work.
  per_work_ = mean_y / mean_x;
  if (variance > 0.01 * mean_x * mean_x)
    per_work_ = std::clamp((xy_ / weight_ - mean_x * mean_y) / variance, 0.0, per_work_);
  base_ = mean_y - per_work_ * mean_x;
}

double CostModel::seconds(double work, double steps) const {
  return base_ * steps + per_work_ * work;
}

Status QueueModel::enter(RequestClass request_class, double work) {
  const std::lock_guard lock(mutex_);
  int64_t waiting = 0;
  for (const int64_t n : waiting_) waiting += n;
  if (waiting >= options_.max_waiting) {
    // Half of the wait: when everyone who is refused now comes back at once, half the queue is
    // free.
    Error error{ErrorCode::kResourceExhausted,
                fmt::format("the waiting queue is full with {} requests; try again later", waiting),
                {}};
    error.retry_after_s = retry_seconds(wait_seconds(kRequestClasses - 1) / 2);
    return tl::unexpected(std::move(error));
  }
  const size_t c = index(request_class);
  const double limit = std::chrono::duration<double>(options_.first_token[c]).count();
  if (limit > 0 && request_class != RequestClass::kBatch && wait_seconds(c) > 0) {
    const double first = first_token_seconds(c, work);
    if (first > limit) {
      Error error{
          ErrorCode::kResourceExhausted,
          fmt::format("the first token would come after {:.1f} s, later than the {:.1f} s of "
                      "{} requests; try again later",
                      first, limit, to_string(request_class)),
          {}};
      error.retry_after_s = retry_seconds(std::min(first - limit, wait_seconds(c)));
      return tl::unexpected(std::move(error));
    }
  }
  ++waiting_[c];
  waiting_work_[c] += work;
  return {};
}

void QueueModel::leave(RequestClass request_class, double work) {
  const std::lock_guard lock(mutex_);
  const size_t c = index(request_class);
  --waiting_[c];
  waiting_work_[c] = waiting_[c] == 0 ? 0 : waiting_work_[c] - work;
}

void QueueModel::report(const Running& running) {
  const std::lock_guard lock(mutex_);
  running_ = running;
}

void QueueModel::step_took(double work, std::chrono::nanoseconds took) {
  const std::lock_guard lock(mutex_);
  cost_.observe(work, took);
}

void QueueModel::finished(RequestClass request_class, int32_t output_tokens,
                          std::chrono::nanoseconds held) {
  const std::lock_guard lock(mutex_);
  double& mean = output_[index(request_class)];
  mean = mean_with(mean, std::max<double>(output_tokens, 1));
  if (held.count() > 0) held_s_ = mean_with(held_s_, std::chrono::duration<double>(held).count());
}

int64_t QueueModel::waiting() const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const int64_t n : waiting_) sum += n;
  return sum;
}

double QueueModel::expected_output(RequestClass request_class, int32_t at_most) const {
  const std::lock_guard lock(mutex_);
  const double mean = output_[index(request_class)];
  return std::min<double>(at_most, mean > 0 ? mean : kUnknownOutput);
}

double QueueModel::predicted_first_token(RequestClass request_class, double work) const {
  const std::lock_guard lock(mutex_);
  return first_token_seconds(index(request_class), work);
}

// Until all that stands before a new request of this class has its prompt done, and a place is
// free.
double QueueModel::wait_seconds(size_t request_class) const {
  double work = 0;
  int64_t ahead = 0;
  for (size_t c = 0; c <= request_class; ++c) {
    work += running_.prefill_work[c] + waiting_work_[c];
    ahead += waiting_[c];
  }
  const size_t rows = options_.step_rows - std::min(options_.step_rows - 1, running_.decode_rows);
  const double steps = std::ceil(work / static_cast<double>(rows));
  const double compute =
      cost_.seconds(work + steps * static_cast<double>(running_.decode_rows), steps);
  const double missing = static_cast<double>(ahead + 1) - static_cast<double>(running_.free_places);
  const double turnover =
      missing > 0 ? missing * held_s_ / static_cast<double>(options_.max_running) : 0;
  return std::max(compute, turnover);
}

double QueueModel::first_token_seconds(size_t request_class, double work) const {
  const size_t rows = options_.step_rows - std::min(options_.step_rows - 1, running_.decode_rows);
  const double steps = std::ceil(work / static_cast<double>(rows));
  return wait_seconds(request_class) +
         cost_.seconds(work + steps * static_cast<double>(running_.decode_rows), steps);
}

}  // namespace deepmint
