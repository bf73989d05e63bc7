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
#include "model/deepseek_v41/ref_ops.h"
#include "model/deepseek_v41/rounding_testing.h"
#include "model/deepseek_v41/synth.h"
#include "support/test_seed.h"

namespace deepmint::v41 {
namespace {

class FastLinearTest : public ::testing::Test {
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
  std::mt19937_64 rng_{deepmint::testing::test_seed()};

 private:
  static std::filesystem::path& folder() {
    static std::filesystem::path f;
    return f;
  }
  Isa before_ = active_isa();
};

// What a product may give, given what its activations may be: each lane adds four products for
// every 64 of a row, and the lanes meet in four additions (docs/kernels/v41_linear.md).
struct Dot {
  double value = 0, error = 0;
};
Dot product(const Matrix& w, int64_t output, std::span<const Rounded> x) {
  std::vector<float> weights(static_cast<size_t>(w.k));
  kernels::v41_dequantize(view(w), output, weights.data());
  const double additions = static_cast<double>((w.k + 63) / 64 * 4 + 4);
  double value = 0, magnitude = 0, spread = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double low = x[i].low, high = x[i].high, weight = weights[i];
    value += weight * ((low + high) / 2);
    spread += std::fabs(weight) * ((high - low) / 2);
    magnitude += std::fabs(weight) * std::max(std::fabs(low), std::fabs(high));
  }
  return {value, spread + additions * kFloatUnit * 1.001 * magnitude +
                     static_cast<double>(w.k) * 0x1p-126};
}
std::vector<Rounded> products(const Matrix& w, std::span<const Rounded> x) {
  std::vector<Rounded> y;
  for (int64_t i = 0; i < w.n; ++i) {
    const Dot dot = product(w, i, x);
    y.push_back(to_bf16(dot.value, dot.error));
  }
  return y;
}

// The values that an FP8 quantiser may make of a row: monotone under a given scale.
std::vector<Rounded> quantised(std::span<const Rounded> x) {
  std::vector<Rounded> out;
  for (size_t b = 0; b < x.size(); b += 32) {
    const auto block = x.subspan(b, 32);
    float least = 0, most = 0;  // of the largest magnitude
    for (const Rounded& v : block) {
      least = std::max({least, v.low, -v.high});
      most = std::max({most, std::fabs(v.low), std::fabs(v.high)});
    }
    const auto exponent = [](float amax) {
      return pow2_ceil_exponent(std::max(amax, 1e-4f) / 448.0f);
    };
    for (const Rounded& v : block) {
      Rounded all = {INFINITY, -INFINITY};
      for (int e = exponent(least); e <= exponent(most); ++e) {
        const float s = std::ldexp(1.0f, e);
        all.low = std::min(all.low, decode_e4m3(encode_e4m3(v.low / s)) * s);
        all.high = std::max(all.high, decode_e4m3(encode_e4m3(v.high / s)) * s);
      }
      out.push_back(all);
    }
  }
  return out;
}

// sqrt(softplus(t)), rounded once: six operations in double, exp and ln of up to 2 ulp among them.
// Rising with the logit.
Rounded router_score(Rounded logit, double temperature) {
  const auto f = [](double v) { return std::sqrt(v > 20 ? v : std::log1p(std::exp(v))); };
  const double error = 16 * kUnit;
  return {static_cast<float>(f(logit.low / temperature) * (1 - error)),
          static_cast<float>(f(logit.high / temperature) * (1 + error))};
}

// The choice of experts and their weights, from what their scores may be. Certain: the choice is.
struct RouterTwin {
  bool certain = true;
  std::vector<int32_t> ids;
  std::vector<Rounded> weights;

  RouterTwin(std::span<const Rounded> score, std::span<const float> bias, const Config& c) {
    const auto k = static_cast<size_t>(c.experts_per_token);
    std::vector<int32_t> order(score.size());
    std::iota(order.begin(), order.end(), 0);
    const auto low = [&](int32_t e) {
      return score[static_cast<size_t>(e)].low + bias[static_cast<size_t>(e)];
    };
    const auto high = [&](int32_t e) {
      return score[static_cast<size_t>(e)].high + bias[static_cast<size_t>(e)];
    };
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return low(a) > low(b); });
    for (size_t i = k; i < order.size(); ++i)
      certain = certain && low(order[k - 1]) > high(order[i]);
    ids.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
    std::ranges::sort(ids);
    double least = 0, most = 0;  // k additions in double, whose order may differ
    for (const int32_t e : ids) {
      least += static_cast<double>(score[static_cast<size_t>(e)].low);
      most += static_cast<double>(score[static_cast<size_t>(e)].high);
    }
    const double rounding = kUnit * static_cast<double>(2 * k);
    const Rounded sum = {static_cast<float>(least * (1 - rounding)) + 1e-20f,
                         static_cast<float>(most * (1 + rounding)) + 1e-20f};
    const auto scale = static_cast<float>(c.route_scale);
    for (const int32_t e : ids) {
      const Rounded share = quotient(score[static_cast<size_t>(e)], sum);
      weights.push_back({scale * share.low, scale * share.high});
    }
  }
};

