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

// Some 40 µs of spinning at 3 GHz: longer than the serial gaps inside a forward step and between
// the steps of one sequence, short enough to be idle when there is nothing to do.
constexpr int kSpins = 2000;

// The logical CPUs that this process may use, ascending; empty when the system does not say.
std::vector<int> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

// One of them for each core.
std::vector<int> cores() {
  std::set<std::string> seen;
  std::vector<int> cpus;
  for (const int cpu : allowed_cpus()) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings) || seen.insert(siblings).second) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

struct ThreadPool::Impl {
  // One run is described by the first fields; `epoch` publishes them. All on one cache line: it
  // travels to each worker once. Workers answer through `pending`.
  alignas(64) std::atomic<uint32_t> epoch{0};
  std::atomic<bool> stop{false};
  int n_threads = 1;
  size_t count = 0, grain = 0;
  Call call = nullptr;
  void* body = nullptr;
  alignas(64) std::atomic<size_t> next{0};
  alignas(64) std::atomic<int> pending{0};
  alignas(64) std::vector<std::thread> workers;
  std::thread::id caller;  // of the last run

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

namespace {

// Read once: after the first pool of a process is made, placing threads allocates nothing.
const std::vector<int>& all_cores() {
  static const std::vector<int> kCores = cores();
  return kCores;
}

// Moves the calling worker to a core that is not the caller's, and lets it go again.
void place(void* body, size_t, size_t, int worker) {
  if (worker == 0) return;
  const int caller_cpu = *static_cast<const int*>(body);
  const std::vector<int>& all = all_cores();
  const auto others = all.size() - static_cast<size_t>(std::ranges::count(all, caller_cpu));
  if (others == 0) return;
  size_t left = static_cast<size_t>(worker - 1) % others, at = 0;
  while (all[at] == caller_cpu || left-- > 0) ++at;
  cpu_set_t allowed, one;
  CPU_ZERO(&allowed);
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  if (!CPU_ISSET(all[at], &allowed)) return;  // someone has pinned it elsewhere
  CPU_SET(all[at], &one);
  if (sched_setaffinity(0, sizeof(one), &one) == 0) sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()), n_threads_(n_threads) {
  DEEPMINT_CHECK(n_threads >= 1);
  impl_->n_threads = n_threads;
  if (n_threads > 1) (void)all_cores();
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
  if (s.caller != std::this_thread::get_id()) {
    s.caller = std::this_thread::get_id();
    int cpu = sched_getcpu();
    run_erased(static_cast<size_t>(n_threads_), 0, place, &cpu);
  }
  s.count = count;
  s.grain = grain;
  s.call = call;
  s.body = body;
  if (grain != 0) s.next.store(0, std::memory_order_relaxed);
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

int logical_cpus() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int physical_cores() { return std::max(1, static_cast<int>(cores().size())); }

}  // namespace deepmint
