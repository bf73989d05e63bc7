// Compiled once per instruction set (cmake/isa.cmake). Only the width of a vector differs: 4, 8 or
// 16 floats.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sampling/row_kernels.h"

namespace deepmint::sampling::DEEPMINT_ISA_NS {
namespace {

// ---------------------------------------------------------------- vectors of this instruction set
#if DEEPMINT_ISA_LEVEL >= 2
constexpr size_t kLanes = 16;
using VF = __m512;
using VD = __m512d;
using VI = __m512i;
inline VF load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, VF v) { _mm512_storeu_ps(p, v); }
inline VF all(float x) { return _mm512_set1_ps(x); }
inline VF max_second_if_nan(VF a, VF b) { return _mm512_max_ps(a, b); }
inline uint32_t mask_ge(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline uint32_t mask_not_less(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
inline VF keep_bits(VF v, uint32_t bits) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), all(-__builtin_inff()), v);
}
inline VF to_float(VI v) { return _mm512_cvtepi32_ps(v); }
inline VI bits_of(VF v) { return _mm512_castps_si512(v); }
inline VI all_u64(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
inline VI all_u32(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
inline VI add_u64(VI a, VI b) { return _mm512_add_epi64(a, b); }
inline VI mul_low_halves(VI a, VI b) { return _mm512_mul_epu32(a, b); }
inline VI high_half(VI a) { return _mm512_srli_epi64(a, 32); }
inline VI to_high_half(VI a) { return _mm512_slli_epi64(a, 32); }
inline VI xor3(VI a, VI b, VI c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
inline VI low_and_high(VI low,
                       VI high) {  // low half of each lane from `low`, high half from `high`
  return _mm512_mask_blend_epi32(0xAAAA, low, high);
}
inline VI half_inverted(VI a) {
  return _mm512_xor_si512(_mm512_srli_epi32(a, 1), all_u32(0x7fffffff));
}
inline VI unpack_low64(VI a, VI b) { return _mm512_unpacklo_epi64(a, b); }
inline VI unpack_high64(VI a, VI b) { return _mm512_unpackhi_epi64(a, b); }
inline void store_words(uint32_t* p, VI v) { _mm512_storeu_si512(p, v); }
// Lane order in which two unpacks leave consecutive counters: lane 2q → q, lane 2q + 1 → q + 4.
inline VI counter_lanes() { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }
inline VD load_half_as_double(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
inline void store_half(float* p, VD v) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(v)); }
inline VD all_double(double x) { return _mm512_set1_pd(x); }
inline VD max_double(VD a, VD b) { return _mm512_max_pd(a, b); }
inline VD load_doubles(const double* p) { return _mm512_loadu_pd(p); }
inline void store_doubles(double* p, VD v) { _mm512_storeu_pd(p, v); }
inline VD where_greater(VD a, VD b, VD value) {  // value where a > b, else 0
  return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(a, b, _CMP_GT_OQ), value);
}
inline VD power_of_two(VD biased) {  // `biased` = k + kRoundMagic
  const __m512i shifted = _mm512_slli_epi64(_mm512_castpd_si512(biased), 52);
  return _mm512_castsi512_pd(_mm512_add_epi64(shifted, _mm512_set1_epi64(int64_t{1023} << 52)));
}
#elif DEEPMINT_ISA_LEVEL == 1
constexpr size_t kLanes = 8;
using VF = __m256;
using VD = __m256d;
using VI = __m256i;
inline VF load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, VF v) { _mm256_storeu_ps(p, v); }
inline VF all(float x) { return _mm256_set1_ps(x); }
inline VF max_second_if_nan(VF a, VF b) { return _mm256_max_ps(a, b); }
inline uint32_t mask_ge(VF a, VF b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
inline uint32_t mask_not_less(VF a, VF b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ)));
}
inline VF keep_bits(VF v, uint32_t bits) {
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i kept = _mm256_cmpeq_epi32(
      _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane_bit), lane_bit);
  return _mm256_blendv_ps(all(-__builtin_inff()), v, _mm256_castsi256_ps(kept));
}
inline VF to_float(VI v) { return _mm256_cvtepi32_ps(v); }
inline VI bits_of(VF v) { return _mm256_castps_si256(v); }
inline VI all_u64(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
inline VI all_u32(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
inline VI add_u64(VI a, VI b) { return _mm256_add_epi64(a, b); }
inline VI mul_low_halves(VI a, VI b) { return _mm256_mul_epu32(a, b); }
inline VI high_half(VI a) { return _mm256_srli_epi64(a, 32); }
inline VI to_high_half(VI a) { return _mm256_slli_epi64(a, 32); }
inline VI xor3(VI a, VI b, VI c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
inline VI low_and_high(VI low, VI high) { return _mm256_blend_epi32(low, high, 0xAA); }
inline VI half_inverted(VI a) {
  return _mm256_xor_si256(_mm256_srli_epi32(a, 1), all_u32(0x7fffffff));
}
inline VI unpack_low64(VI a, VI b) { return _mm256_unpacklo_epi64(a, b); }
inline VI unpack_high64(VI a, VI b) { return _mm256_unpackhi_epi64(a, b); }
inline void store_words(uint32_t* p, VI v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
inline VI counter_lanes() { return _mm256_setr_epi64x(0, 2, 1, 3); }
inline VD load_half_as_double(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
inline void store_half(float* p, VD v) { _mm_storeu_ps(p, _mm256_cvtpd_ps(v)); }
inline VD all_double(double x) { return _mm256_set1_pd(x); }
inline VD max_double(VD a, VD b) { return _mm256_max_pd(a, b); }
inline VD load_doubles(const double* p) { return _mm256_loadu_pd(p); }
inline void store_doubles(double* p, VD v) { _mm256_storeu_pd(p, v); }
inline VD where_greater(VD a, VD b, VD value) {
  return _mm256_and_pd(_mm256_cmp_pd(a, b, _CMP_GT_OQ), value);
}
inline VD power_of_two(VD biased) {
  const __m256i shifted = _mm256_slli_epi64(_mm256_castpd_si256(biased), 52);
  return _mm256_castsi256_pd(_mm256_add_epi64(shifted, _mm256_set1_epi64x(int64_t{1023} << 52)));
}
#else
constexpr size_t kLanes = 4;
using VF = __m128;
using VD = __m128d;
using VI = __m128i;
inline VF load(const float* p) { return _mm_loadu_ps(p); }
inline void store(float* p, VF v) { _mm_storeu_ps(p, v); }
inline VF all(float x) { return _mm_set1_ps(x); }
inline VF max_second_if_nan(VF a, VF b) { return _mm_max_ps(a, b); }
inline uint32_t mask_ge(VF a, VF b) {
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpge_ps(a, b)));
}
inline uint32_t mask_not_less(VF a, VF b) {
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpnlt_ps(a, b)));
}
inline VF keep_bits(VF v, uint32_t bits) {
  const __m128i lane_bit = _mm_setr_epi32(1, 2, 4, 8);
  const __m128 kept = _mm_castsi128_ps(
      _mm_cmpeq_epi32(_mm_and_si128(_mm_set1_epi32(static_cast<int>(bits)), lane_bit), lane_bit));
  return _mm_or_ps(_mm_and_ps(kept, v), _mm_andnot_ps(kept, all(-__builtin_inff())));
}
inline VF to_float(VI v) { return _mm_cvtepi32_ps(v); }
inline VI bits_of(VF v) { return _mm_castps_si128(v); }
inline VI all_u64(uint64_t x) { return _mm_set1_epi64x(static_cast<long long>(x)); }
inline VI all_u32(uint32_t x) { return _mm_set1_epi32(static_cast<int>(x)); }
inline VI add_u64(VI a, VI b) { return _mm_add_epi64(a, b); }
inline VI mul_low_halves(VI a, VI b) { return _mm_mul_epu32(a, b); }
inline VI high_half(VI a) { return _mm_srli_epi64(a, 32); }
inline VI to_high_half(VI a) { return _mm_slli_epi64(a, 32); }
inline VI xor3(VI a, VI b, VI c) { return _mm_xor_si128(_mm_xor_si128(a, b), c); }
inline VI low_and_high(VI low, VI high) {
  const __m128i low_mask = _mm_set1_epi64x(0xffffffff);
  return _mm_or_si128(_mm_and_si128(low, low_mask), _mm_andnot_si128(low_mask, high));
}
inline VI half_inverted(VI a) { return _mm_xor_si128(_mm_srli_epi32(a, 1), all_u32(0x7fffffff)); }
inline VI unpack_low64(VI a, VI b) { return _mm_unpacklo_epi64(a, b); }
inline VI unpack_high64(VI a, VI b) { return _mm_unpackhi_epi64(a, b); }
inline void store_words(uint32_t* p, VI v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
inline VI counter_lanes() { return _mm_set_epi64x(1, 0); }
inline VD load_half_as_double(const float* p) {
  return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void store_half(float* p, VD v) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_castps_si128(_mm_cvtpd_ps(v)));
}
inline VD all_double(double x) { return _mm_set1_pd(x); }
inline VD max_double(VD a, VD b) { return _mm_max_pd(a, b); }
inline VD load_doubles(const double* p) { return _mm_loadu_pd(p); }
inline void store_doubles(double* p, VD v) { _mm_storeu_pd(p, v); }
inline VD where_greater(VD a, VD b, VD value) { return _mm_and_pd(_mm_cmpgt_pd(a, b), value); }
inline VD power_of_two(VD biased) {
  const __m128i shifted = _mm_slli_epi64(_mm_castpd_si128(biased), 52);
  return _mm_castsi128_pd(_mm_add_epi64(shifted, _mm_set1_epi64x(int64_t{1023} << 52)));
}
#endif
constexpr size_t kDoubles = kLanes / 2;
constexpr float kNegInf = -__builtin_inff();

// The group that starts at x, of which `left` entries are in the row. A group that the row does not
// fill is copied to `room` and padded with −inf, so that every loop sees whole groups.
inline const float* whole_group(const float* x, size_t left, float* room) {
  if (left >= kGroupIds) return x;
  for (size_t i = 0; i < kGroupIds; ++i) room[i] = i < left ? x[i] : kNegInf;
  return room;
}

// ---------------------------------------------------------------- exp and ln
// ln 2 in two parts: kLn2Hi has 29 significant bits, so that k * kLn2Hi is exact for every exponent
// k of a double.
constexpr double kLn2Hi = 0x1.62e42ffp-1;
constexpr double kLn2Lo = -0x1.718432a1b0e26p-35;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kRoundMagic =
    0x1.8p52;  // adding it rounds to an integer, which the low mantissa bits then hold
// Taylor series of exp: |r| <= ln2 / 2 leaves a remainder below 2^-57 after degree 13. kTaylor[i] =
// 1 / (i + 2)!
constexpr double kTaylor[] = {1.0 / 2,          1.0 / 6,           1.0 / 24,
                              1.0 / 120,        1.0 / 720,         1.0 / 5040,
                              1.0 / 40320.0,    1.0 / 362880.0,    1.0 / 3628800.0,
                              1.0 / 39916800.0, 1.0 / 479001600.0, 1.0 / 6227020800.0};

inline double constant(double x, double) { return x; }
inline VD constant(double x, VD) { return all_double(x); }

// exp(r) = 1 + (r + r² q(r)), for scalars and vectors alike. q is summed in pairs, then pairs of
// pairs: a chain of multiplications and additions half as long as Horner's, which is what the time
// goes by.
template <class V>
inline V exp_reduced(V r) {
  const auto c = [](int i) { return constant(kTaylor[i], V{}); };
  const V r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
  const V q0 = (c(0) + c(1) * r) + (c(2) + c(3) * r) * r2;
  const V q1 = (c(4) + c(5) * r) + (c(6) + c(7) * r) * r2;
  const V q2 = (c(8) + c(9) * r) + (c(10) + c(11) * r) * r2;
  const V q = (q0 + q1 * r4) + q2 * r8;
  return constant(1.0, V{}) + (r + r2 * q);
}

// exp(x) = 2^k exp(r), x = k ln2 + r. x <= 0; anything below −200 counts as −200, which rounds to
// the float 0.
double exp_scalar(double x) {
  if (!(x > -200.0)) x = -200.0;
  const double biased = x * kLog2E + kRoundMagic;
  const double k = biased - kRoundMagic;
  const double r = (x - k * kLn2Hi) - k * kLn2Lo;
  uint64_t bits;
  __builtin_memcpy(&bits, &biased, sizeof bits);
  bits = (bits << 52) + (uint64_t{1023} << 52);
  double scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return exp_reduced(r) * scale;
}

inline VD exp_vector(VD x) {
  x = max_double(x, all_double(-200.0));
  const VD biased = x * all_double(kLog2E) + all_double(kRoundMagic);
  const VD k = biased - all_double(kRoundMagic);
  const VD r = (x - k * all_double(kLn2Hi)) - k * all_double(kLn2Lo);
  return exp_reduced(r) * power_of_two(biased);
}

// ln(x) = k ln2 + ln(1 + f), 1 + f in [sqrt½, sqrt2). With s = f / (2 + f): ln(1 + f) = 2 atanh(s)
// = 2 s + s R, R = 2/3 s² + 2/5 s⁴ …, and 2 s = f − s f, which lets the exact f carry most of the
// value. |s| <= 0.1716: ten terms leave less than 2^-60.
double ln_scalar(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  constexpr uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;
  const int64_t k = static_cast<int64_t>(bits - kSqrtHalfBits) >> 52;
  bits -= static_cast<uint64_t>(k) << 52;
  double m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 2.0 / 21;
  constexpr double kTerms[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                               2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};
  for (int i = 8; i >= 0; --i) series = series * z + kTerms[i];
  const double half_square = 0.5 * f * f;
  const double correction = s * (half_square + series * z);
  const auto dk = static_cast<double>(k);
  return dk * kLn2Hi - ((half_square - (correction + dk * kLn2Lo)) - f);
}

double gumbel_of(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -ln_scalar(-ln_scalar(u));
}

// ---------------------------------------------------------------- Philox4x32-10
constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

uint32_t noise_word_of(const NoiseKey* key, uint32_t id) {
  uint32_t c0 = id / 4, c1 = key->position, c2 = key->stream, c3 = key->choice;
  uint32_t k0 = key->key[0], k1 = key->key[1];
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{kMul0} * c0, b = uint64_t{kMul1} * c2;
    const auto n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0,
               n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = static_cast<uint32_t>(b);
    c2 = n2;
    c3 = static_cast<uint32_t>(a);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  const uint32_t words[4] = {c0, c1, c2, c3};
  return words[id % 4];
}

// Round keys, and what is the same for every id in the first two rounds: words 1..3 of the counter
// are.
struct NoiseRounds {
  uint64_t k0[kRounds], k1[kRounds];
  uint64_t high2, low2;  // of kMul1 * stream, first round
  uint64_t high0, low0;  // of kMul0 * (word 0 after the first round), second round
  explicit NoiseRounds(const NoiseKey& key) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      k0[round] = key.key[0] + round * kWeyl0;
      k1[round] = key.key[1] + round * kWeyl1;
      k0[round] &= 0xffffffff;
      k1[round] &= 0xffffffff;
    }
    const uint64_t b = uint64_t{kMul1} * key.stream;
    high2 = (b >> 32) ^ key.position ^ k0[0];  // word 0 after the first round
    low2 = b & 0xffffffff;                     // word 1 after the first round
    const uint64_t a = uint64_t{kMul0} * high2;
    high0 = a >> 32;
    low0 = a & 0xffffffff;  // word 3 after the second round
  }
};

