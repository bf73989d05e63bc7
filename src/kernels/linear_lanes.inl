// Sixteen 32-bit lanes, or 64 bytes, for whichever instruction set this is compiled for: one
// 512-bit register, two of 256 or four of 128. Included by per-ISA sources only, inside nothing;
// everything here is in DEEPMINT_ISA_NS.
//
// fma() is one rounding from AVX2 on, and a product and a sum with one rounding each below it: that
// is the difference between the classes "fma" and "x86-64".
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define DEEPMINT_INLINE inline __attribute__((always_inline))

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

DEEPMINT_INLINE int32_t load_i32(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

#if DEEPMINT_ISA_LEVEL >= 2

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct B {
  __m512i v;
};

DEEPMINT_INLINE F f_zero() { return {_mm512_setzero_ps()}; }
DEEPMINT_INLINE F f_load(const void* p) { return {_mm512_loadu_ps(p)}; }
DEEPMINT_INLINE void f_store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
DEEPMINT_INLINE F f_set1(float a) { return {_mm512_set1_ps(a)}; }
DEEPMINT_INLINE F f_load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
DEEPMINT_INLINE F f_add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
DEEPMINT_INLINE F f_mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
DEEPMINT_INLINE F f_div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
DEEPMINT_INLINE F f_fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DEEPMINT_INLINE F f_from(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
DEEPMINT_INLINE F f_bits(I a) { return {_mm512_castsi512_ps(a.v)}; }
DEEPMINT_INLINE I i_bits(F a) { return {_mm512_castps_si512(a.v)}; }
DEEPMINT_INLINE I i_round(F a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, ties to even
DEEPMINT_INLINE I i_zero() { return {_mm512_setzero_si512()}; }
DEEPMINT_INLINE I i_load(const void* p) { return {_mm512_loadu_si512(p)}; }
DEEPMINT_INLINE void i_store(void* p, I a) { _mm512_storeu_si512(p, a.v); }
DEEPMINT_INLINE I i_set1(int32_t a) { return {_mm512_set1_epi32(a)}; }
DEEPMINT_INLINE I i_load_u8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
DEEPMINT_INLINE I i_load_s8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
DEEPMINT_INLINE I i_add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
DEEPMINT_INLINE I i_sub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
DEEPMINT_INLINE I i_mul(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
DEEPMINT_INLINE I i_and(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
DEEPMINT_INLINE I i_max(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
DEEPMINT_INLINE I i_min(I a, I b) { return {_mm512_min_epi32(a.v, b.v)}; }
template <int kBits>
DEEPMINT_INLINE I i_shl(I a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
DEEPMINT_INLINE int32_t i_reduce_max(I a) { return _mm512_reduce_max_epi32(a.v); }
DEEPMINT_INLINE int32_t i_reduce_add(I a) { return _mm512_reduce_add_epi32(a.v); }
DEEPMINT_INLINE void i_store_s8(int8_t* p, I a) {  // lanes are within int8
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

DEEPMINT_INLINE B b_load(const void* p) { return {_mm512_loadu_si512(p)}; }
DEEPMINT_INLINE void b_store(void* p, B a) { _mm512_storeu_si512(p, a.v); }
DEEPMINT_INLINE B b_set1(int a) { return {_mm512_set1_epi8(static_cast<char>(a))}; }
DEEPMINT_INLINE B b_dword(const void* p) { return {_mm512_set1_epi32(load_i32(p))}; }
DEEPMINT_INLINE B b_and(B a, B b) { return {_mm512_and_si512(a.v, b.v)}; }
DEEPMINT_INLINE B b_or(B a, B b) { return {_mm512_or_si512(a.v, b.v)}; }
// Shifts of 16-bit units: callers mask away what crossed a byte.
template <int kLeft>
DEEPMINT_INLINE B b_shift(B a) {
  if constexpr (kLeft > 0) return {_mm512_slli_epi16(a.v, kLeft)};
  if constexpr (kLeft < 0) return {_mm512_srli_epi16(a.v, -kLeft)};
  return a;
}

#elif DEEPMINT_ISA_LEVEL == 1

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
struct B {
  __m256i lo, hi;
};

DEEPMINT_INLINE F f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
DEEPMINT_INLINE F f_load(const void* p) {
  const auto* f = static_cast<const float*>(p);
  return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
}
DEEPMINT_INLINE void f_store(float* p, F a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
DEEPMINT_INLINE F f_set1(float a) {
  const __m256 v = _mm256_set1_ps(a);
  return {v, v};
}
DEEPMINT_INLINE F f_load_f16(const void* p) {
  const auto* h = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
DEEPMINT_INLINE F f_add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
DEEPMINT_INLINE F f_mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
DEEPMINT_INLINE F f_div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
DEEPMINT_INLINE F f_fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
DEEPMINT_INLINE F f_from(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
DEEPMINT_INLINE F f_bits(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
DEEPMINT_INLINE I i_bits(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
DEEPMINT_INLINE I i_round(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
DEEPMINT_INLINE I i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
DEEPMINT_INLINE I i_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
DEEPMINT_INLINE void i_store(void* p, I a) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
}
DEEPMINT_INLINE I i_set1(int32_t a) {
  const __m256i v = _mm256_set1_epi32(a);
  return {v, v};
}
DEEPMINT_INLINE I i_load_u8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
DEEPMINT_INLINE I i_load_s8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
DEEPMINT_INLINE I i_add(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
DEEPMINT_INLINE I i_sub(I a, I b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
DEEPMINT_INLINE I i_mul(I a, I b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
DEEPMINT_INLINE I i_and(I a, I b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
DEEPMINT_INLINE I i_max(I a, I b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
DEEPMINT_INLINE I i_min(I a, I b) {
  return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
template <int kBits>
DEEPMINT_INLINE I i_shl(I a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
DEEPMINT_INLINE int32_t i_reduce_max(I a) {
  const __m256i m = _mm256_max_epi32(a.lo, a.hi);
  __m128i v = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}
DEEPMINT_INLINE int32_t i_reduce_add(I a) {
  const __m256i m = _mm256_add_epi32(a.lo, a.hi);
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}
DEEPMINT_INLINE void i_store_s8(int8_t* p, I a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

DEEPMINT_INLINE B b_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
DEEPMINT_INLINE void b_store(void* p, B a) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, a.lo);
  _mm256_storeu_si256(v + 1, a.hi);
}
DEEPMINT_INLINE B b_set1(int a) {
  const __m256i v = _mm256_set1_epi8(static_cast<char>(a));
  return {v, v};
}
DEEPMINT_INLINE B b_dword(const void* p) {
  const __m256i v = _mm256_set1_epi32(load_i32(p));
  return {v, v};
}
DEEPMINT_INLINE B b_and(B a, B b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
DEEPMINT_INLINE B b_or(B a, B b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int kLeft>
DEEPMINT_INLINE B b_shift(B a) {
  if constexpr (kLeft > 0) return {_mm256_slli_epi16(a.lo, kLeft), _mm256_slli_epi16(a.hi, kLeft)};
  if constexpr (kLeft < 0)
    return {_mm256_srli_epi16(a.lo, -kLeft), _mm256_srli_epi16(a.hi, -kLeft)};
  return a;
}

#else  // SSE2

struct F {
  __m128 v[4];
};
struct I {
  __m128i v[4];
};
struct B {
  __m128i v[4];
};

#define DEEPMINT_EACH(Type, expression)                                    \
  Type r;                                                                  \
  _Pragma("GCC unroll 4") for (int q = 0; q < 4; ++q) r.v[q] = expression; \
  return r

DEEPMINT_INLINE F f_zero() { DEEPMINT_EACH(F, _mm_setzero_ps()); }
DEEPMINT_INLINE F f_load(const void* p) {
  DEEPMINT_EACH(F, _mm_loadu_ps(static_cast<const float*>(p) + 4 * q));
}
DEEPMINT_INLINE void f_store(float* p, F a) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) _mm_storeu_ps(p + 4 * q, a.v[q]);
}
DEEPMINT_INLINE F f_set1(float a) { DEEPMINT_EACH(F, _mm_set1_ps(a)); }
DEEPMINT_INLINE __m128 f16_to_f32(__m128i halves) {  // four, zero-extended to 32 bits
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(halves, _mm_set1_epi32(0x8000)), 16);
  const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(halves, _mm_set1_epi32(0x7fff)), 13);
  // The exponent is too small by 127 - 15; the product is exact, also for subnormal halves.
  const __m128 scaled = _mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112F));
  const __m128i special = _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x0f7fffff)),
                                        _mm_set1_epi32(0x7f800000));
  return _mm_or_ps(scaled, _mm_castsi128_ps(_mm_or_si128(sign, special)));
}
DEEPMINT_INLINE F f_load_f16(const void* p) {
  const auto* h = static_cast<const __m128i*>(p);
  const __m128i a = _mm_loadu_si128(h), b = _mm_loadu_si128(h + 1), zero = _mm_setzero_si128();
  return {{f16_to_f32(_mm_unpacklo_epi16(a, zero)), f16_to_f32(_mm_unpackhi_epi16(a, zero)),
           f16_to_f32(_mm_unpacklo_epi16(b, zero)), f16_to_f32(_mm_unpackhi_epi16(b, zero))}};
}
DEEPMINT_INLINE F f_add(F a, F b) { DEEPMINT_EACH(F, _mm_add_ps(a.v[q], b.v[q])); }
DEEPMINT_INLINE F f_mul(F a, F b) { DEEPMINT_EACH(F, _mm_mul_ps(a.v[q], b.v[q])); }
DEEPMINT_INLINE F f_div(F a, F b) { DEEPMINT_EACH(F, _mm_div_ps(a.v[q], b.v[q])); }
DEEPMINT_INLINE F f_fma(F a, F b, F c) {
  DEEPMINT_EACH(F, _mm_add_ps(_mm_mul_ps(a.v[q], b.v[q]), c.v[q]));
}
DEEPMINT_INLINE F f_from(I a) { DEEPMINT_EACH(F, _mm_cvtepi32_ps(a.v[q])); }
DEEPMINT_INLINE F f_bits(I a) { DEEPMINT_EACH(F, _mm_castsi128_ps(a.v[q])); }
DEEPMINT_INLINE I i_bits(F a) { DEEPMINT_EACH(I, _mm_castps_si128(a.v[q])); }
DEEPMINT_INLINE I i_round(F a) { DEEPMINT_EACH(I, _mm_cvtps_epi32(a.v[q])); }
DEEPMINT_INLINE I i_zero() { DEEPMINT_EACH(I, _mm_setzero_si128()); }
DEEPMINT_INLINE I i_load(const void* p) {
  DEEPMINT_EACH(I, _mm_loadu_si128(static_cast<const __m128i*>(p) + q));
}
DEEPMINT_INLINE void i_store(void* p, I a) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) _mm_storeu_si128(static_cast<__m128i*>(p) + q, a.v[q]);
}
DEEPMINT_INLINE I i_set1(int32_t a) { DEEPMINT_EACH(I, _mm_set1_epi32(a)); }
DEEPMINT_INLINE I i_load_u8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p)), zero = _mm_setzero_si128();
  const __m128i lo = _mm_unpacklo_epi8(v, zero), hi = _mm_unpackhi_epi8(v, zero);
  return {{_mm_unpacklo_epi16(lo, zero), _mm_unpackhi_epi16(lo, zero), _mm_unpacklo_epi16(hi, zero),
           _mm_unpackhi_epi16(hi, zero)}};
}
DEEPMINT_INLINE I i_load_s8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  const __m128i lo = _mm_unpacklo_epi8(v, v), hi = _mm_unpackhi_epi8(v, v);
  return {{_mm_srai_epi32(_mm_unpacklo_epi16(lo, lo), 24),
           _mm_srai_epi32(_mm_unpackhi_epi16(lo, lo), 24),
           _mm_srai_epi32(_mm_unpacklo_epi16(hi, hi), 24),
           _mm_srai_epi32(_mm_unpackhi_epi16(hi, hi), 24)}};
}
DEEPMINT_INLINE I i_add(I a, I b) { DEEPMINT_EACH(I, _mm_add_epi32(a.v[q], b.v[q])); }
DEEPMINT_INLINE I i_sub(I a, I b) { DEEPMINT_EACH(I, _mm_sub_epi32(a.v[q], b.v[q])); }
DEEPMINT_INLINE __m128i mullo32(__m128i a, __m128i b) {
  const __m128i even = _mm_mul_epu32(a, b);
  const __m128i odd = _mm_mul_epu32(_mm_srli_si128(a, 4), _mm_srli_si128(b, 4));
  return _mm_unpacklo_epi32(_mm_shuffle_epi32(even, 0x08), _mm_shuffle_epi32(odd, 0x08));
}
DEEPMINT_INLINE I i_mul(I a, I b) { DEEPMINT_EACH(I, mullo32(a.v[q], b.v[q])); }
DEEPMINT_INLINE I i_and(I a, I b) { DEEPMINT_EACH(I, _mm_and_si128(a.v[q], b.v[q])); }
DEEPMINT_INLINE __m128i max32(__m128i a, __m128i b) {
  const __m128i greater = _mm_cmpgt_epi32(a, b);
  return _mm_or_si128(_mm_and_si128(greater, a), _mm_andnot_si128(greater, b));
}
DEEPMINT_INLINE __m128i min32(__m128i a, __m128i b) {
  const __m128i greater = _mm_cmpgt_epi32(a, b);
  return _mm_or_si128(_mm_and_si128(greater, b), _mm_andnot_si128(greater, a));
}
DEEPMINT_INLINE I i_max(I a, I b) { DEEPMINT_EACH(I, max32(a.v[q], b.v[q])); }
DEEPMINT_INLINE I i_min(I a, I b) { DEEPMINT_EACH(I, min32(a.v[q], b.v[q])); }
template <int kBits>
DEEPMINT_INLINE I i_shl(I a) {
  DEEPMINT_EACH(I, _mm_slli_epi32(a.v[q], kBits));
}
DEEPMINT_INLINE int32_t i_reduce_max(I a) {
  __m128i v = max32(max32(a.v[0], a.v[1]), max32(a.v[2], a.v[3]));
  v = max32(v, _mm_shuffle_epi32(v, 0x4e));
  v = max32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}
DEEPMINT_INLINE int32_t i_reduce_add(I a) {
  __m128i v = _mm_add_epi32(_mm_add_epi32(a.v[0], a.v[1]), _mm_add_epi32(a.v[2], a.v[3]));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}
DEEPMINT_INLINE void i_store_s8(int8_t* p, I a) {
  const __m128i bytes =
      _mm_packs_epi16(_mm_packs_epi32(a.v[0], a.v[1]), _mm_packs_epi32(a.v[2], a.v[3]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

DEEPMINT_INLINE B b_load(const void* p) {
  DEEPMINT_EACH(B, _mm_loadu_si128(static_cast<const __m128i*>(p) + q));
}
DEEPMINT_INLINE void b_store(void* p, B a) {
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) _mm_storeu_si128(static_cast<__m128i*>(p) + q, a.v[q]);
}
DEEPMINT_INLINE B b_set1(int a) { DEEPMINT_EACH(B, _mm_set1_epi8(static_cast<char>(a))); }
DEEPMINT_INLINE B b_dword(const void* p) { DEEPMINT_EACH(B, _mm_set1_epi32(load_i32(p))); }
DEEPMINT_INLINE B b_and(B a, B b) { DEEPMINT_EACH(B, _mm_and_si128(a.v[q], b.v[q])); }
DEEPMINT_INLINE B b_or(B a, B b) { DEEPMINT_EACH(B, _mm_or_si128(a.v[q], b.v[q])); }
template <int kLeft>
DEEPMINT_INLINE B b_shift(B a) {
  if constexpr (kLeft > 0) {
    DEEPMINT_EACH(B, _mm_slli_epi16(a.v[q], kLeft));
  }
  if constexpr (kLeft < 0) {
    DEEPMINT_EACH(B, _mm_srli_epi16(a.v[q], -kLeft));
  }
  return a;
}

#undef DEEPMINT_EACH
#endif

// y[0 … min(count, 16)) = product, or += product.
DEEPMINT_INLINE void write_out(F product, float* y, int64_t count, bool add) {
  if (count >= 16) {
    f_store(y, add ? f_add(f_load(y), product) : product);
    return;
  }
  alignas(64) float acc[16];
  f_store(acc, product);
  for (int64_t i = 0; i < count; ++i) y[i] = add ? y[i] + acc[i] : acc[i];
}

// How many rows pass all panels before the next rows come: their activations stay in the
// second-level cache.
DEEPMINT_INLINE int64_t rows_per_pass(size_t x_stride, int64_t tile_rows) {
  const auto fit = static_cast<int64_t>((size_t{384} << 10) / x_stride) / tile_rows * tile_rows;
  return fit > 2 * tile_rows ? fit : 2 * tile_rows;
}

// How far ahead of the weights in use the fetches into the second-level cache go. Normally the last
// rows of a panel fetch the next panel while the first-level cache feeds the arithmetic; a panel
// that is too large for that is fetched by its first rows, a little ahead of themselves. 0 fetches
// what is there already.
DEEPMINT_INLINE size_t fetch_ahead(size_t bytes, bool first, bool last) {
  if (bytes <= size_t{256} << 10) return last ? bytes : 0;
  return first ? size_t{4} << 10 : 0;
}

}  // namespace
}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
