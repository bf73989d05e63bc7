// A trace through the real cache, without a model: what share of the prompt tokens would be found.
//
//   const ReplayReport r = replay_cache(trace, {.capacity_blocks = 5000}).value();
//   fmt::print("{:.1f} %\n", 100 * r.hit_rate());
//
// Requests take no time: each is matched, computed, published and released before the next. The
// defaults are the reference setting: least recently used, one cache block per trace block, hits
// closed under prefix and weighted by tokens. product() is what the engine does: blocks of 64
// tokens, segmented LRU, the last prompt token always run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "deepmint/result.h"
#include "kvcache/cache_manager.h"
#include "sim/trace.h"

namespace deepmint::sim {

struct ReplaySetting {
  size_t capacity_blocks = 0;        // of kTraceBlockTokens; 0 = as many as the trace has
  std::optional<double> ttl_s = {};  // since the last use; none = for ever
  kvcache::EvictionPolicy policy = kvcache::EvictionPolicy::kLru;
  bool fine = false;  // blocks of kBlockTokens, full ones only, as in the engine

  static ReplaySetting product(size_t capacity_blocks, std::optional<double> ttl_s = {});
};

struct ReplayReport {
  int64_t requests = 0;
  int64_t prompt_tokens = 0, hit_tokens = 0;
  int64_t not_stored = 0;  // requests larger than the cache
  kvcache::CacheCounters cache;
  double hit_rate() const {
    return prompt_tokens == 0
               ? 0
               : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

Result<ReplayReport> replay_cache(const std::vector<TraceRequest>& trace,
                                  const ReplaySetting& setting);

// Blocks of the trace that differ.
size_t distinct_blocks(const std::vector<TraceRequest>& trace);

}  // namespace deepmint::sim
