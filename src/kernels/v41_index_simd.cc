// V4.1 indexer kernels: lanes are sixteen keys. Compiled once per instruction set.
#include "kernels/simd16.inl"
#include "kernels/transpose16.inl"
#include "kernels/v41_index_table.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

// Twice the value of an E2M1 code, plus 12.
alignas(64) constexpr uint8_t kCode[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};

DM_INLINE float half_scale(uint8_t b) {
  return b == 255 ? __builtin_nanf("")
                  : __builtin_bit_cast(float, static_cast<uint32_t>(b) << 23) * 0.5f;
}

// Order of a head's elements: for dword i of the packed row (elements 8i .. 8i + 7), the four even
// ones, then the four odd ones. Keys stand in the same order.
void pack_query(const uint8_t* codes, const uint8_t* scales, int64_t dim, int8_t* packed,
                V41IndexBlock* blocks) {
  for (int64_t b = 0; b < dim / 32; ++b) {
    int32_t total = 0;
    for (int64_t i = 4 * b; i < 4 * b + 4; ++i)
      for (int64_t j = 0; j < 4; ++j) {
        const uint8_t byte = codes[4 * i + j];
        const int32_t even = static_cast<int32_t>(kCode[byte & 15]) - 12;
        const int32_t odd = static_cast<int32_t>(kCode[byte >> 4]) - 12;
        packed[8 * i + j] = static_cast<int8_t>(even);
        packed[8 * i + 4 + j] = static_cast<int8_t>(odd);
        total += even + odd;
      }
    blocks[b].scale = half_scale(scales[b]);
    blocks[b].offset = -12 * total;
  }
}

// One dword of sixteen keys → 64 bytes of even and 64 bytes of odd elements.
#if DEEPMINT_ISA_LEVEL >= 2
DM_INLINE void expand(__m512i v, uint8_t* to) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kCode)));
  const __m512i low = _mm512_set1_epi8(15);
  _mm512_storeu_si512(to, _mm512_shuffle_epi8(table, _mm512_and_si512(v, low)));
  _mm512_storeu_si512(to + 64,
                      _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low)));
}
DM_INLINE void expand(const uint8_t* from, uint8_t* to) { expand(_mm512_loadu_si512(from), to); }
#elif DEEPMINT_ISA_LEVEL == 1
DM_INLINE void expand(const uint8_t* from, uint8_t* to) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kCode)));
  const __m256i low = _mm256_set1_epi8(15);
  for (int i = 0; i < 64; i += 32) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_shuffle_epi8(table, _mm256_and_si256(v, low)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64 + i),
                        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), low)));
  }
}
#else
DM_INLINE void expand(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < 64; ++i) {
    to[i] = kCode[from[i] & 15];
    to[64 + i] = kCode[from[i] >> 4];
  }
}
#endif

void unpack_keys(const uint8_t* const* rows, int64_t dim, uint8_t* tile, float* scales) {
  const int64_t dwords = dim / 8, blocks = dim / 32;
  int64_t i = 0;
#if DEEPMINT_ISA_LEVEL >= 2
  for (; i + 16 <= dwords; i += 16) {
    __m512i v[16];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) v[k] = _mm512_loadu_si512(rows[k] + 4 * i);
    transpose16(v);
#pragma GCC unroll 16
    for (int d = 0; d < 16; ++d) expand(v[d], tile + (i + d) * 128);
  }
#endif
  for (; i < dwords; ++i) {
    alignas(64) uint8_t dword[64];
    for (int k = 0; k < 16; ++k) __builtin_memcpy(dword + 4 * k, rows[k] + 4 * i, 4);
    expand(dword, tile + i * 128);
  }
  if (blocks == 4) {
    alignas(64) uint32_t word[16];
    for (int k = 0; k < 16; ++k) __builtin_memcpy(word + k, rows[k] + dim / 2, 4);
#if DEEPMINT_ISA_LEVEL >= 2
    const __m512i words = _mm512_load_si512(word);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const __m512i byte =
          _mm512_and_si512(_mm512_srli_epi32(words, 8 * b), _mm512_set1_epi32(255));
      _mm512_store_ps(
          scales + 16 * b,
          _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(byte, 23)), _mm512_set1_ps(0.5f)));
    }
