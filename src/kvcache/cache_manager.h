// What the engine remembers: blocks of global state that any sequence with the same prefix may use,
// slots of private state, and snapshots of private state for sequences that come back.
//
//   DEEPMINT_TRY(cache, CacheManager::create({.parts = parts, .n_blocks = 4096, .n_slots = 64}));
//   Lease lease(blocks_for(limit));                             // any thread; the only allocation
//   const Match m = cache->match(chain.first_blocks(reusable_blocks(prompt)), tokens, now);
//   if (cache->acquire(lease, m, need, now) != Acquired::kYes) ... wait ...
//   if (m.snapshot_blocks > 0) cache->snapshot_get(lease, m.snapshot_blocks, now);
//   while (lease.blocks().size() < blocks_for(end)) cache->take(lease);
//   ... a step runs; lease.blocks() is the sequence's block table ...
//   cache->publish(lease, chain.full_blocks(), tokens, now);    // blocks that are full now
//   cache->snapshot_put(lease, lease.published(), tag, now);    // at a unit boundary
//   cache->release(lease, now);                                 // exactly once
//
// A *global* block is known by its content: once full it is published under its BlockHash, never
// written again, counted by its users, and stays after the last of them until its memory is wanted.
// Where two sequences compute the same block the first one published stands. *Private* state
// belongs to one sequence. It takes no part in matching: a hit is as long as its global blocks say,
// and a missing snapshot costs running some tokens again, never a shorter hit.
//
// Acquiring has two phases: every block of the hit is pinned, then the worst case of new blocks is
// reserved; when that does not fit nothing has happened. Reserved blocks are not chosen yet: a
// cached block is given up only when its memory is really taken.
//
// Eviction: segmented LRU. A block that was never hit waits in the probation list, one that was hit
// in the protected list (at most protected_share of all); victims come from probation first. A
// sequence's blocks enter a list deepest first, so a block always goes before its parent. What a
// sequence holds never goes.
//
// Threads: one, the engine's. Nothing allocates after create(). Time is a parameter; time that
// runs backwards counts as standing still. Misuse by the engine (a lease released twice, a block
// taken without a reservation) aborts. docs/cache.md tells the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "deepmint/result.h"
#include "deepmint/types.h"
#include "kvcache/chain_hash.h"
#include "kvcache/state_arena.h"

namespace deepmint::kvcache {

enum class EvictionPolicy : uint8_t { kSegmentedLru, kLru };

struct CacheSetup {
  std::vector<PartSpec> parts;  // of the model
  size_t n_blocks = 0;
  size_t n_slots = 0;      // 0 when the model has no private part
  size_t n_snapshots = 0;  // snapshots kept at once: the byte cap is this times bytes_per_slot()
  bool prefix_caching = true;  // false: nothing is published, every match is empty
  EvictionPolicy policy = EvictionPolicy::kSegmentedLru;
  double protected_share = 0.8;  // of all blocks, for those that were hit
  std::chrono::nanoseconds snapshot_ttl = std::chrono::seconds(180);
  std::chrono::nanoseconds block_ttl = std::chrono::nanoseconds::max();  // since the last use
  size_t event_capacity = 4096;
  // Test hook: blocks are looked up by this many bits of their hash, so that collisions happen.
  int hash_bits = 128;
};

// Why a prefix hit ends where it does.
enum class MissReason : uint8_t {
  kNone,            // every block asked for was there
  kNeverSeen,       // nothing of this prompt is known
  kFirstDivergent,  // the prompt leaves what is cached at this block
  kEvicted,         // the block was there and gave way
  kExpired,         // the block was there longer than block_ttl
  kSalt,            // the same first block is there under another salt
};
inline constexpr size_t kMissReasons = 6;
std::string_view to_string(MissReason reason);  // "none", "never_seen", …

struct Match {
  size_t hit_blocks = 0;                  // blocks 0 … hit_blocks - 1 are there
  MissReason reason = MissReason::kNone;  // of the block at index hit_blocks
  // Deepest boundary inside the hit at which the private state is kept: it resumes at
  // snapshot_blocks * kBlockTokens. 0: at none.
  size_t snapshot_blocks = 0;
  uint32_t snapshot_tag = 0;  // as given to snapshot_put
  // The last block of the hit, and its hash: acquire() refuses a match that is no longer true.
  BlockId deepest = kNoBlock;
  Hash128 deepest_id;
};

enum class Acquired : uint8_t {
  kYes,
  kNoBlocks,  // not enough that are free or may be evicted
  kNoSlot,
  kStale,  // a block of the match has gone since: match again
};

// What one sequence holds. Move-only; filled by acquire(), emptied by release().
class Lease {
 public:
  Lease() = default;
  explicit Lease(size_t max_blocks);  // room for that many: nothing allocates later
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;

  bool held() const { return held_; }
  std::span<const BlockId> blocks() const { return table_; }  // [i] holds positions from i * 64
  SlotId slot() const { return slot_; }
  size_t published() const { return published_; }  // first blocks that are in the index
  size_t reserved() const { return reserved_; }    // set aside, not yet taken

