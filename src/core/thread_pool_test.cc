#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
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

// What a thread wrote before a meeting, all see after it, call after call.
TEST(ThreadPool, TogetherMeets) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<int> written(static_cast<size_t>(threads));
    std::atomic<int> wrong{0};
    for (int round = 0; round < 8; ++round) {
      pool.together([&](Team& team) {
        if (team.size() != threads || team.rank() >= threads) ++wrong;
        for (int meeting = 0; meeting < 5; ++meeting) {
          const int value = round * 5 + meeting;
          written[static_cast<size_t>(team.rank())] = value;
          team.meet();
          for (const int other : written)
            if (other != value) ++wrong;
          team.meet();
        }
      });
    }
    EXPECT_EQ(wrong.load(), 0) << threads << " threads";
  }
}

// Threads that wait long sleep, and the last to come wakes them.
TEST(ThreadPool, TogetherWakesSleepers) {
  ThreadPool pool(3);
  for (int slow = 0; slow < 3; ++slow) {
    std::atomic<int> through{0};
    pool.together([&](Team& team) {
      if (team.rank() == slow) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
        while (std::chrono::steady_clock::now() < until) {
        }
      }
      team.meet();
      ++through;
    });
    EXPECT_EQ(through.load(), 3);
  }
}

// What each thread did while it waited; at most `most` times.
class Count : public Meanwhile {
 public:
  explicit Count(int threads, int most = 1 << 30)
      : most_(most), times(static_cast<size_t>(threads)) {}
  bool some(int rank) noexcept override {
    ++asked;
    if (times[static_cast<size_t>(rank)] >= most_) return false;
    ++times[static_cast<size_t>(rank)];
    return true;
  }

 private:
  const int most_;

 public:
  std::vector<std::atomic<int>> times;
  std::atomic<int> asked{0};
};

// Each waiting thread, and no other, is asked: the caller while others are in a call, workers
// between calls, whoever is first at a meeting.
TEST(ThreadPool, WaitsWithSomethingMeanwhile) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  Count count(kThreads);
  const auto until_asked = [&](int rank) {
    const int before = count.times[static_cast<size_t>(rank)];
    while (count.times[static_cast<size_t>(rank)] == before) {
    }
  };
  pool.set_meanwhile(&count);
  pool.run(kThreads, [&](size_t begin, size_t, int worker) {
    if (worker == 1) until_asked(0);
    EXPECT_EQ(begin, static_cast<size_t>(worker));
  });
  until_asked(1);
  until_asked(2);
  pool.together([&](Team& team) {
    for (int late = 0; late < kThreads; ++late) {
      if (team.rank() == late)
        for (int other = 0; other < kThreads; ++other)
          if (other != late) until_asked(other);
      team.meet();
    }
  });
  pool.forget(&count);
  const int asked = count.asked;
  pool.run(kThreads, [](size_t, size_t, int) {});
  EXPECT_EQ(count.asked, asked) << "asked after it was forgotten";
}

// One replaces another, forgetting what is not set changes nothing, and what has nothing left to do
// lets threads sleep.
TEST(ThreadPool, MeanwhileComesAndGoes) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 40; ++round) {
      Count first(threads, round % 7);
      pool.set_meanwhile(&first);
      std::atomic<int> ran{0};
      pool.run(static_cast<size_t>(threads),
               [&](size_t begin, size_t end, int) { ran += static_cast<int>(end - begin); });
      EXPECT_EQ(ran, threads);
      {
        Count second(threads);
        pool.set_meanwhile(&second);
        pool.forget(&first);
        pool.run(static_cast<size_t>(threads), [](size_t, size_t, int) {});
        pool.forget(&second);
      }
      for (const auto& times : first.times) EXPECT_LE(times, round % 7);
    }
    std::atomic<int> through{0};
    Count none(threads, 0);
    pool.set_meanwhile(&none);
    for (int call = 0; call < 3; ++call) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they sleep by now
      pool.together([&](Team& team) {
        team.meet();
        ++through;
      });
    }
    EXPECT_EQ(through, 3 * threads);
    pool.set_meanwhile(nullptr);
  }
}

