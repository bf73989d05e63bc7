// Compiled once per instruction set; avx512vnni uses avx512's. What V4.1's linear operations take
// and what stands between them: rows in operand form, through the FP8 quantiser or not, and SwiGLU.
#include "kernels/v41_linear_kernels.h"

// clang-format off: the other builds on simd16.inl
#include "kernels/simd16.inl"
#include "kernels/v41_operand.inl"
// clang-format on

#if DEEPMINT_ISA_LEVEL != 3
namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

// Biased exponent of the scale of a block: the smallest power of two that is >= amax / 448.
DM_INLINE uint32_t scale_exponent(uint32_t largest_bits) {
  const float amax = float_of(largest_bits) < 1e-4f ? 1e-4f : float_of(largest_bits);
  const uint32_t quotient = bits_of(amax / 448.0f);
  return (quotient >> 23) + ((quotient & 0x7FFFFFu) != 0 ? 1 : 0);
}

// The unit of E4M3 at a magnitude is 2^(exponent - 3), at least 2^-9; adding and taking away an
// anchor of 1.5 · 2^23 units rounds to it, ties to even. A block that holds a NaN or an infinity
// has no scale and becomes NaN.
#if DEEPMINT_ISA_LEVEL >= 2
DM_INLINE __m512 round_e4m3(__m512 x, __m512 inverse, __m512 scale) {
  const __m512 v = _mm512_mul_ps(x, inverse);
  const __m512i exponent =
      _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7F800000)),
                       _mm512_set1_epi32(121 << 23));
  const __m512 anchor =
      _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32((20 << 23) | 0x400000)));
  return _mm512_mul_ps(_mm512_sub_ps(_mm512_add_ps(v, anchor), anchor), scale);
}
DM_INLINE void quantise_block(F16& a, F16& b) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i both = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a.v), magnitude),
                                        _mm512_and_si512(_mm512_castps_si512(b.v), magnitude));
  const uint32_t largest = _mm512_reduce_max_epu32(both);
  if (largest >= 0x7F800000u) {
    a = b = set1(__builtin_nanf(""));
    return;
  }
  const uint32_t e = scale_exponent(largest);
  const __m512 scale = set1(float_of(e << 23)).v, inverse = set1(float_of((254 - e) << 23)).v;
  a.v = round_e4m3(a.v, inverse, scale);
  b.v = round_e4m3(b.v, inverse, scale);
}
#if DEEPMINT_ISA_LEVEL >= 4
// The upper halves of a and b, rounded to nearest even, as 32 words.
DM_INLINE __m512i words_of(__m512 a, __m512 b, __m512i order) {
  const auto rounded = [](__m512 x) __attribute__((always_inline)) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  };
  return _mm512_permutex2var_epi16(rounded(a), order, rounded(b));
}
DM_INLINE __m512i ordered_words(F16 a, F16 b, bool even_first) {
  alignas(64) static constexpr uint16_t kOrders[2][32] = {
      {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
       33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63},
      {1, 5, 9,  13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61,
       3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63}};
  return words_of(a.v, b.v, _mm512_load_si512(kOrders[even_first ? 1 : 0]));
}
#else
DM_INLINE void store_block(F16 a, F16 b, bool even_first, uint8_t* out) {
  if (even_first) {
    const __m512i lanes =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(lanes, _mm512_set1_epi32(1));
    const F16 first = {_mm512_permutex2var_ps(a.v, lanes, b.v)};
    b.v = _mm512_permutex2var_ps(a.v, odd, b.v);
    a = first;
  }
  store_operand(out, {a, b});
}
#endif
DM_INLINE void prepare_block(const float* x, bool quantise, bool even_first, uint8_t* out) {
  F16 a = load(x), b = load(x + 16);
  if (quantise) quantise_block(a, b);
#if DEEPMINT_ISA_LEVEL >= 4
  _mm512_store_si512(out, ordered_words(a, b, even_first));
#else
  store_block(a, b, even_first, out);
#endif
}
#else
#if DEEPMINT_ISA_LEVEL == 1
constexpr int kLaneOrder[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
#else
constexpr int kLaneOrder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif
// Loops over the 32 values of a block; the compiler makes registers of them.
DM_INLINE void prepare_block(const float* x, bool quantise, bool even_first, uint8_t* out) {
  alignas(64) float v[32];
  for (int i = 0; i < 32; ++i) v[i] = x[i];
  if (quantise) {
    uint32_t largest = 0;
    for (int i = 0; i < 32; ++i) {
      const uint32_t magnitude = bits_of(v[i]) & 0x7FFFFFFFu;
      largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7F800000u) {
      for (int i = 0; i < 32; ++i) v[i] = __builtin_nanf("");
    } else {
      const uint32_t e = scale_exponent(largest);
      const float scale = float_of(e << 23), inverse = float_of((254 - e) << 23);
      for (int i = 0; i < 32; ++i) {
        const float value = v[i] * inverse;
        uint32_t exponent = bits_of(value) & 0x7F800000u;
        exponent = exponent < (121u << 23) ? 121u << 23 : exponent;
        const float anchor = float_of(exponent + ((20u << 23) | 0x400000u));
        v[i] = ((value + anchor) - anchor) * scale;
      }
    }
  }
  auto* values = reinterpret_cast<float*>(out);
  for (int i = 0; i < 16; ++i) {
    const int lane = kLaneOrder[i];
    values[i] = v[even_first ? 2 * lane : lane];
    values[16 + i] = v[even_first ? 2 * lane + 1 : 16 + lane];
  }
}
#endif

void prepare(const float* x, int64_t k, bool quantise, V41Order order, uint8_t* out) {
  const bool even_first = order == V41Order::kEvenFirst;
  int64_t at = 0;
  for (; at + kV41Step <= k; at += kV41Step, out += kOperandStep)
    prepare_block(x + at, quantise, even_first, out);
  if (at < k) {
    alignas(64) float rest[32] = {};
    for (int i = 0; at + i < k; ++i) rest[i] = x[at + i];
    prepare_block(rest, quantise, even_first, out);
    at += kV41Step;
    out += kOperandStep;
  }
#if DEEPMINT_ISA_LEVEL >= 4
  if (order == V41Order::kInterleaved) {
    // The order in which load_pair leaves the codes; 32 zeros make up a whole group.
    if (at % 64 != 0) _mm512_store_si512(out, _mm512_setzero_si512());
    for (; at > 0; at -= 64) {
      out -= at % 64 != 0 ? kOperandStep : 2 * kOperandStep;
      if (at % 64 != 0) at += kV41Step;
      const __m512i a = _mm512_load_si512(out), b = _mm512_load_si512(out + kOperandStep);
      _mm512_store_si512(out, _mm512_shuffle_i64x2(a, b, 0x88));
      _mm512_store_si512(out + kOperandStep, _mm512_shuffle_i64x2(a, b, 0xDD));
    }
  }
#endif
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

const V41ActivationKernels kV41Activations = {prepare, swiglu};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
#endif
