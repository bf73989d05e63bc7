// Compiled once per instruction set; avx512vnni uses avx512's. Lanes run along k in steps of 32:
// lane l of a step meets k = 2l and 2l + 1 (BF16 dot) or l and 16 + l (f32, one FMA after the
// other), steps follow each other, and the 16 lanes meet at the end in the tree of sum(). Nothing
// of this depends on how many rows or outputs share a register tile.
#include "kernels/v41_linear_kernels.h"

// clang-format off: the other builds on simd16.inl
#include "kernels/simd16.inl"
#include "kernels/v41_operand.inl"
// clang-format on

#if DEEPMINT_ISA_LEVEL != 3
namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

#if DEEPMINT_ISA_LEVEL >= 4
constexpr int kMaxRows = 4, kMaxOutputs = 6, kDirectRows = 8, kPassRows = 32;
#elif DEEPMINT_ISA_LEVEL >= 2
constexpr int kMaxOutputs = 4, kDirectRows = 16, kPassRows = 1 << 30;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kMaxOutputs = 2, kDirectRows = 8, kPassRows = 32;
#else
constexpr int kMaxRows = 2, kMaxOutputs = 1, kDirectRows = 1, kPassRows = kDirectRows;
#endif

#if DEEPMINT_ISA_LEVEL >= 4
DM_INLINE Operand load_operand(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
DM_INLINE F16 dot(F16 acc, Operand w, Operand x) {
  return {
      _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(w.v), reinterpret_cast<__m512bh>(x.v))};
}
#else
DM_INLINE Operand load_operand(const uint8_t* p) {
  return {load(reinterpret_cast<const float*>(p)), load(reinterpret_cast<const float*>(p) + 16)};
}
DM_INLINE F16 dot(F16 acc, Operand w, Operand x) { return fma(w.b, x.b, fma(w.a, x.a, acc)); }
#endif

// ---- Weights of each format, 32 at a time

struct Bf16 {
  static constexpr size_t kStepBytes = 64;
  static constexpr bool kSharedScale = true;
  struct Scale {};
  DM_INLINE Scale scale(const V41Args&, uint8_t) { return {}; }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, Scale) {
#if DEEPMINT_ISA_LEVEL >= 4
    return load_operand(p);
#elif DEEPMINT_ISA_LEVEL >= 2
    const __m512i w = _mm512_loadu_si512(p);
    const __m512i a = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(w)),
                  b = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(w, 1));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))},
            {_mm512_castsi512_ps(_mm512_slli_epi32(b, 16))}};
#elif DEEPMINT_ISA_LEVEL == 1
    __m256 q[4];
    for (int i = 0; i < 4; ++i)
      q[i] = _mm256_castsi256_ps(_mm256_slli_epi32(
          _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i)), 16));
    return {{q[0], q[1]}, {q[2], q[3]}};
#else
    __m128 q[8];
    for (int i = 0; i < 4; ++i) {
      const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
      q[2 * i] = _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), w));
      q[2 * i + 1] = _mm_castsi128_ps(_mm_unpackhi_epi16(_mm_setzero_si128(), w));
    }
    return {{{q[0], q[1], q[2], q[3]}}, {{q[4], q[5], q[6], q[7]}}};
#endif
  }
};

struct Fp8 {
  static constexpr size_t kStepBytes = 32;
  static constexpr bool kSharedScale = true;  // by 32 outputs, so by every register tile
#if DEEPMINT_ISA_LEVEL >= 4
  // 64 codes at a time: two look-ups of the seven bits give both bytes of a BF16. Interleaving them
  // leaves k 0-7, 16-23, 32-39 and 48-55 in the first step and the others in the second.
  struct Pair {
    Operand first, second;
  };
  struct Table {
    __m512i high[2], low[2];
  };
  DM_INLINE Table table(const V41Args& a) {
    const uint8_t* bytes = a.tables->e4m3_bf16_bytes;
    return {{_mm512_loadu_si512(bytes), _mm512_loadu_si512(bytes + 64)},
            {_mm512_loadu_si512(bytes + 128), _mm512_loadu_si512(bytes + 192)}};
  }
  // Two scales as additions to the exponent: of the first 32 codes and of the others.
  DM_INLINE __m512i exponents(uint8_t b0, uint8_t b1) {
    const auto shifted = [](uint8_t b) __attribute__((always_inline)) {
      return static_cast<short>((static_cast<int>(b) - 127) << 7);
    };
    return _mm512_mask_set1_epi16(_mm512_set1_epi16(shifted(b0)), 0xFFFF0000u, shifted(b1));
  }
  DM_INLINE Operand scaled(__m512i v, __m512i exponents) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(v, _mm512_set1_epi16(0x7FFF));
    return {_mm512_mask_add_epi16(v, nonzero, v, exponents)};
  }
  DM_INLINE Pair load_pair(const Table& t, __m512i codes) {
    const __m512i low = _mm512_permutex2var_epi8(t.low[0], codes, t.low[1]);
    const __m512i high = _mm512_ternarylogic_epi64(
        _mm512_permutex2var_epi8(t.high[0], codes, t.high[1]), codes,
        _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);  // high | (codes & sign)
    return {{_mm512_unpacklo_epi8(low, high)}, {_mm512_unpackhi_epi8(low, high)}};
  }
  DM_INLINE Pair load_pair(const Table& t, __m512i codes, __m512i exponents) {
    const Pair w = load_pair(t, codes);
    return {scaled(w.first.v, exponents), scaled(w.second.v, exponents)};
  }
  // An activation times the scale of its weights. Zeros, subnormal numbers (which the BF16 dot
  // takes as zero), infinities and NaNs stay what they are. `outside` collects the values whose
  // exponent does not fit BF16.
  DM_INLINE __m512i scaled_activations(__m512i x, __m512i exponents, __mmask32& outside) {
    const __m512i field = _mm512_set1_epi16(0x7F80), unit = _mm512_set1_epi16(0x80);
    // Exponents from 1 to 254 are those that are below 254 after 1 is taken away.
    const __m512i before = _mm512_sub_epi16(_mm512_and_si512(x, field), unit),
                  after = _mm512_add_epi16(before, exponents),
                  limit = _mm512_set1_epi16(static_cast<short>(254 << 7));
    const __mmask32 normal = _mm512_cmplt_epu16_mask(before, limit);
    outside |= _mm512_mask_cmpge_epu16_mask(normal, after, limit);
    return _mm512_mask_add_epi16(x, normal, x, exponents);
  }