// All that products of one number of each of two ranges may give.
struct Range {
  double low, high;
  Range operator*(const Range& o) const {
    const auto [least, most] =
        std::minmax({low * o.low, low * o.high, high * o.low, high * o.high});
    return {least, most};
  }
};

// The input of w2 before it is quantised: one exponential of 1 ulp and five float operations after
// it (kernels/v41_linear.h), which is seven units.
Rounded swiglu_twin(Rounded gate, Rounded up, Rounded weight, float limit) {
  const auto sigmoid = [](double g) { return 1 / (1 + std::exp(-g)); };
  const Range g = {std::min(gate.low, limit), std::min(gate.high, limit)},
              s = {sigmoid(g.low), sigmoid(g.high)},
              u = {std::clamp(up.low, -limit, limit), std::clamp(up.high, -limit, limit)},
              t = g * s * u * Range{weight.low, weight.high};
  const double share = 7.001 * kFloatUnit;
  return to_bf16(Rounded{static_cast<float>(t.low - std::fabs(t.low) * share),
                         static_cast<float>(t.high + std::fabs(t.high) * share)});
}

// What a row may become, or nothing where its logits leave the choice of experts open.
std::vector<Rounded> experts_twin(const float* u, const Config& c, const LayerWeights& w) {
  std::vector<Rounded> x;
  for (int i = 0; i < c.hidden; ++i) x.push_back({u[i], u[i]});
  std::vector<Rounded> score;
  for (int64_t e = 0; e < c.experts; ++e) {
    const Dot logit = product(w.gate, e, x);
    score.push_back(router_score(to_f32(logit.value, logit.error), c.gate_temperature));
  }
  const RouterTwin route(score, w.gate_bias, c);
  if (!route.certain) return {};
  x = quantised(x);
  std::vector<Chain> sum(static_cast<size_t>(c.hidden));
  const auto add = [&](const Expert& e, Rounded weight) {
    const auto gate = products(e.w1, x), up = products(e.w3, x);
    std::vector<Rounded> t;
    for (size_t i = 0; i < gate.size(); ++i)
      t.push_back(swiglu_twin(gate[i], up[i], weight, c.swiglu_limit));
    const auto part = products(e.w2, quantised(t));
    for (size_t i = 0; i < part.size(); ++i) {
      const double low = part[i].low, high = part[i].high;
      sum[i].error += (high - low) / 2;
      sum[i].add((low + high) / 2);
    }
  };
  for (size_t i = 0; i < route.ids.size(); ++i)
    add(w.experts[static_cast<size_t>(route.ids[i])], route.weights[i]);
  add(w.shared, {1, 1});
  std::vector<Rounded> out;
  for (const Chain& s : sum) out.push_back(to_bf16(s));
  return out;
}

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

