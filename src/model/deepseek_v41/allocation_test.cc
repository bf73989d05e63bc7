// After reserve() a step allocates nothing.
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/aligned.h"
#include "model/deepseek_v41/fast_ops.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/synth.h"
#include "support/counting_new.h"

namespace deepmint::v41 {
namespace {

// Cheap stand-ins for the operations on weights; everything else is real.
class CheapWeights : public FastOps {
 public:
  using FastOps::FastOps;
  void linear(const Matrix& w, const float* x, int64_t m, float* y, Output) override {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t n = 0; n < w.n; ++n)
        y[i * w.n + n] = x[i * w.k + n % w.k] * (n % 3 == 0 ? 0.5f : -1.0f);
  }
  void linear_groups(std::span<const Matrix> w, const float* x, int64_t m, float* y) override {
    const auto groups = static_cast<int64_t>(w.size());
    for (int64_t i = 0; i < m * groups * w[0].n; ++i)
      y[i] = x[i / w[0].n * w[0].k + i % w[0].n % w[0].k];
  }
  void moe(const float* u, int64_t m, const Config& c, int, const LayerWeights&,
           float* y) override {
    std::copy_n(u, m * c.hidden, y);
  }
};

void expect_no_allocation(std::unique_ptr<Arithmetic> arithmetic) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("deepmint_v41_allocation_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(synthesize(synth_config(SynthPreset::kTiny), folder));
  auto loaded = V41Model::load(folder, std::move(arithmetic));
  ASSERT_TRUE(loaded) << loaded.error().str();
  std::filesystem::remove_all(folder);
  V41Model& model = **loaded;
  ASSERT_TRUE(model.reserve(100, 4));
  constexpr size_t kBlocks = 4;
  std::vector<AlignedBuffer<std::byte>> buffers;
  std::vector<PartMemory> memory;
  for (const StatePart& part : model.state_parts()) {
    buffers.emplace_back(kBlocks * part.bytes);
    memory.push_back({buffers.back().data(), kBlocks});
  }
  const std::vector<BlockId> blocks[2] = {{BlockId{0}, BlockId{2}}, {BlockId{3}, BlockId{1}}};
  const std::vector<SequenceRef> sequences = {{blocks[0], SlotId{0}}, {blocks[1], SlotId{1}}};
  std::vector<float> logits(4 * 512);
  int32_t position = 0;
  const auto step = [&](size_t rows_each, size_t n_sequences) {
    std::vector<Row> rows;
    for (size_t s = 0; s < n_sequences; ++s)
      for (size_t i = 0; i < rows_each; ++i)
        rows.push_back(
            {.sequence = static_cast<uint32_t>(s),
             .position = position + static_cast<int32_t>(i),
             .token = static_cast<TokenId>((position + static_cast<int32_t>(i)) * 7 % 512),
             .needs_logits = i + 1 == rows_each});
    position += static_cast<int32_t>(rows_each);
    const uint64_t before = testing::allocations();
    const auto status = model.forward({rows, sequences, memory}, logits, nullptr);
    const uint64_t after = testing::allocations();
    EXPECT_TRUE(status) << status.error().str();
    return after - before;
  };
  EXPECT_EQ(step(50, 2), 0u);  // the first step too
  for (int i = 0; i < 20; ++i) EXPECT_EQ(step(1, 2), 0u) << "decode step " << i;
  EXPECT_EQ(step(5, 1), 0u);
  EXPECT_EQ(step(30, 2), 0u);
}

TEST(V41Allocation, StepsOfAllOperationsButTheLinearOnes) {
  ThreadPool pool(2);
  expect_no_allocation(std::make_unique<CheapWeights>(&pool));
}

TEST(V41Allocation, StepsOfTheFastArithmetic) {
  ThreadPool pool(2);
  expect_no_allocation(make_fast_arithmetic(&pool));
}

}  // namespace
}  // namespace deepmint::v41
