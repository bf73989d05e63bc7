#include "kernels/linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_isa.h"
#include "kernels/linear_cases.h"
#include "kernels/linear_kernels.h"
#include "kernels/quant.h"

namespace deepmint::kernels {
namespace {

constexpr uint64_t kSeed = 20261129;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

int64_t unit(DType dtype) { return static_cast<int64_t>(info(dtype).block_elements); }

// Restores the instruction set that was in force.
class LinearTest : public testing::TestWithParam<DType> {
 protected:
  ~LinearTest() override { set_active_isa(before_); }
  std::mt19937_64 rng_{kSeed};

 private:
  Isa before_ = active_isa();
};

struct Case {
  DType dtype = DType::kF32;
  int64_t m = 0, n = 0, k = 0;
  std::vector<std::byte> weights;
  std::vector<float> x;
  PackedMatrix packed;
};
Case make_case(DType dtype, int64_t m, int64_t n, int64_t k, std::mt19937_64& rng,
               Weights kind = Weights::kRandom) {
  Case c{dtype, m, n, k, random_weights(dtype, n, k, kind, rng), random_activations(m, k, rng), {}};
  ThreadPool pool(1);
  auto packed = pack(dtype, c.weights, n, k, pool);
  EXPECT_TRUE(packed.has_value());
  c.packed = std::move(*packed);
  return c;
}
std::vector<float> run(const Case& c, ThreadPool& pool) {
  Activations x;
  x.set(activation_type(c.dtype), c.x.data(), c.m, c.k, c.k, pool);
  std::vector<float> y(static_cast<size_t>(c.m * c.n), kNaN);
  linear(c.packed, x, y.data(), c.n, pool);
  return y;
}
std::vector<float> run(const Case& c, Isa isa) {
  set_active_isa(isa);
  ThreadPool pool(1);
  return run(c, pool);
}

// First differing element of two equally shaped results, as text; empty when they are equal to the
// bit.
std::string difference(const std::vector<float>& a, const std::vector<float>& b, int64_t n) {
  if (a.size() != b.size()) return "sizes differ";
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      return fmt::format("row {} output {}: {:a} and {:a}", i / static_cast<size_t>(n),
                         i % static_cast<size_t>(n), a[i], b[i]);
  return {};
}

// How far f32 arithmetic in any order may be from the exact sum: each of the roundings on the way
// of a term is at most half a unit in the last place of a partial sum, and no partial sum exceeds
// the sum of magnitudes.
double error_bound(const Case& c, int64_t row, int64_t output) {
  const auto width = row_bytes(c.dtype, static_cast<uint64_t>(c.k)).value();
  std::vector<double> magnitude(static_cast<size_t>(c.k));
  row_magnitudes(c.dtype, c.weights.data() + static_cast<uint64_t>(output) * width, c.k,
                 magnitude.data());
  double sum = 0;
  const bool is_int8 = activation_type(c.dtype) == ActivationType::kInt8Block32;
  for (int64_t begin = 0; begin < c.k; begin += kBlock) {
    float largest = 0;
    const int64_t end = std::min(c.k, begin + kBlock);
    for (int64_t i = begin; i < end; ++i)
      largest = std::max(largest, std::fabs(c.x[static_cast<size_t>(row * c.k + i)]));
    for (int64_t i = begin; i < end; ++i) {
      // An int8 activation is off by half a step, BF16 by 2^-9 of itself.
      const double x = std::fabs(c.x[static_cast<size_t>(row * c.k + i)]);
      sum += magnitude[static_cast<size_t>(i)] * (is_int8 ? x + largest / 254.0 : x * (1 + 0x1p-8));
    }
  }
  // Terms: two per block (dot and minimum) or one per k; per term a scale product, and without FMA
  // a product, before the sum.
  const double terms = is_int8 ? 2.0 * static_cast<double>(c.k / kBlock) : static_cast<double>(c.k);
  const double roundings = 2 * terms + 4;
  // Scale products may fall below the normal range; the BF16 dot takes subnormal values as zero.
  const double underflow =
      terms * (is_int8 ? 0x1p-149 * 0x1p+21 : 2 * 0x1p-126 * std::max(1.0, 0x1p+7));
  return roundings * 0x1p-24 * sum + underflow;
}

void expect_close(const Case& c, const std::vector<float>& y, Isa isa) {
  std::vector<float> expected(y.size());
  linear_ref(c.dtype, c.weights, c.n, c.k, c.x.data(), c.m, expected.data());
  for (int64_t row = 0; row < c.m; ++row)
    for (int64_t output = 0; output < c.n; ++output) {
      const auto i = static_cast<size_t>(row * c.n + output);
      const double bound =
          error_bound(c, row, output) + 0x1p-24 * std::fabs(static_cast<double>(expected[i]));
      ASSERT_LE(std::fabs(static_cast<double>(y[i]) - static_cast<double>(expected[i])), bound)
          << info(c.dtype).name << " on " << to_string(isa) << ", m " << c.m << " n " << c.n
          << " k " << c.k << ", row " << row << " output " << output << ": expected " << expected[i]
          << ", found " << y[i];
    }
}

TEST_P(LinearTest, MatchesTheReferenceAtEveryShape) {
  const int64_t u = unit(GetParam());
  std::vector<int64_t> widths = {u, 2 * u, 3 * u, 5 * u, 8 * u};
  if (u == 1) widths = {1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 576};
  if (u == 32) widths.insert(widths.end(), {576, 32 * 33, 32 * 67});
  if (u == 256) widths = {256, 512, 768, 256 * 5};
  for (const int64_t n : {1, 3, 16, 17, 33, 100})
    for (const int64_t k : widths)
      for (const int64_t m : {1, 3, 13}) {
        const Case c = make_case(GetParam(), m, n, k, rng_);
        for (const Isa isa : available_isas())
          ASSERT_NO_FATAL_FAILURE(expect_close(c, run(c, isa), isa));
      }
}

TEST_P(LinearTest, MatchesTheReferenceAtExtremes) {
  const int64_t k = std::max<int64_t>(unit(GetParam()), 64);
  for (const Weights kind :
       {Weights::kTop, Weights::kBottom, Weights::kZero, Weights::kSubnormal}) {
    for (const float value : {1e3f, -1e3f, 0.0f, 1e-30f, 1e-42f, FLT_TRUE_MIN}) {
      Case c = make_case(GetParam(), 5, 17, k, rng_, kind);
      for (size_t i = 0; i < c.x.size(); ++i)
        c.x[i] = value;  // every quant of the activation at ±127: the largest dots
      for (int64_t i = 0; i < c.k; i += 3) c.x[static_cast<size_t>(3 * c.k + i)] *= -1;
      for (const Isa isa : available_isas())
        ASSERT_NO_FATAL_FAILURE(expect_close(c, run(c, isa), isa));
    }
  }
}

TEST_P(LinearTest, SameBitsInsideAClass) {
  const bool is_bf16 = GetParam() == DType::kBF16;
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 40}) {
    const Case c = make_case(GetParam(), m, 50, unit(GetParam()) == 256 ? 512 : 352, rng_);
    std::vector<float> fma;
    for (const Isa isa : available_isas()) {
      if (isa == Isa::kX86_64 || (is_bf16 && isa == Isa::kAvx512Bf16)) continue;
      const std::vector<float> y = run(c, isa);
      if (fma.empty()) fma = y;
      EXPECT_EQ(difference(fma, y, c.n), "")
          << info(c.dtype).name << " on " << to_string(isa) << " with m " << m;
    }
  }
}