#elif DEEPMINT_ISA_LEVEL >= 1
  struct Scale {
    F16 f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {set1(a.tables->e8m0_half[b])}; }
  // Read as f16 (sign, 0eeee, mmm0000000), a code is 2^-8 of its value, subnormal ones too.
#if DEEPMINT_ISA_LEVEL >= 2
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, const Scale& s) {
    const __m512i c = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i h =
        _mm512_and_si512(_mm512_slli_epi16(c, 7), _mm512_set1_epi16(static_cast<short>(0xBFFF)));
    return {mul({_mm512_cvtph_ps(_mm512_castsi512_si256(h))}, s.f),
            mul({_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))}, s.f)};
  }
#else
  DM_INLINE F16 half(const uint8_t* p) {
    const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i h = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(c, 8), 1),
                                       _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
  }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, const Scale& s) {
    return {mul(half(p), s.f), mul(half(p + 16), s.f)};
  }
#endif
#else
  struct Scale {
    float f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->e8m0[b]}; }
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, const Scale& s) {
    alignas(64) float v[32];
    for (int i = 0; i < 32; ++i) v[i] = a.tables->e4m3[p[i]] * s.f;
    return {load(v), load(v + 16)};
  }
#endif
};

// Even k of a step come first, then the odd ones, because that is how nibbles come apart.
struct Fp4 {
  static constexpr size_t kStepBytes = 16;
  static constexpr bool kSharedScale = false;
#if DEEPMINT_ISA_LEVEL >= 4
  struct Scale {
    const uint16_t* table;  // the 16 weights that this scale allows
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->fp4_bf16[b]}; }
  struct Halves {
    __m256i even, odd;
  };
  DM_INLINE Halves load_halves(const uint8_t* p, Scale s) {
    const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i table = _mm256_load_si256(reinterpret_cast<const __m256i*>(s.table));
    return {_mm256_permutexvar_epi16(c, table),
            _mm256_permutexvar_epi16(_mm256_srli_epi16(c, 4), table)};
  }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, Scale s) {
    const Halves w = load_halves(p, s);
    return {_mm512_inserti64x4(_mm512_castsi256_si512(w.even), w.odd, 1)};
  }
#else
  struct Scale {
    float f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {a.tables->e8m0[b]}; }
#if DEEPMINT_ISA_LEVEL >= 2
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, Scale s) {
    const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512 table = _mm512_loadu_ps(a.tables->e2m1);
    const F16 f = set1(s.f);
    return {mul({_mm512_permutexvar_ps(c, table)}, f),
            mul({_mm512_permutexvar_ps(_mm512_srli_epi32(c, 4), table)}, f)};
  }
#elif DEEPMINT_ISA_LEVEL == 1
  // vpermps looks at three bits; the fourth is the sign.
  DM_INLINE __m256 values(__m256i c, __m256 table) {
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(c, 28),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, c), _mm256_castsi256_ps(sign));
  }
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, Scale s) {
    const __m256 table = _mm256_loadu_ps(a.tables->e2m1);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i c0 = _mm256_cvtepu8_epi32(bytes),
                  c1 = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
    const F16 f = set1(s.f);
    return {
        mul({values(c0, table), values(c1, table)}, f),
        mul({values(_mm256_srli_epi32(c0, 4), table), values(_mm256_srli_epi32(c1, 4), table)}, f)};
  }
#else
  DM_INLINE Operand load_weights(const V41Args& a, const uint8_t* p, Scale s) {
    alignas(64) float v[32];
    for (int i = 0; i < 16; ++i) {
      v[i] = a.tables->e2m1[p[i] & 15] * s.f;
      v[16 + i] = a.tables->e2m1[p[i] >> 4] * s.f;
    }
    return {load(v), load(v + 16)};
  }
#endif
#endif
};

// The last k % 32 weights of a BF16 row, followed by zeros.
DM_INLINE Operand load_tail(const V41Args& a, const uint8_t* p, int64_t count) {
  alignas(64) uint8_t words[64] = {};
  for (int64_t i = 0; i < 2 * count; ++i) words[i] = p[i];
  return Bf16::load_weights(a, words, {});
}

// ---- Sums of the lanes, rounding, storing

#if DEEPMINT_ISA_LEVEL >= 2
// Four sums at once: lanes i and i + 8 meet, then i and i + 4; each quarter keeps one of them.
DM_INLINE __m512 quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
// The sums of eight registers, in their order; the same tree as sum().
DM_INLINE __m256 sums(const F16* a) {
  const __m512 p = quarters(a[0].v, a[1].v, a[2].v, a[3].v),
               q = quarters(a[4].v, a[5].v, a[6].v, a[7].v);
  const __m512 t = _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x44), _mm512_shuffle_ps(p, q, 0xEE));
  const __m512 s = _mm512_add_ps(t, _mm512_permute_ps(t, 0xB1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
  return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, s));
}
#endif

#if DEEPMINT_ISA_LEVEL >= 4
// The same from the halves of eight registers: lanes 0-7 and 8-15.
DM_INLINE __m256 sums(const __m256* low, const __m256* high) {
  __m256 half[8], pair[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) half[i] = _mm256_add_ps(low[i], high[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    pair[i] = _mm256_add_ps(_mm256_permute2f128_ps(half[2 * i], half[2 * i + 1], 0x20),
                            _mm256_permute2f128_ps(half[2 * i], half[2 * i + 1], 0x31));
  const __m256 p = _mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[2], 0x44),
                                 _mm256_shuffle_ps(pair[0], pair[2], 0xEE)),
               q = _mm256_add_ps(_mm256_shuffle_ps(pair[1], pair[3], 0x44),
                                 _mm256_shuffle_ps(pair[1], pair[3], 0xEE));
  const __m256 s = _mm256_add_ps(_mm256_shuffle_ps(p, q, 0x88), _mm256_shuffle_ps(p, q, 0xDD));
  return _mm256_permutevar8x32_ps(s, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}
#endif

#if DEEPMINT_ISA_LEVEL >= 2
// Eight floats rounded to BF16, to nearest even.
DM_INLINE __m256i rounded(__m256i s) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(s, 16), _mm256_set1_epi32(1));
  s = _mm256_add_epi32(s, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  return _mm256_and_si256(s, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
}

// Rounds and stores kRows x kOutputs sums, row by row, eight at a time: sums_of(i) are those from
// the i-th on.
template <int kRows, int kOutputs, class Sums>
DM_INLINE void store_sums(Sums&& sums_of, float* y, int64_t stride, bool to_bf16) {
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 7) / 8 * 8;
  constexpr bool kWhole = kOutputs == 8, kHalves = kOutputs == 4 && kRows % 2 == 0;
  alignas(64) float out[kPadded];
#pragma GCC unroll 4
  for (int i = 0; i < kPadded; i += 8) {
    __m256i s = _mm256_castps_si256(sums_of(i));
    if (to_bf16) s = rounded(s);
    float* row = y + i / kOutputs * stride;
    if constexpr (kWhole) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), s);
    } else if constexpr (kHalves) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row), _mm256_castsi256_si128(s));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row + stride), _mm256_extracti128_si256(s, 1));
    } else {
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), s);
    }
  }
  if constexpr (!kWhole && !kHalves)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      for (int o = 0; o < kOutputs; ++o) y[r * stride + o] = out[r * kOutputs + o];
}
#endif

