// Products and experts of the fast arithmetic on a layer of the tiny checkpoint.
#include "model/deepseek_v41/fast_linear.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>

#include "core/cpu_isa.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/rounding_testing.h"
#include "model/deepseek_v41/synth.h"

namespace deepmint::v41 {
namespace {

constexpr uint64_t kSeed = 4041;

class FastLinearTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = std::filesystem::temp_directory_path() /
               ("deepmint_fast_linear_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder());
    const auto ok = synthesize(synth_config(SynthPreset::kTiny), folder());
    ASSERT_TRUE(ok) << ok.error().str();
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(folder()); }
  void SetUp() override {
    auto files = SafetensorsModel::open(folder());
    ASSERT_TRUE(files) << files.error().str();
    files_ = std::make_unique<SafetensorsModel>(std::move(*files));
    auto weights = bind_weights(*files_, config_);
    ASSERT_TRUE(weights) << weights.error().str();
    weights_ = std::move(*weights);
  }
  ~FastLinearTest() override { set_active_isa(before_); }

  // Rows of BF16 values.
  std::vector<float> rows(int64_t m, int64_t k) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(m * k));
    for (float& v : x) v = round_bf16(normal(rng_));
    return x;
  }
  std::vector<float> moe(FastLinear& linear, const std::vector<float>& u, const LayerWeights& w) {
    const int64_t m = static_cast<int64_t>(u.size()) / config_.hidden;
    std::vector<float> y(u.size(), -1.0f);
    linear.route(u.data(), m, config_, w);
    linear.experts(u.data(), m, config_, w, y.data());
    return y;
  }

  const Config config_ = synth_config(SynthPreset::kTiny);
  std::unique_ptr<SafetensorsModel> files_;
  Weights weights_;
  std::mt19937_64 rng_{kSeed};

 private:
  static std::filesystem::path& folder() {
    static std::filesystem::path f;
    return f;
  }
  Isa before_ = active_isa();
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_F(FastLinearTest, ExpertsGroupedEqualOneByOne) {
  const int64_t m = 37;
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto u = rows(m, config_.hidden);
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    ThreadPool one(1), three(3);
    FastLinear alone(one), grouped(three);
    const LayerWeights& w = weights_.layers[3];
    std::vector<float> want;
    for (int64_t row = 0; row < m; ++row) {
      const std::vector<float> x(u.begin() + row * config_.hidden,
                                 u.begin() + (row + 1) * config_.hidden);
      const auto y = moe(alone, x, w);
      want.insert(want.end(), y.begin(), y.end());
    }
    EXPECT_TRUE(same_bits(want, moe(grouped, u, w))) << to_string(isa);
    // T2: rows in another order.
    std::vector<size_t> order(static_cast<size_t>(m));
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::shuffle(order, rng_);
    std::vector<float> shuffled;
    for (const size_t row : order)
      shuffled.insert(shuffled.end(), u.begin() + static_cast<std::ptrdiff_t>(row * hidden),
                      u.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden));
    const auto y = moe(grouped, shuffled, w);
    for (size_t i = 0; i < order.size(); ++i)
      EXPECT_TRUE(same_bits(std::span(y).subspan(i * hidden, hidden),
                            std::span(want).subspan(order[i] * hidden, hidden)))
          << to_string(isa) << " row " << order[i];
  }
}

// One FP8 code of an inner value may fall on the other side; everything else agrees to the last
// bit of BF16.
TEST_F(FastLinearTest, ExpertsAreCloseToTheReference) {
  const auto reference = make_reference_arithmetic();
  const auto u = rows(20, config_.hidden);
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    std::vector<float> want(u.size());
    reference->moe(u.data(), 20, config_, static_cast<int>(layer), w, want.data());
    float largest = 0;
    for (const float v : want) largest = std::max(largest, std::fabs(v));
    for (const Isa isa : available_isas()) {
      set_active_isa(isa);
      ThreadPool pool(2);
      FastLinear linear(pool);
      const auto y = moe(linear, u, w);
      size_t equal = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        equal += y[i] == want[i];
        ASSERT_LE(std::fabs(y[i] - want[i]), largest / 16) << to_string(isa) << " layer " << layer;
      }
      EXPECT_GE(static_cast<double>(equal), 0.9 * static_cast<double>(y.size())) << to_string(isa);
    }
  }
}

