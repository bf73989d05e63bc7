#include "cli/config.h"

namespace deepmint::cli {

void SamplingConfig::apply(SamplingParams& params) const {
  if (temperature) params.temperature = *temperature;
  if (top_p) params.top_p = *top_p;
  if (top_k) params.top_k = *top_k;
  if (min_p) params.min_p = *min_p;
  if (repetition_penalty) params.repetition_penalty = *repetition_penalty;
  if (frequency_penalty) params.frequency_penalty = *frequency_penalty;
  if (presence_penalty) params.presence_penalty = *presence_penalty;
  if (seed) params.seed = seed;
}

}  // namespace deepmint::cli