template <int kRows, int kOutputs>
DM_INLINE void finish(const F16 (&acc)[kRows][kOutputs], float* y, int64_t stride, bool to_bf16) {
#if DEEPMINT_ISA_LEVEL >= 2
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 7) / 8 * 8;
  F16 all[kPadded];
#pragma GCC unroll 32
  for (int i = 0; i < kPadded; ++i) all[i] = i < kSums ? acc[i / kOutputs][i % kOutputs] : zero();
  store_sums<kRows, kOutputs>([&](int i) __attribute__((always_inline)) { return sums(all + i); },
                              y, stride, to_bf16);
#else
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) {
      const float s = sum(acc[r][o]);
      y[r * stride + o] = to_bf16 ? float_of(rounded_bits(s)) : s;
    }
#endif
}

// ---- Few rows: weights expand in registers

// How far ahead of the products their weights are fetched into the second-level cache: what memory
// delivers to one core in its latency, some times over. Matrices of a few hundred columns would
// starve with one tile ahead.
constexpr size_t kAheadBytes = 8192;

// Where the codes lie that are read kAheadBytes after those of a tile; a thread's tiles follow each
// other in memory. Their scales are fetched at once.
template <class Format, int kOutputs>
DM_INLINE const uint8_t* ahead_of(const V41Args& a, int64_t output) {
  const size_t tile = a.code_stride * kOutputs;
  const auto tiles =
      static_cast<int64_t>(tile >= kAheadBytes ? 1 : (kAheadBytes + tile - 1) / tile);
  const int64_t to = output + tiles * kOutputs;
  const bool beyond = to >= a.end;
  if (beyond && a.next == nullptr) return a.codes + static_cast<size_t>(output) * a.code_stride;
  const auto at = static_cast<size_t>(beyond ? to - a.end : to);
  if constexpr (Format::kStepBytes != 64) {
    constexpr bool kOfEach = Format::kStepBytes == 16;
    const uint8_t* p =
        (beyond ? a.next_scales : a.scales) + (kOfEach ? at : at / 32) * a.scale_stride;
    const size_t bytes = kOfEach ? a.scale_stride * kOutputs : a.scale_stride;
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(p + line, 0, 2);
  }
  if (beyond) return a.next + at * a.code_stride;
  return a.codes + static_cast<size_t>(to) * a.code_stride;
}

template <class Format, int kRows, int kOutputs>
void direct_tile(const V41Args& a, int64_t output) {
  F16 acc[kRows][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) acc[r][o] = zero();
  const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
  const uint8_t* scales = nullptr;
  if constexpr (Format::kStepBytes == 32)
    scales = a.scales + static_cast<size_t>(output / 32) * a.scale_stride;
  if constexpr (Format::kStepBytes == 16)
    scales = a.scales + static_cast<size_t>(output) * a.scale_stride;
  const uint8_t* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = a.x[r];
  const uint8_t* const ahead = ahead_of<Format, kOutputs>(a, output);
  const int64_t steps = a.k / kV41Step;
  size_t at = 0;
  for (int64_t step = 0; step < steps; ++step, at += Format::kStepBytes) {
    Operand row[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      row[r] = load_operand(x[r] + static_cast<size_t>(step) * kOperandStep);
    typename Format::Scale scale{};
    if constexpr (Format::kSharedScale && Format::kStepBytes == 32)
      scale = Format::scale(a, scales[step]);
    if (at % 64 == 0)
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o)
        __builtin_prefetch(ahead + at * kOutputs + 64 * static_cast<size_t>(o), 0, 2);
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      if constexpr (!Format::kSharedScale)
        scale = Format::scale(
            a, scales[static_cast<size_t>(o) * a.scale_stride + static_cast<size_t>(step)]);
      const Operand w =
          Format::load_weights(a, codes + static_cast<size_t>(o) * a.code_stride + at, scale);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r][o] = dot(acc[r][o], w, row[r]);
    }
  }
  if constexpr (Format::kStepBytes == 64) {
    const int64_t rest = a.k % kV41Step;
    if (rest != 0)
      for (int o = 0; o < kOutputs; ++o) {
        const Operand w = load_tail(a, codes + static_cast<size_t>(o) * a.code_stride + at, rest);
        for (int r = 0; r < kRows; ++r)
          acc[r][o] =
              dot(acc[r][o], w, load_operand(x[r] + static_cast<size_t>(steps) * kOperandStep));
      }
  }
  finish<kRows, kOutputs>(acc, a.y + output, a.y_stride, a.to_bf16);
}

