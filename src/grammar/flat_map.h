// A hash table from integers to small values, without a node per entry: the memory of an automaton
// is mostly such tables.
//
//   FlatMap<uint32_t> map;
//   map.insert(key, 7);                          // a key comes once
//   if (const uint32_t* v = map.find(key)) …     // valid until the next insert
//
// Keys are any 64 bits except ~0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepmint::grammar {

inline uint64_t mix_hash(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

template <class Value>
class FlatMap {
 public:
  const Value* find(uint64_t key) const { return const_cast<FlatMap*>(this)->find(key); }
  Value* find(uint64_t key) {
    if (keys_.empty()) return nullptr;
    for (size_t at = place(key);; at = (at + 1) & (keys_.size() - 1)) {
      if (keys_[at] == key) return &values_[at];
      if (keys_[at] == kFree) return nullptr;
    }
  }
  void insert(uint64_t key, Value value) {
    if (count_ * 3 >= keys_.size() * 2) grow();
    size_t at = place(key);
    while (keys_[at] != kFree) at = (at + 1) & (keys_.size() - 1);
    keys_[at] = key;
    values_[at] = value;
    ++count_;
  }
  void clear() {  // gives the memory back
    keys_ = {};
    values_ = {};
    count_ = 0;
  }
  size_t size() const { return count_; }
  size_t memory_bytes() const { return keys_.size() * (sizeof(uint64_t) + sizeof(Value)); }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t place(uint64_t key) const { return mix_hash(0, key) & (keys_.size() - 1); }
  void grow() {
    std::vector<uint64_t> keys(keys_.empty() ? 16 : keys_.size() * 2, kFree);
    std::vector<Value> values(keys.size());
    keys.swap(keys_);
    values.swap(values_);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == kFree) continue;
      size_t at = place(keys[i]);
      while (keys_[at] != kFree) at = (at + 1) & (keys_.size() - 1);
      keys_[at] = keys[i];
      values_[at] = values[i];
    }
  }

  std::vector<uint64_t> keys_;
  std::vector<Value> values_;
  size_t count_ = 0;
};

}  // namespace deepmint::grammar
