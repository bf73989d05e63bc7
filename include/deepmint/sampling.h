// How the next token is chosen. Order and arithmetic of the pipeline: spec/determinism.md 6 and 7.
//
//   SamplingParams p;
//   p.temperature = 0.7f;
//   p.seed = 42;                       // unset: one is drawn at admission and reported back
//   if (auto ok = p.validate(vocab_size); !ok) ...
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "deepmint/result.h"
#include "deepmint/types.h"

namespace deepmint {

// Inside these limits no logit of up to 1e9 overflows a float on its way through the pipeline, so a
// request that passes validate() fails for no value of its own.
inline constexpr double kMinTemperature = 1e-20;  // what is less counts as 0
inline constexpr double kMaxTemperature = 1e6;
inline constexpr double kMinRepetitionPenalty = 0.01, kMaxRepetitionPenalty = 100;
inline constexpr double kMaxPenalty = 100;  // frequency and presence, either sign
inline constexpr double kMaxBias = 10'000;  // either sign

struct SamplingParams {
  float temperature = 1.0f;                           // 0 to 1e6; 0 = greedy, as is less than 1e-20
  int32_t top_k = 0;                                  // <= 0 or >= vocabulary: off
  double top_p = 1.0;                                 // >= 1: off; finite, > 0
  float min_p = 0.0f;                                 // 0: off; in [0, 1]
  float repetition_penalty = 1.0f;                    // 0.01 to 100; prompt and output ids
  float frequency_penalty = 0.0f;                     // -100 to 100; output ids, times count
  float presence_penalty = 0.0f;                      // -100 to 100; output ids
  std::vector<std::pair<TokenId, float>> logit_bias;  // added; -1e4 to 1e4; ids unique
  std::vector<TokenId> allowed_ids;                   // empty: all
  std::vector<TokenId> banned_ids;
  int32_t min_tokens = 0;  // end tokens are masked while the output is shorter
  std::optional<uint64_t> seed;

  int32_t top_logprobs = -1;  // -1: none; 0: the token's own; n: also the n best, at most 20
  bool raw_logprobs = true;   // true: of the model's logits; false: after the whole pipeline

  // Every value in range and every id inside [0, vocab_size), else kInvalidArgument naming the
  // field.
  Status validate(int64_t vocab_size) const;
};

}  // namespace deepmint
