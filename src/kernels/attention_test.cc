#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/aligned.h"
#include "core/cpu_isa.h"
#include "support/isa_test.h"

namespace deepmint::kernels {
namespace {

struct Shape {
  int64_t dim = 64, group = 3;
};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Twenty times slower: one shape of each kind (whole registers, a remainder, a small head, a tail).
const std::vector<Shape> kShapes = {{64, 3}, {96, 5}, {8, 1}, {100, 1}};
#else
const std::vector<Shape> kShapes = {{64, 3}, {64, 1}, {96, 5}, {128, 4}, {128, 7}, {256, 2},
                                    {8, 1},  {48, 2}, {80, 3}, {100, 1}, {64, 64}};
#endif

// One sequence of `length` positions in pages whose order is shuffled; everything unwritten is NaN.
struct Sequence {
  Shape shape;
  int64_t length;
  std::vector<BlockId> blocks;
  AlignedBuffer<std::byte> pages;
  std::vector<float> q;  // [length, group * dim]

  Sequence(Shape s, int64_t n, uint32_t seed) : shape(s), length(n) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const auto n_blocks = static_cast<size_t>((n + kBlockTokens - 1) / kBlockTokens);
    std::vector<uint32_t> order(n_blocks + 2);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), rng);
    for (size_t i = 0; i < n_blocks; ++i) blocks.push_back(static_cast<BlockId>(order[i]));
    pages = AlignedBuffer<std::byte>(order.size() * static_cast<size_t>(kv_tile_bytes(s.dim)));
    std::memset(pages.data(), 0xff, pages.size());
    std::vector<float> k(static_cast<size_t>(s.dim)), v(k.size());
    for (int64_t p = 0; p < n; ++p) {
      for (float& x : k) x = normal(rng);
      for (float& x : v) x = normal(rng);
      kv_write(tile(p / kBlockTokens), s.dim, static_cast<int>(p % kBlockTokens), k.data(),
               v.data());
    }
    q.resize(static_cast<size_t>(n * s.group * s.dim));
    for (float& x : q) x = normal(rng) / std::sqrt(static_cast<float>(s.dim)) * 3.0f;
  }
  std::byte* tile(int64_t t) {
    return pages.data() + static_cast<size_t>(blocks[static_cast<size_t>(t)]) *
                              static_cast<size_t>(kv_tile_bytes(shape.dim));
  }
  AttentionJob job(int64_t position, int64_t rows, float* out) {
    const int64_t stride = shape.group * shape.dim;
    return {.q = q.data() + position * stride,
            .q_stride = stride,
            .out = out,
            .out_stride = stride,
            .rows = rows,
            .group = shape.group,
            .head_dim = shape.dim,
            .position = position,
            .pages = {pages.data(), static_cast<size_t>(kv_tile_bytes(shape.dim)), blocks.data()}};
  }
  // Rows [position, position + rows) in jobs of `step` rows.
  std::vector<float> run(int64_t position, int64_t rows, int64_t step) {
    const int64_t stride = shape.group * shape.dim;
    step = std::min(step, kMaxQueries / shape.group);
    std::vector<float> out(static_cast<size_t>(rows * stride));
    AlignedBuffer<float> scratch(static_cast<size_t>(attention_scratch_floats(shape.dim)));
    for (float& x : scratch.span()) x = std::numeric_limits<float>::quiet_NaN();
    for (int64_t r = 0; r < rows; r += step)
      attend(job(position + r, std::min(step, rows - r), out.data() + r * stride), scratch.data());
    return out;
  }
};

void expect_same(const std::vector<float>& a, const std::vector<float>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(std::memcmp(&a[i], &b[i], 4), 0)
        << what << ": first difference at " << i << ": " << a[i] << " and " << b[i];
}

class Attention : public deepmint::testing::IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isas, Attention, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

TEST_P(Attention, MatchesReference) {
  for (const Shape shape : kShapes) {
    Sequence s(shape, 200, 11);
    const auto out = s.run(0, 200, 16);
    std::vector<float> ref(out.size());
    attend_ref(s.job(0, 200, ref.data()));
    // Values are weighted means of normal numbers (below about 5); scores below 20 lose 64
    // roundings of 2^-24 · 20 in exp.
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], ref[i], 2e-5)
          << "dim " << shape.dim << " group " << shape.group << " at " << i;
  }
}

