// The four steps of V4.1 attention on every instruction set, each against its definition in double
// with the error that its own roundings allow, given what the kernel found before it: the chain of
// a score, the exponential, the rounding of a weight to BF16, the chain of a value, the
// denominator. What fast_ops_test.cc bounds from end to end is sharper here.
#include "kernels/v41_attention.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "kernels/rounding_testing.h"
#include "support/isa_test.h"
#include "support/test_seed.h"

namespace deepmint::kernels {
namespace {

float nearest_bf16(double x) { return from_bf16(to_bf16(static_cast<float>(x))); }

// What the columns of the rows are for. All but the first kind have no part in the scores (the
// query is zero there), so that they can be chosen when the weights are known.
enum Column {
  kScored,    // random
  kCancels,   // the last key takes away the sum of the others
  kBoundary,  // few keys, whose sum over the denominator lies next to a boundary of BF16
  kAlone,     // nothing but the last key
};
Column kind_of(int64_t column) { return static_cast<Column>(column % 4); }

struct Query {
  int64_t heads, dim, n, lanes;
  float scale;
  std::vector<float> q, sink;
  std::vector<std::vector<uint16_t>> keys;
  std::vector<const uint16_t*> rows;
  AlignedBuffer<float> packed, scores, exps, weights, scratch;
  std::vector<float> out;
  std::mt19937 rng;

  Query(int64_t h, int64_t d, int64_t count, double spread, bool first_leads, uint32_t salt)
      : heads(h),
        dim(d),
        n(count),
        lanes(v41_lanes(h)),
        rng(deepmint::testing::test_seed() * 977u + salt) {
    const auto size = [](int64_t a) { return static_cast<size_t>(a); };
    scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    std::normal_distribution<double> normal;
    q.assign(size(heads * dim), 0);
    keys.assign(size(n), std::vector<uint16_t>(size(dim)));
    out.assign(q.size(), NAN);
    first_leads ? let_first_lead() : let_odd_keys_cancel(spread);
    for (std::vector<uint16_t>& k : keys) rows.push_back(k.data());
    // Far below the scores, among them, far above.
    for (int64_t head = 0; head < heads; ++head)
      sink.push_back(static_cast<float>(head % 3 == 0   ? -80 + normal(rng)
                                        : head % 3 == 1 ? (first_leads ? 15 : 0) + normal(rng)
                                                        : 40 + normal(rng)));
    packed = AlignedBuffer<float>(size(lanes * dim));
    scores = AlignedBuffer<float>(size(n * lanes));
    exps = AlignedBuffer<float>(size(n * lanes));
    weights = AlignedBuffer<float>(size((n + 1) * lanes));
    scratch = AlignedBuffer<float>(size(kV41RowStep * dim));
  }
  uint16_t& key(int64_t t, int64_t i) {
    return keys[static_cast<size_t>(t)][static_cast<size_t>(i)];
  }
  double value(int64_t t, int64_t i) { return double{from_bf16(key(t, i))}; }
  float float_at(int64_t t, int64_t i) const {
    return from_bf16(keys[static_cast<size_t>(t)][static_cast<size_t>(i)]);
  }
  V41QueryMemory memory() {
    return {packed.data(), scores.data(), exps.data(), weights.data(), scratch.data()};
  }
  float at(const AlignedBuffer<float>& of, int64_t t, int64_t head) const {
    return of[static_cast<size_t>(t * lanes + head)];
  }
  // The weight as the kernel stores it: a float, or with BF16 dots half of a pair of keys.
  float weight(int64_t t, int64_t head) const {
    if (active_isa() != Isa::kAvx512Bf16) return at(weights, t, head);
    const auto pair = __builtin_bit_cast(uint32_t, at(weights, t / 2, head));
    return from_bf16(static_cast<uint16_t>(t % 2 == 0 ? pair : pair >> 16));
  }
  float largest(int64_t head) const {
    float m = at(scores, 0, head);
    for (int64_t t = 1; t < n; ++t) m = std::max(m, at(scores, t, head));
    return m;
  }
  // The float that the sum of exponentials and the sink's becomes. In double every addition rounds.
  Rounded denominator(int64_t head) const {
    const float from_top = sink[static_cast<size_t>(head)] - largest(head);
    const double e = std::exp(double{from_top});
    const Rounded of_sink = to_f32(e, kExpError * e);
    double total = 0;
    for (int64_t t = 0; t < n; ++t) total += double{at(exps, t, head)};
    const double error = kUnit * static_cast<double>(n + 1) * (total + e);
    return {static_cast<float>(total + of_sink.low - error),
            static_cast<float>(total + of_sink.high + error)};
  }
  void let_odd_keys_cancel(double spread);
  void let_first_lead();
  void choose_values();
};

// The second half of each query is the negative first half, and that of an odd key its first half
// or the next numbers, so that its scores nearly cancel in every head.
void Query::let_odd_keys_cancel(double spread) {
  std::normal_distribution<double> normal;
  const int64_t half = dim / 2;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < half; i += 4) {
      float* at = q.data() + head * dim + i;
      at[0] = nearest_bf16(spread * normal(rng));
      at[half] = -at[0];
    }
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < dim; ++i) key(t, i) = to_bf16(static_cast<float>(normal(rng)));
    for (int64_t i = 0; i < half && t % 2 == 1; i += 4)
      key(t, half + i) = static_cast<uint16_t>(key(t, i) + rng() % 3);
  }
}

