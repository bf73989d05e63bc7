// Sequences and their state beside a CacheManager, for its tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cache_manager.h"

namespace deepmint::kvcache {

using std::chrono::seconds;

// A prefix in blocks: [0] is the tenant, the rest says what each block holds.
using Path = std::vector<int>;

inline std::string salt_of(const Path& path) {
  return path[0] == 0 ? "" : "tenant" + std::to_string(path[0]);
}

inline std::vector<TokenId> tokens_of(const Path& path) {
  std::vector<TokenId> tokens;
  for (size_t i = 1; i < path.size(); ++i)
    for (int t = 0; t < kBlockTokens; ++t) tokens.push_back(path[i] * 100 + t % 7);
  return tokens;
}

inline HashChain chain_of(const Path& path) {
  HashChain chain({.model_fingerprint = 5, .layout_fingerprint = 6, .salt = salt_of(path)});
  chain.append(tokens_of(path));
  return chain;
}

inline Path first(const Path& path, size_t blocks) {
  return {path.begin(), path.begin() + static_cast<ptrdiff_t>(blocks) + 1};
}

// What state must be in the block at the end of a prefix, or in the slot there.
inline uint64_t state_of(const Path& path) { return xxh3_64(std::as_bytes(std::span(path)), 77); }

inline CacheSetup setup_for(size_t n_blocks, size_t n_slots = 8, size_t n_snapshots = 4) {
  CacheSetup s;
  s.parts = {{"kv", PartFamily::kGlobal, 64}, {"ring", PartFamily::kPrivate, 64}};
  s.n_blocks = n_blocks;
  s.n_slots = n_slots;
  s.n_snapshots = n_snapshots;
  return s;
}

inline std::unique_ptr<CacheManager> make(CacheSetup setup) {
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

}  // namespace deepmint::kvcache
