#include "core/dtype.h"

#include <gtest/gtest.h>

#include <limits>

namespace deepmint {
namespace {

TEST(DType, RowBytes) {
  EXPECT_EQ(row_bytes(DType::kF32, 3), 12u);
  EXPECT_EQ(row_bytes(DType::kF8E4M3, 3), 3u);
  EXPECT_EQ(row_bytes(DType::kI64, 0), 0u);
  // Bits per weight as the block layouts are usually
  // quoted: 8.5, 4.5, 5.0, 5.5, 6.0, 4.5, 5.5, 6.5625.
  EXPECT_EQ(row_bytes(DType::kQ8_0, 256), 272u);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 256), 144u);
  EXPECT_EQ(row_bytes(DType::kQ4_1, 256), 160u);
  EXPECT_EQ(row_bytes(DType::kQ5_0, 256), 176u);
  EXPECT_EQ(row_bytes(DType::kQ5_1, 256), 192u);
  EXPECT_EQ(row_bytes(DType::kQ4_K, 256), 144u);
  EXPECT_EQ(row_bytes(DType::kQ5_K, 256), 176u);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 256), 210u);
  EXPECT_FALSE(row_bytes(DType::kQ4_0, 33));
  EXPECT_FALSE(row_bytes(DType::kQ6_K, 128));
}

TEST(DType, RowBytesSeeOverflow) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_FALSE(row_bytes(DType::kF32, kMax / 4 + 1));
  EXPECT_EQ(row_bytes(DType::kF32, kMax / 4), kMax - 3);
  EXPECT_FALSE(row_bytes(DType::kQ8_0, kMax / 32 * 32));
  EXPECT_EQ(row_bytes(DType::kI8, kMax), kMax);
}

TEST(DType, NamesAreUnique) {
  for (int a = 0; a <= static_cast<int>(DType::kQ6_K); ++a)
    for (int b = 0; b < a; ++b)
      EXPECT_NE(info(static_cast<DType>(a)).name, info(static_cast<DType>(b)).name);
}

}  // namespace
}  // namespace deepmint