// Scores and weights of experts, given the logits that the reference is given too: in double, so
// that a float rounds where the reference's does, unless a boundary lies inside the error of our
// exp and ln. The logits themselves are a product like others, bounded in v41_linear_test.
TEST_F(FastLinearTest, RoutingRoundsWhereTheReferenceDoes) {
  const auto experts = static_cast<size_t>(config_.experts),
             k = static_cast<size_t>(config_.experts_per_token);
  const int64_t m = 60;
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    ThreadPool pool(2);
    FastLinear linear(pool);
    int checked = 0;
    for (const float spread : {1.0f, 20.0f}) {  // logits on both sides of 20, too
      auto u = rows(m, config_.hidden);
      for (float& v : u) v = round_bf16(v * spread);
      for (const size_t layer : {size_t{0}, size_t{5}}) {
        const LayerWeights& w = weights_.layers[layer];
        std::vector<float> logits(static_cast<size_t>(m) * experts);
        linear.linear(w.gate, u.data(), m, logits.data(), Output::kF32);
        linear.route(u.data(), m, config_, w);
        for (size_t row = 0; row < static_cast<size_t>(m); ++row) {
          const std::span of_row = std::span(logits).subspan(row * experts, experts);
          std::vector<Rounded> score;
          for (const float logit : of_row)
            score.push_back(router_score({logit, logit}, config_.gate_temperature));
          const RouterTwin twin(score, w.gate_bias, config_);
          if (!twin.certain) continue;
          ++checked;
          std::vector<int32_t> ids(k);
          std::vector<float> weights(k);
          ref::route(of_row, w.gate_bias, config_.experts_per_token,
                     static_cast<float>(config_.route_scale), config_.gate_temperature, ids,
                     weights);
          for (size_t i = 0; i < k; ++i) {
            const size_t at = row * k + i;
            ASSERT_EQ(linear.chosen()[at], twin.ids[i]) << to_string(isa) << " row " << row;
            ASSERT_EQ(ids[i], twin.ids[i]);
            for (const float weight : {linear.expert_weights()[at], weights[i]})
              ASSERT_TRUE(twin.weights[i].holds(weight))
                  << to_string(isa) << " row " << row << ": " << weight << ", allowed "
                  << twin.weights[i].low << " to " << twin.weights[i].high;
          }
        }
      }
    }
    EXPECT_GT(checked, 230) << "of 240";
  }
}

// From a row to the sum of its experts: what every rounding on the way may give, followed at both
// ends of its operand. So a logit or a product whose last bits differ moves an FP8 code of an inner
// value where, and only where, a boundary of the codes lies in between.
TEST_F(FastLinearTest, ExpertsStayWithinTheirRoundings) {
  const auto reference = make_reference_arithmetic();
  const size_t m = 12;
  const auto hidden = static_cast<size_t>(config_.hidden);
  size_t determined = 0, checked = 0;
  for (const float limit : {config_.swiglu_limit, 0.5f}) {  // out of reach, and for many values
    Config c = config_;
    c.swiglu_limit = limit;
    for (const size_t layer : {size_t{0}, size_t{3}, size_t{6}}) {
      const LayerWeights& w = weights_.layers[layer];
      const auto u = rows(static_cast<int64_t>(m), c.hidden);
      std::vector<float> want(u.size());
      reference->moe(u.data(), static_cast<int64_t>(m), c, static_cast<int>(layer), w, want.data());
      std::vector<std::vector<float>> got;
      for (const Isa isa : available_isas()) {
        set_active_isa(isa);
        ThreadPool pool(2);
        FastLinear linear(pool);
        got.emplace_back(u.size(), NAN);
        linear.route(u.data(), static_cast<int64_t>(m), c, w);
        linear.experts(u.data(), static_cast<int64_t>(m), c, w, got.back().data());
      }
      for (size_t row = 0; row < m; ++row) {
        const auto allowed = experts_twin(u.data() + row * hidden, c, w);
        for (size_t i = 0; i < allowed.size(); ++i) {
          const size_t at = row * hidden + i;
          ASSERT_TRUE(allowed[i].holds(want[at])) << want[at];
          for (size_t isa = 0; isa < got.size(); ++isa)
            ASSERT_TRUE(allowed[i].holds(got[isa][at]))
                << to_string(available_isas()[isa]) << ", layer " << layer << ", row " << row
                << ", " << i << ": " << got[isa][at] << ", allowed " << allowed[i].low << " to "
                << allowed[i].high;
          determined += allowed[i].certain() ? 1 : 0;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 6 * (m - 2) * hidden);
  EXPECT_GT(determined, checked / 4 * 3);
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
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t row = 0; row < m; ++row) {
      const float* in = x.data() + (row * groups + g) * k;
      std::vector<Rounded> exact;
      for (int64_t j = 0; j < k; ++j) exact.push_back({in[j], in[j]});
      const auto allowed = products(w[static_cast<size_t>(g)], exact);
      for (int64_t i = 0; i < n; ++i)
        for (const std::vector<float>& y : answers) {
          const Rounded& of = allowed[static_cast<size_t>(i)];
          const float got = y[static_cast<size_t>((row * groups + g) * n + i)];
          EXPECT_TRUE(of.holds(got)) << got << " for " << of.low << " to " << of.high << ", row "
                                     << row << ", group " << g << ", output " << i;
        }
    }
}

}  // namespace
}  // namespace deepmint::v41
