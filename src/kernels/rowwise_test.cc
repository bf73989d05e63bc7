#include "kernels/rowwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/cpu_isa.h"
#include "kernels/scalar_math.h"
#include "support/isa_test.h"

namespace deepmint::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<int64_t> kLengths = [] {
  std::vector<int64_t> n;
  for (int64_t i = 1; i <= 33; ++i) n.push_back(i);
  for (const int64_t i :
       {47, 48, 63, 64, 65, 79, 80, 96, 127, 128, 129, 576, 1000, 1536, 4096, 5120})
    n.push_back(i);
  return n;
}();

std::vector<float> random_values(std::mt19937& rng, int64_t n, float spread = 1.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

double ulp(double at) {
  const float f = std::fabs(static_cast<float>(at));
  return static_cast<double>(std::nextafter(f, kInf)) - f;
}

class Rowwise : public deepmint::testing::IsaTest {
 protected:
  // FMA or not, a row's error stays within this many units in the last place per rounding chain.
  std::mt19937 rng_{20261129};
};
INSTANTIATE_TEST_SUITE_P(Isas, Rowwise, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

TEST_P(Rowwise, RmsNormMatchesReferenceAtEveryLengthAndOffset) {
  for (const int64_t n : kLengths)
    for (const int64_t offset : {0, 1, 7, 15}) {
      const auto x = random_values(rng_, n + offset, 3.0f), w = random_values(rng_, n + offset);
      std::vector<float> y(static_cast<size_t>(n + offset + 1), 123.0f),
          ref(static_cast<size_t>(n));
      rms_norm(x.data() + offset, w.data() + offset, n, 1e-5f, y.data() + offset);
      rms_norm_ref(x.data() + offset, w.data() + offset, n, 1e-5f, ref.data());
      // Terms of one partial sum (n / 64) round once each, then a tree of 6, a division, a root, a
      // division, two products.
      const double bound = (static_cast<double>(n) / 64 + 6) / 2 + 5;
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(y[static_cast<size_t>(i + offset)], ref[static_cast<size_t>(i)],
                    bound * ulp(ref[static_cast<size_t>(i)]))
            << "n " << n << " i " << i;
      for (int64_t i = 0; i < offset; ++i) ASSERT_EQ(y[static_cast<size_t>(i)], 123.0f);
      ASSERT_EQ(y.back(), 123.0f);
    }
}

TEST_P(Rowwise, RmsNormInPlaceAndSpecialValues) {
  auto x = random_values(rng_, 100);
  const auto w = random_values(rng_, 100);
  std::vector<float> y(100);
  rms_norm(x.data(), w.data(), 100, 1e-6f, y.data());
  rms_norm(x.data(), w.data(), 100, 1e-6f, x.data());
  EXPECT_EQ(std::memcmp(x.data(), y.data(), 400), 0);
  std::vector<float> zeros(100), out(100, 1.0f);
  rms_norm(zeros.data(), w.data(), 100, 1e-6f, out.data());
  for (const float v : out) EXPECT_EQ(v, 0.0f);
  zeros[99] = kNaN;  // one NaN is everywhere in its own row
  rms_norm(zeros.data(), w.data(), 100, 1e-6f, out.data());
  for (const float v : out) EXPECT_TRUE(std::isnan(v));
}

TEST_P(Rowwise, RopeMatchesReferenceInBothPairings) {
  for (const int64_t rotary : {2, 4, 6, 16, 30, 32, 34, 64, 96, 128})
    for (const RopePairing pairing : {RopePairing::kHalves, RopePairing::kInterleaved}) {
      auto x = random_values(rng_, rotary + 3);
      std::vector<float> table(static_cast<size_t>(rotary));
      for (int64_t i = 0; i < rotary / 2; ++i) {
        const double angle = static_cast<double>(rng_()) / 1e6;
        table[static_cast<size_t>(i)] = static_cast<float>(std::cos(angle));
        table[static_cast<size_t>(rotary / 2 + i)] = static_cast<float>(std::sin(angle));
      }
      auto ref = x;
      const auto before = x;
      rope(x.data(), table.data(), rotary, pairing);
      rope_ref(ref.data(), table.data(), rotary, pairing);
      for (int64_t i = 0; i < rotary;
           ++i)  // |result| <= |pair|: three roundings of values of that size
        ASSERT_NEAR(x[static_cast<size_t>(i)], ref[static_cast<size_t>(i)], 2e-7 * 8)
            << rotary << " " << i;
      for (size_t i = static_cast<size_t>(rotary); i < x.size(); ++i) ASSERT_EQ(x[i], before[i]);
    }
}

TEST_P(Rowwise, SwigluMatchesReference) {
  for (const int64_t n : kLengths) {
    const auto gate = random_values(rng_, n, 8.0f), up = random_values(rng_, n, 2.0f);
    std::vector<float> y(static_cast<size_t>(n + 1), 5.0f), ref(static_cast<size_t>(n));
    swiglu(gate.data(), up.data(), n, y.data());
    swiglu_ref(gate.data(), up.data(), n, ref.data());
    for (size_t i = 0; i < ref.size(); ++i) ASSERT_NEAR(y[i], ref[i], 4 * ulp(ref[i])) << gate[i];
    ASSERT_EQ(y.back(), 5.0f);
  }
  const std::vector<float> gate = {0.0f, -0.0f, 100.0f, -100.0f, kNaN, 1.0f, 3e38f},
                           up = {1, 1, 2, 2, 1, kNaN, 1};
  std::vector<float> y(7);
  swiglu(gate.data(), up.data(), 7, y.data());
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 200.0f);
  EXPECT_LT(std::fabs(y[3]), 1e-35f);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(y[6], 3e38f);
}

TEST_P(Rowwise, ExpIsWithinTwoUlp) {  // 0.84 with FMA; the x86-64 build rounds products as well
  std::vector<float> x, y;
  for (double v = -87.0; v <= 88.0; v += 0.00037) x.push_back(static_cast<float>(v));
  y.resize(x.size());
  exp_row(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::fmax(worst, std::fabs(y[i] - std::exp(static_cast<double>(x[i]))) /
                                 ulp(std::exp(static_cast<double>(x[i]))));
  EXPECT_LE(worst, GetParam() == Isa::kX86_64 ? 2.0 : 1.0);
  const std::vector<float> special = {0.0f, -0.0f, -kInf, -88.0f, kInf, kNaN, -3e38f};
  std::vector<float> out(7);
  exp_row(special.data(), 7, out.data());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_GT(out[4], 1e38f);
  EXPECT_TRUE(std::isnan(out[5]));
  EXPECT_EQ(out[6], 0.0f);
}

// The three instruction sets with FMA give one answer.
TEST(RowwiseClass, SameBitsInsideTheClass) {
  std::vector<std::vector<float>> first;
  for (const Isa isa : available_isas()) {
    if (isa == Isa::kX86_64) continue;
    set_active_isa(isa);
    std::mt19937 rng(7);
    std::vector<std::vector<float>> results;
    for (const int64_t n : kLengths) {
      const auto a = random_values(rng, n, 4.0f), b = random_values(rng, n);
      std::vector<float> y(static_cast<size_t>(n));
      rms_norm(a.data(), b.data(), n, 1e-5f, y.data());
      results.push_back(y);
      swiglu(a.data(), b.data(), n, y.data());
      results.push_back(y);
      exp_row(a.data(), n, y.data());
      results.push_back(y);
      if (n % 2 == 0)
        for (const auto pairing : {RopePairing::kHalves, RopePairing::kInterleaved}) {
          y = a;
          rope(y.data(), b.data(), n, pairing);
          results.push_back(y);
        }
    }
    if (first.empty()) first = results;
    ASSERT_EQ(first.size(), results.size());
    for (size_t i = 0; i < results.size(); ++i)
      ASSERT_EQ(std::memcmp(first[i].data(), results[i].data(), first[i].size() * 4), 0)
          << to_string(isa) << " differs in result " << i;
  }
  set_active_isa(detected_isa());
}

TEST(ScalarMath, AgreesWithTheLibraryClosely) {
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> wide(-700, 700), unit(0, 1);
  for (int i = 0; i < 20000; ++i) {
    const double x = wide(rng);
    ASSERT_NEAR(exp_double(x) / std::exp(x), 1.0, 1e-15) << x;
    const double y = std::exp(x);
    ASSERT_NEAR(ln_double(y), std::log(y), 1e-15 * std::fmax(1.0, std::fabs(std::log(y)))) << y;
    const double near_one = 1 + (unit(rng) - 0.5) * 1e-3;
    ASSERT_NEAR(ln_double(near_one), std::log(near_one),
                3e-16 * std::fabs(std::log(near_one)) + 1e-19);
    const double angle = (unit(rng) - 0.5) * 16.7e6;
    const SinCos sc = sincos_double(angle);
    ASSERT_NEAR(sc.sin, std::sin(angle), 1e-15) << angle;
    ASSERT_NEAR(sc.cos, std::cos(angle), 1e-15) << angle;
  }
  EXPECT_EQ(exp_double(0), 1.0);
  EXPECT_EQ(ln_double(1), 0.0);
  EXPECT_EQ(exp_double(1000), std::numeric_limits<double>::infinity());
  EXPECT_EQ(exp_double(-1000), 0.0);
  EXPECT_NEAR(exp_double(-745) / std::exp(-745.0), 1.0, 1e-9);
  EXPECT_TRUE(std::isnan(ln_double(-1)));
  EXPECT_TRUE(std::isinf(ln_double(0)));
  EXPECT_NEAR(ln_double(5e-324), std::log(5e-324), 1e-12);
  EXPECT_NEAR(pow_double(1e6, -0.734375), std::pow(1e6, -0.734375), 1e-19);
  EXPECT_TRUE(std::isnan(sincos_double(1e9).sin));
  EXPECT_EQ(sincos_double(0).cos, 1.0);
}

TEST(ScalarMath, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(to_bf16(1.00390625f), 0x3f80);  // half way: even
  EXPECT_EQ(to_bf16(1.01171875f), 0x3f82);  // half way: even
  EXPECT_EQ(to_bf16(3.4e38f), 0x7f80);      // rounds up to infinity
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(kNaN))));
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(__builtin_bit_cast(float, 0x7f800001u)))));
  for (uint32_t h = 0; h < 65536; ++h) {
    const float x = from_bf16(static_cast<uint16_t>(h));
    if (!std::isnan(x)) {
      ASSERT_EQ(to_bf16(x), h);
    }
  }
}

}  // namespace
}  // namespace deepmint::kernels
