// Hit rates of a recorded trace, or of generated traffic, in the engine's own scheduler and cache:
//
//   trace_replay conversation_trace.jsonl
//   trace_replay --requests 20000 --seed 7 --write generated.jsonl
//
// One row per capacity and per time to live, all with the same memory. "LRU, 512": the reference
// setting that published figures are for (plain LRU over 512-token blocks, requests that take no
// time). "product": what the engine does (blocks of 64 tokens, segmented LRU, the last prompt token
// always run). "under load": the product on a virtual clock, with a model that takes --step-ms and
// one second per --tokens-per-s rows for a step: requests meet, wait, and write replies.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "sim/replay.h"
#include "sim/trace.h"

namespace deepmint::sim {
namespace {

int complain(const Error& error) {
  fmt::print(stderr, "trace_replay: {}\n", error.str());
  return exit_code(error);
}

Status row(const std::vector<TraceRequest>& trace, const std::string& name, size_t capacity,
           std::optional<double> ttl_s, const StepCost& cost) {
  const ReplaySetting product = ReplaySetting::product(capacity, ttl_s);
  DEEPMINT_TRY(lru, replay(trace, ReplaySetting::reference(capacity, ttl_s)));
  DEEPMINT_TRY(alone, replay(trace, product));
  DEEPMINT_TRY(load, replay(trace, product.under_load(cost.step_ms, cost.tokens_per_s)));
  fmt::print("{:>22}  {:>7.1f} %  {:>7.1f} %  {:>8.1f} %  {:>6.1f} %  {:>9.0f}  {:>9.0f}  {:>7}\n",
             name, 100 * lru.hit_rate(), 100 * alone.hit_rate(), 100 * load.hit_rate(),
             100 * load.busy_share, load.first_token_ms(0.5), load.first_token_ms(0.99),
             std::max({lru.refused, alone.refused, load.refused}));
  std::fflush(stdout);
  return {};
}

Status report(const std::vector<TraceRequest>& trace, const std::vector<size_t>& capacities,
              const std::vector<double>& ttls, const StepCost& cost) {
  int64_t input = 0, output = 0;
  for (const TraceRequest& r : trace) {
    input += r.input_tokens;
    output += r.output_tokens;
  }
  const auto n = static_cast<int64_t>(trace.size());
  fmt::print(
      "{} requests in {} s, {} tokens in and {} out on average, {} distinct blocks of {}\n\n", n,
      (trace.back().timestamp_ms - trace.front().timestamp_ms) / 1000, input / n, output / n,
      distinct_blocks(trace), kTraceBlockTokens);
  fmt::print("{:>22}  {:>9}  {:>9}  {:>10}  {:>8}  {:>20}  {:>7}\n", "", "LRU, 512", "product",
             "under load", "busy", "first token, ms", "refused");
  fmt::print("{:>22}  {:>9}  {:>9}  {:>10}  {:>8}  {:>9}  {:>9}\n", "cache", "hits", "hits", "hits",
             "", "p50", "p99");
  for (const size_t blocks : capacities)
    DEEPMINT_CHECK_OK(row(trace, fmt::format("{} blocks", blocks), blocks, {}, cost));
  DEEPMINT_CHECK_OK(row(trace, "everything", 0, {}, cost));
  for (const double ttl : ttls)
    DEEPMINT_CHECK_OK(row(trace, fmt::format("everything for {} s", ttl), 0, ttl, cost));
  return {};
}

int run(int argc, char** argv) {
  CLI::App app("Hit rates of a trace in the engine's scheduler and prefix cache.");
  std::string path, write;
  std::vector<size_t> capacities = {1000, 5000, 10'000, 30'000, 50'000};
  std::vector<double> ttls = {60, 180, 600, 1800};
  StepCost cost;
  TrafficOptions traffic{.requests = 10'000, .running_sessions = 400};
  app.add_option("TRACE", path, "JSON lines in the Mooncake format; none: generated traffic");
  app.add_option("--capacity", capacities, "cache sizes in blocks of 512 tokens")->delimiter(',');
  app.add_option("--ttl", ttls, "seconds since the last use, with room for everything")
      ->delimiter(',');
  app.add_option("--requests", traffic.requests, "of generated traffic")
      ->check(CLI::Range(1, 10'000'000));
  app.add_option("--sessions", traffic.running_sessions, "of generated traffic, at any time")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", traffic.seed, "of generated traffic");
  app.add_option("--write", write, "write the generated trace to this file");
  app.add_option("--step-ms", cost.step_ms, "under load: what a step takes at least")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--tokens-per-s", cost.tokens_per_s, "under load: rows that a second runs")
      ->check(CLI::Range(1.0, 1e12));
  CLI11_PARSE(app, argc, argv);
  std::vector<TraceRequest> trace;
  if (path.empty()) {
    trace = generate_trace(traffic);
    if (!write.empty())
      if (const Status ok = write_trace(trace, write); !ok) return complain(ok.error());
  } else {
    auto read = read_trace(path);
    if (!read) return complain(read.error());
    trace = std::move(*read);
  }
  if (const Status ok = report(trace, capacities, ttls, cost); !ok) return complain(ok.error());
  return 0;
}

}  // namespace
}  // namespace deepmint::sim

int main(int argc, char** argv) { return deepmint::sim::run(argc, argv); }
