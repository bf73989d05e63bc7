// The trace reader and the replay, against a plain LRU that others can read in a minute
// (trace_oracle.py).
#include "sim/replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "sim/trace.h"
#include "support/source_dir.h"

namespace deepmint::sim {
namespace {

namespace fs = std::filesystem;

class Replay : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / ("deepmint_trace_" + std::to_string(getpid()) + ".jsonl");
  }
  void TearDown() override { fs::remove(path_); }

  std::pair<int64_t, int64_t> oracle(const std::string& arguments) const {
    const std::string command = "/usr/bin/python3 " +
                                testing::source_path("src/sim/trace_oracle.py").string() + " " +
                                path_.string() + " " + arguments;
    FILE* pipe = popen(command.c_str(), "r");
    long long hit = -1, prompt = -1;
    EXPECT_EQ(fscanf(pipe, "%lld %lld", &hit, &prompt), 2) << command;
    EXPECT_EQ(pclose(pipe), 0);
    return {hit, prompt};
  }
  std::string refusal(const std::string& text) const {
    std::ofstream(path_) << text;
    const auto trace = read_trace(path_);
    return trace ? "read" : trace.error().str();
  }
  fs::path path_;
};

// The real scheduler and cache in the reference setting, against 20 lines of Python.
TEST_F(Replay, EqualsThePlainLruToTheToken) {
  for (const uint64_t seed : {1, 2}) {
    const auto trace = generate_trace({.requests = 1000, .seed = seed});
    ASSERT_TRUE(write_trace(trace, path_));
    for (const size_t capacity : {0, 150, 500, 2000})
      for (const auto& [ttl, argument] :
           {std::pair{std::optional<double>(), std::string()},
            std::pair{std::optional<double>(10.0), std::string("--ttl 10")},
            std::pair{std::optional<double>(60.0), std::string("--ttl 60")}}) {
        const auto report = replay(trace, ReplaySetting::reference(capacity, ttl));
        ASSERT_TRUE(report) << report.error().str();
        const auto [hit, prompt] =
            oracle("--capacity " + std::to_string(capacity) + " " + argument);
        EXPECT_EQ(report->hit_tokens, hit) << capacity << " blocks " << argument;
        EXPECT_EQ(report->prompt_tokens, prompt);
        EXPECT_EQ(report->refused, 0);
        EXPECT_EQ(report->cache.collisions, 0);
        EXPECT_GT(hit, 0);
      }
  }
}

// Where nothing gives way, a hit is what of a prompt's full blocks came before, but for the block
// with its last token.
TEST_F(Replay, TheProductFindsEveryBlockThatIsThere) {
  const auto trace = generate_trace({.requests = 500});
  std::set<std::pair<uint64_t, size_t>> seen;
  int64_t expected = 0;
  for (const TraceRequest& r : trace) {
    constexpr size_t kParts = kTraceBlockTokens / kBlockTokens;
    const auto full = static_cast<size_t>(r.input_tokens / kBlockTokens);
    const auto reusable = static_cast<size_t>((r.input_tokens - 1) / kBlockTokens);
    bool hit = true;
    for (size_t i = 0; i < full; ++i) {
      const bool is_new = seen.insert({r.blocks[i / kParts], i % kParts}).second;
      hit = hit && !is_new && i < reusable;
      expected += hit ? kBlockTokens : 0;
    }
  }
  const auto report = replay(trace, ReplaySetting::product(0)).value();
  EXPECT_EQ(report.hit_tokens, expected);
  EXPECT_EQ(report.cache.evicted, 0);
  EXPECT_EQ(report.output_tokens, 0);
  EXPECT_GT(expected, 0);
}

TEST_F(Replay, TheProductKeepsWhatIsHitOften) {
  // A prompt that comes again, each time after 30 or 31 that come once: together more than fit.
  std::vector<TraceRequest> trace;
  uint64_t id = 100;
  for (int round = 0; round < 10; ++round)
    for (int i = 0; i < 32; ++i) {
      const bool again = round == 0 ? i < 2 : i == 0;
      std::vector<uint64_t> blocks = {1, 2, 3, 4};
      if (!again)
        for (uint64_t& block : blocks) block = ++id;
      trace.push_back({.timestamp_ms = static_cast<int64_t>(trace.size()),
                       .input_tokens = 4 * kTraceBlockTokens,
                       .output_tokens = 1,
                       .blocks = std::move(blocks)});
    }
  auto setting = ReplaySetting::product(40);
  const auto product = replay(trace, setting).value();
  setting.policy = kvcache::EvictionPolicy::kLru;
  const auto lru = replay(trace, setting).value();
  // All but the block with the last token, which must run.
  constexpr int64_t kHit = 4 * kTraceBlockTokens - kBlockTokens;
  EXPECT_EQ(product.hit_tokens, 10 * kHit);
  EXPECT_EQ(lru.hit_tokens, kHit);  // only at once: the others flush it
  EXPECT_EQ(product.prompt_tokens, 320 * 4 * kTraceBlockTokens);
  EXPECT_EQ(product.cache.collisions, 0);
}

