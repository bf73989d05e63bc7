// A fixed set of threads for kernels. Work is split by output, never inside a reduction, so results
// do not depend on the number of threads or on who computes what.
//
//   ThreadPool pool(2);
//   pool.run(n_tiles, [&](size_t begin, size_t end, int worker) { ... });
//
// Many short pieces that wait for each other go into one call, in which the threads meet:
//
//   pool.together([&](Team& team) {          // once on each thread
//     first_half(team.rank(), team.size());
//     team.meet();                           // nobody goes on before all have come
//     second_half(team.rank(), team.size());
//   });
//
// One caller at a time. The caller takes part as worker 0 and rank 0. Between runs workers spin
// briefly, then sleep. No allocation per run.
//
// What a body throws, on whichever thread, is thrown to the caller when every thread has left the
// body: the first of several. The other threads finish their shares of run(), and leave together()
// at their next meeting by an exception of the pool's own. The pool stays usable.
//
// A thread that calls for the first time spreads the workers over the other cores, once; after that
// they may move. Left to itself, a scheduler may keep two threads on one core for tens of
// milliseconds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace deepmint {

class ThreadPool;

// One thread's view of a call of together().
class Team {
 public:
  int rank() const { return rank_; }  // 0 is the caller
  int size() const { return size_; }

  // Returns when every thread has come to its n-th meeting; what they wrote before is visible
  // after. Throws when one of them has left the body by an exception.
  void meet();

 private:
  friend class ThreadPool;
  Team(ThreadPool& pool, int rank, int size) : pool_(pool), rank_(rank), size_(size) {}

  ThreadPool& pool_;
  const int rank_, size_;
  uint32_t met_ = 0;  // meetings of this call so far
};

// Who is told when each thread did its part of a call: for benchmarks.
class PoolWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~PoolWatch() = default;
  // On the thread `rank` itself, which has just ended its part; each thread only once in a call.
  virtual void worked(int rank, Time begin, Time end) = 0;
};

// What a thread that waits for the others does meanwhile, between looks at what it waits for.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  // A little of it, well below a microsecond, on the waiting thread. False: nothing is left. A
  // thread for which something always is never sleeps.
  virtual bool some(int rank) noexcept = 0;
};

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // >= 1; 1 runs everything on the caller
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Not during a call. Null: nobody, as at first.
  void set_watch(PoolWatch* watch);

  // What threads do while they wait, in calls and between them. Not during a call; no thread is in
  // the one before when it returns. Null: nothing, as at first.
  void set_meanwhile(Meanwhile* meanwhile);
  // Sets null if it is `meanwhile` that is set.
  void forget(const Meanwhile* meanwhile);

  // Calls body(begin, end, worker) over disjoint ranges that cover [0, count), on all threads;
  // returns when all are done. `grain` items are handed out at a time (0 = one equal share per
  // thread).
  template <class Body>
  void run(size_t count, Body&& body, size_t grain = 0) {
    using B = std::remove_reference_t<Body>;
    run_erased(
        count, grain,
        [](void* b, size_t begin, size_t end, int worker) {
          (*static_cast<B*>(b))(begin, end, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Calls body(team) once on each thread, at the same time. Every thread must come to the same
  // number of meetings.
  template <class Body>
  void together(Body&& body) {
    using B = std::remove_reference_t<Body>;
    together_erased([](void* b, Team& team) { (*static_cast<B*>(b))(team); },
                    const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  friend class Team;
  using Call = void (*)(void* body, size_t begin, size_t end, int worker);
  using TeamCall = void (*)(void* body, Team& team);
  void run_erased(size_t count, size_t grain, Call call, void* body);
  void together_erased(TeamCall call, void* body);
  void greet_caller();
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int n_threads_;
};

// Of the CPUs that this process may run on: cores, and hardware threads.
int physical_cores();
int logical_cpus();

}  // namespace deepmint
