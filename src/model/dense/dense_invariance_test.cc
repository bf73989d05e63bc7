// The contract, end to end: a row's logits and state bytes depend on its own sequence alone.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/cpu_isa.h"
#include "model/dense/dense_testing.h"

namespace deepmint::dense {
namespace {

using testing::TinyModel;

// Shapes that differ in what could go wrong: pairs of QK norm, bias, group sizes, head sizes,
// weight types.
std::vector<TinyModel> shapes() {
  return {
      {.architecture = "llama",
       .n_heads = 9,
       .n_kv_heads = 3,
       .head_dim = 32,
       .weights = DType::kQ4_1,
       .embedding = DType::kQ8_0},
      {.architecture = "qwen2",
       .n_layers = 3,
       .n_heads = 7,
       .n_kv_heads = 1,
       .head_dim = 64,
       .weights = DType::kQ8_0},
      {.architecture = "qwen3",
       .hidden = 96,
       .n_heads = 5,
       .n_kv_heads = 5,
       .head_dim = 96,
       .tied = false,
       .weights = DType::kBF16,
       .embedding = DType::kBF16},
      {.architecture = "llama",
       .hidden = 128,
       .n_heads = 4,
       .n_kv_heads = 2,
       .head_dim = 128,
       .tied = false,
       .weights = DType::kF32},
      {.architecture = "llama",
       .hidden = 256,
       .n_heads = 8,
       .n_kv_heads = 2,
       .head_dim = 32,
       .ffn = 256,
       .weights = DType::kQ4_K},
      {.architecture = "qwen2",
       .n_heads = 3,
       .n_kv_heads = 3,
       .head_dim = 24,
       .weights = DType::kF16,
       .embedding = DType::kF16},
      {.architecture = "qwen3",  // no size is a multiple of a register
       .hidden = 50,
       .n_heads = 3,
       .n_kv_heads = 1,
       .head_dim = 10,
       .ffn = 71,
       .weights = DType::kBF16,
       .embedding = DType::kF16},
  };
}
std::string name_of(const TinyModel& t) {
  return t.architecture + " " + std::string(info(t.weights).name) + " head " +
         std::to_string(t.head_dim);
}

void expect_chunked_equals_whole(Harness& h, const std::string& name) {
  const auto ids = random_ids(200, h.vocab(), 3);
  std::vector<BlockId> blocks;
  const auto whole = h.run(ids, ids.size(), &blocks);
  const std::string state = h.state(blocks);
  for (const float v : whole) ASSERT_TRUE(std::isfinite(v));
  for (const size_t chunk : {1, 2, 3, 7, 64, 127, 128}) {
    h.poison();
    expect_same(whole, h.run(ids, chunk, &blocks), name + " chunk " + std::to_string(chunk));
    EXPECT_EQ(state, h.state(blocks)) << name << " chunk " << chunk;
  }
}

TEST(DenseInvariance, ChunkedEqualsWhole) {
  for (const TinyModel& tiny : shapes()) {
    Harness h = tiny_harness(tiny);
    expect_chunked_equals_whole(h, name_of(tiny));
  }
}

void expect_batched_equals_alone(Harness& h, const std::string& name) {
  const auto ids = random_ids(70, h.vocab(), 4);
  const auto alone = h.run(ids, ids.size());
  testing::Random random(17);
  for (const size_t companions : {1, 2, 3, 7, 15, 31, 63}) {
    h.poison();
    // The sequence up to its last token, then that token between companions that decode, prefill
    // or are poisoned.
    const auto blocks = h.table(70);
    std::vector<Row> rows;
    for (int i = 0; i < 69; ++i)
      rows.push_back({.position = i, .token = ids[static_cast<size_t>(i)]});
    h.step(rows, {{.blocks = blocks}});
    const size_t place = random.below(companions + 1);
    std::vector<std::vector<BlockId>> tables;
    rows.clear();
    size_t logit_row = 0, n_logits = 0;
    for (size_t s = 0; s <= companions; ++s) {
      if (s == place) {
        tables.push_back(blocks);
        rows.push_back({.sequence = static_cast<uint32_t>(s),
                        .position = 69,
                        .token = ids[69],
                        .needs_logits = true});
        logit_row = n_logits++;
        continue;
      }
      const int start = static_cast<int>(random.below(130)),
                n = 1 + static_cast<int>(random.below(random.below(3) == 0 ? 40 : 2));
      tables.push_back(h.table(start + n));  // its earlier positions were never written: NaN
      for (int i = 0; i < n; ++i) {
        const bool wants = random.below(2) == 0;
        n_logits += wants ? 1 : 0;
        rows.push_back({.sequence = static_cast<uint32_t>(s),
                        .position = start + i,
                        .token = static_cast<TokenId>(random.below(h.vocab())),
                        .needs_logits = wants});
      }
    }
    std::vector<SequenceRef> sequences;
    for (const auto& t : tables) sequences.push_back({.blocks = t});
    const auto logits = h.step(rows, sequences);
    expect_same(row_of(alone, 69, h.vocab()), row_of(logits, logit_row, h.vocab()),
                name + " with " + std::to_string(companions) + " companions");
  }
}

TEST(DenseInvariance, BatchedEqualsAlone) {
  for (const TinyModel& tiny : shapes()) {
    Harness h = tiny_harness(tiny, 2, 400);
    expect_batched_equals_alone(h, name_of(tiny));
  }
}

// A model whose head is the fast kernel that this program must not have: K is split among as many
// partial sums as there are rows, so that a row's bits depend on its company.
class SplitByRows : public Model {
 public:
  SplitByRows(std::shared_ptr<Model> model, const GgufFile& file) : model_(std::move(model)) {
    const TensorView& head = *file.tensor("token_embd.weight");
    head_.resize(static_cast<size_t>(head.elements()));
    std::memcpy(head_.data(), head.bytes.data(), head.bytes.size());
  }
  const ModelInfo& info() const override { return model_->info(); }
  std::span<const StatePart> state_parts() const override { return model_->state_parts(); }
  Status reserve(size_t rows, size_t logit_rows) override {
    return model_->reserve(rows, logit_rows);
  }
  Status forward(const StepInput& input, std::span<float> logits, Tap*) override {
    LastNorm last;
    DEEPMINT_CHECK_OK(model_->forward(input, logits, &last));
    const size_t k = last.width, vocab = static_cast<size_t>(info().vocab_size);
    const size_t parts = std::min(input.rows.size(), k);
    for (size_t i = 0; i < logits.size(); ++i) {
      const float *x = last.values.data() + i / vocab * k, *w = head_.data() + i % vocab * k;
      float sum = 0;
      for (size_t part = 0; part < parts; ++part) {
        float partial = 0;
        for (size_t j = k * part / parts; j < k * (part + 1) / parts; ++j) partial += x[j] * w[j];
        sum += partial;
      }
      logits[i] = sum;
    }
    return {};
  }