// A caller that is new to the pool has its workers on other cores, and they may run anywhere
// afterwards.
// From one thread or from several, in run() and around the meetings of together(); the pool goes
// on.
TEST(ThreadPool, ThrowsToTheCaller) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const auto what = [](auto&& call) {
      try {
        call();
      } catch (const std::runtime_error& e) {
        return std::string(e.what());
      }
      return std::string("nothing");
    };
    for (int bad = 0; bad < threads; ++bad)
      for (const bool alone : {true, false}) {
        const auto fail = [&](int rank) {
          if (alone ? rank == bad : rank >= bad) throw std::runtime_error("bad");
        };
        EXPECT_EQ(what([&] {
                    pool.run(static_cast<size_t>(threads),
                             [&](size_t, size_t, int worker) { fail(worker); });
                  }),
                  "bad");
        for (int at = 0; at < 3; ++at) {
          std::atomic<int> left = 0, beyond = 0;
          const auto body = [&](Team& team) {
            struct Leave {
              std::atomic<int>& count;
              ~Leave() { ++count; }
            } const leave{left};
            for (int meeting = 0; meeting < 3; ++meeting) {
              if (meeting == at) fail(team.rank());
              team.meet();
              if (meeting == at) ++beyond;
            }
          };
          EXPECT_EQ(what([&] { pool.together(body); }), "bad");
          EXPECT_EQ(left, threads) << "a thread is still inside";
          EXPECT_EQ(beyond, 0) << "a thread went past a meeting to which not all have come";
        }
        std::atomic<size_t> sum = 0;
        pool.together([&](Team& team) {
          ++sum;
          team.meet();
          if (sum != static_cast<size_t>(threads)) sum = 1000;
        });
        pool.run(100, [&](size_t begin, size_t end, int) { sum += end - begin; }, 1);
        EXPECT_EQ(sum, 100 + static_cast<size_t>(threads)) << "after an exception";
      }
  }
}

TEST(ThreadPool, SpreadsOverTheCoresOnceForEachCaller) {
  const int threads = physical_cores();
  if (threads < 2) GTEST_SKIP() << "one core";
  ThreadPool pool(threads);
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const auto check = [&] {
    std::vector<int> may(static_cast<size_t>(threads));
    pool.run(1, [](size_t, size_t, int) {});
    pool.run(may.size(), [&](size_t, size_t, int worker) {
      cpu_set_t own;
      if (sched_getaffinity(0, sizeof(own), &own) == 0)
        may[static_cast<size_t>(worker)] = CPU_EQUAL(&own, &allowed);
    });
    for (const int whole : may) EXPECT_EQ(whole, 1);
  };
  check();
  std::thread(check).join();  // another caller
  check();
}

TEST(ThreadPool, TellsTheWatchOncePerThreadAndCall) {
  struct Watch : PoolWatch {
    explicit Watch(size_t threads) : parts(threads) {}
    std::vector<std::vector<std::pair<Time, Time>>> parts;  // of each thread
    void worked(int rank, Time begin, Time end) override {
      parts[static_cast<size_t>(rank)].emplace_back(begin, end);
    }
  };
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Watch watch(static_cast<size_t>(threads));
    pool.set_watch(&watch);
    const auto nothing = [](size_t, size_t, int) {};
    const auto start = PoolWatch::Time::clock::now();
    pool.run(1, nothing);  // some threads have no item
    pool.run(10, nothing, 1);
    pool.together([](Team& team) { team.meet(); });
    const auto end = PoolWatch::Time::clock::now();
    pool.set_watch(nullptr);
    pool.run(10, nothing);
    for (const auto& calls : watch.parts) {
      ASSERT_EQ(calls.size(), 3u) << threads;
      auto last = start;
      for (const auto& [from, to] : calls) {
        EXPECT_LE(last, from);
        EXPECT_LE(from, to);
        last = to;
      }
      EXPECT_LE(last, end);
    }
  }
}

TEST(ThreadPool, PhysicalCoresIsSane) { EXPECT_GE(physical_cores(), 1); }

}  // namespace
}  // namespace deepmint
