// The fast arithmetic as a whole: within the specification's gate of the reference on
// configurations that pass every limit and that have the official roles, and the same bits however
// work is cut.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "core/hash.h"
#include "core/thread_pool.h"
#include "model/deepseek_v41/arithmetic.h"
#include "model/deepseek_v41/engram.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"

namespace deepmint::v41 {
namespace {

struct Case {
  const char* name;
  Config config;
  int tokens;
};

void finish(Config& c) {
  c.engram_rows.clear();
  for (const EngramLayer& e : make_engram_layers(c.engram_layers, c.engram_ngram, c.engram_heads,
                                                 c.engram_vocab, c.engram_compressed_vocab))
    c.engram_rows.push_back(e.rows);
}

// Window, top-k and candidate pool are each passed many times over; odd sizes everywhere.
Case past_every_limit() {
  Config c = synth_config(SynthPreset::kTiny);
  c.hidden = 160;
  c.layers = 8;
  c.heads = 6;
  c.head_dim = 96;
  c.rope_dim = 16;
  c.q_lora = 96;
  c.o_groups = 3;
  c.window = 20;
  c.ratios = {0, 2, 2, 1, 1, 1, 1, 1};
  c.kv_sources = {1, 3};
  c.index_sources = {1, 3, 5, 6};
  c.index_heads = 3;
  c.index_dim = 64;
  c.index_topk = 13;
  c.candidate_layer = 3;
  c.candidate_blocks = 6;
  c.candidate_block_size = 5;
  c.experts = 12;
  c.experts_per_token = 3;
  c.engram_layers = {2};
  c.engram_heads = 3;
  finish(c);
  return {"past every limit", c, 240};
}

// Forty layers in the official roles, narrow: a random model of that depth turns one flipped FP8
// code into other greedy choices, so there are few keys and heads whose roundings could flip one.
Case official_roles() {
  Config c = synth_config(SynthPreset::kBench);
  c.vocab = 512;
  c.hidden = 64;
  c.heads = 2;
  c.head_dim = 64;
  c.rope_dim = 32;
  c.q_lora = 32;
  c.o_lora = 32;
  c.o_groups = 1;
  c.expert_inter = 32;
  c.experts = 16;
  c.window = 12;
  c.index_heads = 4;
  c.index_dim = 32;
  c.index_topk = 10;
  c.candidate_blocks = 6;
  c.candidate_block_size = 4;
  c.engram_heads = 2;
  c.engram_dim = 32;
  c.engram_vocab = 97;
  c.engram_compressed_vocab = 400;
  c.yarn.original_positions = 64;
  c.max_positions = 4096;
  finish(c);
  return {"official roles", c, 80};
}

std::filesystem::path folder_of(const Case& test) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("deepmint_v41_gate_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  const auto ok = synthesize(test.config, folder, {.seed = 7});
  EXPECT_TRUE(ok) << ok.error().str();
  return folder;
}

class Hashes : public Tap {
 public:
  std::vector<uint64_t> values;
  void sublayer(int, std::string_view, std::span<const float> v, size_t) override {
    values.push_back(xxh3_64(std::as_bytes(v)));
  }
};

class Cache {
 public:
  Cache(const V41Model& model, size_t sequences, size_t blocks_each) {
    for (const StatePart& part : model.state_parts()) {
      const size_t n =
          part.family == StatePart::Family::kGlobal ? sequences * blocks_each : sequences;
      buffers_.emplace_back(n * part.bytes);
      std::memset(buffers_.back().data(), 0xFF, buffers_.back().size());  // NaN until written
      memory_.push_back({buffers_.back().data(), n});
    }
    for (size_t s = 0; s < sequences; ++s) {
      tables_.emplace_back();
      for (size_t b = 0; b < blocks_each; ++b)
        tables_.back().push_back(BlockId(static_cast<uint32_t>(b * sequences + s)));
    }
    for (size_t s = 0; s < sequences; ++s)
      refs_.push_back({tables_[s], SlotId(static_cast<uint32_t>(s))});
  }
  StepInput input(std::span<const Row> rows) const { return {rows, refs_, memory_}; }

