// The cache against a model made of maps and lists, under random histories.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "kvcache/cache_manager.h"
#include "kvcache/cache_manager_testing.h"
#include "support/test_seed.h"

namespace deepmint::kvcache {
namespace {

// The same cache, made of maps.
class PlainCache {
 public:
  struct Block {
    int holders = 0;
    bool hot = false;
    Clock::time_point last_use;
  };

  PlainCache(size_t total, size_t protected_limit, std::chrono::nanoseconds ttl)
      : free_(total), protected_limit_(protected_limit), ttl_(ttl) {}

  size_t available() const { return free_ + probation_.size() + protected_.size() - reserved; }

  std::pair<size_t, MissReason> match(const Path& path, Clock::time_point now) const {
    for (size_t i = 1; i < path.size(); ++i) {
      const Path prefix = first(path, i);
      const auto it = blocks.find(prefix);
      if (it == blocks.end()) {
        if (const auto g = gone_.find(prefix); g != gone_.end()) return {i - 1, g->second};
        if (i > 1) return {i - 1, MissReason::kFirstDivergent};
        for (const auto& [other, block] : blocks)
          if (other.size() == 2 && other[1] == path[1]) return {0, MissReason::kSalt};
        return {0, MissReason::kNeverSeen};
      }
      if (it->second.holders == 0 && now - it->second.last_use > ttl_)
        return {i - 1, MissReason::kExpired};
    }
    return {path.size() - 1, MissReason::kNone};
  }
  size_t idle_in(const Path& path, size_t blocks_of_path) const {
    size_t n = 0;
    for (size_t i = 1; i <= blocks_of_path; ++i) n += blocks.at(first(path, i)).holders == 0;
    return n;
  }
  void pin(const Path& prefix, bool hit) {
    Block& b = blocks.at(prefix);
    if (b.holders++ == 0) {
      std::erase(probation_, prefix);
      std::erase(protected_, prefix);
    }
    if (hit) b.hot = true;
  }
  void unpin(const Path& prefix, Clock::time_point now) {
    Block& b = blocks.at(prefix);
    if (--b.holders > 0) return;
    b.last_use = now;
    (b.hot ? protected_ : probation_).push_back(prefix);
    while (protected_.size() > protected_limit_) {
      blocks.at(protected_.front()).hot = false;
      probation_.push_back(protected_.front());
      protected_.pop_front();
    }
  }
  void take() {
    if (free_ == 0) {
      auto& queue = probation_.empty() ? protected_ : probation_;
      remove(Path(queue.front()), MissReason::kEvicted);
    }
    --free_;
    --reserved;
  }
  void give_back_taken() { ++free_; }
  // Whether it was new.
  bool publish(const Path& prefix, Clock::time_point now) {
    if (blocks.contains(prefix)) {
      pin(prefix, false);
      return false;
    }
    blocks[prefix] = {1, false, now};
    return true;
  }
  void sweep(Clock::time_point now) {
    for (auto* queue : {&probation_, &protected_})
      while (!queue->empty() && now - blocks.at(queue->front()).last_use > ttl_ &&
             is_leaf(queue->front()))
        remove(Path(queue->front()), MissReason::kExpired);
  }
  void clear() {
    for (auto* queue : {&probation_, &protected_})
      while (!queue->empty()) remove(Path(queue->front()), MissReason::kEvicted);
  }

  std::map<Path, Block> blocks;
  size_t reserved = 0;

 private:
  bool is_leaf(const Path& prefix) const {
    const auto next = blocks.upper_bound(prefix);
    return next == blocks.end() || next->first.size() <= prefix.size() ||
           !std::equal(prefix.begin(), prefix.end(), next->first.begin());
  }
  void remove(const Path& prefix, MissReason reason) {
    ASSERT_TRUE(is_leaf(prefix)) << "a parent would go before its child";
    blocks.erase(prefix);
    std::erase(probation_, prefix);
    std::erase(protected_, prefix);
    gone_[prefix] = reason;
    ++free_;
  }

  std::deque<Path> probation_, protected_;  // oldest first
  std::map<Path, MissReason> gone_;
  size_t free_, protected_limit_;
  std::chrono::nanoseconds ttl_;
};

class RandomHistory {
 public:
  RandomHistory(uint64_t seed, bool with_ttl)
      : rng_(seed),
        total_(4 + rng_() % 40),
        world_([&] {
          CacheSetup s = setup_for(total_, 6, rng_() % 4);
          s.protected_share = static_cast<double>(rng_() % 5) / 4;
          if (with_ttl) s.block_ttl = seconds(60);
          s.snapshot_ttl = seconds(90);
          share_ = s.protected_share;
          ttl_ = s.block_ttl;
          return s;
        }()),
        plain_(total_, static_cast<size_t>(share_ * static_cast<double>(total_)), ttl_) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      switch (rng_() % 12) {
        case 0:
        case 1:
        case 2:
          admit();
          break;
        case 3:
        case 4:
        case 5:
        case 6:
          grow();
          break;
        case 7:
        case 8:
          if (!users_.empty()) release(rng_() % users_.size());
          break;
        case 9:
          snapshot();
          break;
        case 10:
          world_.now += seconds(static_cast<int>(rng_() % 40) - 5);
          break;
        default:
          if (rng_() % 4 == 0) {
            tell();
            world_.cache->sweep(world_.now);
            plain_.sweep(latest_);
          } else if (rng_() % 20 == 0) {
            world_.cache->clear();
            plain_.clear();
          }
      }
      compare();
    }
    while (!users_.empty() && !::testing::Test::HasFatalFailure()) release(0);
    world_.expect_idle();
  }

 private:
  // The cache knows only the times that it was told: before each call that takes one.
  void tell() { latest_ = std::max(latest_, world_.now); }

