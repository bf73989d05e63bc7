// Compiled once per instruction set; avx512vnni uses avx512's. Lanes run along k in steps of 32:
// lane l of a step meets k = 2l and 2l + 1 (BF16 dot) or l and 16 + l (f32, one FMA after the
// other), steps follow each other, and the 16 lanes meet at the end in the tree of sum(). Nothing
// of this depends on how many rows or outputs share a register tile.
#include "kernels/v41_linear_kernels.h"

#include "kernels/simd16.inl"

#if DEEPMINT_ISA_LEVEL != 3
namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

#if DEEPMINT_ISA_LEVEL >= 4
constexpr int kMaxRows = 4, kMaxOutputs = 6, kDirectRows = 8;
constexpr size_t kOperandBytes = 2;
struct Operand {
  __m512i v;
};
DM_INLINE Operand load_operand(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
DM_INLINE void store_operand(uint8_t* p, Operand a) { _mm512_store_si512(p, a.v); }
DM_INLINE F16 dot(F16 acc, Operand w, Operand x) {
  return {
      _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(w.v), reinterpret_cast<__m512bh>(x.v))};
}
#else
#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kMaxRows = 4, kMaxOutputs = 4, kDirectRows = 4;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kMaxRows = 2, kMaxOutputs = 2, kDirectRows = 2;
#else
constexpr int kMaxRows = 2, kMaxOutputs = 1, kDirectRows = 1;
#endif
constexpr size_t kOperandBytes = 4;
struct Operand {
  F16 a, b;
};
DM_INLINE Operand load_operand(const uint8_t* p) {
  return {load(reinterpret_cast<const float*>(p)), load(reinterpret_cast<const float*>(p) + 16)};
}
DM_INLINE void store_operand(uint8_t* p, Operand x) {
  store(reinterpret_cast<float*>(p), x.a);
  store(reinterpret_cast<float*>(p) + 16, x.b);
}
DM_INLINE F16 dot(F16 acc, Operand w, Operand x) { return fma(w.b, x.b, fma(w.a, x.a, acc)); }
#endif
constexpr size_t kOperandStep = kV41Step * kOperandBytes;

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
  struct Scale {
    __m512i add, subnormal;
  };
  // BF16 words of 2^-9 · {0 … 7} as E4M3 holds them below 2^-6, less the exponent that `add`
  // brings.
  DM_INLINE Scale scale(const V41Args&, uint8_t b) {
    const __m512i add = _mm512_set1_epi16(static_cast<short>((static_cast<int>(b) - 7) << 7));
    constexpr short k1 = (118 - 120) * 128, k2 = (119 - 120) * 128, k4 = 0;
    const __m512i base =
        _mm512_castsi128_si512(_mm_setr_epi16(0, k1, k2, k2 + 64, k4, k4 + 32, k4 + 64, k4 + 96));
    return {add, _mm512_maskz_add_epi16(0xFE, base, add)};
  }
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, const Scale& s) {
    const __m512i c = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    // Exponent and mantissa move to their places; the bias and the scale are one addition.
    const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(c, 4), _mm512_set1_epi16(0x07F0));
    __m512i v = _mm512_add_epi16(magnitude, s.add);
    const __mmask32 small = _mm512_testn_epi16_mask(c, _mm512_set1_epi16(0x78));
    v = _mm512_mask_permutexvar_epi16(v, small, c, s.subnormal);
    // Sign bit from the code, the rest from v.
    return {_mm512_ternarylogic_epi64(_mm512_set1_epi16(static_cast<short>(0x8000)),
                                      _mm512_slli_epi16(c, 8), v, 0xCA)};
  }
#elif DEEPMINT_ISA_LEVEL >= 1
  struct Scale {
    F16 f;
  };
  DM_INLINE Scale scale(const V41Args& a, uint8_t b) { return {set1(a.tables->e8m0_half[b])}; }
  // Read as f16 (sign, 0eeee, mmm0000000), a code is 2^-8 of its value, subnormal ones too.
#if DEEPMINT_ISA_LEVEL >= 2
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, const Scale& s) {
    const __m512i c = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i h = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(c, 8), 1),
                                       _mm512_set1_epi16(static_cast<short>(0xBFFF)));
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
  DM_INLINE Operand load_weights(const V41Args&, const uint8_t* p, Scale s) {
    const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i table = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s.table));
    const __m256i even = _mm256_permutexvar_epi16(c, table),
                  odd = _mm256_permutexvar_epi16(_mm256_srli_epi16(c, 4), table);
    return {_mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1)};
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

