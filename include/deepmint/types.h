// Integer kinds that cross module boundaries.
#pragma once

#include <cstdint>

namespace deepmint {

using TokenId = std::int32_t;  // index into the model's vocabulary; negative values are never valid

enum class BlockId : std::uint32_t {};  // index of a cache block in its pool
enum class SlotId : std::uint32_t {};   // index of a sequence's private state in its pool

inline constexpr BlockId kNoBlock{0xffffffffu};
inline constexpr SlotId kNoSlot{0xffffffffu};

// Positions per cache block: the unit of prefix identity, of K/V pages and of transfer
// (spec/serving.md 3.2).
inline constexpr int kBlockTokens = 64;

}  // namespace deepmint
