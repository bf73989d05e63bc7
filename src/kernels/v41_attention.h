// Attention of one V4.1 query over a list of latent rows, with a sink (spec model.md 5.3). All
// heads read the same rows, which are both keys and values:
//
//   s[h][t] = (q[h] . K[t]) * scale      M[h] = max over t      p = exp(s - M)
//   out[h]  = bf16( sum_t bf16(p[h][t]) K[t] / (sum_t p[h][t] + exp(sink[h] - M[h])) )
//
// Canonical order: rows in list order (window positions ascending, then global rows ascending), one
// chain per dot product, per sum and per output element. So a row's bits depend on its own query
// and list alone, however work is cut. With BF16 instructions a chain walks pairs: dimensions (2i,
// 2i + 1) of a dot product, list entries (2i, 2i + 1) of an output element.
//
// A call in four steps, so that threads may share one query: unpack rows and scores of any range of
// rows, then weights of any range, then values of any range of dimensions.
//
//   v41_attend(q, rows, n, heads, dim, scale, sink, memory, out);
#pragma once

#include "kernels/v41_attention_table.h"

namespace deepmint::kernels {

const V41AttentionTable& v41_attention();

inline constexpr int64_t kV41MaxHeads = 1024;
inline constexpr int64_t kV41RowStep = 12;  // ranges of rows begin at multiples of this

// Heads in whole groups of 16 lanes.
constexpr int64_t v41_lanes(int64_t heads) { return (heads + 15) / 16 * 16; }

// Packed cache rows → BF16 [dim]; exact. Window rows: dim E4M3 codes, dim / 32 E8M0 scales; global
// rows: dim / 2 bytes of E2M1 codes, dim / 16 E4M3 scales. dim is a multiple of 32.
// The second form unpacks dimensions [begin, end), multiples of 32, to where they belong in out.
inline void v41_unpack_window(const std::byte* row, int64_t dim, uint16_t* out) {
  v41_attention().unpack_window(reinterpret_cast<const uint8_t*>(row), dim, 0, dim, out);
}
inline void v41_unpack_global(const std::byte* row, int64_t dim, uint16_t* out) {
  v41_attention().unpack_global(reinterpret_cast<const uint8_t*>(row), dim, 0, dim, out);
}
inline void v41_unpack_window(const std::byte* row, int64_t dim, int64_t begin, int64_t end,
                              uint16_t* out) {
  v41_attention().unpack_window(reinterpret_cast<const uint8_t*>(row), dim, begin, end, out);
}
inline void v41_unpack_global(const std::byte* row, int64_t dim, int64_t begin, int64_t end,
                              uint16_t* out) {
  v41_attention().unpack_global(reinterpret_cast<const uint8_t*>(row), dim, begin, end, out);
}

// Scratch of one query over at most n rows: 64-byte aligned.
struct V41QueryMemory {
  float* packed = nullptr;   // v41_lanes(heads) * dim
  float* scores = nullptr;   // [n, lanes]
  float* exps = nullptr;     // [n, lanes]
  float* weights = nullptr;  // [n, lanes]
  float* scratch = nullptr;  // kV41RowStep * dim, one per thread
};

// q: [heads, dim], values of BF16. out: [heads, dim], may be q. rows[t]: BF16 [dim], finite. n = 0
// gives zeros. `fetch`, here and below: weights to fetch meanwhile, or null. `unpack`: rows of the
// list, and others, that are still packed; all are unpacked when the scores are there.
void v41_attend(const float* q, const uint16_t* const* rows, int64_t n, int64_t heads, int64_t dim,
                float scale, const float* sink, const V41QueryMemory& memory, float* out,
                V41Fetch* fetch = nullptr, V41Unpack* unpack = nullptr);

// The same in steps. scores: rows [begin, end) with begin a multiple of kV41RowStep; weights: the
// same; values: dimensions [begin, end), multiples of 32.
inline void v41_pack_queries(const float* q, int64_t heads, int64_t dim,
                             const V41QueryMemory& memory) {
  v41_attention().pack_queries(q, heads, dim, memory.packed);
}
inline void v41_scores(const uint16_t* const* rows, int64_t begin, int64_t end, int64_t heads,
                       int64_t dim, float scale, const V41QueryMemory& memory, float* scratch,
                       V41Fetch* fetch = nullptr, V41Unpack* unpack = nullptr) {
  const int64_t lanes = v41_lanes(heads);
  v41_attention().scores(memory.packed, lanes, dim, rows + begin, end - begin, scale,
                         memory.scores + begin * lanes, scratch, fetch, unpack);
}
inline void v41_weights(int64_t n, int64_t begin, int64_t end, int64_t heads,
                        const V41QueryMemory& memory) {
  v41_attention().weights(memory.scores, v41_lanes(heads), n, begin, end, memory.exps,
                          memory.weights);
}
inline void v41_values(const uint16_t* const* rows, int64_t n, int64_t heads, int64_t dim,
                       int64_t begin, int64_t end, const float* sink, const V41QueryMemory& memory,
                       float* out, V41Fetch* fetch = nullptr) {
  v41_attention().values(memory.scores, memory.exps, memory.weights, v41_lanes(heads), n, sink,
                         rows, heads, dim, begin, end, out, fetch);
}

}  // namespace deepmint::kernels
