#include "kvcache/cache_manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "kvcache/hash_index.h"
#include "kvcache/slot_pool.h"
#include "kvcache/snapshot_clock.h"

namespace deepmint::kvcache {
namespace {

constexpr uint32_t kNone = 0xffffffffu;
static_assert(kNone == HashIndex::kNone && kNone == SnapshotClock::kNone &&
              kNone == static_cast<uint32_t>(kNoBlock));

enum class State : uint8_t { kFree, kTaken, kPublished };
enum class Queue : uint8_t { kNowhere, kProbation, kProtected };

struct alignas(64) Descriptor {
  Hash128 id;
  uint64_t context = 0;
  Clock::time_point last_use;
  uint32_t parent = kNone;
  uint32_t references = 0;
  uint32_t children = 0;      // published blocks whose parent this is
  uint32_t newer = kNone;     // in its queue
  uint32_t older = kNone;     // in its queue; of a free block the next free one
  uint32_t depth = 0;         // index in its prefix
  uint32_t snapshot = kNone;  // of the private state at the end of this block
  State state = State::kFree;
  Queue queue = Queue::kNowhere;
  bool hot = false;  // was hit since it was published or last demoted
};
static_assert(sizeof(Descriptor) == 64);

// Idle blocks from the newest to the oldest.
struct List {
  uint32_t newest = kNone, oldest = kNone;
  size_t size = 0;
};

// Hashes of blocks that have gone lately, to tell a miss that memory caused from a new prompt.
class Ghosts {
 public:
  explicit Ghosts(size_t capacity) : index_(capacity), keys_(capacity), reasons_(capacity) {}
  static size_t capacity_for(size_t n_blocks) {
    return std::clamp<size_t>(n_blocks, 1024, size_t{1} << 18);
  }
  static size_t bytes_for(size_t capacity) {
    return HashIndex::bytes_for(capacity) + capacity * (sizeof(uint64_t) + sizeof(MissReason));
  }
  void add(uint64_t key, MissReason reason) {
    if (const uint32_t known = index_.first(key); known != kNone) {
      reasons_[known] = reason;
      return;
    }
    if (full_) index_.erase(keys_[next_], static_cast<uint32_t>(next_));
    keys_[next_] = key;
    reasons_[next_] = reason;
    index_.insert(key, static_cast<uint32_t>(next_));
    next_ = (next_ + 1) % keys_.size();
    full_ = full_ || next_ == 0;
  }
  MissReason reason(uint64_t key) const {
    const uint32_t at = index_.first(key);
    return at == kNone ? MissReason::kNone : reasons_[at];
  }

 private:
  HashIndex index_;
  std::vector<uint64_t> keys_;
  std::vector<MissReason> reasons_;
  size_t next_ = 0;
  bool full_ = false;
};

tl::unexpected<Error> broken(std::string message) {
  return fail(ErrorCode::kInternal, std::move(message), "cache");
}

}  // namespace

std::string_view to_string(MissReason reason) {
  constexpr std::array<std::string_view, kMissReasons> kNames = {
      "none", "never_seen", "first_divergent", "evicted", "expired", "salt"};
  return kNames[static_cast<size_t>(reason)];
}

// ---------------------------------------------------------------- lease

Lease::Lease(size_t max_blocks) { table_.reserve(max_blocks); }

Lease::Lease(Lease&& other) noexcept { *this = std::move(other); }

Lease& Lease::operator=(Lease&& other) noexcept {
  DEEPMINT_CHECK(!held_);  // or what it holds would leak
  table_ = std::exchange(other.table_, {});
  published_ = std::exchange(other.published_, 0);
  reserved_ = std::exchange(other.reserved_, 0);
  slot_ = std::exchange(other.slot_, kNoSlot);
  held_ = std::exchange(other.held_, false);
  closed_ = std::exchange(other.closed_, false);
  return *this;
}

// ---------------------------------------------------------------- the books

struct CacheManager::Impl {
  Impl(CacheSetup s, StateArena a)
      : setup(std::move(s)),
        arena(std::move(a)),
        blocks(setup.n_blocks),
        token_ids(setup.n_blocks * kBlockTokens),
        index(setup.n_blocks),
        first_blocks(setup.n_blocks),
        ghosts(Ghosts::capacity_for(setup.n_blocks)),
        slots(setup.n_slots),
        snapshots(setup.n_snapshots, setup.snapshot_ttl),
        n_free(setup.n_blocks),
        events(setup.event_capacity) {
    for (size_t b = 0; b < blocks.size(); ++b)
      blocks[b].older = b + 1 == blocks.size() ? kNone : static_cast<uint32_t>(b + 1);
    first_free = blocks.empty() ? kNone : 0;
    protected_limit =
        static_cast<size_t>(setup.protected_share * static_cast<double>(setup.n_blocks));
  }

