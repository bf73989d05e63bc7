#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "deepmint/sampling.h"

namespace deepmint {
namespace {

constexpr int32_t kMaxTopLogprobs = 20;

Status check_ids(const std::vector<TokenId>& ids, int64_t vocab_size, const char* field) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("expected a token id in [0, {}), found {}", vocab_size, ids[i]),
                  fmt::format("{}[{}]", field, i));
  return {};
}

Status check_number(bool good, const char* field, const char* expected, double found) {
  if (good) return {};
  return fail(ErrorCode::kInvalidArgument, fmt::format("expected {}, found {}", expected, found),
              field);
}

// As a float sees the limits; NaN is outside.
Status check_range(float value, double min, double max, std::string_view field) {
  if (value >= static_cast<float>(min) && value <= static_cast<float>(max)) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("expected a number from {} to {}, found {}", min, max, value),
              std::string(field));
}

}  // namespace

Status SamplingParams::validate(int64_t vocab_size) const {
  using std::isfinite;
  DEEPMINT_CHECK_OK(check_range(temperature, 0, kMaxTemperature, "temperature"));
  DEEPMINT_CHECK_OK(
      check_number(isfinite(top_p) && top_p > 0, "top_p", "a finite number above 0", top_p));
  DEEPMINT_CHECK_OK(check_range(min_p, 0, 1, "min_p"));
  DEEPMINT_CHECK_OK(check_range(repetition_penalty, kMinRepetitionPenalty, kMaxRepetitionPenalty,
                                "repetition_penalty"));
  DEEPMINT_CHECK_OK(check_range(frequency_penalty, -kMaxPenalty, kMaxPenalty, "frequency_penalty"));
  DEEPMINT_CHECK_OK(check_range(presence_penalty, -kMaxPenalty, kMaxPenalty, "presence_penalty"));
  DEEPMINT_CHECK_OK(check_number(top_logprobs >= -1 && top_logprobs <= kMaxTopLogprobs,
                                 "top_logprobs", "a number from -1 to 20", top_logprobs));
  DEEPMINT_CHECK_OK(
      check_number(min_tokens >= 0, "min_tokens", "a number of at least 0", min_tokens));
  DEEPMINT_CHECK_OK(check_ids(allowed_ids, vocab_size, "allowed_ids"));
  DEEPMINT_CHECK_OK(check_ids(banned_ids, vocab_size, "banned_ids"));
  std::vector<TokenId> biased;
  biased.reserve(logit_bias.size());
  for (const auto& [id, bias] : logit_bias) {
    DEEPMINT_CHECK_OK(check_range(bias, -kMaxBias, kMaxBias, fmt::format("logit_bias[{}]", id)));
    biased.push_back(id);
  }
  DEEPMINT_CHECK_OK(check_ids(biased, vocab_size, "logit_bias"));
  std::sort(biased.begin(), biased.end());
  if (const auto twice = std::adjacent_find(biased.begin(), biased.end()); twice != biased.end())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected each id once, found {} twice", *twice), "logit_bias");
  return {};
}

}  // namespace deepmint