// Words of 2 * kLanes consecutive ids, of which the first is 4 * counter. Counter words live in the
// low halves of 64-bit lanes; the high halves may hold anything, because the multiplication reads
// low halves only.
inline void noise_words(const NoiseRounds& rounds, uint32_t choice, VI counter, VI* first,
                        VI* second) {
  const VI mul0 = all_u64(kMul0), mul1 = all_u64(kMul1);
  // Rounds 1 and 2, with their constant halves folded in.
  VI a = mul_low_halves(counter, mul0);
  const VI word2 = xor3(high_half(a), all_u64(choice), all_u64(rounds.k1[0]));
  const VI word3 = a;
  VI b = mul_low_halves(word2, mul1);
  VI c0 = xor3(high_half(b), all_u64(rounds.low2), all_u64(rounds.k0[1]));
  VI c1 = b;
  VI c2 = xor3(all_u64(rounds.high0), word3, all_u64(rounds.k1[1]));
  VI c3 = all_u64(rounds.low0);
  for (int round = 2; round < kRounds; ++round) {
    a = mul_low_halves(c0, mul0);
    b = mul_low_halves(c2, mul1);
    c0 = xor3(high_half(b), c1, all_u64(rounds.k0[round]));
    c1 = b;
    c2 = xor3(high_half(a), c3, all_u64(rounds.k1[round]));
    c3 = a;
  }
  const VI words01 = low_and_high(c0, to_high_half(c1)),
           words23 = low_and_high(c2, to_high_half(c3));
  *first = unpack_low64(words01, words23);
  *second = unpack_high64(words01, words23);
}

