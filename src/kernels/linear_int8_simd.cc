// Block-quantised weights x int8 activations; compiled once per instruction set.
// docs/kernels/linear.md has the formulas.
//
// A panel of 16 outputs fills the lanes; k runs in blocks of 32, ascending. Per block, output and
// row:
//   acc = fma(float(integer dot), d_w * d_x, acc)   and, for types with a minimum,   acc = fma(m_w,
//   s_x, acc)
// The integer dot is exact on every instruction set, so its own order is free; the f32 order is the
// one above, whatever the number of rows, panels or threads.
//
// Few rows read the packed panels as they are. More rows first expand some blocks of a panel to
// bytes and f32 scales in a buffer that stays in the first-level cache, and pass it for all rows:
// the same operations on the same values.
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
  static constexpr bool kSigned = kForm == Form::kOffset128;
  struct Weights {
    __m512i magnitude;
    __mmask64 negative;
  };
  static DEEPMINT_INLINE Weights prepare(B w) {
    if constexpr (!kSigned) return {w.v, 0};
    const __m512i value = _mm512_xor_si512(w.v, _mm512_set1_epi8(-128));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
  }
  __m512i sum, words;
  DEEPMINT_INLINE void start(I init) { sum = init.v; }
  DEEPMINT_INLINE void step(int index, int last, Weights w, B x) {
    __m512i xv = x.v;
    if constexpr (kSigned) xv = _mm512_mask_sub_epi8(xv, w.negative, _mm512_setzero_si512(), xv);
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
  static constexpr bool kSigned = kForm == Form::kOffset128;
  struct Weights {
    B magnitude, value;
  };
  static DEEPMINT_INLINE Weights prepare(B w) {
    if constexpr (!kSigned) return {w, w};
    const __m256i flip = _mm256_set1_epi8(-128);
    const B value = {_mm256_xor_si256(w.lo, flip), _mm256_xor_si256(w.hi, flip)};
    return {{_mm256_abs_epi8(value.lo), _mm256_abs_epi8(value.hi)}, value};
  }
  I sum, words;
  DEEPMINT_INLINE void start(I init) { sum = init; }
  DEEPMINT_INLINE void step(int index, int last, Weights w, B x) {
    if constexpr (kSigned)
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

// A block of a panel expanded by expand(): scales in f32, quants in bytes.
struct ExpandedBlock {
  uint8_t q[kByteQuants];
  float d[kLanes];
  float m[kLanes];  // or the integer factor of the low half
  int32_t high[kLanes];
};
template <Form kFormOf>
struct Expanded {
  static constexpr Form kForm = kFormOf;
  static DEEPMINT_INLINE const ExpandedBlock* block(const uint8_t* panel, int64_t b) {
    return reinterpret_cast<const ExpandedBlock*>(panel) + b;
  }
  static DEEPMINT_INLINE Scales scales(const uint8_t* panel, int64_t b) {
    const ExpandedBlock* e = block(panel, b);
    if constexpr (has_min(kForm))
      return {.d = f_load(e->d), .m = f_load(e->m), .low = i_zero(), .high = i_zero()};
    if constexpr (kForm == Form::kHalves63)
      return {.d = f_load(e->d), .m = f_zero(), .low = i_load(e->m), .high = i_load(e->high)};
    return {.d = f_load(e->d), .m = f_zero(), .low = i_zero(), .high = i_zero()};
  }
  static DEEPMINT_INLINE const uint8_t* quants(const uint8_t* panel, int64_t b) {
    return block(panel, b)->q;
  }
  template <int kStep>
  static DEEPMINT_INLINE void unpack(const uint8_t* q, B& low, B& high) {
    Q8_0::unpack<kStep>(q, low, high);
  }
};

template <class Q, int kStep>
DEEPMINT_INLINE void expand_step(const uint8_t* q, ExpandedBlock* out) {
  B low, high;
  Q::template unpack<kStep>(q, low, high);
  b_store(out->q + 64 * kStep, low);
  b_store(out->q + 64 * (kStep + 4), high);
}
template <class Q>
DEEPMINT_INLINE void expand(const uint8_t* panel, int64_t b, ExpandedBlock* out) {
  const Scales scales = Q::scales(panel, b);
  f_store(out->d, scales.d);
  if constexpr (has_min(Q::kForm)) f_store(out->m, scales.m);
  if constexpr (Q::kForm == Form::kHalves63) {
    i_store(out->m, scales.low);
    i_store(out->high, scales.high);
  }
  const uint8_t* q = Q::quants(panel, b);
  expand_step<Q, 0>(q, out);
  expand_step<Q, 1>(q, out);
  expand_step<Q, 2>(q, out);
  expand_step<Q, 3>(q, out);
}

// One tile: kRows rows x kPanels panels, blocks [begin, end), sums continued in acc
// [kRows][kPanels][16].
template <class Q, int kRows, int kPanels>
struct Tile {
  static constexpr Form kForm = Q::kForm;
  static constexpr bool kHalves = kForm == Form::kHalves63;
  Dot<kForm> low[kRows][kPanels], high[kRows][kPanels];  // one sum for both unless kHalves

  template <int kStep>
  DEEPMINT_INLINE void step(const uint8_t* const (&q)[kPanels], const ActBlock* const (&x)[kRows]) {
    typename Dot<kForm>::Weights wl[kPanels], wh[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      B l, h;
      Q::template unpack<kStep>(q[p], l, h);
      wl[p] = Dot<kForm>::prepare(l);
      wh[p] = Dot<kForm>::prepare(h);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const B xl = b_dword(x[r]->q + 4 * kStep), xh = b_dword(x[r]->q + 16 + 4 * kStep);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        if constexpr (kHalves) {
          low[r][p].step(kStep, 3, wl[p], xl);
          high[r][p].step(kStep, 3, wh[p], xh);
        } else {
          low[r][p].step(2 * kStep, 7, wl[p], xl);
          low[r][p].step(2 * kStep + 1, 7, wh[p], xh);
        }
      }
    }
  }

  static void run(const uint8_t* w, size_t panel_stride, const uint8_t* x, size_t x_stride,
                  int64_t blocks, bool first, float* acc) {
    F sum[kRows][kPanels];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p)
        sum[r][p] = first ? f_zero() : f_load(acc + (r * kPanels + p) * kLanes);
    for (int64_t b = 0; b < blocks; ++b) {
      Tile t;
      const uint8_t* q[kPanels];
      const ActBlock* xb[kRows];
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p)
        q[p] = Q::quants(w + static_cast<size_t>(p) * panel_stride, b);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        xb[r] = reinterpret_cast<const ActBlock*>(x + static_cast<size_t>(r) * x_stride) + b;
#pragma GCC unroll 4
        for (int p = 0; p < kPanels; ++p) {
          if constexpr (has_min(kForm)) {
            t.low[r][p].start(i_zero());
          } else if constexpr (kHalves) {
            const I above = i_shl<5>(i_set1(xb[r]->neg_sum_high));
            t.high[r][p].start(above);
            t.low[r][p].start(i_sub(i_shl<5>(i_set1(xb[r]->neg_sum)), above));
          } else if constexpr (kForm == Form::kOffset128 &&
                               (DEEPMINT_ISA_LEVEL == 1 || DEEPMINT_ISA_LEVEL == 2)) {
            t.low[r][p].start(i_zero());  // these take the offset off the weights themselves
          } else {
            t.low[r][p].start(i_shl<offset_bits(kForm)>(i_set1(xb[r]->neg_sum)));
          }
        }
      }
      t.template step<0>(q, xb);
      t.template step<1>(q, xb);
      t.template step<2>(q, xb);
      t.template step<3>(q, xb);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const Scales scales = Q::scales(w + static_cast<size_t>(p) * panel_stride, b);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          I dot = t.low[r][p].finish();
          if constexpr (kHalves)  // at most 2 * 16 * 32 * 127 * 128 < 2^24: exact in f32 too
            dot = i_add(i_mul(scales.low, dot), i_mul(scales.high, t.high[r][p].finish()));
          sum[r][p] = f_fma(f_from(dot), f_mul(scales.d, f_set1(xb[r]->d)), sum[r][p]);
          if constexpr (has_min(kForm)) sum[r][p] = f_fma(scales.m, f_set1(xb[r]->s), sum[r][p]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) f_store(acc + (r * kPanels + p) * kLanes, sum[r][p]);
  }
};

