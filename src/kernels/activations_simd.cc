// Activations in the form that products take; compiled once per instruction set. The result is the
// same on every set.
#if DEEPMINT_ISA_LEVEL <= 2

#include "kernels/linear_lanes.inl"

#include "kernels/linear_kernels.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;

// Blocks of 32: d = largest magnitude / 127, q = x / d to nearest even. Integer comparisons order
// magnitudes, NaN last.
void quantize_blocks(const float* x, int64_t blocks, ActBlock* out) {
  for (int64_t b = 0; b < blocks; ++b, x += kBlock, ++out) {
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

#if DEEPMINT_ISA_LEVEL == 2
// The fast way takes four blocks at a time, in two passes so that the long chain to the scales of
// one group overlaps with others, and multiplies by 1 / d where that cannot change a rounding: |x *
// (1 / d) - x / d| < 2e-5, so a product that is further than that from the middle between two
// integers rounds like the quotient.
constexpr int64_t kGroup = 4, kGroups = 16;
struct Scales4 {
  alignas(16) float d[kGroup], inverse[kGroup];
};

// Scales of four blocks; false when one of them is zero, tiny or not finite.
DEEPMINT_INLINE bool scale_four(const float* x, Scales4* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest[kGroup];
#pragma GCC unroll 4
  for (int b = 0; b < kGroup; ++b)
    largest[b] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * b), magnitude),
                                  _mm512_and_si512(_mm512_loadu_si512(x + 32 * b + 16), magnitude));
  const auto both = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i ab = both(largest[0], largest[1]), cd = both(largest[2], largest[3]);
  const __m512i lanes =
      _mm512_max_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half =
      _mm256_max_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
  const __m128i amax =
      _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128 d = _mm_div_ps(_mm_castsi128_ps(amax), _mm_set1_ps(127.0f));
  _mm_store_ps(out->d, d);
  _mm_store_ps(out->inverse, _mm_div_ps(_mm_set1_ps(1.0f), d));
  constexpr int32_t kSmall =
      0x12800000;  // 2^-90: 1 / d is far from overflow, d from the subnormal range
  return _mm_cmplt_epu32_mask(_mm_sub_epi32(amax, _mm_set1_epi32(kSmall)),
                              _mm_set1_epi32(kInfinityBits - kSmall)) == 15;
}

// Quants of four blocks; false, and nothing that lasts written, when a value is too close to the
// middle.
DEEPMINT_INLINE bool quantize_four(const float* x, const Scales4& scales, ActBlock* out) {
  __m512i q[2 * kGroup];
  __m512 off = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int h = 0; h < 2 * kGroup; ++h) {
    const __m512 t =
        _mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(scales.inverse[h / 2]));
    q[h] = _mm512_cvtps_epi32(t);
    off = _mm512_max_ps(off, _mm512_abs_ps(_mm512_sub_ps(t, _mm512_cvtepi32_ps(q[h]))));
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i sums[2];  // of 16 values, in every dword of a 128-bit lane
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; ++pair) {
    const __m512i* from = q + 4 * pair;
    const __m512i bytes =
        _mm512_permutexvar_epi32(order, _mm512_packs_epi16(_mm512_packs_epi32(from[0], from[1]),
                                                           _mm512_packs_epi32(from[2], from[3])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[2 * pair].q), _mm512_castsi512_si256(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[2 * pair + 1].q),
                        _mm512_extracti64x4_epi64(bytes, 1));
    __m512i sum =
        _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes), _mm512_set1_epi16(1));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    sums[pair] = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
  }
  const __m512i halves = _mm512_permutex2var_epi32(
      sums[0], _mm512_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28, 0, 0, 0, 0, 0, 0, 0, 0), sums[1]);
  const __m128i low = _mm512_castsi512_si128(halves), high = _mm512_extracti32x4_epi32(halves, 1);
  const __m128i sum = _mm_add_epi32(low, high), zero = _mm_setzero_si128();
  const __m128 d = _mm_load_ps(scales.d), s = _mm_mul_ps(d, _mm_cvtepi32_ps(sum));
  const __m128i ds_low = _mm_castps_si128(_mm_unpacklo_ps(d, s)),
                ds_high = _mm_castps_si128(_mm_unpackhi_ps(d, s));
  const __m128i neg = _mm_sub_epi32(zero, sum), neg_high = _mm_sub_epi32(zero, high);
  const __m128i n_low = _mm_unpacklo_epi32(neg, neg_high),
                n_high = _mm_unpackhi_epi32(neg, neg_high);
  const auto tail = [out](int b, __m128i value) __attribute__((always_inline)) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(&out[b].d), value);
  };
  tail(0, _mm_unpacklo_epi64(ds_low, n_low));
  tail(1, _mm_unpackhi_epi64(ds_low, n_low));
  tail(2, _mm_unpacklo_epi64(ds_high, n_high));
  tail(3, _mm_unpackhi_epi64(ds_high, n_high));
  return _mm512_cmp_ps_mask(off, _mm512_set1_ps(0.49996f), _CMP_GE_OQ) == 0;
}
#endif

void quantize(const float* x, int64_t k, ActBlock* out) {
  int64_t blocks = k / kBlock;
#if DEEPMINT_ISA_LEVEL == 2
  while (blocks >= kGroup) {
    const int64_t groups = blocks / kGroup < kGroups ? blocks / kGroup : kGroups;
    Scales4 scales[kGroups];
    bool plain[kGroups];
    for (int64_t g = 0; g < groups; ++g) plain[g] = scale_four(x + g * kGroup * kBlock, scales + g);
    for (int64_t g = 0; g < groups; ++g, x += kGroup * kBlock, out += kGroup)
      if (!plain[g] || !quantize_four(x, scales[g], out)) quantize_blocks(x, kGroup, out);
    blocks -= groups * kGroup;
  }
#endif
  quantize_blocks(x, blocks, out);
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

}  // namespace

const ActivationKernels kActivations = {quantize, to_bf16};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS

#endif
