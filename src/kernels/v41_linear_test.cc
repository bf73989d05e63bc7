#include "kernels/v41_linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/cpu_isa.h"
#include "kernels/rounding_testing.h"
#include "kernels/scalar_math.h"
#include "kernels/v41_lookahead.h"
#include "support/test_seed.h"

namespace deepmint::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr V41Format kFormats[] = {V41Format::kBf16, V41Format::kFp8, V41Format::kFp4};

std::string name(V41Format f) {
  return f == V41Format::kBf16 ? "BF16" : f == V41Format::kFp8 ? "FP8" : "FP4";
}
float bf16(float x) { return from_bf16(to_bf16(x)); }

// A matrix in stored layout, at an odd address as a mapped file may have it.
struct Case {
  V41Format format = V41Format::kBf16;
  int64_t n = 0, k = 0;
  std::vector<std::byte> codes, scales;
  V41Weights weights() const {
    const size_t skip = 1;
    auto w = v41_weights(format, std::span(codes).subspan(skip), scales, n, k);
    EXPECT_TRUE(w) << w.error().str();
    return *w;
  }
};

Case make_case(V41Format format, int64_t n, int64_t k, std::mt19937_64& rng) {
  Case c{format, n, k, {}, {}};
  const auto elements = static_cast<size_t>(n * k);
  c.codes.resize(1 + (format == V41Format::kBf16  ? 2 * elements
                      : format == V41Format::kFp8 ? elements
                                                  : elements / 2));
  for (size_t i = 1; i < c.codes.size(); ++i) {
    auto bits = static_cast<uint8_t>(rng());
    if (format == V41Format::kFp8 && (bits & 0x7F) == 0x7F) bits ^= 1;
    // High byte of a BF16: exponents around 1.
    if (format == V41Format::kBf16 && i % 2 == 0)
      bits = static_cast<uint8_t>((bits & 0x81) | (0x3C + (bits >> 1) % 4));
    c.codes[i] = std::byte{bits};
  }
  if (format != V41Format::kBf16) {
    const int64_t rows = format == V41Format::kFp8 ? (n + 31) / 32 : n;
    c.scales.resize(static_cast<size_t>(rows * (k / 32)));
    for (std::byte& s : c.scales) s = std::byte{static_cast<uint8_t>(110 + rng() % 20)};
  }
  return c;
}

// BF16 values of many sizes, a few of them zero.
std::vector<float> make_rows(int64_t m, int64_t k, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(m * k));
  for (float& v : x) {
    const auto pick = rng() % 32;
    v = pick == 0 ? 0.0f : bf16(normal(rng) * (pick < 4 ? 50.0f : 1.0f));
  }
  return x;
}

V41Round round_of(V41Format f) { return f == V41Format::kBf16 ? V41Round::kPlain : V41Round::kQ8; }

