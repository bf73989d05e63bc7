// The operations of FastOps but attention and selection (fast_attention_test.cc) on every
// instruction set: against the reference within a bound that follows from the types, and row by row
// (a row's bits do not depend on its neighbours, their number or their order).
#include "model/deepseek_v41/fast_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "core/cpu_isa.h"
#include "kernels/scalar_math.h"
#include "kernels/v41_ops.h"
#include "model/deepseek_v41/fast_ops_testing.h"
#include "model/deepseek_v41/formats.h"
#include "model/deepseek_v41/ref_ops.h"
#include "model/deepseek_v41/rounding_testing.h"

namespace deepmint::v41 {
namespace {

using testing::config;
using testing::FastOpsTest;
using testing::Ops;
using testing::Random;
using testing::rounded;
using testing::same_bits;

INSTANTIATE_TEST_SUITE_P(Isas, FastOpsTest, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

constexpr int kRowCounts[] = {1, 2, 3, 5, 8, 16, 17, 31, 64, 65, 128};

// Runs an operation on rows [width_in] → [width_out] for every row count of the specification with
// one fixed row among random ones, NaN and infinity included: the fixed row's bits never change.
using RowOp = std::function<void(Arithmetic&, const float* in, int64_t m, float* out)>;
void expect_rows_alone(FastOpsTest* test, const Config& c, size_t width_in, size_t width_out,
                       std::vector<std::unique_ptr<Ops>> ways, const RowOp& op) {
  (void)test, (void)c;
  Random random(7);
  const auto fixed = random.bf16(width_in);
  std::vector<float> want(width_out);
  op(*ways[0], fixed.data(), 1, want.data());
  for (auto& way : ways)
    for (const int m : kRowCounts) {
      auto in = random.bf16(static_cast<size_t>(m) * width_in, 30);
      for (size_t i = 0; i < in.size(); i += 97)
        in[i] = i % 2 == 0 ? NAN : i % 3 == 0 ? INFINITY : 3e38f;
      const size_t at = random.rng() % static_cast<size_t>(m);
      std::copy(fixed.begin(), fixed.end(),
                in.begin() + static_cast<std::ptrdiff_t>(at * width_in));
      std::vector<float> out(static_cast<size_t>(m) * width_out);
      op(*way, in.data(), m, out.data());
      ASSERT_TRUE(same_bits(want, std::span(out).subspan(at * width_out, width_out)))
          << m << " rows, at " << at;
    }
}

// sqrt(softplus(logit / temperature)) one by one, by the scalar exp and ln.
float router_score(float logit, double temperature) {
  const double t = static_cast<double>(logit) / temperature;
  if (t > 20) return static_cast<float>(std::sqrt(t));
  const double e = kernels::exp_double(t), u = 1.0 + e;
  const double softplus = u == 1.0 ? e : kernels::ln_double(u) * (e / (u - 1.0));
  return static_cast<float>(std::sqrt(softplus));
}

// The bits of the scalar functions: numbers of every size, both sides of what is treated apart
// (20, where 1 + e is 1, where e is 0), infinities and NaNs; whole vectors and their rests, in
// place.
TEST_P(FastOpsTest, RouterScores) {
  Random random(21);
  std::vector<float> logits = {0.0f,    -0.0f,    20.0f,     std::nextafter(20.0f, 30.0f),
                               -36.7f,  -37.5f,   -700.0f,   -744.0f,
                               -746.0f, 3e38f,    -3e38f,    1e-40f,
                               -1e-40f, INFINITY, -INFINITY, NAN};
  for (const float spread : {1e-3f, 1.0f, 15.0f, 40.0f, 300.0f})
    for (const float v : random.f32(2000, spread)) logits.push_back(v);
  for (const double temperature : {1.0, 0.7, 24.5}) {
    for (size_t n = 0; n <= logits.size(); n = n < 70 ? n + 1 : 2 * n + 3) {
      std::vector<float> scores(logits.end() - static_cast<std::ptrdiff_t>(n), logits.end());
      std::vector<float> from_front(logits.begin(),
                                    logits.begin() + static_cast<std::ptrdiff_t>(n));
      for (std::vector<float>* in : {&scores, &from_front}) {
        const std::vector<float> before = *in;
        kernels::v41_router_scores(in->data(), static_cast<int64_t>(n), temperature, in->data());
        for (size_t i = 0; i < n; ++i) {
          const float want = router_score(before[i], temperature), got = (*in)[i];
          ASSERT_TRUE(same_bits({&want, 1}, {&got, 1}) || (std::isnan(want) && std::isnan(got)))
              << "logit " << before[i] << " at " << i << " of " << n << ": " << got << ", not "
              << want;
        }
      }
    }
  }
}

TEST_P(FastOpsTest, RmsNorm) {
  for (const int d : {32, 96, 512, 5120}) {
    const Config c = config(d);
    auto fast = ops(c);
    Random random(1);
    const auto w = random.bf16(static_cast<size_t>(d), 1);
    for (const float spread : {1e-8f, 1.0f, 1e8f}) {
      const auto x = random.bf16(3 * static_cast<size_t>(d), spread);
      std::vector<float> got(x.size()), want(x.size());
      fast->rms_norm(x.data(), 3, d, w.data(), 1e-20, got.data());
      reference_->rms_norm(x.data(), 3, d, w.data(), 1e-20, want.data());
      // The sum, its mean, one more sum, a root and a division in double, rounded to float once.
      // What follows is in float, the same everywhere.
      for (size_t row = 0; row < 3; ++row) {
        const float* of = x.data() + row * w.size();
        Sum squares;
        for (size_t i = 0; i < w.size(); ++i) squares.add(static_cast<double>(of[i]) * of[i]);
        const double inverse = 1 / std::sqrt(squares.value / d + 1e-20);
        const Rounded r =
            to_f32(inverse, inverse * (squares.error() / squares.value / 2 + 8 * kUnit));
        for (size_t i = 0; i < w.size(); ++i) {
          const float a = w[i] * (of[i] * r.low), b = w[i] * (of[i] * r.high);
          const Rounded allowed = to_bf16(Rounded{std::min(a, b), std::max(a, b)});
          ASSERT_TRUE(rounded(allowed, got[row * w.size() + i], want[row * w.size() + i]))
              << "row " << row << ", " << i;
        }
      }
    }
    std::vector<std::unique_ptr<Ops>> ways;
    for (const int t : {1, 3}) ways.push_back(ops(c, t));
    expect_rows_alone(this, c, static_cast<size_t>(d), static_cast<size_t>(d), std::move(ways),
                      [&](Arithmetic& a, const float* in, int64_t m, float* out) {
                        a.rms_norm(in, m, d, w.data(), 1e-20, out);
                      });
  }
}

TEST_P(FastOpsTest, RopeEqualsTheReference) {
  const auto inv = ref::inverse_frequencies(64, 160000.0, 16, 65536, 32, 1);
  const std::vector<int32_t> positions = {0, 1, 127, 4095, 65535, 70001, 524287, 1048575};
  const auto m = static_cast<int64_t>(positions.size());
  auto fast = ops(config(), 2);
  Random random(2);
  std::vector<float> table(positions.size() * 64), want_table(table.size());
  fast->rope_table(positions.data(), m, inv, table.data());
  reference_->rope_table(positions.data(), m, inv, want_table.data());
  for (size_t i = 0; i < table.size(); ++i)
    EXPECT_NEAR(table[i], want_table[i], 0x1p-24f) << i;  // one float step at most
  for (const int groups : {1, 5})
    for (const int d : {64, 128, 512})
      for (const int sign : {1, -1}) {
        const auto x = random.bf16(positions.size() * static_cast<size_t>(groups * d));
        auto got = x, want = x;
        fast->rope(got.data(), m, groups, d, 64, want_table.data(), sign);
        reference_->rope(want.data(), m, groups, d, 64, want_table.data(), sign);
        EXPECT_TRUE(same_bits(got, want));
      }
}

TEST_P(FastOpsTest, HyperConnections) {
  for (const int hidden : {32, 288}) {
    const Config c = config(hidden);
    auto fast = ops(c, 2);
    Random random(3);
    const size_t n = 4 * static_cast<size_t>(hidden), m = 21;
    MixWeights w;
    const std::vector<float> fn = random.f32(24 * n, 1.0f / std::sqrt(static_cast<float>(n)));
    w.fn = fn;
    w.base = random.f32(24);
    w.scale = {1.3f, 0.7f, 2.0f};
    auto x = random.bf16(m * n, 3);
    std::vector<float> pre(m * 4), post(m * 4), comb(m * 16), pre0(m * 4), post0(m * 4),
        comb0(m * 16);
    fast->mix(x.data(), m, c, w, pre.data(), post.data(), comb.data());
    reference_->mix(x.data(), m, c, w, pre0.data(), post0.data(), comb0.data());
    // Where no rounding of a row lies within the error of its operand in double, every bit of the
    // coefficients is determined. A boundary between floats is that near for about one dot product
    // in 10^4 and one exponential in 10^4, of which a row has 25 and 24.
    int certain = 0;
    for (size_t i = 0; i < m; ++i) {
      const MixTwin twin(x.data() + i * n, c, w);
      if (!twin.certain) continue;
      ++certain;
      const auto expect = [&](std::span<const float> want, const std::vector<float>& got,
                              const std::vector<float>& reference, const char* what) {
        const size_t from = i * want.size();
        for (size_t k = 0; k < want.size(); ++k) {
          ASSERT_EQ(got[from + k], want[k]) << what << ", row " << i << ", " << k;
          ASSERT_EQ(reference[from + k], want[k]) << what << ", row " << i << ", " << k;
        }
      };
      expect(twin.pre, pre, pre0, "pre");
      expect(twin.post, post, post0, "post");
      expect(twin.comb, comb, comb0, "comb");
    }
    EXPECT_GT(certain, static_cast<int>(m) / 2);

    // Four products of a float and a BF16 number, five when expanding; one rounding after them. In
    // every other column the last addend nearly takes the others away, which leaves one float
    // rounding too many no place to hide behind the BF16 rounding.
    const size_t h = static_cast<size_t>(hidden);
    const auto product = [](float a, float b) { return static_cast<double>(a) * b; };
    const auto taking_away = [](double others, float factor) {
      return round_bf16(static_cast<float>(-others / static_cast<double>(factor)));
    };
    for (size_t row = 0; row < m; ++row)
      for (size_t i = 1; i < h; i += 2) {
        double others = 0;
        for (size_t j = 0; j < 3; ++j)
          others += product(pre0[row * 4 + j], x[(row * 4 + j) * h + i]);
        x[(row * 4 + 3) * h + i] = taking_away(others, pre0[row * 4 + 3]);
      }
    std::vector<float> y(m * h), y0(m * h);
    fast->collapse(x.data(), m, c, pre0.data(), y.data());
    reference_->collapse(x.data(), m, c, pre0.data(), y0.data());
    const auto collapsed = y0;
    for (size_t row = 0; row < m; ++row)
      for (size_t i = 1; i < h; i += 2) {
        double others = 0;
        for (size_t j = 0; j < 4; ++j)
          others += product(comb0[row * 16 + j * 4 + i / 2 % 4], x[(row * 4 + j) * h + i]);
        y0[row * h + i] = taking_away(others, post0[row * 4 + i / 2 % 4]);
      }
    auto X = x, X0 = x;
    fast->expand(y0.data(), m, c, post0.data(), comb0.data(), X.data());
    reference_->expand(y0.data(), m, c, post0.data(), comb0.data(), X0.data());
    for (size_t row = 0; row < m; ++row)
      for (size_t i = 0; i < h; ++i) {
        const auto in = [&](size_t j) { return x[(row * 4 + j) * h + i]; };
        Sum sum;
        for (size_t j = 0; j < 4; ++j) sum.add(product(pre0[row * 4 + j], in(j)));
        ASSERT_TRUE(rounded(to_bf16(sum), y[row * h + i], collapsed[row * h + i]))
            << "collapse, row " << row << ", " << i;
        for (size_t k = 0; k < 4; ++k) {
          Sum expanded;
          for (size_t j = 0; j < 4; ++j) expanded.add(product(comb0[row * 16 + j * 4 + k], in(j)));
          expanded.add(product(post0[row * 4 + k], y0[row * h + i]));
          const size_t at = (row * 4 + k) * h + i;
          ASSERT_TRUE(rounded(to_bf16(expanded), X[at], X0[at]))
              << "expand, row " << row << ", " << k * h + i;
        }
      }

    std::vector<std::unique_ptr<Ops>> ways;
    for (const int t : {1, 3}) ways.push_back(ops(c, t));
    expect_rows_alone(this, c, n, 24, std::move(ways),
                      [&](Arithmetic& a, const float* in, int64_t rows, float* out) {
                        const auto r = static_cast<size_t>(rows);
                        std::vector<float> p(r * 4), q(r * 4), k(r * 16);
                        a.mix(in, rows, c, w, p.data(), q.data(), k.data());
                        for (size_t i = 0; i < r; ++i) {
                          std::copy_n(p.data() + 4 * i, 4, out + 24 * i);
                          std::copy_n(q.data() + 4 * i, 4, out + 24 * i + 4);
                          std::copy_n(k.data() + 16 * i, 16, out + 24 * i + 8);
                        }
                      });
  }
}

// T1 to T3 for the operations whose rows have more than one input: any number of rows, any place
// among them, and whatever the neighbours hold, a row's bits are those of the row alone.
TEST_P(FastOpsTest, EveryRowIsItsOwn) {
  const Config c = config(96);
  const size_t h = 96;
  const auto rows_alone = [&](size_t in, size_t out, const RowOp& op) {
    std::vector<std::unique_ptr<Ops>> ways;
    for (const int t : {1, 3}) ways.push_back(ops(c, t));
    expect_rows_alone(this, c, in, out, std::move(ways), op);
  };
  // The inputs of a row lie one behind the other; an operation wants each of them together.
  const auto column = [](const float* in, int64_t m, size_t width, size_t at, size_t n) {
    std::vector<float> v;
    for (size_t r = 0; r < static_cast<size_t>(m); ++r)
      v.insert(v.end(), in + r * width + at, in + r * width + at + n);
    return v;
  };
  {
    SCOPED_TRACE("collapse");
    const size_t width = 4 * h + 4;
    rows_alone(width, h, [&](Arithmetic& a, const float* in, int64_t m, float* out) {
      a.collapse(column(in, m, width, 0, 4 * h).data(), m, c, column(in, m, width, 4 * h, 4).data(),
                 out);
    });
  }
  {
    SCOPED_TRACE("expand");
    const size_t width = 5 * h + 20;
    rows_alone(width, 4 * h, [&](Arithmetic& a, const float* in, int64_t m, float* out) {
      const auto x = column(in, m, width, h, 4 * h);
      std::copy(x.begin(), x.end(), out);
      a.expand(column(in, m, width, 0, h).data(), m, c, column(in, m, width, 5 * h, 4).data(),
               column(in, m, width, 5 * h + 4, 16).data(), out);
    });
  }
  {
    SCOPED_TRACE("engram");
    Random random(12);
    EngramWeights w;
    w.q_weight = random.bf16(4 * h);
    w.k_weight = random.bf16(4 * h);
    const size_t width = 9 * h;
    rows_alone(width, 4 * h, [&](Arithmetic& a, const float* in, int64_t m, float* out) {
      const auto x = column(in, m, width, 0, 4 * h);
      std::copy(x.begin(), x.end(), out);
      a.engram(out, column(in, m, width, 4 * h, 5 * h).data(), m, c, w);
    });
  }
  {
    SCOPED_TRACE("rope");
    const auto inv = ref::inverse_frequencies(32, 160000.0, 16, 65536, 32, 1);
    for (const int sign : {1, -1})
      rows_alone(3 * h, 3 * h, [&](Arithmetic& a, const float* in, int64_t m, float* out) {
        const std::vector<int32_t> positions(static_cast<size_t>(m), 70001);
        std::vector<float> table(static_cast<size_t>(m) * 32);
        a.rope_table(positions.data(), m, inv, table.data());
        std::copy_n(in, static_cast<size_t>(m) * 3 * h, out);
        a.rope(out, m, 3, 96, 32, table.data(), sign);
      });
  }
  {
    SCOPED_TRACE("pool");
    rows_alone(4 * h, h, [&](Arithmetic& a, const float* in, int64_t m, float* out) {
      std::vector<Arithmetic::Pair> pairs;
      for (size_t r = 0; r < static_cast<size_t>(m); ++r, in += 4 * h)
        pairs.push_back({{in, in + h}, {in + 2 * h, in + 3 * h}});
      a.pool(pairs, 96, out);
    });
  }
  for (const Packing packing : {Packing::kWindow, Packing::kGlobal, Packing::kIndex}) {
    SCOPED_TRACE("pack " + std::to_string(static_cast<int>(packing)));
    rows_alone(64, 24, [&](Arithmetic& a, const float* in, int64_t m, float* out) {
      std::fill_n(out, static_cast<size_t>(m) * 24, 0.0f);
      std::vector<std::byte*> to;
      for (size_t r = 0; r < static_cast<size_t>(m); ++r)
        to.push_back(reinterpret_cast<std::byte*>(out + r * 24));
      a.pack(packing, in, m, 64, to.data());
    });
  }
}

TEST_P(FastOpsTest, PackingEqualsTheReference) {
  auto fast = ops(config(), 2);
  Random random(4);
  // Every magnitude of BF16, block by block, ties of every code, zeros of both signs, and floats.
  std::vector<float> x;
  for (int e = 1; e < 255; ++e)
    for (int i = 0; i < 32; ++i)
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.rng()) << 31 |
                                       static_cast<uint32_t>(e) << 23 |
                                       (static_cast<uint32_t>(random.rng()) & 0x7F0000u)) *
                  (i % 7 == 0 ? 0.0f : 1.0f));
  for (int scale = -20; scale <= 20; ++scale)
    for (int i = 0; i < 64; ++i) x.push_back(std::ldexp(static_cast<float>(i - 32) / 16.0f, scale));
  for (int i = 0; i < 3200; ++i) x.push_back(random.normal(random.rng));
  for (int i = 0; i < 3200; ++i)
    x.push_back(std::ldexp(random.normal(random.rng), static_cast<int>(random.rng() % 60) - 30));
  for (int i = 0; i < 64; ++i) x.push_back(i % 2 == 0 ? 0.0f : -0.0f);
  x.resize(x.size() / 64 * 64);
  const auto m = static_cast<int64_t>(x.size() / 64);
  for (const Packing packing : {Packing::kWindow, Packing::kGlobal, Packing::kIndex}) {
    std::vector<std::byte> got(static_cast<size_t>(m) * 96, std::byte{0xAA}), want = got;
    std::vector<std::byte*> to(static_cast<size_t>(m)), ref_to(to.size());
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = i % 11 == 3 ? nullptr : got.data() + 96 * i;
      ref_to[i] = i % 11 == 3 ? nullptr : want.data() + 96 * i;
    }
    fast->pack(packing, x.data(), m, 64, to.data());
    reference_->pack(packing, x.data(), m, 64, ref_to.data());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], want[i]) << "packing " << static_cast<int>(packing) << ", row " << i / 96
                                 << ", byte " << i % 96;
  }
}

