#include "sim/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace deepmint::sim {
namespace {

using kvcache::Acquired;
using kvcache::BlockHash;
using kvcache::CacheManager;
using kvcache::Lease;
using kvcache::Match;

constexpr size_t kFinePerBlock = kTraceBlockTokens / kBlockTokens;

// Names and token ids that stand for part `part` of a trace block. Trace ids are chained already:
// an id stands for its block and everything before it.
BlockHash name_of(uint64_t block, size_t part) { return {{block * kFinePerBlock + part, 1}, 1}; }

void append_ids(std::vector<TokenId>& out, uint64_t block, size_t part) {
  const size_t begin = out.size();
  out.resize(begin + kBlockTokens, 0);
  out[begin] = static_cast<TokenId>(block & 0x7fffffff);
  out[begin + 1] = static_cast<TokenId>(block >> 31 & 0x7fffffff);
  out[begin + 2] = static_cast<TokenId>(part);
}

}  // namespace

ReplaySetting ReplaySetting::product(size_t capacity_blocks, std::optional<double> ttl_s) {
  return {.capacity_blocks = capacity_blocks,
          .ttl_s = ttl_s,
          .policy = kvcache::EvictionPolicy::kSegmentedLru,
          .fine = true};
}

size_t distinct_blocks(const std::vector<TraceRequest>& trace) {
  std::unordered_set<uint64_t> seen;
  for (const TraceRequest& r : trace) seen.insert(r.blocks.begin(), r.blocks.end());
  return seen.size();
}

Result<ReplayReport> replay_cache(const std::vector<TraceRequest>& trace,
                                  const ReplaySetting& setting) {
  const size_t parts = setting.fine ? kFinePerBlock : 1;
  kvcache::CacheSetup setup;
  setup.parts = {{"stand-in", kvcache::PartFamily::kGlobal, 64}};
  // Without a limit: all that differ, and one request's own copy while it is not published.
  size_t longest = 0;
  for (const TraceRequest& r : trace) longest = std::max(longest, r.blocks.size());
  setup.n_blocks = parts * (setting.capacity_blocks > 0 ? setting.capacity_blocks
                                                        : distinct_blocks(trace) + longest);
  setup.policy = setting.policy;
  setup.event_capacity = 0;
  if (setting.ttl_s)
    setup.block_ttl = std::chrono::nanoseconds(static_cast<int64_t>(*setting.ttl_s * 1e9));
  DEEPMINT_TRY(cache, CacheManager::create(std::move(setup)));

  ReplayReport report;
  std::vector<TokenId> tokens;
  std::vector<BlockHash> names;
  for (const TraceRequest& r : trace) {
    const Clock::time_point now{std::chrono::milliseconds(r.timestamp_ms)};
    tokens.clear();
    names.clear();
    size_t reusable = r.blocks.size(), total = r.blocks.size();
    for (const uint64_t block : r.blocks)
      for (size_t part = 0; part < parts; ++part) {
        append_ids(tokens, block, part);
        names.push_back(name_of(block, part));
      }
    if (setting.fine) {
      total = static_cast<size_t>(r.input_tokens) / kBlockTokens;
      reusable = kvcache::reusable_blocks(static_cast<size_t>(r.input_tokens));
    }
    const auto all = std::span(names).first(total);
    const Match match = cache->match(all.first(reusable), tokens, now);
    ++report.requests;
    report.prompt_tokens += r.input_tokens;
    report.hit_tokens += setting.fine ? static_cast<int64_t>(match.hit_blocks) * kBlockTokens
                                      : r.tokens_in(match.hit_blocks);
    Lease lease(total);
    if (cache->acquire(lease, match, total - match.hit_blocks, now, reusable) != Acquired::kYes) {
      ++report.not_stored;
      continue;
    }
    while (lease.blocks().size() < total) cache->take(lease);
    cache->publish(lease, all, tokens, now);
    cache->release(lease, now);
  }
  report.cache = cache->counters();
  DEEPMINT_CHECK_OK(cache->check());
  return report;
}

}  // namespace deepmint::sim
