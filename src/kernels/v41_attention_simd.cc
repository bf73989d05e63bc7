// V4.1 attention. Compiled once per instruction set. Lanes are heads for scores and weights,
// dimensions for values.
// clang-format off: the others build on simd16.inl
#include "kernels/simd16.inl"
#include "kernels/double8.inl"
#include "kernels/transpose16.inl"
#include "kernels/v41_attention_table.h"
#include "kernels/v41_unpack.inl"
// clang-format on

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

DM_INLINE uint32_t bf16_bits(float x) { return rounded_bits(x) >> 16; }

DM_INLINE void fetch_line(V41Fetch& f) {
  if (f.at >= f.end) {
    if (f.more == 0) return;
    f.at = f.next->begin;
    f.end = f.next->end;
    ++f.next;
    --f.more;
  }
  __builtin_prefetch(f.at, 0, 2);
  f.at += 64;
}

#if DEEPMINT_ISA_LEVEL == 4

constexpr int kRowStep = 12;

// packed: [lanes / 16][dim / 2][16] pairs of BF16.
void pack_queries(const float* q, int64_t heads, int64_t dim, float* packed) {
  for (int64_t g = 0; g * 16 < heads; ++g)
    for (int64_t i = 0; i < dim; i += 32, packed += 256) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int h = 0; h < 16; ++h) {
        const float* from = q + (16 * g + h) * dim + i;
        v[h] = _mm512_setzero_si512();
        if (16 * g + h < heads)
          v[h] = _mm512_inserti64x4(
              _mm512_castsi256_si512(
                  _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(from), 16))),
              _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(from + 16), 16)), 1);
      }
      transpose16(v);
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_storeu_si512(packed + 16 * p, v[p]);
    }
}

DM_INLINE __m512bh as_bf16(__m512i v) { return reinterpret_cast<__m512bh>(v); }

// kUnpack: a step of `unpack` after each three rows of keys, between whose products there is room.
template <int Rows, int Groups, bool kUnpack>
DM_INLINE void scores_block(const uint32_t* packed, int64_t lanes, int64_t dim,
                            const uint16_t* const* rows, float scale, float* scores,
                            V41Fetch* fetch, Unpacker& unpack) {
  __m512 s[Rows][Groups];
  const uint32_t* k[Rows];
  for (int r = 0; r < Rows; ++r) {
    k[r] = reinterpret_cast<const uint32_t*>(rows[r]);
    for (int g = 0; g < Groups; ++g) s[r][g] = _mm512_setzero_ps();
  }
  const int64_t half = dim / 2;
  // Four pairs at a time: there are more rows than address registers.
  constexpr int kPairs = Groups == 1 ? 4 : 2;
  for (int64_t i = 0; i < half; i += kPairs) {
    if (Rows == kRowStep && fetch != nullptr)
      for (int line = 0; line < 2; ++line) fetch_line(*fetch);
    __m512bh q[kPairs][Groups];
    for (int p = 0; p < kPairs; ++p)
      for (int g = 0; g < Groups; ++g)
        q[p][g] = as_bf16(_mm512_loadu_si512(packed + (g * half + i + p) * 16));
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const uint32_t* pair = k[r] + i;
      for (int p = 0; p < kPairs; ++p) {
        const __m512bh x = as_bf16(_mm512_set1_epi32(static_cast<int>(pair[p])));
        for (int g = 0; g < Groups; ++g) s[r][g] = _mm512_dpbf16_ps(s[r][g], q[p][g], x);
      }
      if (kUnpack && r % 3 == 2) Unpacker::step(unpack);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int g = 0; g < Groups; ++g)
      _mm512_storeu_ps(scores + r * lanes + 16 * g, _mm512_mul_ps(s[r][g], _mm512_set1_ps(scale)));
}

template <int Rows, bool kUnpack>
DM_INLINE void scores_rows(const uint32_t* packed, int64_t lanes, int64_t dim,
                           const uint16_t* const* rows, float scale, float* scores, V41Fetch* fetch,
                           Unpacker& unpack) {
  int64_t g = 0;
  for (; g + 32 <= lanes; g += 32)
    scores_block<Rows, 2, kUnpack>(packed + g * dim / 2, lanes, dim, rows, scale, scores + g, fetch,
                                   unpack);
  if (g < lanes)
    scores_block<Rows, 1, kUnpack>(packed + g * dim / 2, lanes, dim, rows, scale, scores + g, fetch,
                                   unpack);
}

