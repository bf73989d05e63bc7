// One answer however it is computed: cuts, batches, threads, rollbacks, long contexts. On tiny and
// on a configuration where prompts outgrow every limit: window, selected rows, candidate pool.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "core/thread_pool.h"
#include "model/deepseek_v41/ref_ops.h"
#include "model/deepseek_v41/v41_testing.h"

namespace deepmint::v41 {
namespace {

using namespace testing;  // NOLINT: the fixtures of v41_testing.h

// The official window; few selected rows and candidates, so that 300 tokens are past all of them.
Config past_every_limit() {
  Config c = synth_config(SynthPreset::kTiny);
  c.window = 128;
  c.index_topk = 12;
  c.candidate_blocks = 5;
  c.candidate_block_size = 8;
  c.max_positions = 1048576;
  return c;
}

struct Subject {
  const char* name;
  Config config;
  bool fast;
};

class Invariance : public ::testing::TestWithParam<int> {
 protected:
  Subject subject() const {
    switch (GetParam()) {
      case 0:
        return {"tiny, reference", synth_config(SynthPreset::kTiny), false};
      case 1:
        return {"tiny, fast", synth_config(SynthPreset::kTiny), true};
      case 2:
        return {"past every limit, reference", past_every_limit(), false};
      default:
        return {"past every limit, fast", past_every_limit(), true};
    }
  }
  void SetUp() override {
    const Subject s = subject();
    checkpoint_ = std::make_unique<Checkpoint>(s.config);
    model_ = load(2);
    tokens_ = some_tokens(s.config.vocab, static_cast<size_t>(s.config.window) * 2 + 45);
    blocks_ = tokens_.size() / kBlockTokens + 2;
  }
  std::unique_ptr<V41Model> load(int threads) {
    pools_.push_back(std::make_unique<ThreadPool>(threads));
    return checkpoint_->load(subject().fast ? make_fast_arithmetic(pools_.back().get())
                                            : make_reference_arithmetic());
  }
  std::vector<float> whole() {
    Cache cache(*model_, 1, blocks_);
    return run(*model_, cache, rows_of(tokens_, 0));
  }

  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<V41Model> model_;
  std::vector<int> tokens_;
  size_t blocks_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Models, Invariance, ::testing::Range(0, 4));

TEST_P(Invariance, ChunkedEqualsWhole) {
  const auto want = whole();
  const auto rows = rows_of(tokens_, 0);
  std::vector<std::vector<size_t>> all = {{1},   {7},   {64},       {127},
                                          {128}, {129}, {63, 1, 2}, {1, 2, 3, 5, 8, 13, 21}};
  if (std::getenv("DEEPMINT_TEST_QUICK") != nullptr) all = {{1}, {63, 1, 2}, {129}};
  for (const std::vector<size_t>& sizes : all) {
    Cache cache(*model_, 1, blocks_, std::byte{0x3C});
    EXPECT_TRUE(same_bits(want, run_in_steps(*model_, cache, rows, sizes)))
        << subject().name << ", chunks of " << sizes[0];
  }
}

TEST_P(Invariance, BatchedEqualsAlone) {
  const auto vocab = static_cast<size_t>(model_->info().vocab_size);
  const auto want = whole();
  // Three sequences of other lengths and contents beside it, in steps that cut all of them.
  Cache cache(*model_, 4, blocks_);
  std::vector<std::vector<int>> others;
  for (uint64_t s = 0; s < 3; ++s)
    others.push_back(some_tokens(static_cast<int64_t>(vocab), 40 + 37 * s, 10 + s));
  std::vector<float> got;
  constexpr size_t kStep = 23;
  for (size_t at = 0; at < tokens_.size(); at += kStep) {
    std::vector<Row> rows;
    size_t before = 0;
    const auto add = [&](uint32_t sequence, std::span<const int> ids) {
      if (at >= ids.size()) return;
      for (Row r :
           rows_of(ids.subspan(at, std::min(kStep, ids.size() - at)), static_cast<int>(at))) {
        r.sequence = sequence;
        rows.push_back(r);
      }
    };
    add(3, others[2]);
    add(0, others[0]);
    before = rows.size();
    add(2, tokens_);
    const size_t own = rows.size() - before;
    add(1, others[1]);
    const auto logits = run(*model_, cache, rows, {0, 1, 2, 3});
    got.insert(got.end(), logits.begin() + static_cast<std::ptrdiff_t>(before * vocab),
               logits.begin() + static_cast<std::ptrdiff_t>((before + own) * vocab));
  }
  EXPECT_TRUE(same_bits(want, got)) << subject().name;
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  const auto want = whole();
  for (const int threads : {1, 3}) {
    const auto other = load(threads);
    Cache cache(*other, 1, blocks_);
    EXPECT_TRUE(same_bits(want, run(*other, cache, rows_of(tokens_, 0))))
        << subject().name << ", " << threads << " threads";
  }
}

TEST_P(Invariance, RejectedDraftsLeaveNoTrace) {
  const auto vocab = static_cast<size_t>(model_->info().vocab_size);
  const auto want = whole();
  Cache cache(*model_, 1, blocks_);
  const size_t prefill = tokens_.size() - 40;
  run(*model_, cache, rows_of(std::span(tokens_).first(prefill), 0));
  for (size_t at = prefill; at < tokens_.size();) {
    // `right` true tokens, then wrong ones: five rows at most beyond the first, as drafts are.
    const size_t right = std::min(1 + at % 3, tokens_.size() - at);
    std::vector<int> guess(tokens_.begin() + static_cast<std::ptrdiff_t>(at),
                           tokens_.begin() + static_cast<std::ptrdiff_t>(at + right));
    while (guess.size() < 6) guess.push_back((guess.back() * 31 + 7) % static_cast<int>(vocab));
    const auto logits = run(*model_, cache, rows_of(guess, static_cast<int>(at)));
    EXPECT_TRUE(same_bits(std::span(want).subspan(at * vocab, right * vocab),
                          std::span(logits).first(right * vocab)))
        << subject().name << ", position " << at;
    at += right;
  }
}

// Positions up to a million have their own angle: float32 products, as the specification says, of
// which cosine and sine are taken exactly.
TEST(LongContext, RotatesTheLastOfAMillionPositions) {
  const Config c = synth_config(SynthPreset::kOfficial);
  const auto inv =
      ref::inverse_frequencies(c.rope_dim, c.compress_rope_theta, c.yarn.factor,
                               c.yarn.original_positions, c.yarn.beta_fast, c.yarn.beta_slow);
  const auto reference = make_reference_arithmetic();
  ThreadPool pool(2);
  const auto fast = make_fast_arithmetic(&pool);
  const std::array<int32_t, 4> positions = {0, 65535, 524288, 1048575};
  std::vector<float> a(positions.size() * 2 * inv.size()), b(a.size());
  reference->rope_table(positions.data(), 4, inv, a.data());
  fast->rope_table(positions.data(), 4, inv, b.data());
  for (size_t i = 0; i < positions.size(); ++i)
    for (size_t m = 0; m < inv.size(); ++m) {
      const float angle = static_cast<float>(positions[i]) * inv[m];
      const size_t at = i * 2 * inv.size() + m;
      EXPECT_EQ(a[at], static_cast<float>(std::cos(static_cast<double>(angle))));
      EXPECT_EQ(a[at + inv.size()], static_cast<float>(std::sin(static_cast<double>(angle))));
      EXPECT_NEAR(b[at], a[at], 6e-8f);
      EXPECT_NEAR(b[at + inv.size()], a[at + inv.size()], 6e-8f);
    }
}

// A block table of a million positions in which every block is the same memory: the last position
// is addressed, run and its state written where it belongs.
TEST(LongContext, AddressesTheLastOfAMillionPositions) {
  const Config c = past_every_limit();
  const Checkpoint checkpoint(c);
  const auto model = checkpoint.load(make_reference_arithmetic());
  Cache cache(*model, 1, 1, std::byte{0});
  const std::vector<BlockId> table(static_cast<size_t>(c.max_positions) / kBlockTokens, BlockId(0));
  const SequenceRef ref = {table, SlotId(0)};
  Row row;
  row.token = 7;
  row.position = static_cast<int32_t>(c.max_positions) - 1;
  row.window_floor = row.position;  // nothing before it has run
  row.needs_logits = true;
  std::vector<float> logits(static_cast<size_t>(c.vocab));
  const auto ok =
      model->forward({std::span(&row, 1), std::span(&ref, 1), cache.memory()}, logits, nullptr);
  ASSERT_TRUE(ok) << ok.error().str();
  for (const float x : logits) ASSERT_TRUE(std::isfinite(x));
  row.position += 1;
  EXPECT_FALSE(
      model->forward({std::span(&row, 1), std::span(&ref, 1), cache.memory()}, logits, nullptr));
}

// Long after every limit of a small model, prefill in two chunkings and a decode step agree: 3,000
// tokens, and 40,000 in the long run of the tests (some 20 s of processor time).
TEST(LongContext, TwoChunkingsAgree) {
  const char* full = std::getenv("DEEPMINT_TEST_FULL");
  const size_t tokens_in_all = full != nullptr && std::string_view(full) == "1" ? 40000 : 3000;
  Config c = past_every_limit();
  c.layers = 6;
  c.ratios = {0, 2, 2, 1, 1, 1};
  c.kv_sources = {1, 3};
  c.index_sources = {1, 3, 5};
  c.candidate_layer = 3;
  c.engram_layers = {1};
  c.engram_rows.resize(1);
  c.experts = 4;
  c.experts_per_token = 2;
  const Checkpoint checkpoint(c);
  ThreadPool pool(2);
  const auto model = checkpoint.load(make_fast_arithmetic(&pool), 1024, 16);
  const auto tokens = some_tokens(c.vocab, tokens_in_all + 1);
  auto rows = rows_of(std::span(tokens).first(tokens_in_all), 0, false);
  rows.push_back(rows_of(std::span(tokens).last(1), tokens_in_all)[0]);
  const size_t blocks = tokens_in_all / kBlockTokens + 1;
  Cache a(*model, 1, blocks), b(*model, 1, blocks);
  const auto want = run_in_steps(*model, a, rows, std::array<size_t, 1>{1024});
  const auto got = run_in_steps(*model, b, rows, std::array<size_t, 3>{1000, 333, 7});
  EXPECT_TRUE(same_bits(want, got));
}

}  // namespace
}  // namespace deepmint::v41