// Every code under every scale, and parts of a row.
TEST_P(FastOpsTest, PackedKeysUnpackExactly) {
  constexpr int kDim = 96;
  for (int scale = 0; scale < 256; ++scale) {
    std::vector<std::byte> row(kDim + kDim / 16);
    for (size_t i = 0; i < kDim / 2; ++i)
      row[i] = static_cast<std::byte>(i * 37 + static_cast<size_t>(scale));
    for (size_t i = 0; i < 16; ++i) row[16 + i] = static_cast<std::byte>(i | (15 - i) << 4);
    for (size_t i = 0; i < kDim / 16; ++i)
      row[kDim / 2 + i] = static_cast<std::byte>((static_cast<size_t>(scale) + i * 51) % 256);
    for (size_t i = 0; i < kDim / 16; ++i)  // NaN is no scale
      if ((row[kDim / 2 + i] & std::byte{127}) == std::byte{127}) row[kDim / 2 + i] ^= std::byte{1};
    const auto* bytes = reinterpret_cast<const uint8_t*>(row.data());
    std::vector<float> want(kDim);
    dequantize_q4kv(bytes, bytes + kDim / 2, kDim, want.data());
    std::vector<uint16_t> got(kDim), part(kDim, 7);
    kernels::v41_unpack_global(row.data(), kDim, got.data());
    kernels::v41_unpack_global(row.data(), kDim, 32, 64, part.data());
    for (size_t i = 0; i < kDim; ++i) {
      ASSERT_EQ(got[i], std::bit_cast<uint32_t>(want[i]) >> 16) << "scale " << scale << ", " << i;
      ASSERT_EQ(part[i], i >= 32 && i < 64 ? got[i] : 7);
    }
    if (scale < 27 || scale > 245) continue;  // beyond BF16's normal numbers
    for (size_t i = 0; i < kDim; ++i) row[i] = static_cast<std::byte>(i * 83 % 127 + (i % 2) * 128);
    for (size_t i = 0; i < kDim / 32; ++i) row[kDim + i] = static_cast<std::byte>(scale);
    dequantize_q8(bytes, bytes + kDim, kDim, want.data());
    part.assign(kDim, 7);
    kernels::v41_unpack_window(row.data(), kDim, got.data());
    kernels::v41_unpack_window(row.data(), kDim, 32, 64, part.data());
    for (size_t i = 0; i < kDim; ++i) {
      ASSERT_EQ(got[i], std::bit_cast<uint32_t>(want[i]) >> 16) << "scale " << scale << ", " << i;
      ASSERT_EQ(part[i], i >= 32 && i < 64 ? got[i] : 7);
    }
  }
}

