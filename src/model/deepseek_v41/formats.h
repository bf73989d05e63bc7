// The number formats of the V4.1 checkpoint and caches, one value at a time: bfloat16, E4M3, E2M1,
// E8M0. These are the definitions; kernels are tested against them. Source: spec model.md,
// "Conventions" and section 3.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace deepmint::v41 {

// Round to nearest even; the result is a float whose low 16 bits are zero. Finite input.
inline float round_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u);
}
inline float bf16_to_float(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}
inline uint16_t float_to_bf16(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(round_bf16(x)) >> 16);
}

// E4M3 (bias 7, largest 448, no infinities; 0x7F and 0xFF are NaN and decode to NaN).
float decode_e4m3(uint8_t code);
uint8_t encode_e4m3(
    float x);  // nearest, ties to the even code, saturating at 448; keeps the sign of zero

// E2M1: magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6 for codes 0..7, negatives for 8..15.
float decode_e2m1(uint8_t code);
uint8_t encode_e2m1(
    float x);  // nearest, ties to the even code, saturating at 6; keeps the sign of zero

// E8M0: 2^(b - 127); 255 is NaN.
inline float decode_e8m0(uint8_t b) {
  if (b == 255) return std::nanf("");
  if (b == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 23);
}

// Exponent e of the smallest power of two that is >= v (v > 0).
inline int pow2_ceil_exponent(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  return static_cast<int>(u >> 23) - 127 + ((u & 0x7FFFFFu) != 0 ? 1 : 0);
}

// The three activation and cache quantisers (spec 3.2 to 3.4). x: n values, a multiple of the
// block. Each writes codes and scale bytes, and the value that the codes stand for (exact in
// bfloat16).
//   q8     blocks of 32, E4M3 codes, E8M0 scales        codes: n bytes,   scales: n / 32 bytes
//   q4idx  blocks of 32, E2M1 codes, E8M0 scales        codes: n / 2 bytes (even element in the low
//   nibble), scales: n / 32 q4kv   blocks of 16, E2M1 codes, E4M3 scales        codes: n / 2 bytes,
//   scales: n / 16 bytes
void quantize_q8(const float* x, int n, uint8_t* codes, uint8_t* scales);
void quantize_q4idx(const float* x, int n, uint8_t* codes, uint8_t* scales);
void quantize_q4kv(const float* x, int n, uint8_t* codes, uint8_t* scales);
void dequantize_q8(const uint8_t* codes, const uint8_t* scales, int n, float* out);
void dequantize_q4idx(const uint8_t* codes, const uint8_t* scales, int n, float* out);
void dequantize_q4kv(const uint8_t* codes, const uint8_t* scales, int n, float* out);

}  // namespace deepmint::v41
