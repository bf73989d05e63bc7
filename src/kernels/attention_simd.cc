// Attention on sixteen lanes. Compiled once per instruction set.
//
// Scores and weighted values are the same small product: C[queries, 32·n] += A[queries, k] · B[k,
// 32·n], with lanes along the columns (keys, then dimensions) and k (dimensions, then keys) walked
// in ascending order by one FMA chain per element. So an element's bits do not depend on how many
// queries or columns share a register block.
#include "kernels/attention_table.h"
#include "kernels/simd16.inl"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

constexpr int64_t kTile = kBlockTokens;

// Register block: kRows queries by kPairs * 32 columns. 24 accumulators of 32 registers with
// AVX-512; 8 of 16 below.
#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kRows = 6, kPairs = 2;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kRows = 2, kPairs = 1;
#else
constexpr int kRows = 1, kPairs = 1;
#endif

// c[r][0..32·Pairs) (+)= sum over k in [k_begin, k_end) of a[r][k] * b[k][...]. `ahead` is fetched
// alongside, element by element as b is read.
template <int Rows, int Pairs>
DM_INLINE void product(const float* const* a, const uint16_t* b, int64_t b_stride, int64_t k_begin,
                       int64_t k_end, float* const* c, int64_t column, bool accumulate,
                       const uint16_t* ahead) {
  F16 sums[Rows][2 * Pairs];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 2 * Pairs; ++v)
      sums[r][v] = accumulate ? load(c[r] + column + v * kLanes) : zero();
  const uint16_t* row = b + k_begin * b_stride + column;
  ahead += k_begin * b_stride + column;
  for (int64_t k = k_begin; k < k_end; ++k, row += b_stride, ahead += b_stride) {
    for (int p = 0; p < Pairs; ++p) __builtin_prefetch(ahead + 32 * p, 0, 2);
    F16 w[2 * Pairs];
    for (int p = 0; p < Pairs; ++p) load_bf16_pairs(row + 32 * p, w[2 * p], w[2 * p + 1]);
    for (int r = 0; r < Rows; ++r) {
      const F16 x = set1(a[r][k]);
      for (int v = 0; v < 2 * Pairs; ++v) sums[r][v] = fma(x, w[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 2 * Pairs; ++v) store(c[r] + column + v * kLanes, sums[r][v]);
}

// Columns past the last group of 32: a head dimension that is not a multiple of 32. The same chain
// per element.
__attribute__((noinline)) void tail_columns(int rows, const float* const* a, const uint16_t* b,
                                            int64_t b_stride, int64_t k_begin, int64_t k_end,
                                            float* const* c, int64_t begin, int64_t end,
                                            bool accumulate) {
  for (int r = 0; r < rows; ++r)
    for (int64_t d = begin; d < end; ++d) {
      float s = accumulate ? c[r][d] : 0.0f;
      for (int64_t k = k_begin; k < k_end; ++k)
        s = fma_scalar(a[r][k],
                       __builtin_bit_cast(float, static_cast<uint32_t>(b[k * b_stride + d]) << 16),
                       s);
      c[r][d] = s;
    }
}

template <int Rows>
DM_INLINE void product_columns(const float* const* a, const uint16_t* b, int64_t b_stride,
                               int64_t k_begin, int64_t k_end, float* const* c, int64_t columns,
                               bool accumulate, const uint16_t* ahead) {
  int64_t column = 0;
  for (; column + 32 * kPairs <= columns; column += 32 * kPairs)
    product<Rows, kPairs>(a, b, b_stride, k_begin, k_end, c, column, accumulate, ahead);
  if constexpr (kPairs > 1) {
    if (column + 32 <= columns) {
      product<Rows, 1>(a, b, b_stride, k_begin, k_end, c, column, accumulate, ahead);
      column += 32;
    }
  }
  if (column < columns)
    tail_columns(Rows, a, b, b_stride, k_begin, k_end, c, column, columns, accumulate);
}

// Rows in [1, kRows].
void product_rows(int rows, const float* const* a, const uint16_t* b, int64_t b_stride,
                  int64_t k_begin, int64_t k_end, float* const* c, int64_t columns, bool accumulate,
                  const uint16_t* ahead) {
#define DM_CASE(n)                                                                       \
  case n:                                                                                \
    if constexpr (n <= kRows)                                                            \
      product_columns<n>(a, b, b_stride, k_begin, k_end, c, columns, accumulate, ahead); \
    break
  switch (rows) {
    DM_CASE(1);
    DM_CASE(2);
    DM_CASE(3);
    DM_CASE(4);
    DM_CASE(5);
    DM_CASE(6);
  }
#undef DM_CASE
}

// Results of queries over some tiles. m: running maximum, l: sum of exp(score - m), o:
// [query][head_dim] weighted values.
struct Partial {
  float* m;
  float* l;
  float* o;
};

DM_INLINE int64_t round_up16(int64_t n) { return (n + 15) / 16 * 16; }

DM_INLINE Partial partial_at(float* p, int64_t queries) {
  return {p, p + round_up16(queries), p + 2 * round_up16(queries)};
}

DM_INLINE const uint16_t* tile_keys(const AttentionJob& job, int64_t tile) {
  const KvPages& g = job.pages;
  return reinterpret_cast<const uint16_t*>(g.base +
                                           static_cast<size_t>(g.blocks[tile]) * g.block_bytes);
}

// One tile for the queries [first, rows * group). scores: [kMaxQueries][64]. Brings the keys and
// values of `next` on their way: a tile is too short for the hardware to see what follows.
void tile_partial(const AttentionJob& job, int64_t tile, int64_t first, const Partial& out,
                  float* scores, const uint16_t* next) {
  const int64_t queries = job.rows * job.group, dim = job.head_dim;
  const uint16_t* keys = tile_keys(job, tile);
  const uint16_t* values = keys + dim * kTile;
  const int64_t before =
      job.position + 1 - tile * kTile;  // keys that row 0 sees here; one more for each row
  for (int64_t begin = first; begin < queries; begin += kRows) {
    const int rows = static_cast<int>(queries - begin < kRows ? queries - begin : kRows);
    const float* a[kRows];
    float* s[kRows];
    float* o[kRows];
    int64_t visible[kRows];
    for (int r = 0; r < rows; ++r) {
      const int64_t query = begin + r, row = query / job.group, head = query % job.group;
      a[r] = job.q + row * job.q_stride + head * dim;
      s[r] = scores + query * kTile;
      o[r] = out.o + query * dim;
      visible[r] = before + row < kTile ? before + row : kTile;
    }
    const uint16_t* next_keys = begin == first ? next : keys;
    // Slots behind the last key that any of these rows sees need no score.
    const int64_t scored = (visible[rows - 1] + 31) / 32 * 32;
    product_rows(rows, a, keys, kTile, 0, dim, s, scored, false, next_keys);
    for (int r = 0; r < rows; ++r) {
      // Slots that are not visible hold anything, NaN included: they are replaced, never
      // multiplied.
      const int n = static_cast<int>(visible[r]);
      const F16 hidden = set1(-__builtin_inff());
      F16 x[4];
      for (int v = 0; v < 4; ++v) x[v] = load(s[r] + v * kLanes);
      if (n < kTile)
        for (int v = 0; v < 4; ++v) x[v] = first_n(n - v * kLanes, x[v], hidden);
      const float m = max_lane(max(max(x[0], x[1]), max(x[2], x[3])));
      for (int v = 0; v < 4; ++v) {
        x[v] = exp(sub(x[v], set1(m)));
        store(s[r] + v * kLanes, x[v]);
      }
      out.m[begin + r] = m;
      out.l[begin + r] = sum(add(add(x[0], x[1]), add(x[2], x[3])));
    }
    const float* p[kRows];
    for (int r = 0; r < rows; ++r) p[r] = s[r];
    product_rows(rows, p, values, dim, 0, visible[0], o, dim, false, next_keys + dim * kTile);
    for (int r = 0; r < rows; ++r)  // a later row sees more keys: its chain goes on alone
      if (visible[r] > visible[0])
        product_rows(1, p + r, values, dim, visible[0], visible[r], o + r, dim, true, values);
  }
}

// state = state combined with the next tile, for queries [first, queries).
// m' = max(m, mt); l' = l e^(m - m') + lt e^(mt - m'); o likewise.
void combine(int64_t first, int64_t queries, int64_t dim, const Partial& state,
             const Partial& next) {
  alignas(64) float keep[kMaxQueries], take[kMaxQueries];
  for (int64_t q = first / kLanes * kLanes; q < queries; q += kLanes) {
    const F16 m0 = load(state.m + q), m1 = load(next.m + q), m = max(m0, m1);
    const F16 a = exp(sub(m0, m)), b = exp(sub(m1, m));
    const F16 l0 = load(state.l + q), l1 = load(next.l + q);
    store(keep + q, a);
    store(take + q, b);
    const int skip = static_cast<int>(first - q);  // queries below `first` do not see this tile
    store(state.m + q, first_n(skip, m0, m));
    store(state.l + q, first_n(skip, l0, fma(l1, b, mul(l0, a))));
  }
  for (int64_t q = first; q < queries; ++q) {
    float* o = state.o + q * dim;
    const float* t = next.o + q * dim;
    const F16 a = set1(keep[q]), b = set1(take[q]);
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(o + d, fma(load(t + d), b, mul(load(o + d), a)));
    for (; d < dim; ++d) o[d] = fma_scalar(t[d], take[q], o[d] * keep[q]);
  }
}

void finish(const AttentionJob& job, const Partial& state) {
  const int64_t dim = job.head_dim;
  for (int64_t row = 0, query = 0; row < job.rows; ++row)
    for (int64_t head = 0; head < job.group; ++head, ++query) {
      float* out = job.out + row * job.out_stride + head * dim;
      const float* o = state.o + query * dim;
      const float l = state.l[query];
      int64_t d = 0;
      for (; d + kLanes <= dim; d += kLanes) store(out + d, div(load(o + d), set1(l)));
      for (; d < dim; ++d) out[d] = o[d] / l;
    }
}

void attend(const AttentionJob& job, float* scratch) {
  const int64_t queries = job.rows * job.group;
  float* scores = scratch;
  const Partial state = partial_at(scratch + kMaxQueries * kTile, kMaxQueries);
  const Partial next = partial_at(state.o + kMaxQueries * job.head_dim, kMaxQueries);
  const int64_t tiles = (job.position + job.rows - 1) / kTile + 1;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    // Rows before the tile's first position do not see it; a row sees its first tile (0) before any
    // other.
    const int64_t hidden_rows = tile * kTile - job.position;
    const int64_t first = hidden_rows > 0 ? hidden_rows * job.group : 0;
    tile_partial(job, tile, first, tile == 0 ? state : next, scores,
                 tile_keys(job, tile + 1 < tiles ? tile + 1 : tile));
    if (tile > 0) combine(first, queries, job.head_dim, state, next);
  }
  finish(job, state);
}

int64_t partial_size(const AttentionJob& job) {
  return 2 * round_up16(job.group) + round_up16(job.group * job.head_dim);
}

void attend_partials(const AttentionJob& job, int64_t tile_begin, int64_t tile_end, float* partials,
                     float* scratch, const std::byte* next) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint16_t* after = tile + 1 < tile_end ? tile_keys(job, tile + 1)
                            : next != nullptr   ? reinterpret_cast<const uint16_t*>(next)
                                                : tile_keys(job, tile);
    tile_partial(job, tile, 0,
                 partial_at(partials + (tile - tile_begin) * partial_size(job), job.group), scratch,
                 after);
  }
}

