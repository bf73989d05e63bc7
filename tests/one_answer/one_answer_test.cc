// A reply's bits depend on the request alone: whole requests through the engine under every pair of
// circumstances. How many cases: DEEPMINT_TEST_QUICK few, otherwise what ./test.sh has time for,
// DEEPMINT_TEST_FULL many. One alone: DEEPMINT_ONE_ANSWER_CASE=index with the printed seed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "engine/schedule_replay.h"
#include "model/deepseek_v41/synth.h"
#include "one_answer/covering_array.h"
#include "one_answer/harness.h"
#include "support/source_dir.h"
#include "support/test_seed.h"
#include "support/tiny_model.h"

namespace deepmint::one_answer {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

int how_many(int quick, int normal, int full, int thread_sanitizer) {
  if (kThreadSanitizer) return thread_sanitizer;
  if (is_set("DEEPMINT_TEST_QUICK")) return quick;
  return is_set("DEEPMINT_TEST_FULL") ? full : normal;
}

LoadedModel load(const fs::path& path, int threads) {
  auto loaded = load_model(path, {.threads = threads});
  if (!loaded) throw std::runtime_error(loaded.error().str());
  return std::move(*loaded);
}

std::vector<TokenId> random_text(int64_t vocab, size_t n) {
  std::mt19937_64 rng(7);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(rng() % static_cast<uint64_t>(vocab));
  return ids;
}

class TemporaryPath {
 public:
  explicit TemporaryPath(const std::string& name)
      : path_(fs::temp_directory_path() /
              ("deepmint_one_answer_" + std::to_string(getpid()) + "_" + name)) {
    fs::remove_all(path_);
  }
  ~TemporaryPath() { fs::remove_all(path_); }
  const fs::path& get() const { return path_; }

