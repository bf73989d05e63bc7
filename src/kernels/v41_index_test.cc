// Scores of the V4.1 indexer on every instruction set against their definition in double, with the
// error that the roundings of their own order allow.
#include "kernels/v41_index.h"

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

// A packed row: dim / 2 bytes of E2M1 codes, dim / 32 scales 2^(b - 127).
using Row = std::vector<uint8_t>;
double element(const Row& row, int64_t dim, int64_t i) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int code = row[static_cast<size_t>(i / 2)] >> (4 * (i % 2)) & 15;
  const double scale = std::ldexp(1.0, row[static_cast<size_t>(dim / 2 + i / 32)] - 127);
  return (code < 8 ? 1 : -1) * kMagnitudes[code & 7] * scale;
}

class V41IndexTest : public deepmint::testing::IsaTest {};
INSTANTIATE_TEST_SUITE_P(Isas, V41IndexTest, ::testing::ValuesIn(available_isas()),
                         deepmint::testing::isa_name);

// Random heads and sixteen keys for each group, packed and as the kernels take them.
struct Scan {
  int64_t dim, heads, groups, blocks;
  std::vector<Row> queries, keys;
  std::vector<float> weights;
  std::vector<uint8_t> page;  // keys one behind the other, as eights of them lie in the cache
  AlignedBuffer<int8_t> packed;
  std::vector<V41IndexBlock> packed_blocks;
  AlignedBuffer<uint8_t> tile;
  AlignedBuffer<float> scales;

  // Blocks of scales so far apart that their dots do not add exactly.
  Row random_row(std::mt19937& rng) const {
    Row row(static_cast<size_t>(dim / 2 + blocks));
    for (uint8_t& b : row) b = static_cast<uint8_t>(rng());
    for (int64_t b = 0; b < blocks; ++b)
      row[static_cast<size_t>(dim / 2 + b)] = static_cast<uint8_t>(121 + rng() % 10);
    return row;
  }

  // cancels: of every two heads the second has other codes in three places and the opposite weight.
  Scan(int64_t d, int64_t h, int64_t g, bool cancels, std::mt19937& rng)
      : dim(d), heads(h), groups(g), blocks(d / 32) {
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    const V41IndexTable& index = v41_index();
    std::normal_distribution<float> normal;
    packed = AlignedBuffer<int8_t>(size(heads * dim));
    packed_blocks.resize(size(heads * blocks));
    for (int64_t head = 0; head < heads; ++head) {
      queries.push_back(random_row(rng));
      weights.push_back(normal(rng));
      if (cancels && head % 2 == 1) {
        queries.back() = queries[size(head - 1)];
        for (int change = 0; change < 3; ++change)
          queries.back()[rng() % size(dim / 2)] ^= uint8_t{1};
        weights.back() = -weights[size(head - 1)];
      }
      const uint8_t* codes = queries.back().data();
      index.pack_query(codes, codes + dim / 2, dim, packed.data() + head * dim,
                       packed_blocks.data() + head * blocks);
    }
    for (int64_t j = 0; j < 16 * groups; ++j) {
      keys.push_back(random_row(rng));
      page.insert(page.end(), keys.back().begin(), keys.back().end());
    }
    tile = AlignedBuffer<uint8_t>(size(16 * groups * dim));
    scales = AlignedBuffer<float>(size(16 * groups * blocks));
    for (int64_t group = 0; group < groups; ++group) {
      const uint8_t* sixteen[16];
      for (int64_t j = 0; j < 16; ++j) sixteen[j] = key(16 * group + j);
      index.unpack_keys(sixteen, dim, tile.data() + group * 16 * dim,
                        scales.data() + group * 16 * blocks);
    }
  }
  const uint8_t* key(int64_t j) const { return page.data() + j * row_bytes(); }
  int64_t row_bytes() const { return dim / 2 + blocks; }

  // What the score of key j may be.
  Rounded score(int64_t j, Isa isa) const {
    double value = 0, error = 0;
    for (size_t h = 0; h < queries.size(); ++h) {
      Chain dot;  // over blocks, whose own dots are integers times a power of two
      for (int64_t b = 0; b < blocks; ++b) {
        double exact = 0;
        for (int64_t i = 32 * b; i < 32 * b + 32; ++i)
          exact += element(queries[h], dim, i) * element(keys[static_cast<size_t>(j)], dim, i);
        dot.add(exact);
      }
      // The weight multiplies a float: fused with the addition, or rounded before it.
      const double weight = double{weights[h]}, term = weight * std::max(dot.value, 0.0);
      error += std::fabs(weight) * dot.error;
      if (isa == Isa::kX86_64) error += kFloatUnit * (std::fabs(term) + error);
      value += term;
      error += kFloatUnit * (std::fabs(value) + error);
    }
    return to_f32(value, error + 2 * kUnit * static_cast<double>(heads) * std::fabs(value));
  }
};

TEST_P(V41IndexTest, ScoresRoundWhereTheySay) {
  const V41IndexTable& index = v41_index();
  std::mt19937 rng(deepmint::testing::test_seed());
  for (const int64_t dim : {32, 64, 128, 160})
    for (const int64_t heads : {1, 2, 3, 5, 8, 16, 31, 32})
      for (const int64_t groups : {1, 2, 3})
        for (const bool cancels : {false, true}) {
          SCOPED_TRACE(::testing::Message() << heads << " heads of " << dim << ", " << 16 * groups
                                            << " keys, cancelling: " << cancels);
          const Scan scan(dim, heads, groups, cancels, rng);
          std::vector<float> got(scan.keys.size(), NAN);
          index.scores(scan.tile.data(), scan.scales.data(), groups, scan.packed.data(),
                       scan.packed_blocks.data(), scan.weights.data(), heads, dim, got.data());
          for (size_t j = 0; j < got.size(); ++j) {
            const Rounded allowed = scan.score(static_cast<int64_t>(j), GetParam());
            ASSERT_TRUE(allowed.holds(got[j])) << "key " << j << ": " << got[j] << ", allowed "
                                               << allowed.low << " to " << allowed.high;
          }
          // Reading the keys where they lie gives the same bits.
          if (index.scan128 == nullptr || dim != 128 || heads % 8 != 0) continue;
          std::vector<const uint8_t*> eights;
          for (int64_t j = 0; j < 16 * groups; j += 8) eights.push_back(scan.key(j));
          std::vector<float> in_place(got.size());
          index.scan128(eights.data(), static_cast<size_t>(scan.row_bytes()), groups,
                        scan.packed.data(), scan.packed_blocks.data(), scan.weights.data(), heads,
                        in_place.data());
          ASSERT_EQ(std::memcmp(in_place.data(), got.data(), got.size() * sizeof(float)), 0);
        }
}

}  // namespace
}  // namespace deepmint::kernels
