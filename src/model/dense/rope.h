// Rotary position embedding: from a RopeConfig to the cosines and sines of a position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deepmint/result.h"
#include "model/dense/config.h"

namespace deepmint::dense {

// angle of pair i at position p = p * frequencies[i]; cos and sin are multiplied by magnitude.
struct Rope {
  std::vector<double> frequencies;  // [rotary / 2]
  double magnitude = 1;

  // out: [2 * pairs]: cosines, then sines. Same bits on every machine (scalar_math.h).
  void fill(int32_t position, float* out) const;
};

// factors: GGUF's rope_freqs.weight, one divisor for each pair; empty when the checkpoint has none.
// Formulas: linear divides every frequency by the factor. yarn mixes the divided and the plain
// frequency along a ramp between the dimensions that turn beta_fast and beta_slow times over the
// original context. llama3 keeps wavelengths below original / high, divides those above original /
// low, and mixes in between.
Rope make_rope(const RopeConfig& config, std::span<const float> factors = {});

}  // namespace deepmint::dense