TEST_P(FastOpsTest, PoolAndEngram) {
  const Config c = config(96);
  auto fast = ops(c, 2);
  Random random(5);
  const size_t d = 96;
  auto kv = random.f32(8 * d);
  const auto gate = random.f32(8 * d, 5);
  for (size_t pair = 0; pair < 4; ++pair)  // every other channel nearly cancels
    for (size_t i = 2 * pair * d + 1; i < (2 * pair + 1) * d; i += 2)
      kv[i + d] = -kv[i] * std::exp(gate[i] - gate[i + d]) * (1 + 0x1p-18f);
  std::vector<Arithmetic::Pair> pairs;
  for (size_t i = 0; i < 4; ++i)
    pairs.push_back({{kv.data() + 2 * i * d, kv.data() + (2 * i + 1) * d},
                     {gate.data() + 2 * i * d, gate.data() + (2 * i + 1) * d}});
  std::vector<float> got(4 * d), want(4 * d);
  fast->pool(pairs, 96, got.data());
  reference_->pool(pairs, 96, want.data());
  // One of the two exponentials is 1, the other a float: the nearest, or where its own error leaves
  // that open either neighbour, and the quotient lies between theirs. In double two sums of exact
  // products and a division round.
  for (size_t i = 0; i < 4; ++i)
    for (size_t k = 0; k < d; ++k) {
      const float* v = kv.data() + 2 * i * d + k;
      const float* g = gate.data() + 2 * i * d + k;
      const auto difference = static_cast<double>(std::min(g[0], g[d]) - std::max(g[0], g[d]));
      const double e = std::exp(difference), more = g[0] > g[d] ? v[0] : v[d],
                   less = g[0] > g[d] ? v[d] : v[0];
      const Rounded small = to_f32(e, kExpError * e);
      Rounded all = {INFINITY, -INFINITY};
      for (const float weight : {small.low, small.high}) {
        Sum s;
        s.add(more), s.add(less * weight);
        const double total = 1.0 + weight;
        const Rounded one = to_bf16(s.value / total, 4 * kUnit * 2 * s.magnitude / total);
        all = {std::min(all.low, one.low), std::max(all.high, one.high)};
      }
      ASSERT_TRUE(rounded(all, got[i * d + k], want[i * d + k])) << "pool, row " << i << ", " << k;
    }

  const int64_t m = 5;
  EngramWeights w;
  w.q_weight = random.bf16(4 * d);
  w.k_weight = random.bf16(4 * d);
  const auto X = random.bf16(static_cast<size_t>(m) * 4 * d);
  auto z = random.bf16(static_cast<size_t>(m) * 5 * d);
  // The gate of a stream: in double, rounded once to a float.
  const auto gate_of = [&](size_t row, size_t stream) {
    const float *in = X.data() + (row * 4 + stream) * d, *key = z.data() + (row * 5 + stream) * d;
    Sum products, squares, key_squares;
    for (size_t i = 0; i < d; ++i) {
      products.add(static_cast<double>(in[i]) * w.q_weight[stream * d + i] *
                   w.k_weight[stream * d + i] * key[i]);
      squares.add(static_cast<double>(in[i]) * in[i]);
      key_squares.add(static_cast<double>(key[i]) * key[i]);
    }
    // Squares of BF16 numbers add exactly. Two means, roots and divisions, a root and a division by
    // it, two products: 11 roundings at most. The sigmoid of the signed root moves by less than
    // 1 / (8 sqrt(|s|)) of what s does, and jumps at zero.
    const double count = static_cast<double>(d),
                 norms = std::sqrt(squares.value / count * (key_squares.value / count) * count),
                 argument = products.value / norms, size = std::max(std::fabs(argument), 1e-6),
                 error = products.error() / norms + 2 * 11 * kUnit * std::fabs(argument),
                 open = 1 / (1 + std::exp(-std::copysign(std::sqrt(size), argument)));
    EXPECT_GT(std::fabs(argument), error);
    return to_f32(open, kExpError * open + error / (8 * std::sqrt(size)));
  };
  // It does not depend on the values: in every other column they nearly take away the first stream.
  for (size_t row = 0; row < static_cast<size_t>(m); ++row)
    for (size_t i = 1; i < d; i += 2)
      z[(row * 5 + 4) * d + i] = round_bf16(-X[row * 4 * d + i] / gate_of(row, 0).low);
  auto x = X, x0 = X;
  fast->engram(x.data(), z.data(), m, c, w);
  reference_->engram(x0.data(), z.data(), m, c, w);
  for (size_t row = 0; row < static_cast<size_t>(m); ++row)
    for (size_t stream = 0; stream < 4; ++stream) {
      const Rounded opening = gate_of(row, stream);
      for (size_t i = 0; i < d; ++i) {
        const size_t at = (row * 4 + stream) * d + i;
        Rounded all = {INFINITY, -INFINITY};
        for (const float open : {opening.low, opening.high}) {
          Sum sum;
          sum.add(X[at]), sum.add(static_cast<double>(open) * z[(row * 5 + 4) * d + i]);
          const Rounded one = to_bf16(sum);
          all = {std::min(all.low, one.low), std::max(all.high, one.high)};
        }
        ASSERT_TRUE(rounded(all, x[at], x0[at])) << "engram, row " << row << ", " << at;
      }
    }

  // A table whose rows hold every code under many scales.
  std::vector<std::byte> codes(256 * 64), scales(256 * 2);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 + i / 256);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(i / 2);
  TensorView table, table_scale;
  table.bytes = codes;
  table_scale.bytes = scales;
  w.table = &table;
  w.table_scale = &table_scale;
  std::vector<int64_t> rows(256);
  std::iota(rows.rbegin(), rows.rend(), 0);
  std::vector<float> v(256 * 64), v0(256 * 64);
  fast->engram_rows(w, rows, c, v.data());
  reference_->engram_rows(w, rows, c, v0.data());
  for (size_t i = 0; i < v.size(); ++i)
    ASSERT_TRUE(v[i] == v0[i] || (std::isnan(v[i]) && std::isnan(v0[i]))) << i << " " << v0[i];
}

}  // namespace
}  // namespace deepmint::v41
