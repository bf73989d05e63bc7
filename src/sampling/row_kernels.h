// What sampling does to whole rows of the vocabulary, one table of functions per instruction set.
//
// Every instruction set gives the same bits: the functions below use IEEE additions,
// multiplications, divisions and comparisons in one fixed order and never a fused multiply-add, so
// lanes change the speed and nothing else.
//
// Rows are plain float arrays without alignment or padding. −inf means "dropped". Sizes are in
// elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepmint::sampling {

inline constexpr size_t kTileIds = 512;   // unit of the canonical tree sum (spec/determinism.md 7)
inline constexpr size_t kGroupIds = 256;  // unit of the column maxima
inline constexpr size_t kGroupColumns = 16;

inline constexpr size_t groups_of(size_t n) { return (n + kGroupIds - 1) / kGroupIds; }
inline constexpr size_t columns_of(size_t n) { return groups_of(n) * kGroupColumns; }

struct RowScan {
  float max;     // of the row; −inf when every entry is −inf
  uint32_t bad;  // nonzero: a NaN or +inf is in the row
};

// Where a draw's random word comes from: Philox key and the counter words 1..3; word 0 is id / 4.
struct NoiseKey {
  uint32_t key[2];
  uint32_t position, stream, choice;
};

struct GumbelBest {
  double score;  // f64(x) + g; the largest so far
  uint32_t id;   // lowest id with that score
};

struct RowKernels {
  // column_max[16 g + c] = max of x[256 g + c + 16 j] over j: the maxima of disjoint sets, so that
  // "the k-th largest of these" is a lower bound of the k-th largest entry, and a group without a
  // column above a threshold needs no second look. May be null.
  RowScan (*scan)(const float* x, size_t n, float* column_max);

  void (*divide)(const float* x, size_t n, float divisor, float* out);  // may be in place

  // Bit id % 32 of word id / 32 clear → −inf. words: [ceil(n / 32)].
  void (*apply_mask)(float* x, size_t n, const uint32_t* words);

  // e[i] = f32(exp(f64(x[i]) − f64(max))), 0 for −inf; returns the tree sum of e. e: [n] or null.
  float (*exp_sum)(const float* x, size_t n, float max, float* e);

  // Tree sum of one tile of 512: x[i] += x[i+s] for s = 256, 128 … 1.
  float (*tile_sum)(const float* tile);

  // Ids with at_least <= x < below, ascending; returns how many. ids: room for n. Gives up once it
  // has more than `limit`.
  size_t (*collect)(const float* x, size_t n, const float* column_max, float at_least, float below,
                    size_t limit, uint32_t* ids);

  // out[i] = x[i] where x[i] >= threshold, else −inf.
  void (*keep_at_least)(const float* x, size_t n, float threshold, float* out);

  // units[i] = floor(f64(f32(e[i] / sum)) * 2^48): probabilities as integers, held in doubles. Sums
  // of them are below 2^53 and therefore exact in any order.
  void (*mass_units)(const float* e, size_t n, float sum, double* units);
  // Their sum over x[i] >= threshold, and how many such i there are.
  double (*mass_at_least)(const float* x, const double* units, size_t n, float threshold,
                          size_t* count);

  // Gumbel-max over the whole row. `best` comes in with the exact score of some id and goes out
  // with the winner. Entries whose upper bound is below the best so far are passed over without a
  // logarithm; see docs/sampling.md for why the result is the same.
  void (*gumbel_max)(const float* x, size_t n, const float* column_max, const NoiseKey* key,
                     GumbelBest* best);
  // The same over a list of ids.
  void (*gumbel_max_of)(const float* x, const uint32_t* ids, size_t count, const NoiseKey* key,
                        GumbelBest* best);

  uint32_t (*noise_word)(const NoiseKey* key, uint32_t id);
  float (*gumbel_bound)(
      uint32_t word);  // not below gumbel(word); at most 0.1 above it where that is in [3, 17]
  double (*gumbel)(uint32_t word);  // −ln(−ln((word + 0.5) / 2^32))
  double (*ln)(double x);           // x normal and > 0
  double (*exp)(double x);          // x <= 0; 0 below −200 after rounding to float
};

const RowKernels& row_kernels();  // of active_isa()

}  // namespace deepmint::sampling