// Requests that are far apart find under load what they find when they take no time, and each
// waits exactly for its own steps.
TEST_F(Replay, LoadChangesNothingWhereNobodyMeets) {
  auto trace = generate_trace({.requests = 300, .running_sessions = 8, .longest_blocks = 20});
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].timestamp_ms = static_cast<int64_t>(i) * 100'000;
    trace[i].output_tokens = 1 + trace[i].output_tokens % 20;
  }
  const auto alone = replay(trace, ReplaySetting::product(0)).value();
  auto setting = ReplaySetting::product(0).under_load(/*step_ms=*/7, /*tokens_per_s=*/1000);
  setting.step_tokens = 1 << 15;  // a prompt is one step
  const auto load = replay(trace, setting).value();
  EXPECT_EQ(load.prompt_tokens, alone.prompt_tokens);
  EXPECT_EQ(load.hit_tokens, alone.hit_tokens);
  EXPECT_EQ(load.refused, 0);
  ASSERT_EQ(load.first_token_s.size(), trace.size());
  double seconds = 0;
  for (const double s : load.first_token_s) seconds += s;
  const auto n = static_cast<double>(trace.size());
  EXPECT_NEAR(seconds, static_cast<double>(load.prompt_tokens - load.hit_tokens) / 1000 + 0.007 * n,
              1e-6 * n);
  EXPECT_LT(load.busy_share, 0.5);
}

TEST_F(Replay, DenseTrafficWaitsAndIsReproducible) {
  const auto trace = generate_trace({.requests = 400, .mean_gap_ms = 20});
  auto setting = ReplaySetting::product(300).under_load(5, 70'000);
  setting.max_running = 16;
  const auto busy = replay(trace, setting).value();
  EXPECT_EQ(busy.first_token_s, replay(trace, setting).value().first_token_s);
  EXPECT_EQ(busy.first_token_s.size(), trace.size());
  EXPECT_GT(busy.busy_share, 0.9);
  EXPECT_GT(busy.first_token_ms(0.99), 2 * busy.first_token_ms(0.5));
  int64_t output = 0;
  for (const TraceRequest& r : trace) output += r.output_tokens;
  EXPECT_EQ(busy.output_tokens, output);
  // Twice as fast a model answers sooner.
  EXPECT_LT(replay(trace,
                   [&] {
                     auto fast = setting;
                     fast.cost = StepCost{.step_ms = 2.5, .tokens_per_s = 140'000};
                     return fast;
                   }())
                .value()
                .first_token_ms(0.5),
            busy.first_token_ms(0.5));
}

TEST_F(Replay, ARequestLargerThanTheCacheIsRefusedAndStoresNothing) {
  std::vector<TraceRequest> trace(3);
  trace[0] = {.timestamp_ms = 0, .input_tokens = 1024, .output_tokens = 1, .blocks = {1, 2}};
  trace[1] = {.timestamp_ms = 1, .input_tokens = 1600, .output_tokens = 1, .blocks = {1, 2, 3, 4}};
  trace[2] = {.timestamp_ms = 2, .input_tokens = 600, .output_tokens = 1, .blocks = {1, 5}};
  const auto report = replay(trace, ReplaySetting::reference(3)).value();
  EXPECT_EQ(report.refused, 1);
  EXPECT_EQ(report.hit_tokens, 512);
  EXPECT_EQ(report.prompt_tokens, 1024 + 1600 + 600);
}

TEST_F(Replay, ATraceComesBackAsItWasWritten) {
  const auto trace = generate_trace({.requests = 50});
  ASSERT_TRUE(write_trace(trace, path_));
  const auto read = read_trace(path_).value();
  ASSERT_EQ(read.size(), trace.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].timestamp_ms, trace[i].timestamp_ms);
    EXPECT_EQ(read[i].input_tokens, trace[i].input_tokens);
    EXPECT_EQ(read[i].output_tokens, trace[i].output_tokens);
    EXPECT_EQ(read[i].blocks, trace[i].blocks);
  }
}

TEST_F(Replay, ABadTraceIsRefusedWithItsLine) {
  const std::string good =
      "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [1, 2]}\n";
  EXPECT_EQ(refusal(good), "read");
  EXPECT_NE(refusal(good + "nonsense\n").find(":2"), std::string::npos);
  EXPECT_NE(refusal("").find("found none"), std::string::npos);
  EXPECT_NE(refusal("{\"timestamp\": 5}\n").find("input_length"), std::string::npos);
  EXPECT_NE(refusal("{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 1, "
                    "\"hash_ids\": [1]}\n")
                .find("expected 2 hash ids"),
            std::string::npos);
  EXPECT_NE(refusal("{\"timestamp\": 5, \"input_length\": 6, \"output_length\": 1, "
                    "\"hash_ids\": [-1]}\n")
                .find("whole numbers"),
            std::string::npos);
  EXPECT_NE(refusal(good + "{\"timestamp\": 4, \"input_length\": 6, \"output_length\": 1, "
                           "\"hash_ids\": [1]}\n")
                .find("at least 5"),
            std::string::npos);
  fs::remove(path_);
  EXPECT_EQ(read_trace(path_).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace deepmint::sim
