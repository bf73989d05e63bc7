// Row kernels against the plainest loops, on every instruction set, and every instruction set
// against the baseline, bit for bit.
#include "sampling/row_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/cpu_isa.h"
#include "sampling/reference_sampler.h"
#include "support/isa_test.h"
#include "support/test_seed.h"

namespace deepmint::sampling {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class RowKernelsTest : public deepmint::testing::IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isas, RowKernelsTest, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

// All remainders around vector, group and tile sizes, and some long rows.
std::vector<size_t> lengths() {
  std::vector<size_t> n;
  for (size_t i = 1; i <= 2 * 16 + 1; ++i) n.push_back(i);
  for (const size_t around : {256u, 512u, 768u, 1024u, 4096u})
    for (size_t i = around - 3; i <= around + 17; ++i) n.push_back(i);
  n.push_back(49152);
  n.push_back(129280);
  return n;
}

std::vector<float> random_row(std::mt19937_64& rng, size_t n, float spread, double dropped = 0.1) {
  std::normal_distribution<float> value(0, spread);
  std::bernoulli_distribution drop(dropped);
  std::vector<float> x(n);
  for (float& v : x) v = drop(rng) ? kNegInf : value(rng);
  return x;
}

double ulps(double found, long double exact) {
  const double rounded = static_cast<double>(exact);
  const double ulp = std::nextafter(std::abs(rounded), HUGE_VAL) - std::abs(rounded);
  return static_cast<double>(std::abs(static_cast<long double>(found) - exact) /
                             static_cast<long double>(ulp));
}

// The worst of 30 million arguments: exp 1.047, ln 0.836 units in the last place.
TEST_P(RowKernelsTest, ExpAndLnAreExactToAUnitInTheLastPlace) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  std::uniform_real_distribution<double> unit(0, 1);
  double worst_exp = 0, worst_ln = 0;
  for (int i = 0; i < 300'000; ++i) {
    const double x = -150 * std::pow(unit(rng), 3);
    worst_exp =
        std::max(worst_exp, ulps(row_kernels().exp(x), std::exp(static_cast<long double>(x))));
    const double y = std::exp2(80 * (unit(rng) - 0.5));
    worst_ln = std::max(worst_ln, ulps(row_kernels().ln(y), std::log(static_cast<long double>(y))));
    const double z = 1 + (unit(rng) - 0.5) * std::exp2(-30 * unit(rng));  // around the zero of ln
    if (z != 1)
      worst_ln =
          std::max(worst_ln, ulps(row_kernels().ln(z), std::log(static_cast<long double>(z))));
  }
  EXPECT_LT(worst_exp, 1.1);
  EXPECT_LT(worst_ln, 1.0);
  EXPECT_EQ(row_kernels().exp(0.0), 1.0);
  EXPECT_EQ(row_kernels().ln(1.0), 0.0);
  EXPECT_EQ(static_cast<float>(row_kernels().exp(-HUGE_VAL)), 0.0f);
  EXPECT_EQ(static_cast<float>(row_kernels().exp(-200.0)), 0.0f);
}

TEST_P(RowKernelsTest, ScanFindsMaximaAndBadValues) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (const size_t n : lengths()) {
    for (const size_t offset : {0u, 1u, 7u}) {
      std::vector<float> padded = random_row(rng, n + offset, 3);
      float* x = padded.data() + offset;
      std::vector<float> columns(columns_of(n) + 4, 77.0f);
      const RowScan scan = row_kernels().scan(x, n, columns.data());
      EXPECT_EQ(scan.bad, 0u);
      EXPECT_EQ(scan.max, *std::max_element(x, x + n));
      std::vector<float> expected(columns_of(n), kNegInf);
      for (size_t i = 0; i < n; ++i) {
        float& column = expected[i / kGroupIds * kGroupColumns + i % kGroupColumns];
        column = std::max(column, x[i]);
      }
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), columns.begin()));
      for (size_t i = columns_of(n); i < columns.size(); ++i)
        EXPECT_EQ(columns[i], 77.0f);  // nothing beyond
      EXPECT_EQ(row_kernels().scan(x, n, nullptr).max, scan.max);
      for (const float bad : {kNaN, kInf, -kNaN}) {
        const size_t where = rng() % n;
        const float kept = x[where];
        x[where] = bad;
        EXPECT_NE(row_kernels().scan(x, n, columns.data()).bad, 0u)
            << "at " << where << " of " << n;
        x[where] = kept;
      }
    }
  }
}

