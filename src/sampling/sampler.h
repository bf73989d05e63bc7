// The sampling pipeline of spec/determinism.md 6–7: one row of logits in, one token out, nothing
// remembered between calls.
//
//   Sampler s(vocab_size);                     // scratch for one thread
//   DEEPMINT_TRY(r, s.sample(logits, params, history, {.seed = 42, .position = 17}));
//
// Bits depend on (logits, params, history, seed, position, choice) alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "deepmint/sampling.h"

namespace deepmint {

// Philox4x32-10: counter, key → four words.
struct PhiloxBlock {
  uint32_t word[4];
};
PhiloxBlock philox4x32_10(const uint32_t counter[4], const uint32_t key[2]);

// Address of a draw (spec 6.2). position is the index of the token being sampled, prompt included.
struct DrawAddress {
  uint64_t seed = 0;
  uint32_t position = 0;
  uint32_t stream = 0;
  uint32_t choice = 0;
};

struct SampleHistory {
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;
};

// What else may be sampled next. Bit (id % 32) of word id / 32 set = allowed; empty = everything.
struct MaskView {
  std::span<const uint32_t> words;
};

struct SampleResult {
  TokenId token = 0;
  float logprob = 0;  // as SamplingParams::raw_logprobs asks; NaN when top_logprobs < 0
  std::span<const TopLogprob> top;  // best first; valid until the next call
};

// What happened inside one call, for tests and for explaining a choice. Filling it allocates.
struct SampleTrace {
  size_t finite = 0, after_top_k = 0,
         after_top_p = 0;          // candidates left; equal to `finite` where a filter is off
  std::vector<TokenId> kept;       // ascending
  std::vector<float> after_masks;  // the row after bias, penalties and masks
  float scaled_logit = 0;          // of the token, after the division by T
  double gumbel = 0, score = 0;    // of the token; 0 when greedy
};

class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // logits: [vocab]; not changed. params have passed validate(). Ids that this model must never
  // emit go into always_banned; end_ids are masked while the output is shorter than
  // params.min_tokens. Errors: kInternal when the row has NaN or +inf or nothing is left to choose
  // from. Allocates nothing: all scratch is set aside by the constructor, and touched only when a
  // parameter needs it.
  Result<SampleResult> sample(std::span<const float> logits, const SamplingParams& params,
                              const SampleHistory& history, const DrawAddress& address,
                              const MaskView& mask = {}, std::span<const TokenId> end_ids = {},
                              std::span<const TokenId> always_banned = {});

  // Later calls fill *trace; null ends it.
  void set_trace(SampleTrace* trace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ln softmax(logits)[id] with the canonical tree sum (spec 7): the number that every
// log-probability in the product comes from. NaN when the row has NaN or +inf.
float log_prob(std::span<const float> logits, TokenId id);

}  // namespace deepmint