 private:
  std::vector<AlignedBuffer<std::byte>> buffers_;
  std::vector<PartMemory> memory_;
  std::vector<std::vector<BlockId>> tables_;
  std::vector<SequenceRef> refs_;
};

std::vector<Row> rows_of(std::span<const int> tokens, uint32_t sequence, int first) {
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i)
    rows.push_back({.sequence = sequence,
                    .position = first + static_cast<int>(i),
                    .token = tokens[i],
                    .needs_logits = true});
  return rows;
}

std::vector<float> run(V41Model& model, const Cache& cache, std::span<const Row> rows,
                       Tap* tap = nullptr) {
  std::vector<float> logits(rows.size() * static_cast<size_t>(model.info().vocab_size));
  const auto ok = model.forward(cache.input(rows), logits, tap);
  EXPECT_TRUE(ok) << ok.error().str();
  return logits;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::unique_ptr<V41Model> load(const std::filesystem::path& folder,
                               std::unique_ptr<Arithmetic> arithmetic) {
  auto model = V41Model::load(folder, std::move(arithmetic));
  EXPECT_TRUE(model) << model.error().str();
  EXPECT_TRUE((*model)->reserve(512, 512));
  return std::move(*model);
}

void check(const Case& test) {
  SCOPED_TRACE(test.name);
  const Isa before = active_isa();
  const auto folder = folder_of(test);
  std::mt19937 rng(20261129);
  std::vector<int> tokens(static_cast<size_t>(test.tokens)), other(41);
  for (int& t : tokens) t = 3 + static_cast<int>(rng() % 500);
  for (int& t : other) t = 3 + static_cast<int>(rng() % 500);
  const auto vocab = static_cast<size_t>(test.config.vocab);
  constexpr size_t kBlocks = 5;
  const auto rows = rows_of(tokens, 0, 0);

  auto reference = load(folder, make_reference_arithmetic());
  const auto want = run(*reference, Cache(*reference, 1, kBlocks), rows);
  std::map<std::string, std::vector<uint64_t>> hashes;
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(to_string(isa));
    set_active_isa(isa);
    ThreadPool two(2);
    auto fast = load(folder, make_fast_arithmetic(&two));
    Hashes taps;
    const auto got = run(*fast, Cache(*fast, 1, kBlocks), rows, &taps);
    // One class of instruction sets, one answer, at every sublayer.
    const auto& first = hashes.emplace(isa_class(isa), taps.values).first->second;
    ASSERT_EQ(first.size(), taps.values.size());
    EXPECT_EQ(std::mismatch(first.begin(), first.end(), taps.values.begin()).first - first.begin(),
              static_cast<std::ptrdiff_t>(first.size()));

    std::vector<float> difference(got.size());
    size_t agree = 0;
    for (size_t i = 0; i < got.size(); ++i) difference[i] = std::fabs(got[i] - want[i]);
    for (size_t r = 0; r < tokens.size(); ++r) {
      const auto argmax = [&](const std::vector<float>& x) {
        const auto row = x.begin() + static_cast<std::ptrdiff_t>(r * vocab);
        return std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row;
      };
      agree += argmax(got) == argmax(want);
    }
    const auto middle = difference.begin() + static_cast<std::ptrdiff_t>(difference.size() / 2);
    std::nth_element(difference.begin(), middle, difference.end());
    EXPECT_LT(*middle, 0.05f);
    EXPECT_GE(static_cast<double>(agree), 0.95 * static_cast<double>(tokens.size()));
    std::printf("%s, %s: median logit difference %g, greedy choice equal at %zu of %zu\n",
                test.name, std::string(to_string(isa)).c_str(), static_cast<double>(*middle), agree,
                tokens.size());
    if (isa != available_isas().back() && isa != Isa::kAvx2) continue;

    // Chunked, batched with another sequence, and on other thread counts: the same bits.
    Cache chunked(*fast, 1, kBlocks);
    std::vector<float> parts;
    const size_t cuts[] = {1, 7, 3, 33, 2, 17, 1, 1, 64};
    for (size_t at = 0, i = 0; at < tokens.size(); ++i) {
      const size_t n = std::min(cuts[i % std::size(cuts)], tokens.size() - at);
      const auto part = run(*fast, chunked, std::span(rows).subspan(at, n));
      parts.insert(parts.end(), part.begin(), part.end());
      at += n;
    }
    EXPECT_TRUE(same_bits(got, parts));
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      auto model = load(folder, make_fast_arithmetic(&pool));
      const auto companions = rows_of(other, 1, 0);
      std::vector<Row> both(companions);
      both.insert(both.end(), rows.begin(), rows.end());
      const auto batched = run(*model, Cache(*model, 2, kBlocks), both);
      EXPECT_TRUE(same_bits(got, std::span(batched).subspan(companions.size() * vocab)));
    }
  }
  set_active_isa(before);
  std::filesystem::remove_all(folder);
}

class Hints : public WeightHints {
 public:
  std::map<int, std::vector<int32_t>> routed;
  std::map<size_t, std::vector<int64_t>> rows;
  void experts(int layer, std::span<const int32_t> ids) override {
    for (size_t i = 1; i < ids.size(); ++i) EXPECT_LT(ids[i - 1], ids[i]);
    routed[layer].insert(routed[layer].end(), ids.begin(), ids.end());
  }
  void engram_rows(size_t which, std::span<const int64_t> r) override {
    rows[which].insert(rows[which].end(), r.begin(), r.end());
  }
};

