// Time as a dependency: schedulers and timeouts take a Clock so that tests need no sleeping.
#pragma once

#include <atomic>
#include <chrono>

namespace deepmint {

class Clock {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  virtual ~Clock() = default;
  virtual time_point now() const = 0;
  static const Clock& steady();
};

class ManualClock : public Clock {
 public:
  time_point now() const override { return time_point(std::chrono::nanoseconds(ns_.load())); }
  void advance(std::chrono::nanoseconds by) { ns_ += by.count(); }

 private:
  std::atomic<long long> ns_{0};
};

}  // namespace deepmint