void scores(const float* packed_f, int64_t lanes, int64_t dim, const uint16_t* const* rows,
            int64_t count, float scale, float* out, float*, V41Fetch* fetch, V41Unpack* unpack) {
  const auto* packed = reinterpret_cast<const uint32_t*>(packed_f);
  Unpacker rest;
  Unpacker::start(rest, unpack);
  int64_t t = 0;
  for (; t + kRowStep <= count && unpack != nullptr && unpack->done < unpack->count;
       t += kRowStep) {
    Unpacker::until(rest, unpack->due[t + kRowStep - 1]);
    scores_rows<kRowStep, true>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
  }
  if (unpack != nullptr) Unpacker::until(rest, unpack->count);
  for (; t + kRowStep <= count; t += kRowStep)
    scores_rows<kRowStep, false>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
  for (; t + 4 <= count; t += 4)
    scores_rows<4, false>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
  for (; t < count; ++t)
    scores_rows<1, false>(packed, lanes, dim, rows + t, scale, out + t * lanes, fetch, rest);
}

#else

#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kRowStep = 12;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kRowStep = 6;
#else
constexpr int kRowStep = 2;
#endif

// packed: [lanes / 16][dim][16].
void pack_queries(const float* q, int64_t heads, int64_t dim, float* packed) {
#if DEEPMINT_ISA_LEVEL >= 2
  for (int64_t g = 0; g * 16 < heads; ++g)
    for (int64_t i = 0; i < dim; i += 16, packed += 256) {
      __m512i v[16];
#pragma GCC unroll 16
      for (int h = 0; h < 16; ++h)
        v[h] = 16 * g + h < heads ? _mm512_loadu_si512(q + (16 * g + h) * dim + i)
                                  : _mm512_setzero_si512();
      transpose16(v);
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_storeu_si512(packed + 16 * p, v[p]);
    }
#else
  for (int64_t g = 0; g * 16 < heads; ++g, packed += dim * 16)
    for (int64_t h = 0; h < 16; ++h)
      for (int64_t i = 0; i < dim; ++i)
        packed[i * 16 + h] = 16 * g + h < heads ? q[(16 * g + h) * dim + i] : 0.0f;
#endif
}

#if DEEPMINT_ISA_LEVEL == 1
// Keys are floats in sixteens: eight even dimensions, then eight odd ones, as they come from words.
// Six rows x sixteen heads of sums, a group of heads and a key are fifteen registers. Dimensions
// go in blocks, whose queries stay in the first-level cache for all rows; the chain of a sum waits
// in `scores` between them.
// Rows are unpacked in groups that are still there when their scores begin.
constexpr int64_t kBlockDims = 128, kGroupRows = 48;

template <int Rows>
DM_INLINE void scores_block(const float* packed, int64_t lanes, const float* keys, int64_t dims,
                            bool first, float* scores) {
  F16 s[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) s[r] = first ? zero() : load(scores + r * lanes);
  for (int64_t i = 0; i < dims; i += 16) {
#pragma GCC unroll 16
    for (int64_t j = 0; j < 16; ++j) {
      const F16 q = load(packed + (i + j) * 16);
      const float* key = keys + i + j % 2 * 8 + j / 2;
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) s[r] = fma(q, set1(key[r * kBlockDims]), s[r]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) store(scores + r * lanes, s[r]);
}

template <int Rows>
DM_INLINE void scores_rows(const float* packed, int64_t lanes, int64_t dim, int64_t first,
                           int64_t dims, const uint16_t* const* rows, float* keys, float* scores,
                           V41Fetch* fetch) {
  for (int64_t r = 0; r < Rows; ++r)
    for (int64_t i = 0; i < dims; i += 16) {
      if (fetch != nullptr) fetch_line(*fetch);
      const __m256i words =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + first + i));
      float* to = keys + r * kBlockDims + i;
      _mm256_store_ps(to, even_words(words));
      _mm256_store_ps(to + 8, odd_words(words));
    }
  for (int64_t g = 0; g < lanes; g += 16)
    scores_block<Rows>(packed + g * dim + first * 16, lanes, keys, dims, first == 0, scores + g);
}

