// The slow, obvious form of the sampling pipeline (spec/determinism.md 6–7): sorts the whole
// vocabulary, keeps every step's list. Tests compare the product with it. Only exp, ln and Philox
// are shared, and those have tests of their own.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sampling/sampler.h"

namespace deepmint::sampling {

struct ReferenceResult {
  TokenId token = 0;
  double score = 0, score_gap = 0;        // gap to the runner-up
  std::vector<TokenId> kept;              // ascending
  std::vector<float> row;                 // after step 8, −inf = dropped; after step 3 when greedy
  std::vector<float> processed_logprobs;  // of every id
};

// nullopt: refused.
std::optional<ReferenceResult> reference_sample(
    std::span<const float> logits, const SamplingParams& params, const SampleHistory& history,
    const DrawAddress& address, const MaskView& mask = {}, std::span<const TokenId> end_ids = {},
    std::span<const TokenId> always_banned = {});

std::vector<float> reference_logprobs(std::span<const float> row);
float reference_tile_sum(std::span<const float> x);

}  // namespace deepmint::sampling
