// The cache against a model made of maps and lists, under random histories; and the named cases.
#include "kvcache/cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "kvcache/seq_state.h"
#include "support/counting_new.h"
#include "support/test_seed.h"

namespace deepmint::kvcache {
namespace {

using std::chrono::seconds;

// A prefix in blocks: [0] is the tenant, the rest says what each block holds.
using Path = std::vector<int>;

std::string salt_of(const Path& path) {
  return path[0] == 0 ? "" : "tenant" + std::to_string(path[0]);
}

std::vector<TokenId> tokens_of(const Path& path) {
  std::vector<TokenId> tokens;
  for (size_t i = 1; i < path.size(); ++i)
    for (int t = 0; t < kBlockTokens; ++t) tokens.push_back(path[i] * 100 + t % 7);
  return tokens;
}

HashChain chain_of(const Path& path) {
  HashChain chain({.model_fingerprint = 5, .layout_fingerprint = 6, .salt = salt_of(path)});
  chain.append(tokens_of(path));
  return chain;
}

Path first(const Path& path, size_t blocks) {
  return {path.begin(), path.begin() + static_cast<ptrdiff_t>(blocks) + 1};
}

// What state must be in the block at the end of a prefix, or in the slot there.
uint64_t state_of(const Path& path) { return xxh3_64(std::as_bytes(std::span(path)), 77); }

CacheSetup setup_for(size_t n_blocks, size_t n_slots = 8, size_t n_snapshots = 4) {
  CacheSetup s;
  s.parts = {{"kv", PartFamily::kGlobal, 64}, {"ring", PartFamily::kPrivate, 64}};
  s.n_blocks = n_blocks;
  s.n_slots = n_slots;
  s.n_snapshots = n_snapshots;
  return s;
}

std::unique_ptr<CacheManager> make(CacheSetup setup) {
  auto made = CacheManager::create(std::move(setup));
  if (!made) throw std::runtime_error(made.error().str());
  return std::move(*made);
}

// One sequence of a test: what it runs, what it holds.
struct User {
  Path path;  // whole
  std::vector<TokenId> tokens;
  HashChain chain;
  Lease lease{16};

  explicit User(Path p) : path(std::move(p)), tokens(tokens_of(path)), chain(chain_of(path)) {}
  size_t blocks() const { return path.size() - 1; }
};

class World {
 public:
  explicit World(CacheSetup setup) : cache(make(std::move(setup))) {}

  Match match(const User& u) { return cache->match(u.chain.full_blocks(), u.tokens, now); }
  Acquired acquire(User& u, const Match& m) {
    return cache->acquire(u.lease, m, u.blocks() - m.hit_blocks, now, u.blocks());
  }
  // Computes the next block: takes it and writes what belongs there.
  void run_block(User& u) {
    const BlockId b = cache->take(u.lease);
    const uint64_t state = state_of(first(u.path, u.lease.blocks().size()));
    std::memcpy(cache->arena().element(0, static_cast<size_t>(b)).data(), &state, sizeof state);
  }
  void publish(User& u) { cache->publish(u.lease, u.chain.full_blocks(), u.tokens, now); }
  // Every block that the user holds has the state of its own prefix.
  void expect_right(const User& u, const std::string& what = {}) {
    for (size_t i = 0; i < u.lease.blocks().size(); ++i) {
      uint64_t found = 0;
      std::memcpy(&found,
                  cache->arena().element(0, static_cast<size_t>(u.lease.blocks()[i])).data(),
                  sizeof found);
      ASSERT_EQ(found, state_of(first(u.path, i + 1))) << what << " block " << i;
    }
  }
  void write_slot(User& u, uint64_t value) {
    std::memcpy(cache->arena().element(1, static_cast<size_t>(u.lease.slot())).data(), &value,
                sizeof value);
  }
  uint64_t read_slot(const User& u) {
    uint64_t value = 0;
    std::memcpy(&value, cache->arena().element(1, static_cast<size_t>(u.lease.slot())).data(),
                sizeof value);
    return value;
  }
  // A whole life: cold or hit, all blocks, back.
  Match live(const Path& path) {
    User u(path);
    const Match m = match(u);
    EXPECT_EQ(acquire(u, m), Acquired::kYes);
    while (u.lease.blocks().size() < u.blocks()) run_block(u);
    publish(u);
    expect_right(u);
    cache->release(u.lease, now);
    return m;
  }
  void expect_idle() {
    const CacheReport r = cache->report();
    EXPECT_EQ(r.blocks_taken + r.blocks_pinned + r.blocks_reserved, 0u);
    EXPECT_EQ(r.blocks_free + r.blocks_cached, r.blocks_total);
    EXPECT_EQ(r.slots_used, 0u);
    const Status ok = cache->check();
    EXPECT_TRUE(ok) << ok.error().str();
  }

