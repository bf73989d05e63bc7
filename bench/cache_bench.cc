// What the prefix cache costs: hashing per token, matching a prefix of 77k tokens (1,204 blocks) in
// a pool of 64k blocks, and the whole life of a hit.
//
//   cache_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only
#include <benchmark/benchmark.h>

#include <random>

#include "kvcache/cache_manager.h"

namespace deepmint::kvcache {
namespace {

constexpr size_t kPromptBlocks = 1204, kPoolBlocks = 65'536;

std::vector<TokenId> random_tokens(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(rng() % 129'280);
  return ids;
}

HashChain chain_of(std::span<const TokenId> tokens) {
  HashChain chain({.model_fingerprint = 1, .layout_fingerprint = 2});
  chain.append(tokens);
  return chain;
}

void hash_tokens(benchmark::State& state) {
  const auto tokens = random_tokens(kPromptBlocks * kBlockTokens, 1);
  for (auto _ : state) benchmark::DoNotOptimize(chain_of(tokens).full_blocks().data());
  state.counters["ns_per_token"] = benchmark::Counter(
      static_cast<double>(tokens.size()) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(hash_tokens)->Unit(benchmark::kMicrosecond);

// A full pool of prompts of that length; each iteration matches another one, so that caches are
// cold.
struct Filled {
  std::unique_ptr<CacheManager> cache;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<HashChain> chains;
  Clock::time_point now{};

  Filled() {
    CacheSetup setup;
    setup.parts = {{"kv", PartFamily::kGlobal, 64}};
    setup.n_blocks = kPoolBlocks;
    cache = std::move(*CacheManager::create(std::move(setup)));
    for (size_t i = 0; i < kPoolBlocks / kPromptBlocks - 1; ++i) {
      tokens.push_back(random_tokens(kPromptBlocks * kBlockTokens, i));
      chains.push_back(chain_of(tokens.back()));
      Lease lease(kPromptBlocks);
      (void)cache->acquire(lease, {}, kPromptBlocks, now);
      for (size_t b = 0; b < kPromptBlocks; ++b) cache->take(lease);
      cache->publish(lease, chains.back().full_blocks(), tokens.back(), now);
      cache->release(lease, now);
    }
  }
};

void match_77k_tokens(benchmark::State& state) {
  const Filled f;
  size_t i = 0;
  for (auto _ : state) {
    const Match m = f.cache->match(f.chains[i].full_blocks(), f.tokens[i], f.now);
    if (m.hit_blocks != kPromptBlocks) state.SkipWithError("not a whole hit");
    i = (i + 1) % f.tokens.size();
  }
}
BENCHMARK(match_77k_tokens)->Unit(benchmark::kMicrosecond);

void acquire_and_release_77k_tokens(benchmark::State& state) {
  Filled f;
  size_t i = 0;
  Lease lease(kPromptBlocks);
  for (auto _ : state) {
    const Match m = f.cache->match(f.chains[i].full_blocks(), f.tokens[i], f.now);
    if (f.cache->acquire(lease, m, 0, f.now) != Acquired::kYes) state.SkipWithError("refused");
    f.cache->release(lease, f.now);
    i = (i + 1) % f.tokens.size();
  }
}
BENCHMARK(acquire_and_release_77k_tokens)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepmint::kvcache

BENCHMARK_MAIN();