#else
    for (int b = 0; b < 4; ++b)
      for (int k = 0; k < 16; ++k)
        scales[16 * b + k] = __builtin_bit_cast(float, (word[k] >> (8 * b) & 255u) << 23) * 0.5f;
#endif
    return;
  }
  for (int64_t b = 0; b < blocks; ++b)
    for (int k = 0; k < 16; ++k) scales[16 * b + k] = half_scale(rows[k][dim / 2 + b]);
}

DM_INLINE int32_t dword_at(const int8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}

// Integer dots of one block: the sixteen keys of each of Groups tiles, `tile_bytes` apart, with
// Heads heads that stand `stride` bytes apart, as floats.
#if DEEPMINT_ISA_LEVEL >= 3
template <int Heads, int Groups>
DM_INLINE void block_dots(const uint8_t* tile, int64_t tile_bytes, const int8_t* q, int64_t stride,
                          const V41IndexBlock* blocks, int64_t block_stride,
                          F16 (&out)[Groups][Heads]) {
  __m512i acc[Groups][Heads];
  for (int h = 0; h < Heads; ++h)
    for (int g = 0; g < Groups; ++g) acc[g][h] = _mm512_set1_epi32(blocks[h * block_stride].offset);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m512i k[Groups];
    for (int g = 0; g < Groups; ++g) k[g] = _mm512_load_si512(tile + g * tile_bytes + 64 * i);
    for (int h = 0; h < Heads; ++h) {
      const __m512i x = _mm512_set1_epi32(dword_at(q + h * stride + 4 * i));
      for (int g = 0; g < Groups; ++g) acc[g][h] = _mm512_dpbusd_epi32(acc[g][h], k[g], x);
    }
  }
  for (int g = 0; g < Groups; ++g)
    for (int h = 0; h < Heads; ++h) out[g][h].v = _mm512_cvtepi32_ps(acc[g][h]);
}
#else
template <int Heads>
DM_INLINE void tile_dots(const uint8_t* tile, const int8_t* q, int64_t stride,
                         const V41IndexBlock* blocks, int64_t block_stride, F16* out);
template <int Heads, int Groups>
DM_INLINE void block_dots(const uint8_t* tile, int64_t tile_bytes, const int8_t* q, int64_t stride,
                          const V41IndexBlock* blocks, int64_t block_stride,
                          F16 (&out)[Groups][Heads]) {
  for (int g = 0; g < Groups; ++g)
    tile_dots<Heads>(tile + g * tile_bytes, q, stride, blocks, block_stride, out[g]);
}
#endif
#if DEEPMINT_ISA_LEVEL == 2
template <int Heads>
DM_INLINE void tile_dots(const uint8_t* tile, const int8_t* q, int64_t stride,
                         const V41IndexBlock* blocks, int64_t block_stride, F16* out) {
  __m512i acc[Heads];  // sums of 16 products below 2^9 each
  for (int h = 0; h < Heads; ++h) acc[h] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i k = _mm512_load_si512(tile + 64 * i);
    for (int h = 0; h < Heads; ++h)
      acc[h] = _mm512_add_epi16(
          acc[h], _mm512_maddubs_epi16(k, _mm512_set1_epi32(dword_at(q + h * stride + 4 * i))));
  }
  for (int h = 0; h < Heads; ++h)
    out[h].v =
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_madd_epi16(acc[h], _mm512_set1_epi16(1)),
                                            _mm512_set1_epi32(blocks[h * block_stride].offset)));
}
#elif DEEPMINT_ISA_LEVEL == 1
template <int Heads>
DM_INLINE void tile_dots(const uint8_t* tile, const int8_t* q, int64_t stride,
                         const V41IndexBlock* blocks, int64_t block_stride, F16* out) {
  __m256i acc[Heads][2];
  for (int h = 0; h < Heads; ++h) acc[h][0] = acc[h][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m256i k0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + 64 * i));
    const __m256i k1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + 64 * i + 32));
    for (int h = 0; h < Heads; ++h) {
      const __m256i x = _mm256_set1_epi32(dword_at(q + h * stride + 4 * i));
      acc[h][0] = _mm256_add_epi16(acc[h][0], _mm256_maddubs_epi16(k0, x));
      acc[h][1] = _mm256_add_epi16(acc[h][1], _mm256_maddubs_epi16(k1, x));
    }
  }
  const __m256i one = _mm256_set1_epi16(1);
  for (int h = 0; h < Heads; ++h) {
    const __m256i offset = _mm256_set1_epi32(blocks[h * block_stride].offset);
    out[h].a = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(acc[h][0], one), offset));
    out[h].b = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(acc[h][1], one), offset));
  }
}
#elif DEEPMINT_ISA_LEVEL == 0
template <int Heads>
DM_INLINE void tile_dots(const uint8_t* tile, const int8_t* q, int64_t stride,
                         const V41IndexBlock* blocks, int64_t block_stride, F16* out) {
  for (int h = 0; h < Heads; ++h) {
    float lanes[16];
    for (int k = 0; k < 16; ++k) {
      int32_t s = blocks[h * block_stride].offset;
      for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 4; ++j)
          s += static_cast<int32_t>(tile[64 * i + 4 * k + j]) * q[h * stride + 4 * i + j];
      lanes[k] = static_cast<float>(s);
    }
    out[h] = load(lanes);
  }
}
#endif