// y[0 … count) = acc, or += acc.
DEEPMINT_INLINE void write_out(const float* acc, float* y, int64_t count, bool add) {
  if (count >= kLanes) {
    f_store(y, add ? f_add(f_load(y), f_load(acc)) : f_load(acc));
    return;
  }
  for (int64_t i = 0; i < count; ++i) y[i] = add ? y[i] + acc[i] : acc[i];
}

#if DEEPMINT_ISA_LEVEL >= 2
constexpr int kDirectRows = 4;
constexpr int kMaxRows = 12;
#elif DEEPMINT_ISA_LEVEL == 1
constexpr int kDirectRows = 2;
constexpr int kMaxRows = 2;
#else
constexpr int kDirectRows = 1;
constexpr int kMaxRows = 1;
#endif
// Rows of the next tile when `left` are left: few kinds of tiles, none of them much smaller than
// the others.
constexpr int next_rows(int64_t left) {
  if (left >= kMaxRows && left != kMaxRows + 1 && left != kMaxRows + 2) return kMaxRows;
  if (left >= 8 && kMaxRows >= 8) return 8;
  if (left >= 6 && kMaxRows >= 6) return 6;
  if (left >= kMaxRows) return kMaxRows;
  return left >= 4 ? 4 : static_cast<int>(left);
}