  Hash128 visible(const Hash128& id) const {
    if (setup.hash_bits >= 128) return id;
    return {id.low & ((uint64_t{1} << setup.hash_bits) - 1), 0};
  }
  std::span<TokenId> ids_of(uint32_t block) {
    return std::span(token_ids).subspan(size_t{block} * kBlockTokens, kBlockTokens);
  }
  std::span<const TokenId> ids_of(uint32_t block) const {
    return std::span(token_ids).subspan(size_t{block} * kBlockTokens, kBlockTokens);
  }
  uint64_t first_key(std::span<const TokenId> ids) const {
    return xxh3_64(std::as_bytes(ids.first(kBlockTokens)));
  }
  size_t idle() const {
    return queues[static_cast<size_t>(Queue::kProbation)].size +
           queues[static_cast<size_t>(Queue::kProtected)].size;
  }
  size_t available() const { return n_free + idle() - n_reserved; }
  bool expired(const Descriptor& d, Clock::time_point now) const {
    return d.references == 0 && now - d.last_use > setup.block_ttl;
  }
  void advance(Clock::time_point now) { latest = std::max(latest, now); }

  uint32_t find(const Hash128& id) const {
    const Hash128 key = visible(id);
    return index.find(key.low, [&](uint32_t b) { return visible(blocks[b].id) == key; });
  }
  // Whether a block found by its hash is the one that is meant.
  bool confirmed(uint32_t block, const BlockHash& hash, const TokenId* ids, uint32_t parent) const {
    const Descriptor& d = blocks[block];
    return d.context == hash.context && d.parent == parent &&
           std::memcmp(ids_of(block).data(), ids, kBlockTokens * sizeof(TokenId)) == 0;
  }

  // ---- queues of idle blocks

  List& list(Queue queue) { return queues[static_cast<size_t>(queue)]; }

  void push(uint32_t block, Queue queue) {
    Descriptor& d = blocks[block];
    List& l = list(queue);
    d.queue = queue;
    d.newer = kNone;
    d.older = l.newest;
    if (l.newest == kNone) {
      l.oldest = block;
    } else {
      blocks[l.newest].newer = block;
    }
    l.newest = block;
    ++l.size;
  }
  void unlink(uint32_t block) {
    Descriptor& d = blocks[block];
    DEEPMINT_CHECK(d.queue != Queue::kNowhere);
    List& l = list(d.queue);
    if (d.newer == kNone) {
      l.newest = d.older;
    } else {
      blocks[d.newer].older = d.older;
    }
    if (d.older == kNone) {
      l.oldest = d.newer;
    } else {
      blocks[d.older].newer = d.newer;
    }
    d.queue = Queue::kNowhere;
    --l.size;
  }

  void pin(uint32_t block) {
    Descriptor& d = blocks[block];
    DEEPMINT_DCHECK(d.state == State::kPublished);
    if (d.references++ == 0) unlink(block);
  }
  // Called deepest block first: whatever is older in a queue is then no ancestor of what is newer.
  void unpin(uint32_t block) {
    Descriptor& d = blocks[block];
    DEEPMINT_CHECK(d.state == State::kPublished && d.references > 0);
    if (--d.references > 0) return;
    d.last_use = latest;
    if (!d.hot || setup.policy == EvictionPolicy::kLru) {
      push(block, Queue::kProbation);
      return;
    }
    push(block, Queue::kProtected);
    if (list(Queue::kProtected).size <= protected_limit) return;
    const uint32_t demoted = list(Queue::kProtected).oldest;
    unlink(demoted);
    blocks[demoted].hot = false;
    push(demoted, Queue::kProbation);
  }