// Groups tiles at a time: a broadcast of the query then serves them all.
template <int Heads, int Groups>
DM_INLINE void add_heads(F16 (&score)[Groups], const uint8_t* tile, const float* scales,
                         const int8_t* queries, const V41IndexBlock* blocks, const float* weights,
                         int64_t dim) {
  const int64_t n_blocks = dim / 32;
  F16 dots[Groups][Heads];
  for (int g = 0; g < Groups; ++g)
    for (int h = 0; h < Heads; ++h) dots[g][h] = zero();
  for (int64_t b = 0; b < n_blocks; ++b) {
    F16 part[Groups][Heads];
    block_dots<Heads, Groups>(tile + b * 512, 16 * dim, queries + b * 32, dim, blocks + b, n_blocks,
                              part);
    for (int g = 0; g < Groups; ++g) {
      const F16 ks = load(scales + 16 * (g * n_blocks + b));
      for (int h = 0; h < Heads; ++h)
        dots[g][h] = fma(part[g][h], mul(ks, set1(blocks[h * n_blocks + b].scale)), dots[g][h]);
    }
  }
  for (int h = 0; h < Heads; ++h)
    for (int g = 0; g < Groups; ++g)
      score[g] = fma(max(dots[g][h], zero()), set1(weights[h]), score[g]);
}

template <int Groups>
DM_INLINE void score_groups(const uint8_t* tile, const float* scales, const int8_t* queries,
                            const V41IndexBlock* blocks, const float* weights, int64_t heads,
                            int64_t dim, float* out) {
  constexpr int kHeads = DEEPMINT_ISA_LEVEL >= 2 ? 4 : 1;
  const int64_t n_blocks = dim / 32;
  F16 score[Groups];
  for (int g = 0; g < Groups; ++g) score[g] = zero();
  int64_t h = 0;
  for (; h + kHeads <= heads; h += kHeads)
    add_heads<kHeads, Groups>(score, tile, scales, queries + h * dim, blocks + h * n_blocks,
                              weights + h, dim);
  for (; h < heads; ++h)
    add_heads<1, Groups>(score, tile, scales, queries + h * dim, blocks + h * n_blocks, weights + h,
                         dim);
  for (int g = 0; g < Groups; ++g) store(out + 16 * g, score[g]);
}

void scores(const uint8_t* tile, const float* scales, int64_t groups, const int8_t* queries,
            const V41IndexBlock* blocks, const float* weights, int64_t heads, int64_t dim,
            float* out) {
  constexpr int kGroups = DEEPMINT_ISA_LEVEL >= 3 ? 2 : 1;
  int64_t g = 0;
  for (; g + kGroups <= groups; g += kGroups)
    score_groups<kGroups>(tile + g * 16 * dim, scales + g * (dim / 2), queries, blocks, weights,
                          heads, dim, out + 16 * g);
  for (; g < groups; ++g)
    score_groups<1>(tile + g * 16 * dim, scales + g * (dim / 2), queries, blocks, weights, heads,
                    dim, out + 16 * g);
}

