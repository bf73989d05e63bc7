// A fixed-size table from a 64-bit key to a 32-bit value, several values per key. Open addressing,
// linear probing, deletion by moving back: no tombstones, so it never degrades. Used inside
// kvcache.
//
//   HashIndex index(1000);
//   index.insert(key, block);
//   uint32_t found = index.find(key, [&](uint32_t b) { return matches(b); });   // or kNone
//   index.erase(key, block);
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/check.h"

namespace deepmint::kvcache {

class HashIndex {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  explicit HashIndex(size_t max_entries) : slots_(capacity_for(max_entries)) {}

  static size_t bytes_for(size_t max_entries) { return capacity_for(max_entries) * sizeof(Slot); }
  size_t size() const { return size_; }

  void prefetch(uint64_t key) const { __builtin_prefetch(&slots_[home(key)]); }

  // The first value of the key that `is_it` accepts.
  template <class Predicate>
  uint32_t find(uint64_t key, const Predicate& is_it) const {
    for (size_t at = home(key); slots_[at].value != kNone; at = next(at))
      if (slots_[at].key == key && is_it(slots_[at].value)) return slots_[at].value;
    return kNone;
  }
  // The first value of the key; a hint, for prefetching what it stands for.
  uint32_t first(uint64_t key) const {
    return find(key, [](uint32_t) { return true; });
  }

  void insert(uint64_t key, uint32_t value) {
    DEEPMINT_CHECK(value != kNone && 2 * size_ < slots_.size());
    size_t at = home(key);
    while (slots_[at].value != kNone) at = next(at);
    slots_[at] = {key, value};
    ++size_;
  }

  // The pair must be there.
  void erase(uint64_t key, uint32_t value) {
    size_t hole = home(key);
    while (slots_[hole].key != key || slots_[hole].value != value) {
      DEEPMINT_CHECK(slots_[hole].value != kNone);
      hole = next(hole);
    }
    // What stands behind the hole and may stand in it moves back.
    for (size_t at = next(hole); slots_[at].value != kNone; at = next(at)) {
      const size_t distance_home = (at - home(slots_[at].key)) & (slots_.size() - 1);
      const size_t distance_hole = (at - hole) & (slots_.size() - 1);
      if (distance_home < distance_hole) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {};
    --size_;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t value = kNone;
  };
  static size_t capacity_for(size_t entries) { return std::bit_ceil(2 * entries + 2); }
  size_t home(uint64_t key) const {
    return (key * 0x9e3779b97f4a7c15u >> 20) & (slots_.size() - 1);
  }
  size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace deepmint::kvcache
