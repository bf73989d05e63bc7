#include "core/thread_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"

namespace deepmint {
namespace {

// Some 40 µs of spinning at 3 GHz: longer than the serial gaps inside a forward step and between
// the steps of one sequence, short enough to be idle when there is nothing to do.
constexpr int kSpins = 2000;

constexpr uint32_t kGone = UINT32_MAX;  // has come to every meeting, by leaving

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

// --- waiting -------------------------------------------------------------------------------------

// A number that threads wait for.
struct Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};
};

// How a thread leaves a team that another has left by an exception: not an error of its own.
struct LeftAlone {};

// False when it is not ready after some spinning.
template <class Ready>
bool spin(const Signal& s, Ready&& ready, Meanwhile* meanwhile, int rank) {
  for (int i = 0; i < kSpins;) {
    if (ready(s.value.load(std::memory_order_acquire))) return true;
    if (meanwhile != nullptr && meanwhile->some(rank)) continue;
    _mm_pause();
    ++i;
  }
  return false;
}

template <class Ready>
void sleep(Signal& s, Ready&& ready) {
  do {
    // A waker changes the value and then looks for sleepers; a sleeper shows itself and then looks
    // at the value. In one order of both (seq_cst), one of them sees the other.
    s.sleepers.fetch_add(1);
    const uint32_t value = s.value.load();
    if (!ready(value)) syscall(SYS_futex, &s.value, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
    s.sleepers.fetch_sub(1);
  } while (!ready(s.value.load(std::memory_order_acquire)));
}

template <class Ready>
void await(Signal& s, Ready&& ready, Meanwhile* meanwhile, int rank) {
  if (!spin(s, ready, meanwhile, rank)) sleep(s, ready);
}

// After a change of the value.
void wake(Signal& s) {
  if (s.sleepers.load() != 0)
    syscall(SYS_futex, &s.value, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct ThreadPool::Impl {
  struct Task {
    size_t count = 0, grain = 0;
    Call call = nullptr;  // none: the thread ends
    void* body = nullptr;
    int rank = 0;
  };
  struct Worker {
    alignas(64) Signal told;  // of how many runs; the task is on the same cache line
    Task task;
    alignas(64) Signal done;  // of how many runs
    alignas(64) std::thread thread;
    int rank = 0;
  };

  int n_threads = 1;
  std::unique_ptr<Worker[]> workers;  // n_threads - 1
  alignas(64) std::atomic<size_t> next{0};
  struct alignas(64) Arrivals : Signal {};  // meetings of this call that a thread has come to
  std::unique_ptr<Arrivals[]> arrivals;     // n_threads
  alignas(64) std::thread::id caller;       // of the last run
  std::atomic<bool> threw{false};           // a body of this call, on some thread
  std::exception_ptr thrown;                // what the first of them threw
  PoolWatch* watch = nullptr;
  std::atomic<Meanwhile*> meanwhile{nullptr};

  std::span<Worker> all() { return {workers.get(), static_cast<size_t>(n_threads - 1)}; }

  void work(const Task& t) noexcept {
    try {
      if (watch == nullptr) return shares(t);
      const auto begin = std::chrono::steady_clock::now();
      shares(t);
      watch->worked(t.rank, begin, std::chrono::steady_clock::now());
      return;
    } catch (...) {  // LeftAlone is never the first
      if (!threw.exchange(true)) thrown = std::current_exception();
    }
    // Whoever waits for this one in a team need not.
    arrivals[t.rank].value.store(kGone);
    wake(arrivals[t.rank]);
  }

  void shares(const Task& t) {
    if (t.grain == 0) {
      const auto n = static_cast<size_t>(n_threads), w = static_cast<size_t>(t.rank);
      const size_t begin = t.count * w / n, end = t.count * (w + 1) / n;
      if (begin < end) t.call(t.body, begin, end, t.rank);
      return;
    }
    for (;;) {
      const size_t begin = next.fetch_add(t.grain, std::memory_order_relaxed);
      if (begin >= t.count) return;
      t.call(t.body, begin, begin + t.grain < t.count ? begin + t.grain : t.count, t.rank);
    }
  }

  void loop(Worker& self) {
    for (uint32_t seen = 0;; ++seen) {
      const auto ready = [&](uint32_t told) { return told != seen; };
      await(self.told, ready, meanwhile.load(std::memory_order_acquire), self.rank);
      if (self.task.call == nullptr) return;
      work(self.task);
      self.done.value.fetch_add(1);
      wake(self.done);
    }
  }

  static void tell(Worker& w, const Task& task) {
    w.task = task;
    w.told.value.fetch_add(1);
    wake(w.told);
  }

  void run(Task task) {
    if (n_threads == 1 && watch == nullptr) return task.call(task.body, 0, task.count, 0);
    if (task.grain != 0) next.store(0, std::memory_order_relaxed);
    for (Worker& w : all()) {
      ++task.rank;
      tell(w, task);
    }
    task.rank = 0;
    work(task);
    for (Worker& w : all()) {
      const uint32_t told = w.told.value.load(std::memory_order_relaxed);
      const auto ready = [&](uint32_t done) { return done == told; };
      await(w.done, ready, meanwhile.load(std::memory_order_relaxed), 0);
    }
    if (!threw.load(std::memory_order_relaxed)) return;
    threw.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(thrown, nullptr));
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()), n_threads_(n_threads) {
  DEEPMINT_CHECK(n_threads >= 1);
  impl_->n_threads = n_threads;
  impl_->arrivals = std::make_unique<Impl::Arrivals[]>(static_cast<size_t>(n_threads));
  impl_->workers = std::make_unique<Impl::Worker[]>(static_cast<size_t>(n_threads - 1));
  if (n_threads > 1) (void)all_cores();
  int rank = 0;
  for (Impl::Worker& w : impl_->all()) {
    w.rank = ++rank;
    w.thread = std::thread([this, &w] { impl_->loop(w); });
  }
}

ThreadPool::~ThreadPool() {
  for (Impl::Worker& w : impl_->all()) Impl::tell(w, {});
  for (Impl::Worker& w : impl_->all()) w.thread.join();
}

void ThreadPool::set_watch(PoolWatch* watch) { impl_->watch = watch; }

void ThreadPool::set_meanwhile(Meanwhile* meanwhile) {
  Impl& s = *impl_;
  if (s.meanwhile.exchange(meanwhile) == nullptr) return;
  // Whoever waits with the one before comes to this call, and waits with the new one after it.
  PoolWatch* const watch = std::exchange(s.watch, nullptr);
  s.run({.count = static_cast<size_t>(n_threads_), .call = [](void*, size_t, size_t, int) {}});
  s.watch = watch;
}

void ThreadPool::forget(const Meanwhile* meanwhile) {
  if (impl_->meanwhile.load() == meanwhile) set_meanwhile(nullptr);
}

// A new caller has the workers placed around it.
void ThreadPool::greet_caller() {
  Impl& s = *impl_;
  if (n_threads_ == 1 || s.caller == std::this_thread::get_id()) return;
  s.caller = std::this_thread::get_id();
  int cpu = sched_getcpu();
  PoolWatch* const watch = std::exchange(s.watch, nullptr);
  s.run({.count = static_cast<size_t>(n_threads_), .call = place, .body = &cpu});
  s.watch = watch;
}

void ThreadPool::run_erased(size_t count, size_t grain, Call call, void* body) {
  if (count == 0) return;
  greet_caller();
  impl_->run({.count = count, .grain = grain, .call = call, .body = body});
}

void ThreadPool::together_erased(TeamCall call, void* body) {
  greet_caller();
  Impl& s = *impl_;
  for (int i = 0; i < n_threads_; ++i)
    s.arrivals[static_cast<size_t>(i)].value.store(0, std::memory_order_relaxed);
  // Each thread has one item: itself.
  const auto one = [&](size_t, size_t, int rank) {
    Team team(*this, rank, n_threads_);
    call(body, team);
  };
  using One = decltype(one);
  s.run({.count = static_cast<size_t>(n_threads_),
         .call = [](void* b, size_t begin, size_t end,
                    int rank) { (*static_cast<One*>(b))(begin, end, rank); },
         .body = const_cast<void*>(static_cast<const void*>(&one))});
}

// Each thread tells on a cache line of its own that it has come, and reads those of the others: one
// transfer between cores, where a common counter takes two, one after the other.
void Team::meet() {
  if (size_ == 1) return;
  const uint32_t due = ++met_;
  ThreadPool::Impl::Arrivals* arrivals = pool_.impl_->arrivals.get();
  arrivals[rank_].value.store(due);
  wake(arrivals[rank_]);
  Meanwhile* const meanwhile = pool_.impl_->meanwhile.load(std::memory_order_relaxed);
  for (int i = 0; i < size_; ++i)
    await(arrivals[i], [due](uint32_t come) { return come >= due; }, meanwhile, rank_);
  if (pool_.impl_->threw.load(std::memory_order_relaxed)) throw LeftAlone();
}

int logical_cpus() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int physical_cores() { return std::max(1, static_cast<int>(cores().size())); }

}  // namespace deepmint