#if DEEPMINT_ISA_LEVEL >= 3
// Scores of sixteen keys of 128 elements for eight heads, from transposed codes as stored: a single
// query does not pay for writing the expanded keys down. The same products and sums as above.
DM_INLINE F16 eight_heads(F16 score, const __m512i* codes, const F16* ks, const int8_t* q,
                          const V41IndexBlock* blocks, const float* weights) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kCode)));
  const __m512i low = _mm512_set1_epi8(15);
  F16 dots[8];
  for (int h = 0; h < 8; ++h) dots[h] = zero();
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    __m512i acc[8];
    for (int h = 0; h < 8; ++h) acc[h] = _mm512_set1_epi32(blocks[4 * h + b].offset);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i v = _mm512_load_si512(codes + 4 * b + i);
      const __m512i even = _mm512_shuffle_epi8(table, _mm512_and_si512(v, low));
      const __m512i odd =
          _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
      const int8_t* at = q + 32 * b + 8 * i;
      for (int h = 0; h < 8; ++h)
        acc[h] = _mm512_dpbusd_epi32(acc[h], even, _mm512_set1_epi32(dword_at(at + 128 * h)));
      for (int h = 0; h < 8; ++h)
        acc[h] = _mm512_dpbusd_epi32(acc[h], odd, _mm512_set1_epi32(dword_at(at + 128 * h + 4)));
    }
    for (int h = 0; h < 8; ++h)
      dots[h] =
          fma({_mm512_cvtepi32_ps(acc[h])}, mul(ks[b], set1(blocks[4 * h + b].scale)), dots[h]);
  }
  for (int h = 0; h < 8; ++h) score = fma(max(dots[h], zero()), set1(weights[h]), score);
  return score;
}

void scan128(const uint8_t* const* eights, size_t row_bytes, int64_t groups, const int8_t* queries,
             const V41IndexBlock* blocks, const float* weights, int64_t heads, float* out) {
  for (int64_t g = 0; g < groups; ++g) {
    __m512i codes[16];
    alignas(64) uint32_t word[16];
#pragma GCC unroll 16
    for (size_t k = 0; k < 16; ++k) {
      const uint8_t* row = eights[2 * g + static_cast<int64_t>(k / 8)] + k % 8 * row_bytes;
      codes[k] = _mm512_loadu_si512(row);
      __builtin_memcpy(word + k, row + 64, 4);
    }
    transpose16(codes);
    const __m512i words = _mm512_load_si512(word);
    F16 ks[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      const __m512i byte =
          _mm512_and_si512(_mm512_srli_epi32(words, 8 * b), _mm512_set1_epi32(255));
      ks[b] = mul({_mm512_castsi512_ps(_mm512_slli_epi32(byte, 23))}, set1(0.5f));
    }
    F16 score = zero();
    for (int64_t h = 0; h < heads; h += 8)
      score = eight_heads(score, codes, ks, queries + h * 128, blocks + 4 * h, weights + h);
    store(out + 16 * g, score);
  }
}
#endif

int64_t above(const float* scores, int64_t n, int32_t base, float threshold, float* out,
              int32_t* index) {
  int64_t count = 0;
#if DEEPMINT_ISA_LEVEL >= 2
  const __m512 limit = _mm512_set1_ps(threshold);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 there = n - i >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << (n - i)) - 1);
    const __m512 s = _mm512_maskz_loadu_ps(there, scores + i);
    const __mmask16 more = _mm512_mask_cmp_ps_mask(there, s, limit, _CMP_GT_OQ);
    if (more == 0) continue;
    const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(base + static_cast<int32_t>(i)));
    _mm512_storeu_ps(out + count, _mm512_maskz_compress_ps(more, s));
    _mm512_storeu_si512(index + count, _mm512_maskz_compress_epi32(more, at));
    count += __builtin_popcount(more);
  }
#else
  for (int64_t i = 0; i < n; ++i) {
    out[count] = scores[i];
    index[count] = base + static_cast<int32_t>(i);
    count += scores[i] > threshold;
  }
#endif
  return count;
}