// ---------------------------------------------------------------- Gumbel-max
// Upper bound of the noise without a logarithm. With y = ~word: 1 − u = (y + 0.5) / 2^32, and −ln u
// >= 1 − u, so g = −ln(−ln u) <= −ln(1 − u) = 32 ln2 − ln(y + 0.5). The bits of a float h, read as
// an integer, are a chord of log2 and lie below it: log2 h >= bits / 2^23 − 127. With h = floor(y /
// 2) + 0.25 <= (y + 0.5) / 2:  g <= ln2 (158 − bits(h) / 2^23). Every rounding on the way is below
// 2^-22 (|x| + 256), which the slack of 1e-3 here and the one in threshold_of() cover.
constexpr float kBoundSlope = 0x1.62e43p-24f;       // ln2 / 2^23
constexpr float kBoundAtZero = 109.51725f + 1e-3f;  // 158 ln2, and slack
constexpr float kLargestNoise = 22.8739f + 1e-3f;   // −ln(−ln(1 − 2^-33)), and slack

inline VF bound_of(VF x, VI words) {
  const VF h = to_float(half_inverted(words)) + all(0.25f);
  return x + (all(kBoundAtZero) - to_float(bits_of(h)) * all(kBoundSlope));
}

inline float bound_of_one(float x, uint32_t word) {
  const float h = static_cast<float>(static_cast<int32_t>(~word >> 1)) + 0.25f;
  int32_t bits;
  __builtin_memcpy(&bits, &h, sizeof bits);
  return x + (kBoundAtZero - static_cast<float>(bits) * kBoundSlope);
}