#if DEEPMINT_ISA_LEVEL >= 4
// FP8 in groups of 64 codes; the last group of a row may hold 32.
DM_INLINE __m512i half_of_codes(const uint8_t* p) {
  return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// kScaled: the scales are in the activations already.
template <int kRows, int kOutputs, bool kScaled>
DM_INLINE void pair_tile(const V41Args& a, int64_t output) {
  F16 acc[kRows][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) acc[r][o] = zero();
  const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
  const uint8_t* scales = a.scales + static_cast<size_t>(output / 32) * a.scale_stride;
  const uint8_t* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = a.x[r];
  const Fp8::Table table = Fp8::table(a);
  const auto k = static_cast<size_t>(a.k);
  const uint8_t* const ahead = ahead_of<Fp8, kOutputs>(a, output);
  size_t at = 0;
  const auto group = [&](bool whole, uint8_t last_scale) __attribute__((always_inline)) {
    const __m512i exponents =
        kScaled ? _mm512_setzero_si512() : Fp8::exponents(scales[at / 32], last_scale);
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o)
      __builtin_prefetch(ahead + at * kOutputs + 64 * static_cast<size_t>(o), 0, 2);
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      const uint8_t* p = codes + static_cast<size_t>(o) * a.code_stride + at;
      const __m512i bytes = whole ? _mm512_loadu_si512(p) : half_of_codes(p);
      const Fp8::Pair w =
          kScaled ? Fp8::load_pair(table, bytes) : Fp8::load_pair(table, bytes, exponents);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r][o] = dot(acc[r][o], w.first, load_operand(x[r] + 2 * at));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        acc[r][o] = dot(acc[r][o], w.second, load_operand(x[r] + 2 * at + kOperandStep));
    }
  };
  for (; at + 64 <= k; at += 64) group(true, kScaled ? uint8_t{127} : scales[at / 32 + 1]);
  if (at < k) group(false, 127);
  finish<kRows, kOutputs>(acc, a.y + output, a.y_stride, a.to_bf16);
}

// The rows times the scales of 32 outputs, to a.scratch. False when a value would not be exact.
template <int kRows>
bool scale_rows(const V41Args& a, int64_t output, const uint8_t* (&rows)[kRows]) {
  const uint8_t* scales = a.scales + static_cast<size_t>(output / 32) * a.scale_stride;
  const auto k = static_cast<size_t>(a.k), bytes = (k + 63) / 64 * 2 * kOperandStep;
  __mmask32 outside = 0;
  for (size_t at = 0; at < k; at += 64) {
    const __m512i exponents =
        Fp8::exponents(scales[at / 32], at + 32 < k ? scales[at / 32 + 1] : uint8_t{127});
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (size_t part = 0; part < 2; ++part) {
        const size_t where = 2 * at + part * kOperandStep;
        _mm512_store_si512(
            a.scratch + static_cast<size_t>(r) * bytes + where,
            Fp8::scaled_activations(_mm512_load_si512(a.x[r] + where), exponents, outside));
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) rows[r] = a.scratch + static_cast<size_t>(r) * bytes;
  return outside == 0;
}

// A scale belongs to 32 outputs, so moving it from their weights to the activations costs nearly
// nothing; products of powers of two are exact either way.
template <int kRows, int kOutputs>
void direct_pairs(const V41Args& a) {
  const uint8_t* rows[kRows];
  V41Args scaled = a;
  scaled.x = rows;
  for (int64_t first = a.begin; first < a.end; first += 32) {
    const int64_t last = first + 32 < a.end ? first + 32 : a.end;
    int64_t output = first;
    if (scale_rows<kRows>(a, first, rows)) {
      for (; output + kOutputs <= last; output += kOutputs)
        pair_tile<kRows, kOutputs, true>(scaled, output);
    } else {
      for (; output + kOutputs <= last; output += kOutputs)
        pair_tile<kRows, kOutputs, false>(a, output);
    }
    V41Args one = a;
    for (; output < last; ++output)
      for (int64_t row = 0; row < kRows; ++row) {
        one.x = a.x + row;
        one.y = a.y + row * a.y_stride;
        pair_tile<1, 1, false>(one, output);
      }
  }
}

void expand_pairs(const V41Args& a, uint8_t* panel, size_t panel_stride) {
  const Fp8::Table table = Fp8::table(a);
  const auto k = static_cast<size_t>(a.k);
  for (int64_t output = a.begin; output < a.end; ++output, panel += panel_stride) {
    const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
    const uint8_t* scales = a.scales + static_cast<size_t>(output / 32) * a.scale_stride;
    size_t at = 0;
    const auto group = [&](bool whole, uint8_t last_scale) __attribute__((always_inline)) {
      const uint8_t* p = codes + at;
      __builtin_prefetch(p + 2048, 0, 3);
      const Fp8::Pair w = Fp8::load_pair(table, whole ? _mm512_loadu_si512(p) : half_of_codes(p),
                                         Fp8::exponents(scales[at / 32], last_scale));
      store_operand(panel + 2 * at, w.first);
      store_operand(panel + 2 * at + kOperandStep, w.second);
    };
    for (; at + 64 <= k; at += 64) group(true, scales[at / 32 + 1]);
    if (at < k) group(false, 127);
  }
}
#endif

#if DEEPMINT_ISA_LEVEL >= 4
// FP4 for up to three rows: the same products in two 256-bit halves, which saves putting them
// together. The halves are the lanes 0-7 and 8-15 of the wide form, so the bits are the same.
constexpr int kNarrowRows = 3;
template <int kRows, int kOutputs>
void narrow_tile(const V41Args& a, int64_t output) {
  __m256 even_sum[kRows][kOutputs], odd_sum[kRows][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) even_sum[r][o] = odd_sum[r][o] = _mm256_setzero_ps();
  const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
  const uint8_t* scales = a.scales + static_cast<size_t>(output) * a.scale_stride;
  const uint8_t* const ahead = ahead_of<Fp4, kOutputs>(a, output);
  const int64_t steps = a.k / kV41Step;
  for (int64_t step = 0; step < steps; ++step) {
    const size_t at = static_cast<size_t>(step) * Fp4::kStepBytes;
    if (at % 64 == 0)
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o)
        __builtin_prefetch(ahead + at * kOutputs + 64 * static_cast<size_t>(o), 0, 2);
    __m256i even_x[kRows], odd_x[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto* x =
          reinterpret_cast<const __m256i*>(a.x[r] + static_cast<size_t>(step) * kOperandStep);
      even_x[r] = _mm256_load_si256(x);
      odd_x[r] = _mm256_load_si256(x + 1);
    }
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      const uint8_t* p = codes + static_cast<size_t>(o) * a.code_stride + at;
      const uint8_t scale =
          scales[static_cast<size_t>(o) * a.scale_stride + static_cast<size_t>(step)];
      const Fp4::Halves w = Fp4::load_halves(p, Fp4::scale(a, scale));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        even_sum[r][o] = _mm256_dpbf16_ps(even_sum[r][o], reinterpret_cast<__m256bh>(w.even),
                                          reinterpret_cast<__m256bh>(even_x[r]));
        odd_sum[r][o] = _mm256_dpbf16_ps(odd_sum[r][o], reinterpret_cast<__m256bh>(w.odd),
                                         reinterpret_cast<__m256bh>(odd_x[r]));
      }
    }
  }
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 7) / 8 * 8;
  __m256 even[kPadded], odd[kPadded];