DM_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
DM_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }
DM_INLINE uint32_t rounded_bits(float x) {
  const uint32_t u = bits_of(x);
  return (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
}

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

template <int kRows, int kOutputs>
DM_INLINE void finish(const F16 (&acc)[kRows][kOutputs], float* y, int64_t stride, bool to_bf16) {
  constexpr int kSums = kRows * kOutputs, kPadded = (kSums + 7) / 8 * 8;
  alignas(64) float out[kPadded];
#if DEEPMINT_ISA_LEVEL >= 2
  F16 all[kPadded];
#pragma GCC unroll 32
  for (int i = 0; i < kPadded; ++i) all[i] = i < kSums ? acc[i / kOutputs][i % kOutputs] : zero();
#pragma GCC unroll 4
  for (int i = 0; i < kPadded; i += 8) {
    __m256i s = _mm256_castps_si256(sums(all + i));
    if (to_bf16) {
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(s, 16), _mm256_set1_epi32(1));
      s = _mm256_add_epi32(s, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
      s = _mm256_and_si256(s, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + i), s);
  }
#else
  for (int i = 0; i < kSums; ++i) {
    const float s = sum(acc[i / kOutputs][i % kOutputs]);
    out[i] = to_bf16 ? float_of(rounded_bits(s)) : s;
  }
#endif
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) y[r * stride + o] = out[r * kOutputs + o];
}

// ---- Few rows: weights expand in registers

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
  // The next tile's weights: far enough ahead for the memory, near enough to stay in the cache.
  const size_t ahead = a.code_stride * kOutputs;
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
        __builtin_prefetch(codes + static_cast<size_t>(o) * a.code_stride + at + ahead, 0, 2);
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

template <class Format, int kRows, int kOutputs>
void direct_rows(const V41Args& a) {
  int64_t output = a.begin;
  for (; output + kOutputs <= a.end; output += kOutputs)
    direct_tile<Format, kRows, kOutputs>(a, output);
  V41Args one = a;
  for (; output < a.end; ++output)
    for (int64_t row = 0; row < kRows; ++row) {
      one.x = a.x + row;
      one.y = a.y + row * a.y_stride;
      direct_tile<Format, 1, 1>(one, output);
    }
}

template <class Format>
void direct(const V41Args& a) {
  constexpr int kFew = kMaxOutputs < 4 ? kMaxOutputs : 4;
  switch (a.m) {
    case 1:
      return direct_rows<Format, 1, kFew>(a);
#if DEEPMINT_ISA_LEVEL >= 1
    case 2:
      return direct_rows<Format, 2, kFew>(a);
#endif
#if DEEPMINT_ISA_LEVEL >= 2
    case 3:
      return direct_rows<Format, 3, kFew>(a);
    case 4:
      return direct_rows<Format, 4, kFew>(a);
#endif
#if DEEPMINT_ISA_LEVEL >= 4
    case 5:
      return direct_rows<Format, 5, 2>(a);
    case 6:
      return direct_rows<Format, 6, 2>(a);
    case 7:
      return direct_rows<Format, 7, 2>(a);
    case 8:
      return direct_rows<Format, 8, 2>(a);
#endif
    default:
      return;
  }
}

// ---- Many rows: weights expand once into a panel

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
      store_operand(panel + static_cast<size_t>(step) * kOperandStep,
                    Format::load_weights(a, p, scale));
    }
    if constexpr (Format::kStepBytes == 64)
      if (a.k % kV41Step != 0)
        store_operand(panel + static_cast<size_t>(steps) * kOperandStep,
                      load_tail(a, codes + static_cast<size_t>(steps) * 64, a.k % kV41Step));
  }
}

template <int kRows, int kOutputs>
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
    for (size_t line = 0; line < ahead_step; line += 64) __builtin_prefetch(fetch + line, 0, 2);
    fetch += ahead_step;
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

template <int kRows>
void panel_rows(const V41PanelArgs& a, int64_t row, const uint8_t*& ahead, size_t ahead_step) {
  int64_t output = 0;
  for (; output + kMaxOutputs <= a.outputs; output += kMaxOutputs)
    panel_tile<kRows, kMaxOutputs>(a, row, output, ahead, ahead_step);
#if DEEPMINT_ISA_LEVEL >= 2
  for (; output + 2 <= a.outputs; output += 2)
    panel_tile<kRows, 2>(a, row, output, ahead, ahead_step);
#endif
  for (; output < a.outputs; ++output) panel_tile<kRows, 1>(a, row, output, ahead, ahead_step);
}