float gumbel_bound_of(uint32_t word) { return bound_of_one(0.0f, word); }

// A bound below this cannot belong to a score of at least `best`.
inline float threshold_of(double best) {
  const double size = best < 0 ? -best : best;
  return static_cast<float>(best - size * 0x1p-20 - 1e-3);
}

inline void consider(float x, uint32_t word, uint32_t id, GumbelBest* best) {
  if (x == kNegInf) return;
  const double score = static_cast<double>(x) + gumbel_of(word);
  if (score > best->score || (score == best->score && id < best->id)) *best = {score, id};
}

void gumbel_max_row(const float* x, size_t n, const float* column_max, const NoiseKey* key,
                    GumbelBest* best) {
  const NoiseRounds rounds(*key);
  float threshold = threshold_of(best->score);
  alignas(64) float room[kGroupIds];
  for (size_t base = 0; base < n; base += kGroupIds) {
    const float* columns = column_max + base / kGroupIds * kGroupColumns;
    float group_max = kNegInf;
    for (size_t c = 0; c < kGroupColumns; ++c)
      group_max = columns[c] > group_max ? columns[c] : group_max;
    if (group_max == kNegInf || group_max + kLargestNoise < threshold) continue;
    const float* group = whole_group(x + base, n - base, room);
    VI counter = add_u64(counter_lanes(), all_u64(base / 4));
    for (size_t i = 0; i < kGroupIds; i += 2 * kLanes) {
      VI first, second;
      noise_words(rounds, key->choice, counter, &first, &second);
      counter = add_u64(counter, all_u64(kLanes / 2));
      const VF limit = all(threshold);
      uint32_t hits = mask_ge(bound_of(load(group + i), first), limit) |
                      mask_ge(bound_of(load(group + i + kLanes), second), limit) << kLanes;
      if (__builtin_expect(hits == 0, 1)) continue;
      alignas(64) uint32_t words[2 * kLanes];
      store_words(words, first);
      store_words(words + kLanes, second);
      for (; hits != 0; hits &= hits - 1) {
        const auto lane = static_cast<size_t>(__builtin_ctz(hits));
        consider(group[i + lane], words[lane], static_cast<uint32_t>(base + i + lane), best);
      }
      threshold = threshold_of(best->score);
    }
  }
}

