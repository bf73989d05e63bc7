#include "server/worker_pool.h"

#include <fmt/format.h>
#include <pthread.h>

#include <utility>

namespace deepmint {

WorkerPool::WorkerPool(int threads, size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < threads; ++i)
    threads_.emplace_back([this, i, threads] { work(i == 0 && threads > 1, i); });
}

bool WorkerPool::submit(std::function<void()> job, Size size) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || small_.size() + large_.size() >= max_queued_) return false;
    (size == Size::kSmall ? small_ : large_).push_back({next_order_++, std::move(job)});
  }
  // A large job must not wake only the thread that may not take it.
  size == Size::kSmall ? changed_.notify_one() : changed_.notify_all();
  return true;
}

bool WorkerPool::take(bool small_only, Job& out) {
  std::deque<Job>* queue = nullptr;
  if (!small_.empty()) queue = &small_;
  if (!small_only && !large_.empty() &&
      (queue == nullptr || large_.front().order < small_.front().order))
    queue = &large_;
  if (queue == nullptr) return false;
  out = std::move(queue->front());
  queue->pop_front();
  return true;
}

void WorkerPool::work(bool small_only, int index) {
  pthread_setname_np(pthread_self(), fmt::format("dm-work-{}", index).c_str());
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || take(small_only, job); });
      if (!job.run) return;
    }
    job.run();
  }
}

void WorkerPool::stop() {
  std::deque<Job> dropped_small, dropped_large;  // destroyed outside the lock
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped_small.swap(small_);
    dropped_large.swap(large_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

}  // namespace deepmint