std::vector<float> run(const Case& c, const std::vector<float>& x, int threads = 1,
                       bool to_bf16 = false, V41Round round = V41Round::kQ8) {
  if (c.format == V41Format::kBf16) round = V41Round::kPlain;
  const int64_t m = static_cast<int64_t>(x.size()) / c.k;
  ThreadPool pool(threads);
  V41Rows rows;
  V41Workspace workspace;
  rows.set(c.format, round, x.data(), m, c.k, c.k, pool);
  std::vector<float> y(static_cast<size_t>(m * c.n), kNaN);
  const V41Product product{c.weights(), rows.rows(), y.data(), c.n, to_bf16};
  v41_linear({&product, 1}, workspace, pool);
  return y;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class V41LinearTest : public ::testing::Test {
 protected:
  ~V41LinearTest() override {
    set_active_isa(before_);
    set_fast_subnormals(fast_before_);
  }
  std::mt19937_64 rng_{deepmint::testing::test_seed()};

 private:
  Isa before_ = active_isa();
  bool fast_before_ = fast_subnormals();
};

// What the FP8 quantiser makes of x (exactly): x picked out by a unit matrix.
std::vector<float> quantised(const std::vector<float>& x) {
  Case unit{V41Format::kFp8, 32, 32, std::vector<std::byte>(1 + 32 * 32), {std::byte{127}}};
  for (size_t i = 0; i < 32; ++i) unit.codes[1 + i * 33] = std::byte{0x38};  // 1.0
  std::vector<double> values(x.size());
  v41_linear_ref(unit.weights(), V41Round::kQ8, x.data(), static_cast<int64_t>(x.size() / 32),
                 values.data());
  return {values.begin(), values.end()};
}

// f32 sums of k exact products of BF16 values on 16 lanes: a product passes the additions of its
// lane, four for every 64 of k, and the four in which lanes meet. Each rounds by half a unit of a
// partial sum, and those of a lane and above it are together at most the sum of magnitudes. The
// BF16 dot takes subnormal numbers as zero.
double error_bound(const std::vector<float>& w, const float* x, int64_t k) {
  double magnitude = 0;
  for (int64_t i = 0; i < k; ++i)
    magnitude += std::fabs(static_cast<double>(w[static_cast<size_t>(i)])) *
                 std::fabs(static_cast<double>(x[i]));
  const int64_t additions = (k + 63) / 64 * 4 + 4;
  return static_cast<double>(additions) * kFloatUnit * 1.001 * magnitude +
         static_cast<double>(k) * 0x1p-126;
}

TEST_F(V41LinearTest, MatchesTheReferenceAtEveryShape) {
  for (const V41Format format : kFormats)
    for (const int64_t n : {1, 2, 3, 31, 32, 33, 70, 129})
      for (const int64_t k : {32, 64, 96, 544, 1280}) {
        const int64_t width = format == V41Format::kBf16 ? k - (n % 3) * 5 : k;  // odd widths, too
        const Case c = make_case(format, n, width, rng_);
        for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 34}) {
          const auto x = make_rows(m, width, rng_);
          std::vector<double> want(static_cast<size_t>(m * n));
          v41_linear_ref(c.weights(), round_of(format), x.data(), m, want.data());
          const auto seen = format == V41Format::kBf16 ? x : quantised(x);
          std::vector<float> w(static_cast<size_t>(width));
          for (const Isa isa : available_isas()) {
            set_active_isa(isa);
            const auto y = run(c, x);
            for (int64_t row = 0; row < m; ++row)
              for (int64_t output = 0; output < n; ++output) {
                const auto at = static_cast<size_t>(row * n + output);
                v41_dequantize(c.weights(), output, w.data());
                const double bound = error_bound(w, seen.data() + row * width, width);
                ASSERT_LE(std::fabs(static_cast<double>(y[at]) - want[at]), bound)
                    << name(format) << " on " << to_string(isa) << ", m " << m << " n " << n
                    << " k " << width << ", row " << row << " output " << output;
              }
          }
        }
      }
}

// One weight of each code and scale against x = 1: the value itself must come out, on every set.
TEST_F(V41LinearTest, EveryCodeTimesEveryScaleIsExact) {
  for (const V41Format format : {V41Format::kFp8, V41Format::kFp4}) {
    const int codes = format == V41Format::kFp8 ? 256 : 16;
    // Row c holds code c at column `at` of each block and zeros elsewhere; block b has scale b.
    const int lowest = format == V41Format::kFp8 ? 10 : 2,
              highest = format == V41Format::kFp8 ? 246 : 252;
    for (const int at : {0, 1, 17, 30}) {
      for (int b = lowest; b <= highest; ++b) {
        Case c{format, 0, 32, {}, {}};
        for (int code = 0; code < codes; ++code) {
          if (format == V41Format::kFp8 && (code & 127) == 127) continue;
          std::vector<std::byte> row(format == V41Format::kFp8 ? 32 : 16);
          row[static_cast<size_t>(format == V41Format::kFp8 ? at : at / 2)] = std::byte{
              static_cast<uint8_t>(format == V41Format::kFp8 || at % 2 == 0 ? code : code << 4)};
          if (c.codes.empty()) c.codes.push_back({});
          c.codes.insert(c.codes.end(), row.begin(), row.end());
          ++c.n;
        }
        c.scales.assign(static_cast<size_t>(format == V41Format::kFp8 ? (c.n + 31) / 32 : c.n),
                        std::byte{static_cast<uint8_t>(b)});
        ASSERT_TRUE(v41_check_values(c.weights()));
        std::vector<float> x(32, 1.0f), w(32);
        for (const Isa isa : available_isas()) {
          set_active_isa(isa);
          const auto y = run(c, x, 1, false, V41Round::kPlain);
          // Seventeen equal rows take the path that expands a panel first.
          std::vector<float> many(32 * 17, 1.0f);
          const auto z = run(c, many, 1, false, V41Round::kPlain);
          for (int64_t n = 0; n < c.n; ++n) {
            v41_dequantize(c.weights(), n, w.data());
            ASSERT_EQ(y[static_cast<size_t>(n)], w[static_cast<size_t>(at)])
                << name(format) << " row " << n << " scale " << b << " on " << to_string(isa);
            ASSERT_EQ(z[static_cast<size_t>(16 * c.n + n)], w[static_cast<size_t>(at)]);
          }
        }
      }
    }
  }
}

