// Threads for work that is too long for an io thread: parsing request bodies and tokenising
// prompts.
//
//   WorkerPool pool(2, 4096);
//   if (!pool.submit([=] { ... }, WorkerPool::Size::kSmall)) refuse();
//
// First come, first served, but with two or more threads the first takes small jobs only, so that a
// few huge prompts never stand in the way of short ones. Jobs must not throw. stop() drops what has
// not begun.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace deepmint {

class WorkerPool {
 public:
  enum class Size : uint8_t { kSmall, kLarge };

  WorkerPool(int threads, size_t max_queued);
  ~WorkerPool() { stop(); }

  bool submit(std::function<void()> job, Size size);  // false: full or stopped
  void stop();

 private:
  struct Job {
    uint64_t order;
    std::function<void()> run;
  };
  void work(bool small_only, int index);
  bool take(bool small_only, Job& out);

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> small_, large_;
  uint64_t next_order_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deepmint
