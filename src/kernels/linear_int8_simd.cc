// Block-quantised weights x int8 activations; compiled once per instruction set.
// docs/kernels/linear.md has the formulas.
//
// A panel of 16 outputs fills the lanes; k runs in blocks of 32, ascending. Per block, output and
// row:
//   acc = fma(float(integer dot), d_w * d_x, acc)   and, for types with a minimum,   acc = fma(m_w,
//   s_x, acc)
// The integer dot is exact on every instruction set, so its own order is free; the f32 order is the
// one above, whatever the number of rows, panels or threads.
#if DEEPMINT_ISA_LEVEL <= 3  // avx512bf16 uses the code of avx512vnni

#include "kernels/linear_lanes.inl"

#include "kernels/linear_kernels.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

// What the weight bytes are, which decides how their products may be summed without saturation, and
// what they stand for.
enum class Form {
  kOffset128,  // 0 … 255, value + 128
  kOffset8,    // 0 … 15, value + 8
  kOffset16,   // 0 … 31, value + 16
  kMin15,      // 0 … 15, plus a minimum in f32
  kMin31,      // 0 … 31, plus a minimum in f32
  kHalves63,   // 0 … 63, value + 32; integer scales for each half of the block
};
constexpr bool has_min(Form f) { return f == Form::kMin15 || f == Form::kMin31; }
constexpr int offset_bits(Form f) {
  return f == Form::kOffset128  ? 7
         : f == Form::kOffset8  ? 3
         : f == Form::kOffset16 ? 4
         : f == Form::kHalves63 ? 5
                                : 0;
}
// Products of |weight| <= w and |activation| <= 127 come in pairs in 16 bits: how many pairs fit
// before they must be widened.
constexpr int max_pairs(Form f) {
  switch (f) {
    case Form::kOffset8:
    case Form::kMin15:
      return 8;  // 8 * 2 * 15 * 127 = 30480
    case Form::kOffset16:
    case Form::kMin31:
      return 4;  // 4 * 2 * 31 * 127 = 31496
    case Form::kHalves63:
      return 2;  // 2 * 2 * 63 * 127 = 32004
    default:
      return 1;  // 2 * 128 * 127 = 32512, on magnitudes
  }
}

