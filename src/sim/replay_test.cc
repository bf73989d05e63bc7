// The trace reader and the replay, against a plain LRU that others can read in a minute
// (trace_oracle.py).
#include "sim/replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "sim/trace.h"

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
    const std::string command = std::string("/usr/bin/python3 ") + DEEPMINT_SOURCE_DIR +
                                "/src/sim/trace_oracle.py " + path_.string() + " " + arguments;
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

TEST_F(Replay, EqualsThePlainLruToTheToken) {
  for (const uint64_t seed : {1, 2}) {
    const auto trace = generate_trace({.requests = 1000, .seed = seed});
    ASSERT_TRUE(write_trace(trace, path_));
    for (const size_t capacity : {0, 150, 500, 2000})
      for (const auto& [ttl, argument] :
           {std::pair{std::optional<double>(), std::string()},
            std::pair{std::optional<double>(10.0), std::string("--ttl 10")},
            std::pair{std::optional<double>(60.0), std::string("--ttl 60")}}) {
        const auto report = replay_cache(trace, {.capacity_blocks = capacity, .ttl_s = ttl});
        ASSERT_TRUE(report) << report.error().str();
        const auto [hit, prompt] =
            oracle("--capacity " + std::to_string(capacity) + " " + argument);
        EXPECT_EQ(report->hit_tokens, hit) << capacity << " blocks " << argument;
        EXPECT_EQ(report->prompt_tokens, prompt);
        EXPECT_EQ(report->not_stored, 0);
        EXPECT_GT(hit, 0);
      }
  }
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
  const auto product = replay_cache(trace, setting).value();
  setting.policy = kvcache::EvictionPolicy::kLru;
  const auto lru = replay_cache(trace, setting).value();
  // All but the block with the last token, which must run.
  constexpr int64_t kHit = 4 * kTraceBlockTokens - kBlockTokens;
  EXPECT_EQ(product.hit_tokens, 10 * kHit);
  EXPECT_EQ(lru.hit_tokens, kHit);  // only at once: the others flush it
  EXPECT_EQ(product.prompt_tokens, 320 * 4 * kTraceBlockTokens);
  EXPECT_EQ(product.cache.collisions, 0);
}

TEST_F(Replay, TheProductOnGeneratedTraffic) {
  // Sessions over shared system prompts, and single requests.
  const auto trace = generate_trace({.requests = 3000, .running_sessions = 150, .seed = 3});
  const auto hits = [&](size_t capacity, kvcache::EvictionPolicy policy) {
    auto setting = ReplaySetting::product(capacity);
    setting.policy = policy;
    const auto r = replay_cache(trace, setting).value();
    EXPECT_EQ(r.cache.collisions, 0);
    EXPECT_GT(r.hit_rate(), 0.1);
    return r.hit_tokens;
  };
  using kvcache::EvictionPolicy;
  const int64_t all = hits(0, EvictionPolicy::kLru);
  EXPECT_EQ(hits(0, EvictionPolicy::kSegmentedLru), all);  // where nothing must go
  for (const size_t capacity : {700, 2000}) {
    EXPECT_LT(hits(capacity, EvictionPolicy::kLru), all);
    EXPECT_LT(hits(capacity, EvictionPolicy::kSegmentedLru), all);
  }
}

TEST_F(Replay, ARequestLargerThanTheCacheIsCountedAndNotStored) {
  std::vector<TraceRequest> trace(3);
  trace[0] = {.timestamp_ms = 0, .input_tokens = 1024, .output_tokens = 1, .blocks = {1, 2}};
  trace[1] = {.timestamp_ms = 1, .input_tokens = 1600, .output_tokens = 1, .blocks = {1, 2, 3, 4}};
  trace[2] = {.timestamp_ms = 2, .input_tokens = 600, .output_tokens = 1, .blocks = {1, 5}};
  const auto report = replay_cache(trace, {.capacity_blocks = 3}).value();
  EXPECT_EQ(report.not_stored, 1);
  EXPECT_EQ(report.hit_tokens, 1024 + 512);
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
