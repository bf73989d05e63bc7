// Grouped-query attention over paged BF16 keys and values.
//
// Canonical order: keys are walked in tiles of 64 by absolute position. Each tile gives a partial
// result (maximum, sum, weighted values) that depends on the query and the keys visible in that
// tile alone; partial results are combined in ascending tile order, one tile at a time. So one row
// or a thousand, a prefill or a decode row, tiles computed by one thread or by many: the same bits.
// docs/kernels/attention.md has the formulas.
//
//   kv_write(tile, head_dim, position % kBlockTokens, k, v);
//   attend(job, scratch);                          // a few query rows of one sequence, one KV head
#pragma once

#include "kernels/attention_table.h"

namespace deepmint::kernels {

// A tile: keys and values of kBlockTokens positions, one layer, one KV head; 64-byte aligned, BF16
// throughout.
//   keys   [head_dim][64]: slot s (0..63) of a dimension stands at pair_index(s)
//   values [64][head_dim]: dimension d stands at pair_index(d) in whole groups of 32, at d in a
//   last smaller group
// Element e of a group of 32 sits beside element e + 16, so that 16 words of 32 bits split into two
// times 16 floats.
constexpr int64_t kv_tile_bytes(int64_t head_dim) { return 2 * head_dim * kBlockTokens * 2; }
constexpr int64_t pair_index(int64_t e) { return e / 32 * 32 + (e % 16) * 2 + (e % 32) / 16; }

// Stores one position of a tile, rounded to BF16 (nearest even). k, v: [head_dim].
void kv_write(std::byte* tile, int64_t head_dim, int slot, const float* k, const float* v);
// Zeroes positions slot … 63 of a tile.
void kv_clear(std::byte* tile, int64_t head_dim, int slot);
// Brings the lines that kv_write will store to on their way to this core.
void kv_fetch(const std::byte* tile, int64_t head_dim, int slot);

// Floats of scratch for one call, per thread.
constexpr int64_t attention_scratch_floats(int64_t head_dim) {
  return kMaxQueries * (kBlockTokens + 2 * head_dim + 8);
}

// out = softmax(q · keys) · values for every query of the job. 1 <= rows * group <= kMaxQueries;
// scratch is 64-byte aligned.
void attend(const AttentionJob& job, float* scratch);

// The same in two parts, to share the tiles of one row among threads: partials of tiles in any
// order on any thread, then a combine that walks them in ascending order. job.rows must be 1.
//   partials: tile t at partials + (t - tile_begin) * partial_floats
//   state:    partial_floats, kept between calls of attend_combine; the call with tile_begin = 0
//   starts it, the call whose
//             tile_end passes the last visible tile writes job.out
constexpr int64_t partial_floats(int64_t group, int64_t head_dim) {
  return 2 * ((group + 15) / 16 * 16) + (group * head_dim + 15) / 16 * 16;
}
//   next:     the tile that this thread reads afterwards, fetched ahead; or null
void attend_partials(const AttentionJob& job, int64_t tile_begin, int64_t tile_end, float* partials,
                     float* scratch, const std::byte* next = nullptr);
void attend_combine(const AttentionJob& job, int64_t tile_begin, int64_t tile_end,
                    const float* partials, float* state);

// Scalar twin: two passes in double over the keys and values as stored, one rounding.
void attend_ref(const AttentionJob& job);

}  // namespace deepmint::kernels