void scores(const float* packed, int64_t lanes, int64_t dim, const uint16_t* const* rows,
            int64_t count, float scale, float* out, float*, V41Fetch* fetch, V41Unpack* unpack) {
  alignas(64) float keys[kRowStep * kBlockDims];
  for (int64_t begin = 0; begin < count; begin += kGroupRows) {
    const int64_t end = begin + kGroupRows < count ? begin + kGroupRows : count;
    if (unpack != nullptr) unpack_until(*unpack, unpack->due[end - 1]);
    for (int64_t first = 0; first < dim; first += kBlockDims) {
      const int64_t dims = first + kBlockDims < dim ? kBlockDims : dim - first;
      int64_t t = begin;
      const auto some = [&]<int kRows>() __attribute__((always_inline)) {
        for (; t + kRows <= end; t += kRows)
          scores_rows<kRows>(packed, lanes, dim, first, dims, rows + t, keys, out + t * lanes,
                             fetch);
      };
      some.template operator()<kRowStep>();
      some.template operator()<2>();
      some.template operator()<1>();
    }
  }
  if (unpack != nullptr) unpack_until(*unpack, unpack->count);
  const F16 factor = set1(scale);
  for (int64_t i = 0; i < count * lanes; i += 16) store(out + i, mul(load(out + i), factor));
}
#else
// keys: [Rows][dim] floats.
template <int Rows, int Groups>
DM_INLINE void scores_block(const float* packed, int64_t lanes, int64_t dim, const float* keys,
                            float scale, float* scores) {
  F16 s[Rows][Groups];
  for (int r = 0; r < Rows; ++r)
    for (int g = 0; g < Groups; ++g) s[r][g] = zero();
  for (int64_t i = 0; i < dim; ++i) {
    F16 q[Groups];
    for (int g = 0; g < Groups; ++g) q[g] = load(packed + (g * dim + i) * 16);
    for (int r = 0; r < Rows; ++r) {
      const F16 x = set1(keys[r * dim + i]);
      for (int g = 0; g < Groups; ++g) s[r][g] = fma(q[g], x, s[r][g]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int g = 0; g < Groups; ++g) store(scores + r * lanes + 16 * g, mul(s[r][g], set1(scale)));
}

template <int Rows>
DM_INLINE void scores_rows(const float* packed, int64_t lanes, int64_t dim, const float* keys,
                           float scale, float* scores) {
  int64_t g = 0;
#if DEEPMINT_ISA_LEVEL >= 2
  for (; g + 32 <= lanes; g += 32)
    scores_block<Rows, 2>(packed + g * dim, lanes, dim, keys, scale, scores + g);
#endif
  for (; g < lanes; g += 16)
    scores_block<Rows, 1>(packed + g * dim, lanes, dim, keys, scale, scores + g);
}

void scores(const float* packed, int64_t lanes, int64_t dim, const uint16_t* const* rows,
            int64_t count, float scale, float* out, float* scratch, V41Fetch* fetch,
            V41Unpack* unpack) {
  if (unpack != nullptr) unpack_until(*unpack, unpack->count);
  for (int64_t t = 0; t < count;) {
    const int64_t n = count - t >= kRowStep ? kRowStep : 1;
    for (int64_t r = 0; r < n; ++r) {
      const uint16_t* __restrict from = rows[t + r];
      float* __restrict to = scratch + r * dim;
      for (int64_t i = 0; i < dim && fetch != nullptr; i += 16) fetch_line(*fetch);
      for (int64_t i = 0; i < dim; ++i) to[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
    }
    if (n == kRowStep)
      scores_rows<kRowStep>(packed, lanes, dim, scratch, scale, out + t * lanes);
    else
      scores_rows<1>(packed, lanes, dim, scratch, scale, out + t * lanes);
    t += n;
  }
}

#endif

#endif

DM_INLINE F16 largest_score(const float* scores, int64_t lanes, int64_t n, int64_t group) {
  F16 m0 = set1(-__builtin_inff()), m1 = m0;
  int64_t t = 0;
  for (; t + 2 <= n; t += 2) {
    m0 = max(m0, load(scores + t * lanes + group));
    m1 = max(m1, load(scores + (t + 1) * lanes + group));
  }
  if (t < n) m0 = max(m0, load(scores + t * lanes + group));
  return max(m0, m1);
}

// p of rows [begin, end) rounded to BF16: floats [n, lanes], or with BF16 instructions pairs of
// list entries [(n + 1) / 2, lanes].
void weights(const float* scores, int64_t lanes, int64_t n, int64_t begin, int64_t end, float* exps,
             float* p) {
  for (int64_t g = 0; g < lanes; g += 16) {
    alignas(64) float highest[16];
    store(highest, largest_score(scores, lanes, n, g));
    for (int64_t t = begin; t < end; ++t) {
      float* e = exps + t * lanes + g;
      for (int i = 0; i < 16; i += 8)
        store8(e + i, exp8f(load8(scores + t * lanes + g + i) - load8(highest + i)));
#if DEEPMINT_ISA_LEVEL == 4
      uint32_t* out = reinterpret_cast<uint32_t*>(p) + t / 2 * lanes + g;
      if (t % 2 == 0)
        for (int i = 0; i < 16; ++i) out[i] = bf16_bits(e[i]);
      else
        for (int i = 0; i < 16; ++i) out[i] |= bf16_bits(e[i]) << 16;
#else
      for (int i = 0; i < 16; ++i) p[t * lanes + g + i] = float_of(bf16_bits(e[i]) << 16);
#endif
    }
  }
}

// Sum of unrounded weights in list order, and the sink.
void denominators(const float* scores, const float* exps, int64_t lanes, int64_t n,
                  const float* sink, int64_t heads, float* z) {
  for (int64_t g = 0; g < lanes; g += 16) {
    alignas(64) float highest[16];
    store(highest, largest_score(scores, lanes, n, g));
    D8 total[2] = {all8(0), all8(0)};  // two chains wait for each other's additions
    for (int64_t t = 0; t < n; ++t)
      for (int half = 0; half < 2; ++half) total[half] += wide8(exps + t * lanes + g + 8 * half);
    for (int half = 0; half < 2; ++half) {
      const int64_t i = g + 8 * half;
      float s[8];
      for (int64_t h = 0; h < 8; ++h) s[h] = i + h < heads ? sink[i + h] : 0.0f;
      store8(z + i, narrow(total[half] + wide(exp8f(load8(s) - load8(highest + 8 * half)))));
    }
  }
}

// Where the two halves of 32 dimensions go: `low` holds even dimensions and `high` odd ones, or
// with BF16 instructions the order of UNPCKLWD and UNPCKHWD.
DM_INLINE void finish(F16 low, F16 high, float z, float* out) {
#if DEEPMINT_ISA_LEVEL >= 2
  const auto rounded = [&](F16 x) __attribute__((always_inline)) {
    const __m512i u = _mm512_castps_si512(_mm512_div_ps(x.v, _mm512_set1_ps(z)));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_and_si512(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))),
                            _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  };
#if DEEPMINT_ISA_LEVEL == 4
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
#else
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#endif
  const __m512i a = rounded(low), b = rounded(high);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi32(a, first, b));
  _mm512_storeu_si512(
      out + 16, _mm512_permutex2var_epi32(a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b));
#elif DEEPMINT_ISA_LEVEL == 1
  const auto quotient = [&](__m256 x) __attribute__((always_inline)) {
    return rounded_bits(_mm256_castps_si256(_mm256_div_ps(x, _mm256_set1_ps(z))));
  };
  const auto sixteen = [&](__m256 even, __m256 odd, float* to) __attribute__((always_inline)) {
    const __m256i a = quotient(even), b = quotient(odd);
    const __m256i first = _mm256_unpacklo_epi32(a, b), second = _mm256_unpackhi_epi32(a, b);
    auto* at = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(at, _mm256_permute2x128_si256(first, second, 0x20));
    _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(first, second, 0x31));
  };
  sixteen(low.a, high.a, out);
  sixteen(low.b, high.b, out + 16);