#pragma GCC unroll 16
  for (int i = 0; i < kPadded; ++i) {
    even[i] = i < kSums ? even_sum[i / kOutputs][i % kOutputs] : _mm256_setzero_ps();
    odd[i] = i < kSums ? odd_sum[i / kOutputs][i % kOutputs] : _mm256_setzero_ps();
  }
  store_sums<kRows, kOutputs>(
      [&](int i) __attribute__((always_inline)) { return sums(even + i, odd + i); }, a.y + output,
      a.y_stride, a.to_bf16);
}
#endif

template <class Format, int kRows, int kOutputs>
DM_INLINE void tile(const V41Args& a, int64_t output) {
#if DEEPMINT_ISA_LEVEL >= 4
  if constexpr (Format::kStepBytes == 16 && kRows <= kNarrowRows)
    narrow_tile<kRows, kOutputs>(a, output);
  else
#endif
    direct_tile<Format, kRows, kOutputs>(a, output);
}

template <class Format, int kRows, int kOutputs>
void direct_tiles(const V41Args& a) {
  int64_t output = a.begin;
  for (; output + kOutputs <= a.end; output += kOutputs) tile<Format, kRows, kOutputs>(a, output);
  V41Args one = a;
  for (; output < a.end; ++output)
    for (int64_t row = 0; row < kRows; ++row) {
      one.x = a.x + row;
      one.y = a.y + row * a.y_stride;
      tile<Format, 1, 1>(one, output);
    }
}
template <class Format, int kRows, int kOutputs>
void direct_rows(const V41Args& a) {
#if DEEPMINT_ISA_LEVEL >= 4
  if constexpr (Format::kStepBytes == 32)
    direct_pairs<kRows, kOutputs>(a);
  else
#endif
    direct_tiles<Format, kRows, kOutputs>(a);
}

#if DEEPMINT_ISA_LEVEL >= 4
// Weights that need no expanding: four rows after four over the same outputs, which the first four
// bring into the cache.
template <class Format, int kOutputs>
void direct_pass(const V41Args& a, int64_t output) {
  V41Args part = a;
  for (int64_t row = 0; row < a.m; row += 4) {
    part.x = a.x + row;
    part.y = a.y + row * a.y_stride;
    switch (a.m - row) {
      case 1:
        direct_tile<Format, 1, kOutputs>(part, output);
        break;
      case 2:
        direct_tile<Format, 2, kOutputs>(part, output);
        break;
      case 3:
        direct_tile<Format, 3, kOutputs>(part, output);
        break;
      default:
        direct_tile<Format, 4, kOutputs>(part, output);
        break;
    }
  }
}
template <class Format>
void direct_passes(const V41Args& a) {
  int64_t output = a.begin;
  for (; output + 6 <= a.end; output += 6) direct_pass<Format, 6>(a, output);
  for (; output + 4 <= a.end; output += 4) direct_pass<Format, 4>(a, output);
  for (; output < a.end; ++output) direct_pass<Format, 1>(a, output);
}
#endif

#if DEEPMINT_ISA_LEVEL >= 4
// FP8, seven or eight rows: four, then the rest over the same 32 outputs, which are in the cache by
// then. Expanding twice costs less than summing so many rows for only two outputs at a time.
void direct_halves(const V41Args& a) {
  V41Args part = a;
  for (int64_t first = a.begin; first < a.end; first += 32) {
    part.begin = first;
    part.end = first + 32 < a.end ? first + 32 : a.end;
    part.x = a.x;
    part.y = a.y;
    direct_pairs<4, 4>(part);
    part.x += 4;
    part.y += 4 * a.y_stride;
    if (a.m == 7)
      direct_pairs<3, 4>(part);
    else
      direct_pairs<4, 4>(part);
  }
}
#endif

#if DEEPMINT_ISA_LEVEL == 1 || DEEPMINT_ISA_LEVEL == 2
// Over whole rows, tiles of few outputs would fetch f32 activations (20 KB of each row at k = 5120)
// from the second-level cache at half the speed of the products. So k goes in blocks whose
// activations stay in the first level, all rows of a tile over 32 outputs, whose lanes wait in
// memory between blocks. avx2: three or four rows, for whose sums it has registers, and one output.
// avx512: five to eight rows, so that weights expand once for all of them, and two outputs.
#if DEEPMINT_ISA_LEVEL == 1
constexpr int kTileOutputs = 1;
constexpr int64_t kMostSteps = 32;
DM_INLINE Operand in_registers(Operand x) { return x; }
#else
constexpr int kTileOutputs = 2;
constexpr int64_t kMostSteps = 24;
// An activation that meets two outputs: as an operand in memory of both products it would be
// fetched twice, and the cache delivers one register a cycle.
DM_INLINE Operand in_registers(Operand x) {
  __asm__("" : "+v"(x.a.v), "+v"(x.b.v));
  return x;
}
#endif
constexpr int64_t kBlockOutputs = 32;