  // ---- life of a block

  void to_free_list(uint32_t block) {
    Descriptor& d = blocks[block];
    d = {};
    d.older = first_free;
    first_free = block;
    ++n_free;
  }
  void free_taken(uint32_t block) {
    DEEPMINT_CHECK(blocks[block].state == State::kTaken);
    to_free_list(block);
  }

  void emit(CacheEvent::Kind kind, const Descriptor& d) {
    CacheEvent e;
    e.sequence = ++event_sequence;
    e.kind = kind;
    e.depth = d.depth;
    e.id = d.id;
    if (d.parent != kNone) e.parent = blocks[d.parent].id;
    put_event(e);
  }
  void put_event(const CacheEvent& e) {
    if (events.empty()) return;
    if (n_events == events.size()) {
      first_event = (first_event + 1) % events.size();
      --n_events;
      ++counters.events_lost;
    }
    events[(first_event + n_events) % events.size()] = e;
    ++n_events;
  }

  void drop_snapshot(uint32_t block) {
    if (blocks[block].snapshot == kNone) return;
    snapshots.free(blocks[block].snapshot);
    blocks[block].snapshot = kNone;
  }

  // An idle block without children leaves the index.
  void remove(uint32_t block, MissReason reason) {
    Descriptor& d = blocks[block];
    DEEPMINT_CHECK(d.state == State::kPublished && d.references == 0 && d.children == 0);
    if (d.snapshot != kNone) {
      ++counters.snapshots_evicted;
      drop_snapshot(block);
    }
    unlink(block);
    index.erase(visible(d.id).low, block);
    if (d.depth == 0) first_blocks.erase(first_key(ids_of(block)), block);
    emit(CacheEvent::Kind::kBlockRemoved, d);
    ghosts.add(visible(d.id).low, reason);
    ++(reason == MissReason::kExpired ? counters.expired : counters.evicted);
    if (d.parent != kNone) --blocks[d.parent].children;
    to_free_list(block);
  }
  void evict_one() {
    const List& young = list(Queue::kProbation);
    const uint32_t victim = young.size > 0 ? young.oldest : list(Queue::kProtected).oldest;
    DEEPMINT_CHECK(victim != kNone);  // reservations never exceed what is free or idle
    remove(victim, MissReason::kEvicted);
  }

  void give_back(Lease& lease) {
    DEEPMINT_CHECK(lease.held_ && lease.reserved_ <= n_reserved);
    n_reserved -= lease.reserved_;
    if (lease.slot_ != kNoSlot) slots.release(lease.slot_);
    for (size_t i = lease.table_.size(); i > 0; --i) {
      const auto block = static_cast<uint32_t>(lease.table_[i - 1]);
      if (i > lease.published_) {
        free_taken(block);
      } else {
        unpin(block);
      }
    }
    lease.table_.clear();
    lease.published_ = lease.reserved_ = 0;
    lease.slot_ = kNoSlot;
    lease.held_ = lease.closed_ = false;
    ++counters.released;
  }

  void copy_slot(size_t from, size_t to) {
    for (size_t p = 0; p < arena.parts().size(); ++p) {
      if (arena.parts()[p].family != PartFamily::kPrivate) continue;
      std::memcpy(arena.element(p, to).data(), arena.element(p, from).data(),
                  arena.parts()[p].bytes);
    }
  }

  MissReason reason_of(std::span<const BlockHash> hashes, std::span<const TokenId> tokens,
                       size_t hit) const {
    const MissReason gone = ghosts.reason(visible(hashes[hit].id).low);
    if (gone != MissReason::kNone) return gone;
    if (hit > 0) return MissReason::kFirstDivergent;
    const auto ids = tokens.first(kBlockTokens);
    const uint32_t twin = first_blocks.find(first_key(ids), [&](uint32_t b) {
      return std::ranges::equal(ids_of(b), ids) && blocks[b].context != hashes[0].context;
    });
    return twin == kNone ? MissReason::kNeverSeen : MissReason::kSalt;
  }

