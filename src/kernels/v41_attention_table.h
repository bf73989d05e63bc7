// The V4.1 attention kernels of one instruction set (v41_attention.h). Plain structs only: included
// by files that are compiled per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::kernels {

// Memory to fetch into the second-level cache meanwhile, a few lines at a time: what is read next,
// while arithmetic leaves the memory idle. `at` walks to `end`, then through `more` pieces.
struct V41Fetch {
  struct Piece {
    const uint8_t *begin, *end;
  };
  const uint8_t *at = nullptr, *end = nullptr;
  const Piece* next = nullptr;
  int64_t more = 0;
};

// Packed rows to unpack while scores are computed: multiplying leaves the units that look values up
// idle. In list order, so that a row is there before its score.
struct V41Unpack {
  struct Row {
    const uint8_t* packed;
    uint16_t* out;
    int32_t begin, end;  // dimensions, multiples of 32; begin < end
    bool window;         // or a global row
  };
  const Row* rows = nullptr;
  int64_t count = 0, dim = 0;
  const int32_t* due = nullptr;  // by row of the list: so many of `rows` come before its score
  int64_t done = 0;              // rows so far
};

struct V41AttentionTable {
  // Dimensions [begin, end), to their places in out.
  void (*unpack_window)(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out);
  void (*unpack_global)(const uint8_t* row, int64_t dim, int64_t begin, int64_t end, uint16_t* out);
  void (*pack_queries)(const float* q, int64_t heads, int64_t dim, float* packed);
  // Does all of `unpack`, beside the scores where that is faster than before them.
  void (*scores)(const float* packed, int64_t lanes, int64_t dim, const uint16_t* const* rows,
                 int64_t count, float scale, float* scores, float* scratch, V41Fetch* fetch,
                 V41Unpack* unpack);
  void (*weights)(const float* scores, int64_t lanes, int64_t n, int64_t begin, int64_t end,
                  float* exps, float* p);
  void (*values)(const float* scores, const float* exps, const float* p, int64_t lanes, int64_t n,
                 const float* sink, const uint16_t* const* rows, int64_t heads, int64_t dim,
                 int64_t begin, int64_t end, float* out, V41Fetch* fetch);
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
