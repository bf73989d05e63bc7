#include "kernels/linear_cases.h"

#include <cmath>
#include <cstring>

#include "kernels/quant.h"

namespace deepmint::kernels {
namespace {

struct Format {
  std::vector<size_t> scales;  // offsets of f16 values in a block
  bool bytes_are_signed = false;
};
Format format(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return {{0}, true};
    case DType::kQ4_0:
    case DType::kQ5_0:
      return {{0}};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {{0, 2}};
    case DType::kQ6_K:
      return {{208}};
    default:
      return {};
  }
}

uint16_t to_f16(float v) {  // normal halves and zero only, truncated: test data needs no rounding
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const int exponent = static_cast<int>(bits >> 23 & 0xffu) - 127 + 15;
  if (exponent <= 0) return sign;
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7bffu);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 |
                               (bits >> 13 & 0x3ffu));
}

uint16_t scale_bits(Weights kind, std::mt19937_64& rng) {
  switch (kind) {
    case Weights::kTop:
    case Weights::kBottom:
      return 0x7bff;  // 65504
    case Weights::kZero:
      return 0;
    case Weights::kSubnormal:
      return static_cast<uint16_t>(1 + rng() % 0x3ff);
    default:
      return to_f16(0.01f * std::normal_distribution<float>()(rng));
  }
}

}  // namespace

std::vector<std::byte> random_weights(DType dtype, int64_t n, int64_t k, Weights kind,
                                      std::mt19937_64& rng) {
  std::vector<std::byte> out(static_cast<size_t>(n) *
                             row_bytes(dtype, static_cast<uint64_t>(k)).value());
  const DTypeInfo& type = info(dtype);
  if (type.block_elements == 1) {
    std::normal_distribution<float> normal;
    for (size_t at = 0; at < out.size(); at += type.block_bytes) {
      float v = 0.05f * normal(rng);
      if (kind == Weights::kTop) v = 60000;
      if (kind == Weights::kBottom) v = -60000;
      if (kind == Weights::kZero) v = 0;
      if (kind == Weights::kSubnormal) v = 0.05f * normal(rng) * 0x1p-14f;
      const uint16_t half = dtype == DType::kBF16 ? f32_to_bf16(v) : to_f16(v);
      if (dtype == DType::kF32) {
        std::memcpy(&out[at], &v, sizeof v);
      } else {
        std::memcpy(&out[at], &half, sizeof half);
      }
    }
    return out;
  }
  const Format layout = format(dtype);
  const bool is_signed = layout.bytes_are_signed;
  for (size_t at = 0; at < out.size(); at += 8) {
    uint64_t bits = rng();
    if (kind == Weights::kTop) bits = is_signed ? 0x7f7f7f7f7f7f7f7full : ~uint64_t{0};
    if (kind == Weights::kBottom) bits = is_signed ? 0x8080808080808080ull : 0;
    std::memcpy(&out[at], &bits, out.size() - at < 8 ? out.size() - at : 8);
  }
  for (size_t at = 0; at < out.size(); at += type.block_bytes) {
    for (const size_t offset : layout.scales) {
      const uint16_t bits = scale_bits(kind, rng);
      std::memcpy(&out[at + offset], &bits, sizeof bits);
    }
    if (dtype == DType::kQ6_K && kind != Weights::kRandom)  // extremes of the sub-block scales too
      std::memset(&out[at + 192], kind == Weights::kBottom ? 0x80 : 0x7f, 16);
    if ((dtype == DType::kQ4_K || dtype == DType::kQ5_K) && kind == Weights::kBottom)
      std::memset(&out[at + 4], 0xff, 12);
  }
  return out;
}

std::vector<float> random_activations(int64_t m, int64_t k, std::mt19937_64& rng, double scale) {
  std::vector<float> x(static_cast<size_t>(m * k));
  std::normal_distribution<double> normal;
  for (float& v : x) {
    const uint64_t pick = rng() % 64;
    v = static_cast<float>(scale * normal(rng) * (pick == 0 ? 30.0 : 1.0));
    if (pick == 1) v = 0;
  }
  return x;
}

void row_magnitudes(DType dtype, const std::byte* row, int64_t k, double* out) {
  dequantize_row_exact(dtype, row, k, out);
  const DTypeInfo& type = info(dtype);
  const bool blocks = dtype == DType::kQ4_1 || dtype == DType::kQ5_1;
  const bool supers = dtype == DType::kQ4_K || dtype == DType::kQ5_K;
  for (int64_t i = 0; i < k; ++i) {
    double minimum = 0;
    if (blocks || supers) {
      uint16_t bits;
      std::memcpy(&bits,
                  row + static_cast<uint64_t>(i) / type.block_elements * type.block_bytes + 2,
                  sizeof bits);
      minimum = std::fabs(static_cast<double>(f16_to_f32(bits))) * (supers ? 63 : 1);
    }
    out[i] = std::fabs(out[i]) + 2 * minimum;  // |d·q| <= |w| + |minimum|
  }
}

}  // namespace deepmint::kernels