  const CacheSetup setup;
  StateArena arena;
  std::vector<Descriptor> blocks;
  std::vector<TokenId> token_ids;  // [n_blocks, kBlockTokens], of published blocks
  HashIndex index;                 // visible(id).low -> published block
  HashIndex first_blocks;          // hash of the ids alone -> published block of depth 0
  Ghosts ghosts;
  SlotPool slots;
  SnapshotClock snapshots;
  std::array<List, 3> queues;  // by Queue
  size_t protected_limit = 0;
  uint32_t first_free = kNone;
  size_t n_free, n_reserved = 0;
  std::vector<CacheEvent> events;  // ring
  size_t first_event = 0, n_events = 0;
  uint64_t event_sequence = 0;
  Clock::time_point latest{};
  CacheCounters counters;
};

// ---------------------------------------------------------------- creation

Result<std::unique_ptr<CacheManager>> CacheManager::create(CacheSetup setup) {
  const auto wrong = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), "cache");
  };
  const bool has_private = bytes_per_slot(setup.parts) > 0;
  if (!has_private) setup.n_slots = setup.n_snapshots = 0;
  if (has_private && setup.n_slots == 0)
    return wrong("expected slots for the model's private state, found none");
  if (setup.n_blocks >= kNone || setup.n_slots + setup.n_snapshots >= kNone)
    return wrong(fmt::format("expected fewer than 2^32 - 1 blocks and slots, found {} and {}",
                             setup.n_blocks, setup.n_slots + setup.n_snapshots));
  if (!(setup.protected_share >= 0 && setup.protected_share <= 1))
    return wrong(
        fmt::format("expected a protected share in [0, 1], found {}", setup.protected_share));
  if (setup.hash_bits < 1 || (setup.hash_bits > 63 && setup.hash_bits != 128))
    return wrong(fmt::format("expected 1 to 63 or 128 hash bits, found {}", setup.hash_bits));
  DEEPMINT_TRY(arena,
               StateArena::create(setup.parts, setup.n_blocks, setup.n_slots + setup.n_snapshots));
  try {
    auto impl = std::make_unique<Impl>(std::move(setup), std::move(arena));
    return std::unique_ptr<CacheManager>(new CacheManager(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted, "the system refused memory for the cache's books");
  }
}

CacheManager::CacheManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CacheManager::~CacheManager() = default;

size_t CacheManager::bookkeeping_bytes(const CacheSetup& s) {
  return sizeof(Impl) + s.n_blocks * (sizeof(Descriptor) + kBlockTokens * sizeof(TokenId)) +
         2 * HashIndex::bytes_for(s.n_blocks) +
         Ghosts::bytes_for(Ghosts::capacity_for(s.n_blocks)) +
         s.n_snapshots * sizeof(SnapshotClock::Entry) + s.n_slots * sizeof(SlotId) +
         s.event_capacity * sizeof(CacheEvent);
}

StateArena& CacheManager::arena() { return impl_->arena; }
const StateArena& CacheManager::arena() const { return impl_->arena; }

// ---------------------------------------------------------------- match and acquire

