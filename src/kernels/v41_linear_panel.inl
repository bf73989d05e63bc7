// V4.1 products of many rows: weights expand once into a panel, which register tiles of rows and
// outputs then meet.
//
// Included by v41_linear_simd.cc, after its products of few rows: avx512 takes a panel of BF16
// words as a matrix of these.

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

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
#elif DEEPMINT_ISA_LEVEL == 1
// As BF16 words, which a code times its scale fits: half of what f32 would take of the cache, which
// gives a register every other cycle.
constexpr size_t kWeightBytes = 2;
DM_INLINE void store_words(uint8_t* p, __m256i first, __m256i second) {
  auto* to = reinterpret_cast<__m256i*>(p);
  _mm256_store_si256(to, first);
  _mm256_store_si256(to + 1, second);
}
DM_INLINE void store_weights(uint8_t* p, Operand w) {
  const auto words = [](F16 x) __attribute__((always_inline)) {
    return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(x.a), 16),
                              _mm256_castps_si256(x.b), 0xAA);
  };
  store_words(p, words(w.a), words(w.b));
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
    const uint8_t* scales = scales_of<Format>(a.scales, a, output);
    for (int64_t step = 0; step < steps; ++step) {
      typename Format::Scale scale{};
      if constexpr (Format::kStepBytes != 64) scale = Format::scale(a, scales[step]);
      const uint8_t* p = codes + static_cast<size_t>(step) * Format::kStepBytes;
      uint8_t* to = panel + static_cast<size_t>(step) * kV41Step * kWeightBytes;
      __builtin_prefetch(p + 2048, 0, 3);
#if DEEPMINT_ISA_LEVEL == 1
      if constexpr (InWords<Format>) {
        const auto c = Format::load_codes(a, p, scale);
        store_words(to, Format::words(c, 0), Format::words(c, 1));
      } else
#endif
        store_weights(to, Format::load_weights(a, p, scale));
    }
    if constexpr (Format::kStepBytes == 64)
      if (a.k % kV41Step != 0)
        store_weights(panel + static_cast<size_t>(steps) * kV41Step * kWeightBytes,
                      load_tail(a, codes + static_cast<size_t>(steps) * 64, a.k % kV41Step));
  }
}

#if DEEPMINT_ISA_LEVEL == 1
// Even lanes, then odd ones, of six rows x two outputs: twelve sums in registers, two weights, an
// activation and a mask. The lanes of a sum never meet before its end, so each half may run alone;
// both over one block of k, while its operands are in the first-level cache.
constexpr int kPanelRows = 6, kPanelOutputs = 2, kGroupOutputs = 24;
constexpr int64_t kPanelSteps = 16;

template <int kRows, int kOutputs, bool kOdd>
DM_INLINE void panel_half(const V41PanelArgs& a, int64_t row, int64_t output, int64_t first,
                          int64_t last, float (*lanes)[kRows][kLanes]) {
  constexpr size_t kHalf = kOdd ? 8 : 0;
  __m256 acc[kRows][kOutputs];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int o = 0; o < kOutputs; ++o) acc[r][o] = _mm256_load_ps(lanes[o][r] + kHalf);
  const uint8_t* x[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) x[r] = a.x[row + r] + 4 * kHalf;
  const uint8_t* const w = a.panel + static_cast<size_t>(output) * a.panel_stride;
  // The first sixteen of a step and the others, as in dot().
  for (size_t at = static_cast<size_t>(first) * kV41Step * kWeightBytes;
       at < static_cast<size_t>(last) * kV41Step * kWeightBytes; at += 16 * kWeightBytes) {
    __m256 weights[kOutputs];
#pragma GCC unroll 2
    for (int o = 0; o < kOutputs; ++o) {
      const __m256i words = _mm256_load_si256(
          reinterpret_cast<const __m256i*>(w + static_cast<size_t>(o) * a.panel_stride + at));
      weights[o] = kOdd ? odd_words(words) : even_words(words);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      __m256 v = _mm256_load_ps(reinterpret_cast<const float*>(x[r] + 2 * at));
      if constexpr (kOutputs > 1) __asm__("" : "+x"(v));  // fetched once, as in add_words
#pragma GCC unroll 2
      for (int o = 0; o < kOutputs; ++o) acc[r][o] = _mm256_fmadd_ps(weights[o], v, acc[r][o]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int o = 0; o < kOutputs; ++o) _mm256_store_ps(lanes[o][r] + kHalf, acc[r][o]);
}

template <int kRows, int kOutputs>
void panel_block(const V41PanelArgs& a, int64_t row, int64_t output, int64_t first, int64_t last,
                 float (*lanes)[kRows][kLanes]) {
  panel_half<kRows, kOutputs, false>(a, row, output, first, last, lanes);
  panel_half<kRows, kOutputs, true>(a, row, output, first, last, lanes);
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
    for (int r = 0; r < kRows; ++r) {
      float* y = a.y + (row + r) * a.y_stride + begin;
      int64_t o = 0;
      for (; o + 4 <= end - begin; o += 4)
        _mm_storeu_ps(y + o, rounded4(sums4(load(lanes[o][r]), load(lanes[o + 1][r]),
                                            load(lanes[o + 2][r]), load(lanes[o + 3][r])),
                                      a.to_bf16));
      for (; o < end - begin; ++o) {
        const float s = sum_of(load(lanes[o][r]));
        y[o] = a.to_bf16 ? float_of(rounded_bits(s)) : s;
      }
    }
  }
}

void panel(const V41PanelArgs& a) {
  int64_t row = 0;
  for (; row + kPanelRows <= a.m; row += kPanelRows) panel_rows<kPanelRows>(a, row);
  for (; row + 2 <= a.m; row += 2) panel_rows<2>(a, row);
  if (row < a.m) panel_rows<1>(a, row);
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
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
