#include "model/deepseek_v41/formats.h"

#include <algorithm>
#include <array>

namespace deepmint::v41 {
namespace {

constexpr std::array<float, 8> kE2M1 = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

std::array<float, 256> make_e4m3() {
  std::array<float, 256> table{};
  for (int c = 0; c < 256; ++c) {
    const int exponent = (c >> 3) & 15, mantissa = c & 7;
    float v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                            : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    if ((c & 127) == 127) v = std::nanf("");
    table[static_cast<size_t>(c)] = (c & 128) != 0 ? -v : v;
  }
  return table;
}
const std::array<float, 256> kE4M3 = make_e4m3();

uint8_t sign_bit(float x) { return static_cast<uint8_t>(std::bit_cast<uint32_t>(x) >> 31); }

float block_max(const float* x, int n) {
  float m = 0.0f;
  for (int i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

}  // namespace

float decode_e4m3(uint8_t code) { return kE4M3[code]; }
float decode_e2m1(uint8_t code) {
  const float v = kE2M1[code & 7];
  return (code & 8) != 0 ? -v : v;
}

uint8_t encode_e4m3(float x) {
  const float a = std::min(std::fabs(x), 448.0f);
  uint32_t code = 0;
  if (a < 0x1p-6f) {
    // Subnormal step 2^-9; nearbyint rounds halves to even, which is the even code. 8 is the first
    // normal code.
    code = static_cast<uint32_t>(std::nearbyint(a * 512.0f));
  } else {
    // Round the mantissa to 3 bits, ties to even; a carry moves into the exponent as it should.
    const uint32_t u = std::bit_cast<uint32_t>(a);
    const uint32_t r = u + 0x7FFFFu + ((u >> 20) & 1u);
    code = (r >> 20) - ((127u - 7u) << 3);
  }
  return static_cast<uint8_t>(code | static_cast<uint32_t>(sign_bit(x)) << 7);
}

uint8_t encode_e2m1(float x) {
  const float a = std::fabs(x);
  // Midpoints between neighbouring codes; a tie goes to the even code, so it passes an odd lower
  // code and stays at an even one.
  uint8_t code = 0;
  if (a > 0.25f) code = 1;
  if (a >= 0.75f) code = 2;
  if (a > 1.25f) code = 3;
  if (a >= 1.75f) code = 4;
  if (a > 2.5f) code = 5;
  if (a >= 3.5f) code = 6;
  if (a > 5.0f) code = 7;
  return static_cast<uint8_t>(code | sign_bit(x) << 3);
}

void quantize_q8(const float* x, int n, uint8_t* codes, uint8_t* scales) {
  for (int b = 0; b < n / 32; ++b) {
    const float amax = std::max(block_max(x + 32 * b, 32), 1e-4f);
    const int e = pow2_ceil_exponent(amax / 448.0f);
    scales[b] = static_cast<uint8_t>(e + 127);
    const float s = std::ldexp(1.0f, e);
    for (int i = 32 * b; i < 32 * b + 32; ++i) codes[i] = encode_e4m3(x[i] / s);
  }
}

void quantize_q4idx(const float* x, int n, uint8_t* codes, uint8_t* scales) {
  for (int b = 0; b < n / 32; ++b) {
    const float amax = std::max(block_max(x + 32 * b, 32), 6.0f * 0x1p-126f);
    const int e = pow2_ceil_exponent(amax / 6.0f);
    scales[b] = static_cast<uint8_t>(e + 127);
    const float s = std::ldexp(1.0f, e);
    for (int i = 32 * b; i < 32 * b + 32; i += 2)
      codes[i / 2] = static_cast<uint8_t>(encode_e2m1(x[i] / s) | encode_e2m1(x[i + 1] / s) << 4);
  }
}

void quantize_q4kv(const float* x, int n, uint8_t* codes, uint8_t* scales) {
  for (int b = 0; b < n / 16; ++b) {
    const float amax = std::max(block_max(x + 16 * b, 16), 6.0f * 0x1p-9f);
    scales[b] = encode_e4m3(amax / 6.0f);
    const float s = decode_e4m3(scales[b]);
    for (int i = 16 * b; i < 16 * b + 16; i += 2)
      codes[i / 2] = static_cast<uint8_t>(encode_e2m1(x[i] / s) | encode_e2m1(x[i + 1] / s) << 4);
  }
}

void dequantize_q8(const uint8_t* codes, const uint8_t* scales, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = decode_e4m3(codes[i]) * decode_e8m0(scales[i / 32]);
}
void dequantize_q4idx(const uint8_t* codes, const uint8_t* scales, int n, float* out) {
  for (int i = 0; i < n; ++i)
    out[i] = decode_e2m1(static_cast<uint8_t>(codes[i / 2] >> (4 * (i & 1)) & 15)) *
             decode_e8m0(scales[i / 32]);
}
void dequantize_q4kv(const uint8_t* codes, const uint8_t* scales, int n, float* out) {
  for (int i = 0; i < n; ++i)
    out[i] = decode_e2m1(static_cast<uint8_t>(codes[i / 2] >> (4 * (i & 1)) & 15)) *
             decode_e4m3(scales[i / 16]);
}

}  // namespace deepmint::v41
