// Plans that leave work out, against the runs whose bits they promise.
#include "model/deepseek_v41/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/deepseek_v41/snapshot.h"
#include "model/deepseek_v41/v41_testing.h"
#include "support/source_dir.h"

namespace deepmint::v41 {
namespace {

using namespace testing;  // NOLINT: the fixtures of v41_testing.h
using nlohmann::json;

class Replay : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    checkpoint_ = new Checkpoint(synth_config(SynthPreset::kTiny));
    model_ = checkpoint_->load(make_reference_arithmetic()).release();
    prompt_ = json::parse(std::ifstream(
        deepmint::testing::source_path("tests/spec/model/tiny/expected.json")))["prompt"]
                  .get<std::vector<int>>();
    cold_ = new Cache(*model_, 1, kBlocks, std::byte{0});
    cold_logits_ = run(*model_, *cold_, rows_of(prompt_, 0));
  }
  static void TearDownTestSuite() {
    delete cold_;
    delete model_;
    delete checkpoint_;
  }
  static const Config& config() { return model_->config(); }
  static std::span<const float> cold_logits(int position) {
    const auto vocab = static_cast<size_t>(config().vocab);
    return std::span(cold_logits_).subspan(static_cast<size_t>(position) * vocab, vocab);
  }

  // Runs a plan to the end of the prompt; logits of the last row.
  static std::vector<float> run_plan(Cache& cache, const ReplayPlan& plan, int length,
                                     std::span<const size_t> sizes) {
    const std::vector<TokenId> ids(prompt_.begin(), prompt_.end());
    model_->layout().write_history(cache.memory(), cache.ref(0), ids, plan.begin);
    std::vector<Row> rows;
    for (int p = plan.begin; p < length; ++p)
      rows.push_back(plan.row(p, prompt_[static_cast<size_t>(p)]));
    rows.back().needs_logits = true;
    return run_in_steps(*model_, cache, rows, sizes);
  }
  // Twelve greedy steps: what the state that a plan leaves behind is worth.
  static std::vector<float> go_on(Cache& cache, int length) {
    std::vector<float> all;
    for (int step = 0; step < 12; ++step) {
      const std::array<int, 1> token = {(step * 37 + 5) % 512};
      const auto logits = run(*model_, cache, rows_of(token, length + step));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  static constexpr size_t kBlocks = 3;
  static Checkpoint* checkpoint_;
  static V41Model* model_;
  static std::vector<int> prompt_;
  static Cache* cold_;
  static std::vector<float> cold_logits_;
};
Checkpoint* Replay::checkpoint_ = nullptr;
V41Model* Replay::model_ = nullptr;
std::vector<int> Replay::prompt_;
Cache* Replay::cold_ = nullptr;
std::vector<float> Replay::cold_logits_;

constexpr std::array<size_t, 1> kWhole = {1024};
constexpr std::array<size_t, 4> kOdd = {1, 7, 3, 13};

TEST(ReplayPlans, HaveTheSpecifiedLengthsAtOfficialDimensions) {
  const Config c = synth_config(SynthPreset::kOfficial);
  EXPECT_EQ(exact_tail_rows(c), 2414);
  const auto tail = plan_tail(c, {.mode = TailMode::kExact}, 10000);
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->first_kept, 10000 - 2414);
  EXPECT_EQ(tail->layer_end, 20);
  EXPECT_EQ(plan_tail(c, {.mode = TailMode::kBounded}, 10000)->first_kept, 10000 - 140);
  EXPECT_EQ(plan_tail(c, {.mode = TailMode::kExact}, 2414)->first_kept, 0);
  EXPECT_EQ(plan_tail(c, {}, 10000)->first_kept, 0);
  // serving.md 3.4: from P - 5,081 for the last logits and every ring, from H - 40 * 127 for every
  // logit of the suffix; and never so late that global rows from the hit on would differ.
  EXPECT_EQ(plan_replay(c, {.hit = 9984}, 10000)->begin, 10000 - 5081);
  EXPECT_EQ(plan_replay(c, {.hit = 9984, .every_logit = true}, 10000)->begin, 9984 - 40 * 127);
  EXPECT_EQ(plan_replay(c, {.hit = 9984}, 60000)->begin, 9984 - 20 * 127);
  EXPECT_EQ(plan_replay(c, {.hit = 4096}, 5000)->begin, 0);
  const auto bounded = plan_replay(c, {.mode = ReplayMode::kBounded, .hit = 9984}, 10000);
  EXPECT_EQ(bounded->begin, 9984 - 128);
  EXPECT_EQ(bounded->window_floor, 9984 - 128);
  EXPECT_EQ(bounded->write_global_from, 9984);
  // A hit no longer than the window is not taken.
  const auto cold = plan_replay(c, {.mode = ReplayMode::kBounded, .hit = 128}, 10000);
  EXPECT_EQ(cold->begin, 0);
  EXPECT_EQ(cold->window_floor, 0);
  EXPECT_EQ(cold->write_global_from, 0);
  EXPECT_EQ(plan_replay(c, {.mode = ReplayMode::kSnapshot, .hit = 9984}, 10000)->begin, 9984);
}

TEST(ReplayPlans, RefuseWhatWouldChangeAnAnswer) {
  const Config c = synth_config(SynthPreset::kOfficial);
  const auto refused = [](const auto& result, std::string_view word) {
    return !result && result.error().code == ErrorCode::kInvalidArgument &&
           result.error().str().find(word) != std::string::npos;
  };
  EXPECT_TRUE(refused(plan_tail(c, {.mode = TailMode::kBounded, .keep_tokens = 127}, 10), "127"));
  for (const TailMode mode : {TailMode::kExact, TailMode::kBounded})
    EXPECT_TRUE(refused(plan_tail(c, {.mode = mode, .prompt_logits = true}, 10), "logits"));
  EXPECT_TRUE(refused(
      plan_replay(c, {.hit = 5, .every_logit = true, .tail = {.mode = TailMode::kExact}}, 10),
      "logits"));
  EXPECT_TRUE(refused(plan_replay(c, {.hit = 10}, 10), "hit"));
  EXPECT_TRUE(refused(plan_replay(c, {.hit = -1}, 10), "hit"));
  // Decoder rings of a bounded tail belong to the prompt that made them.
  const ReplayOptions bounded = {
      .mode = ReplayMode::kSnapshot, .hit = 9900, .tail = {.mode = TailMode::kBounded}};
  EXPECT_TRUE(refused(plan_replay(c, bounded, 10000), "snapshot"));
  EXPECT_TRUE(plan_replay(c, bounded, 10040));
  EXPECT_TRUE(refused(
      plan_replay(c, {.mode = ReplayMode::kSnapshot, .hit = 9900, .decoder_exact = false}, 10000),
      "snapshot"));
}

TEST_F(Replay, ExactTailEqualsTheFullRun) {
  // Whatever the length: shorter than the tail, just longer, much longer.
  for (const int length : {5, 45, 46, 47, 48, 70, 101}) {
    const auto tail = plan_tail(config(), {.mode = TailMode::kExact}, length);
    ASSERT_TRUE(tail);
    EXPECT_EQ(tail->first_kept, std::max(0, length - 46));
    for (const auto sizes : {std::span<const size_t>(kWhole), std::span<const size_t>(kOdd)}) {
      Cache cache(*model_, 1, kBlocks);
      auto rows = rows_of(std::span(prompt_).first(static_cast<size_t>(length)), 0, false);
      for (Row& r : rows) tail->apply(r);
      const auto logits = run_in_steps(*model_, cache, rows, sizes);
      EXPECT_TRUE(same_bits(logits, cold_logits(length - 1))) << length;
      Cache full(*model_, 1, kBlocks);
      run(*model_, full, rows_of(std::span(prompt_).first(static_cast<size_t>(length)), 0, false));
      EXPECT_TRUE(same_bits(go_on(cache, length), go_on(full, length))) << length;
    }
  }
}

TEST_F(Replay, ExactReplayEqualsACold) {
  struct Case {
    int hit, length;
    bool every_logit;
  };
  // Tiny: 9 layers, window 16. The last rings reach 16 + 8 * 15 = 136 rows back, more than the
  // prompt; suffixes are cut short so that hits lie beyond the reach of the sources too.
  for (const Case& k : {Case{64, 65, false},
                        {64, 101, false},
                        {33, 60, false},
                        {99, 100, false},
                        {1, 30, false},
                        {90, 101, true},
                        {17, 18, true}}) {
    const auto plan = plan_replay(config(), {.hit = k.hit, .every_logit = k.every_logit}, k.length);
    ASSERT_TRUE(plan);
    Cache hit(*model_, 1, kBlocks, std::byte{0x5A});
    hit.take_global(*cold_);
    const auto logits = run_plan(hit, *plan, k.length, kOdd);
    EXPECT_TRUE(same_bits(logits, cold_logits(k.length - 1))) << k.hit << " of " << k.length;
  }
}

// A shorter model, so that prompts outgrow every reach and replay really begins in the middle.
TEST_F(Replay, ExactReplayBeginsInTheMiddleOfALongPrompt) {
  Config c = synth_config(SynthPreset::kTiny);
  c.window = 4;
  const Checkpoint checkpoint(c);
  const auto model = checkpoint.load(make_reference_arithmetic());
  const auto tokens = some_tokens(c.vocab, 120);
  const std::vector<TokenId> ids(tokens.begin(), tokens.end());
  Cache cold(*model, 1, kBlocks);
  const auto want = run(*model, cold, rows_of(tokens, 0));
  const auto vocab = static_cast<size_t>(c.vocab);
  size_t begun_late = 0;
  for (const bool every : {false, true})
    for (const TailMode tail : {TailMode::kFull, TailMode::kExact})
      for (const int hit : {64, 95, 111, 118})
        for (const int length : {119, 120}) {
          if (every && tail != TailMode::kFull) continue;
          const auto plan = plan_replay(
              model->config(), {.hit = hit, .every_logit = every, .tail = {.mode = tail}}, length);
          ASSERT_TRUE(plan);
          begun_late += plan->begin > 0;
          Cache cache(*model, 1, kBlocks, std::byte{0x77});
          cache.take_global(cold);
          const std::vector<std::byte> before(cache.bytes(0).begin(), cache.bytes(0).end());
          model->layout().write_history(cache.memory(), cache.ref(0), ids, plan->begin);
          std::vector<Row> rows;
          for (int p = plan->begin; p < length; ++p) {
            rows.push_back(plan->row(p, tokens[static_cast<size_t>(p)]));
            rows.back().needs_logits = (every && p >= hit) || p == length - 1;
          }
          const auto got = run_in_steps(*model, cache, rows, kOdd);
          const auto first = static_cast<size_t>(every ? hit : length - 1);
          EXPECT_TRUE(
              same_bits(got, std::span(want).subspan(
                                 first * vocab, (static_cast<size_t>(length) - first) * vocab)))
              << "hit " << hit << ", length " << length << ", begin " << plan->begin;
          // Global rows: below the hit untouched, from it on what the cold run wrote.
          EXPECT_TRUE(std::ranges::equal(before, cache.bytes(0)));
        }
  EXPECT_GT(begun_late, 10u);
}

TEST_F(Replay, BoundedReplayIsItsDefinition) {
  const json golden =
      json::parse(std::ifstream(deepmint::testing::source_path("tests/golden/v41_replay.json")));
  for (const json& k : golden["cases"]) {
    const int hit = k["hit"], length = k["length"];
    ReplayOptions options = {.mode = ReplayMode::kBounded, .hit = hit};
    if (!k["keep"].is_null())
      options.tail = {.mode = TailMode::kBounded, .keep_tokens = k["keep"].get<int>()};
    const auto plan = plan_replay(config(), options, length);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->begin, hit - 16);
    Cache first(*model_, 1, kBlocks, std::byte{0x11}), second(*model_, 1, kBlocks, std::byte{0xEE});
    first.take_global(*cold_);
    second.take_global(*cold_);
    const std::vector<std::byte> before(first.bytes(0).begin(), first.bytes(0).end());
    const auto logits = run_plan(first, *plan, length, kWhole);
    EXPECT_TRUE(same_bits(logits, run_plan(second, *plan, length, kOdd)));
    EXPECT_FALSE(same_bits(logits, cold_logits(length - 1)));
    for (size_t v = 0; v < logits.size(); ++v) {
      const float want = k["last_logits"][v].get<float>();
      ASSERT_NEAR(logits[v], want, 1.2e-7f * std::fabs(want)) << "hit " << hit << ", id " << v;
    }
    // Rows below the hit keep the bits of their first writer, in every block that holds only such.
    const size_t block = first.bytes(0).size() / kBlocks;
    for (size_t b = 0; b < static_cast<size_t>(hit) / kBlockTokens; ++b) {
      const size_t at = (kBlocks - 1 - b) * block;
      EXPECT_TRUE(std::equal(before.begin() + static_cast<std::ptrdiff_t>(at),
                             before.begin() + static_cast<std::ptrdiff_t>(at + block),
                             first.bytes(0).begin() + static_cast<std::ptrdiff_t>(at)));
    }
  }
}