  std::unique_ptr<CacheManager> cache;
  Clock::time_point now{seconds(1000)};
};

// ---------------------------------------------------------------- named cases

TEST(CacheManager, AHitIsTheLongestPublishedPrefix) {
  World w(setup_for(16));
  EXPECT_EQ(w.live({0, 1, 2, 3}).hit_blocks, 0u);
  EXPECT_EQ(w.live({0, 1, 2, 3}).hit_blocks, 3u);
  const Match longer = w.live({0, 1, 2, 3, 4});
  EXPECT_EQ(longer.hit_blocks, 3u);
  EXPECT_EQ(longer.reason, MissReason::kFirstDivergent);
  EXPECT_EQ(w.live({0, 1, 9, 3}).hit_blocks, 1u);
  EXPECT_EQ(w.live({0, 2, 3}).hit_blocks, 0u);
  w.expect_idle();
  EXPECT_EQ(w.cache->counters().hit_blocks, 7);
  EXPECT_EQ(w.cache->counters().wanted_blocks, 3 + 3 + 4 + 3 + 2);
}

TEST(CacheManager, SaysWhyAHitEnds) {
  CacheSetup s = setup_for(4);
  s.block_ttl = seconds(100);
  World w(s);
  EXPECT_EQ(w.live({0, 1, 2}).reason, MissReason::kNeverSeen);
  EXPECT_EQ(w.live({0, 1, 2}).reason, MissReason::kNone);
  EXPECT_EQ(w.live({7, 1, 2}).reason, MissReason::kSalt);
  EXPECT_EQ(w.live({0, 3, 4, 5, 6}).reason, MissReason::kNeverSeen);
  EXPECT_EQ(w.live({7, 1, 2}).reason, MissReason::kEvicted);
  w.now += seconds(100);
  EXPECT_EQ(w.match(User({7, 1, 2})).hit_blocks, 2u);
  w.now += seconds(1);
  EXPECT_EQ(w.match(User({7, 1, 2})).reason, MissReason::kExpired);
  w.cache->sweep(w.now);
  EXPECT_EQ(w.match(User({7, 1, 2})).reason, MissReason::kExpired);
  EXPECT_EQ(w.cache->report().blocks_free, 4u);
  EXPECT_EQ(to_string(MissReason::kFirstDivergent), "first_divergent");
}

TEST(CacheManager, TheTailOfAPrefixGoesFirst) {
  World w(setup_for(6));
  w.live({0, 1, 2, 3, 4, 5});
  w.live({0, 8, 9, 10});  // one block was free; two had to go
  EXPECT_EQ(w.match(User({0, 1, 2, 3, 4, 5})).hit_blocks, 3u);
  EXPECT_EQ(w.match(User({0, 8, 9, 10})).hit_blocks, 3u);
}

TEST(CacheManager, WhatWasHitOutlivesAScan) {
  for (const auto policy : {EvictionPolicy::kSegmentedLru, EvictionPolicy::kLru}) {
    CacheSetup s = setup_for(8);
    s.policy = policy;
    World w(s);
    w.live({0, 1, 2, 3});
    w.live({0, 1, 2, 3});
    for (int i = 10; i < 30; ++i) w.live({0, i, i + 100});
    EXPECT_EQ(w.match(User({0, 1, 2, 3})).hit_blocks,
              policy == EvictionPolicy::kSegmentedLru ? 3u : 0u);
  }
}

// A block that was handed back to probation stays there until it is hit again; that somebody
// computes it a second time is no hit.
TEST(CacheManager, ADemotedBlockMustBeHitAgainToBeKept) {
  CacheSetup s = setup_for(3);
  s.protected_share = 0.34;  // of 3: one block
  World w(s);
  w.live({0, 1});
  w.live({0, 1});
  w.live({0, 2});
  w.live({0, 2});  // takes the place of {0, 1}
  User twin({0, 1});
  ASSERT_EQ(w.acquire(twin, Match{}), Acquired::kYes);
  w.run_block(twin);
  w.publish(twin);
  EXPECT_EQ(w.cache->counters().duplicates, 1);
  w.cache->release(twin.lease, w.now);
  w.live({0, 3});
  w.live({0, 4});
  EXPECT_EQ(w.match(User({0, 1})).hit_blocks, 0u);
  EXPECT_EQ(w.match(User({0, 2})).hit_blocks, 1u);
  w.expect_idle();
}

TEST(CacheManager, AcquireIsAllOrNothing) {
  World w(setup_for(5, 2));
  w.live({0, 1, 2, 3});
  User hit({0, 1, 2, 3, 4, 5});
  const Match m = w.match(hit);
  ASSERT_EQ(m.hit_blocks, 3u);
  User other({0, 9});
  ASSERT_EQ(w.acquire(other, w.match(other)), Acquired::kYes);  // one of the two free blocks
  EXPECT_EQ(w.acquire(hit, m), Acquired::kNoBlocks);  // 2 new ones do not fit beside its own hit
  EXPECT_FALSE(hit.lease.held());
  EXPECT_EQ(w.cache->report().blocks_cached, 3u);
  EXPECT_EQ(w.cache->report().blocks_reserved, 1u);
  w.cache->release(other.lease, w.now);
  EXPECT_EQ(w.acquire(hit, m), Acquired::kYes);
  User third({0, 1}), fourth({0, 1});
  EXPECT_EQ(w.acquire(third, w.match(third)), Acquired::kYes);
  EXPECT_EQ(w.acquire(fourth, w.match(fourth)), Acquired::kNoSlot);
  w.cache->release(third.lease, w.now);
  w.cache->release(hit.lease, w.now);
  EXPECT_TRUE(w.cache->can_ever_fit(5));
  EXPECT_FALSE(w.cache->can_ever_fit(6));
  w.expect_idle();
}

TEST(CacheManager, AMatchThatIsNoLongerTrueIsRefused) {
  World w(setup_for(3));
  w.live({0, 1, 2});
  User late({0, 1, 2, 3});
  const Match m = w.match(late);
  w.live({0, 7, 8, 9});
  EXPECT_EQ(w.acquire(late, m), Acquired::kStale);
  EXPECT_FALSE(late.lease.held());
  w.expect_idle();
}

TEST(CacheManager, ReservedBlocksEvictOnlyWhenTheyAreTaken) {
  World w(setup_for(4));
  w.live({0, 1, 2, 3, 4});
  User u({0, 9, 10, 11});
  ASSERT_EQ(w.acquire(u, w.match(u)), Acquired::kYes);
  EXPECT_EQ(w.match(User({0, 1, 2, 3, 4})).hit_blocks, 4u);
  w.run_block(u);
  EXPECT_EQ(w.match(User({0, 1, 2, 3, 4})).hit_blocks, 3u);
  EXPECT_EQ(u.lease.reserved(), 2u);
  EXPECT_EQ(w.cache->report().blocks_reserved, 2u);
  w.cache->release(u.lease, w.now);
  w.expect_idle();
}

TEST(CacheManager, OfTwoThatComputeTheSameTheFirstStands) {
  World w(setup_for(8));
  User a({0, 1, 2}), b({0, 1, 2});
  ASSERT_EQ(w.acquire(a, w.match(a)), Acquired::kYes);
  ASSERT_EQ(w.acquire(b, w.match(b)), Acquired::kYes);
  for (User* u : {&a, &b})
    for (int i = 0; i < 2; ++i) w.run_block(*u);
  w.publish(a);
  w.publish(b);
  EXPECT_EQ(w.cache->counters().duplicates, 2);
  EXPECT_EQ(w.cache->report().blocks_taken, 0u);
  w.expect_right(b);
  EXPECT_TRUE(std::ranges::equal(a.lease.blocks(), b.lease.blocks()));
  EXPECT_TRUE(w.cache->check());
  w.cache->release(a.lease, w.now);
  EXPECT_EQ(w.cache->report().blocks_pinned, 2u);
  w.cache->release(b.lease, w.now);
  w.expect_idle();
  EXPECT_EQ(w.cache->counters().released, 2);
}

TEST(CacheManager, SnapshotsComeBackUntilTheirTimeIsUp) {
  World w(setup_for(8, 2, 2));
  const Path path = {0, 1, 2, 3};
  User u(path);
  ASSERT_EQ(w.acquire(u, w.match(u)), Acquired::kYes);
  for (int i = 0; i < 3; ++i) w.run_block(u);
  EXPECT_FALSE(w.cache->snapshot_put(u.lease, 2, 0, w.now)) << "not published yet";
  w.publish(u);
  w.write_slot(u, 42);
  ASSERT_TRUE(w.cache->snapshot_put(u.lease, 2, 9, w.now));
  w.cache->release(u.lease, w.now);

  w.now += seconds(180);
  User again(path);
  Match m = w.match(again);
  EXPECT_EQ(m.hit_blocks, 3u);
  EXPECT_EQ(m.snapshot_blocks, 2u);
  EXPECT_EQ(m.snapshot_tag, 9u);
  ASSERT_EQ(w.acquire(again, m), Acquired::kYes);
  w.write_slot(again, 7);
  ASSERT_TRUE(w.cache->snapshot_get(again.lease, 2, w.now));  // and lives on from here
  EXPECT_EQ(w.read_slot(again), 42u);
  EXPECT_FALSE(w.cache->snapshot_get(again.lease, 3, w.now));
  w.now += seconds(181);
  EXPECT_EQ(w.match(again).snapshot_blocks, 0u);
  EXPECT_EQ(w.match(again).hit_blocks, 3u) << "a missing snapshot never shortens a hit";
  EXPECT_FALSE(w.cache->snapshot_get(again.lease, 2, w.now));
  w.cache->sweep(w.now);
  EXPECT_EQ(w.cache->report().snapshots_used, 0u);
  w.cache->release(again.lease, w.now);
  w.expect_idle();
}

TEST(CacheManager, AFullSnapshotStoreGivesUpWhatWasNotUsed) {
  World w(setup_for(16, 2, 2));
  const auto put = [&](const Path& path) {
    User u(path);
    ASSERT_EQ(w.acquire(u, w.match(u)), Acquired::kYes);
    while (u.lease.blocks().size() < u.blocks()) w.run_block(u);
    w.publish(u);
    w.write_slot(u, state_of(path));
    ASSERT_TRUE(w.cache->snapshot_put(u.lease, u.blocks(), 0, w.now));
    w.cache->release(u.lease, w.now);
  };
  const auto get = [&](const Path& path) {
    User u(path);
    const Match m = w.match(u);
    EXPECT_EQ(w.acquire(u, m), Acquired::kYes);
    const bool there =
        m.snapshot_blocks == u.blocks() && w.cache->snapshot_get(u.lease, m.snapshot_blocks, w.now);
    if (there) {
      EXPECT_EQ(w.read_slot(u), state_of(path));
    }
    w.cache->release(u.lease, w.now);
    return there;
  };
  put({0, 1});
  put({0, 2});
  EXPECT_TRUE(get({0, 1}));
  put({0, 3});
  EXPECT_TRUE(get({0, 1}));
  EXPECT_FALSE(get({0, 2}));
  EXPECT_TRUE(get({0, 3}));
  EXPECT_EQ(w.cache->counters().snapshots_evicted, 1);
  w.cache->clear();
  EXPECT_EQ(w.cache->report().snapshots_used, 0u);
  w.expect_idle();
}

TEST(CacheManager, ASnapshotIsReplacedByOneOfAnotherTagOnly) {
  World w(setup_for(8, 2, 2));
  User u({0, 1});
  ASSERT_EQ(w.acquire(u, w.match(u)), Acquired::kYes);
  w.run_block(u);
  w.publish(u);
  const auto put = [&](uint32_t tag, uint64_t value) {
    w.write_slot(u, value);
    EXPECT_TRUE(w.cache->snapshot_put(u.lease, 1, tag, w.now));
    w.write_slot(u, 99);
    EXPECT_EQ(w.match(u).snapshot_tag, tag);
    EXPECT_TRUE(w.cache->snapshot_get(u.lease, 1, w.now));
    return w.read_slot(u);
  };
  EXPECT_EQ(put(1, 5), 5u);
  EXPECT_EQ(put(1, 6), 5u);  // the same state by definition: not copied again
  EXPECT_EQ(put(2, 7), 7u);
  EXPECT_EQ(w.cache->counters().snapshots_stored, 1);
  // clear() leaves the blocks that somebody holds, and no snapshot.
  w.cache->clear();
  EXPECT_EQ(w.match(u).hit_blocks, 1u);
  EXPECT_EQ(w.match(u).snapshot_blocks, 0u);
  EXPECT_EQ(w.cache->report().snapshots_used, 0u);
  EXPECT_EQ(w.cache->counters().snapshots_evicted, 1);
  w.cache->release(u.lease, w.now);
  w.expect_idle();
}

TEST(CacheManager, CountsWhatHappens) {
  CacheSetup s = setup_for(4, 2, 1);
  s.block_ttl = seconds(100);
  World w(s);
  w.live({0, 1, 2});
  w.live({0, 1, 2});
  w.live({0, 1, 3});
  EXPECT_EQ(w.cache->report().blocks_protected, 2u);
  const CacheCounters& c = w.cache->counters();
  const auto missed = [&](MissReason reason) { return c.misses[static_cast<size_t>(reason)]; };
  EXPECT_EQ(missed(MissReason::kNeverSeen), 1);
  EXPECT_EQ(missed(MissReason::kNone), 1);
  EXPECT_EQ(missed(MissReason::kFirstDivergent), 1);
  EXPECT_EQ(c.stored, 3);
  User large({0, 5, 6, 7, 8, 9});
  EXPECT_EQ(w.acquire(large, w.match(large)), Acquired::kNoBlocks);
  User a({0, 1}), b({0, 1}), third({0, 1});
  ASSERT_EQ(w.acquire(a, w.match(a)), Acquired::kYes);
  ASSERT_EQ(w.acquire(b, w.match(b)), Acquired::kYes);
  EXPECT_EQ(w.acquire(third, w.match(third)), Acquired::kNoSlot);
  EXPECT_EQ(c.refused, 2);
  EXPECT_TRUE(w.cache->snapshot_put(a.lease, 1, 0, w.now));
  w.cache->release(a.lease, w.now);
  w.cache->release(b.lease, w.now);
  EXPECT_EQ(c.acquired, 5);
  EXPECT_EQ(c.released, 5);
  w.now += seconds(101);
  w.cache->sweep(w.now);
  EXPECT_EQ(c.expired, 3);
  EXPECT_EQ(c.evicted, 0);
  EXPECT_EQ(c.snapshots_evicted, 1);  // with its block, before its own time
  w.expect_idle();
}

TEST(CacheManager, AForcedCollisionIsAMiss) {
  CacheSetup s = setup_for(64);
  s.hash_bits = 1;  // two blocks at most can be published
  World w(s);
  std::mt19937_64 rng(testing::test_seed());
  for (int i = 0; i < 200; ++i) {
    Path path = {static_cast<int>(rng() % 2)};
    const size_t n = 1 + rng() % 5;
    for (size_t b = 0; b < n; ++b) path.push_back(static_cast<int>(rng() % 3));
    w.live(path);  // checks the state of every block
    ASSERT_TRUE(w.cache->check());
  }
  EXPECT_GT(w.cache->counters().collisions, 50);
  EXPECT_LE(w.cache->report().blocks_cached, 2u);
  w.expect_idle();
}

// The same ids under other salts: only the second digest tells them apart when the first is equal.
TEST(CacheManager, TenantsWhoseHashesCollideShareNothing) {
  CacheSetup s = setup_for(64);
  s.hash_bits = 1;
  World w(s);
  w.live({0, 1});
  for (int tenant = 1; tenant <= 20; ++tenant)
    EXPECT_EQ(w.live({tenant, 1}).hit_blocks, 0u) << tenant;
  EXPECT_GT(w.cache->counters().collisions, 0);
  w.expect_idle();
}

// The same ids behind other beginnings: only the parent tells them apart when the hash is equal.
TEST(CacheManager, TheSameIdsElsewhereInAPrefixAreNoHit) {
  int looked_alike = 0;
  for (int other = 10; other < 50; ++other) {
    CacheSetup s = setup_for(8);
    s.hash_bits = 1;
    World w(s);
    w.live({0, other, 1});
    const int64_t before = w.cache->counters().collisions;
    EXPECT_EQ(w.live({0, 1}).hit_blocks, 0u) << other;
    looked_alike += w.cache->counters().collisions > before;
    w.expect_idle();
  }
  EXPECT_GT(looked_alike, 10);
}

TEST(CacheManager, EventsTellWhatIsThere) {
  CacheSetup s = setup_for(3);
  s.event_capacity = 4;
  World w(s);
  std::vector<CacheEvent> events(16);
  w.live({0, 1, 2});
  ASSERT_EQ(w.cache->drain_events(events), 2u);
  const auto hashes = chain_of({0, 1, 2});
  EXPECT_EQ(events[0].kind, CacheEvent::Kind::kBlockStored);
  EXPECT_EQ(events[0].sequence, 1u);
  EXPECT_EQ(events[0].id, hashes.full_blocks()[0].id);
  EXPECT_EQ(events[0].parent, Hash128{});
  EXPECT_EQ(events[1].parent, events[0].id);
  EXPECT_EQ(events[1].depth, 1u);
  w.live({0, 5, 6});  // one evicted, two stored
  ASSERT_EQ(w.cache->drain_events(events), 3u);
  EXPECT_EQ(events[0].kind, CacheEvent::Kind::kBlockRemoved);
  EXPECT_EQ(events[0].id, hashes.full_blocks()[1].id);
  EXPECT_EQ(events[0].sequence, 3u);
  w.cache->clear();
  w.live({0, 7});
  ASSERT_EQ(w.cache->drain_events(events), 4u);  // 3 removed, cleared, stored: one was lost
  EXPECT_EQ(events[0].sequence, 7u);
  EXPECT_EQ(events[2].kind, CacheEvent::Kind::kCleared);
  EXPECT_EQ(w.cache->counters().events_lost, 1);
}

TEST(CacheManager, ClockRunningBackwardsStandsStill) {
  CacheSetup s = setup_for(8, 2, 2);
  s.block_ttl = seconds(50);
  World w(s);
  w.live({0, 1});
  w.now -= seconds(900);
  EXPECT_EQ(w.live({0, 1}).hit_blocks, 1u);
  w.now += seconds(950);
  EXPECT_EQ(w.match(User({0, 1})).hit_blocks, 1u);
  w.now += seconds(1);
  EXPECT_EQ(w.match(User({0, 1})).hit_blocks, 0u);
  w.expect_idle();
}

TEST(CacheManager, ACacheWithoutPrefixCachingFindsNothing) {
  CacheSetup s = setup_for(4);
  s.prefix_caching = false;
  World w(s);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(w.live({0, 1, 2}).hit_blocks, 0u);
  EXPECT_EQ(w.cache->report().blocks_free, 4u);
}

TEST(CacheManager, AModelWithoutPrivateStateNeedsNoSlots) {
  CacheSetup s;
  s.parts = {{"kv", PartFamily::kGlobal, 64}};
  s.n_blocks = 4;
  World w(s);
  EXPECT_EQ(w.live({0, 1}).hit_blocks, 0u);
  EXPECT_EQ(w.live({0, 1, 2}).hit_blocks, 1u);
  w.expect_idle();
}

TEST(CacheManager, RefusesASetupThatContradictsItself) {
  CacheSetup s = setup_for(4);
  s.n_slots = 0;
  EXPECT_EQ(CacheManager::create(s).error().code, ErrorCode::kInvalidArgument);
  s = setup_for(4);
  s.protected_share = 1.5;
  EXPECT_EQ(CacheManager::create(s).error().code, ErrorCode::kInvalidArgument);
  s = setup_for(4);
  s.parts[0].bytes = size_t{1} << 60;
  EXPECT_EQ(CacheManager::create(s).error().code, ErrorCode::kResourceExhausted);
}

TEST(CacheManager, ReportsItsMemory) {
  const auto cache = make(setup_for(100, 3, 2));
  const CacheReport r = cache->report();
  EXPECT_EQ(r.state_bytes, 100 * 64u + 5 * 64u);
  EXPECT_GE(r.bookkeeping_bytes, 100 * (64 + 4 * kBlockTokens) + 0u);
  for (const size_t blocks :
       {size_t{10'000}, size_t{65'535}, size_t{65'536}, size_t{1'000'000}}) {  // docs/cache.md
    EXPECT_GE(CacheManager::bookkeeping_bytes(setup_for(blocks)), 400 * blocks);
    EXPECT_LE(CacheManager::bookkeeping_bytes(setup_for(blocks)), 530 * blocks);
  }
  EXPECT_EQ(r.blocks_free, 100u);
  EXPECT_EQ(r.block_bytes, 64u);
  EXPECT_EQ(r.slot_bytes, 64u);
}

size_t resident_anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "RssAnon:") {
      size_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  return 0;
}

// What the system counts when every byte has been written is what was asked for at the start.
TEST(CacheManager, TakesTheMemoryThatItReports) {
  CacheSetup setup;
  setup.parts = {{"kv", PartFamily::kGlobal, size_t{60} << 10},
                 {"ring", PartFamily::kPrivate, size_t{1} << 20}};
  setup.n_blocks = 1000;
  setup.n_slots = 8;
  setup.n_snapshots = 12;
  const size_t before = resident_anonymous_bytes();
  ASSERT_GT(before, 0u);
  const auto cache = make(setup);
  const CacheReport r = cache->report();
  EXPECT_EQ(r.state_bytes, (1000u * 60 << 10) + (20u << 20));
  EXPECT_LT(resident_anonymous_bytes() - before, r.bookkeeping_bytes + (2u << 20))
      << "state that nobody wrote costs memory";
  for (size_t round = 0; round < 2; ++round) {
    for (size_t part = 0; part < 2; ++part)
      for (size_t i = 0; i < cache->arena().count(part); ++i) {
        const auto element = cache->arena().element(part, i);
        std::memset(element.data(), static_cast<int>(i + round), element.size());
      }
    const auto grown = static_cast<double>(resident_anonymous_bytes() - before);
    const auto reported = static_cast<double>(r.state_bytes + r.bookkeeping_bytes);
    EXPECT_NEAR(grown / reported, 1, 0.02);
  }
}

TEST(CacheManagerDeathTest, MisuseAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  World w(setup_for(4));
  User u({0, 1});
  EXPECT_DEATH(w.cache->release(u.lease, w.now), "held_");
  EXPECT_DEATH(w.cache->take(u.lease), "held_");
  ASSERT_EQ(w.acquire(u, w.match(u)), Acquired::kYes);
  EXPECT_DEATH((void)w.acquire(u, w.match(u)), "held_");
  w.run_block(u);
  EXPECT_DEATH(w.cache->take(u.lease), "reserved_");
  EXPECT_DEATH(u.lease = Lease(4), "held_");
}

TEST(CacheManager, AllocatesNothingAfterTheStart) {
  World w(setup_for(32));
  std::vector<User> users;
  for (int i = 0; i < 40; ++i) users.push_back(User({0, 1, i % 7, i, i + 1}));
  w.live({0, 1, 2});
  std::vector<CacheEvent> events(64);
  const uint64_t before = testing::allocations();
  for (User& u : users) {
    const Match m = w.match(u);
    ASSERT_EQ(w.acquire(u, m), Acquired::kYes);
    while (u.lease.blocks().size() < u.blocks()) w.cache->take(u.lease);
    w.publish(u);
    w.cache->snapshot_put(u.lease, 3, 0, w.now);
    w.cache->release(u.lease, w.now);
    w.cache->drain_events(events);
  }
  EXPECT_EQ(testing::allocations() - before, 0u);
}

// ---------------------------------------------------------------- random histories

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
