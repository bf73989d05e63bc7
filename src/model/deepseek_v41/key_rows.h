// Where the packed rows are that attention and the indexer read. Plain views into the cache's
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepmint/types.h"

namespace deepmint::v41 {

// Window rows of one sequence in one layer: positions of this step, earlier ones in the ring.
struct WindowKeys {
  const std::byte* ring = nullptr;
  const std::byte* step = nullptr;
  int32_t ring_rows = 1, step_first = 0;
  size_t row_bytes = 0;
  const std::byte* row(int32_t position) const {
    return position >= step_first ? step + static_cast<size_t>(position - step_first) * row_bytes
                                  : ring + static_cast<size_t>(position % ring_rows) * row_bytes;
  }
};

// Global rows, or index keys, of one kv source and sequence: row r in block r / rows_per_block.
struct PagedRows {
  const std::byte* base = nullptr;  // includes the source's offset inside a block
  const BlockId* blocks = nullptr;
  size_t block_bytes = 0, row_bytes = 0;
  int32_t rows_per_block = 1;
  const std::byte* row(int64_t r) const {
    const auto i = static_cast<uint32_t>(r), page = static_cast<uint32_t>(rows_per_block);
    return base + static_cast<size_t>(blocks[i / page]) * block_bytes + i % page * row_bytes;
  }
};

}  // namespace deepmint::v41