 private:
  friend class CacheManager;
  std::vector<BlockId> table_;
  size_t published_ = 0;
  size_t reserved_ = 0;
  SlotId slot_ = kNoSlot;
  bool held_ = false;
  bool closed_ = false;  // a collision: no later block of this sequence can be published
};

struct CacheEvent {
  enum class Kind : uint8_t { kBlockStored, kBlockRemoved, kCleared };
  uint64_t sequence = 0;  // 1, 2, …; a gap means that events were lost: start over from the index
  Kind kind = Kind::kBlockStored;
  uint32_t depth = 0;  // index of the block in its prefix
  Hash128 id, parent;  // parent: {} for the first block of a prefix
};

struct CacheCounters {
  int64_t acquired = 0, released = 0, refused = 0;
  int64_t wanted_blocks = 0, hit_blocks = 0;  // of acquired leases
  int64_t misses[kMissReasons] = {};          // acquired leases by reason; [kNone] = whole hits
  int64_t stored = 0, evicted = 0, expired = 0;
  int64_t duplicates = 0, collisions = 0;
  int64_t snapshots_stored = 0, snapshots_restored = 0, snapshots_evicted = 0,
          snapshots_expired = 0;
  int64_t events_lost = 0;
};

// Where the memory is. Blocks: total = free + taken + pinned + cached.
struct CacheReport {
  size_t blocks_total = 0, blocks_free = 0;
  size_t blocks_taken = 0;      // of one sequence, not published
  size_t blocks_pinned = 0;     // published and in use
  size_t blocks_cached = 0;     // published, of no sequence: what may be evicted
  size_t blocks_reserved = 0;   // promised out of free and cached
  size_t blocks_protected = 0;  // of the cached ones
  size_t slots_total = 0, slots_used = 0, snapshots_total = 0, snapshots_used = 0;
  size_t block_bytes = 0, slot_bytes = 0;  // of one block, of one slot or snapshot
  size_t state_bytes = 0;                  // blocks, slots and snapshots together
  size_t bookkeeping_bytes = 0;            // descriptors, token ids, indices, events
};

class CacheManager {
 public:
  // One allocation for state, a fixed set for bookkeeping. Errors: those of StateArena::create;
  // kInvalidArgument for a setup that contradicts itself.
  static Result<std::unique_ptr<CacheManager>> create(CacheSetup setup);
  ~CacheManager();
  CacheManager(const CacheManager&) = delete;

  // What create() takes beside the state itself; for planning a budget.
  static size_t bookkeeping_bytes(const CacheSetup& setup);

  StateArena& arena();  // element `slot` of a private part is that of a slot; snapshots lie behind
  const StateArena& arena() const;

  // How much of a prefix is there. hashes: of the blocks that may be reused, see reusable_blocks();
  // tokens: at least theirs. Looks only; O(hit).
  Match match(std::span<const BlockHash> hashes, std::span<const TokenId> tokens,
              Clock::time_point now) const;

  // Pins the hit, takes a slot, reserves `new_blocks`. On anything but kYes nothing has happened.
  // wanted: how many blocks match() was asked for; for the counters.
  [[nodiscard]] Acquired acquire(Lease& lease, const Match& match, size_t new_blocks,
                                 Clock::time_point now, size_t wanted = 0);
  // Whether a sequence that needs this many blocks could ever run.
  bool can_ever_fit(size_t blocks) const;

  // The next block of the table, out of the reservation; evicts when no block is free.
  BlockId take(Lease& lease);

  // Declares every block below hashes.size() that the table has as full and final. hashes and
  // tokens: of the sequence from its beginning. Returns how many new ones entered the index. A
  // block that another sequence has published meanwhile is replaced in the table by its published
  // twin and freed: no step in flight may read the table.
  size_t publish(Lease& lease, std::span<const BlockHash> hashes, std::span<const TokenId> tokens,
                 Clock::time_point now);

  // Gives everything back: no step in flight may read or write the lease's blocks.
  void release(Lease& lease, Clock::time_point now);

  // Keeps the private state of the lease's slot as it is now, for prefixes that reach `blocks`
  // full blocks; these must be published, and the state exactly that of blocks * kBlockTokens
  // positions. Bytes are copied. False: no room (n_snapshots is 0) or the block is not in the
  // index.
  bool snapshot_put(const Lease& lease, size_t blocks, uint32_t tag, Clock::time_point now);
  // Drops the snapshot at `blocks`, unless somebody has come back to it or there is none.
  void snapshot_give_up(const Lease& lease, size_t blocks);
  // Copies a snapshot that match() has named into the lease's slot. False: it is gone.
  [[nodiscard]] bool snapshot_get(Lease& lease, size_t blocks, Clock::time_point now);

  // Drops snapshots and blocks past their time. Optional: whoever looks for them does not see them.
  void sweep(Clock::time_point now);
  // Forgets every block that no sequence holds, and every snapshot.
  void clear();

  // Moves up to out.size() events, oldest first; returns how many.
  size_t drain_events(std::span<CacheEvent> out);

  const CacheCounters& counters() const;
  CacheReport report() const;

  // Walks everything and names the first broken invariant; for tests.
  Status check() const;
  // XXH3 of the bytes of a published block's global parts; for tests.
  uint64_t checksum(BlockId block) const;
  // Published blocks, in no order; for tests and for rebuilding an index elsewhere.
  std::vector<BlockId> published_blocks() const;

 private:
  struct Impl;
  explicit CacheManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepmint::kvcache