Match CacheManager::match(std::span<const BlockHash> hashes, std::span<const TokenId> tokens,
                          Clock::time_point now) const {
  const Impl& m = *impl_;
  Match out;
  if (!m.setup.prefix_caching) return out;
  DEEPMINT_CHECK(tokens.size() >= hashes.size() * kBlockTokens);
  now = std::max(now, m.latest);
  // Three memories are asked per block, each a likely cache miss: they are asked early.
  constexpr size_t kAskIndex = 16, kAskBlock = 8;
  const auto ask_block = [&](size_t i) {
    const uint32_t b = m.index.first(m.visible(hashes[i].id).low);
    if (b == kNone) return;
    __builtin_prefetch(&m.blocks[b]);
    const TokenId* ids = m.ids_of(b).data();
    for (size_t line = 0; line < kBlockTokens; line += 16) __builtin_prefetch(ids + line);
  };
  for (size_t i = 0; i < std::min(kAskIndex, hashes.size()); ++i)
    m.index.prefetch(m.visible(hashes[i].id).low);
  for (size_t i = 0; i < std::min(kAskBlock, hashes.size()); ++i) ask_block(i);

  uint32_t parent = kNone;
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAskIndex < hashes.size()) m.index.prefetch(m.visible(hashes[i + kAskIndex].id).low);
    if (i + kAskBlock < hashes.size()) ask_block(i + kAskBlock);
    const uint32_t block = m.find(hashes[i].id);
    if (block == kNone ||
        !m.confirmed(block, hashes[i], tokens.data() + i * kBlockTokens, parent)) {
      out.reason = m.reason_of(hashes, tokens, i);
      return out;
    }
    const Descriptor& d = m.blocks[block];
    if (m.expired(d, now)) {
      out.reason = MissReason::kExpired;
      return out;
    }
    out.hit_blocks = i + 1;
    out.deepest = BlockId{block};
    out.deepest_id = d.id;
    if (d.snapshot != kNone && m.snapshots.live(d.snapshot, now)) {
      out.snapshot_blocks = i + 1;
      out.snapshot_tag = m.snapshots[d.snapshot].tag;
    }
    parent = block;
  }
  return out;
}

bool CacheManager::can_ever_fit(size_t blocks) const { return blocks <= impl_->blocks.size(); }

Acquired CacheManager::acquire(Lease& lease, const Match& match, size_t new_blocks,
                               Clock::time_point now, size_t wanted) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(!lease.held_ && lease.table_.capacity() >= match.hit_blocks + new_blocks);
  m.advance(now);
  if (match.hit_blocks > 0) {
    const Descriptor& d = m.blocks[static_cast<uint32_t>(match.deepest)];
    if (d.state != State::kPublished || d.id != match.deepest_id || d.depth + 1 != match.hit_blocks)
      return Acquired::kStale;
  }
  size_t idle_hits = 0;
  for (auto b = static_cast<uint32_t>(match.deepest); b != kNone; b = m.blocks[b].parent)
    idle_hits += m.blocks[b].references == 0;
  if (m.setup.n_slots > 0 && m.slots.free() == 0) {
    ++m.counters.refused;
    return Acquired::kNoSlot;
  }
  // Idle blocks of the hit will be pinned: they no longer count as available.
  if (idle_hits + new_blocks > m.available()) {
    ++m.counters.refused;
    return Acquired::kNoBlocks;
  }

  lease.table_.resize(match.hit_blocks);
  size_t at = match.hit_blocks;
  for (auto b = static_cast<uint32_t>(match.deepest); b != kNone; b = m.blocks[b].parent) {
    m.pin(b);
    m.blocks[b].hot = true;
    lease.table_[--at] = BlockId{b};
  }
  DEEPMINT_CHECK(at == 0);
  lease.published_ = match.hit_blocks;
  lease.reserved_ = new_blocks;
  m.n_reserved += new_blocks;
  if (m.setup.n_slots > 0) lease.slot_ = m.slots.take();
  lease.held_ = true;
  ++m.counters.acquired;
  m.counters.wanted_blocks += static_cast<int64_t>(std::max(wanted, match.hit_blocks));
  m.counters.hit_blocks += static_cast<int64_t>(match.hit_blocks);
  ++m.counters.misses[static_cast<size_t>(match.reason)];
  return Acquired::kYes;
}

BlockId CacheManager::take(Lease& lease) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(lease.held_ && lease.reserved_ > 0);
  if (m.first_free == kNone) m.evict_one();
  const uint32_t block = m.first_free;
  Descriptor& d = m.blocks[block];
  DEEPMINT_CHECK(d.state == State::kFree);
  m.first_free = d.older;
  d.older = kNone;
  d.state = State::kTaken;
  --m.n_free;
  --m.n_reserved;
  --lease.reserved_;
  lease.table_.push_back(BlockId{block});
  return BlockId{block};
}

// ---------------------------------------------------------------- publish and release