// T1: a row alone, and in jobs of every size, at every alignment to the tiles.
TEST_P(Attention, RowsDoNotDependOnTheirCompany) {
  for (const Shape shape : kShapes) {
    Sequence s(shape, 150, 5);
    const auto alone = s.run(0, 150, 1);
    for (const int64_t step : {2, 3, 5, 8, 16, 17, 31, 64})
      expect_same(alone, s.run(0, 150, step), "step");
    const int64_t stride = shape.group * shape.dim;
    for (const int64_t start : {1, 63, 64, 65, 100}) {
      const auto part = s.run(start, 150 - start, 7);
      expect_same({alone.begin() + start * stride, alone.end()}, part, "start");
    }
  }
}

// T3: later positions of the same sequence are infinite or NaN; earlier rows keep their bits.
TEST_P(Attention, LaterKeysAndValuesAreNotRead) {
  for (const Shape shape : kShapes) {
    Sequence s(shape, 130, 9);
    const auto clean = s.run(0, 90, 16);
    std::vector<float> bad(static_cast<size_t>(shape.dim), std::numeric_limits<float>::infinity());
    for (int64_t p = 90; p < 130; ++p) {
      bad[0] = p % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : bad[0];
      kv_write(s.tile(p / kBlockTokens), shape.dim, static_cast<int>(p % kBlockTokens), bad.data(),
               bad.data());
    }
    expect_same(clean, s.run(0, 90, 16), "poison");
    // Together with poisoned rows in one job.
    const auto mixed = s.run(0, 130, 16);
    expect_same(clean, {mixed.begin(), mixed.begin() + 90 * shape.group * shape.dim}, "mixed");
  }
}

TEST_P(Attention, TilesOnSeveralThreadsGiveTheSameBits) {
  for (const Shape shape : kShapes) {
    Sequence s(shape, 700, 3);
    const int64_t stride = shape.group * shape.dim, size = partial_floats(shape.group, shape.dim);
    for (const int64_t position : {0, 63, 64, 500, 699}) {
      const auto whole = s.run(position, 1, 1);
      const int64_t tiles = position / kBlockTokens + 1;
      for (const int64_t wave : {int64_t{1}, int64_t{3}, tiles}) {
        std::vector<float> out(static_cast<size_t>(stride));
        AlignedBuffer<float> partials(static_cast<size_t>(wave * size)),
            state(static_cast<size_t>(size));
        AlignedBuffer<float> scratch(static_cast<size_t>(attention_scratch_floats(shape.dim)));
        const AttentionJob job = s.job(position, 1, out.data());
        for (int64_t begin = 0; begin < tiles; begin += wave) {
          const int64_t end = std::min(begin + wave, tiles);
          for (int64_t t = end - 1; t >= begin;
               --t)  // backwards: order of computation does not matter
            attend_partials(job, t, t + 1, partials.data() + (t - begin) * size, scratch.data());
          attend_combine(job, begin, end, partials.data(), state.data());
        }
        expect_same(whole, out, "split");
      }
    }
  }
}

TEST(AttentionClass, SameBitsInsideTheClass) {
  for (const Shape shape : kShapes) {
    std::vector<float> first;
    for (const Isa isa : available_isas()) {
      if (isa == Isa::kX86_64) continue;
      set_active_isa(isa);
      Sequence s(shape, 180, 21);
      const auto out = s.run(0, 180, 6);
      if (first.empty()) first = out;
      expect_same(first, out, std::string(to_string(isa)));
    }
  }
  set_active_isa(detected_isa());
}

TEST(Attention, KvWriteTouchesOneSlotOnly) {
  for (const Isa isa : available_isas()) {
    set_active_isa(isa);
    for (const Shape shape : kShapes) {
      const auto n = static_cast<size_t>(kv_tile_bytes(shape.dim)) / 2;
      std::vector<uint16_t> tile(n, 0x5555);
      std::vector<float> k(static_cast<size_t>(shape.dim), 1.0f), v(k.size(), 2.0f);
      kv_write(reinterpret_cast<std::byte*>(tile.data()), shape.dim, 37, k.data(), v.data());
      size_t ones = 0, twos = 0;
      for (size_t i = 0; i < n; ++i) {
        const bool key = i < n / 2;
        if (tile[i] == 0x3f80) {
          ++ones;
          EXPECT_TRUE(key);
          EXPECT_EQ(i % 64, static_cast<size_t>(pair_index(37)));
        } else if (tile[i] == 0x4000) {
          ++twos;
          EXPECT_FALSE(key);
          EXPECT_EQ((i - n / 2) / static_cast<size_t>(shape.dim), 37u);
        } else {
          EXPECT_EQ(tile[i], 0x5555);
        }
      }
      EXPECT_EQ(ones, k.size());
      EXPECT_EQ(twos, k.size());
    }
  }
  set_active_isa(detected_isa());
}

}  // namespace
}  // namespace deepmint::kernels