template <class Format, int kRows, int kOutputs>
DM_INLINE void block_tile(const V41Args& a, int64_t output, int64_t first, int64_t last,
                          const uint8_t* ahead, F16 (*lanes)[kRows]) {
  const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
  const uint8_t* scales = nullptr;
  if constexpr (Format::kStepBytes == 32)
    scales = a.scales + static_cast<size_t>(output / 32) * a.scale_stride;
  if constexpr (Format::kStepBytes == 16)
    scales = a.scales + static_cast<size_t>(output) * a.scale_stride;
  const uint8_t* x[kRows];
  F16 acc[kRows][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = a.x[r];
#pragma GCC unroll 2
    for (int o = 0; o < kOutputs; ++o) acc[r][o] = lanes[o][r];
  }
  for (int64_t step = first; step < last; ++step) {
    const size_t at = static_cast<size_t>(step) * Format::kStepBytes;
    if (at % 64 == 0)
#pragma GCC unroll 2
      for (int o = 0; o < kOutputs; ++o)
        __builtin_prefetch(ahead + static_cast<size_t>(o) * a.code_stride +
                               (at - static_cast<size_t>(first) * Format::kStepBytes),
                           0, 2);
    Operand w[kOutputs];
    typename Format::Scale scale{};
#pragma GCC unroll 2
    for (int o = 0; o < kOutputs; ++o) {
      if constexpr (!Format::kSharedScale)
        scale = Format::scale(
            a, scales[static_cast<size_t>(o) * a.scale_stride + static_cast<size_t>(step)]);
      else if constexpr (Format::kStepBytes < 64)
        scale = Format::scale(a, scales[step]);
      w[o] = Format::load_weights(a, codes + static_cast<size_t>(o) * a.code_stride + at, scale);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Operand row =
          in_registers(load_operand(x[r] + static_cast<size_t>(step) * kOperandStep));
#pragma GCC unroll 2
      for (int o = 0; o < kOutputs; ++o) acc[r][o] = dot(acc[r][o], w[o], row);
    }
  }
  if constexpr (Format::kStepBytes == 64)
    if (const int64_t rest = a.k % kV41Step; rest != 0 && last == a.k / kV41Step) {
      const auto steps = static_cast<size_t>(last);
#pragma GCC unroll 2
      for (int o = 0; o < kOutputs; ++o) {
        const Operand w = load_tail(
            a, codes + static_cast<size_t>(o) * a.code_stride + steps * Format::kStepBytes, rest);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          acc[r][o] = dot(acc[r][o], w, load_operand(x[r] + steps * kOperandStep));
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int o = 0; o < kOutputs; ++o) lanes[o][r] = acc[r][o];
}

// The sums of one output: lanes meet, round, are stored.
template <int kRows>
DM_INLINE void finish_output(const F16 (&lanes)[kRows], float* y, int64_t stride, bool to_bf16) {
#if DEEPMINT_ISA_LEVEL == 2
  F16 all[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) all[r] = r < kRows ? lanes[r] : zero();
  __m256i s = _mm256_castps_si256(sums(all));
  if (to_bf16) s = rounded(s);
  alignas(32) float out[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), s);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) y[r * stride] = out[r];
#else
  for (int r = 0; r < kRows; ++r) {
    const float s = sum(lanes[r]);
    y[r * stride] = to_bf16 ? float_of(rounded_bits(s)) : s;
  }
#endif
}

template <class Format, int kRows>
void block_rows(const V41Args& a) {
  const int64_t steps = a.k / kV41Step, blocks = (steps + kMostSteps - 1) / kMostSteps;
  // Of about equal length, and whole cache lines of each format's codes.
  const int64_t block = blocks == 0 ? 0 : ((steps + blocks - 1) / blocks + 3) / 4 * 4;
  F16 lanes[kBlockOutputs][kRows];
  for (int64_t begin = a.begin; begin < a.end; begin += kBlockOutputs) {
    const int64_t end = begin + kBlockOutputs < a.end ? begin + kBlockOutputs : a.end;
    for (int64_t o = 0; o < end - begin; ++o)
      for (int r = 0; r < kRows; ++r) lanes[o][r] = zero();
    int64_t step = 0;
    do {
      const int64_t last = step + block < steps ? step + block : steps;
      // The next block of an output, or the first one of another.
      const auto next_block = [&](int64_t output) __attribute__((always_inline)) {
        if (last == steps) {
          const int64_t to = output + kBlockOutputs;
          if (to < a.end) return a.codes + static_cast<size_t>(to) * a.code_stride;
          if (a.next != nullptr)
            return a.next + static_cast<size_t>(output - begin) * a.code_stride;
        }
        return a.codes + static_cast<size_t>(output) * a.code_stride +
               static_cast<size_t>(last) * Format::kStepBytes;
      };
      int64_t output = begin;
      for (; output + kTileOutputs <= end; output += kTileOutputs)
        block_tile<Format, kRows, kTileOutputs>(a, output, step, last, next_block(output),
                                                lanes + (output - begin));
      for (; output < end; ++output)
        block_tile<Format, kRows, 1>(a, output, step, last, next_block(output),
                                     lanes + (output - begin));
      step = last;
    } while (step < steps);
    for (int64_t o = 0; o < end - begin; ++o)
      finish_output(lanes[o], a.y + begin + o, a.y_stride, a.to_bf16);
  }
}
#endif

#if DEEPMINT_ISA_LEVEL == 1
template <class Format>
void direct_blocks(const V41Args& a) {
  V41Args part = a;
  for (int64_t row = 0; row < a.m; row += 4) {
    part.x = a.x + row;
    part.y = a.y + row * a.y_stride;
    switch (a.m - row) {
      case 1:
        block_rows<Format, 1>(part);
        break;
      case 2:
        block_rows<Format, 2>(part);
        break;
      case 3:
        block_rows<Format, 3>(part);
        break;
      default:
        block_rows<Format, 4>(part);
        break;
    }
  }
}
#elif DEEPMINT_ISA_LEVEL == 2
template <class Format>
void few_rows(const V41Args& a) {
  switch (a.m) {
    case 1:
      return direct_rows<Format, 1, kMaxOutputs>(a);
    case 2:
      return direct_rows<Format, 2, kMaxOutputs>(a);
    case 3:
      return direct_rows<Format, 3, kMaxOutputs>(a);
    case 4:
      return direct_rows<Format, 4, kMaxOutputs>(a);
    case 5:
      return block_rows<Format, 5>(a);
    case 6:
      return block_rows<Format, 6>(a);
    case 7:
      return block_rows<Format, 7>(a);
    default:
      return block_rows<Format, 8>(a);
  }
}

// Some rows after the others, all over the same outputs, which the first bring into the
// second-level cache. BF16 is widened in no time, so four rows x four outputs are best, and fetch
// little enough for whole rows; codes expand for up to eight rows at once.
template <class Format>
void rows_after_rows(const V41Args& a) {
  V41Args part = a;
  for (int64_t row = 0; row < a.m; row += part.m) {
    const int64_t left = a.m - row, passes = (left + 7) / 8;
    if constexpr (Format::kStepBytes == 64)
      part.m = left >= 8 ? 4 : left;
    else
      part.m = (left + passes - 1) / passes;
    part.x = a.x + row;
    part.y = a.y + row * a.y_stride;
    few_rows<Format>(part);
  }
}
#endif