// Integer dot of up to kSteps x 4 products per output, on 16 outputs. Steps are numbered so that
// widening is decided at compile time.
#if DEEPMINT_ISA_LEVEL == 3
template <Form kForm>
struct Dot {
  static constexpr bool kTakesOffset = false;
  using Weights = B;
  static DEEPMINT_INLINE Weights prepare(B w) { return w; }
  __m512i sum;
  DEEPMINT_INLINE void start(I init) { sum = init.v; }
  DEEPMINT_INLINE void step(int, int, Weights w, B x) { sum = _mm512_dpbusd_epi32(sum, w.v, x.v); }
  DEEPMINT_INLINE I finish() const { return {sum}; }
};
#elif DEEPMINT_ISA_LEVEL == 2
template <Form kForm>
struct Dot {
  static constexpr bool kTakesOffset = kForm == Form::kOffset128;  // off the weights themselves
  struct Weights {
    __m512i magnitude;
    __mmask64 negative;
  };
  static DEEPMINT_INLINE Weights prepare(B w) {
    if constexpr (!kTakesOffset) return {w.v, 0};
    const __m512i value = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
  }
  __m512i sum, words;
  DEEPMINT_INLINE void start(I init) { sum = init.v; }
  DEEPMINT_INLINE void step(int index, int last, Weights w, B x) {
    __m512i xv = x.v;
    if constexpr (kTakesOffset)
      xv = _mm512_mask_sub_epi8(xv, w.negative, _mm512_setzero_si512(), xv);
    const __m512i pairs = _mm512_maddubs_epi16(w.magnitude, xv);
    const int phase = index % max_pairs(kForm);
    words = phase == 0 ? pairs : _mm512_add_epi16(words, pairs);
    if (phase == max_pairs(kForm) - 1 || index == last)
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
  }
  DEEPMINT_INLINE I finish() const { return {sum}; }
};
#elif DEEPMINT_ISA_LEVEL == 1
template <Form kForm>
struct Dot {
  static constexpr bool kTakesOffset = kForm == Form::kOffset128;  // off the weights themselves
  struct Weights {
    B magnitude, value;
  };
  static DEEPMINT_INLINE Weights prepare(B w) {
    if constexpr (!kTakesOffset) return {w, w};
    const __m256i flip = _mm256_set1_epi8(-128);
    const B value = {_mm256_xor_si256(w.lo, flip), _mm256_xor_si256(w.hi, flip)};
    return {{_mm256_abs_epi8(value.lo), _mm256_abs_epi8(value.hi)}, value};
  }
  I sum, words;
  DEEPMINT_INLINE void start(I init) { sum = init; }
  DEEPMINT_INLINE void step(int index, int last, Weights w, B x) {
    if constexpr (kTakesOffset)
      x = {_mm256_sign_epi8(x.lo, w.value.lo), _mm256_sign_epi8(x.hi, w.value.hi)};
    const I pairs = {_mm256_maddubs_epi16(w.magnitude.lo, x.lo),
                     _mm256_maddubs_epi16(w.magnitude.hi, x.hi)};
    const int phase = index % max_pairs(kForm);
    words = phase == 0
                ? pairs
                : I{_mm256_add_epi16(words.lo, pairs.lo), _mm256_add_epi16(words.hi, pairs.hi)};
    if (phase == max_pairs(kForm) - 1 || index == last) {
      const __m256i one = _mm256_set1_epi16(1);
      sum = i_add(sum, {_mm256_madd_epi16(words.lo, one), _mm256_madd_epi16(words.hi, one)});
    }
  }
  DEEPMINT_INLINE I finish() const { return sum; }
};
#else
template <Form kForm>
struct Dot {
  static constexpr bool kTakesOffset = false;
  using Weights = B;
  static DEEPMINT_INLINE Weights prepare(B w) { return w; }
  I init;
  __m128i pairs[8];  // two sums of two products per output
  DEEPMINT_INLINE void start(I value) {
    init = value;
    for (__m128i& p : pairs) p = _mm_setzero_si128();
  }
  DEEPMINT_INLINE void step(int, int, Weights w, B x) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i words =
        _mm_srai_epi16(_mm_unpacklo_epi8(x.v[0], x.v[0]), 8);  // the four k, twice
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      pairs[2 * q] =
          _mm_add_epi32(pairs[2 * q], _mm_madd_epi16(_mm_unpacklo_epi8(w.v[q], zero), words));
      pairs[2 * q + 1] =
          _mm_add_epi32(pairs[2 * q + 1], _mm_madd_epi16(_mm_unpackhi_epi8(w.v[q], zero), words));
    }
  }
  DEEPMINT_INLINE I finish() const {
    I r = init;
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      const __m128 a = _mm_castsi128_ps(pairs[2 * q]), b = _mm_castsi128_ps(pairs[2 * q + 1]);
      const __m128i even = _mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
      const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
      r.v[q] = _mm_add_epi32(r.v[q], _mm_add_epi32(even, odd));
    }
    return r;
  }
};
#endif

// Scales of one block on 16 outputs.
struct Scales {
  F d;          // factor of the integer dot
  F m;          // minimum, for has_min
  I low, high;  // integer factors of the halves, for kHalves63
};

// Readers: where block b of a panel has its scales and quants. quants() gives step s (k 4s … 4s+3)
// and step s + 4 (k 16+4s …), each as [16 outputs][4 k] unsigned bytes.

DEEPMINT_INLINE void split_nibbles(const uint8_t* q, int s, B& low, B& high) {
  const B packed = b_load(q + 64 * s), mask = b_set1(15);
  low = b_and(packed, mask);
  high = b_and(b_shift<-4>(packed), mask);
}
// Bit s and s + 4 of each byte are the fifth bits of the two steps.
template <int kStep>
DEEPMINT_INLINE void add_fifth_bits(B bits, B& low, B& high) {
  const B mask = b_set1(16);
  low = b_or(low, b_and(b_shift<4 - kStep>(bits), mask));
  high = b_or(high, b_and(b_shift<-kStep>(bits), mask));
}
// Bits 2s and 2s + 1 of each byte of the two planes are the top two bits of the two steps.
template <int kStep>
DEEPMINT_INLINE void add_top_bits(B low_plane, B high_plane, B& low, B& high) {
  const B mask = b_set1(48);
  low = b_or(low, b_and(b_shift<4 - 2 * kStep>(low_plane), mask));
  high = b_or(high, b_and(b_shift<4 - 2 * kStep>(high_plane), mask));
}