// The first score is 16 to 19 above all others: their weights vanish beside its 1, but not in sum.
void Query::let_first_lead() {
  std::normal_distribution<double> normal;
  const double share = 4 / (static_cast<double>(dim) * double{scale});
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < dim; i += 4)
      q[static_cast<size_t>(head * dim + i)] =
          nearest_bf16(static_cast<double>(16 + head % 4) * share * (1 + 0.1 * normal(rng)));
  for (int64_t t = 0; t < n; ++t)
    for (int64_t i = 0; i < dim; ++i)
      key(t, i) =
          to_bf16(t == 0 && kind_of(i) == kScored ? 1.0f : static_cast<float>(0.02 * normal(rng)));
}

// Fills the columns that have no part in the scores. Each is made for one head; to the others it is
// random.
void Query::choose_values() {
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t head = i / 4 % heads;
    const double last = double{weight(n - 1, head)};
    if (kind_of(i) == kAlone)
      for (int64_t t = 0; t + 1 < n; ++t) key(t, i) = 0;
    if (kind_of(i) == kCancels && last > 1e-20) {
      double others = 0;
      for (int64_t t = 0; t + 1 < n; ++t) others += double{weight(t, head)} * value(t, i);
      key(n - 1, i) = to_bf16(static_cast<float>(-others / last));
    }
    if (kind_of(i) != kBoundary) continue;
    // Midway between two BF16 numbers, a few float steps to either side: the largest weight's key
    // comes within 2^-9 of it, two others add what is left.
    int64_t top = 0;
    for (int64_t t = 0; t < n; ++t)
      if (at(exps, t, head) > at(exps, top, head)) top = t;
    const double z = double{denominator(head).high},
                 middle = (257 + 2 * static_cast<double>(rng() % 128)) / 256;
    double left = middle * z * (1 + (i % 8 < 4 ? 6 : -6) * kFloatUnit);
    for (int64_t t = 0; t < n; ++t) key(t, i) = 0;
    const auto take = [&](int64_t t) {
      key(t, i) = to_bf16(static_cast<float>(left / double{weight(t, head)}));
      left -= double{weight(t, head)} * value(t, i);
    };
    take(top);
    for (int64_t t = 0, taken = 0; t < n && taken < 2; ++t)
      if (t != top && double{weight(t, head)} > 1e-12) take(t), ++taken;
  }
}

class V41AttentionTest : public deepmint::testing::IsaTest {
 protected:
  bool pairs() const { return GetParam() == Isa::kAvx512Bf16; }

  // Products a(i) b(i) in the order of the kernels.
  template <class Term>
  Chain chain(int64_t n, Term&& term) const {
    Chain c;
    for (int64_t i = 0; i < n; i += 2) {
      const double a = term(i), b = i + 1 < n ? term(i + 1) : 0;
      if (pairs()) {
        c.add_pair(a, b);
      } else {
        c.add(a);
        c.add(b);
      }
    }
    return c;
  }

