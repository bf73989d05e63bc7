// F32, F16 and BF16 weights, and the conversion of activations; compiled once per instruction set.
//
// A panel of 16 outputs fills the lanes and k ascends one by one: acc = fma(w, x, acc). BF16
// weights come in pairs of k; the hardware dot of avx512bf16 takes a pair at a time, with its own
// rounding.
#include "kernels/linear_lanes.inl"

#include "kernels/linear_kernels.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

// One step of k (F32, F16) or two (BF16), on kRows rows x kPanels panels.
struct F32Step {
  static constexpr int64_t kPerStep = 1;
  static constexpr size_t kStepBytes = 4 * kLanes, kActBytes = 4;
  template <int kRows, int kPanels>
  static DEEPMINT_INLINE void run(const uint8_t* const (&w)[kPanels],
                                  const uint8_t* const (&x)[kRows], F (&sum)[kRows][kPanels]) {
    F weights[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) weights[p] = f_load(w[p]);
    add<kRows, kPanels>(weights, x, sum);
  }
  template <int kRows, int kPanels>
  static DEEPMINT_INLINE void add(const F (&weights)[kPanels], const uint8_t* const (&x)[kRows],
                                  F (&sum)[kRows][kPanels]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F value = f_bits(i_set1(load_i32(x[r])));
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sum[r][p] = f_fma(weights[p], value, sum[r][p]);
    }
  }
};
struct F16Step {
  static constexpr int64_t kPerStep = 1;
  static constexpr size_t kStepBytes = 2 * kLanes, kActBytes = 4;
  template <int kRows, int kPanels>
  static DEEPMINT_INLINE void run(const uint8_t* const (&w)[kPanels],
                                  const uint8_t* const (&x)[kRows], F (&sum)[kRows][kPanels]) {
    F weights[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) weights[p] = f_load_f16(w[p]);
    F32Step::add<kRows, kPanels>(weights, x, sum);
  }
};
struct Bf16Step {
  static constexpr int64_t kPerStep = 2;
  static constexpr size_t kStepBytes = 4 * kLanes, kActBytes = 4;
  template <int kRows, int kPanels>
  static DEEPMINT_INLINE void run(const uint8_t* const (&w)[kPanels],
                                  const uint8_t* const (&x)[kRows], F (&sum)[kRows][kPanels]) {
#if DEEPMINT_ISA_LEVEL >= 4
    __m512i weights[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) weights[p] = i_load(w[p]).v;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512i value = _mm512_set1_epi32(load_i32(x[r]));
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p)
        sum[r][p].v = _mm512_dpbf16_ps(sum[r][p].v, reinterpret_cast<__m512bh>(weights[p]),
                                       reinterpret_cast<__m512bh>(value));
    }
#else
    const I top = i_set1(-65536);
    F even[kPanels], odd[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const I pair = i_load(w[p]);
      even[p] = f_bits(i_shl<16>(pair));
      odd[p] = f_bits(i_and(pair, top));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const int32_t pair = load_i32(x[r]);
      const F x_even = f_bits(i_set1(static_cast<int32_t>(static_cast<uint32_t>(pair) << 16)));
      const F x_odd =
          f_bits(i_set1(static_cast<int32_t>(static_cast<uint32_t>(pair) & 0xffff0000u)));
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p] = f_fma(even[p], x_even, sum[r][p]);
        sum[r][p] = f_fma(odd[p], x_odd, sum[r][p]);
      }
    }
#endif
  }
};

template <class Step, int kRows, int kPanels>
void run_tile(const LinearArgs& a, int64_t row, int64_t tile) {
  const uint8_t *w[kPanels], *x[kRows];
  F sum[kRows][kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) w[p] = a.w + static_cast<size_t>(tile + p) * a.panel_bytes;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = a.x + static_cast<size_t>(row + r) * a.x_stride;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) sum[r][p] = f_zero();
  }
  const int64_t steps = (a.k + Step::kPerStep - 1) / Step::kPerStep;
  for (int64_t s = 0; s < steps; ++s) {
    Step::template run<kRows, kPanels>(w, x, sum);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) w[p] += Step::kStepBytes;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) x[r] += Step::kActBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      write_out(sum[r][p], a.y + (row + r) * a.y_stride + (tile + p) * kLanes,
                a.n - (tile + p) * kLanes, a.add);
}