// T1: the bits of a row do not depend on how many rows there are, nor on where it stands.
TEST_P(LinearTest, RowAloneEqualsRowAmongOthers) {
  for (const int64_t k : {unit(GetParam()) == 256 ? int64_t{256} : int64_t{160},
                          unit(GetParam()) == 256 ? int64_t{1536} : int64_t{1120}}) {
    Case c = make_case(GetParam(), 1, 37, k, rng_);
    const std::vector<float> row = c.x;
    for (const Isa isa : available_isas()) {
      c.m = 1;
      c.x = row;
      const std::vector<float> alone = run(c, isa);
      for (const int64_t m : {1, 2, 3, 5, 8, 16, 17, 31, 64, 65, 128, 257}) {
        c.m = m;
        c.x = random_activations(m, k, rng_);
        const auto at = static_cast<int64_t>(rng_() % static_cast<uint64_t>(m));
        std::copy(row.begin(), row.end(), c.x.begin() + at * k);
        const std::vector<float> y = run(c, isa);
        const std::vector<float> found(y.begin() + at * c.n, y.begin() + (at + 1) * c.n);
        ASSERT_EQ(difference(alone, found, c.n), "")
            << info(c.dtype).name << " on " << to_string(isa) << ": row " << at << " of " << m
            << ", k " << k << ", seed " << kSeed;
      }
    }
  }
}