// Few rows take an FP8 scale with them where BF16 holds the product, many meet expanded weights:
// the same bits at the ends of the range, for numbers of every size, zeros, infinities and NaNs.
TEST_F(V41LinearTest, ScalesMeetActivationsOfEverySize) {
  constexpr int64_t kRows = 16;
  for (const int64_t k : {32, 64, 160, 512}) {
    Case c = make_case(V41Format::kFp8, 70, k, rng_);
    for (int round = 0; round < 8; ++round) {
      constexpr int kScales[] = {10, 11, 60, 127, 200, 245, 246};
      for (std::byte& s : c.scales) s = std::byte{static_cast<uint8_t>(kScales[rng_() % 7])};
      std::vector<float> x(static_cast<size_t>(kRows * k));
      for (size_t i = 0; i < x.size(); ++i) {
        const auto row = static_cast<int>(i) / static_cast<int>(k);
        // Row by row from small to large; the last ones hold everything.
        const int exponent = row < 12 ? -130 + row * 20 + static_cast<int>(rng_() % 8)
                                      : static_cast<int>(rng_() % 256) - 128;
        x[i] = bf16(std::ldexp(1.0f + static_cast<float>(rng_() % 128) / 128.0f, exponent));
        if (rng_() % 8 == 0) x[i] = 0.0f;
        if (rng_() % 2 == 0) x[i] = -x[i];
        if (row == 14 && i % 31 == 0) x[i] = std::numeric_limits<float>::infinity();
        if (row == 15 && i % 31 == 0) x[i] = kNaN;
      }
      for (const Isa isa : available_isas()) {
        set_active_isa(isa);
        const auto want = run(c, x, 1, false, V41Round::kPlain);
        for (const int64_t m : {1, 2, 3, 5, 8})
          for (int64_t row = 0; row + m <= kRows; row += m) {
            const auto got = run(c, {x.begin() + row * k, x.begin() + (row + m) * k}, 1, false,
                                 V41Round::kPlain);
            for (size_t i = 0; i < got.size(); ++i) {
              const float a = got[i], b = want[static_cast<size_t>(row * c.n) + i];
              ASSERT_TRUE((std::isnan(a) && std::isnan(b)) || same_bits({&a, 1}, {&b, 1}))
                  << to_string(isa) << " k " << k << " m " << m << " row " << row << ": " << a
                  << ", " << b;
            }
          }
      }
    }
  }
}

TEST_F(V41LinearTest, WhatIsBesideRunsOnce) {
  const Case a = make_case(V41Format::kFp8, 300, 96, rng_),
             b = make_case(V41Format::kFp4, 70, 64, rng_);
  const auto x = make_rows(2, 96, rng_), z = make_rows(1, 64, rng_);
  const auto want_a = run(a, x), want_b = run(b, z);
  for (const int threads : {1, 2, 3, 7})
    for (const size_t count : {0, 1, 5}) {
      ThreadPool pool(threads);
      V41Rows rows_a, rows_b;
      V41Workspace workspace;
      rows_a.set(a.format, V41Round::kQ8, x.data(), 2, 96, 96, pool);
      rows_b.set(b.format, V41Round::kQ8, z.data(), 1, 64, 64, pool);
      std::vector<float> ya(want_a.size()), yb(want_b.size());
      const V41Product products[] = {{a.weights(), rows_a.rows(), ya.data(), a.n, false},
                                     {a.weights(), {}, nullptr, a.n, false},
                                     {b.weights(), rows_b.rows(), yb.data(), b.n, false}};
      std::vector<std::atomic<int>> runs(count);
      const auto run_one = [](void* what, size_t item) {
        ++(*static_cast<std::vector<std::atomic<int>>*>(what))[item];
      };
      v41_linear(products, workspace, pool, {count, 10000, run_one, &runs});
      for (const auto& r : runs) EXPECT_EQ(r, 1);
      EXPECT_TRUE(same_bits(ya, want_a));
      EXPECT_TRUE(same_bits(yb, want_b));
      // Nothing but what is beside.
      v41_linear({}, workspace, pool, {count, 1, run_one, &runs});
      for (const auto& r : runs) EXPECT_EQ(r, 2);
    }
}

