// Compiled once per instruction set; avx512vnni uses avx512's. Lanes run along k in steps of 32:
// lane l of a step meets k = 2l and 2l + 1 (BF16 dot) or l and 16 + l (f32, one FMA after the
// other), steps follow each other, and the 16 lanes meet at the end in the tree of sum(). Nothing
// of this depends on how many rows or outputs share a register tile.
#include "kernels/v41_linear_kernels.h"

// clang-format off: the other builds on simd16.inl
#include "kernels/simd16.inl"
#include "kernels/v41_operand.inl"
#include "kernels/v41_linear_weights.inl"
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

// ---- Few rows: weights expand in registers

#if DEEPMINT_ISA_LEVEL == 1
// One step of 32 k. Sixteen registers: eight of sums, words of four outputs, eight lanes of one
// weight and one activation, masks.
template <InWords Format, int kRows, int kOutputs>
DM_INLINE void add_words(const V41Args& a, const uint8_t* codes, const uint8_t* scales,
                         const uint8_t* const (&x)[kRows], size_t at, F16 (&acc)[kRows][kOutputs]) {
  typename Format::Codes c[kOutputs];
#pragma GCC unroll 4
  for (size_t o = 0; o < kOutputs; ++o) {
    typename Format::Scale scale{};
    if constexpr (!Format::kSharedScale) scale = Format::scale(a, scales[o * a.scale_stride]);
    c[o] = Format::load_codes(a, codes + o * a.code_stride, scale);
  }
  const auto eight = [&](int r, size_t lanes) __attribute__((always_inline)) {
    __m256 v = _mm256_load_ps(reinterpret_cast<const float*>(x[r] + at + 32 * lanes));
    // As an operand in memory of the products of two outputs it would be fetched twice, and the
    // cache delivers two registers a cycle.
    if constexpr (kOutputs > 1) __asm__("" : "+x"(v));
    return v;
  };
#pragma GCC unroll 2
  for (size_t half = 0; half < 2; ++half) {
    __m256i w[kOutputs];
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) w[o] = Format::words(c[o], half);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 row = eight(r, 2 * half);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o)
        acc[r][o].a = _mm256_fmadd_ps(even_words(w[o]), row, acc[r][o].a);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 row = eight(r, 2 * half + 1);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o)
        acc[r][o].b = _mm256_fmadd_ps(odd_words(w[o]), row, acc[r][o].b);
    }
  }
}
#endif

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
  const int64_t at = beyond ? to - a.end : to;
  if constexpr (Format::kStepBytes != 64) {
    const uint8_t* p = scales_of<Format>(beyond ? a.next_scales : a.scales, a, at);
    const size_t bytes = Format::kSharedScale ? a.scale_stride : a.scale_stride * kOutputs;
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(p + line, 0, 2);
  }
  return (beyond ? a.next : a.codes) + static_cast<size_t>(at) * a.code_stride;
}