template <class Q>
DEEPMINT_INLINE void run_tile(int rows, const uint8_t* w, const uint8_t* x, size_t x_stride,
                              int64_t blocks, bool first, float* acc) {
  switch (rows) {
#if DEEPMINT_ISA_LEVEL >= 2
    case 12:
      return Tile<Q, 12, 1>::run(w, 0, x, x_stride, blocks, first, acc);
    case 8:
      return Tile<Q, 8, 1>::run(w, 0, x, x_stride, blocks, first, acc);
    case 6:
      return Tile<Q, 6, 1>::run(w, 0, x, x_stride, blocks, first, acc);
    case 4:
      return Tile<Q, 4, 1>::run(w, 0, x, x_stride, blocks, first, acc);
    case 3:
      return Tile<Q, 3, 1>::run(w, 0, x, x_stride, blocks, first, acc);
#endif
#if DEEPMINT_ISA_LEVEL >= 1
    case 2:
      return Tile<Q, 2, 1>::run(w, 0, x, x_stride, blocks, first, acc);
#endif
    default:
      return Tile<Q, 1, 1>::run(w, 0, x, x_stride, blocks, first, acc);
  }
}

template <class Q>
void direct(const LinearArgs& a) {
  alignas(64) float acc[kDirectRows * kLanes];
  for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
    const uint8_t* panel = a.w + static_cast<size_t>(tile) * a.panel_bytes;
    int64_t rows = 0;
    for (int64_t row = 0; row < a.m; row += rows) {
      rows = a.m - row < kDirectRows ? a.m - row : kDirectRows;
      const uint8_t* x = a.x + static_cast<size_t>(row) * a.x_stride;
      switch (rows) {
#if DEEPMINT_ISA_LEVEL >= 2
        case 4:
          Tile<Q, 4, 1>::run(panel, 0, x, a.x_stride, a.k / kBlock, true, acc);
          break;
        case 3:
          Tile<Q, 3, 1>::run(panel, 0, x, a.x_stride, a.k / kBlock, true, acc);
          break;
#endif
#if DEEPMINT_ISA_LEVEL >= 1
        case 2:
          Tile<Q, 2, 1>::run(panel, 0, x, a.x_stride, a.k / kBlock, true, acc);
          break;
#endif
        default:
          Tile<Q, 1, 1>::run(panel, 0, x, a.x_stride, a.k / kBlock, true, acc);
          break;
      }
      for (int64_t r = 0; r < rows; ++r)
        write_out(acc + r * kLanes, a.y + (row + r) * a.y_stride + tile * kLanes,
                  a.n - tile * kLanes, a.add);
    }
  }
}

constexpr int64_t kChunkBlocks = 32;  // blocks of a panel expanded at a time: 22 KiB
constexpr int64_t kChunkRows = 120;   // rows that pass one expanded chunk

template <class Q>
void expanded(const LinearArgs& a) {
  alignas(64) ExpandedBlock blocks[kChunkBlocks];
  alignas(64) float acc[kChunkRows * kLanes];
  const int64_t total = a.k / kBlock;
  for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
    const uint8_t* panel = a.w + static_cast<size_t>(tile) * a.panel_bytes;
    for (int64_t row_begin = 0; row_begin < a.m; row_begin += kChunkRows) {
      const int64_t row_end = row_begin + kChunkRows < a.m ? row_begin + kChunkRows : a.m;
      for (int64_t begin = 0; begin < total; begin += kChunkBlocks) {
        const int64_t count = begin + kChunkBlocks < total ? kChunkBlocks : total - begin;
        // A chunk that holds the whole panel serves every group of rows.
        if (total > kChunkBlocks || row_begin == 0)
          for (int64_t b = 0; b < count; ++b) expand<Q>(panel, begin + b, blocks + b);
        int rows = 0;
        for (int64_t row = row_begin; row < row_end; row += rows) {
          rows = next_rows(row_end - row);
          const uint8_t* x = a.x + static_cast<size_t>(row) * a.x_stride +
                             static_cast<size_t>(begin) * sizeof(ActBlock);
          run_tile<Expanded<Q::kForm>>(rows, reinterpret_cast<const uint8_t*>(blocks), x,
                                       a.x_stride, count, begin == 0,
                                       acc + (row - row_begin) * kLanes);
        }
      }
      for (int64_t row = row_begin; row < row_end; ++row)
        write_out(acc + (row - row_begin) * kLanes, a.y + row * a.y_stride + tile * kLanes,
                  a.n - tile * kLanes, a.add);
    }
  }
}

template <class Q>
void linear(const LinearArgs& a) {
  if (a.m <= kDirectRows || kMaxRows == kDirectRows) {
    direct<Q>(a);
  } else {
    expanded<Q>(a);
  }
}

}  // namespace

const Int8Kernels kInt8 = {linear<Q8_0>, linear<Q4_0>, linear<Q4_1>, linear<Q5_0>,
                           linear<Q5_1>, linear<Q4_K>, linear<Q5_K>, linear<Q6_K>};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS

#endif