template <class Format>
void direct(const V41Args& a) {
#if DEEPMINT_ISA_LEVEL == 2
  constexpr int kOnePass = Format::kStepBytes == 64 ? 7 : 8;
  if (a.m <= kOnePass) return few_rows<Format>(a);
  V41Args part = a;
  for (int64_t first = a.begin; first < a.end; first += 32) {
    part.begin = first;
    part.end = first + 32 < a.end ? first + 32 : a.end;
    // Units of the other formats are no longer than 32 outputs.
    if constexpr (Format::kStepBytes == 64)
      part.next =
          part.end < a.end ? a.codes + static_cast<size_t>(part.end) * a.code_stride : a.next;
    rows_after_rows<Format>(part);
  }
#else
  constexpr int kFew = kMaxOutputs < 4 ? kMaxOutputs : 4;
  // One row: eight sums meet in the time of four.
  constexpr int kOne = DEEPMINT_ISA_LEVEL >= 4 && Format::kStepBytes != 64 ? 8 : kFew;
  switch (a.m) {
    case 1:
      return direct_rows<Format, 1, kOne>(a);
#if DEEPMINT_ISA_LEVEL >= 1
    case 2:
      return direct_rows<Format, 2, kFew>(a);
#endif
#if DEEPMINT_ISA_LEVEL >= 4
    case 3:
      return direct_rows<Format, 3, kFew>(a);
    case 4:
      return direct_rows<Format, 4, kFew>(a);
#endif
    default:
      break;
  }
#if DEEPMINT_ISA_LEVEL == 1
  direct_blocks<Format>(a);
#endif
#if DEEPMINT_ISA_LEVEL >= 4
  if constexpr (Format::kStepBytes == 64) {
    direct_passes<Format>(a);
  } else {
    if (a.m == 5) return direct_rows<Format, 5, 2>(a);
    if (a.m == 6) return direct_rows<Format, 6, 2>(a);
    if constexpr (Format::kStepBytes == 32) return direct_halves(a);
    if (a.m == 7) return direct_rows<Format, 7, 2>(a);
    if (a.m == 8) return direct_rows<Format, 8, 2>(a);
  }
#endif
#endif
}

// ---- Many rows: weights expand once into a panel