 private:
  struct LastNorm : Tap {
    void sublayer(int, std::string_view name, std::span<const float> v, size_t w) override {
      if (name != "norm") return;
      values.assign(v.begin(), v.end());
      width = w;
    }
    std::vector<float> values;
    size_t width = 0;
  };
  std::shared_ptr<Model> model_;
  std::vector<float> head_;
};

// Negative control: the tests above must see it, or they prove nothing.
TEST(DenseInvariance, ABatchDependentKernelIsFound) {
  testing::GgufWriter writer = testing::tiny_gguf({.hidden = 256});
  const auto file = write_and_open(writer);
  auto loaded = load_dense_gguf(file, {.pool = std::make_shared<ThreadPool>(1)});
  ASSERT_TRUE(loaded) << loaded.error().str();
  Harness h(std::make_shared<SplitByRows>(*loaded, *file), 400);
  const auto failures = [&](void (*check)(Harness&, const std::string&)) {
    ::testing::TestPartResultArray results;
    const ::testing::ScopedFakeTestPartResultReporter intercept(&results);
    check(h, "split by rows");
    return results.size();
  };
  EXPECT_EQ(failures(expect_chunked_equals_whole), 7);  // of 7 ways to cut the prompt
  EXPECT_EQ(failures(expect_batched_equals_alone), 7);  // of 7 companies
}

TEST(DenseInvariance, ThreadsDoNotMatter) {
  for (const TinyModel& tiny : shapes()) {
    std::vector<float> first;
    for (const int threads : {1, 2, 3, 5}) {
      Harness h = tiny_harness(tiny, threads);
      const auto ids = random_ids(150, h.vocab(), 5);
      auto logits = h.run(ids, 149);  // a prefill and a decode row that shares tiles among threads
      if (first.empty()) first = logits;
      expect_same(first, logits, name_of(tiny) + " threads " + std::to_string(threads));
    }
  }
}

// Steps of single rows with logits go their own way (decode.cc), which shares out attention by tile
// or by head, and inputs by row or not, as the number of rows and threads makes it worthwhile.
TEST(DenseInvariance, DecodeRowsEqualWholePrompts) {
  constexpr std::array<int, 9> kLengths = {130, 1, 64, 65, 200, 2, 128, 33, 129};
  for (const TinyModel& tiny : shapes()) {
    std::vector<std::vector<TokenId>> ids;
    std::vector<std::vector<float>> expected;
    {
      Harness h = tiny_harness(tiny, 1, 64);
      for (const int n : kLengths) {
        ids.push_back(random_ids(static_cast<size_t>(n), h.vocab(), 20 + static_cast<uint64_t>(n)));
        const auto whole = h.run(ids.back(), ids.back().size());
        expected.push_back(row_of(whole, static_cast<size_t>(n) - 1, h.vocab()));
        h.poison();
      }
    }
    for (const int threads : {1, 2, 3, 5})
      for (const size_t count : {1, 2, 3, 9}) {
        Harness h = tiny_harness(tiny, threads, 64);
        std::vector<std::vector<BlockId>> tables;
        std::vector<Row> last;
        for (uint32_t s = 0; s < count; ++s) {
          const int n = kLengths[s];
          tables.push_back(h.table(n));
          std::vector<Row> rows;
          for (int i = 0; i + 1 < n; ++i)
            rows.push_back({.position = i, .token = ids[s][static_cast<size_t>(i)]});
          if (!rows.empty()) h.step(rows, {{.blocks = tables.back()}});
          last.push_back(
              {.sequence = s, .position = n - 1, .token = ids[s].back(), .needs_logits = true});
        }
        std::vector<SequenceRef> sequences;
        for (const auto& t : tables) sequences.push_back({.blocks = t});
        const auto logits = h.step(last, sequences);
        for (size_t s = 0; s < count; ++s)
          expect_same(expected[s], row_of(logits, s, h.vocab()),
                      name_of(tiny) + " row " + std::to_string(s) + " of " + std::to_string(count) +
                          ", threads " + std::to_string(threads));
      }
  }
}

// Of a matrix beyond some megabytes the last part goes to whichever thread comes first; here of
// gate and up, and of down.
TEST(DenseInvariance, DealtMatricesGiveTheSameBits) {
  TinyModel tiny;
  tiny.n_layers = 1;
  tiny.ffn = 33'024;  // F32 rows of 64: 17 MB and 8.5 MB
  std::vector<float> whole;
  for (const int threads : {1, 2, 3}) {
    Harness h = tiny_harness(tiny, threads);
    const auto ids = random_ids(12, h.vocab(), 6);
    if (whole.empty()) whole = h.run(ids, ids.size());
    expect_same(whole, h.run(ids, 1), "threads " + std::to_string(threads));
  }
}

TEST(DenseInvariance, InstructionSetsOfOneClassAgree) {
  for (const TinyModel& tiny : shapes()) {
    std::vector<float> first;
    for (const Isa isa : available_isas()) {
      if (isa_class(isa) != isa_class(Isa::kAvx2)) continue;
      set_active_isa(isa);
      Harness h = tiny_harness(tiny);
      const auto logits = h.run(random_ids(100, h.vocab(), 6), 33);
      if (first.empty()) first = logits;
      expect_same(first, logits, name_of(tiny) + " " + std::string(to_string(isa)));
    }
  }
  set_active_isa(detected_isa());
}

// Only the wanted logits are computed, and the last layer is skipped for other rows: same bits,
// same state.
TEST(DenseInvariance, RowsWithoutLogitsChangeNothing) {
  for (const TinyModel& tiny : shapes()) {
    Harness h = tiny_harness(tiny);
    const auto ids = random_ids(150, h.vocab(), 7);
    std::vector<BlockId> blocks;
    const auto all = h.run(ids, 150, &blocks);
    const std::string state = h.state(blocks);
    for (const std::vector<int>& wanted : {std::vector<int>{149}, {0}, {3, 64, 65, 66, 149}, {}}) {
      h.poison();
      blocks = h.table(150);
      std::vector<Row> rows;
      for (int i = 0; i < 150; ++i)
        rows.push_back(
            {.position = i,
             .token = ids[static_cast<size_t>(i)],
             .needs_logits = std::find(wanted.begin(), wanted.end(), i) != wanted.end()});
      const auto logits = h.step(rows, {{.blocks = blocks}});
      for (size_t w = 0; w < wanted.size(); ++w)
        expect_same(row_of(all, static_cast<size_t>(wanted[w]), h.vocab()),
                    row_of(logits, w, h.vocab()), name_of(tiny));
      EXPECT_EQ(state, h.state(blocks));
    }
  }
}

class Names : public Tap {
 public:
  void sublayer(int layer, std::string_view name, std::span<const float> values,
                size_t width) override {
    seen.push_back(std::to_string(layer) + " " + std::string(name) + " " +
                   std::to_string(values.size() / width));
  }
  std::vector<std::string> seen;
};

TEST(DenseInvariance, TapsSeeEverySublayerAndChangeNothing) {
  Harness h = tiny_harness(shapes()[0]);
  const auto ids = random_ids(20, h.vocab(), 8);
  const auto blocks = h.table(20);
  std::vector<Row> rows;
  for (int i = 0; i < 20; ++i)
    rows.push_back({.position = i, .token = ids[static_cast<size_t>(i)], .needs_logits = i == 19});
  const auto plain = h.step(rows, {{.blocks = blocks}});
  Names tap;
  expect_same(plain, h.step(rows, {{.blocks = blocks}}, &tap), "tap");
  EXPECT_EQ(tap.seen, (std::vector<std::string>{"-1 embed 20", "0 attn 20", "0 mlp 20", "1 attn 20",
                                                "1 mlp 20", "2 norm 1"}));
  for (const size_t count : {1, 3}) {  // the way of decode steps
    tap.seen.clear();
    std::vector<std::vector<BlockId>> tables;
    std::vector<Row> last;
    std::vector<SequenceRef> sequences;
    for (uint32_t s = 0; s < count; ++s) {
      tables.push_back(h.table(1));
      last.push_back({.sequence = s, .token = ids[s], .needs_logits = true});
    }
    for (const auto& t : tables) sequences.push_back({.blocks = t});
    const auto without = h.step(last, sequences);
    expect_same(without, h.step(last, sequences, &tap), "tap");
    const std::string n = std::to_string(count);
    EXPECT_EQ(tap.seen, (std::vector<std::string>{"-1 embed " + n, "0 attn " + n, "0 mlp " + n,
                                                  "1 attn " + n, "1 mlp " + n, "2 norm " + n}));
  }
}

// Positions past 64 pages: one row shares its tiles among threads in waves; in company it runs on
// one.
TEST(DenseInvariance, LongContext) {
  TinyModel tiny{.architecture = "qwen3",
                 .n_layers = 1,
                 .hidden = 32,
                 .n_heads = 3,
                 .n_kv_heads = 1,
                 .head_dim = 32,
                 .ffn = 32,
                 .context = 8192,
                 .weights = DType::kQ8_0};
  Harness h = tiny_harness(tiny, 3, 220);
  const size_t n = 4500;
  const auto ids = random_ids(n + 1, h.vocab(), 9);
  const auto blocks = h.table(static_cast<int64_t>(n) + 1);
  std::vector<Row> rows;
  for (size_t i = 0; i < n; ++i) {
    rows.push_back({.position = static_cast<int32_t>(i), .token = ids[i]});
    if (rows.size() == 512 || i + 1 == n) {
      h.step(rows, {{.blocks = blocks}});
      rows.clear();
    }
  }
  const Row last{.position = static_cast<int32_t>(n), .token = ids[n], .needs_logits = true};
  const auto alone = h.step({last}, {{.blocks = blocks}});
  for (const float v : alone) ASSERT_TRUE(std::isfinite(v));
  std::vector<std::vector<BlockId>> tables = {blocks};
  std::vector<Row> batch = {last};
  std::vector<SequenceRef> sequences;
  for (uint32_t s = 1; s < 20; ++s) {
    tables.push_back(h.table(5));
    batch.push_back({.sequence = s, .position = static_cast<int32_t>(s % 4), .token = 5});
  }
  for (const auto& t : tables) sequences.push_back({.blocks = t});
  expect_same(alone, h.step(batch, sequences), "in company");
}

TEST(DenseInvariance, WriteGlobalFromLeavesOlderStateAlone) {
  Harness h = tiny_harness(shapes()[1]);
  const auto ids = random_ids(100, h.vocab(), 10);
  std::vector<BlockId> blocks;
  const auto all = h.run(ids, 100, &blocks);
  const std::string before = h.state(blocks);
  // The same positions with other tokens: below the line nothing changes, so the last row still
  // reads the old K/V there.
  std::vector<Row> rows;
  for (int i = 0; i < 100; ++i)
    rows.push_back({.position = i,
                    .token = i < 90 ? 3 : ids[static_cast<size_t>(i)],
                    .needs_logits = i == 99,
                    .write_global_from = 90});
  expect_same(row_of(all, 99, h.vocab()), h.step(rows, {{.blocks = blocks}}), "write_global_from");
  EXPECT_EQ(before, h.state(blocks));
}

}  // namespace
}  // namespace deepmint::dense