  // Prompts that share beginnings: a few trunks, few kinds of blocks.
  Path random_path() {
    Path path = {static_cast<int>(rng_() % 8 == 0)};
    const size_t n = 1 + rng_() % std::min<size_t>(10, total_);
    const size_t trunk = rng_() % 3;
    for (size_t i = 0; i < n; ++i)
      path.push_back(rng_() % 4 != 0 ? static_cast<int>(trunk) : static_cast<int>(rng_() % 4));
    return path;
  }

  void admit() {
    tell();
    User u(random_path());
    const auto [hit, reason] = plain_.match(u.path, latest_);
    const Match m = world_.match(u);
    ASSERT_EQ(m.hit_blocks, hit);
    ASSERT_EQ(m.reason, reason) << to_string(m.reason) << ", expected " << to_string(reason);
    ASSERT_LE(m.snapshot_blocks, m.hit_blocks);
    const size_t new_blocks = u.blocks() - hit;
    const Acquired got = world_.acquire(u, m);
    if (users_.size() == 6) {
      ASSERT_EQ(got, Acquired::kNoSlot);
      return;
    }
    if (plain_.idle_in(u.path, hit) + new_blocks > plain_.available()) {
      ASSERT_EQ(got, Acquired::kNoBlocks);
      return;
    }
    ASSERT_EQ(got, Acquired::kYes);
    for (size_t i = 1; i <= hit; ++i) plain_.pin(first(u.path, i), true);
    plain_.reserved += new_blocks;
    world_.expect_right(u, "hit");
    if (m.snapshot_blocks > 0) {
      ASSERT_TRUE(world_.cache->snapshot_get(u.lease, m.snapshot_blocks, world_.now));
      ASSERT_EQ(world_.read_slot(u), state_of(first(u.path, m.snapshot_blocks)) + 1);
    }
    users_.push_back(std::move(u));
  }

  void grow() {
    if (users_.empty()) return;
    User& u = users_[rng_() % users_.size()];
    for (size_t n = rng_() % 4; n > 0 && u.lease.blocks().size() < u.blocks(); --n) {
      world_.run_block(u);
      plain_.take();
    }
    if (rng_() % 3 == 0) return;
    const size_t before = u.lease.published();
    tell();
    world_.publish(u);
    for (size_t i = before; i < u.lease.published(); ++i)
      if (!plain_.publish(first(u.path, i + 1), latest_)) plain_.give_back_taken();
    ASSERT_EQ(u.lease.published(), u.lease.blocks().size());
    world_.expect_right(u, "grown");
  }

  void release(size_t index) {
    tell();
    User u = std::move(users_[index]);
    users_.erase(users_.begin() + static_cast<ptrdiff_t>(index));
    plain_.reserved -= u.lease.reserved();
    for (size_t i = u.lease.blocks().size(); i > 0; --i) {
      if (i > u.lease.published()) plain_.give_back_taken();
    }
    for (size_t i = u.lease.published(); i > 0; --i) plain_.unpin(first(u.path, i), latest_);
    world_.cache->release(u.lease, world_.now);
  }

  void snapshot() {
    if (users_.empty()) return;
    User& u = users_[rng_() % users_.size()];
    if (u.lease.published() == 0) return;
    const size_t at = 1 + rng_() % u.lease.published();
    tell();
    world_.write_slot(u, state_of(first(u.path, at)) + 1);
    world_.cache->snapshot_put(u.lease, at, 0, world_.now);
  }

  void compare() {
    const Status ok = world_.cache->check();
    ASSERT_TRUE(ok) << ok.error().str();
    const CacheReport r = world_.cache->report();
    ASSERT_EQ(r.blocks_cached + r.blocks_pinned, plain_.blocks.size());
    ASSERT_EQ(r.blocks_free + r.blocks_cached - r.blocks_reserved, plain_.available());
    ASSERT_EQ(r.blocks_reserved, plain_.reserved);
    ASSERT_EQ(r.slots_used, users_.size());
    // A published block never changes.
    std::map<BlockId, uint64_t> sums;
    for (const BlockId b : world_.cache->published_blocks()) {
      sums[b] = world_.cache->checksum(b);
    }
    static std::vector<CacheEvent> events(4096);
    const size_t n = world_.cache->drain_events(events);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(events[i].sequence, ++last_event_);
      const std::pair<uint64_t, uint64_t> id{events[i].id.low, events[i].id.high};
      if (events[i].kind == CacheEvent::Kind::kBlockStored) {
        ASSERT_TRUE(index_.insert(id).second);
      } else if (events[i].kind == CacheEvent::Kind::kBlockRemoved) {
        ASSERT_EQ(index_.erase(id), 1u);
      } else {
        ASSERT_TRUE(index_.empty());
      }
    }
    ASSERT_EQ(index_.size(), plain_.blocks.size()) << "events do not add up to what is there";
    if (n == 0)
      for (const auto& [b, sum] : sums)
        if (const auto it = sums_.find(b); it != sums_.end()) {
          ASSERT_EQ(it->second, sum);
        }
    sums_ = std::move(sums);
  }

  std::mt19937_64 rng_;
  size_t total_;
  double share_ = 0;
  std::chrono::nanoseconds ttl_{};
  World world_;
  PlainCache plain_;
  std::vector<User> users_;
  Clock::time_point latest_{seconds(1000)};
  uint64_t last_event_ = 0;
  std::set<std::pair<uint64_t, uint64_t>> index_;
  std::map<BlockId, uint64_t> sums_;
};

TEST(CacheManager, RandomHistoriesAgainstAPlainModel) {
  const uint64_t seed = testing::test_seed();
  for (uint64_t round = 0; round < 120; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    RandomHistory history(seed + round, round % 3 == 0);
    history.run(300);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace deepmint::kvcache