template <size_t kQuants>
struct PairedReader {
  static constexpr size_t kLines = (kPairHead / 2 + kQuants + 63) / 64;
  static DEEPMINT_INLINE const uint8_t* pair(const uint8_t* panel, int64_t b) {
    return panel + (b >> 1) * static_cast<int64_t>(kPairHead + 2 * kQuants);
  }
  static DEEPMINT_INLINE Scales scales(const uint8_t* panel, int64_t b) {
    return {.d = f_load_f16(pair(panel, b) + (b & 1) * static_cast<int64_t>(kF16Lanes)),
            .m = f_zero(),
            .low = i_zero(),
            .high = i_zero()};
  }
  static DEEPMINT_INLINE const uint8_t* quants(const uint8_t* panel, int64_t b) {
    return pair(panel, b) + kPairHead + (b & 1) * static_cast<int64_t>(kQuants);
  }
};
template <size_t kQuants>
struct MinReader {
  static constexpr size_t kLines = (kMinHead + kQuants) / 64;
  static DEEPMINT_INLINE Scales scales(const uint8_t* panel, int64_t b) {
    const uint8_t* head = panel + b * static_cast<int64_t>(kMinHead + kQuants);
    return {.d = f_load_f16(head),
            .m = f_load_f16(head + kF16Lanes),
            .low = i_zero(),
            .high = i_zero()};
  }
  static DEEPMINT_INLINE const uint8_t* quants(const uint8_t* panel, int64_t b) {
    return panel + b * static_cast<int64_t>(kMinHead + kQuants) + kMinHead;
  }
};
template <size_t kQuants>
struct SuperReader {
  static constexpr size_t kLines = (kSuperHead / 8 + kQuants + 63) / 64;
  static DEEPMINT_INLINE const uint8_t* super(const uint8_t* panel, int64_t b) {
    return panel + (b >> 3) * static_cast<int64_t>(kSuperHead + 8 * kQuants);
  }
  static DEEPMINT_INLINE Scales scales(const uint8_t* panel,
                                       int64_t b) {  // Q4_K, Q5_K: products are exact in f32
    const uint8_t* head = super(panel, b);
    const uint8_t* own = head + 2 * kF16Lanes + (b & 7) * 2 * kLanes;
    return {.d = f_mul(f_load_f16(head), f_from(i_load_u8(own))),
            .m = f_mul(f_load_f16(head + kF16Lanes), f_from(i_load_u8(own + kLanes))),
            .low = i_zero(),
            .high = i_zero()};
  }
  static DEEPMINT_INLINE const uint8_t* quants(const uint8_t* panel, int64_t b) {
    return super(panel, b) + kSuperHead + (b & 7) * static_cast<int64_t>(kQuants);
  }
};

