#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace deepmint {
namespace {

using Size = WorkerPool::Size;

TEST(WorkerPool, HugeJobsNeverStandInTheWayOfSmallOnes) {
  std::promise<void> release;
  const auto released = release.get_future().share();
  std::atomic<int> large_done{0};
  WorkerPool pool(3, 100);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(pool.submit([&, released] { released.wait(), ++large_done; }, Size::kLarge));
  std::promise<void> small;
  ASSERT_TRUE(pool.submit([&] { small.set_value(); }, Size::kSmall));
  EXPECT_EQ(small.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(large_done, 0);
  release.set_value();
  std::promise<void> last;
  ASSERT_TRUE(pool.submit([&] { last.set_value(); }, Size::kLarge));
  last.get_future().wait();
}

TEST(WorkerPool, OneThreadDoesEverythingInOrder) {
  WorkerPool pool(1, 100);
  std::promise<void> release;
  std::string order;
  pool.submit([&] { release.get_future().wait(); }, Size::kLarge);
  std::promise<void> done;
  pool.submit([&] { order += 'a'; }, Size::kLarge);
  pool.submit([&] { order += 'b'; }, Size::kSmall);
  pool.submit([&] { order += 'c', done.set_value(); }, Size::kLarge);
  release.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, "abc");
}

TEST(WorkerPool, FullAndStoppedPoolsRefuse) {
  std::promise<void> release, begun;
  std::atomic<int> ran{0};
  WorkerPool pool(1, 2);
  pool.submit([&] { begun.set_value(), release.get_future().wait(), ++ran; }, Size::kSmall);
  begun.get_future().wait();
  EXPECT_TRUE(pool.submit([&] { ++ran; }, Size::kSmall));
  EXPECT_TRUE(pool.submit([&] { ++ran; }, Size::kLarge));
  EXPECT_FALSE(pool.submit([&] { ++ran; }, Size::kSmall));
  std::thread stopping([&] { pool.stop(); });
  // The running job ends by itself; what has not begun is dropped.
  while (pool.submit([] {}, Size::kSmall)) std::this_thread::yield();
  release.set_value();
  stopping.join();
  EXPECT_FALSE(pool.submit([&] { ++ran; }, Size::kSmall));
  EXPECT_LE(ran, 3);
  EXPECT_GE(ran, 1);
}

}  // namespace
}  // namespace deepmint