TEST_P(RowKernelsTest, DivideAndMask) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (const size_t n : lengths()) {
    const std::vector<float> x = random_row(rng, n, 3);
    std::vector<float> out(n + 1, 5.0f);
    row_kernels().divide(x.data(), n, 0.7f, out.data());
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], x[i] / 0.7f);
    EXPECT_EQ(out[n], 5.0f);
    std::vector<uint32_t> words((n + 31) / 32);
    for (uint32_t& w : words) w = static_cast<uint32_t>(rng());
    row_kernels().apply_mask(out.data(), n, words.data());
    for (size_t i = 0; i < n; ++i)
      ASSERT_EQ(out[i], (words[i / 32] >> (i % 32) & 1) != 0 ? x[i] / 0.7f : kNegInf)
          << i << " of " << n;
    EXPECT_EQ(out[n], 5.0f);
  }
}

TEST_P(RowKernelsTest, ExpSumIsTheCanonicalTree) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (const size_t n : lengths()) {
    const std::vector<float> x = random_row(rng, n, 30);
    const float max = row_kernels().scan(x.data(), n, nullptr).max;
    if (max == kNegInf) continue;
    std::vector<float> e(n), expected(n);
    const float sum = row_kernels().exp_sum(x.data(), n, max, e.data());
    for (size_t i = 0; i < n; ++i)
      expected[i] = x[i] == kNegInf ? 0.0f
                                    : static_cast<float>(row_kernels().exp(
                                          static_cast<double>(x[i]) - static_cast<double>(max)));
    ASSERT_EQ(e, expected) << n;
    ASSERT_EQ(sum, reference_tile_sum(expected));
    ASSERT_EQ(sum, row_kernels().exp_sum(x.data(), n, max, nullptr));
  }
}

TEST_P(RowKernelsTest, CollectTakesExactlyTheEntriesAbove) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (const size_t n : lengths()) {
    const std::vector<float> x = random_row(rng, n, 2);
    std::vector<float> columns(columns_of(n));
    row_kernels().scan(x.data(), n, columns.data());
    for (const float threshold : {-100.0f, 0.0f, 2.5f, x[rng() % n], 100.0f}) {
      for (const float below : {kInf, 3.0f, threshold, x[rng() % n]}) {
        std::vector<uint32_t> ids(n), expected;
        ids.resize(
            row_kernels().collect(x.data(), n, columns.data(), threshold, below, n, ids.data()));
        for (size_t i = 0; i < n; ++i)
          if (x[i] >= threshold && x[i] < below) expected.push_back(static_cast<uint32_t>(i));
        ASSERT_EQ(ids, expected);
        const size_t limit = rng() % (expected.size() + 2);
        std::vector<uint32_t> some(n);
        const size_t found = row_kernels().collect(x.data(), n, columns.data(), threshold, below,
                                                   limit, some.data());
        if (expected.size() <= limit) {
          ASSERT_EQ(found, expected.size());
        } else {
          ASSERT_GT(found, limit);
        }
        ASSERT_TRUE(std::equal(some.begin(), some.begin() + static_cast<ptrdiff_t>(found),
                               expected.begin()));
      }
    }
  }
}

TEST_P(RowKernelsTest, MassIsExactInAnyOrder) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (const size_t n : lengths()) {
    const std::vector<float> x = random_row(rng, n, 6);
    const float max = row_kernels().scan(x.data(), n, nullptr).max;
    if (max == kNegInf) continue;
    std::vector<float> e(n), kept(n + 1, 5.0f);
    std::vector<double> units(n);
    const float sum = row_kernels().exp_sum(x.data(), n, max, e.data());
    row_kernels().mass_units(e.data(), n, sum, units.data());
    for (size_t i = 0; i < n; ++i)
      ASSERT_EQ(units[i], std::floor(static_cast<double>(e[i] / sum) * 0x1p48)) << i;
    for (const float threshold :
         {-std::numeric_limits<float>::max(), max - 40, max - 3, x[rng() % n], max, max + 1}) {
      if (threshold == kNegInf) continue;
      uint64_t mass = 0;
      size_t count = 0, found = 0;
      for (size_t i = 0; i < n; ++i) {
        if (!(x[i] >= threshold)) continue;
        mass += static_cast<uint64_t>(units[i]);
        ++count;
      }
      ASSERT_EQ(row_kernels().mass_at_least(x.data(), units.data(), n, threshold, &found),
                static_cast<double>(mass));
      ASSERT_EQ(found, count);
      row_kernels().keep_at_least(x.data(), n, threshold, kept.data());
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(kept[i], x[i] >= threshold ? x[i] : kNegInf);
      ASSERT_EQ(kept[n], 5.0f);
    }
  }
}

TEST_P(RowKernelsTest, NoiseWordsFollowPhilox) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (int i = 0; i < 1000; ++i) {
    const NoiseKey key{{static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng())},
                       static_cast<uint32_t>(rng()),
                       static_cast<uint32_t>(rng()),
                       static_cast<uint32_t>(rng())};
    const auto id = static_cast<uint32_t>(rng() % 200'000);
    const uint32_t counter[4] = {id / 4, key.position, key.stream, key.choice};
    EXPECT_EQ(row_kernels().noise_word(&key, id), philox4x32_10(counter, key.key).word[id % 4]);
  }
}