struct Q8_0 : PairedReader<kQ8_0Quants> {
  static constexpr Form kForm = Form::kOffset128;
  template <int kStep>
  static DEEPMINT_INLINE void unpack(const uint8_t* q, B& low, B& high) {
    low = b_load(q + 64 * kStep);
    high = b_load(q + 64 * (kStep + 4));
  }
};
struct Nibbles {
  template <int kStep>
  static DEEPMINT_INLINE void unpack(const uint8_t* q, B& low, B& high) {
    split_nibbles(q, kStep, low, high);
  }
};
struct FiveBits {
  template <int kStep>
  static DEEPMINT_INLINE void unpack(const uint8_t* q, B& low, B& high) {
    split_nibbles(q + kBit, kStep, low, high);
    add_fifth_bits<kStep>(b_load(q), low, high);
  }
};
struct Q4_0 : PairedReader<kQ4Quants>, Nibbles {
  static constexpr Form kForm = Form::kOffset8;
};
struct Q5_0 : PairedReader<kQ5Quants>, FiveBits {
  static constexpr Form kForm = Form::kOffset16;
};
struct Q4_1 : MinReader<kQ4Quants>, Nibbles {
  static constexpr Form kForm = Form::kMin15;
};
struct Q5_1 : MinReader<kQ5Quants>, FiveBits {
  static constexpr Form kForm = Form::kMin31;
};
struct Q4_K : SuperReader<kQ4Quants>, Nibbles {
  static constexpr Form kForm = Form::kMin15;
};
struct Q5_K : SuperReader<kQ5Quants>, FiveBits {
  static constexpr Form kForm = Form::kMin31;
};
struct Q6_K : SuperReader<kQ6Quants> {
  static constexpr Form kForm = Form::kHalves63;
  static DEEPMINT_INLINE Scales scales(const uint8_t* panel, int64_t b) {
    const uint8_t* head = super(panel, b);
    const uint8_t* own = head + 2 * kF16Lanes + (b & 7) * 2 * kLanes;
    return {.d = f_load_f16(head),
            .m = f_zero(),
            .low = i_load_s8(own),
            .high = i_load_s8(own + kLanes)};
  }
  template <int kStep>
  static DEEPMINT_INLINE void unpack(const uint8_t* q, B& low, B& high) {
    split_nibbles(q + 2 * kBit, kStep, low, high);
    add_top_bits<kStep>(b_load(q), b_load(q + kBit), low, high);
  }
};

// One tile: kRows rows x one panel, all blocks.
template <class Q, int kRows>
struct Dots {
  static constexpr Form kForm = Q::kForm;
  static constexpr bool kHalves = kForm == Form::kHalves63;
  Dot<kForm> low[kRows], high[kHalves ? kRows : 1];  // one sum for both halves unless kHalves

  DEEPMINT_INLINE void start(int r, const ActBlock* x) {
    if constexpr (has_min(kForm) || Dot<kForm>::kTakesOffset) {
      low[r].start(i_zero());
    } else if constexpr (kHalves) {
      const I above = i_shl<offset_bits(kForm)>(i_set1(x->neg_sum_high));
      high[r].start(above);
      low[r].start(i_sub(i_shl<offset_bits(kForm)>(i_set1(x->neg_sum)), above));
    } else {
      low[r].start(i_shl<offset_bits(kForm)>(i_set1(x->neg_sum)));
    }
  }
  template <int kStep>
  DEEPMINT_INLINE void step(const uint8_t* q, const ActBlock* const (&x)[kRows]) {
    B l, h;
    Q::template unpack<kStep>(q, l, h);
    const typename Dot<kForm>::Weights wl = Dot<kForm>::prepare(l), wh = Dot<kForm>::prepare(h);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const B xl = b_dword(x[r]->q + 4 * kStep), xh = b_dword(x[r]->q + 16 + 4 * kStep);
      if constexpr (kHalves) {
        low[r].step(kStep, 3, wl, xl);
        high[r].step(kStep, 3, wh, xh);
      } else {
        low[r].step(2 * kStep, 7, wl, xl);
        low[r].step(2 * kStep + 1, 7, wh, xh);
      }
    }
  }
};

