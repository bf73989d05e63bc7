#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace deepmint {
namespace {

TEST(ThreadPool, CoversEveryItemOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{1001}}) {
        for (const size_t grain : {size_t{0}, size_t{1}, size_t{10}}) {
          std::vector<std::atomic<int>> seen(count);
          pool.run(
              count,
              [&](size_t begin, size_t end, int worker) {
                ASSERT_LT(worker, threads);
                for (size_t i = begin; i < end; ++i) seen[i]++;
              },
              grain);
          for (const auto& s : seen) ASSERT_EQ(s.load(), 1);
        }
      }
    }
  }
}

TEST(ThreadPool, PhysicalCoresIsSane) { EXPECT_GE(physical_cores(), 1); }

}  // namespace
}  // namespace deepmint
