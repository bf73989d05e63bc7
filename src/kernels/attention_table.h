// Plain structs of attention.h and the table of one instruction set. No inline functions: included
// by files that are compiled per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepmint/types.h"

namespace deepmint::kernels {

// Where a sequence's tiles of one layer and one KV head are: tile t at base + blocks[t] *
// block_bytes.
struct KvPages {
  const std::byte* base = nullptr;  // includes the offset of layer and KV head inside a block
  size_t block_bytes = 0;
  const BlockId* blocks = nullptr;
};

// Queries of `rows` consecutive positions of one sequence and the `group` heads that share a KV
// head. A row at position p sees keys 0..p. rows * group <= kMaxQueries.
struct AttentionJob {
  const float* q =
      nullptr;  // head h of row r at q + r * q_stride + h * head_dim; scaled by the caller
  int64_t q_stride = 0;
  float* out = nullptr;  // the same places with out_stride; may be q when the strides are equal
  int64_t out_stride = 0;
  int64_t rows = 0, group = 0, head_dim = 0;
  int64_t position = 0;  // of row 0
  KvPages pages;
};

inline constexpr int64_t kMaxQueries = 64;

struct AttentionTable {
  void (*attend)(const AttentionJob& job, float* scratch);
  void (*attend_partials)(const AttentionJob& job, int64_t tile_begin, int64_t tile_end,
                          float* partials, float* scratch, const std::byte* next);
  void (*attend_combine)(const AttentionJob& job, int64_t tile_begin, int64_t tile_end,
                         const float* partials, float* state);
  void (*kv_write)(std::byte* tile, int64_t head_dim, int slot, const float* k, const float* v);
};

namespace isa_x86_64 {
extern const AttentionTable attention_table;
}
namespace isa_avx2 {
extern const AttentionTable attention_table;
}
namespace isa_avx512 {
extern const AttentionTable attention_table;
}
namespace isa_avx512vnni {
extern const AttentionTable attention_table;
}
namespace isa_avx512bf16 {
extern const AttentionTable attention_table;
}

}  // namespace deepmint::kernels
