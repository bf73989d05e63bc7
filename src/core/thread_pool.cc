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
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/check.h"

namespace deepmint {
namespace {

using std::chrono::nanoseconds;

// Some 40 µs of spinning at 3 GHz: longer than the serial gaps inside a forward step and between
// the steps of one sequence, short enough to be idle when there is nothing to do.
constexpr int kSpins = 2000;
// A worker that the caller waits for longer than that is looked at for some 10 µs more: does it
// run? One that waits for a CPU, this often within this time, is given a rest; and at once when
// the caller has slept this long and it still has none. (One may be slow to wake for once. And two
// threads on one CPU may take turns, meeting for meeting.)
constexpr int kLookSpins = 500;
constexpr int kStrikes = 8;
constexpr nanoseconds kStrikeTime = std::chrono::milliseconds(10);
constexpr nanoseconds kPatience = std::chrono::microseconds(200);

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

// False when it is not ready after some spinning.
template <class Ready>
bool spin(const Signal& s, Ready&& ready, int spins = kSpins) {
  for (int i = 0; i < spins; ++i) {
    if (ready(s.value.load(std::memory_order_acquire))) return true;
    _mm_pause();
  }
  return false;
}

// False when it is not ready after `limit`, or somewhat less. (A std::atomic waits without limit.)
template <class Ready>
bool sleep(Signal& s, Ready&& ready, const nanoseconds* limit = nullptr) {
  timespec time{};
  if (limit != nullptr) time.tv_nsec = limit->count();
  do {
    // A waker changes the value and then looks for sleepers; a sleeper shows itself and then looks
    // at the value. In one order of both (seq_cst), one of them sees the other.
    s.sleepers.fetch_add(1);
    const uint32_t value = s.value.load();
    if (!ready(value))
      syscall(SYS_futex, &s.value, FUTEX_WAIT_PRIVATE, value, limit != nullptr ? &time : nullptr,
              nullptr, 0);
    s.sleepers.fetch_sub(1);
    if (ready(s.value.load(std::memory_order_acquire))) return true;
  } while (limit == nullptr);
  return false;
}

// After a change of the value.
void wake(Signal& s) {
  if (s.sleepers.load() != 0)
    syscall(SYS_futex, &s.value, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

nanoseconds cpu_time(pthread_t thread) {
  clockid_t clock;
  timespec t{};
  if (pthread_getcpuclockid(thread, &clock) == 0) clock_gettime(clock, &t);
  return std::chrono::seconds(t.tv_sec) + nanoseconds(t.tv_nsec);
}

// Whether a thread of this process would run if it had a CPU (it may have one), rather than wait
// for a disk, say. False also when the system does not tell.
bool is_runnable(pid_t thread) {
  char name[64], text[256];
  *fmt::format_to_n(name, sizeof(name) - 1, "/proc/self/task/{}/stat", thread).out = '\0';
  const int file = open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t n = read(file, text, sizeof(text));
  close(file);
  // "id (name) R ...": the name may hold anything.
  const std::string_view stat(text, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t name_end = stat.rfind(')');
  return name_end != stat.npos && stat.substr(name_end).starts_with(") R");
}

}  // namespace

struct ThreadPool::Impl {
  struct Task {
    size_t count = 0, grain = 0;
    Call call = nullptr;  // none: the thread ends
    void* body = nullptr;
    int rank = 0, size = 1;
  };
  struct Worker {
    alignas(64) Signal told;  // of how many runs; the task is on the same cache line
    Task task;
    alignas(64) Signal done;                   // of how many runs
    alignas(64) std::atomic<uint32_t> met{0};  // see Team::meet
    alignas(64) std::atomic<pid_t> id{0};
    std::thread thread;
    // The caller's notes.
    Rest rest;
    bool takes_part = true, is_late = false;
    nanoseconds cpu_before{0};
    Rest::Clock::time_point first_strike{};
    int strikes = 0;
  };

  int n_threads = 1;
  std::unique_ptr<Worker[]> workers;  // n_threads - 1
  alignas(64) std::atomic<size_t> next{0};
  alignas(64) Signal meeting;
  alignas(64) std::thread::id caller;  // of the last run
  bool someone_rests = false;

  std::span<Worker> all() { return {workers.get(), static_cast<size_t>(n_threads - 1)}; }

  void work(const Task& t) {
    if (t.grain == 0) {
      const auto n = static_cast<size_t>(t.size), w = static_cast<size_t>(t.rank);
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
    self.id = static_cast<pid_t>(syscall(SYS_gettid));
    for (uint32_t seen = 0;; ++seen) {
      const auto ready = [&](uint32_t told) { return told != seen; };
      if (!spin(self.told, ready)) sleep(self.told, ready);
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

  // Decides who takes part in the next run; how many, with the caller.
  int gather() {
    if (!someone_rests) return n_threads;
    const auto now = Rest::Clock::now();
    int size = 1;
    for (Worker& w : all()) size += (w.takes_part = !w.rest.lasts(now)) ? 1 : 0;
    someone_rests = size < n_threads;
    return size;
  }

  // The caller waits for others: those for whom late(worker) holds until ready.
  template <class Ready, class Late>
  void await(Signal& s, Ready&& ready, Late&& late) {
    if (spin(s, ready)) return;
    const auto start = Rest::Clock::now();
    for (Worker& w : all())
      if ((w.is_late = w.takes_part && late(w))) w.cpu_before = cpu_time(w.thread.native_handle());
    if (spin(s, ready, kLookSpins)) return;
    look(start, late, 1);
    if (sleep(s, ready, &kPatience)) return;
    if (Rest::Clock::now() - start >= kPatience) look(start, late, kStrikes);
    sleep(s, ready);
  }

  // Strikes for the workers that are late and have hardly run since `start`.
  template <class Late>
  void look(Rest::Clock::time_point start, Late&& late, int strikes) {
    const auto now = Rest::Clock::now();
    for (Worker& w : all()) {
      if (!w.is_late || !late(w)) continue;
      if (cpu_time(w.thread.native_handle()) - w.cpu_before > (now - start) / 2) continue;
      if (now - w.first_strike > kStrikeTime) w.first_strike = now, w.strikes = 0;
      if ((w.strikes += strikes) < kStrikes) continue;
      w.strikes = 0;
      if (!is_runnable(w.id)) continue;
      w.rest.begin(now);
      someone_rests = true;
    }
  }

  // On everyone who takes part: task.size threads.
  void run(Task task) {
    if (task.size == 1) return task.call(task.body, 0, task.count, 0);
    if (task.grain != 0) next.store(0, std::memory_order_relaxed);
    for (Worker& w : all())
      if (w.takes_part) {
        ++task.rank;
        tell(w, task);
      }
    task.rank = 0;
    work(task);
    for (Worker& w : all())
      if (w.takes_part) {
        const uint32_t told = w.told.value.load(std::memory_order_relaxed);
        await(
            w.done, [&](uint32_t done) { return done == told; },
            [](const Worker& other) { return other.done.value != other.told.value; });
      }
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()), n_threads_(n_threads) {
  DEEPMINT_CHECK(n_threads >= 1);
  impl_->n_threads = n_threads;
  impl_->workers = std::make_unique<Impl::Worker[]>(static_cast<size_t>(n_threads - 1));
  if (n_threads > 1) (void)all_cores();
  for (Impl::Worker& w : impl_->all()) w.thread = std::thread([this, &w] { impl_->loop(w); });
}

ThreadPool::~ThreadPool() {
  for (Impl::Worker& w : impl_->all()) Impl::tell(w, {});
  for (Impl::Worker& w : impl_->all()) w.thread.join();
}

// A new caller has the workers placed around it.
void ThreadPool::greet_caller() {
  Impl& s = *impl_;
  if (n_threads_ == 1 || s.caller == std::this_thread::get_id()) return;
  s.caller = std::this_thread::get_id();
  for (Impl::Worker& w : s.all()) w.takes_part = true;
  int cpu = sched_getcpu();
  s.run(
      {.count = static_cast<size_t>(n_threads_), .call = place, .body = &cpu, .size = n_threads_});
  s.someone_rests = true;  // to be looked at again
}

void ThreadPool::run_erased(size_t count, size_t grain, Call call, void* body) {
  if (count == 0) return;
  greet_caller();
  impl_->run({.count = count, .grain = grain, .call = call, .body = body, .size = impl_->gather()});
}

void ThreadPool::together_erased(TeamCall call, void* body) {
  greet_caller();
  Impl& s = *impl_;
  const int size = s.gather();
  s.meeting.value.store(0, std::memory_order_relaxed);
  for (Impl::Worker& w : s.all()) w.met.store(0, std::memory_order_relaxed);
  // Each thread has one item: itself.
  const auto one = [&](size_t, size_t, int rank) {
    Team team(*this, rank, size);
    call(body, team);
  };
  using One = decltype(one);
  s.run({.count = static_cast<size_t>(size),
         .call = [](void* b, size_t begin, size_t end,
                    int rank) { (*static_cast<One*>(b))(begin, end, rank); },
         .body = const_cast<void*>(static_cast<const void*>(&one)),
         .size = size});
}

void ThreadPool::rest(int worker, nanoseconds time) {
  DEEPMINT_CHECK(worker >= 1 && worker < n_threads_);
  impl_->workers[static_cast<size_t>(worker - 1)].rest.until = Rest::Clock::now() + time;
  impl_->someone_rests = true;
}

// Whoever comes counts up `meeting`. So that the caller knows who is late, rank r also leaves its
// count in workers[r - 1].met.
void Team::meet() {
  if (size_ == 1) return;
  due_ += static_cast<uint32_t>(size_);
  ThreadPool::Impl& pool = *pool_.impl_;
  const uint32_t due = due_;
  if (rank_ > 0)
    pool.workers[static_cast<size_t>(rank_ - 1)].met.store(due, std::memory_order_relaxed);
  if (pool.meeting.value.fetch_add(1) + 1 == due) return wake(pool.meeting);
  const auto ready = [&](uint32_t come) { return static_cast<int32_t>(come - due) >= 0; };
  if (rank_ == 0) {
    pool.await(pool.meeting, ready, [&](const ThreadPool::Impl::Worker& w) {
      const auto& mark = pool.workers[static_cast<size_t>(w.task.rank - 1)].met;
      return mark.load(std::memory_order_relaxed) != due;
    });
  } else if (!spin(pool.meeting, ready)) {
    sleep(pool.meeting, ready);
  }
}

int logical_cpus() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int physical_cores() { return std::max(1, static_cast<int>(cores().size())); }

}  // namespace deepmint
