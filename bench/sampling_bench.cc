// Cost of choosing one token from one row of logits. A 16-row step at 49,152 ids may spend 5 % of
// about 20 ms here, that is 1 ms on two threads: 125 us per row.
//
//   sampling_bench --benchmark_filter=49152
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "sampling/row_kernels.h"
#include "sampling/sampler.h"

namespace deepmint {
namespace {

// Shaped like a language model's row: a broad bell, and a few hundred candidates that stand out of
// it.
std::vector<float> model_like_row(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> bell(0, 2.5f);
  std::exponential_distribution<float> tail(0.5f);
  std::vector<float> row(n);
  for (float& x : row) x = bell(rng);
  for (int i = 0; i < 300; ++i) row[rng() % n] = 6 + tail(rng);
  row[rng() % n] = 17;
  row[rng() % n] = 16;
  return row;
}

SamplingParams params(const char* kind) {
  SamplingParams p;
  const std::string_view k = kind;
  if (k == "greedy") p.temperature = 0;
  if (k == "temperature") p.temperature = 0.7f;
  if (k == "logprob") p.top_logprobs = 0;
  if (k == "top5") p.top_logprobs = 5;
  if (k == "top_p") p.top_p = 0.95;
  if (k == "top_p_hot") p.temperature = 2.0f, p.top_p = 0.95;
  if (k == "top_k") p.top_k = 40;
  if (k == "min_p") p.min_p = 0.05f;
  if (k == "everything") {
    p.temperature = 0.8f;
    p.top_k = 200;
    p.top_p = 0.95;
    p.min_p = 0.02f;
    p.repetition_penalty = 1.1f;
    p.frequency_penalty = 0.2f;
    p.top_logprobs = 5;
    p.raw_logprobs = false;
  }
  return p;
}

void sample(benchmark::State& state, const char* kind) {
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<std::vector<float>> rows;
  for (uint64_t r = 0; r < 16; ++r) rows.push_back(model_like_row(n, r));
  std::vector<TokenId> prompt(2000), output(500);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * 17 % n);
  for (size_t i = 0; i < output.size(); ++i) output[i] = static_cast<TokenId>(i * 31 % n);
  const SamplingParams p = params(kind);
  Sampler sampler(state.range(0));
  uint32_t position = 0;
  for (auto _ : state) {
    const auto r = sampler.sample(rows[position % rows.size()], p, {prompt, output},
                                  {.seed = 1, .position = position});
    benchmark::DoNotOptimize(r->token);
    ++position;
  }
}

void noise_and_max(benchmark::State& state) {  // Philox and the bound, where nothing can be skipped
  const auto n = static_cast<size_t>(state.range(0));
  const std::vector<float> row(n, 0.0f);
  std::vector<float> columns(sampling::columns_of(n));
  const auto& k = sampling::row_kernels();
  k.scan(row.data(), n, columns.data());
  sampling::NoiseKey key{{1, 2}, 0, 0, 0};
  for (auto _ : state) {
    ++key.position;
    sampling::GumbelBest best{-1e9, 0};
    k.gumbel_max(row.data(), n, columns.data(), &key, &best);
    benchmark::DoNotOptimize(best.id);
  }
}

void scan(benchmark::State& state) {
  const auto n = static_cast<size_t>(state.range(0));
  const std::vector<float> row = model_like_row(n, 1);
  std::vector<float> columns(sampling::columns_of(n));
  for (auto _ : state)
    benchmark::DoNotOptimize(sampling::row_kernels().scan(row.data(), n, columns.data()).max);
}

void exp_sum(benchmark::State& state) {
  const auto n = static_cast<size_t>(state.range(0));
  const std::vector<float> row = model_like_row(n, 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(sampling::row_kernels().exp_sum(row.data(), n, 17.0f, nullptr));
}

#define SAMPLE(kind) \
  BENCHMARK_CAPTURE(sample, kind, #kind)->Arg(49152)->Arg(129280)->Unit(benchmark::kMicrosecond)
SAMPLE(plain);
SAMPLE(greedy);
SAMPLE(temperature);
SAMPLE(logprob);
SAMPLE(top5);
SAMPLE(top_p);
SAMPLE(top_p_hot);
SAMPLE(top_k);
SAMPLE(min_p);
SAMPLE(everything);
BENCHMARK(noise_and_max)->Arg(49152)->Unit(benchmark::kMicrosecond);
BENCHMARK(scan)->Arg(49152)->Unit(benchmark::kMicrosecond);
BENCHMARK(exp_sum)->Arg(49152)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace deepmint

BENCHMARK_MAIN();