// T3: what stands in other rows does not matter, however broken.
TEST_P(LinearTest, PoisonStaysInItsRow) {
  const int64_t k = unit(GetParam()) == 256 ? 512 : 192;
  for (const float poison : {kNaN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX}) {
    for (const int64_t m : {2, 5, 17, 130}) {
      Case c = make_case(GetParam(), m, 33, k, rng_);
      const int64_t at = m / 2;
      for (const Isa isa : available_isas()) {
        const std::vector<float> clean = run(c, isa);
        Case poisoned = make_case(GetParam(), m, 33, k, rng_);
        poisoned.weights = c.weights;
        ThreadPool pool(1);
        poisoned.packed = std::move(*pack(c.dtype, c.weights, c.n, c.k, pool));
        std::fill(poisoned.x.begin(), poisoned.x.end(), poison);
        std::copy_n(c.x.begin() + at * k, k, poisoned.x.begin() + at * k);
        const std::vector<float> y = run(poisoned, isa);
        for (int64_t i = 0; i < c.n; ++i)
          ASSERT_EQ(std::memcmp(&y[static_cast<size_t>(at * c.n + i)],
                                &clean[static_cast<size_t>(at * c.n + i)], 4),
                    0)
              << info(c.dtype).name << " on " << to_string(isa) << ", poison " << poison << ", m "
              << m << ", output " << i;
        for (int64_t i = 0; i < c.n && !std::isfinite(poison); ++i) {  // and it shows where it is
          ASSERT_FALSE(std::isfinite(y[static_cast<size_t>(i)]));
        }
      }
    }
  }
}