template <class Q, int kRows>
__attribute__((noinline)) void tile(const uint8_t* panel, const uint8_t* x, size_t x_stride,
                                    int64_t blocks, size_t ahead, F* out) {
  F sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = f_zero();
  for (int64_t b = 0; b < blocks; ++b) {
    const uint8_t* q = Q::quants(panel, b);
#pragma GCC unroll 16
    for (size_t line = 0; line < Q::kLines; ++line) __builtin_prefetch(q + ahead + 64 * line, 0, 2);
    const ActBlock* xb[kRows];
    Dots<Q, kRows> dots;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      xb[r] = reinterpret_cast<const ActBlock*>(x + static_cast<size_t>(r) * x_stride) + b;
      dots.start(r, xb[r]);
    }
    dots.template step<0>(q, xb);
    dots.template step<1>(q, xb);
    dots.template step<2>(q, xb);
    dots.template step<3>(q, xb);
    const Scales scales = Q::scales(panel, b);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      I dot = dots.low[r].finish();
      if constexpr (Dots<Q, kRows>::kHalves)  // at most 2 * 16 * 32 * 127 * 128 < 2^24: exact in
                                              // f32 too
        dot = i_add(i_mul(scales.low, dot), i_mul(scales.high, dots.high[r].finish()));
      sum[r] = f_fma(f_from(dot), f_mul(scales.d, f_set1(xb[r]->d)), sum[r]);
      if constexpr (has_min(Q::kForm)) sum[r] = f_fma(scales.m, f_set1(xb[r]->s), sum[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) out[r] = sum[r];
}

// Rows of a tile: as many as the registers hold, and enough smaller kinds that few rows waste
// nothing.
#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kMaxRows = 8;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kMaxRows = 3;
#else
constexpr int kMaxRows = 1;
#endif
DEEPMINT_INLINE int next_rows(int64_t left) {
#if DEEPMINT_ISA_LEVEL >= 2
  // 5 = 3 + 2, 7 = 4 + 3, 9 = 6 + 3: no lone row, which would wait for itself.
  if (left >= 8) return left == 9 ? 6 : 8;
  return left == 7 ? 4 : left == 5 ? 3 : static_cast<int>(left);
#else
  return left < kMaxRows ? static_cast<int>(left) : kMaxRows;
#endif
}

template <class Q>
DEEPMINT_INLINE void run_tile(int rows, const uint8_t* panel, const uint8_t* x, size_t x_stride,
                              int64_t blocks, size_t ahead, F* sum) {
  switch (rows) {
#if DEEPMINT_ISA_LEVEL >= 2
    case 8:
      return tile<Q, 8>(panel, x, x_stride, blocks, ahead, sum);
    case 6:
      return tile<Q, 6>(panel, x, x_stride, blocks, ahead, sum);
    case 4:
      return tile<Q, 4>(panel, x, x_stride, blocks, ahead, sum);
#endif
#if DEEPMINT_ISA_LEVEL >= 1
    case 3:
      return tile<Q, 3>(panel, x, x_stride, blocks, ahead, sum);
    case 2:
      return tile<Q, 2>(panel, x, x_stride, blocks, ahead, sum);
#endif
    default:
      return tile<Q, 1>(panel, x, x_stride, blocks, ahead, sum);
  }
}

// One row lives on the memory alone: fetches a few blocks ahead of the use keep most lines on their
// way. Measured in one run, Zen 4, 2 threads, weights from DRAM: 512 to 1024 bytes give 57 GB/s,
// the next panel (5 KiB and more) 43, and from 3 KiB on the hardware's own prefetching suffers.
constexpr size_t kOneRowAhead = 768;

template <class Q>
void linear(const LinearArgs& a) {
  const int64_t group = rows_per_pass(a.x_stride, kMaxRows);
  for (int64_t group_begin = 0; group_begin < a.m; group_begin += group) {
    const int64_t group_end = group_begin + group < a.m ? group_begin + group : a.m;
    for (int64_t p = a.tile_begin; p < a.tile_end; ++p) {
      const uint8_t* panel = a.w + static_cast<size_t>(p) * a.panel_bytes;
      int rows = 0;
      for (int64_t row = group_begin; row < group_end; row += rows) {
        rows = next_rows(group_end - row);
        float* y = a.y + row * a.y_stride + p * kLanes;
        for (int r = 0; r < rows; ++r) __builtin_prefetch(y + r * a.y_stride, 1);
        F sum[kMaxRows];
        const size_t ahead =
            a.m == 1 ? kOneRowAhead
                     : fetch_ahead(a.panel_bytes, row == group_begin, row + rows == group_end);
        run_tile<Q>(rows, panel, a.x + static_cast<size_t>(row) * a.x_stride, a.x_stride,
                    a.k / kBlock, ahead, sum);
        for (int r = 0; r < rows; ++r)
          write_out(sum[r], y + r * a.y_stride, a.n - p * kLanes, a.add);
      }
    }
  }
}

}  // namespace

const Int8Kernels kInt8 = {linear<Q8_0>, linear<Q4_0>, linear<Q4_1>, linear<Q5_0>,
                           linear<Q5_1>, linear<Q4_K>, linear<Q5_K>, linear<Q6_K>};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS

#endif