// Threads together fetch every byte that the next call reads, once, each its own part and no more
// than it may; what runs beside comes first, on the last.
TEST_F(V41LinearTest, LookaheadFetchesWhatComesNext) {
  using Memory = V41Lookahead::Memory;
  for (int round = 0; round < 60; ++round) {
    const int threads = 1 + static_cast<int>(rng_() % 4);
    ThreadPool pool(threads);
    V41Lookahead ahead(pool);
    // Nobody waits, so nobody fetches on the way.
    pool.set_meanwhile(nullptr);
    std::vector<Case> cases;
    for (size_t i = 0, n = 1 + rng_() % 4; i < n; ++i)
      cases.push_back(make_case(static_cast<V41Format>(rng_() % 3),
                                1 + static_cast<int64_t>(rng_() % 300),
                                32 * (1 + static_cast<int64_t>(rng_() % 6)), rng_));
    std::vector<V41Weights> weights;
    for (const Case& c : cases) weights.push_back(c.weights());
    const std::vector<std::byte> beside(rng_() % 3 * 1000);
    // Up to what takes longer than all weights: threads without a share fetch nothing.
    constexpr std::array<size_t, 3> kBesideBytes = {0, 2000, 1 << 20};
    ahead.announce(weights, {{Memory(beside)}}, kBesideBytes[rng_() % 3]);
    const auto begin = [&] {
      for (int rank = 0; rank < threads; ++rank) ahead.begin(rank);
    };
    begin();
    if (!beside.empty()) {
      ASSERT_FALSE(ahead.left(threads - 1).empty());
      EXPECT_EQ(ahead.left(threads - 1).front().data(), beside.data());
    }
    std::map<const std::byte*, const std::byte*> pieces;
    for (int rank = 0; rank < threads; ++rank)
      for (const Memory m : ahead.left(rank))
        EXPECT_TRUE(pieces.emplace(m.data(), m.data() + m.size()).second);
    size_t expected = 0;
    const auto covered = [&](const std::byte* at, size_t bytes) {
      expected += bytes;
      const std::byte* const end = at + bytes;
      while (at != end && pieces.count(at) != 0) at = pieces[at];
      EXPECT_EQ(at, end);
    };
    covered(beside.data(), beside.size());
    for (const Case& c : cases) {
      covered(c.weights().codes, c.codes.size() - 1);
      if (c.format != V41Format::kBf16) covered(c.weights().scales, c.scales.size());
    }
    size_t all = 0;
    for (const auto& [at, end] : pieces) all += static_cast<size_t>(end - at);
    EXPECT_EQ(all, expected);
    for (int rank = 0; rank < threads; ++rank) {
      while (ahead.some(rank)) {
      }
      EXPECT_TRUE(ahead.left(rank).empty());
    }
    begin();
    size_t again = 0;
    for (int rank = 0; rank < threads; ++rank) again += ahead.left(rank).size();
    EXPECT_EQ(again, pieces.size());
    ahead.end();  // nothing more is known
    begin();
    for (int rank = 0; rank < threads; ++rank) EXPECT_TRUE(ahead.left(rank).empty());
  }
  // More than a thread may fetch.
  ThreadPool pool(2);
  V41Lookahead ahead(pool);
  pool.set_meanwhile(nullptr);
  const std::vector<std::byte> beside(V41Lookahead::kMostBytes - 100);
  const Case c = make_case(V41Format::kBf16, 4096, 512, rng_);
  ahead.announce({{c.weights()}}, {{Memory(beside)}});
  for (int rank = 0; rank < 2; ++rank) {
    ahead.begin(rank);
    size_t bytes = 0;
    for (const Memory m : ahead.left(rank)) bytes += m.size();
    EXPECT_EQ(bytes, V41Lookahead::kMostBytes);
  }
}