void attend_combine(const AttentionJob& job, int64_t tile_begin, int64_t tile_end,
                    const float* partials, float* state_floats) {
  const Partial state = partial_at(state_floats, job.group);
  const int64_t size = partial_size(job);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const float* source = partials + (tile - tile_begin) * size;
    if (tile == 0) {
      for (int64_t i = 0; i < size; ++i) state_floats[i] = source[i];
    } else {
      combine(0, job.group, job.head_dim, state, partial_at(const_cast<float*>(source), job.group));
    }
  }
  if (tile_end * kTile > job.position) finish(job, state);
}

DM_INLINE uint16_t to_bf16_bits(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

void kv_write(std::byte* tile, int64_t head_dim, int slot, const float* k, const float* v) {
  uint16_t* key =
      reinterpret_cast<uint16_t*>(tile) + (slot / 32 * 32 + slot % 16 * 2 + slot % 32 / 16);
  for (int64_t d = 0; d < head_dim; ++d) key[d * kTile] = to_bf16_bits(k[d]);
  uint16_t* value = reinterpret_cast<uint16_t*>(tile) + head_dim * kTile + slot * head_dim;
  int64_t d = 0;
  for (; d + 32 <= head_dim; d += 32)
    for (int i = 0; i < 16; ++i) {
      value[d + 2 * i] = to_bf16_bits(v[d + i]);
      value[d + 2 * i + 1] = to_bf16_bits(v[d + i + 16]);
    }
  for (; d < head_dim; ++d) value[d] = to_bf16_bits(v[d]);
}

}  // namespace

extern const AttentionTable attention_table = {attend, attend_partials, attend_combine, kv_write};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
