// Which snapshot slot holds whose private state, and which one goes next: CLOCK over a fixed number
// of slots, and a time to live. Holds no bytes; the manager copies them. Used inside kvcache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/check.h"
#include "core/clock.h"

namespace deepmint::kvcache {

class SnapshotClock {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;
  struct Entry {
    uint32_t owner = kNone;  // block; kNone: free
    uint32_t tag = 0;
    Clock::time_point used;
    bool referenced = false;
  };

  SnapshotClock(size_t n_slots, std::chrono::nanoseconds ttl) : entries_(n_slots), ttl_(ttl) {}

  size_t total() const { return entries_.size(); }
  size_t used() const { return used_; }
  const Entry& operator[](uint32_t slot) const { return entries_[slot]; }

  bool live(uint32_t slot, Clock::time_point now) const {
    const Entry& e = entries_[slot];
    return e.owner != kNone && now - e.used <= ttl_;
  }

  // The slot that the next put() takes: a free one, else one past its time or the first that was
  // not referenced since the hand last passed. kNone when there are no slots. Its owner must be
  // told.
  uint32_t choose(Clock::time_point now) {
    if (entries_.empty()) return kNone;
    for (size_t i = 0; used_ < entries_.size(); ++i) {
      const size_t slot = (hand_ + i) % entries_.size();
      if (entries_[slot].owner == kNone) return static_cast<uint32_t>(slot);
    }
    for (;;) {
      const auto slot = static_cast<uint32_t>(hand_);
      Entry& e = entries_[slot];
      hand_ = (hand_ + 1) % entries_.size();
      if (e.owner == kNone || !live(slot, now) || !e.referenced) return slot;
      e.referenced = false;
    }
  }
  void put(uint32_t slot, uint32_t owner, uint32_t tag, Clock::time_point now) {
    DEEPMINT_CHECK(entries_[slot].owner == kNone);
    entries_[slot] = {owner, tag, now, false};
    ++used_;
  }
  void touch(uint32_t slot, Clock::time_point now) {
    entries_[slot].used = now;
    entries_[slot].referenced = true;
  }
  void set_tag(uint32_t slot, uint32_t tag) { entries_[slot].tag = tag; }
  void free(uint32_t slot) {
    DEEPMINT_CHECK(entries_[slot].owner != kNone);
    entries_[slot] = {};
    --used_;
  }

 private:
  std::vector<Entry> entries_;
  std::chrono::nanoseconds ttl_;
  size_t used_ = 0, hand_ = 0;
};

}  // namespace deepmint::kvcache