void gumbel_max_ids(const float* x, const uint32_t* ids, size_t count, const NoiseKey* key,
                    GumbelBest* best) {
  float threshold = threshold_of(best->score);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t id = ids[i];
    if (x[id] + kLargestNoise < threshold) continue;
    const uint32_t word = noise_word_of(key, id);
    if (bound_of_one(x[id], word) < threshold) continue;
    consider(x[id], word, id, best);
    threshold = threshold_of(best->score);
  }
}

// ---------------------------------------------------------------- whole rows
RowScan scan_row(const float* x, size_t n, float* column_max) {
  VF best = all(kNegInf);
  uint32_t bad = 0;
  alignas(64) float room[kGroupIds];
  const VF infinity = all(__builtin_inff());
  for (size_t base = 0; base < n; base += kGroupIds) {
    const float* group = whole_group(x + base, n - base, room);
    float* columns =
        column_max == nullptr ? nullptr : column_max + base / kGroupIds * kGroupColumns;
    for (size_t c = 0; c < kGroupColumns; c += kLanes) {
      VF column = all(kNegInf);
      for (size_t i = c; i < kGroupIds; i += kGroupColumns) {
        const VF v = load(group + i);
        bad |= mask_not_less(v, infinity);
        column = max_second_if_nan(v, column);
      }
      if (columns != nullptr) store(columns + c, column);
      best = max_second_if_nan(column, best);
    }
  }
  alignas(64) float lanes[kLanes];
  store(lanes, best);
  float max = kNegInf;
  for (const float v : lanes) max = v > max ? v : max;
  return {max, bad};
}