TEST_P(LinearTest, ThreadsTilesGroupsAndStacksAgree) {
  const int64_t k = unit(GetParam()) == 256 ? 512 : 224;
  ThreadPool one(1);
  for (const int64_t m : {1, 7, 40}) {
    const Case a = make_case(GetParam(), m, 100, k, rng_);
    const std::vector<float> expected = run(a, one);
    for (const int threads : {2, 3, 16}) {
      ThreadPool pool(threads);
      EXPECT_EQ(difference(expected, run(a, pool), a.n), "") << threads << " threads";
    }

    Activations x;
    x.set(activation_type(a.dtype), a.x.data(), m, k, k, one);
    std::vector<float> y(expected.size(), kNaN);
    for (int64_t tile = a.packed.tiles(); tile-- > 0;)
      linear_tiles(a.packed, x, y.data(), a.n, tile, tile + 1);
    EXPECT_EQ(difference(expected, y, a.n), "") << "tile by tile, from the last";

    const Case b = make_case(GetParam(), m, 19, k, rng_);
    std::vector<float> ya(expected.size(), kNaN), yb(static_cast<size_t>(m * b.n), kNaN),
        expected_b(yb);
    linear(b.packed, x, expected_b.data(), b.n, one);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const Product products[] = {{&a.packed, ya.data(), a.n, false},
                                  {&b.packed, yb.data(), b.n, false}};
      linear_group(products, x, pool);
      EXPECT_EQ(difference(expected, ya, a.n), "") << "first of a group, " << threads << " threads";
      EXPECT_EQ(difference(expected_b, yb, b.n), "")
          << "second of a group, " << threads << " threads";

      const RowSource sources[] = {{b.weights, b.n}, {a.weights, a.n}, {b.weights, b.n}};
      auto stacked = pack_stacked(a.dtype, sources, k, pool);
      ASSERT_TRUE(stacked.has_value());
      const int64_t n = 2 * b.n + a.n;
      ASSERT_EQ(stacked->n(), n);
      std::vector<float> ys(static_cast<size_t>(m * n), kNaN);
      linear(*stacked, x, ys.data(), n, pool);
      for (int64_t row = 0; row < m; ++row) {
        const float *s = ys.data() + row * n, *ea = expected.data() + row * a.n,
                    *eb = expected_b.data() + row * b.n;
        EXPECT_EQ(std::memcmp(s, eb, static_cast<size_t>(b.n) * 4), 0);
        EXPECT_EQ(std::memcmp(s + b.n, ea, static_cast<size_t>(a.n) * 4), 0);
        EXPECT_EQ(std::memcmp(s + b.n + a.n, eb, static_cast<size_t>(b.n) * 4), 0);
      }
    }
  }
}

TEST_P(LinearTest, WritesOnlyItsOutputsAndAdds) {
  const int64_t k = unit(GetParam()) == 256 ? 256 : 96;
  ThreadPool pool(2);
  for (const int64_t n : {1, 16, 17, 33}) {
    for (const int64_t m : {1, 6, 13}) {
      const Case c = make_case(GetParam(), m, n, k, rng_);
      const std::vector<float> product = run(c, pool);
      const int64_t stride = n + 5;
      Activations x;
      x.set(activation_type(c.dtype), c.x.data(), m, k, k, pool);
      std::vector<float> before(static_cast<size_t>(m * stride));
      for (float& v : before) v = std::normal_distribution<float>()(rng_);
      for (const bool add : {false, true}) {
        for (const Isa isa : available_isas()) {
          set_active_isa(isa);
          std::vector<float> expected = before, y = before, own(product.size());
          linear(c.packed, x, own.data(), n, pool);
          for (int64_t row = 0; row < m; ++row)
            for (int64_t i = 0; i < n; ++i) {
              float& e = expected[static_cast<size_t>(row * stride + i)];
              e = (add ? e : 0.0f) + own[static_cast<size_t>(row * n + i)];
            }
          linear(c.packed, x, y.data(), stride, pool, add);
          ASSERT_EQ(difference(expected, y, stride), "")
              << "n " << n << " m " << m << " add " << add << " " << to_string(isa);
        }
      }
    }
  }
}

TEST_P(LinearTest, SourceMayLieAnywhere) {
  const int64_t k = unit(GetParam()) == 256 ? 256 : 96, n = 21;
  const Case c = make_case(GetParam(), 1, n, k, rng_);
  std::vector<std::byte> shifted(c.weights.size() + 3);
  std::memcpy(shifted.data() + 3, c.weights.data(), c.weights.size());
  ThreadPool pool(1);
  auto packed = pack(c.dtype, std::span(shifted).subspan(3), n, k, pool);
  ASSERT_TRUE(packed.has_value());
  ASSERT_EQ(packed->bytes(), c.packed.bytes());
  EXPECT_EQ(std::memcmp(packed->data(), c.packed.data(), packed->bytes()), 0);
}

TEST_P(LinearTest, PackedSizeIsCloseToTheSource) {
  const int64_t k = 1536, n = 576;
  const Case c = make_case(GetParam(), 1, n, k, rng_);
  EXPECT_LE(static_cast<double>(c.packed.bytes()), 1.03 * static_cast<double>(c.weights.size()));
}