// Keeps, in order, the entries above `last` and as many that equal it as make k.
void keep(float* scores, int32_t* index, int64_t n, int64_t k, float last) {
  int64_t kept = 0, ties = k;
#if DEEPMINT_ISA_LEVEL >= 2
  const __m512 limit = _mm512_set1_ps(last);
  const auto lanes = [n](int64_t i) __attribute__((always_inline)) {
    return n - i >= 16 ? static_cast<__mmask16>(0xFFFF)
                       : static_cast<__mmask16>((1u << (n - i)) - 1);
  };
  for (int64_t i = 0; i < n; i += 16)
    ties -= __builtin_popcount(_mm512_mask_cmp_ps_mask(
        lanes(i), _mm512_maskz_loadu_ps(lanes(i), scores + i), limit, _CMP_GT_OQ));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 there = lanes(i);
    const __m512 s = _mm512_maskz_loadu_ps(there, scores + i);
    const __m512i at = _mm512_maskz_loadu_epi32(there, index + i);
    uint32_t equal = _mm512_mask_cmp_ps_mask(there, s, limit, _CMP_EQ_OQ);
    for (int64_t found = __builtin_popcount(equal); found > ties; --found)  // the last ones go
      equal &= ~(0x80000000u >> __builtin_clz(equal));
    ties -= __builtin_popcount(equal);
    const __mmask16 stays =
        static_cast<__mmask16>(_mm512_mask_cmp_ps_mask(there, s, limit, _CMP_GT_OQ) | equal);
    // Not a compressing store, which some processors do element by element.
    const auto count = static_cast<uint32_t>(__builtin_popcount(stays));
    const auto first = static_cast<__mmask16>((1u << count) - 1);
    _mm512_mask_storeu_ps(scores + kept, first, _mm512_maskz_compress_ps(stays, s));
    _mm512_mask_storeu_epi32(index + kept, first, _mm512_maskz_compress_epi32(stays, at));
    kept += count;
  }
#else
  for (int64_t i = 0; i < n; ++i) ties -= scores[i] > last;
  for (int64_t i = 0; i < n; ++i) {
    const bool tie = scores[i] == last, stays = (scores[i] > last) | (tie & (ties > 0));
    ties -= tie;
    scores[kept] = scores[i];
    index[kept] = index[i];
    kept += stays;
  }
#endif
}

// Bisection over the bits of the answer: 32 counts, no branch that depends on the data. A score's
// key is an integer in the same order; both zeros have the key 0.
float kth_largest(const float* __restrict scores, int64_t n, int64_t k, int32_t* __restrict keys) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits = __builtin_bit_cast(int32_t, scores[i] + 0.0f);
    keys[i] = bits ^ ((bits >> 31) & 0x7FFFFFFF);
  }
  const auto count = [&](int32_t least) __attribute__((always_inline)) {
    int64_t c = 0;
    int64_t i = 0;
#if DEEPMINT_ISA_LEVEL >= 2
    const __m512i limit = _mm512_set1_epi32(least);
    for (; i + 32 <= n; i += 32) {
      const __mmask16 a = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(keys + i), limit),
                      b = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(keys + i + 16), limit);
      c += __builtin_popcount(static_cast<uint32_t>(a) | static_cast<uint32_t>(b) << 16);
    }
#else
    int32_t narrow = 0;
    for (; i < n; ++i) narrow += keys[i] >= least;
    c = narrow;
#endif
    for (; i < n; ++i) c += keys[i] >= least;
    return c;
  };
  // The largest key with at least k entries at or above it.
  uint32_t best = count(0) >= k ? 0 : 0x80000000u;
  for (int bit = 30; bit >= 0; --bit) {
    const uint32_t next = best | 1u << bit;
    best = count(static_cast<int32_t>(next)) >= k ? next : best;
  }
  const auto key = static_cast<int32_t>(best);
  return __builtin_bit_cast(float, key ^ ((key >> 31) & 0x7FFFFFFF));
}

}  // namespace

extern const V41IndexTable v41_index_table = {pack_query, unpack_keys, scores,
                                              above,      kth_largest, keep,
#if DEEPMINT_ISA_LEVEL >= 3
                                              scan128
#else
                                              nullptr
#endif
};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
