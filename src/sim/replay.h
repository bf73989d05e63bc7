// A trace through the real engine core, its scheduler and its cache, with a stand-in for the model:
// steps take the time that a cost model says, on a virtual clock, so that an hour of traffic takes
// seconds. What a replay reports is a function of trace and setting alone.
//
//   const auto r = replay(trace, ReplaySetting::reference(5000)).value();
//   fmt::print("{:.1f} %\n", 100 * r.hit_rate());
//   const auto busy = replay(trace, ReplaySetting::product(5000).under_load(5, 70'000)).value();
//   busy.first_token_ms(0.99), busy.busy_share
//
// Three settings, all with the same memory:
// - reference: what others publish for such traces. Least recently used, one cache block per trace
//   block, hits closed under prefix and weighted by tokens; requests take no time and come one
//   after the other; nothing but prompts.
// - product: the cache as the engine has it, blocks of kBlockTokens, segmented LRU, the last prompt
//   token always run. Otherwise as above.
// - under_load: the product with its clock: requests meet, wait, run in chunks beside each other,
//   write replies into the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "deepmint/result.h"
#include "kvcache/cache_manager.h"
#include "sim/trace.h"

namespace deepmint::sim {

// A step of n rows takes step_ms + n / tokens_per_s.
struct StepCost {
  double step_ms = 5;
  double tokens_per_s = 70'000;
};

struct ReplaySetting {
  size_t capacity_blocks = 0;        // of kTraceBlockTokens; 0 = as many as the trace needs
  std::optional<double> ttl_s = {};  // since the last use; none = for ever
  kvcache::EvictionPolicy policy = kvcache::EvictionPolicy::kSegmentedLru;
  // Each trace block stands as one block of the cache, a partial one at a prompt's end too.
  bool whole_trace_blocks = false;
  std::optional<StepCost> cost = {};  // none: no time, one request after the other, no replies
  int32_t max_running = 256;
  int32_t step_tokens = 8192;

  static ReplaySetting reference(size_t capacity_blocks, std::optional<double> ttl_s = {});
  static ReplaySetting product(size_t capacity_blocks, std::optional<double> ttl_s = {});
  ReplaySetting under_load(double step_ms, double tokens_per_s) const;
};

struct ReplayReport {
  int64_t requests = 0;
  int64_t refused = 0;  // larger than the cache
  int64_t prompt_tokens = 0, hit_tokens = 0, output_tokens = 0, steps = 0;
  kvcache::CacheCounters cache;
  double seconds = 0;                 // of virtual time
  double busy_share = 0;              // of it that steps ran
  std::vector<double> first_token_s;  // since the arrival, ascending
  double hit_rate() const {
    return prompt_tokens == 0
               ? 0
               : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
  double first_token_ms(double quantile) const;  // NaN without replies
};

Result<ReplayReport> replay(const std::vector<TraceRequest>& trace, const ReplaySetting& setting);

// Blocks of the trace that differ.
size_t distinct_blocks(const std::vector<TraceRequest>& trace);

}  // namespace deepmint::sim