INSTANTIATE_TEST_SUITE_P(EveryType, LinearTest, testing::ValuesIn(kLinearTypes),
                         [](const auto& p) { return std::string(::deepmint::info(p.param).name); });

TEST(Pack, RefusesWhatItCannotRead) {
  ThreadPool pool(1);
  const std::vector<std::byte> bytes(4096);
  const auto code = [&](DType dtype, size_t size, int64_t n, int64_t k) {
    auto packed = pack(dtype, std::span(bytes).first(size), n, k, pool);
    EXPECT_FALSE(packed.has_value());
    return packed ? ErrorCode::kInternal : packed.error().code;
  };
  EXPECT_EQ(code(DType::kI8, 32, 1, 32), ErrorCode::kUnsupported);
  EXPECT_EQ(code(DType::kF8E4M3, 32, 1, 32), ErrorCode::kUnsupported);
  EXPECT_EQ(code(DType::kQ8_0, 34, 1, 31), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ8_0, 33, 1, 32), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ8_0, 35, 1, 32), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kQ4_K, 144, 1, 128), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 0, 0, 32), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 0, 1, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 4, -1, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 4, 1, -1), ErrorCode::kInvalidArgument);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_EQ(code(DType::kF32, 4, kHuge, 4), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(DType::kF32, 4, 4, kHuge), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(pack_stacked(DType::kF32, {}, 32, pool).has_value());
}

TEST(WeightMemory, PiecesAreZeroedAlignedAndOutliveEachOther) {
  std::vector<WeightMemory> pieces;
  for (const size_t bytes :
       {size_t{1}, size_t{64}, size_t{100}, size_t{3} << 20, size_t{300} << 20, size_t{7}}) {
    WeightMemory piece(bytes);
    ASSERT_EQ(piece.size(), bytes);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % 64, 0u);
    ASSERT_EQ(piece.data()[0], std::byte{0});
    ASSERT_EQ(piece.data()[bytes - 1], std::byte{0});
    piece.data()[0] = piece.data()[bytes - 1] = static_cast<std::byte>(pieces.size() + 1);
    pieces.push_back(std::move(piece));
  }
  for (size_t i = 0; i < pieces.size(); i += 2)
    pieces[i] = WeightMemory();  // their mappings stay for the others
  for (size_t i = 1; i < pieces.size(); i += 2) {
    EXPECT_EQ(pieces[i].data()[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(pieces[i].data()[pieces[i].size() - 1], static_cast<std::byte>(i + 1));
  }
  EXPECT_EQ(WeightMemory(0).data(), nullptr);
}

class ActivationsTest : public testing::Test {
 protected:
  ~ActivationsTest() override { set_active_isa(before_); }

 private:
  Isa before_ = active_isa();
};

TEST_F(ActivationsTest, Int8FormFollowsItsDefinitionOnEverySet) {
  std::mt19937_64 rng(kSeed);
  const int64_t k = 32 * 40;
  std::vector<float> x = random_activations(1, k, rng);
  const auto block = [&](int64_t b) {
    return std::span(x).subspan(static_cast<size_t>(32 * b), 32);
  };
  std::ranges::fill(block(0), 0.0f);
  std::ranges::fill(block(1), -0.0f);
  block(2)[5] = kNaN;
  block(3)[31] = INFINITY;
  block(4)[0] = -kNaN;
  std::ranges::fill(block(5), FLT_TRUE_MIN);  // d underflows to zero
  for (int i = 0; i < 32; ++i)
    block(6)[static_cast<size_t>(i)] =
        static_cast<float>(i - 15) * 50 * FLT_TRUE_MIN;  // d subnormal
  for (int i = 0; i < 32; ++i)
    block(7)[static_cast<size_t>(i)] = i == 0 ? 127.0f : static_cast<float>(i) + 0.5f;  // ties
  for (int i = 0; i < 32; ++i)
    block(8)[static_cast<size_t>(i)] = i == 0 ? -254.0f : static_cast<float>(1 - 2 * i);
  std::ranges::fill(block(9), FLT_MAX);
  std::ranges::fill(block(10), -FLT_MAX);
  for (int b = 11; b < 30; ++b)
    for (float& v : block(b)) v = std::ldexp(v, 5 * b - 150);

  ThreadPool pool(1);
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    Activations a;
    a.set(ActivationType::kInt8Block32, x.data(), 1, k, k, pool);
    for (int64_t b = 0; b < k / 32; ++b) {
      ActBlock found;
      std::memcpy(&found, a.data() + b * static_cast<int64_t>(sizeof found), sizeof found);
      float largest = 0;
      bool finite = true;
      for (const float v : block(b))
        largest = std::fmax(largest, std::fabs(v)), finite = finite && std::isfinite(v);
      const float d = largest / 127.0f;
      int sum = 0, high = 0;
      for (size_t i = 0; i < 32; ++i) {
        int q = 0;
        if (finite && d != 0)
          q = static_cast<int>(std::clamp(std::nearbyint(block(b)[i] / d), -127.0f, 127.0f));
        ASSERT_EQ(found.q[i], q) << to_string(isa) << " block " << b << " value " << i;
        sum += q;
        if (i >= 16) high += q;
      }
      ASSERT_EQ(found.neg_sum, -sum);
      ASSERT_EQ(found.neg_sum_high, -high);
      if (finite) {
        ASSERT_EQ(found.d, d);
        ASSERT_EQ(found.s, d * static_cast<float>(sum));
      } else {
        ASSERT_TRUE(std::isnan(found.d) && std::isnan(found.s));
      }
    }
  }
}