  void check_scores(Query& q) const {
    for (int64_t head = 0; head < q.heads; ++head)
      for (int64_t t = 0; t < q.n; ++t) {
        const Chain dot = chain(q.dim, [&](int64_t i) {
          return double{q.q[static_cast<size_t>(head * q.dim + i)]} * q.value(t, i);
        });
        // One product with the scale, which is not a power of two.
        const double scale = double{q.scale};
        const Rounded allowed =
            to_f32(dot.value * scale, (dot.error + 4 * kUnit * std::fabs(dot.value)) * scale);
        ASSERT_TRUE(allowed.holds(q.at(q.scores, t, head)))
            << "head " << head << ", key " << t << " of " << q.n << ": " << q.at(q.scores, t, head)
            << ", allowed " << allowed.low << " to " << allowed.high;
      }
  }
  void check_weights(const Query& q) const {
    for (int64_t head = 0; head < q.heads; ++head) {
      const float top = q.largest(head);
      for (int64_t t = 0; t < q.n; ++t) {
        const double e = std::exp(double{q.at(q.scores, t, head) - top});
        ASSERT_TRUE(to_f32(e, kExpError * e).holds(q.at(q.exps, t, head)))
            << "head " << head << ", key " << t << " of " << q.n << ": " << q.at(q.exps, t, head)
            << " for " << e;
        ASSERT_EQ(q.weight(t, head), nearest_bf16(q.at(q.exps, t, head)))
            << "head " << head << ", key " << t << " of " << q.n;
      }
    }
  }
  void check_values(Query& q) const {
    for (int64_t head = 0; head < q.heads; ++head) {
      const Rounded z = q.denominator(head);
      for (int64_t i = 0; i < q.dim; ++i) {
        const Chain sum =
            chain(q.n, [&](int64_t t) { return double{q.weight(t, head)} * q.value(t, i); });
        const Rounded allowed = to_bf16(quotient(to_f32(sum), z));
        const float got = q.out[static_cast<size_t>(head * q.dim + i)];
        ASSERT_TRUE(allowed.holds(got))
            << "head " << head << ", dimension " << i << ", " << q.n << " keys: " << got
            << ", allowed " << allowed.low << " to " << allowed.high;
        decided_ += allowed.certain() ? 1 : 0;
        ++all_;
      }
    }
  }

  // The chains of the header one operation after the other: what avx2, avx512 and avx512vnni all
  // compute, so that machines agree although none may run each.
  void check_fma_order(const Query& q) const {
    for (int64_t head = 0; head < q.heads; ++head) {
      for (int64_t t = 0; t < q.n; ++t) {
        float s = 0;
        for (int64_t i = 0; i < q.dim; ++i)
          s = std::fma(q.q[static_cast<size_t>(head * q.dim + i)], q.float_at(t, i), s);
        ASSERT_EQ(s * q.scale, q.at(q.scores, t, head)) << "head " << head << ", key " << t;
      }
      for (int64_t i = 0; i < q.dim; ++i) {
        float s = 0;
        for (int64_t t = 0; t < q.n; ++t) s = std::fma(q.weight(t, head), q.float_at(t, i), s);
        const Rounded z = q.denominator(head);
        if (!z.certain()) continue;
        ASSERT_EQ(nearest_bf16(double{s / z.low}), q.out[static_cast<size_t>(head * q.dim + i)])
            << "head " << head << ", dimension " << i << " of " << q.n << " keys";
      }
    }
  }

  mutable int64_t decided_ = 0, all_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Isas, V41AttentionTest, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

TEST_P(V41AttentionTest, EveryStepRoundsWhereItSays) {
  uint32_t salt = 0;
  // One key, both parities, past the window of 128, past 512 selected rows beside it.
  for (const int64_t n : {1, 2, 3, 12, 13, 128, 129, 333, 640, 645})
    for (const auto& [heads, dim] :
         {std::pair<int64_t, int64_t>{3, 96}, {8, 64}, {17, 32}, {33, 64}, {16, 512}}) {
      for (const bool first_leads : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << heads << " heads of " << dim << ", first leads: " << first_leads);
        Query q(heads, dim, n, n % 2 == 0 ? 3 : 1, first_leads, ++salt);
        V41QueryMemory memory = q.memory();
        v41_pack_queries(q.q.data(), heads, dim, memory);
        // In two ranges, as threads share them.
        const int64_t cut = n / 2 / kV41RowStep * kV41RowStep;
        const auto find_weights = [&] {
          v41_scores(q.rows.data(), 0, cut, heads, dim, q.scale, memory, q.scratch.data());
          v41_scores(q.rows.data(), cut, n, heads, dim, q.scale, memory, q.scratch.data());
          v41_weights(n, 0, cut, heads, memory);
          v41_weights(n, cut, n, heads, memory);
        };
        find_weights();
        ASSERT_NO_FATAL_FAILURE(check_scores(q));
        ASSERT_NO_FATAL_FAILURE(check_weights(q));
        q.choose_values();
        find_weights();  // as before: these columns have no part in them
        v41_values(q.rows.data(), n, heads, dim, 0, dim, q.sink.data(), memory, q.out.data());
        ASSERT_NO_FATAL_FAILURE(check_values(q));
        if (isa_class(GetParam()) == "fma") {
          ASSERT_NO_FATAL_FAILURE(check_fma_order(q));
        }
        // All in one call.
        std::vector<float> whole(q.out.size());
        v41_attend(q.q.data(), q.rows.data(), n, heads, dim, q.scale, q.sink.data(), memory,
                   whole.data());
        ASSERT_EQ(std::memcmp(whole.data(), q.out.data(), whole.size() * sizeof(float)), 0);
      }
    }
  // Nearly every result can come out in one way only.
  EXPECT_GT(decided_, all_ * 19 / 20) << decided_ << " of " << all_;
}

