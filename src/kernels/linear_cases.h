// Random matrices in every stored format, shared by linear_test and linear_bench.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/dtype.h"

namespace deepmint::kernels {

inline constexpr std::array<DType, 11> kLinearTypes = {
    DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
    DType::kQ5_0, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

enum class Weights {
  kRandom,    // every bit of the quants random, scales around 1e-2
  kTop,       // every quant at its largest code, scales at the largest f16
  kBottom,    // every quant at its smallest code (Q8_0: -128), scales at the largest f16
  kZero,      // scales zero
  kSubnormal  // scales subnormal in f16
};

// [n, k] in the stored layout of the type.
std::vector<std::byte> random_weights(DType dtype, int64_t n, int64_t k, Weights kind,
                                      std::mt19937_64& rng);

// Standard normal values times 10^spread, with a few large and a few zero ones.
std::vector<float> random_activations(int64_t m, int64_t k, std::mt19937_64& rng,
                                      double scale = 1.0);

// Magnitude that rounding errors of a product scale with: |d·q| + |minimum| for each weight of a
// row, at least.
void row_magnitudes(DType dtype, const std::byte* row, int64_t k, double* out);

}  // namespace deepmint::kernels