// Products side by side, and a mix beside them or beside the experts, are what they are alone.
TEST_F(FastLinearTest, TogetherEqualsOneByOne) {
  const LayerWeights& w = weights_.layers[2];  // a kv source
  ASSERT_TRUE(w.compressor);
  const auto hc = static_cast<size_t>(config_.streams);
  for (const Isa isa : available_isas())
    for (const int64_t m : {1, 3, 8, 9}) {
      set_active_isa(isa);
      const auto x = rows(m, config_.hidden), X = rows(m, config_.streams * config_.hidden);
      const auto M = static_cast<size_t>(m);
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        const auto fast = make_fast_arithmetic(&pool);
        ASSERT_TRUE(fast->reserve(config_, M));
        const auto mixes = [&](const MixWeights& mix, std::vector<float>& out, auto&& call) {
          out.assign(M * hc * (hc + 2), -1.0f);
          call(mix, out.data(), out.data() + M * hc, out.data() + 2 * M * hc);
        };
        const auto want_mix = [&](const MixWeights& mix) {
          std::vector<float> out;
          mixes(mix, out, [&](const MixWeights& v, float* pre, float* post, float* comb) {
            fast->mix(X.data(), m, config_, v, pre, post, comb);
          });
          return out;
        };
        const Matrix* const matrices[] = {&w.wkv, &w.compressor->wkv, &w.wq_a};
        std::vector<float> one[3], all[3], beside, experts(M * static_cast<size_t>(config_.hidden)),
            alone = experts;
        Arithmetic::Product products[3];
        for (size_t i = 0; i < 3; ++i) {
          const Output output = i == 1 ? Output::kF32 : Output::kBf16;
          one[i].resize(M * static_cast<size_t>(matrices[i]->n));
          all[i] = one[i];
          fast->linear(*matrices[i], x.data(), m, one[i].data(), output);
          products[i] = {matrices[i], all[i].data(), output};
        }
        mixes(w.attn_mix, beside, [&](const MixWeights& v, float* pre, float* post, float* comb) {
          fast->mix_beside(X.data(), m, config_, v, pre, post, comb);
          fast->linears(products, x.data(), m);
        });
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(one[i], all[i])) << i;
        EXPECT_TRUE(same_bits(beside, want_mix(w.attn_mix))) << threads << ", m " << m;
        fast->moe(x.data(), m, config_, 2, w, alone.data());
        mixes(w.ffn_mix, beside, [&](const MixWeights& v, float* pre, float* post, float* comb) {
          fast->mix_beside(X.data(), m, config_, v, pre, post, comb);
          fast->moe(x.data(), m, config_, 2, w, experts.data());
        });
        EXPECT_TRUE(same_bits(beside, want_mix(w.ffn_mix))) << threads << ", m " << m;
        EXPECT_TRUE(same_bits(experts, alone));
        results.push_back(experts);
      }
      for (const auto& r : results) EXPECT_TRUE(same_bits(r, results[0])) << to_string(isa);
    }
}

// T11: equal scores go to the lower ids; a bias moves the choice and not the weights.
TEST_F(FastLinearTest, TiesGoToTheLowerExpert) {
  LayerWeights& w = weights_.layers[2];
  const std::vector<float> zeros(static_cast<size_t>(config_.hidden), 0.0f);
  std::ranges::fill(w.gate_bias, 0.25f);
  ThreadPool pool(2);
  FastLinear linear(pool);
  const auto chosen = [&] {
    const auto ids = linear.route(zeros.data(), 1, config_, w);
    return std::vector<int32_t>(ids.begin(), ids.end());
  };
  EXPECT_EQ(chosen(), (std::vector<int32_t>{0, 1, 2, 3}));
  w.gate_bias[9] = 0.5f;
  w.gate_bias[2] = 0.0f;
  EXPECT_EQ(chosen(), (std::vector<int32_t>{0, 1, 3, 9}));
}

TEST_F(FastLinearTest, NotANumberStaysInItsRow) {
  auto u = rows(3, config_.hidden);
  const auto hidden = static_cast<size_t>(config_.hidden);
  u[hidden + 5] = NAN;
  ThreadPool pool(2);
  FastLinear linear(pool);
  const auto y = moe(linear, u, weights_.layers[0]);
  for (size_t i = 0; i < hidden; ++i) {
    EXPECT_TRUE(std::isfinite(y[i]) && std::isfinite(y[2 * hidden + i]));
    EXPECT_TRUE(std::isnan(y[hidden + i]));
  }
}

TEST_F(FastLinearTest, ScalesThatBf16CannotHoldAreNamed) {
  ThreadPool pool(2);
  EXPECT_TRUE(check_dense(weights_, pool));
  Matrix& w = weights_.layers[6].shared.w2;
  TensorView scale = *w.scale;
  std::vector<std::byte> bytes(scale.bytes.begin(), scale.bytes.end());
  bytes.back() = std::byte{250};
  scale.bytes = bytes;
  w.scale = &scale;
  const auto status = check_dense(weights_, pool);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().where, "tensor \"layers.6.ffn.shared_experts.w2.weight\"");
}

TEST_F(FastLinearTest, GroupsAreProductsOfTheirOwn) {
  const std::vector<Matrix>& w = weights_.layers[1].wo_a;
  const auto groups = static_cast<int64_t>(w.size());
  const int64_t m = 11, k = w[0].k, n = w[0].n;
  const auto x = rows(m, groups * k);
  ThreadPool pool(2);
  std::vector<std::vector<float>> answers;  // of every instruction set
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    FastLinear linear(pool);
    linear.linear_groups(w, x.data(), m,
                         answers.emplace_back(static_cast<size_t>(m * groups * n)).data());
  }
  std::vector<double> want(static_cast<size_t>(n));
  std::vector<float> weights(static_cast<size_t>(k));
  for (int64_t g = 0; g < groups; ++g) {
    const kernels::V41Weights matrix = view(w[static_cast<size_t>(g)]);
    for (int64_t row = 0; row < m; ++row) {
      const float* in = x.data() + (row * groups + g) * k;
      kernels::v41_linear_ref(matrix, kernels::V41Round::kPlain, in, 1, want.data());
      for (int64_t i = 0; i < n; ++i) {
        // Exact products, k additions in float and four of lanes (docs/kernels/v41_linear.md), then
        // one rounding to BF16.
        kernels::v41_dequantize(matrix, i, weights.data());
        double magnitude = 0;
        for (int64_t j = 0; j < k; ++j)
          magnitude += std::fabs(static_cast<double>(weights[static_cast<size_t>(j)]) * in[j]);
        const double error =
            (static_cast<double>(k) + 4) * 0x1p-24 * magnitude + static_cast<double>(k) * 0x1p-126;
        const Rounded allowed = to_bf16(want[static_cast<size_t>(i)], error);
        for (const std::vector<float>& y : answers) {
          const float got = y[static_cast<size_t>((row * groups + g) * n + i)];
          EXPECT_TRUE(allowed.holds(got)) << got << " for " << allowed.low << " to " << allowed.high
                                          << ", row " << row << ", group " << g << ", output " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepmint::v41