// A call takes its announcement with it when it throws, too: the next one has none.
TEST_F(V41LinearTest, LookaheadAfterAThrow) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    V41Lookahead ahead(pool);
    pool.set_meanwhile(nullptr);
    V41Workspace workspace;
    workspace.set_lookahead(&ahead);
    const Case c = make_case(V41Format::kFp8, 96, 64, rng_);
    ahead.announce({{c.weights()}});
    const auto fail = [](void*, size_t) { throw std::runtime_error("beside"); };
    EXPECT_THROW(v41_linear({}, workspace, pool, {1, 1, fail, nullptr}), std::runtime_error);
    v41_linear({}, workspace, pool);
    for (int rank = 0; rank < threads; ++rank) EXPECT_TRUE(ahead.left(rank).empty());
  }
}

TEST_F(V41LinearTest, QuantiserMatchesTheReferenceExactly) {
  Case c{V41Format::kFp8, 32, 32, std::vector<std::byte>(1 + 32 * 32), {std::byte{127}}};
  for (size_t i = 0; i < 32; ++i) c.codes[1 + i * 33] = std::byte{0x38};  // unit matrix
  std::vector<float> x(32 * 500);
  for (float& v : x) {
    const auto bits = static_cast<uint32_t>(rng_());
    v = bf16(std::ldexp(static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f,
                        static_cast<int>(rng_() % 24) - 14));
  }
  for (size_t i = 0; i < 32; ++i) x[i] = 0;
  x[40] = 448.0f, x[41] = 464.0f, x[42] = -480.0f;
  const auto want = quantised(x);
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    const auto y = run(c, x);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(y[i], want[i]) << to_string(isa) << " value " << x[i];
  }
}

// T1, T3: a row's bits depend on that row alone.
TEST_F(V41LinearTest, RowCountPositionAndPoisonChangeNothing) {
  for (const V41Format format : kFormats) {
    const Case c = make_case(format, 71, format == V41Format::kBf16 ? 333 : 352, rng_);
    const auto row = make_rows(1, c.k, rng_);
    for (const Isa isa : available_isas()) {
      set_active_isa(isa);
      const auto want = run(c, row, 1, true);
      for (const int64_t m : {1, 2, 3, 5, 8, 16, 17, 31, 64, 65, 128, 257}) {
        auto x = make_rows(m, c.k, rng_);
        for (size_t i = 0; i < x.size(); ++i)
          if (rng_() % 7 == 0) x[i] = rng_() % 2 == 0 ? kNaN : rng_() % 2 == 0 ? INFINITY : 3e38f;
        const auto at = static_cast<int64_t>(rng_() % static_cast<uint64_t>(m));
        std::ranges::copy(row, x.begin() + at * c.k);
        const auto y = run(c, x, 1, true);
        ASSERT_TRUE(same_bits(
            want, std::span(y).subspan(static_cast<size_t>(at * c.n), static_cast<size_t>(c.n))))
            << name(format) << " on " << to_string(isa) << ", row " << at << " of " << m;
      }
    }
  }
}

// Rows whose f32 operands pass 8 MB go over the weights in parts.
TEST_F(V41LinearTest, PartsOfTheRowsChangeNothing) {
  constexpr int64_t kRows = 65, kColumns = 32768;
  for (const V41Format format : kFormats) {
    const Case c = make_case(format, 5, kColumns, rng_);
    const auto x = make_rows(kRows, c.k, rng_);
    for (const Isa isa : available_isas()) {
      set_active_isa(isa);
      const auto y = run(c, x, 1, true);
      ASSERT_TRUE(same_bits(y, run(c, x, 3, true))) << name(format) << " on " << to_string(isa);
      for (const int64_t row : {0, 7, 8, 39, 40, 47, 48, 63, 64}) {
        const auto k = static_cast<size_t>(c.k), n = static_cast<size_t>(c.n),
                   at = static_cast<size_t>(row);
        const std::vector<float> alone(&x[at * k], &x[at * k] + k);
        ASSERT_TRUE(same_bits(run(c, alone, 1, true), std::span(y).subspan(at * n, n)))
            << name(format) << " on " << to_string(isa) << ", row " << row;
      }
    }
  }
}