TEST(V41Hints, SayWhatAStepReads) {
  const Case test{"hints", synth_config(SynthPreset::kTiny), 1};
  const auto folder = folder_of(test);
  ThreadPool pool(2);
  auto model = load(folder, make_fast_arithmetic(&pool));
  std::filesystem::remove_all(folder);
  const std::vector<int> tokens = {5, 400, 17, 9, 9, 511, 30};
  Hints step, ahead;
  model->set_hints(&step);
  run(*model, Cache(*model, 1, 1), rows_of(tokens, 0, 0));
  model->set_hints(&ahead);
  model->prefetch(tokens);
  // Rows of whole 4-grams are known from the ids alone: those of the fourth token on.
  ASSERT_EQ(step.rows.size(), 2u);
  for (const auto& [which, rows] : step.rows) {
    const size_t columns = rows.size() / tokens.size();
    EXPECT_TRUE(std::ranges::equal(std::span(rows).subspan(3 * columns), ahead.rows.at(which)));
  }
  EXPECT_TRUE(ahead.routed.empty());
  ASSERT_EQ(step.routed.size(), 9u);
  for (const auto& [layer, ids] : step.routed) {
    EXPECT_GE(ids.size(), 4u) << layer;
    EXPECT_LE(ids.size(), 16u) << layer;
  }
  model->set_hints(nullptr);
  model->prefetch(tokens);
}

TEST(V41Taps, EverySublayerInOrder) {
  struct Names : Tap {
    std::vector<std::string> seen;
    void sublayer(int layer, std::string_view name, std::span<const float> v,
                  size_t width) override {
      EXPECT_EQ(v.size() % width, 0u);
      seen.push_back(std::to_string(layer) + std::string(name));
    }
  };
  const Case test{"taps", synth_config(SynthPreset::kTiny), 1};
  const auto folder = folder_of(test);
  ThreadPool pool(1);
  std::vector<std::string> want = {"-1embed"};
  for (int layer = 0; layer < 9; ++layer) {
    if (layer == 1 || layer == 4) want.push_back(std::to_string(layer) + "engram");
    want.push_back(std::to_string(layer) + "attn");
    want.push_back(std::to_string(layer) + "moe");
  }
  want.push_back("9norm");
  for (const bool is_fast : {true, false}) {
    auto model = load(folder, is_fast ? make_fast_arithmetic(&pool) : make_reference_arithmetic());
    Names taps;
    run(*model, Cache(*model, 1, 1), rows_of(std::array{1, 2, 3}, 0, 0), &taps);
    EXPECT_EQ(taps.seen, want);
  }
  std::filesystem::remove_all(folder);
}

// A decode row far out: a table of as many blocks as a million positions need, of which few are
// different, filled with plausible bytes.
TEST(V41Gate, LongContext) {
  Case test{"long context", synth_config(SynthPreset::kTiny), 1};
  test.config.max_positions = 1048576;
  const auto folder = folder_of(test);
  ThreadPool pool(2);
  auto reference = load(folder, make_reference_arithmetic());
  auto fast = load(folder, make_fast_arithmetic(&pool));
  std::filesystem::remove_all(folder);
  constexpr size_t kDistinct = 61;
  std::vector<BlockId> blocks(1048576 / kBlockTokens);
  for (size_t b = 0; b < blocks.size(); ++b)
    blocks[b] = BlockId(static_cast<uint32_t>(b * 7 % kDistinct));
  const SequenceRef sequence{blocks, SlotId{0}};
  const auto run_at = [&](V41Model& model, int32_t position) {
    std::mt19937 rng(5);
    std::vector<AlignedBuffer<std::byte>> buffers;
    std::vector<PartMemory> memory;
    for (const StatePart& part : model.state_parts()) {
      const size_t n = part.family == StatePart::Family::kGlobal ? kDistinct : 1;
      buffers.emplace_back(n * part.bytes);
      // Codes of either sign and scales between 2^-15 and 2^-1, in every format.
      if (part.name != "history" && part.name != "carry")
        for (std::byte& b : buffers.back().span()) b = static_cast<std::byte>(0x70 + rng() % 15);
      memory.push_back({buffers.back().data(), n});
    }
    const Row row{.position = position, .token = 77, .needs_logits = true};
    std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
    const auto ok = model.forward({{&row, 1}, {&sequence, 1}, memory}, logits, nullptr);
    EXPECT_TRUE(ok) << ok.error().str();
    return logits;
  };
  for (const int32_t position : {40001, 1048575}) {
    const auto want = run_at(*reference, position), got = run_at(*fast, position);
    EXPECT_EQ(reference->selected_rows(0), fast->selected_rows(0)) << position;
    EXPECT_EQ(reference->candidate_blocks(0), fast->candidate_blocks(0)) << position;
    for (size_t v = 0; v < want.size(); ++v) ASSERT_NEAR(want[v], got[v], 0.05f) << position;
  }
}

TEST(V41Gate, PastEveryLimit) { check(past_every_limit()); }
TEST(V41Gate, OfficialRoles) { check(official_roles()); }

}  // namespace
}  // namespace deepmint::v41
