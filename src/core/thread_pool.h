// A fixed set of threads for kernels. Work is split by output, never inside a reduction, so results
// do not depend on the number of threads or on who computes what.
//
//   ThreadPool pool(2);
//   pool.run(n_tiles, [&](size_t begin, size_t end, int worker) { ... });
//
// One caller at a time. The caller takes part as worker 0. Between runs workers spin briefly, then
// sleep. No allocation per run.
//
// A thread that calls for the first time spreads the workers over the other cores, once; after that
// they may move. Left to itself, a scheduler may keep two threads on one core for tens of
// milliseconds.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace deepmint {

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // >= 1; 1 runs everything on the caller
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Calls body(begin, end, worker) over disjoint ranges that cover [0, count), on all threads;
  // returns when all are done. `grain` items are handed out at a time (0 = one equal share per
  // thread). body must not throw.
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

 private:
  using Call = void (*)(void* body, size_t begin, size_t end, int worker);
  void run_erased(size_t count, size_t grain, Call call, void* body);
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int n_threads_;
};

// Of the CPUs that this process may run on: cores, and hardware threads.
int physical_cores();
int logical_cpus();

}  // namespace deepmint