size_t CacheManager::publish(Lease& lease, std::span<const BlockHash> hashes,
                             std::span<const TokenId> tokens, Clock::time_point now) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(lease.held_);
  if (!m.setup.prefix_caching) return 0;
  m.advance(now);
  const size_t end = std::min(hashes.size(), lease.table_.size());
  DEEPMINT_CHECK(tokens.size() >= end * kBlockTokens);
  size_t stored = 0;
  for (size_t i = lease.published_; i < end && !lease.closed_; ++i) {
    const auto own = static_cast<uint32_t>(lease.table_[i]);
    const uint32_t parent = i == 0 ? kNone : static_cast<uint32_t>(lease.table_[i - 1]);
    const TokenId* ids = tokens.data() + i * kBlockTokens;
    const uint32_t there = m.find(hashes[i].id);
    if (there != kNone) {
      if (!m.confirmed(there, hashes[i], ids, parent)) {
        ++m.counters.collisions;
        lease.closed_ = true;
        break;
      }
      m.pin(there);
      lease.table_[i] = BlockId{there};
      m.free_taken(own);
      ++lease.published_;
      ++m.counters.duplicates;
      continue;
    }
    Descriptor& d = m.blocks[own];
    DEEPMINT_CHECK(d.state == State::kTaken);
    d.state = State::kPublished;
    d.id = hashes[i].id;
    d.context = hashes[i].context;
    d.parent = parent;
    d.depth = static_cast<uint32_t>(i);
    d.references = 1;
    d.last_use = m.latest;
    std::memcpy(m.ids_of(own).data(), ids, kBlockTokens * sizeof(TokenId));
    m.index.insert(m.visible(d.id).low, own);
    if (i == 0) m.first_blocks.insert(m.first_key(m.ids_of(own)), own);
    if (parent != kNone) ++m.blocks[parent].children;
    ++lease.published_;
    m.emit(CacheEvent::Kind::kBlockStored, d);
    ++m.counters.stored;
    ++stored;
  }
  return stored;
}

void CacheManager::release(Lease& lease, Clock::time_point now) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(lease.held_);
  m.advance(now);
  m.give_back(lease);
}

// ---------------------------------------------------------------- snapshots

bool CacheManager::snapshot_put(const Lease& lease, size_t blocks, uint32_t tag,
                                Clock::time_point now) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(lease.held_ && lease.slot_ != kNoSlot && blocks > 0);
  m.advance(now);
  if (blocks > lease.published_) return false;
  const auto owner = static_cast<uint32_t>(lease.table_[blocks - 1]);
  uint32_t slot = m.blocks[owner].snapshot;
  if (slot == kNone) {
    slot = m.snapshots.choose(m.latest);
    if (slot == kNone) return false;
    if (const uint32_t old = m.snapshots[slot].owner; old != kNone) {
      ++(m.snapshots.live(slot, m.latest) ? m.counters.snapshots_evicted
                                          : m.counters.snapshots_expired);
      m.drop_snapshot(old);
    }
    m.snapshots.put(slot, owner, tag, m.latest);
    m.blocks[owner].snapshot = slot;
    ++m.counters.snapshots_stored;
  } else {
    m.snapshots.touch(slot, m.latest);
    if (m.snapshots[slot].tag == tag) return true;  // the same state is there already
    m.snapshots.set_tag(slot, tag);
  }
  m.copy_slot(static_cast<size_t>(lease.slot_), m.setup.n_slots + slot);
  return true;
}

void CacheManager::snapshot_give_up(const Lease& lease, size_t blocks) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(lease.held_ && blocks > 0);
  if (blocks > lease.published_) return;
  const auto owner = static_cast<uint32_t>(lease.table_[blocks - 1]);
  const uint32_t slot = m.blocks[owner].snapshot;
  if (slot != kNone && !m.snapshots[slot].referenced) m.drop_snapshot(owner);
}

