// The cache in named cases. Under random histories: cache_manager_random_test.cc.
#include "kvcache/cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "kvcache/cache_manager_testing.h"
#include "kvcache/seq_state.h"
#include "support/counting_new.h"
#include "support/test_seed.h"

namespace deepmint::kvcache {
namespace {

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

#ifdef __SANITIZE_THREAD__
constexpr size_t kShadow = 8;  // the sanitizer's own memory for each byte is resident too
#else
constexpr size_t kShadow = 1;
#endif

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
  EXPECT_LT(resident_anonymous_bytes() - before, kShadow * (r.bookkeeping_bytes + (2u << 20)))
      << "state that nobody wrote costs memory";
  for (size_t round = 0; round < 2; ++round) {
    for (size_t part = 0; part < 2; ++part)
      for (size_t i = 0; i < cache->arena().count(part); ++i) {
        const auto element = cache->arena().element(part, i);
        std::memset(element.data(), static_cast<int>(i + round), element.size());
      }
    const auto grown = static_cast<double>(resident_anonymous_bytes() - before);
    const auto reported = static_cast<double>(r.state_bytes + r.bookkeeping_bytes);
    EXPECT_GE(grown / reported, 0.98);
    EXPECT_LE(grown / reported, 1.02 * kShadow);
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

}  // namespace
}  // namespace deepmint::kvcache