// T2: permuted rows give permuted results; several products at once give what each gives alone.
TEST_F(V41LinearTest, PermutationThreadsAndGroupingChangeNothing) {
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    for (const V41Format format : kFormats) {
      std::vector<Case> cases;
      for (const int64_t n : {40, 200, 1, 97}) cases.push_back(make_case(format, n, 256, rng_));
      const int64_t m = 23;
      const auto x = make_rows(m, 256, rng_);
      ThreadPool pool(3);
      V41Rows rows;
      V41Workspace workspace;
      rows.set(format, round_of(format), x.data(), m, 256, 256, pool);
      std::vector<std::vector<const uint8_t*>> chosen(cases.size());
      std::vector<std::vector<int64_t>> order(cases.size());
      std::vector<std::vector<float>> y(cases.size());
      std::vector<V41Product> products;
      for (size_t i = 0; i < cases.size(); ++i) {
        for (int64_t row = 0; row < m; ++row)
          if (i == 1 || rng_() % 3 != 0) order[i].push_back(row);
        if (i == 2) order[i].clear();
        std::ranges::shuffle(order[i], rng_);
        for (const int64_t row : order[i])
          chosen[i].push_back(rows.rows()[static_cast<size_t>(row)]);
        y[i].resize(order[i].size() * static_cast<size_t>(cases[i].n));
        products.push_back({cases[i].weights(), chosen[i], y[i].data(), cases[i].n, true});
      }
      v41_linear(products, workspace, pool);
      for (size_t i = 0; i < cases.size(); ++i) {
        const auto want = run(cases[i], x, 1, true);
        const auto n = static_cast<size_t>(cases[i].n);
        for (size_t j = 0; j < order[i].size(); ++j)
          ASSERT_TRUE(same_bits(std::span(y[i]).subspan(j * n, n),
                                std::span(want).subspan(static_cast<size_t>(order[i][j]) * n, n)))
              << name(format) << " on " << to_string(isa) << " product " << i;
      }
    }
  }
}

TEST_F(V41LinearTest, InstructionSetsOfAClassAgree) {
  for (const V41Format format : kFormats)
    for (const int64_t m : {1, 3, 6, 20}) {
      const Case c = make_case(format, 45, format == V41Format::kBf16 ? 700 : 704, rng_);
      const auto x = make_rows(m, c.k, rng_);
      std::vector<std::pair<std::string_view, std::vector<float>>> seen;
      for (const Isa isa : available_isas()) {
        set_active_isa(isa);
        auto y = run(c, x);
        for (const auto& [of, other] : seen)
          // The pairs of an FP4 product are exact in f32, but sums of steps round alike only inside
          // a class.
          if (of == isa_class(isa)) {
            ASSERT_TRUE(same_bits(y, other)) << name(format) << " on " << to_string(isa);
          }
        seen.emplace_back(isa_class(isa), std::move(y));
      }
    }
}

// The order that the header of v41_linear_simd.cc and docs/kernels/v41_linear.md give for f32, one
// operation after the other: what any machine computes, whichever sets it has.
float in_documented_order(const float* w, const float* x, int64_t k, bool even_first) {
  std::array<float, 16> lanes{};
  for (int64_t step = 0; step < k; step += 32)
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t lane = 0; lane < 16; ++lane) {
        const int64_t at = step + (even_first ? 2 * lane + half : 16 * half + lane);
        if (at >= k) continue;
        float& sum = lanes[static_cast<size_t>(lane)];
        sum = std::fma(w[at], x[at], sum);
      }
  for (const size_t apart : {8, 4, 2, 1})
    for (size_t lane = 0; lane < apart; ++lane) lanes[lane] += lanes[lane + apart];
  return lanes[0];
}

TEST_F(V41LinearTest, FmaSetsAddInTheDocumentedOrder) {
  for (const V41Format format : kFormats)
    for (const int64_t k : {32, 96, 704, 2080}) {
      const Case c = make_case(format, 45, format == V41Format::kBf16 ? k - 4 : k, rng_);
      std::vector<float> w(static_cast<size_t>(c.k));
      for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 17, 34}) {
        const auto x = make_rows(m, c.k, rng_);
        const auto seen = format == V41Format::kBf16 ? x : quantised(x);
        for (const Isa isa : available_isas()) {
          if (isa_class(isa) != "fma") continue;
          set_active_isa(isa);
          const auto y = run(c, x);
          for (int64_t output = 0; output < c.n; ++output) {
            v41_dequantize(c.weights(), output, w.data());
            for (int64_t row = 0; row < m; ++row)
              ASSERT_EQ(y[static_cast<size_t>(row * c.n + output)],
                        in_documented_order(w.data(), seen.data() + row * c.k, c.k,
                                            format == V41Format::kFp4))
                  << name(format) << " on " << to_string(isa) << ", k " << c.k << ", row " << row
                  << " of " << m << ", output " << output;
          }
        }
      }
    }
}