void panel(const V41PanelArgs& a) {
  // Fetches spread evenly over the steps to come.
  const int64_t tiles =
      (a.m + kMaxRows - 1) / kMaxRows * ((a.outputs + kMaxOutputs - 1) / kMaxOutputs);
  const auto steps = static_cast<size_t>(tiles * a.steps);
  const size_t ahead_step =
      a.ahead_bytes == 0 || steps == 0 ? 0 : ((a.ahead_bytes + 63) / 64 + steps - 1) / steps * 64;
  const uint8_t* ahead = a.ahead;
  int64_t row = 0;
  for (; row + kMaxRows <= a.m; row += kMaxRows) {
    const bool done = ahead >= a.ahead + a.ahead_bytes;
    panel_rows<kMaxRows>(a, row, ahead, done ? 0 : ahead_step);
  }
#if DEEPMINT_ISA_LEVEL >= 2
  if (a.m - row == 3) return panel_rows<3>(a, row, ahead, 0);
  if (a.m - row == 2) return panel_rows<2>(a, row, ahead, 0);
#endif
  if (a.m - row == 1) panel_rows<1>(a, row, ahead, 0);
}

// ---- Activations

// Loops over the 32 values of a block; the compiler makes registers of them.
void prepare(const float* x, int64_t k, bool quantise, bool even_first, uint8_t* out) {
  for (int64_t at = 0; at < k; at += kV41Step, out += kOperandStep) {
    alignas(64) float v[32];
    if (at + kV41Step <= k) {
      for (int i = 0; i < 32; ++i) v[i] = x[at + i];
    } else {
      for (int i = 0; i < 32; ++i) v[i] = at + i < k ? x[at + i] : 0.0f;
    }
    if (quantise) {
      uint32_t largest = 0;
      for (int i = 0; i < 32; ++i) {
        const uint32_t magnitude = bits_of(v[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
      }
      if (largest >= 0x7F800000u) {
        // A block that holds a NaN or an infinity has no scale.
        for (int i = 0; i < 32; ++i) v[i] = __builtin_nanf("");
      } else {
        const float amax = float_of(largest) < 1e-4f ? 1e-4f : float_of(largest);
        const uint32_t quotient = bits_of(amax / 448.0f);
        // Biased exponent of the smallest power of two that is >= the quotient.
        const uint32_t e = (quotient >> 23) + ((quotient & 0x7FFFFFu) != 0 ? 1 : 0);
        const float scale = float_of(e << 23), inverse = float_of((254 - e) << 23);
        for (int i = 0; i < 32; ++i) {
          const float value = v[i] * inverse;
          // The unit of E4M3 at this magnitude is 2^(exponent - 3), at least 2^-9; adding 1.5 ·
          // 2^23 units rounds to it, ties to even.
          uint32_t exponent = (bits_of(value) >> 23) & 255u;
          exponent = exponent < 121 ? 121 : exponent;
          const float anchor = float_of(((exponent + 20) << 23) | 0x400000u);
          v[i] = ((value + anchor) - anchor) * scale;
        }
      }
    }
    alignas(64) float ordered[32];
    for (int i = 0; i < 16; ++i) {
      ordered[i] = v[even_first ? 2 * i : i];
      ordered[16 + i] = v[even_first ? 2 * i + 1 : 16 + i];
    }
#if DEEPMINT_ISA_LEVEL >= 4
    auto* words = reinterpret_cast<uint16_t*>(out);
    for (int i = 0; i < 32; ++i) words[i] = static_cast<uint16_t>(rounded_bits(ordered[i]) >> 16);
#else
    auto* values = reinterpret_cast<float*>(out);
    for (int i = 0; i < 32; ++i) values[i] = ordered[i];
#endif
  }
}

void swiglu(const float* gate, const float* up, int64_t n, float limit, float weight, float* t) {
  const F16 top = set1(limit), bottom = set1(-limit), one = set1(1.0f), factor = set1(weight);
  for (int64_t i = 0; i < n; i += kLanes) {
    // MINPS and MAXPS return their second operand for NaN, so a NaN passes.
    const F16 g = min(top, load(gate + i)), u = max(bottom, min(top, load(up + i)));
    const F16 sigmoid = div(one, add(one, exp(sub(zero(), g))));
    const F16 v = mul(factor, mul(mul(g, sigmoid), u));
    alignas(64) float lanes[kLanes];
    store(lanes, v);
    for (int j = 0; j < kLanes; ++j) t[i + j] = float_of(rounded_bits(lanes[j]));
  }
}

}  // namespace

const V41Kernels kV41Linear = {
    kDirectRows,
    kMaxOutputs,
    kOperandBytes,
    {direct<Bf16>, direct<Fp8>, direct<Fp4>},
    {expand<Bf16>, expand<Fp8>, expand<Fp4>},
    panel,
    prepare,
    swiglu,
};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
#endif