TEST_F(ActivationsTest, Bf16FormIsTheRoundedValueOnEverySet) {
  std::mt19937_64 rng(kSeed);
  std::vector<float> x(1001);
  for (float& v : x) {
    const auto bits = static_cast<uint32_t>(rng());
    std::memcpy(&v, &bits, sizeof v);  // any float at all
  }
  ThreadPool pool(1);
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    Activations a;
    a.set(ActivationType::kBF16, x.data(), 1, 1001, 1001, pool);
    for (size_t i = 0; i < x.size(); ++i) {
      uint16_t found;
      std::memcpy(&found, a.data() + 2 * i, sizeof found);
      ASSERT_EQ(found, f32_to_bf16(x[i])) << i;
    }
  }
}

TEST_F(ActivationsTest, RowsAreConvertedAloneAndMemoryIsReused) {
  std::mt19937_64 rng(kSeed);
  ThreadPool pool(3);
  const int64_t k = 96, stride = 101, m = 700;
  const std::vector<float> x = random_activations(m, stride, rng);
  Activations whole;
  whole.reserve(m, 128);
  const std::byte* memory = whole.data();
  for (const ActivationType type :
       {ActivationType::kInt8Block32, ActivationType::kBF16, ActivationType::kF32}) {
    whole.set(type, x.data(), m, k, stride, pool);
    EXPECT_EQ(whole.data(), memory);
    Activations parts;
    parts.prepare(type, m, k);
    for (int64_t row = m; row-- > 0;) {
      if (row % 2 == 0) {
        parts.convert_rows(x.data(), stride, row, row + 1);
        continue;
      }
      parts.convert_part(x.data() + row * stride, row, 32, k);
      parts.convert_part(x.data() + row * stride, row, 0, 32);
    }
    ASSERT_EQ(parts.row_stride(), whole.row_stride());
    const size_t used = type == ActivationType::kInt8Block32 ? 3 * sizeof(ActBlock)
                        : type == ActivationType::kBF16      ? 2 * k
                                                             : 4 * k;
    for (int64_t row = 0; row < m; ++row)
      ASSERT_EQ(std::memcmp(whole.data() + static_cast<size_t>(row) * whole.row_stride(),
                            parts.data() + static_cast<size_t>(row) * parts.row_stride(), used),
                0);
  }
}

}  // namespace
}  // namespace deepmint::kernels
