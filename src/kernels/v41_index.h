// The lightning indexer of V4.1 (spec model.md 6): scores of one query against packed index keys,
// and the selection of the largest.
//
//   score[j] = sum over heads h, ascending, of w[h] * max(q[h] . k[j], 0)
//   q[h] . k[j] = sum over blocks b of 32, ascending, of integer_dot(b) * qscale[h][b] *
//   kscale[j][b]
//
// Queries and keys are FP4 values with power-of-two scales, so an integer dot of a block (of
// doubled codes, at most 32 * 144) is exact and so is its product with the scales: all instruction
// sets with FMA give the same bits, x86-64 rounds w * dot once more.
//
//   v41_index().unpack_keys(rows16, 128, tile, scales);   // sixteen keys
//   v41_index().scores(tile, scales, 1, queries, blocks, weights, heads, 128, out16);
#pragma once

#include "kernels/v41_index_table.h"

namespace deepmint::kernels {

// pack_query: one head's packed row (q4idx: dim / 2 code bytes and dim / 32 scales) → dim int8 and
//   dim / 32 blocks.
// unpack_keys: sixteen packed rows (repeat one to fill up) → 16 * dim bytes and [dim / 32][16]
//   scales, 64-byte aligned. Scale bytes are 1 .. 254.
// scores: `groups` such tiles one behind the other; queries: [heads, dim], blocks: [heads, dim /
// 32],
//   weights: [heads] → out: [16 * groups].
// kth_largest: of n >= k scores, none NaN; keys: n entries of scratch.
// above: appends the scores[j] > threshold and base + j, in order; returns how many. Writes up to
// 16
//   entries past the last.
// keep: moves to the front, in order, the k of n >= k entries that kth_largest (`last`) leaves.
// dim is a multiple of 32.
const V41IndexTable& v41_index();

// The k best of a stream of (score, index) in ascending index: higher score first, then the lower
// index; -infinity and NaN are never chosen. Linear time and k-sized memory, whatever the length.
class V41TopK {
 public:
  static constexpr int64_t kChunk = 64;  // add() takes up to this many
  static constexpr int64_t capacity(int64_t k) { return 4 * k + 2 * kChunk; }

  // scores, index: capacity(k) entries each; scratch: capacity(k) entries, may be shared by lists
  // that are used one after the other.
  void reset(int64_t k, float* scores, int32_t* index, int32_t* scratch);
  void add(const float* scores, int64_t n, int32_t base);
  void push(float score, int32_t index);
  // For lists whose indices are not consecutive: those of the entries added since size() was `from`
  // become map[index].
  void remap(int64_t from, const int32_t* map);
  int64_t size() const { return n_; }
  // Ensures that add() of a chunk or push() does not prune, so that size() marks a place.
  void make_room();
  // Prunes to at most k; the rest of the list is then index()[0, size()), ascending.
  void finish();
  // The same for a list in memory, index ascending: keeps min(n, k) entries at the front and
  // returns the k-th best score, or -infinity when n < k. scratch: n entries.
  static float keep_best(float* scores, int32_t* index, int64_t n, int64_t k, int32_t* scratch);
  const int32_t* index() const { return index_; }
  const float* scores() const { return scores_; }

 private:
  void prune();
  int64_t k_ = 0, n_ = 0;
  float threshold_ = 0;
  float* scores_ = nullptr;
  int32_t* index_ = nullptr;
  int32_t* scratch_ = nullptr;
};

}  // namespace deepmint::kernels