void divide_row(const float* x, size_t n, float divisor, float* out) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) / all(divisor));
  for (; i < n; ++i) out[i] = x[i] / divisor;
}

void apply_mask_row(float* x, size_t n, const uint32_t* words) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(x + i, keep_bits(load(x + i), words[i / 32] >> (i % 32)));
  for (; i < n; ++i)
    if ((words[i / 32] >> (i % 32) & 1) == 0) x[i] = kNegInf;
}

// Destroys the tile.
float tile_sum_in_place(float* tile) {
  for (size_t s = kTileIds / 2; s >= kLanes; s /= 2)
    for (size_t i = 0; i < s; i += kLanes) store(tile + i, load(tile + i) + load(tile + i + s));
  for (size_t s = kLanes / 2; s >= 1; s /= 2)
    for (size_t i = 0; i < s; ++i) tile[i] = tile[i] + tile[i + s];
  return tile[0];
}

float tile_sum_row(const float* tile) {
  alignas(64) float copy[kTileIds];
  __builtin_memcpy(copy, tile, sizeof copy);
  return tile_sum_in_place(copy);
}

float exp_sum_row(const float* x, size_t n, float max, float* e) {
  alignas(64) float tile[kTileIds];
  const VD shift = all_double(static_cast<double>(max));
  float sum = 0;
  for (size_t base = 0; base < n; base += kTileIds) {
    const size_t count = n - base < kTileIds ? n - base : kTileIds;
    size_t i = 0;
    for (; i + kDoubles <= count; i += kDoubles)
      store_half(tile + i, exp_vector(load_half_as_double(x + base + i) - shift));
    for (; i < count; ++i)
      tile[i] = static_cast<float>(
          exp_scalar(static_cast<double>(x[base + i]) - static_cast<double>(max)));
    for (; i < kTileIds; ++i) tile[i] = 0;
    if (e != nullptr) __builtin_memcpy(e + base, tile, count * sizeof(float));
    sum = sum + tile_sum_in_place(tile);
  }
  return sum;
}

