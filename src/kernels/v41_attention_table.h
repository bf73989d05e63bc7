// The V4.1 attention kernels of one instruction set (v41_attention.h). Plain structs only: included
// by files that are compiled per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

struct V41AttentionTable {
  void (*unpack_window)(const uint8_t* row, int64_t dim, uint16_t* out);
  void (*unpack_global)(const uint8_t* row, int64_t dim, uint16_t* out);
  void (*pack_queries)(const float* q, int64_t heads, int64_t dim, float* packed);
  void (*scores)(const float* packed, int64_t lanes, int64_t dim, const uint16_t* const* rows,
                 int64_t count, float scale, float* scores, float* scratch);
  void (*weights)(const float* scores, int64_t lanes, int64_t n, int64_t begin, int64_t end,
                  float* exps, float* p);
  void (*values)(const float* scores, const float* exps, const float* p, int64_t lanes, int64_t n,
                 const float* sink, const uint16_t* const* rows, int64_t heads, int64_t dim,
                 int64_t begin, int64_t end, float* out);
};

namespace isa_x86_64 {
extern const V41AttentionTable v41_attention_table;
}
namespace isa_avx2 {
extern const V41AttentionTable v41_attention_table;
}
namespace isa_avx512 {
extern const V41AttentionTable v41_attention_table;
}
namespace isa_avx512vnni {
extern const V41AttentionTable v41_attention_table;
}
namespace isa_avx512bf16 {
extern const V41AttentionTable v41_attention_table;
}

}  // namespace deepmint::kernels
