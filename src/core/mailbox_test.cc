#include "core/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>
#include <vector>

namespace deepmint {
namespace {

bool readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

TEST(Mailbox, GivesAllInOrderAndIsReadableUntilThen) {
  Mailbox<int> box;
  ASSERT_GE(box.fd(), 0);
  std::vector<int> out{7};
  EXPECT_FALSE(readable(box.fd()));
  for (int i = 0; i < 3; ++i) box.push(i);
  EXPECT_TRUE(readable(box.fd()));
  box.take(out);
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(readable(box.fd()));
  box.take(out);
  EXPECT_TRUE(out.empty());
  box.push(3);
  EXPECT_TRUE(readable(box.fd()));
}

TEST(Mailbox, LosesNothingBetweenThreads) {
  constexpr int kEach = 20'000;
  Mailbox<int> box;
  std::thread a([&] {
    for (int i = 0; i < kEach; ++i) box.push(i);
  });
  std::thread b([&] {
    for (int i = 0; i < kEach; ++i) box.push(kEach + i);
  });
  std::vector<int> next{0, kEach}, out;
  for (int got = 0; got < 2 * kEach; got += static_cast<int>(out.size())) {
    pollfd p{box.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 10'000), 1);
    box.take(out);
    for (const int item : out) EXPECT_EQ(item, next[item >= kEach ? 1 : 0]++);
  }
  a.join();
  b.join();
}

TEST(Mailbox, KeepsNothingOnceClosed) {
  Mailbox<std::shared_ptr<int>> box;
  const auto item = std::make_shared<int>(1);
  box.push(item);
  box.close();
  EXPECT_EQ(item.use_count(), 1);
  box.push(item);
  EXPECT_EQ(item.use_count(), 1);
}

}  // namespace
}  // namespace deepmint
