#include "core/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"

namespace deepmint {
namespace {

// About 20 µs of spinning at 3 GHz: longer than the serial gaps inside one forward step, short
// enough to be idle between steps.
constexpr int kSpins = 500;

}  // namespace

struct ThreadPool::Impl {
  // One run is described by the fields below; `epoch` publishes them. Workers answer through
  // `pending`.
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<size_t> next{0};
  alignas(64) std::atomic<int> pending{0};
  alignas(64) std::atomic<bool> stop{false};
  size_t count = 0, grain = 0;
  Call call = nullptr;
  void* body = nullptr;
  int n_threads = 1;
  std::vector<std::thread> workers;

  void work(int worker) {
    if (grain == 0) {
      const auto n = static_cast<size_t>(n_threads), w = static_cast<size_t>(worker);
      const size_t begin = count * w / n, end = count * (w + 1) / n;
      if (begin < end) call(body, begin, end, worker);
      return;
    }
    for (;;) {
      const size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      call(body, begin, begin + grain < count ? begin + grain : count, worker);
    }
  }

  void loop(int worker) {
    uint32_t seen = 0;
    for (;;) {
      for (int spin = 0; epoch.load(std::memory_order_acquire) == seen;) {
        if (++spin < kSpins) {
          _mm_pause();
        } else {
          epoch.wait(seen, std::memory_order_acquire);
        }
      }
      ++seen;
      if (stop.load(std::memory_order_relaxed)) return;
      work(worker);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()), n_threads_(n_threads) {
  DEEPMINT_CHECK(n_threads >= 1);
  impl_->n_threads = n_threads;
  for (int w = 1; w < n_threads; ++w) impl_->workers.emplace_back([this, w] { impl_->loop(w); });
}

ThreadPool::~ThreadPool() {
  impl_->stop = true;
  impl_->epoch.fetch_add(1, std::memory_order_release);
  impl_->epoch.notify_all();
  for (std::thread& t : impl_->workers) t.join();
}

void ThreadPool::run_erased(size_t count, size_t grain, Call call, void* body) {
  if (count == 0) return;
  Impl& s = *impl_;
  if (n_threads_ == 1) {
    call(body, 0, count, 0);
    return;
  }
  s.count = count;
  s.grain = grain;
  s.call = call;
  s.body = body;
  s.next.store(0, std::memory_order_relaxed);
  s.pending.store(n_threads_ - 1, std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
  s.work(0);
  for (int spin = 0;;) {
    const int pending = s.pending.load(std::memory_order_acquire);
    if (pending == 0) return;
    if (++spin < kSpins) {
      _mm_pause();
    } else {
      s.pending.wait(pending, std::memory_order_acquire);
    }
  }
}

namespace {

// Empty when the system does not say.
std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

int logical_cpus() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int physical_cores() {
  std::set<std::string> cores;
  const std::vector<int> cpus = allowed_cpus();
  for (const int cpu : cpus) {
    const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream file(base + "thread_siblings_list");
    std::string siblings;
    if (std::getline(file, siblings)) cores.insert(siblings);
  }
  return std::max(1, static_cast<int>(cores.empty() ? cpus.size() : cores.size()));
}

}  // namespace deepmint