size_t collect_ids(const float* x, size_t n, const float* column_max, float at_least, float below,
                   size_t limit, uint32_t* ids) {
  size_t count = 0;
  const VF low = all(at_least), high = all(below);
  for (size_t base = 0; base < n && count <= limit; base += kGroupIds) {
    const float* columns = column_max + base / kGroupIds * kGroupColumns;
    uint32_t any = 0;
    for (size_t c = 0; c < kGroupColumns; c += kLanes) any |= mask_ge(load(columns + c), low);
    if (any == 0) continue;
    if (n - base < kGroupIds) {
      for (size_t i = base; i < n; ++i)
        if (x[i] >= at_least && x[i] < below) ids[count++] = static_cast<uint32_t>(i);
      continue;
    }
    for (size_t i = base; i < base + kGroupIds; i += kLanes) {
      const VF v = load(x + i);
      for (uint32_t hits = mask_ge(v, low) & ~mask_ge(v, high); hits != 0; hits &= hits - 1)
        ids[count++] = static_cast<uint32_t>(i) + static_cast<uint32_t>(__builtin_ctz(hits));
    }
  }
  return count;
}

void keep_at_least_row(const float* x, size_t n, float threshold, float* out) {
  const VF limit = all(threshold);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = load(x + i);
    store(out + i, keep_bits(v, mask_ge(v, limit)));
  }
  for (; i < n; ++i) out[i] = x[i] >= threshold ? x[i] : kNegInf;
}

void mass_units_row(const float* e, size_t n, float sum, double* units) {
  constexpr double kRound =
      0x1p52;  // adding and subtracting it rounds values below 2^52 to the nearest integer
  size_t i = 0;
  const VD scale = all_double(0x1p48), round = all_double(kRound), one = all_double(1.0);
  alignas(64) float p[kLanes];
  for (; i + kLanes <= n; i += kLanes) {
    store(p, load(e + i) / all(sum));
    for (size_t half = 0; half < kLanes; half += kDoubles) {
      const VD exact = load_half_as_double(p + half) * scale;
      const VD nearest = (exact + round) - round;
      store_doubles(units + i + half, nearest - where_greater(nearest, exact, one));
    }
  }
  for (; i < n; ++i) {
    const double exact = static_cast<double>(e[i] / sum) * 0x1p48;
    const double nearest = (exact + kRound) - kRound;
    units[i] = nearest - (nearest > exact ? 1.0 : 0.0);
  }
}

double mass_at_least_row(const float* x, const double* units, size_t n, float threshold,
                         size_t* count) {
  // "x >= threshold" as "x > the float below", so that one comparison serves all instruction sets.
  const auto limit = static_cast<double>(__builtin_nextafterf(threshold, kNegInf));
  VD sums[2] = {all_double(0.0), all_double(0.0)}, counts[2] = {all_double(0.0), all_double(0.0)};
  const VD above = all_double(limit), one = all_double(1.0);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t half = 0; half < 2; ++half) {
      const VD v = load_half_as_double(x + i + half * kDoubles);
      sums[half] = sums[half] + where_greater(v, above, load_doubles(units + i + half * kDoubles));
      counts[half] = counts[half] + where_greater(v, above, one);
    }
  alignas(64) double lanes[kDoubles], ones[kDoubles];
  store_doubles(lanes, sums[0] + sums[1]);
  store_doubles(ones, counts[0] + counts[1]);
  double mass = 0, number = 0;
  for (size_t lane = 0; lane < kDoubles; ++lane) {
    mass += lanes[lane];
    number += ones[lane];
  }
  for (; i < n; ++i) {
    if (!(static_cast<double>(x[i]) > limit)) continue;
    mass += units[i];
    number += 1;
  }
  *count = static_cast<size_t>(number);
  return mass;
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {
    .scan = scan_row,
    .divide = divide_row,
    .apply_mask = apply_mask_row,
    .exp_sum = exp_sum_row,
    .tile_sum = tile_sum_row,
    .collect = collect_ids,
    .keep_at_least = keep_at_least_row,
    .mass_units = mass_units_row,
    .mass_at_least = mass_at_least_row,
    .gumbel_max = gumbel_max_row,
    .gumbel_max_of = gumbel_max_ids,
    .noise_word = noise_word_of,
    .gumbel_bound = gumbel_bound_of,
    .gumbel = gumbel_of,
    .ln = ln_scalar,
    .exp = exp_scalar,
};

}  // namespace deepmint::sampling::DEEPMINT_ISA_NS