 private:
  fs::path path_;
};

// Window 16, top 8 of a pool of 16 rows: prompts of 129 and 300 go past all of them. 46 rows make a
// decoder tail the exact one: a tail of 16 leaves one row out of a prompt of 17 and begins at a
// block's boundary in one of 80; 45 is one row short of the exact answer, 46 is it.
Subject tiny_v41() {
  const TemporaryPath folder("v41");
  const auto ok = v41::synthesize(v41::synth_config(v41::SynthPreset::kTiny), folder.get());
  if (!ok) throw std::runtime_error(ok.error().str());
  Subject s{.name = "tiny V4.1"};
  for (const int threads : {1, 2}) s.loaded.push_back(load(folder.get(), threads));
  s.text = random_text(s.loaded[0].model->info().vocab_size, 300);
  s.prompt_lengths = {5, 17, 64, 80, 129, 300};
  s.tails = {16, 20, 45, 46};
  return s;
}

Subject tiny_dense() {
  const TemporaryPath file("dense.gguf");
  testing::TinyModel shape = testing::tiny_model_for(DType::kQ4_1);
  shape.context = 1024;
  testing::tiny_gguf(shape).write(file.get());
  Subject s{.name = "tiny dense"};
  for (const int threads : {1, 2}) s.loaded.push_back(load(file.get(), threads));
  s.text = random_text(s.loaded[0].model->info().vocab_size, 300);
  s.prompt_lengths = {5, 64, 129, 300};
  return s;
}

void run_cases(Harness& harness, int count, bool approximates = false) {
  if (const char* only = std::getenv("DEEPMINT_ONE_ANSWER_CASE")) {
    const auto failure = harness.check(harness.case_at(std::atoi(only)));
    EXPECT_FALSE(failure.has_value()) << *failure;
    return;
  }
  int failures = 0;
  for (int i = 0; i < count && failures < 3; ++i)
    if (const auto failure = harness.check(harness.case_at(i))) {
      ADD_FAILURE() << *failure;
      ++failures;
    }
  const Seen& seen = harness.seen();
  std::printf(
      "%d cases: %lld restores, %lld aborted neighbours, %lld preemptions, %lld cached "
      "tokens, %lld engines that plan ahead, %lld snapshots restored, %lld tokens that "
      "bounded tails skipped, %lld approximations beside exact requests\n",
      count, static_cast<long long>(seen.restores), static_cast<long long>(seen.aborted),
      static_cast<long long>(seen.preemptions), static_cast<long long>(seen.cached_tokens),
      static_cast<long long>(seen.planned_ahead), static_cast<long long>(seen.snapshots_restored),
      static_cast<long long>(seen.skipped_tokens), static_cast<long long>(seen.bounded_neighbours));
  if (count >= 40) {
    EXPECT_GT(seen.cached_tokens, 0);
    EXPECT_GT(seen.restores, 0);
    EXPECT_GT(seen.aborted, 0);
    EXPECT_GT(seen.preemptions, 0);
    EXPECT_GT(seen.planned_ahead, 0);
    EXPECT_EQ(seen.skipped_tokens > 0, approximates);
    EXPECT_EQ(seen.bounded_neighbours > 0, approximates);
    EXPECT_EQ(seen.snapshots_restored > 0, approximates);
  }
}

TEST(OneAnswer, TinyV41) {
  Harness harness(tiny_v41(), testing::test_seed());
  run_cases(harness, how_many(25, 300, 10'000, 200), /*approximates=*/true);
}

TEST(OneAnswer, TinyDense) {
  Harness harness(tiny_dense(), testing::test_seed());
  run_cases(harness, how_many(40, 300, 10'000, 200));
}

TEST(OneAnswer, SmolLm2) {
  const fs::path path = testing::source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!fs::exists(path))
    GTEST_SKIP() << "no " << path.filename() << " in models/ (./quickstart.sh gets it)";
  if (kThreadSanitizer) GTEST_SKIP() << "too slow under the thread sanitizer; the tiny models run";
  Subject s{.name = "SmolLM2"};
  for (const int threads : {1, 2}) s.loaded.push_back(load(path, threads));
  std::ifstream in(testing::source_path("docs/engine.md"));
  std::stringstream text;
  text << in.rdbuf();
  s.text = s.loaded[0].tokenizer->encode_text(text.str());
  ASSERT_GE(s.text.size(), 400u);
  s.prompt_lengths = {30, 129, 300};
  s.company = {1, 2, 5, 12};
  if (is_set("DEEPMINT_TEST_FULL")) s.company.push_back(64);
  s.chunks = {7, 64, 127, 128, 129, 2048};
  s.max_tokens = 8;
  s.companion_prompt = 40;
  Harness harness(std::move(s), testing::test_seed());
  run_cases(harness, how_many(2, 10, 200, 0));
}

// What a case did to its engines, written down and done again on the model alone.
TEST(OneAnswer, ARecordedCaseIsDoneAgain) {
  for (const bool dense : {false, true}) {
    Harness harness(dense ? tiny_dense() : tiny_v41(), testing::test_seed());
    int engines = 0;
    for (int i = 0; i < 6; ++i) {
      int64_t tokens = 0;  // an engine may have saved its request before the first
      for (const Harness::Recorded& r : harness.record(harness.case_at(i))) {
        const auto done = replay_schedule(r.lines, r.loaded);
        ASSERT_TRUE(done.has_value()) << done.error().str() << "\n"
                                      << harness.case_at(i).describe();
        tokens += done->tokens;
        ++engines;
      }
      EXPECT_GT(tokens, 0) << harness.case_at(i).describe();
    }
    EXPECT_GE(engines, 6);
  }
}

// ---------------------------------------------------------------- is the harness itself awake?

// A head, or a key, that comes out different in company must be found, and named.
TEST(OneAnswer, AModelThatDependsOnTheBatchIsFound) {
  for (const auto& [fault, place] :
       {std::pair{Fault::kHead, "logits"}, std::pair{Fault::kState, "layer 0 attn"}}) {
    Harness harness(tiny_dense(), 1, fault);
    int in_company = 0, found = 0, named = 0;
    for (int i = 0; in_company < 12; ++i) {
      Case c = harness.case_at(i);
      if (c.company < 4 || c.spread || c.prompt < 64 || c.cache != Cache::kCold) continue;
      c.restores = 0;
      c.abort_neighbours = false;  // or there may be nobody left
      ++in_company;
      const auto failure = harness.check(c);
      found += failure.has_value();
      named += failure && failure->find(place) != std::string::npos;
    }
    EXPECT_EQ(found, in_company) << place;
    // A state that went wrong late in a reply may show in the logits alone.
    EXPECT_GE(2 * named, in_company) << place;
  }
}

TEST(CoveringArray, HasEveryPairAndIsSmall) {
  for (const std::vector<int>& levels :
       {std::vector{5, 7, 4, 6, 4, 3, 2, 2, 2, 2, 2}, std::vector{5, 7, 6, 6, 4, 7, 2, 2, 2, 2, 2},
        std::vector{2, 2}, std::vector{3, 1, 4, 6}, std::vector{4}}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const auto rows = covering_array(levels, seed);
      EXPECT_EQ(rows, covering_array(levels, seed));
      size_t pairs = 0;
      for (size_t a = 0; a < levels.size(); ++a)
        for (size_t b = a + 1; b < levels.size(); ++b)
          for (int i = 0; i < levels[a]; ++i)
            for (int j = 0; j < levels[b]; ++j, ++pairs)
              ASSERT_TRUE(std::ranges::any_of(
                  rows, [&](const std::vector<int>& row) { return row[a] == i && row[b] == j; }))
                  << a << "=" << i << ", " << b << "=" << j;
      for (const auto& row : rows) {
        ASSERT_EQ(row.size(), levels.size());
        for (size_t d = 0; d < row.size(); ++d) ASSERT_TRUE(row[d] >= 0 && row[d] < levels[d]);
      }
      if (levels.size() == 11) {
        EXPECT_LE(rows.size(), 65u);  // 42 at least
      }
    }
  }
  EXPECT_NE(covering_array(std::vector{5, 7, 4}, 1), covering_array(std::vector{5, 7, 4}, 2));
}

}  // namespace
}  // namespace deepmint::one_answer
