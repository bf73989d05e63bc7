#include "sampling/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace deepmint::sampling {

uint64_t top_p_limit(double top_p) {
  const double units =
      std::ceil(top_p * 0x1p48);  // exact: a scaling by a power of two, then an integer
  return units <= 0 ? 0 : static_cast<uint64_t>(units);
}

float kth_largest_bound(std::span<const float> column_max, size_t k, std::span<float> scratch) {
  if (k > column_max.size()) return -std::numeric_limits<float>::infinity();
  std::copy(column_max.begin(), column_max.end(), scratch.begin());
  const auto end = scratch.begin() + static_cast<ptrdiff_t>(column_max.size());
  const auto kth = scratch.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(scratch.begin(), kth, end, std::greater<>());
  return *kth;
}

void keep_first(std::span<OrderKey> keys, size_t k) {
  if (k < keys.size())
    std::nth_element(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(k), keys.end());
}

}  // namespace deepmint::sampling