// avx2 multiplies FP8 codes as subnormal floats where the CPU does that fast: the same bits, for
// scales and activations that fit this form and those that do not.
TEST_F(V41LinearTest, FastSubnormalsChangeNothing) {
  for (int round = 0; round < 40; ++round) {
    Case c = make_case(V41Format::kFp8, 70, 32 * (1 + static_cast<int64_t>(rng_() % 40)), rng_);
    const auto lowest = std::array{10, 100, 120, 130, 134}[rng_() % 5];
    for (std::byte& s : c.scales)
      s = std::byte{static_cast<uint8_t>(std::min<uint64_t>(
          246, static_cast<uint64_t>(lowest) + (round % 2 == 0 ? rng_() % 5 : rng_() % 140)))};
    for (std::byte& code : c.codes)
      if (rng_() % 4 == 0) code &= std::byte{0x87};  // a subnormal one or zero
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8}) {
      auto x = make_rows(m, c.k, rng_);
      if (round % 4 == 3)
        for (float& v : x) v = bf16(std::ldexp(v, static_cast<int>(rng_() % 240) - 120));
      if (round % 8 == 7) x[rng_() % x.size()] = rng_() % 2 == 0 ? kNaN : INFINITY;
      for (const Isa isa : available_isas()) {
        set_active_isa(isa);
        set_fast_subnormals(false);
        const auto want = run(c, x, 1, false, V41Round::kPlain);
        set_fast_subnormals(true);
        const auto got = run(c, x, 1, false, V41Round::kPlain);
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_TRUE((std::isnan(got[i]) && std::isnan(want[i])) ||
                      same_bits({&got[i], 1}, {&want[i], 1}))
              << to_string(isa) << ", round " << round << ", k " << c.k << ", m " << m << ", sum "
              << i << ": " << got[i] << ", " << want[i];
      }
    }
  }
}

TEST_F(V41LinearTest, ANotANumberStaysInItsRowAndIsSeen) {
  const Case c = make_case(V41Format::kFp8, 33, 96, rng_);
  auto x = make_rows(3, 96, rng_);
  x[96 + 40] = INFINITY;
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    const auto y = run(c, x, 1, true);
    for (size_t n = 0; n < 33; ++n) {
      EXPECT_TRUE(std::isfinite(y[n]) && std::isfinite(y[66 + n]));
      EXPECT_TRUE(std::isnan(y[33 + n]));
    }
  }
}

TEST_F(V41LinearTest, RoundsToNearestEven) {
  Case c{V41Format::kBf16, 1, 2, {}, {}};
  c.codes.resize(1 + 4);
  c.codes[2] = std::byte{0x3F}, c.codes[1] = std::byte{0x80};  // 1.0
  c.codes[4] = std::byte{0x3B}, c.codes[3] = std::byte{0x80};  // 2^-8
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    EXPECT_EQ(run(c, {1.0f, 1.0f}, 1, true)[0], 1.0f);             // 1 + half a unit
    EXPECT_EQ(run(c, {1.0078125f, 1.0f}, 1, true)[0], 1.015625f);  // odd, so upwards
    EXPECT_EQ(run(c, {1.0f, 1.0f})[0], 1.00390625f);
  }
}

TEST_F(V41LinearTest, OnlyItsOwnMemoryIsTouched) {
  const Case c = make_case(V41Format::kFp4, 10, 64, rng_);
  const auto x = make_rows(11, 64, rng_);
  ThreadPool pool(2);
  V41Rows rows;
  V41Workspace workspace;
  for (const int64_t m : {1, 11}) {
    rows.set(c.format, V41Round::kQ8, x.data(), m, 64, 64, pool);
    std::vector<float> y(static_cast<size_t>(m * 16 + 16), -1.0f);
    const V41Product product{c.weights(), rows.rows(), y.data() + 3, 16, false};
    v41_linear({&product, 1}, workspace, pool);
    for (size_t i = 0; i < y.size(); ++i) {
      const bool inside = i >= 3 && (i - 3) % 16 < 10 && (i - 3) / 16 < static_cast<size_t>(m);
      EXPECT_TRUE(inside || y[i] == -1.0f) << i;
    }
  }
}

