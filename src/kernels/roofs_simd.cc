// Compiled once per instruction set. The empty asm statements make the values of each step opaque,
// so that nothing is shared between steps or folded away; twelve independent chains cover the
// latency of every operation used.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/roofs_kernels.h"

namespace deepmint::kernels::DEEPMINT_ISA_NS {
namespace {

constexpr int kChains = 12;
constexpr double kOps = 2.0 * kChains;  // one multiplication and one addition per lane and chain

#if DEEPMINT_ISA_LEVEL >= 2
using Bytes = __m512i;
using Floats = __m512;
inline Bytes load(const std::byte* p) { return _mm512_loadu_si512(p); }
inline Bytes mix(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
inline uint64_t low(Bytes a) {
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm512_castsi512_si128(a)));
}
inline Floats f32_step(Floats acc, Floats x) { return _mm512_fmadd_ps(x, x, acc); }
#elif DEEPMINT_ISA_LEVEL == 1
using Bytes = __m256i;
using Floats = __m256;
inline Bytes load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Bytes mix(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline uint64_t low(Bytes a) {
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm256_castsi256_si128(a)));
}
inline Floats f32_step(Floats acc, Floats x) { return _mm256_fmadd_ps(x, x, acc); }
#else
using Bytes = __m128i;
using Floats = __m128;
inline Bytes load(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline Bytes mix(Bytes a, Bytes b) { return _mm_or_si128(a, b); }
inline uint64_t low(Bytes a) { return static_cast<uint64_t>(_mm_cvtsi128_si64(a)); }
inline Floats f32_step(Floats acc, Floats x) { return _mm_add_ps(acc, _mm_mul_ps(x, x)); }
#endif

inline Bytes int8_step(Bytes acc, Bytes x) {
#if DEEPMINT_ISA_LEVEL >= 3
  return _mm512_dpbusd_epi32(acc, x, x);
#elif DEEPMINT_ISA_LEVEL == 2
  const __m512i words = _mm512_maddubs_epi16(x, x);
  return _mm512_add_epi32(acc, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
#elif DEEPMINT_ISA_LEVEL == 1
  const __m256i words = _mm256_maddubs_epi16(x, x);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
#else
  // SSE2 has no byte product: the bytes count as words already widened.
  return _mm_add_epi32(acc, _mm_madd_epi16(x, x));
#endif
}
#if DEEPMINT_ISA_LEVEL >= 1
constexpr double kInt8Lanes = sizeof(Bytes);
#else
constexpr double kInt8Lanes = sizeof(Bytes) / 2;
#endif

// kStreams streams side by side, lines fetched kAhead bytes before their use (0: by the hardware
// alone).
template <size_t kStreams, size_t kAhead>
uint64_t read(const std::byte* data, size_t bytes) {
  constexpr size_t kStep = 256;
  Bytes acc[4] = {};
  const size_t share = bytes / kStreams / kStep * kStep;
  const auto step = [&](const std::byte* p) {
    if constexpr (kAhead != 0) {
#pragma GCC unroll 4
      for (size_t line = 0; line < kStep; line += 64) __builtin_prefetch(p + kAhead + line, 0, 2);
    }
#pragma GCC unroll 16
    for (size_t at = 0; at < kStep; at += sizeof(Bytes))
      acc[at / sizeof(Bytes) % 4] = mix(acc[at / sizeof(Bytes) % 4], load(p + at));
  };
  for (size_t at = 0; at < share; at += kStep)
    for (size_t s = 0; s < kStreams; ++s) step(data + s * share + at);
  for (size_t at = kStreams * share; at + kStep <= bytes; at += kStep) step(data + at);
  return low(mix(mix(acc[0], acc[1]), mix(acc[2], acc[3])));
}

double f32(int64_t rounds) {
  Floats acc[kChains] = {}, x = {};
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      asm volatile("" : "+x"(x));
      acc[c] = f32_step(acc[c], x);
    }
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) asm volatile("" : "+x"(acc[c]));
  }
  return kOps * sizeof(Floats) / sizeof(float);
}

double int8(int64_t rounds) {
  Bytes acc[kChains] = {}, x = {};
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      asm volatile("" : "+x"(x));
      acc[c] = int8_step(acc[c], x);
    }
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) asm volatile("" : "+x"(acc[c]));
  }
  return kOps * kInt8Lanes;
}

#if DEEPMINT_ISA_LEVEL >= 4
double bf16(int64_t rounds) {
  Floats acc[kChains] = {};
  __m512bh x = {};
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      asm volatile("" : "+x"(x));
      acc[c] = _mm512_dpbf16_ps(acc[c], x, x);
    }
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) asm volatile("" : "+x"(acc[c]));
  }
  return kOps * sizeof(x) / 2;
}
#else
double bf16(int64_t rounds) { return f32(rounds); }
#endif

}  // namespace

const RoofKernels kRoofs = {{read<1, 0>, read<1, 1024>, read<4, 1024>}, f32, bf16, int8};

}  // namespace deepmint::kernels::DEEPMINT_ISA_NS
