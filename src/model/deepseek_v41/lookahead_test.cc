// What waiting threads fetch ahead is what a step reads next: FastLinear::prepare knows the order
// in which forward.cc asks for the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "model/deepseek_v41/fast_linear.h"
#include "model/deepseek_v41/fast_ops.h"
#include "model/deepseek_v41/v41_testing.h"

namespace deepmint::v41 {
namespace {

// Notes what a step reads; computes nothing.
class Reads : public FastOps {
 public:
  struct Call {
    const Matrix* first = nullptr;  // what the call is known by
    std::vector<const std::byte*> weights, beside;
    bool in_between = false;  // of some rows only
  };
  explicit Reads(ThreadPool& pool, std::vector<Call>& calls)
      : FastOps(&pool), linear_(pool), calls_(calls) {}
  Status prepare(const Config& c, const Weights& w) override {
    linear_.prepare(c, w);
    for (const LayerWeights& l : w.layers)
      if (l.compressor) in_between_.insert(&l.compressor->wk);
    return FastOps::prepare(c, w);
  }
  const FastLinear& linear_operations() const { return linear_; }

  void linear(const Matrix& w, const float*, int64_t m, float* y, Output) override {
    note({&w}, in_between_.contains(&w));
    std::fill_n(y, m * w.n, 1.0f);
  }
  void linears(std::span<const Product> products, const float*, int64_t m) override {
    std::vector<const Matrix*> read;
    for (const Product& p : products) {
      read.push_back(p.w);
      std::fill_n(p.y, m * p.w->n, 1.0f);
    }
    note(read);
  }
  void linear_groups(std::span<const Matrix> w, const float*, int64_t m, float* y) override {
    std::vector<const Matrix*> read;
    for (const Matrix& group : w) read.push_back(&group);
    note(read);
    std::fill_n(y, m * static_cast<int64_t>(w.size()) * w[0].n, 1.0f);
  }
  void mix_beside(const float* X, int64_t m, const Config& c, const MixWeights& w, float* pre,
                  float* post, float* comb) override {
    beside_.push_back(reinterpret_cast<const std::byte*>(w.fn.data()));
    mix(X, m, c, w, pre, post, comb);
  }
  void moe(const float*, int64_t m, const Config& c, int, const LayerWeights& w,
           float* y) override {
    beside_.insert(beside_.begin(), w.gate.weight->bytes.data());
    note({&w.shared.w1, &w.shared.w3});
    calls_.back().first = &w.shared.w2;
    std::fill_n(y, m * c.hidden, 1.0f);
  }

 private:
  void note(const std::vector<const Matrix*>& read, bool in_between = false) {
    Call call{read[0],
              {},
              in_between ? std::vector<const std::byte*>{} : std::exchange(beside_, {}),
              in_between};
    for (const Matrix* m : read) call.weights.push_back(m->weight->bytes.data());
    calls_.push_back(std::move(call));
  }
  FastLinear linear_;
  std::vector<Call>& calls_;
  std::vector<const std::byte*> beside_;
  std::set<const Matrix*> in_between_;
};

// Every call of a decode step reads what was to follow the one before it, from step to step.
TEST(V41Lookahead, ADecodeStepReadsWhatWasToFollow) {
  ThreadPool pool(2);
  std::vector<Reads::Call> calls;
  auto owned = std::make_unique<Reads>(pool, calls);
  const FastLinear& linear = owned->linear_operations();
  const Config config = synth_config(SynthPreset::kTiny);
  const testing::Checkpoint checkpoint(config);
  const auto model = checkpoint.load(std::move(owned), 1, 1);
  testing::Cache cache(*model, 1, 1);
  for (int32_t position = 0; position < 4; ++position) {
    const Row row{.position = position, .token = 7, .needs_logits = true};
    testing::run(*model, cache, {&row, 1});
  }
  ASSERT_GE(calls.size(), 4 * (5 * static_cast<size_t>(config.layers) + 1));
  const Reads::Call* before = nullptr;
  for (const Reads::Call& call : calls) {
    if (before != nullptr && !call.in_between) {
      const FastLinear::Following* f = linear.after(*before->first);
      ASSERT_NE(f, nullptr) << before->first->weight->name;
      std::vector<const std::byte*> weights, beside;
      for (const auto& w : f->weights) weights.push_back(w.codes);
      for (const auto& memory : f->beside) beside.push_back(memory.data());
      EXPECT_EQ(weights, call.weights) << "after " << before->first->weight->name;
      EXPECT_EQ(beside, call.beside) << "after " << before->first->weight->name;
    }
    before = &call;
  }
}

}  // namespace
}  // namespace deepmint::v41