bool CacheManager::snapshot_get(Lease& lease, size_t blocks, Clock::time_point now) {
  Impl& m = *impl_;
  DEEPMINT_CHECK(lease.held_ && lease.slot_ != kNoSlot);
  DEEPMINT_CHECK(blocks > 0 && blocks <= lease.published_);
  m.advance(now);
  const uint32_t slot = m.blocks[static_cast<uint32_t>(lease.table_[blocks - 1])].snapshot;
  if (slot == kNone || !m.snapshots.live(slot, m.latest)) return false;
  m.copy_slot(m.setup.n_slots + slot, static_cast<size_t>(lease.slot_));
  m.snapshots.touch(slot, m.latest);
  ++m.counters.snapshots_restored;
  return true;
}

// ---------------------------------------------------------------- housekeeping

void CacheManager::sweep(Clock::time_point now) {
  Impl& m = *impl_;
  m.advance(now);
  for (uint32_t s = 0; s < m.snapshots.total(); ++s) {
    if (m.snapshots[s].owner == kNone || m.snapshots.live(s, m.latest)) continue;
    ++m.counters.snapshots_expired;
    m.drop_snapshot(m.snapshots[s].owner);
  }
  for (const Queue queue : {Queue::kProbation, Queue::kProtected})
    for (uint32_t b = m.list(queue).oldest;
         b != kNone && m.expired(m.blocks[b], m.latest) && m.blocks[b].children == 0;
         b = m.list(queue).oldest)
      m.remove(b, MissReason::kExpired);
}

void CacheManager::clear() {
  Impl& m = *impl_;
  while (m.idle() > 0) m.evict_one();
  for (uint32_t s = 0; s < m.snapshots.total(); ++s)
    if (m.snapshots[s].owner != kNone) {
      ++m.counters.snapshots_evicted;
      m.drop_snapshot(m.snapshots[s].owner);
    }
  if (m.index.size() == 0) {
    CacheEvent e;
    e.sequence = ++m.event_sequence;
    e.kind = CacheEvent::Kind::kCleared;
    m.put_event(e);
  }
}

size_t CacheManager::drain_events(std::span<CacheEvent> out) {
  Impl& m = *impl_;
  const size_t n = std::min(out.size(), m.n_events);
  for (size_t i = 0; i < n; ++i) {
    out[i] = m.events[m.first_event];
    m.first_event = (m.first_event + 1) % m.events.size();
  }
  m.n_events -= n;
  return n;
}

const CacheCounters& CacheManager::counters() const { return impl_->counters; }

CacheReport CacheManager::report() const {
  const Impl& m = *impl_;
  CacheReport r;
  r.blocks_total = m.blocks.size();
  r.blocks_free = m.n_free;
  r.blocks_cached = m.idle();
  r.blocks_pinned = m.index.size() - r.blocks_cached;
  r.blocks_taken = r.blocks_total - r.blocks_free - m.index.size();
  r.blocks_reserved = m.n_reserved;
  r.blocks_protected = m.queues[static_cast<size_t>(Queue::kProtected)].size;
  r.slots_total = m.slots.total();
  r.slots_used = m.slots.total() - m.slots.free();
  r.snapshots_total = m.snapshots.total();
  r.snapshots_used = m.snapshots.used();
  r.block_bytes = bytes_per_block(m.arena.parts());
  r.slot_bytes = bytes_per_slot(m.arena.parts());
  r.state_bytes = m.arena.bytes();
  r.bookkeeping_bytes = bookkeeping_bytes(m.setup);
  return r;
}

// ---------------------------------------------------------------- for tests

std::vector<BlockId> CacheManager::published_blocks() const {
  std::vector<BlockId> out;
  for (uint32_t b = 0; b < impl_->blocks.size(); ++b)
    if (impl_->blocks[b].state == State::kPublished) out.push_back(BlockId{b});
  return out;
}

uint64_t CacheManager::checksum(BlockId block) const {
  const Impl& m = *impl_;
  uint64_t sum = 0;
  for (size_t p = 0; p < m.arena.parts().size(); ++p)
    if (m.arena.parts()[p].family == PartFamily::kGlobal)
      sum = xxh3_64(m.arena.element(p, static_cast<size_t>(block)), sum);
  return sum;
}