TEST_F(Replay, ASnapshotGoesOnAsIfNothingHadHappened) {
  for (const int length : {1, 2, 15, 16, 17, 63, 64, 65, 100, 101}) {
    Cache kept(*model_, 1, kBlocks, std::byte{0});
    run(*model_, kept, rows_of(std::span(prompt_).first(static_cast<size_t>(length)), 0, false));
    const auto bytes = take_snapshot(model_->layout(), model_->info().fingerprint, kept.memory(),
                                     kept.ref(0), length);
    EXPECT_EQ(bytes.size(), snapshot_bytes(model_->layout(), length));
    Cache other(*model_, 1, kBlocks, std::byte{0xA5});
    other.take_global(kept);
    const auto restored = restore_snapshot(model_->layout(), model_->info().fingerprint, bytes,
                                           other.memory(), other.ref(0));
    ASSERT_TRUE(restored) << restored.error().str();
    EXPECT_EQ(*restored, length);
    EXPECT_TRUE(same_bits(go_on(kept, length), go_on(other, length))) << length;
  }
}

TEST_F(Replay, ASnapshotAfterRejectedDraftsIsTheSame) {
  Cache kept(*model_, 1, kBlocks, std::byte{0});
  run(*model_, kept, rows_of(std::span(prompt_).first(60), 0, false));
  const auto take = [&] {
    return take_snapshot(model_->layout(), model_->info().fingerprint, kept.memory(), kept.ref(0),
                         60);
  };
  const auto plain = take();
  run(*model_, kept, rows_of(std::array{9, 8, 7, 6, 5}, 60));  // drafts, none accepted
  EXPECT_TRUE(plain == take());
}

