// The V4.1 indexer kernels of one instruction set (v41_index.h). Plain structs only: included by
// files that are compiled per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

// One block of 32 elements of one packed query head.
struct V41IndexBlock {
  float scale = 0;     // half the block's scale
  int32_t offset = 0;  // -12 * sum of the block's codes
};

struct V41IndexTable {
  void (*pack_query)(const uint8_t* codes, const uint8_t* scales, int64_t dim, int8_t* packed,
                     V41IndexBlock* blocks);
  void (*unpack_keys)(const uint8_t* const* rows, int64_t dim, uint8_t* tile, float* scales);
  void (*scores)(const uint8_t* tile, const float* scales, int64_t groups, const int8_t* queries,
                 const V41IndexBlock* blocks, const float* weights, int64_t heads, int64_t dim,
                 float* out);
  int64_t (*above)(const float* scores, int64_t n, int32_t base, float threshold, float* out,
                   int32_t* index);
  float (*kth_largest)(const float* scores, int64_t n, int64_t k, int32_t* keys);
  void (*keep)(float* scores, int32_t* index, int64_t n, int64_t k, float last);
  // unpack_keys and scores in one, for dim 128 and heads in eights: faster when a single query
  // reads the keys. eights: 2 * groups pointers, each to eight packed rows one behind the other.
  // Null where it would not be faster.
  void (*scan128)(const uint8_t* const* eights, size_t row_bytes, int64_t groups,
                  const int8_t* queries, const V41IndexBlock* blocks, const float* weights,
                  int64_t heads, float* out);
};

namespace isa_x86_64 {
extern const V41IndexTable v41_index_table;
}
namespace isa_avx2 {
extern const V41IndexTable v41_index_table;
}
namespace isa_avx512 {
extern const V41IndexTable v41_index_table;
}
namespace isa_avx512vnni {
extern const V41IndexTable v41_index_table;
}
namespace isa_avx512bf16 {
extern const V41IndexTable v41_index_table;
}

}  // namespace deepmint::kernels