#if DEEPMINT_ISA_LEVEL == 2
// As BF16, which a code times its scale fits: half of what f32 would take of the cache.
constexpr size_t kWeightBytes = 2;
DM_INLINE void store_weights(uint8_t* p, Operand w) {
  alignas(64) static constexpr uint16_t kHighHalves[32] = {
      1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  _mm512_store_si512(
      p, _mm512_permutex2var_epi16(_mm512_castps_si512(w.a.v), _mm512_load_si512(kHighHalves),
                                   _mm512_castps_si512(w.b.v)));
}
#else
constexpr size_t kWeightBytes = kOperandBytes;
DM_INLINE void store_weights(uint8_t* p, Operand w) { store_operand(p, w); }
#endif

template <class Format>
void expand(const V41Args& a, uint8_t* panel, size_t panel_stride) {
  const int64_t steps = a.k / kV41Step;
  for (int64_t output = a.begin; output < a.end; ++output, panel += panel_stride) {
    const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
    const uint8_t* scales = a.scales;
    if constexpr (Format::kStepBytes == 32)
      scales += static_cast<size_t>(output / 32) * a.scale_stride;
    if constexpr (Format::kStepBytes == 16) scales += static_cast<size_t>(output) * a.scale_stride;
    for (int64_t step = 0; step < steps; ++step) {
      typename Format::Scale scale{};
      if constexpr (Format::kStepBytes != 64) scale = Format::scale(a, scales[step]);
      const uint8_t* p = codes + static_cast<size_t>(step) * Format::kStepBytes;
      __builtin_prefetch(p + 2048, 0, 3);
      store_weights(panel + static_cast<size_t>(step) * kV41Step * kWeightBytes,
                    Format::load_weights(a, p, scale));
    }
    if constexpr (Format::kStepBytes == 64)
      if (a.k % kV41Step != 0)
        store_weights(panel + static_cast<size_t>(steps) * kV41Step * kWeightBytes,
                      load_tail(a, codes + static_cast<size_t>(steps) * 64, a.k % kV41Step));
  }
}

#if DEEPMINT_ISA_LEVEL == 1
// Lanes 0-7, then 8-15, of four rows x three outputs: twelve sums in registers, three weights and
// an activation. The lanes of a sum never meet before its end, so each half may run alone; both
// over one block of k, while its operands are in the first-level cache.
constexpr int kPanelOutputs = 3, kGroupOutputs = 24;
constexpr int64_t kPanelSteps = 16;

template <int kRows, int kOutputs>
void panel_block(const V41PanelArgs& a, int64_t row, int64_t output, int64_t first, int64_t last,
                 float (*lanes)[kRows][kLanes]) {
  for (size_t half = 0; half < 2; ++half) {
    __m256 acc[kRows][kOutputs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int o = 0; o < kOutputs; ++o) acc[r][o] = _mm256_load_ps(lanes[o][r] + 8 * half);
    const uint8_t* x[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) x[r] = a.x[row + r] + 32 * half;
    const uint8_t* const w = a.panel + static_cast<size_t>(output) * a.panel_stride + 32 * half;
    const auto eight = [](const uint8_t* p) __attribute__((always_inline)) {
      return _mm256_load_ps(reinterpret_cast<const float*>(p));
    };
    // The first sixteen of a step and the others, as in dot().
    for (size_t at = static_cast<size_t>(first) * kOperandStep;
         at < static_cast<size_t>(last) * kOperandStep; at += kOperandStep / 2) {
      __m256 weights[kOutputs];
#pragma GCC unroll 3
      for (int o = 0; o < kOutputs; ++o)
        weights[o] = eight(w + static_cast<size_t>(o) * a.panel_stride + at);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256 v = eight(x[r] + at);
#pragma GCC unroll 3
        for (int o = 0; o < kOutputs; ++o) acc[r][o] = _mm256_fmadd_ps(weights[o], v, acc[r][o]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 3
      for (int o = 0; o < kOutputs; ++o) _mm256_store_ps(lanes[o][r] + 8 * half, acc[r][o]);
  }
}

template <int kRows>
void panel_rows(const V41PanelArgs& a, int64_t row) {
  alignas(64) float lanes[kGroupOutputs][kRows][kLanes];
  for (int64_t begin = 0; begin < a.outputs; begin += kGroupOutputs) {
    const int64_t end = begin + kGroupOutputs < a.outputs ? begin + kGroupOutputs : a.outputs;
    for (int64_t o = 0; o < end - begin; ++o)
      for (int r = 0; r < kRows; ++r) store(lanes[o][r], zero());
    for (int64_t step = 0; step < a.steps; step += kPanelSteps) {
      const int64_t last = step + kPanelSteps < a.steps ? step + kPanelSteps : a.steps;
      int64_t o = begin;
      for (; o + kPanelOutputs <= end; o += kPanelOutputs)
        panel_block<kRows, kPanelOutputs>(a, row, o, step, last, lanes + (o - begin));
      for (; o < end; ++o) panel_block<kRows, 1>(a, row, o, step, last, lanes + (o - begin));
    }
    for (int64_t o = 0; o < end - begin; ++o)
      for (int r = 0; r < kRows; ++r) {
        const float s = sum(load(lanes[o][r]));
        a.y[(row + r) * a.y_stride + begin + o] = a.to_bf16 ? float_of(rounded_bits(s)) : s;
      }
  }
}

void panel(const V41PanelArgs& a) {
  int64_t row = 0;
  for (; row + 4 <= a.m; row += 4) panel_rows<4>(a, row);
  if (a.m - row == 3) return panel_rows<3>(a, row);
  if (a.m - row == 2) return panel_rows<2>(a, row);
  if (a.m - row == 1) panel_rows<1>(a, row);
}
#elif DEEPMINT_ISA_LEVEL == 2
void panel(const V41PanelArgs& a) {
  rows_after_rows<Bf16>({.codes = a.panel,
                         .code_stride = a.panel_stride,
                         .k = a.steps * kV41Step,
                         .end = a.outputs,
                         .x = a.x,
                         .m = a.m,
                         .y = a.y,
                         .y_stride = a.y_stride,
                         .to_bf16 = a.to_bf16});
}
#else
template <int kRows, int kOutputs, bool kFetch>
void panel_tile(const V41PanelArgs& a, int64_t row, int64_t output, const uint8_t*& ahead,
                size_t ahead_step) {
  F16 acc[kRows][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) acc[r][o] = zero();
  const uint8_t* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = a.x[row + r];
  const uint8_t* w = a.panel + static_cast<size_t>(output) * a.panel_stride;
  const size_t bytes = static_cast<size_t>(a.steps) * kOperandStep, stride = a.panel_stride;
  const uint8_t* fetch = ahead;
  for (size_t at = 0; at < bytes; at += kOperandStep) {
    if constexpr (kFetch) {
      for (size_t line = 0; line < ahead_step; line += 64) __builtin_prefetch(fetch + line, 0, 2);
      fetch += ahead_step;
    }
    Operand rows[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) rows[r] = load_operand(x[r] + at);
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      const Operand weights = load_operand(w + static_cast<size_t>(o) * stride + at);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r][o] = dot(acc[r][o], weights, rows[r]);
    }
  }
  ahead = fetch;
  finish<kRows, kOutputs>(acc, a.y + row * a.y_stride + output, a.y_stride, a.to_bf16);
}

// What to fetch during the products of some rows: the memory of `ahead` bit by bit, or a line per
// step of each of the next rows.
struct Fetch {
  const uint8_t* ahead = nullptr;
  size_t ahead_step = 0;
  const uint8_t* const* rows = nullptr;
};

template <int kRows, int kOutputs>
DM_INLINE void panel_tile(const V41PanelArgs& a, int64_t row, int64_t output, Fetch& fetch) {
  if (fetch.ahead_step != 0)
    return panel_tile<kRows, kOutputs, true>(a, row, output, fetch.ahead, fetch.ahead_step);
  if (fetch.rows != nullptr && output < kMaxRows * kMaxOutputs) {
    const uint8_t* next = fetch.rows[output / kMaxOutputs];
    return panel_tile<kRows, kOutputs, true>(a, row, output, next, 64);
  }
  panel_tile<kRows, kOutputs, false>(a, row, output, fetch.ahead, 0);
}

template <int kRows>
void panel_rows(const V41PanelArgs& a, int64_t row, Fetch& fetch) {
  int64_t output = 0;
  for (; output + kMaxOutputs <= a.outputs; output += kMaxOutputs)
    panel_tile<kRows, kMaxOutputs>(a, row, output, fetch);
#if DEEPMINT_ISA_LEVEL >= 2
  for (; output + 2 <= a.outputs; output += 2) panel_tile<kRows, 2>(a, row, output, fetch);
#endif
  for (; output < a.outputs; ++output) panel_tile<kRows, 1>(a, row, output, fetch);
}

void panel(const V41PanelArgs& a) {
  // Fetches of `ahead` spread evenly over the steps of the full register tiles.
  const int64_t tiles = a.m / kMaxRows * ((a.outputs + kMaxOutputs - 1) / kMaxOutputs);
  const auto steps = static_cast<size_t>(tiles * a.steps);
  const uint8_t* const ahead_end = a.ahead + a.ahead_bytes;
  Fetch fetch{a.ahead, steps == 0 ? 0 : ((a.ahead_bytes + 63) / 64 + steps - 1) / steps * 64,
              nullptr};
  int64_t row = 0;
  for (; row + kMaxRows <= a.m; row += kMaxRows) {
    if (fetch.ahead >= ahead_end) fetch.ahead_step = 0;
    fetch.rows = row + 2 * kMaxRows <= a.m ? a.x + row + kMaxRows : nullptr;
    panel_rows<kMaxRows>(a, row, fetch);
  }
  fetch = {};
#if DEEPMINT_ISA_LEVEL >= 2
  if (a.m - row == 3) return panel_rows<3>(a, row, fetch);
  if (a.m - row == 2) return panel_rows<2>(a, row, fetch);
#endif
  if (a.m - row == 1) panel_rows<1>(a, row, fetch);
}
#endif

}  // namespace

const V41Kernels kV41Linear = {
    {kPassRows, kDirectRows, kDirectRows},
#if DEEPMINT_ISA_LEVEL == 1
    kPanelOutputs,
#else
    kMaxOutputs,
#endif
    kOperandBytes,
    kWeightBytes,
    DEEPMINT_ISA_LEVEL >= 4 ? V41Order::kInterleaved : V41Order::kNatural,
    {direct<Bf16>, direct<Fp8>, direct<Fp4>},
#if DEEPMINT_ISA_LEVEL >= 4
    {expand<Bf16>, expand_pairs, expand<Fp4>},
#else
    {expand<Bf16>, expand<Fp8>, expand<Fp4>},
#endif
    panel,
};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
#endif