TEST_P(RowKernelsTest, NoiseBoundHoldsAndIsClose) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  const auto check = [](uint32_t word) {
    const double noise = row_kernels().gumbel(word), bound = row_kernels().gumbel_bound(word);
    ASSERT_LE(noise, bound) << word;
    ASSERT_TRUE(noise < 3 || noise > 17 || bound < noise + 0.1) << word;
  };
  for (uint32_t i = 0; i < 70'000; ++i) {
    check(i);
    check(~i);
    check(0x80000000u + i);
    check(0x7fffffffu - i);
  }
  for (int i = 0; i < 2'000'000; ++i) check(static_cast<uint32_t>(rng() >> (rng() % 32)));
  for (int i = 0; i < 2'000'000; ++i) check(~static_cast<uint32_t>(rng() >> (32 + rng() % 32)));
}

GumbelBest brute_force(const std::vector<float>& x, const NoiseKey& key) {
  GumbelBest best{-HUGE_VAL, 0};
  for (uint32_t id = 0; id < x.size(); ++id) {
    if (x[id] == kNegInf) continue;
    const double score =
        static_cast<double>(x[id]) + row_kernels().gumbel(row_kernels().noise_word(&key, id));
    if (score > best.score) best = {score, id};
  }
  return best;
}

TEST_P(RowKernelsTest, PrunedGumbelMaxEqualsBruteForce) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  for (int round = 0; round < 3; ++round) {
    for (const size_t n : lengths()) {
      if (n > 5000 && round > 0) continue;
      const float spread = std::array{0.0f, 2.0f, 1e30f}[static_cast<size_t>(round)];
      std::vector<float> x = random_row(rng, n, spread == 0 ? 1.0f : spread);
      if (spread == 0)  // flat: the noise alone decides, so pruning has the least to go by
        for (float& v : x) v = v == kNegInf ? v : 1.25f;
      if (std::all_of(x.begin(), x.end(), [](float v) { return v == kNegInf; })) continue;
      std::vector<float> columns(columns_of(n));
      row_kernels().scan(x.data(), n, columns.data());
      const NoiseKey key{{static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng())},
                         static_cast<uint32_t>(rng()),
                         0,
                         static_cast<uint32_t>(rng() % 4)};
      const GumbelBest expected = brute_force(x, key);
      // Whatever the first bar is: the most likely entry, the least likely one, the winner itself.
      std::vector<uint32_t> ids;
      for (uint32_t id = 0; id < n; ++id)
        if (x[id] != kNegInf) ids.push_back(id);
      for (const uint32_t first : {ids.front(), ids.back(), ids[rng() % ids.size()], expected.id}) {
        const double score = static_cast<double>(x[first]) +
                             row_kernels().gumbel(row_kernels().noise_word(&key, first));
        GumbelBest best{score, first};
        row_kernels().gumbel_max(x.data(), n, columns.data(), &key, &best);
        ASSERT_EQ(best.id, expected.id) << n << " ids, first bar " << first;
        ASSERT_EQ(best.score, expected.score);
        best = {score, first};
        std::shuffle(ids.begin(), ids.end(), rng);
        row_kernels().gumbel_max_of(x.data(), ids.data(), ids.size(), &key, &best);
        ASSERT_EQ(best.id, expected.id);
        ASSERT_EQ(best.score, expected.score);
        std::sort(ids.begin(), ids.end());
      }
    }
  }
}

// Not only close: the same bits as the baseline.
TEST_P(RowKernelsTest, SameBitsAsTheBaseline) {
  std::mt19937_64 rng(deepmint::testing::test_seed());
  const RowKernels& k = row_kernels();
  set_active_isa(Isa::kX86_64);
  const RowKernels& base = row_kernels();
  for (int i = 0; i < 100'000; ++i) {
    const auto word = static_cast<uint32_t>(rng());
    ASSERT_EQ(std::bit_cast<uint64_t>(k.gumbel(word)), std::bit_cast<uint64_t>(base.gumbel(word)));
    const double x = -static_cast<double>(word) * 0x1p-25;
    ASSERT_EQ(std::bit_cast<uint64_t>(k.exp(x)), std::bit_cast<uint64_t>(base.exp(x)));
  }
  for (const size_t n : {1u, 257u, 1000u, 49152u}) {
    const std::vector<float> x = random_row(rng, n, 20, 0.01);
    const float max = base.scan(x.data(), n, nullptr).max;
    if (max == kNegInf) continue;
    std::vector<float> e(n), e_base(n);
    EXPECT_EQ(k.exp_sum(x.data(), n, max, e.data()), base.exp_sum(x.data(), n, max, e_base.data()));
    EXPECT_EQ(e, e_base);
  }
}

}  // namespace
}  // namespace deepmint::sampling
