// Sixteen float lanes on every instruction set: one 512-bit register, two of 256 bits, or four of
// 128 bits.
//
// Included only by files that deepmint_isa_sources compiles once per instruction set. Code written
// on F16 has one lane structure, so a sum over lanes meets in the same tree everywhere and avx2,
// avx512 and avx512vnni give the same bits; the x86-64 build has no FMA and rounds twice in fma().
// Included inside namespace deepmint::kernels::DEEPMINT_ISA_NS.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define DM_INLINE static inline __attribute__((always_inline))

namespace deepmint::kernels::DEEPMINT_ISA_NS {

constexpr int kLanes = 16;

DM_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
DM_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }
// The bits of x rounded to BF16, to nearest even.
DM_INLINE uint32_t rounded_bits(float x) {
  const uint32_t u = bits_of(x);
  return (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
}

#if DEEPMINT_ISA_LEVEL >= 2

struct F16 {
  __m512 v;
};
DM_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
DM_INLINE F16 set1(float x) { return {_mm512_set1_ps(x)}; }
DM_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
DM_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
DM_INLINE F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
DM_INLINE F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
DM_INLINE F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
DM_INLINE F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
DM_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// As MAXPS and MINPS: the second operand when either is NaN.
DM_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
DM_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// Lanes below n from a, the others from b. n may be outside 0..16.
DM_INLINE F16 first_n(int n, F16 a, F16 b) {
  const __mmask16 keep = n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
  return {_mm512_mask_mov_ps(b.v, keep, a.v)};
}
// 2^round(n) * p for integral n in [-126, 127] and p in [0.5, 2).
DM_INLINE F16 scale_by_power(F16 p, F16 n) {
  const __m512i e = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), e))};
}
DM_INLINE F16 round_even(F16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// b where a < limit, else a (NaN in a stays).
DM_INLINE F16 replace_below(F16 a, F16 limit, F16 x, F16 b) {
  return {_mm512_mask_mov_ps(x.v, _mm512_cmp_ps_mask(a.v, limit.v, _CMP_LT_OQ), b.v)};
}
// Sixteen 32-bit words of two BF16 each: the low halves and the high halves, as float.
DM_INLINE void load_bf16_pairs(const uint16_t* p, F16& low, F16& high) {
  const __m512i w = _mm512_loadu_si512(p);
  low.v = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  high.v =
      _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
DM_INLINE __m256 upper_plus_lower(F16 a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
DM_INLINE __m256 upper_max_lower(F16 a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif DEEPMINT_ISA_LEVEL == 1

struct F16 {
  __m256 a, b;
};
DM_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
DM_INLINE F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
DM_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
DM_INLINE void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
DM_INLINE F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
DM_INLINE F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
DM_INLINE F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
DM_INLINE F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
DM_INLINE F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
DM_INLINE F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
DM_INLINE F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
DM_INLINE __m256 lanes_below(int n, int first) {
  const __m256i lane =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
}
DM_INLINE F16 first_n(int n, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.a, x.a, lanes_below(n, 0)),
          _mm256_blendv_ps(y.b, x.b, lanes_below(n, 8))};
}
DM_INLINE __m256 scale_by_power(__m256 p, __m256 n) {
  const __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}
DM_INLINE F16 scale_by_power(F16 p, F16 n) {
  return {scale_by_power(p.a, n.a), scale_by_power(p.b, n.b)};
}
DM_INLINE F16 round_even(F16 x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
DM_INLINE F16 replace_below(F16 a, F16 limit, F16 x, F16 y) {
  return {_mm256_blendv_ps(x.a, y.a, _mm256_cmp_ps(a.a, limit.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(x.b, y.b, _mm256_cmp_ps(a.b, limit.b, _CMP_LT_OQ))};
}
// Of sixteen BF16 words those of even index, and those of odd index.
DM_INLINE __m256 even_words(__m256i w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
DM_INLINE __m256 odd_words(__m256i w) {
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(w, odd));
}
DM_INLINE void load_bf16_pairs(const uint16_t* p, F16& low, F16& high) {
  const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  low = {even_words(w0), even_words(w1)};
  high = {odd_words(w0), odd_words(w1)};
}
DM_INLINE __m256 upper_plus_lower(F16 x) { return _mm256_add_ps(x.a, x.b); }
DM_INLINE __m256 upper_max_lower(F16 x) { return _mm256_max_ps(x.a, x.b); }

#else

struct F16 {
  __m128 q[4];
};
#define DM_EACH(expression)                            \
  F16 out;                                             \
  for (int i = 0; i < 4; ++i) out.q[i] = (expression); \
  return out
DM_INLINE F16 set1(float x) { DM_EACH(_mm_set1_ps(x)); }
DM_INLINE F16 zero() { return set1(0.0f); }
DM_INLINE F16 load(const float* p) { DM_EACH(_mm_loadu_ps(p + 4 * i)); }
DM_INLINE void store(float* p, F16 a) {
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(p + 4 * i, a.q[i]);
}
DM_INLINE F16 add(F16 a, F16 b) { DM_EACH(_mm_add_ps(a.q[i], b.q[i])); }
DM_INLINE F16 sub(F16 a, F16 b) { DM_EACH(_mm_sub_ps(a.q[i], b.q[i])); }
DM_INLINE F16 mul(F16 a, F16 b) { DM_EACH(_mm_mul_ps(a.q[i], b.q[i])); }
DM_INLINE F16 div(F16 a, F16 b) { DM_EACH(_mm_div_ps(a.q[i], b.q[i])); }
DM_INLINE F16 fma(F16 a, F16 b, F16 c) { DM_EACH(_mm_add_ps(_mm_mul_ps(a.q[i], b.q[i]), c.q[i])); }
DM_INLINE F16 max(F16 a, F16 b) { DM_EACH(_mm_max_ps(a.q[i], b.q[i])); }
DM_INLINE F16 min(F16 a, F16 b) { DM_EACH(_mm_min_ps(a.q[i], b.q[i])); }
DM_INLINE __m128 blend(__m128 mask, __m128 yes, __m128 no) {
  return _mm_or_ps(_mm_and_ps(mask, yes), _mm_andnot_ps(mask, no));
}
DM_INLINE F16 first_n(int n, F16 a, F16 b) {
  const __m128i lane = _mm_setr_epi32(0, 1, 2, 3);
  DM_EACH(
      blend(_mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(n - 4 * i), lane)), a.q[i], b.q[i]));
}
DM_INLINE F16 scale_by_power(F16 p, F16 n) {
  DM_EACH(_mm_castsi128_ps(
      _mm_add_epi32(_mm_castps_si128(p.q[i]), _mm_slli_epi32(_mm_cvtps_epi32(n.q[i]), 23))));
}
// |a| < 2^31, which the clamps before it ensure. NaN becomes a number; callers carry NaN along
// another operand.
DM_INLINE F16 round_even(F16 a) { DM_EACH(_mm_cvtepi32_ps(_mm_cvtps_epi32(a.q[i]))); }
DM_INLINE F16 replace_below(F16 a, F16 limit, F16 x, F16 b) {
  DM_EACH(blend(_mm_cmplt_ps(a.q[i], limit.q[i]), b.q[i], x.q[i]));
}
DM_INLINE void load_bf16_pairs(const uint16_t* p, F16& low, F16& high) {
  for (int i = 0; i < 4; ++i) {
    const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i));
    low.q[i] = _mm_castsi128_ps(_mm_slli_epi32(w, 16));
    high.q[i] = _mm_castsi128_ps(_mm_and_si128(w, _mm_set1_epi32(static_cast<int>(0xffff0000u))));
  }
}
#undef DM_EACH

#endif

#if DEEPMINT_ISA_LEVEL >= 1
// Eight floats rounded to BF16, to nearest even.
DM_INLINE __m256i rounded_bits(__m256i s) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(s, 16), _mm256_set1_epi32(1));
  s = _mm256_add_epi32(s, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  return _mm256_and_si256(s, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
}
#endif

// Lanes i and i + 8 meet, then i and i + 4, i and i + 2, i and i + 1.
#if DEEPMINT_ISA_LEVEL >= 1
DM_INLINE float sum(F16 x) {
  const __m256 s8 = upper_plus_lower(x);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DM_INLINE float max_lane(F16 x) {
  const __m256 s8 = upper_max_lower(x);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DM_INLINE float fma_scalar(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
DM_INLINE float sum(F16 x) {
  const __m128 s4 = _mm_add_ps(_mm_add_ps(x.q[0], x.q[2]), _mm_add_ps(x.q[1], x.q[3]));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DM_INLINE float max_lane(F16 x) {
  const __m128 s4 = _mm_max_ps(_mm_max_ps(x.q[0], x.q[2]), _mm_max_ps(x.q[1], x.q[3]));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DM_INLINE float fma_scalar(float a, float b, float c) { return a * b + c; }
#endif

// The first n (1..15) lanes of memory; the others are `fill`. Touches no byte past them.
DM_INLINE F16 load_n(const float* p, int n, float fill) {
  alignas(64) float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}
DM_INLINE void store_n(float* p, int n, F16 a) {
  alignas(64) float lanes[kLanes];
  store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

// exp(x) within 1 ulp on [-87, 88], 0 below -87, exp(88) above 88, NaN for NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q the degree-4 minimax fit of the
// remainder (0.05 of half an ulp).
DM_INLINE F16 exp(F16 x) {
  const F16 c =
      max(set1(-87.0f), min(set1(88.0f), x));  // NaN stays: it is the second operand of both
  const F16 n = round_even(mul(c, set1(0x1.715476p+0f)));
  F16 r = fma(n, set1(-0x1.62e4p-1f),
              c);  // ln 2 in two parts; the first has 15 bits, so n times it is exact
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  F16 q = set1(0.0013814539415761828f);
  q = fma(q, r, set1(0.00836874544620514f));
  q = fma(q, r, set1(0.04166838899254799f));
  q = fma(q, r, set1(0.1666652113199234f));
  q = fma(q, r, set1(0.4999999403953552f));
  const F16 p = add(fma(q, mul(r, r), r), set1(1.0f));
  return replace_below(x, set1(-87.0f), scale_by_power(p, n), zero());
}

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
