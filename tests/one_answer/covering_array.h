// Test cases that together try every pair of values of any two dimensions.
//
//   const int levels[] = {3, 2, 5};                      // values per dimension
//   for (const std::vector<int>& row : covering_array(levels, seed)) run(row[0], row[1], row[2]);
//
// Greedy and deterministic: the same levels and seed give the same rows everywhere. About as many
// rows as the product of the two greatest numbers of levels, times a little.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepmint::one_answer {

std::vector<std::vector<int>> covering_array(std::span<const int> levels, uint64_t seed);

}  // namespace deepmint::one_answer