Status CacheManager::check() const {
  const Impl& m = *impl_;
  size_t n_free = 0, n_published = 0;
  std::vector<size_t> queue_rank(m.blocks.size(), 0);  // 1 … from the next victim on
  std::vector<uint32_t> children(m.blocks.size(), 0), child_references(m.blocks.size(), 0);
  for (uint32_t b = m.first_free; b != kNone; b = m.blocks[b].older, ++n_free)
    if (m.blocks[b].state != State::kFree || n_free == m.blocks.size())
      return broken(fmt::format("block {} in the free list is not free", b));
  if (n_free != m.n_free)
    return broken(fmt::format("{} blocks in the free list, {} counted", n_free, m.n_free));
  size_t rank = 0;
  for (const Queue queue : {Queue::kProbation, Queue::kProtected}) {
    const List& l = m.queues[static_cast<size_t>(queue)];
    size_t size = 0;
    for (uint32_t b = l.oldest; b != kNone; b = m.blocks[b].newer, ++size) {
      const Descriptor& d = m.blocks[b];
      if (size == m.blocks.size() || d.state != State::kPublished || d.references != 0 ||
          d.queue != queue)
        return broken(fmt::format("block {} is wrongly in a queue of idle blocks", b));
      queue_rank[b] = ++rank;
    }
    if (size != l.size) return broken(fmt::format("{} idle blocks, {} counted", size, l.size));
  }
  for (uint32_t b = 0; b < m.blocks.size(); ++b) {
    const Descriptor& d = m.blocks[b];
    if (d.state != State::kPublished) {
      if (d.references != 0 || d.children != 0 || d.snapshot != kNone)
        return broken(fmt::format("block {} is not published and has holders", b));
      continue;
    }
    ++n_published;
    if ((d.references == 0) != (queue_rank[b] > 0))
      return broken(fmt::format("block {} with {} holders is in the wrong place", b, d.references));
    if (m.find(d.id) != b) return broken(fmt::format("block {} is not what its hash finds", b));
    if ((d.depth == 0) != (d.parent == kNone))
      return broken(fmt::format("block {} of depth {} has a wrong parent", b, d.depth));
    if (d.snapshot != kNone && m.snapshots[d.snapshot].owner != b)
      return broken(fmt::format("the snapshot of block {} belongs to another", b));
    if (d.parent == kNone) continue;
    const Descriptor& p = m.blocks[d.parent];
    if (p.state != State::kPublished || p.depth + 1 != d.depth)
      return broken(fmt::format("block {} has lost its parent", b));
    ++children[d.parent];
    child_references[d.parent] += d.references;
    if (p.references == 0 && queue_rank[d.parent] < queue_rank[b])
      return broken(fmt::format("block {} would go before its child {}", d.parent, b));
    if (p.references == 0 && p.last_use < d.last_use)
      return broken(fmt::format("block {} was used after its parent {}", b, d.parent));
  }
  for (uint32_t b = 0; b < m.blocks.size(); ++b) {
    const Descriptor& d = m.blocks[b];
    if (d.children != children[b])
      return broken(
          fmt::format("block {} has {} children, {} counted", b, children[b], d.children));
    if (d.references < child_references[b])
      return broken(fmt::format("block {} is held less often than its children", b));
  }
  if (n_published != m.index.size())
    return broken(fmt::format("{} blocks published, {} in the index", n_published, m.index.size()));
  if (m.n_reserved > m.n_free + m.idle())
    return broken(
        fmt::format("{} blocks promised, {} could be had", m.n_reserved, m.n_free + m.idle()));
  size_t n_snapshots = 0;
  for (uint32_t s = 0; s < m.snapshots.total(); ++s) {
    if (m.snapshots[s].owner == kNone) continue;
    ++n_snapshots;
    if (m.blocks[m.snapshots[s].owner].snapshot != s)
      return broken(fmt::format("snapshot {} belongs to a block that does not know it", s));
  }
  if (n_snapshots != m.snapshots.used())
    return broken(fmt::format("{} snapshots, {} counted", n_snapshots, m.snapshots.used()));
  return {};
}

}  // namespace deepmint::kvcache