// Rows of a list of which some are unpacked already, and parts of rows outside of it, unpacked
// beside the scores: the same words and the same scores as when all was unpacked before.
TEST_P(V41AttentionTest, UnpackedBesideTheScoresAsBefore) {
  std::mt19937 rng(deepmint::testing::test_seed() + 5);
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(rng() % n); };
  for (const auto& [heads, dim] :
       {std::pair<int64_t, int64_t>{3, 96}, {16, 32}, {33, 64}, {16, 512}, {48, 128}})
    for (const int64_t n : {1, 4, 11, 12, 24, 29, 60, 173}) {
      SCOPED_TRACE(::testing::Message() << heads << " heads of " << dim << ", " << n << " rows");
      const int64_t lanes = v41_lanes(heads), others = below(40), all = n + others;
      const auto size = [](int64_t a) { return static_cast<size_t>(a); };
      const int64_t bytes = dim + dim / 16, stride = dim + 32;
      std::vector<uint8_t> packed(size(all * bytes));
      for (uint8_t& b : packed) b = static_cast<uint8_t>(rng());
      std::vector<uint16_t> before(size(all * stride)), beside(size(all * stride));
      std::vector<V41Unpack::Row> rest;
      std::vector<const uint16_t*> rows_before, rows_beside;
      std::vector<int32_t> due;
      for (int64_t t = 0; t < all; ++t) {
        uint8_t* row = packed.data() + t * bytes;
        const bool window = below(2) == 0;
        // No NaN; most scales of a window row near 1, some far out of the range of BF16.
        for (int64_t b = 0; b < bytes; ++b)
          if ((row[b] & 0x7F) == 0x7F) row[b] ^= 1;
        for (int64_t b = dim; window && b < dim + dim / 32; ++b)
          row[b] = static_cast<uint8_t>(below(20) == 0 ? 1 + below(250) : 120 + below(14));
        const int64_t begin = t < n ? 0 : below(static_cast<uint32_t>(dim / 32)) * 32;
        const auto* from = reinterpret_cast<const std::byte*>(row);
        const auto unpack = [&](std::vector<uint16_t>& to) {
          uint16_t* out = to.data() + t * stride;
          window ? v41_unpack_window(from, dim, begin, dim, out)
                 : v41_unpack_global(from, dim, begin, dim, out);
        };
        unpack(before);
        if (t < n && below(4) == 0)
          unpack(beside);
        else
          rest.push_back({row, beside.data() + t * stride, static_cast<int32_t>(begin),
                          static_cast<int32_t>(dim), window});
        if (t >= n) continue;
        due.push_back(static_cast<int32_t>(rest.size()));
        rows_before.push_back(before.data() + t * stride);
        rows_beside.push_back(beside.data() + t * stride);
      }
      std::vector<float> q(size(heads * dim));
      for (float& x : q) x = from_bf16(to_bf16(static_cast<float>(below(2001)) * 1e-3f - 1));
      AlignedBuffer<float> queries(size(lanes * dim)), a(size(n * lanes)), b(size(n * lanes)),
          scratch(size(kV41RowStep * dim));
      V41QueryMemory memory{queries.data(), a.data(), nullptr, nullptr, scratch.data()};
      v41_pack_queries(q.data(), heads, dim, memory);
      v41_scores(rows_before.data(), 0, n, heads, dim, 0.25f, memory, scratch.data());
      memory.scores = b.data();
      V41Unpack unpack{.rows = rest.data(),
                       .count = static_cast<int64_t>(rest.size()),
                       .dim = dim,
                       .due = due.data()};
      v41_scores(rows_beside.data(), 0, n, heads, dim, 0.25f, memory, scratch.data(), nullptr,
                 &unpack);
      EXPECT_EQ(unpack.done, unpack.count);
      ASSERT_EQ(before, beside);
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
    }
}

}  // namespace
}  // namespace deepmint::kernels