TEST_F(V41LinearTest, SwigluIsWithinItsBound) {
  std::vector<float> gate = make_rows(4, 64, rng_), up = make_rows(4, 64, rng_), t(gate.size());
  gate[0] = kNaN, up[1] = kNaN, gate[2] = -300.0f, gate[3] = 300.0f;
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    v41_swiglu(gate.data(), up.data(), 256, 10.0f, 0.37f, t.data());
    EXPECT_TRUE(std::isnan(t[0]) && std::isnan(t[1]));
    for (size_t i = 2; i < t.size(); ++i) {
      const double g = std::min(gate[i], 10.0f), u = std::clamp(up[i], -10.0f, 10.0f);
      const double want = static_cast<double>(0.37f) * (g / (1 + std::exp(-g)) * u);
      // An exponential of 1 ulp and five float operations after it: seven units. Below -88 it
      // stands still, and the result is next to nothing.
      const double error = 7.001 * kFloatUnit * std::fabs(want) + (g < -87 ? 1e-35 : 0);
      const Rounded allowed = to_bf16(want, error);
      ASSERT_TRUE(allowed.holds(t[i]))
          << to_string(isa) << " gate " << gate[i] << " up " << up[i] << ": " << t[i]
          << ", allowed " << allowed.low << " to " << allowed.high;
    }
  }
}

TEST_F(V41LinearTest, RefusesWhatDoesNotFit) {
  const std::vector<std::byte> bytes(4096);
  const auto refuse = [&](V41Format f, size_t codes, size_t scales, int64_t n, int64_t k) {
    return !v41_weights(f, std::span(bytes).first(codes), std::span(bytes).first(scales), n, k);
  };
  EXPECT_FALSE(refuse(V41Format::kFp8, 64 * 32, 2, 64, 32));
  EXPECT_FALSE(refuse(V41Format::kFp4, 64 * 16, 64, 64, 32));
  EXPECT_FALSE(refuse(V41Format::kBf16, 2 * 3 * 5, 0, 3, 5));
  EXPECT_TRUE(refuse(V41Format::kFp8, 64 * 32, 3, 64, 32));
  EXPECT_TRUE(refuse(V41Format::kFp8, 64 * 32 - 1, 2, 64, 32));
  EXPECT_TRUE(refuse(V41Format::kFp8, 64 * 33, 2, 64, 33));
  EXPECT_TRUE(refuse(V41Format::kFp4, 0, 0, 0, 32));
  EXPECT_TRUE(refuse(V41Format::kBf16, 8, 0, int64_t{1} << 62, 4));
  EXPECT_TRUE(refuse(V41Format::kBf16, 8, 0, -1, -4));
}

TEST_F(V41LinearTest, CheckNamesBytesThatAreNoNumbers) {
  Case c = make_case(V41Format::kFp8, 64, 64, rng_);
  EXPECT_TRUE(v41_check_values(c.weights()));
  c.scales[3] = std::byte{255};
  EXPECT_EQ(v41_check_values(c.weights()).error().message,
            "expected scales from 10 to 246, found 255 in row 1, column 1");
  c.scales[3] = std::byte{9};
  EXPECT_FALSE(v41_check_values(c.weights()));
  c.scales[3] = std::byte{120};
  c.codes[1 + 777] = std::byte{0xFF};
  EXPECT_EQ(v41_check_values(c.weights()).error().message,
            "expected numbers, found NaN at element 777");
  Case e = make_case(V41Format::kFp4, 8, 64, rng_);
  EXPECT_TRUE(v41_check_values(e.weights()));
  e.scales[15] = std::byte{253};
  EXPECT_FALSE(v41_check_values(e.weights()));
  // The second block of the last row; signs of zeros do not count.
  std::fill_n(e.codes.begin() + 1 + 15 * 16, 16, std::byte{0x08});
  EXPECT_TRUE(v41_check_values(e.weights()));
  e.scales[15] = std::byte{255};
  EXPECT_FALSE(v41_check_values(e.weights()));
}

}  // namespace
}  // namespace deepmint::kernels