#else
  alignas(64) float even[16], odd[16];
  store(even, low);
  store(odd, high);
  for (int i = 0; i < 16; ++i) {
    out[2 * i] = float_of(bf16_bits(even[i] / z) << 16);
    out[2 * i + 1] = float_of(bf16_bits(odd[i] / z) << 16);
  }
#endif
}

#if DEEPMINT_ISA_LEVEL == 1
// Sixteen registers hold the sums of six heads x 16 dimensions, even ones and odd ones, two halves
// of a row and a weight. A chunk of rows stays in the first-level cache until all heads have
// passed; their sums wait in memory meanwhile.
constexpr int64_t kHeadBlock = 16, kRowChunk = 128;
struct ValueSums {
  alignas(32) float of[kHeadBlock][2][2][8];  // head, half of 32 dimensions, even or odd
};

// Rows lie apart in memory: those of the next chunk are fetched during the first pass over this
// one.
struct NextValues {
  const uint16_t* const* rows = nullptr;
  int64_t count = 0, column = 0;
};

template <int Heads>
DM_INLINE void values_chunk(const float* weight, int64_t lanes, const uint16_t* const* rows,
                            int64_t count, int64_t column, size_t half, float (*sums)[2][2][8],
                            V41Fetch* fetch, const NextValues& next) {
  __m256 even[Heads], odd[Heads];
#pragma GCC unroll 6
  for (int h = 0; h < Heads; ++h) {
    even[h] = _mm256_load_ps(sums[h][half][0]);
    odd[h] = _mm256_load_ps(sums[h][half][1]);
  }
  for (int64_t t = 0; t < count; ++t, weight += lanes) {
    if (Heads > 1 && fetch != nullptr) fetch_line(*fetch);
    if (t < next.count) __builtin_prefetch(next.rows[t] + next.column);
    const __m256i words =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[t] + column) + half);
    const __m256 a = even_words(words), b = odd_words(words);
