// F32, F16 and BF16 weights; compiled once per instruction set.
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

// Tiles of 4 x 4 need 16 loads less than one per product, and any of 1 … 4 rows runs at full speed.
#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kMaxRows = 4, kMaxPanels = 4;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kMaxRows = 4, kMaxPanels = 1;
#else
constexpr int kMaxRows = 2, kMaxPanels = 1;
#endif

// kRows rows from `row` on x kPanels panels from `tile` on. Weights `ahead` bytes further are
// fetched on the way.
template <class Step, int kRows, int kPanels>
__attribute__((noinline)) void run_tile(const LinearArgs& a, int64_t row, int64_t tile,
                                        size_t ahead) {
  const uint8_t *w[kPanels], *x[kRows];
  F sum[kRows][kPanels];
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) w[p] = a.w + static_cast<size_t>(tile + p) * a.panel_bytes;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    x[r] = a.x + static_cast<size_t>(row + r) * a.x_stride;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      sum[r][p] = f_zero();
      __builtin_prefetch(a.y + (row + r) * a.y_stride + (tile + p) * kLanes, 1);
    }
  }
  const int64_t steps = (a.k + Step::kPerStep - 1) / Step::kPerStep;
  for (int64_t s = 0; s < steps; ++s) {
    Step::template run<kRows, kPanels>(w, x, sum);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      __builtin_prefetch(w[p] + ahead, 0, 2);
      w[p] += Step::kStepBytes;
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) x[r] += Step::kActBytes;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      write_out(sum[r][p], a.y + (row + r) * a.y_stride + (tile + p) * kLanes,
                a.n - (tile + p) * kLanes, a.add);
}

template <class Step, int kPanels>
void all_rows(const LinearArgs& a, int64_t row_begin, int64_t row_end, int64_t tile) {
  int rows = 0;
  for (int64_t row = row_begin; row < row_end; row += rows) {
    rows = row_end - row < kMaxRows ? static_cast<int>(row_end - row) : kMaxRows;
    const size_t ahead =
        fetch_ahead(a.panel_bytes * kPanels, row == row_begin, row + rows == row_end);
    switch (rows) {
#if DEEPMINT_ISA_LEVEL >= 1
      case 4:
        run_tile<Step, 4, kPanels>(a, row, tile, ahead);
        break;
      case 3:
        run_tile<Step, 3, kPanels>(a, row, tile, ahead);
        break;
#endif
      case 2:
        run_tile<Step, 2, kPanels>(a, row, tile, ahead);
        break;
      default:
        run_tile<Step, 1, kPanels>(a, row, tile, ahead);
        break;
    }
  }
}

template <class Step>
void linear(const LinearArgs& a) {
  const int64_t group = rows_per_pass(a.x_stride, kMaxRows);
  for (int64_t begin = 0; begin < a.m; begin += group) {
    const int64_t end = begin + group < a.m ? begin + group : a.m;
    int64_t tile = a.tile_begin;
#if DEEPMINT_ISA_LEVEL >= 2
    for (; tile + 4 <= a.tile_end; tile += 4) all_rows<Step, 4>(a, begin, end, tile);
    for (; tile + 2 <= a.tile_end; tile += 2) all_rows<Step, 2>(a, begin, end, tile);
#endif
    for (; tile < a.tile_end; ++tile) all_rows<Step, 1>(a, begin, end, tile);
  }
}

}  // namespace

#if DEEPMINT_ISA_LEVEL <= 2
const FloatKernels kFloat = {linear<F32Step>, linear<F16Step>};
#endif
#if DEEPMINT_ISA_LEVEL != 3
const Bf16Kernels kBf16 = {linear<Bf16Step>};
#endif

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