TEST_F(Replay, DamagedSnapshotsAreRefused) {
  Cache cache(*model_, 1, kBlocks, std::byte{0});
  run(*model_, cache, rows_of(std::span(prompt_).first(33), 0, false));
  const StateLayout& layout = model_->layout();
  const auto good = take_snapshot(layout, 7, cache.memory(), cache.ref(0), 33);
  const std::vector<std::byte> before(cache.bytes(2).begin(), cache.bytes(2).end());
  const auto refused = [&](std::span<const std::byte> bytes, uint64_t fingerprint) {
    return !restore_snapshot(layout, fingerprint, bytes, cache.memory(), cache.ref(0)) &&
           std::ranges::equal(before, cache.bytes(2));
  };
  EXPECT_TRUE(refused(good, 8));
  for (size_t cut = 0; cut < good.size(); cut += 97)
    EXPECT_TRUE(refused(std::span(good).first(cut), 7)) << cut;
  for (size_t at = 0; at < good.size(); at += 61) {
    auto bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_TRUE(refused(bad, 7)) << at;
  }
  EXPECT_FALSE(refused(good, 7));
}

TEST(SnapshotSize, MatchesTheSpecificationAtOfficialDimensions) {
  const StateLayout layout(synth_config(SynthPreset::kOfficial));
  // Memory for one sequence, so that real snapshots are serialised.
  std::vector<AlignedBuffer<std::byte>> buffers;
  std::vector<PartMemory> memory;
  for (const StatePart& part : layout.parts()) {
    buffers.emplace_back(part.bytes);
    memory.push_back({buffers.back().data(), 1});
  }
  const std::array<BlockId, 1> blocks = {BlockId(0)};
  const SequenceRef sequence = {blocks, SlotId(0)};
  const size_t even = take_snapshot(layout, 1, memory, sequence, 1000).size(),
               odd = take_snapshot(layout, 1, memory, sequence, 1001).size();
  // spec model.md 10.1: 40 rings of 128 rows of 528 bytes; a pending row of three sources at odd
  // lengths; ids, header and checksum.
  EXPECT_EQ(layout.window_snapshot_bytes(), 2703360u);
  EXPECT_EQ(even, 64 + 2703360 + 24 * 4 + 16u);
  EXPECT_EQ(odd - even, 3 * 4096u);
  // Global state as the cache stores it, block by block.
  EXPECT_EQ(layout.parts()[0].bytes, 720u * kBlockTokens);
  EXPECT_EQ(layout.parts()[1].bytes, 170u * kBlockTokens);
}

}  // namespace
}  // namespace deepmint::v41