#pragma GCC unroll 6
    for (int h = 0; h < Heads; ++h) {
      const __m256 w = _mm256_broadcast_ss(weight + h);
      even[h] = _mm256_fmadd_ps(a, w, even[h]);
      odd[h] = _mm256_fmadd_ps(b, w, odd[h]);
    }
  }
#pragma GCC unroll 6
  for (int h = 0; h < Heads; ++h) {
    _mm256_store_ps(sums[h][half][0], even[h]);
    _mm256_store_ps(sums[h][half][1], odd[h]);
  }
}

DM_INLINE void values_columns(const float* p, int64_t lanes, int64_t n, const float* z,
                              const uint16_t* const* rows, int64_t heads, int64_t dim,
                              int64_t begin, int64_t end, float* out, V41Fetch* fetch) {
  ValueSums sums;
  for (int64_t first = 0; first < heads; first += kHeadBlock) {
    const int64_t count = first + kHeadBlock < heads ? kHeadBlock : heads - first;
    for (int64_t column = begin; column < end; column += 32) {
      sums = {};
      for (int64_t t = 0; t < n; t += kRowChunk) {
        const auto chunk = [n](int64_t from) {
          return n - from < kRowChunk ? n - from : kRowChunk;
        };
        const int64_t some = chunk(t);
        NextValues next;
        if (t + some < n)
          next = {rows + t + some, chunk(t + some), column};
        else if (column + 32 < end)
          next = {rows, chunk(0), column + 32};
        for (size_t half = 0; half < 2; ++half) {
          const auto pass = [&]<int kHeads>(int64_t h) __attribute__((always_inline)) {
            values_chunk<kHeads>(p + t * lanes + first + h, lanes, rows + t, some, column, half,
                                 sums.of + h, fetch, h == 0 && half == 0 ? next : NextValues{});
          };
          int64_t h = 0;
          for (; h + 6 <= count; h += 6) pass.template operator()<6>(h);
          for (; h + 4 <= count; h += 4) pass.template operator()<4>(h);
          for (; h < count; ++h) pass.template operator()<1>(h);
        }
      }
      for (int64_t h = 0; h < count; ++h) {
        const auto lanes_of = [&](size_t odd) __attribute__((always_inline)) {
          return F16{_mm256_load_ps(sums.of[h][0][odd]), _mm256_load_ps(sums.of[h][1][odd])};
        };
        finish(lanes_of(0), lanes_of(1), z[first + h], out + (first + h) * dim + column);
      }
    }
  }
}
#else

