#include "kernels/quant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "kernels/linear_cases.h"
#include "support/source_dir.h"

namespace deepmint::kernels {
namespace {

struct Record {
  std::string name;
  uint32_t block_bytes = 0, block_elements = 0, n_blocks = 0;
  std::vector<std::byte> blocks;
  std::vector<float> values;
};

std::vector<Record> read_records() {
  std::ifstream file(testing::source_path("tests/golden/dequantize/blocks.bin"), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::vector<Record> records;
  size_t at = 0;
  const auto take = [&](void* out, size_t count) {
    ASSERT_LE(at + count, bytes.size());
    std::memcpy(out, bytes.data() + at, count);
    at += count;
  };
  while (at < bytes.size()) {
    Record r;
    char name[9] = {};
    take(name, 8);
    r.name = name;
    take(&r.block_bytes, 4);
    take(&r.block_elements, 4);
    take(&r.n_blocks, 4);
    r.blocks.resize(size_t{r.n_blocks} * r.block_bytes);
    take(r.blocks.data(), r.blocks.size());
    r.values.resize(size_t{r.n_blocks} * r.block_elements);
    take(r.values.data(), r.values.size() * sizeof(float));
    if (::testing::Test::HasFatalFailure()) break;
    records.push_back(std::move(r));
  }
  return records;
}

TEST(Dequantize, EqualsTheGgufPackageToTheBit) {
  const std::vector<Record> records = read_records();
  ASSERT_EQ(records.size(), kLinearTypes.size());
  for (size_t t = 0; t < records.size(); ++t) {
    const Record& r = records[t];
    const DTypeInfo& type = info(kLinearTypes[t]);
    ASSERT_EQ(r.name, type.name);
    ASSERT_EQ(r.block_bytes, type.block_bytes);
    ASSERT_EQ(r.block_elements, type.block_elements);
    const auto k = static_cast<int64_t>(r.values.size());
    std::vector<float> out(r.values.size());
    std::vector<double> exact(r.values.size());
    dequantize_row(kLinearTypes[t], r.blocks.data(), k, out.data());
    dequantize_row_exact(kLinearTypes[t], r.blocks.data(), k, exact.data());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(r.values[i]))
          << r.name << " value " << i << ": expected " << r.values[i] << ", found " << out[i];
      ASSERT_EQ(static_cast<float>(exact[i]), out[i]) << r.name << " value " << i;
    }
  }
}

TEST(Dequantize, SourceMayLieAnywhere) {
  for (const Record& r : read_records()) {
    std::vector<std::byte> shifted(r.blocks.size() + 1);
    std::memcpy(shifted.data() + 1, r.blocks.data(), r.blocks.size());
    for (const DType dtype : kLinearTypes) {
      if (info(dtype).name != r.name) continue;
      std::vector<float> out(r.values.size());
      dequantize_row(dtype, shifted.data() + 1, static_cast<int64_t>(out.size()), out.data());
      EXPECT_EQ(0, std::memcmp(out.data(), r.values.data(), out.size() * sizeof(float))) << r.name;
    }
  }
}

TEST(F16, EveryValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double fraction = bits & 0x3ff, sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_TRUE(fraction == 0 ? std::isinf(value) : std::isnan(value)) << bits;
      EXPECT_EQ(std::signbit(value), sign < 0);
    } else {
      const double expected =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(value, sign * expected) << bits;
      EXPECT_EQ(std::signbit(value), sign < 0);
    }
  }
}

TEST(BF16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // halfway, to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);  // rounds up to infinity
  EXPECT_EQ(f32_to_bf16(-INFINITY), 0xff80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      EXPECT_EQ(f32_to_bf16(value), bits);
    }
  }
}

}  // namespace
}  // namespace deepmint::kernels
