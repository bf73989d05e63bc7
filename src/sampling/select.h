// Exact top-k and top-p without sorting the vocabulary. Every filter of the pipeline keeps a prefix
// of one total order, "logit descending, then id ascending"; an Order key spells that order as one
// integer.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deepmint::sampling {

using OrderKey = uint64_t;  // ascending keys = the pipeline's walk order

inline OrderKey order_key(float logit, uint32_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // −0 and +0 are the same logit
  const uint32_t ascending =
      bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return uint64_t{~ascending} << 32 | id;
}
inline uint32_t key_id(OrderKey key) { return static_cast<uint32_t>(key); }

// A probability in units of 2^-48, rounded down; p in [0, 1].
inline uint64_t mass_units(float p) {
  return static_cast<uint64_t>(static_cast<double>(p) * 0x1p48);
}

// The smallest integer mass that is not below top_p: "mass < top_p" is "units <
// top_p_limit(top_p)".
uint64_t top_p_limit(double top_p);

// A lower bound of the k-th largest entry of a row, from its column maxima: −inf when there are
// fewer columns than k. scratch: room for as many floats as column_max has.
float kth_largest_bound(std::span<const float> column_max, size_t k, std::span<float> scratch);

// Moves the k smallest keys to the front, in any order.
void keep_first(std::span<OrderKey> keys, size_t k);

// How many keys are kept, walking in order, while the mass before a key is below `limit` (the first
// always is). Afterwards these are at the front, in any order. mass[id]: units of each id.
template <class MassOf>
size_t keep_mass(std::span<OrderKey> keys, uint64_t limit, const MassOf& mass_of) {
  // Weighted quickselect: [0, low) is kept, and its mass is `before` < limit; from `high` on
  // nothing is kept.
  size_t low = 0, high = keys.size();
  uint64_t before = 0;
  while (high - low > 32) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(keys.begin() + static_cast<ptrdiff_t>(low),
                     keys.begin() + static_cast<ptrdiff_t>(middle),
                     keys.begin() + static_cast<ptrdiff_t>(high));
    uint64_t mass = before;
    for (size_t i = low; i < middle; ++i) mass += mass_of(key_id(keys[i]));
    if (mass >= limit) {
      high = middle;  // the mass before keys[middle] is not below the limit
    } else {
      low = middle;
      before = mass;
    }
  }
  std::sort(keys.begin() + static_cast<ptrdiff_t>(low),
            keys.begin() + static_cast<ptrdiff_t>(high));
  for (size_t i = low; i < high; ++i) {
    if (i > 0 && before >= limit) return i;
    before += mass_of(key_id(keys[i]));
  }
  return high;
}

}  // namespace deepmint::sampling