#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kHeadStep = 8;
#else
constexpr int kHeadStep = 1;
#endif

template <int Heads>
DM_INLINE void values_block(const float* p, int64_t lanes, int64_t n, const uint16_t* const* rows,
                            const float* z, int64_t dim, int64_t column, int64_t head, float* out,
                            V41Fetch* fetch) {
#if DEEPMINT_ISA_LEVEL == 4
  __m512 low[Heads], high[Heads];
  for (int h = 0; h < Heads; ++h) low[h] = high[h] = _mm512_setzero_ps();
  const uint32_t* weight = reinterpret_cast<const uint32_t*>(p) + head;
  for (int64_t t = 0; t < n; t += 2, weight += lanes) {
    if (Heads > 1 && fetch != nullptr) fetch_line(*fetch);
    const __m512i a = _mm512_loadu_si512(rows[t] + column);
    const __m512i b = _mm512_loadu_si512(rows[t + 1 < n ? t + 1 : t] + column);
    const __m512bh lo = as_bf16(_mm512_unpacklo_epi16(a, b));
    const __m512bh hi = as_bf16(_mm512_unpackhi_epi16(a, b));
    for (int h = 0; h < Heads; ++h) {
      const __m512bh w = as_bf16(_mm512_set1_epi32(static_cast<int>(weight[h])));
      low[h] = _mm512_dpbf16_ps(low[h], lo, w);
      high[h] = _mm512_dpbf16_ps(high[h], hi, w);
    }
  }
#else
  F16 low[Heads], high[Heads];
  for (int h = 0; h < Heads; ++h) low[h] = high[h] = zero();
  const float* weight = p + head;
  for (int64_t t = 0; t < n; ++t, weight += lanes) {
    if (Heads > 1 && fetch != nullptr) fetch_line(*fetch);
    F16 even, odd;
    load_bf16_pairs(rows[t] + column, even, odd);
    for (int h = 0; h < Heads; ++h) {
      const F16 w = set1(weight[h]);
      low[h] = fma(even, w, low[h]);
      high[h] = fma(odd, w, high[h]);
    }
  }
#endif
  for (int h = 0; h < Heads; ++h)
#if DEEPMINT_ISA_LEVEL == 4
    finish({low[h]}, {high[h]}, z[head + h], out + (head + h) * dim + column);
#else
    finish(low[h], high[h], z[head + h], out + (head + h) * dim + column);
#endif
}

DM_INLINE void values_columns(const float* p, int64_t lanes, int64_t n, const float* z,
                              const uint16_t* const* rows, int64_t heads, int64_t dim,
                              int64_t begin, int64_t end, float* out, V41Fetch* fetch) {
  for (int64_t column = begin; column < end; column += 32) {
    int64_t head = 0;
    for (; head + kHeadStep <= heads; head += kHeadStep)
      values_block<kHeadStep>(p, lanes, n, rows, z, dim, column, head, out, fetch);
    for (; head < heads; ++head)
      values_block<1>(p, lanes, n, rows, z, dim, column, head, out, fetch);
  }
}
#endif

void values(const float* scores, const float* exps, const float* p, int64_t lanes, int64_t n,
            const float* sink, const uint16_t* const* rows, int64_t heads, int64_t dim,
            int64_t begin, int64_t end, float* out, V41Fetch* fetch) {
  constexpr int64_t kMostLanes = 1024;
  alignas(64) float z[kMostLanes];
  denominators(scores, exps, lanes, n, sink, heads, z);
  values_columns(p, lanes, n, z, rows, heads, dim, begin, end, out, fetch);
}

}  // namespace

extern const V41AttentionTable v41_attention_table = {unpack_window, unpack_global, pack_queries,
                                                      scores,        weights,       values};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