template <class Step, int kPanels>
DEEPMINT_INLINE void all_rows(const LinearArgs& a, int64_t tile) {
  int64_t row = 0;
#if DEEPMINT_ISA_LEVEL >= 2
  constexpr int kRows = kPanels == 1 ? 12 : 12;
  for (; row + kRows <= a.m; row += kRows) run_tile<Step, kRows, kPanels>(a, row, tile);
  for (; row + 6 <= a.m; row += 6) run_tile<Step, 6, kPanels>(a, row, tile);
  for (; row + 3 <= a.m; row += 3) run_tile<Step, 3, kPanels>(a, row, tile);
#elif DEEPMINT_ISA_LEVEL == 1
  for (; row + 4 <= a.m; row += 4) run_tile<Step, 4, kPanels>(a, row, tile);
#endif
#if DEEPMINT_ISA_LEVEL >= 1
  for (; row + 2 <= a.m; row += 2) run_tile<Step, 2, kPanels>(a, row, tile);
#endif
  for (; row < a.m; ++row) run_tile<Step, 1, kPanels>(a, row, tile);
}

template <class Step>
void linear(const LinearArgs& a) {
  int64_t tile = a.tile_begin;
#if DEEPMINT_ISA_LEVEL >= 2
  for (; tile + 2 <= a.tile_end; tile += 2) all_rows<Step, 2>(a, tile);
#endif
  for (; tile < a.tile_end; ++tile) all_rows<Step, 1>(a, tile);
}

#if DEEPMINT_ISA_LEVEL <= 2
constexpr int32_t kInfinityBits = 0x7f800000;

// Blocks of 32: d = largest magnitude / 127, q = x / d to nearest even. Integer comparisons order
// magnitudes, NaN last.
void quantize(const float* x, int64_t k, ActBlock* out) {
  for (int64_t b = 0; b < k / kBlock; ++b, x += kBlock, ++out) {
    const F low = f_load(x), high = f_load(x + kLanes);
    const I magnitude = i_set1(0x7fffffff);
    const int32_t largest =
        i_reduce_max(i_max(i_and(i_bits(low), magnitude), i_and(i_bits(high), magnitude)));
    float amax;
    __builtin_memcpy(&amax, &largest, sizeof amax);
    const float d = amax / 127.0f;
    if (largest >= kInfinityBits || d == 0.0f) {  // nothing finite to scale by
      const float fill = largest >= kInfinityBits ? __builtin_nanf("") : 0.0f;
      i_store_s8(out->q, i_zero());
      i_store_s8(out->q + kLanes, i_zero());
      out->d = out->s = fill;
      out->neg_sum = out->neg_sum_high = 0;
      continue;
    }
    // A subnormal d is coarse enough for a quotient above 127.
    const I top = i_set1(127), bottom = i_set1(-127);
    const F scale = f_set1(d);
    const I q_low = i_max(i_min(i_round(f_div(low, scale)), top), bottom);
    const I q_high = i_max(i_min(i_round(f_div(high, scale)), top), bottom);
    i_store_s8(out->q, q_low);
    i_store_s8(out->q + kLanes, q_high);
    const int32_t sum_high = i_reduce_add(q_high), sum = i_reduce_add(q_low) + sum_high;
    out->d = d;
    out->s = d * static_cast<float>(sum);
    out->neg_sum = -sum;
    out->neg_sum_high = -sum_high;
  }
}

// Round to nearest even by integer arithmetic; a NaN keeps its top bits and becomes quiet.
void to_bf16(const float* x, int64_t k, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}
#endif

}  // namespace

#if DEEPMINT_ISA_LEVEL <= 2
const FloatKernels kFloat = {linear<F32Step>, linear<F16Step>, quantize, to_bf16};
#endif
#if DEEPMINT_ISA_LEVEL != 3
const Bf16Kernels kBf16 = {linear<Bf16Step>};
#endif

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
