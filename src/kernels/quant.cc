#include "kernels/quant.h"

#include <bit>
#include <cstring>

#include "core/check.h"
#include "kernels/linear.h"

namespace deepmint::kernels {
namespace {

uint16_t u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
uint32_t u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
// f16 scales have 11 significant bits and integers at most 13, so every product below is exact in
// float and the one addition of a minimum is the only rounding.
template <class T>
T f16(const uint8_t* p) {
  return static_cast<T>(f16_to_f32(u16(p)));
}

template <class T>
void q8_0(const uint8_t* p, T* out) {  // f16 d, int8 q[32]
  const T d = f16<T>(p);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<T>(static_cast<int8_t>(p[2 + i]));
}
template <class T>
void q4_0(const uint8_t* p, T* out) {  // f16 d, 16 bytes of nibbles: value i low, i + 16 high
  const T d = f16<T>(p);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<T>((p[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<T>((p[2 + i] >> 4) - 8);
  }
}
template <class T>
void q4_1(const uint8_t* p, T* out) {  // f16 d, f16 m, nibbles
  const T d = f16<T>(p), m = f16<T>(p + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<T>(p[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<T>(p[4 + i] >> 4) + m;
  }
}
template <class T>
void q5_0(const uint8_t* p, T* out) {  // f16 d, 32 fifth bits, nibbles
  const T d = f16<T>(p);
  const uint32_t fifth = u32(p + 2);
  for (int i = 0; i < 16; ++i) {
    const int low = (p[6 + i] & 15) | static_cast<int>((fifth >> i & 1) << 4);
    const int high = (p[6 + i] >> 4) | static_cast<int>((fifth >> (i + 16) & 1) << 4);
    out[i] = d * static_cast<T>(low - 16);
    out[i + 16] = d * static_cast<T>(high - 16);
  }
}
template <class T>
void q5_1(const uint8_t* p, T* out) {  // f16 d, f16 m, 32 fifth bits, nibbles
  const T d = f16<T>(p), m = f16<T>(p + 2);
  const uint32_t fifth = u32(p + 4);
  for (int i = 0; i < 16; ++i) {
    const int low = (p[8 + i] & 15) | static_cast<int>((fifth >> i & 1) << 4);
    const int high = (p[8 + i] >> 4) | static_cast<int>((fifth >> (i + 16) & 1) << 4);
    out[i] = d * static_cast<T>(low) + m;
    out[i + 16] = d * static_cast<T>(high) + m;
  }
}
template <class T>
void q4_k(const uint8_t* p,
          T* out) {  // f16 d, f16 dmin, 12 bytes of scales, 4 x 32 bytes of nibbles
  const T d = f16<T>(p), dmin = f16<T>(p + 2);
  for (int j = 0; j < 8; ++j) {
    const KScale s = k_scale(p + 4, j);
    const uint8_t* q = p + 16 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int value = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      out[32 * j + i] =
          d * static_cast<T>(s.scale) * static_cast<T>(value) - dmin * static_cast<T>(s.min);
    }
  }
}
template <class T>
void q5_k(
    const uint8_t* p,
    T* out) {  // as Q4_K, with 32 bytes of fifth bits (bit j for sub-block j) before the nibbles
  const T d = f16<T>(p), dmin = f16<T>(p + 2);
  const uint8_t* fifth = p + 16;
  for (int j = 0; j < 8; ++j) {
    const KScale s = k_scale(p + 4, j);
    const uint8_t* q = p + 48 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int value = (j % 2 == 0 ? q[i] & 15 : q[i] >> 4) | (fifth[i] >> j & 1) << 4;
      out[32 * j + i] =
          d * static_cast<T>(s.scale) * static_cast<T>(value) - dmin * static_cast<T>(s.min);
    }
  }
}
template <class T>
void q6_k(const uint8_t* p,
          T* out) {  // 128 bytes of nibbles, 64 of top bits, int8 scale per 16, f16 d
  const T d = f16<T>(p + 208);
  for (int j = 0; j < 8; ++j) {  // sub-blocks of 32: half h of the super-block, quarter t of it
    const int h = j / 4, t = j % 4;
    const uint8_t* q = p + 64 * h + 32 * (t % 2);
    const uint8_t* top = p + 128 + 32 * h;
    for (int i = 0; i < 32; ++i) {
      const int value = (t < 2 ? q[i] & 15 : q[i] >> 4) | (top[i] >> (2 * t) & 3) << 4;
      const auto scale = static_cast<int8_t>(p[192 + 2 * j + i / 16]);
      out[32 * j + i] = d * static_cast<T>(scale) * static_cast<T>(value - 32);
    }
  }
}

template <class T>
void dequantize(DType dtype, const std::byte* source, int64_t k, T* out) {
  const DTypeInfo& type = info(dtype);
  const auto* p = reinterpret_cast<const uint8_t*>(source);
  const int64_t step = type.block_elements;
  DEEPMINT_CHECK(k % step == 0);
  for (int64_t i = 0; i < k; i += step, p += type.block_bytes) {
    switch (dtype) {
      case DType::kF32:
        out[i] = static_cast<T>(std::bit_cast<float>(u32(p)));
        break;
      case DType::kF16:
        out[i] = f16<T>(p);
        break;
      case DType::kBF16:
        out[i] = static_cast<T>(bf16_to_f32(u16(p)));
        break;
      case DType::kQ8_0:
        q8_0(p, out + i);
        break;
      case DType::kQ4_0:
        q4_0(p, out + i);
        break;
      case DType::kQ4_1:
        q4_1(p, out + i);
        break;
      case DType::kQ5_0:
        q5_0(p, out + i);
        break;
      case DType::kQ5_1:
        q5_1(p, out + i);
        break;
      case DType::kQ4_K:
        q4_k(p, out + i);
        break;
      case DType::kQ5_K:
        q5_k(p, out + i);
        break;
      case DType::kQ6_K:
        q6_k(p, out + i);
        break;
      default:
        DEEPMINT_CHECK(is_linear_type(dtype));
    }
  }
}

}  // namespace

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u)
    return std::bit_cast<float>(sign | 0x70000000u | magnitude);  // infinity, NaN
  // The exponent is too small by 127 - 15; the product is exact, also for subnormal halves.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

KScale k_scale(const uint8_t* s, int j) {
  if (j < 4) return {static_cast<uint8_t>(s[j] & 63), static_cast<uint8_t>(s[j + 4] & 63)};
  return {static_cast<uint8_t>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4),
          static_cast<uint8_t>((s[j + 4] >> 4) | (s[j] >> 6) << 4)};
}

void dequantize_row(DType dtype, const std::byte* source, int64_t k, float* out) {
  dequantize(dtype, source, k, out);
}
void dequantize_row_exact(DType dtype, const std::byte* source, int64_t k, double* out) {
  dequantize(dtype, source, k, out);
}

}  // namespace deepmint::kernels