template <class Format, int kRows, int kOutputs>
void direct_tile(const V41Args& a, int64_t output) {
  F16 acc[kRows][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) acc[r][o] = zero();
  const uint8_t* codes = a.codes + static_cast<size_t>(output) * a.code_stride;
  const uint8_t* scales = scales_of<Format>(a.scales, a, output);
  const uint8_t* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = a.x[r];
  const uint8_t* const ahead = ahead_of<Format, kOutputs>(a, output);
  const int64_t steps = a.k / kV41Step;
  size_t at = 0;
  for (int64_t step = 0; step < steps; ++step, at += Format::kStepBytes) {
#if DEEPMINT_ISA_LEVEL == 1
    if constexpr (InWords<Format>) {
      if (at % 64 == 0)
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o)
          __builtin_prefetch(ahead + at * kOutputs + 64 * static_cast<size_t>(o), 0, 2);
      add_words<Format>(a, codes + at, scales + step, x, static_cast<size_t>(step) * kOperandStep,
                        acc);
    } else
#endif
    {
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
// kScaled: the scales are in the activations already. So many outputs expand before their products
// begin: multiplying and looking up share units, and one after the other they are in each other's
// way.
template <int kRows, int kOutputs, bool kScaled>
DM_INLINE void pair_tile(const V41Args& a, int64_t output) {
  constexpr int kMost = kRows < 4 ? 4 : 2, kExpanded = kOutputs < kMost ? kOutputs : kMost;
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
    for (int first = 0; first < kOutputs; first += kExpanded) {
      Fp8::Pair w[kExpanded];
#pragma GCC unroll 8
      for (int o = 0; o < kExpanded; ++o) {
        const uint8_t* p = codes + static_cast<size_t>(first + o) * a.code_stride + at;
        const __m512i bytes = whole ? _mm512_loadu_si512(p) : half_of_codes(p);
        w[o] = kScaled ? Fp8::load_pair(table, bytes) : Fp8::load_pair(table, bytes, exponents);
        __asm__("" : "+v"(w[o].first.v), "+v"(w[o].second.v));  // not later
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Operand v = load_operand(x[r] + 2 * at);
#pragma GCC unroll 8
        for (int o = 0; o < kExpanded; ++o)
          acc[r][first + o] = dot(acc[r][first + o], w[o].first, v);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Operand v = load_operand(x[r] + 2 * at + kOperandStep);
#pragma GCC unroll 8
        for (int o = 0; o < kExpanded; ++o)
          acc[r][first + o] = dot(acc[r][first + o], w[o].second, v);
      }
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
  const uint8_t* scales = scales_of<Format>(a.scales, a, output);
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
#if DEEPMINT_ISA_LEVEL == 1
    if constexpr (InWords<Format>) {
      add_words<Format>(a, codes + at, scales + step, x, static_cast<size_t>(step) * kOperandStep,
                        acc);
    } else
#endif
    {
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
  if (to_bf16) s = rounded_bits(s);
  alignas(32) float out[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), s);
#else
  const auto row = [&](int r) __attribute__((always_inline)) { return lanes[r < kRows ? r : 0]; };
  alignas(16) float out[4];
  _mm_store_ps(out, rounded4(sums4(row(0), row(1), row(2), row(3)), to_bf16));
#endif
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) y[r * stride] = out[r];
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
// The rows times the scales of 32 outputs and what Fp8Shifted leaves out, to a.scratch. False when
// a value would leave the range of float.
template <int kRows>
bool shift_rows(const V41Args& a, int64_t output, const uint8_t* (&rows)[kRows]) {
  const uint8_t* scales = scales_of<Fp8>(a.scales, a, output);
  const auto steps = static_cast<size_t>(a.k / kV41Step);
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i largest = _mm256_setzero_si256();
  for (int r = 0; r < kRows; ++r)
    rows[r] = a.scratch + static_cast<size_t>(r) * steps * kOperandStep;
  for (size_t step = 0; step < steps; ++step) {
    F16 factor;
    if (!Fp8Shifted::factor(scales[step], factor)) return false;
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      Operand x = load_operand(a.x[r] + step * kOperandStep);
      x = {mul(x.a, factor), mul(x.b, factor)};
      const __m256 parts[4] = {x.a.a, x.a.b, x.b.a, x.b.b};
#pragma GCC unroll 4
      for (const __m256 v : parts)
        largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
      store_operand(a.scratch + (r * steps + step) * kOperandStep, x);
    }
  }
  const __m256i outside = _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(0x7F7FFFFF));
  return _mm256_testz_si256(outside, outside) != 0;
}

template <class Format, int kRows>
void some_rows(const V41Args& a) {
  if constexpr (kRows <= 2)
    direct_tiles<Format, kRows, kRows == 1 && Format::kStepBytes != 16 ? 4 : 2>(a);
  else
    block_rows<Format, kRows>(a);
}

template <class Format, int kRows>
void some_rows_shifted(const V41Args& a) {
  if constexpr (Format::kStepBytes == 32)
    if (a.fast_subnormals) {
      const uint8_t* rows[kRows];
      V41Args shifted = a;
      shifted.x = rows;
      if (shift_rows<kRows>(a, a.begin, rows)) return some_rows<Fp8Shifted, kRows>(shifted);
    }
  some_rows<Format, kRows>(a);
}

// Four rows after four over the same 32 outputs.
template <class Format>
void direct_blocks(const V41Args& a) {
  V41Args part = a;
  for (int64_t first = a.begin; first < a.end; first += 32) {
    part.begin = first;
    part.end = first + 32 < a.end ? first + 32 : a.end;
    if (part.end < a.end) {
      part.next = a.codes + static_cast<size_t>(part.end) * a.code_stride;
      part.next_scales = scales_of<Format>(a.scales, a, part.end);
    } else {
      part.next = a.next;
      part.next_scales = a.next_scales;
    }
    for (int64_t row = 0; row < a.m; row += 4) {
      part.x = a.x + row;
      part.y = a.y + row * a.y_stride;
      switch (a.m - row) {
        case 1:
          some_rows_shifted<Format, 1>(part);
          break;
        case 2:
          some_rows_shifted<Format, 2>(part);
          break;
        case 3:
          some_rows_shifted<Format, 3>(part);
          break;
        default:
          some_rows_shifted<Format, 4>(part);
          break;
      }
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
#elif DEEPMINT_ISA_LEVEL == 1
  direct_blocks<Format>(a);
#else
  constexpr int kFew = kMaxOutputs < 4 ? kMaxOutputs : 4;
  // One row: eight sums meet in the time of four.
  constexpr int kOne = DEEPMINT_ISA_LEVEL >= 4 && Format::kStepBytes != 64 ? 8 : kFew;
  switch (a.m) {
    case 1:
      return direct_rows<Format, 1, kOne>(a);
#if DEEPMINT_ISA_LEVEL >= 4
    case 2:
      return direct_rows<Format, 2, kFew>(a);
    case 3:
      return direct_rows<Format, 3, kFew>(a);
    case 4:
      return direct_rows<Format, 4, kFew>(a);
#endif
    default:
      break;
  }
#if DEEPMINT_ISA_LEVEL >= 4
  if constexpr (Format::kStepBytes == 64) {
    direct_passes<Format>(a);
  } else {
    if (a.m == 5) return direct_rows<Format, 5, 2>(a);
    if (a.m == 6) return direct_rows<Format, 6, 2>(a);
    if (a.m == 7) return direct_rows<Format, 7, 2>(a);
    if (a.m == 8) return direct_rows<Format, 8, 2>(a);
  }
#endif
#endif
}

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
#include "kernels/v41_linear_panel.inl"
namespace deepmint::kernels::DEEPMINT_ISA_NS {

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
